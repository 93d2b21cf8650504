//! Building blocks of matchers. A matcher takes the rest of the text and returns the number of
//! bytes that it matches at the start; 0 means no match.

use crate::tokenizer::unicode::Class;

/// One expression of a pre-tokenizer.
///
/// Linear if it reads only as far as it matches, plus a bounded number of characters.
pub(super) type Matcher = fn(&str) -> usize;

pub(super) fn is_letter(c: char) -> bool {
    Class::of(c) == Class::Letter
}

pub(super) fn is_number(c: char) -> bool {
    Class::of(c) == Class::Number
}

pub(super) fn is_space(c: char) -> bool {
    Class::of(c) == Class::Space
}

pub(super) fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

/// A match, if there is one.
pub(super) fn some(matched: usize) -> Option<usize> {
    (matched > 0).then_some(matched)
}

/// Bytes of the longest prefix of `text` whose characters all satisfy `is`.
pub(super) fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is(c)).unwrap_or(text.len())
}

/// As [`run`], but at most `max_characters` characters.
pub(super) fn run_at_most(text: &str, max_characters: usize, is: impl Fn(char) -> bool) -> usize {
    text.chars().take(max_characters).take_while(|&c| is(c)).map(char::len_utf8).sum()
}

/// Bytes of the first character if it satisfies `is`.
pub(super) fn one(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.chars().next().filter(|&c| is(c)).map_or(0, char::len_utf8)
}

/// A [`run`], with at most one character before it that satisfies `is_before`.
pub(super) fn run_behind(
    text: &str,
    is_before: impl Fn(char) -> bool,
    is: impl Fn(char) -> bool,
) -> usize {
    let before = one(text, is_before);
    match run(after(text, before), is) {
        0 => 0,
        matched => before + matched,
    }
}

/// The text after the first `bytes` bytes; empty if they do not end at a character.
pub(super) fn after(text: &str, bytes: usize) -> &str {
    text.get(bytes..).unwrap_or("")
}

/// Applies expressions sequentially, each to the pieces of the previous one.
pub(super) fn isolate_all<'t>(text: &'t str, matchers: &[Matcher], piece: &mut dyn FnMut(&'t str)) {
    match matchers {
        [] => piece(text),
        [last] => isolate(text, *last, piece),
        [first, rest @ ..] => isolate(text, *first, &mut |text| isolate_all(text, rest, piece)),
    }
}

/// Each match is a piece, and so is the text between two matches.
fn isolate<'t>(text: &'t str, matcher: Matcher, piece: &mut dyn FnMut(&'t str)) {
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

/// ` ?[…]+[…]*|\s*[\r\n]+|\s+(?!\S)|\s+`, with which most expressions end: signs, with what may
/// follow them; or white space.
pub(super) fn signs_or_spaces(
    text: &str,
    is_sign: impl Fn(char) -> bool,
    is_tail: impl Fn(char) -> bool,
) -> usize {
    let signs = run_behind(text, |c| c == ' ', is_sign);
    if signs > 0 {
        return signs + run(after(text, signs), is_tail);
    }
    // White space up to its last line break.
    let spaces = text.get(..run(text, is_space)).unwrap_or("");
    spaces.rfind(is_break).map_or_else(|| spaces_but_last(text), |at| at + 1)
}

/// `\s+(?!\S)|\s+`: a run of white space except its last character, which belongs to the next word.
/// The whole run if nothing follows or if it is a single character.
pub(super) fn spaces_but_last(text: &str) -> usize {
    let spaces = run(text, is_space);
    let last = text.get(..spaces).and_then(|spaces| spaces.chars().next_back());
    match last.map_or(0, char::len_utf8) {
        last if spaces < text.len() && spaces > last => spaces - last,
        _ => spaces,
    }
}
