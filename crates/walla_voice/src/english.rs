//! English phonemes, by `loqui-g2p`: lexicons, rules and a small network for unknown words.

mod espeak;
mod normalize;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use loqui_g2p::{G2p, OovFallback};

use crate::synthesizer::{PhonemeWord, Phonemizer};
use normalize::Normalized;

/// English with the symbols of espeak, for Piper voices, or of misaki, for Kokoro voices.
///
/// Numbers, amounts, times, dates of years, common abbreviations and units are read as words;
/// unknown names by a small network. Emojis and other scripts are left out.
///
/// It has about 85 MB of lexicons in memory, so one is [`shared`](Self::shared) by all voices.
pub struct English {
    g2p: Arc<G2p>,
    /// Phonemes of words in small letters.
    dictionary: HashMap<String, String>,
    has_misaki_symbols: bool,
}

/// A kind of English.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// American.
    #[default]
    American,
    /// British.
    British,
}

impl Dialect {
    /// The dialect of an espeak voice (`en-us`, `en-gb-x-rp`, `en`).
    #[must_use]
    pub fn of_language(language: &str) -> Option<Self> {
        let language = language.to_ascii_lowercase().replace('_', "-");
        let mut parts = language.split('-');
        if parts.next() != Some("en") {
            return None;
        }
        Some(if matches!(parts.next(), None | Some("us")) { Self::American } else { Self::British })
    }
}

/// Lexicons that are in use.
static SHARED: Mutex<[Weak<G2p>; 2]> = Mutex::new([Weak::new(), Weak::new()]);

impl English {
    /// Loads the lexicons of a dialect, about 0.3 s, or shares loaded ones.
    ///
    /// # Errors
    /// If the lexicons inside the program are damaged: a defect of the build.
    pub fn new(dialect: Dialect) -> Result<Self, String> {
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let [american, british] = &mut *shared;
        let (place, of_library) = match dialect {
            Dialect::American => (american, loqui_g2p::Dialect::American),
            Dialect::British => (british, loqui_g2p::Dialect::British),
        };
        let g2p = match place.upgrade() {
            Some(g2p) => g2p,
            None => {
                let g2p = G2p::new(of_library, OovFallback::Neural).map_err(|e| e.to_string())?;
                let g2p = Arc::new(g2p);
                *place = Arc::downgrade(&g2p);
                g2p
            }
        };
        Ok(Self { g2p, dictionary: HashMap::new(), has_misaki_symbols: false })
    }

    /// As [`new`](Self::new), ready for a voice.
    ///
    /// # Errors
    /// As for `new`.
    pub fn shared(dialect: Dialect) -> Result<Arc<Self>, String> {
        Self::new(dialect).map(Arc::new)
    }

    /// Sets the phonemes of a word, for instance of a name: `("Gandalf", "ɡˈændælf")`. The case of
    /// the word does not matter. Symbols that the voice does not have are not spoken.
    #[must_use]
    pub fn with_word(mut self, word: &str, phonemes: &str) -> Self {
        self.dictionary.insert(word.to_lowercase(), phonemes.to_owned());
        self
    }

    /// Writes the symbols of misaki, with which Kokoro voices were trained, instead of espeak's:
    /// `A` for `eɪ`, `ʤ` for `dʒ` and so on. The symbols of
    /// [`with_word`](Self::with_word) are unchanged.
    #[must_use]
    pub fn with_misaki_symbols(mut self) -> Self {
        self.has_misaki_symbols = true;
        self
    }

    /// The phonemes of the dictionary for a word, also for its genitive.
    fn of_dictionary(&self, word: &str) -> Option<String> {
        if self.dictionary.is_empty() {
            return None;
        }
        let word = word.to_lowercase();
        if let Some(phonemes) = self.dictionary.get(&word) {
            return Some(phonemes.clone());
        }
        let stem = word.strip_suffix("'s")?;
        self.dictionary.get(stem).map(|phonemes| format!("{phonemes}z"))
    }
}

impl fmt::Debug for English {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.dictionary.len();
        f.debug_struct("English").field("g2p", &self.g2p).field("words", &words).finish()
    }
}

