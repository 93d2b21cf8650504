//! Words of a text: the units that the index counts.
//!
//! 1. Unicode Standard Annex 29 divides a text into words. An apostrophe, a full stop or a colon
//!    inside a word divides it further, unless it begins with a digit; a single letter behind the
//!    division ("s" of "smith's") is no word.
//! 2. Letters are in lower case, in compatibility form (NFKC), without the accents of U+0300 to
//!    U+036F: "Café", "CAFE" and "café" with a combining accent are equal. Letters that differ only
//!    in lower case are equal too: "Straße" and "STRASSE", "ısparta" and "ISPARTA", "οδος" and
//!    "οδοσ".
//! 3. Scripts without spaces (Han, kana, Thai, Lao, Khmer, Burmese), and Hangul, whose words
//!    carry particles, give each pair of neighbouring characters; Han also gives each character.
//! 4. Words of ASCII letters are [stemmed](crate::stem).

use unicode_normalization::UnicodeNormalization as _;
use unicode_segmentation::UnicodeSegmentation as _;

use crate::stem::stem;

/// English function words. Queries leave them out; entries keep them. Words that are names or nouns
/// too ("will", "may", "can") are not in the list. Without the list, recall at 1 of direct
/// questions (`tests/data`) is 94.5 in place of 98.2.
const STOP_WORDS: &[&str] = &[
    "a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "did",
    "do", "does", "done", "for", "from", "had", "has", "have", "he", "her", "here", "him", "his",
    "how", "i", "if", "in", "into", "is", "it", "its", "me", "my", "of", "on", "or", "our", "she",
    "so", "some", "than", "that", "the", "their", "them", "then", "there", "these", "they", "this",
    "to", "was", "we", "were", "what", "when", "where", "which", "who", "whom", "whose", "why",
    "with", "would", "you", "your",
];

/// Calls `found` with each word of `text`, in order.
pub(crate) fn for_each_word(text: &str, mut found: impl FnMut(&str)) {
    walk(text, |word| {
        stem(word);
        found(word);
    });
}

/// Calls `found` with each word of a query that is no stop word.
pub(crate) fn for_each_query_word(text: &str, mut found: impl FnMut(&str)) {
    walk(text, |word| {
        if STOP_WORDS.binary_search(&word.as_str()).is_err() {
            stem(word);
            found(word);
        }
    });
}

fn walk(text: &str, mut found: impl FnMut(&mut String)) {
    let mut word = String::new();
    // Characters of a script without spaces, and the position behind the last one.
    let (mut run, mut run_end) = (Vec::new(), 0);
    for (start, segment) in text.unicode_word_indices() {
        if segment.chars().next().is_some_and(is_unspaced) {
            if start != run_end {
                pairs(&mut run, &mut word, &mut found);
            }
            run.extend(segment.nfkc());
            run_end = start + segment.len();
            continue;
        }
        pairs(&mut run, &mut word, &mut found);
        let begins_with_digit = segment.starts_with(|c: char| c.is_numeric());
        let is_divided = !begins_with_digit && segment.contains(is_divider);
        for part in segment.split(|c| is_divided && is_divider(c)) {
            normalize(part, &mut word);
            let is_short = is_divided && word.chars().nth(1).is_none();
            if !word.is_empty() && !is_short {
                found(&mut word);
            }
        }
    }
    pairs(&mut run, &mut word, &mut found);
}

fn is_divider(c: char) -> bool {
    matches!(c, '\'' | '\u{2019}' | '.' | ':' | '_' | '\u{b7}')
}

fn normalize(part: &str, word: &mut String) {
    word.clear();
    if part.is_ascii() {
        word.extend(part.chars().map(|c| c.to_ascii_lowercase()));
        return;
    }
    let is_kept = |c: &char| !('\u{300}'..='\u{36f}').contains(c);
    let letters = part.nfkd().filter(is_kept).flat_map(char::to_lowercase);
    word.extend(letters.flat_map(folded).nfc());
}

