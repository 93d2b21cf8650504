//! Building blocks of scanners. A matcher takes the rest of the text and returns the number of
//! bytes that it matches at the start; 0 means no match.

use crate::tokenizer::unicode::Class;

/// Bytes of the longest prefix of `text` whose characters all satisfy `is`.
pub(super) fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is(c)).unwrap_or(text.len())
}

/// As [`run`], for one class.
pub(super) fn run_of(text: &str, class: Class) -> usize {
    run(text, |c| Class::of(c) == class)
}

/// As [`run`], but at most `max_characters` characters.
pub(super) fn run_at_most(text: &str, max_characters: usize, is: impl Fn(char) -> bool) -> usize {
    text.chars().take(max_characters).take_while(|&c| is(c)).map(char::len_utf8).sum()
}

/// Bytes of the first character if it satisfies `is`.
pub(super) fn one(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.chars().next().filter(|&c| is(c)).map_or(0, char::len_utf8)
}

/// The text after the first `bytes` bytes; empty if they do not end at a character.
pub(super) fn after(text: &str, bytes: usize) -> &str {
    text.get(bytes..).unwrap_or("")
}

/// One expression of a pre-tokenizer: each match is a piece, and so is the text between two
/// matches.
///
/// Linear if `matcher` reads only as far as it matches, plus a bounded number of characters.
pub(super) fn isolate<'t>(
    text: &'t str,
    matcher: impl Fn(&str) -> usize,
    piece: &mut impl FnMut(&'t str),
) {
    let mut rest = text; // from the end of the last match
    let mut gap = 0; // bytes of `rest` known to match nothing
    while let Some(c) = after(rest, gap).chars().next() {
        let matched = matcher(after(rest, gap));
        if matched == 0 {
            gap += c.len_utf8();
            continue;
        }
        let (unmatched, from_match) = rest.split_at(gap);
        let (word, behind) = from_match.split_at(matched);
        if !unmatched.is_empty() {
            piece(unmatched);
        }
        piece(word);
        rest = behind;
        gap = 0;
    }
    if !rest.is_empty() {
        piece(rest);
    }
}

/// A whole pre-tokenizer: `first_word` returns the length in bytes of the first word of a non-empty
/// text. If it matches nothing, the word is one character, so that splitting always terminates.
pub(super) fn words<'t>(
    text: &'t str,
    first_word: impl Fn(&str) -> usize,
    word: &mut impl FnMut(&'t str),
) {
    let mut rest = text;
    while !rest.is_empty() {
        let (first, behind) = rest.split_at(first_word(rest).max(one(rest, |_| true)));
        word(first);
        rest = behind;
    }
}

/// The white-space patterns at the end of most expressions, for a text that starts with white
/// space: `\s+(?!\S)|\s+`. It matches a run of white space except its last character, which belongs
/// to the next word. It matches the whole run if nothing follows or if the run is a single
/// character.
pub(super) fn spaces_but_last(text: &str) -> usize {
    let spaces = run_of(text, Class::Space);
    let last = text.get(..spaces).and_then(|spaces| spaces.chars().next_back());
    match last.map_or(0, char::len_utf8) {
        last if spaces < text.len() && spaces > last => spaces - last,
        _ => spaces,
    }
}

/// `\s*[\r\n]+`: a run of white space up to its last line break; 0 without a line break.
pub(super) fn spaces_to_line_break(text: &str) -> usize {
    let spaces = text.get(..run_of(text, Class::Space)).unwrap_or("");
    spaces.rfind(['\r', '\n']).map_or(0, |at| at + 1)
}

/// `[\r\n]*`.
pub(super) fn line_breaks(text: &str) -> usize {
    text.bytes().take_while(|b| matches!(b, b'\r' | b'\n')).count()
}