impl Phonemizer for English {
    fn words(&self, text: &str) -> Vec<PhonemeWord> {
        let normalized = Normalized::new(text);
        let mut words = Vec::new();
        let mut at = 0;
        for token in self.g2p.tokens(&normalized.text) {
            // Tokens are parts of the text in order. A token that the library has changed has the
            // place between its neighbours.
            let rest = normalized.text.get(at..).unwrap_or_default();
            let found = rest.find(&token.text).map(|offset| at + offset);
            let range = found.map_or(at..at, |start| start..start + token.text.len());
            at = range.end;
            let range = without_quotes(&normalized.text, range);
            let phonemes = match self.of_dictionary(&token.text) {
                Some(phonemes) => phonemes,
                // The library's mark of an unknown word.
                None if self.has_misaki_symbols => token.phonemes.replace('❓', ""),
                None => espeak::of_misaki(&token.phonemes),
            };
            let has_space = token.whitespace;
            if phonemes.is_empty() {
                // The space behind a word without a sound separates its neighbours.
                if let Some(last) = words.last_mut().filter(|_| has_space) {
                    let last: &mut PhonemeWord = last;
                    last.has_space = true;
                }
                continue;
            }
            words.push(PhonemeWord { text: normalized.source(range), phonemes, has_space });
        }
        words
    }
}

/// The range of a word without marks at its ends.
fn without_quotes(text: &str, range: Range<usize>) -> Range<usize> {
    let Some(word) = text.get(range.clone()) else { return range };
    let is_mark = |c: char| !c.is_alphanumeric();
    let trimmed = word.trim_start_matches(is_mark);
    if trimmed.is_empty() {
        return range;
    }
    let start = range.end - trimmed.len();
    start..start + trimmed.trim_end_matches(is_mark).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_are_those_of_espeak() {
        let of = Dialect::of_language;
        assert_eq!(["en-us", "en", "en_US"].map(of), [Some(Dialect::American); 3]);
        assert_eq!(["en-gb", "en-gb-x-rp"].map(of), [Some(Dialect::British); 2]);
        assert_eq!(["de", "", "english"].map(of), [None; 3]);
    }

    #[test]
    fn words_have_their_places_and_phonemes() {
        let english = English::new(Dialect::American).unwrap().with_word("Gandalf", "ɡˈændælf");
        let text = "Café, 😀 Gandalf's “friend” paid $3.50 at 10:30.";
        let words = english.words(text);
        let of = |word: &PhonemeWord| (text[word.text.clone()].to_owned(), word.phonemes.clone());
        let words: Vec<_> = words.iter().map(of).collect();
        let find = |text: &str| {
            let word = words.iter().find(|(word, _)| word == text);
            word.unwrap_or_else(|| panic!("{text} is missing in {words:?}")).1.clone()
        };
        assert_eq!(find("Café"), "kæfˈeɪ");
        assert_eq!(find("Gandalf's"), "ɡˈændælfz");
        assert_eq!(find("friend"), "fɹˈɛnd");
        assert!(find("$3.50").contains("dˈɑːl"), "{words:?}");
        assert!(!words.iter().any(|(_, phonemes)| phonemes.contains('❓')), "{words:?}");
    }

    #[test]
    fn large_numbers_are_one_number() {
        let english = English::new(Dialect::American).unwrap();
        let phonemes = |text: &str| -> String {
            english.words(text).into_iter().map(|word| word.phonemes).collect()
        };
        for (number, words) in [
            ("1,000 men", "one thousand men"),
            ("1,000,000", "one million"),
            ("30,000", "thirty thousand"),
        ] {
            let without_space = |text: String| text.replace(' ', "");
            let [number, words] = [number, words].map(|text| without_space(phonemes(text)));
            assert_eq!(number, words);
        }
    }

    #[test]
    fn misaki_symbols_are_those_of_the_library() {
        let english = English::new(Dialect::American).unwrap().with_misaki_symbols();
        let words = english.with_word("Gandalf", "ɡˈændælf").words("Change the gate, Gandalf!");
        let words: Vec<&str> = words.iter().map(|word| word.phonemes.as_str()).collect();
        assert_eq!(words, ["ʧˈAnʤ", "ðə", "ɡˈAt", ",", "ɡˈændælf", "!"]);
    }

    #[test]
    fn no_text_is_an_error() {
        let english = English::new(Dialect::American).unwrap();
        for text in [
            "",
            " ",
            "...",
            "你好",
            "😀😀",
            "\0\u{7f}",
            "[a](/b/)",
            "((((",
            "1".repeat(99).as_str(),
        ] {
            for word in english.words(text) {
                assert!(text.get(word.text).is_some());
                assert!(!word.phonemes.is_empty());
            }
        }
    }
}