/// A letter in lower case, without the differences that upper case does not have.
fn folded(c: char) -> impl Iterator<Item = char> {
    let (first, second) = match c {
        'ß' => ('s', Some('s')),
        'ς' => ('σ', None),
        // The upper case of both is I, unless the language is Turkish.
        'ı' => ('i', None),
        other => (other, None),
    };
    [Some(first), second].into_iter().flatten()
}

/// The pairs of a run, and its Han characters alone. A run of one character is a word.
fn pairs(run: &mut Vec<char>, word: &mut String, found: &mut impl FnMut(&mut String)) {
    let is_single = run.len() == 1;
    for (at, &c) in run.iter().enumerate() {
        if is_single || is_han(c) {
            word.clear();
            word.push(c);
            found(word);
        }
        if let Some(&next) = run.get(at + 1) {
            word.clear();
            word.extend([c, next]);
            found(word);
        }
    }
    run.clear();
}

fn is_han(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}

fn is_unspaced(c: char) -> bool {
    is_han(c)
        || matches!(c,
            '\u{e00}'..='\u{eff}'       // Thai, Lao
            | '\u{1000}'..='\u{109f}'   // Burmese
            | '\u{1780}'..='\u{17ff}'   // Khmer
            | '\u{1100}'..='\u{11ff}' | '\u{ac00}'..='\u{d7ff}' // Hangul
            | '\u{3005}'..='\u{3007}' | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' // kana
            | '\u{ff66}'..='\u{ff9f}') // kana of half width
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        for_each_word(text, |word| words.push(word.to_owned()));
        words
    }

    fn query_words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        for_each_query_word(text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn english() {
        assert_eq!(
            words("The smith's HAMMERS, isn't it?"),
            ["the", "smith", "hammer", "isn", "it"]
        );
        assert_eq!(words("half-price: 3.5 silver"), ["half", "price", "3.5", "silver"]);
        assert_eq!(query_words("Who is the smith?"), ["smith"]);
        assert!(query_words("Who are you?").is_empty());
        assert!(STOP_WORDS.is_sorted(), "a binary search needs the order");
    }

    #[test]
    fn accents_and_forms() {
        assert_eq!(words("Café"), ["cafe"]);
        assert_eq!(words("CAFE\u{301}"), ["cafe"]);
        assert_eq!(words("l’eau"), ["eau"]);
        assert_eq!(words("Ｍｉｌｌ"), ["mill"], "full width");
        assert_eq!(words("Мельница"), ["мельница"]);
        assert_eq!(words("İSTANBUL"), ["istanbul"]);
    }

    #[test]
    fn words_are_equal_in_every_case() {
        for equal in [
            &["STRASSE", "Straße", "strasse", "STRAẞE"][..],
            &["ISPARTA", "Isparta", "ısparta", "İSPARTA", "isparta"],
            &["ΟΔΟΣ", "οδος", "οδοσ", "Όδος"],
            &["ﬁsh", "FISH", "fiſh", "ℱish"],
            &["ԵՒ", "եւ", "և"],
            &["ǅ", "ǆ", "Ǆ", "dž"],
        ] {
            for word in equal {
                assert_eq!(words(word), words(equal[0]), "{word}");
            }
        }
    }

    #[test]
    fn scripts_without_spaces() {
        assert_eq!(words("水車小屋"), ["水", "水車", "車", "車小", "小", "小屋", "屋"]);
        assert_eq!(words("水"), ["水"]);
        assert_eq!(words("かじや"), ["かじ", "じや"]);
        assert_eq!(words("ﾐｽﾞ"), words("ミズ"));
        assert_eq!(words("대장간 mill"), ["대장", "장간", "mill"]);
        assert!(words("โรงสี").len() >= 2);
        assert_eq!(words("火。水"), ["火", "水"], "a sign ends a run");
    }

    proptest! {
        #[test]
        fn any_text(text in "\\PC*", noise in any::<String>()) {
            for text in [text, noise] {
                let words = words(&text);
                prop_assert!(words.iter().all(|word| !word.is_empty()));
                prop_assert!(words.len() <= 2 * text.chars().count(), "memory is bounded");
            }
        }
    }
}
