//! Characters as BERT's normaliser and pre-tokenizer see them. Their tables are older than those of
//! the [other pre-tokenizers](super::Class), because the reference implementation's are.

use super::tables::{DECOMPOSED, MARKS, OTHER, PUNCTUATION, is_in};

/// Whether the character is removed: control, format and private-use characters, U+FFFD.
pub(crate) fn is_other(c: char) -> bool {
    is_in(&OTHER, c)
}

/// Whether the character is a mark that takes no space, such as an accent.
pub(crate) fn is_mark(c: char) -> bool {
    !c.is_ascii() && is_in(&MARKS, c)
}

/// Whether the character is a separate word.
pub(crate) fn is_punctuation(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_punctuation() } else { is_in(&PUNCTUATION, c) }
}

/// Whether the character is separated as a word before normalisation: most Chinese characters. The
/// reference implementation omits U+2B820 to U+2B91F.
pub(crate) fn is_ideograph(c: char) -> bool {
    matches!(
        c,
        '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{2a6df}'
            | '\u{2a700}'..='\u{2b81f}'
            | '\u{2b920}'..='\u{2ceaf}'
            | '\u{2f800}'..='\u{2fa1f}'
    )
}

/// The canonical decomposition of a character that is no mark, without marks.
pub(crate) fn decompose(c: char) -> impl Iterator<Item = char> {
    let mut parts = ['\0'; 3];
    let code = u32::from(c);
    let codes = if c.is_ascii() {
        [code, 0, 0]
    } else if let Some(parts) = syllable(code) {
        parts
    } else {
        let at = DECOMPOSED.binary_search_by_key(&code, |[from, ..]| *from);
        let found = at.ok().and_then(|at| DECOMPOSED.get(at));
        found.map_or([code, 0, 0], |&[_, parts @ ..]| parts)
    };
    for (part, code) in parts.iter_mut().zip(codes) {
        *part = char::from_u32(code).unwrap_or_default();
    }
    // The first part is there even if it is U+0000.
    parts.into_iter().enumerate().filter(|&(nth, part)| nth == 0 || part != '\0').map(|(_, c)| c)
}

/// The letters of a syllable of Hangul: section 3.12 of the Unicode standard.
fn syllable(code: u32) -> Option<[u32; 3]> {
    const FIRST: u32 = 0xac00;
    const VOWELS: u32 = 21;
    const FINALS: u32 = 28;
    let index = code.checked_sub(FIRST).filter(|index| *index < 19 * VOWELS * FINALS)?;
    let (initial, vowel, last) =
        (index / (VOWELS * FINALS), index % (VOWELS * FINALS) / FINALS, index % FINALS);
    let last = if last > 0 { 0x11a7 + last } else { 0 };
    Some([0x1100 + initial, 0x1161 + vowel, last])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.chars().filter(|c| !is_mark(*c)).flat_map(decompose).collect()
    }

    #[test]
    fn accents_are_removed_and_other_characters_kept() {
        assert_eq!(plain("Crème brûlée Ångström ở ñ Ÿ"), "Creme brulee Angstrom o n Y");
        assert_eq!(plain("e\u{301}x \u{fb01} ß ø \u{212b} \u{37e}"), "ex \u{fb01} ß ø A ;");
        assert_eq!(plain("\u{9cb} \u{1d160}"), "\u{9c7}\u{9be} \u{1d158}\u{1d165}\u{1d16e}");
        assert_eq!(
            plain("한글 가"),
            "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af} \u{1100}\u{1161}"
        );
    }

    #[test]
    fn tables_are_sorted() {
        for ranges in [&OTHER[..], &MARKS, &PUNCTUATION] {
            assert!(ranges.iter().all(|[first, last]| first <= last));
            assert!(ranges.is_sorted_by(|a, b| a[1] < b[0]));
        }
        assert!(DECOMPOSED.is_sorted_by(|a, b| a[0] < b[0]));
    }

    #[test]
    fn classes_of_known_characters() {
        for c in "!$+<=>^`|~¿–—“”、。「」…".chars() {
            assert!(is_punctuation(c), "{c}");
        }
        for c in "aä1€£😀©°\u{2e43}".chars() {
            assert!(!is_punctuation(c), "{c}");
        }
        assert!("\0\u{7f}\u{ad}\u{200b}\u{feff}\u{fffd}\u{e000}".chars().all(is_other));
        // Unassigned characters are kept, as those assigned later are.
        assert!(!"\t\n\r a\u{378}\u{110cd}".chars().any(is_other));
        assert!("中語豈".chars().all(is_ideograph) && !"あア한".chars().any(is_ideograph));
    }
}
