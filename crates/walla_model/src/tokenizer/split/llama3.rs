//! Llama 3, Qwen 2 and derivatives:
//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//! ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.

use super::scan::{
    after, line_breaks, one, run, run_at_most, spaces_but_last, spaces_to_line_break, words,
};
use crate::tokenizer::unicode::Class;

/// Differences within the family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Llama3 {
    /// Maximum number of digits in a word.
    pub digits: usize,
    /// Whether combining marks count as letters.
    pub marks: bool,
}

impl Llama3 {
    pub(super) fn split<'t>(self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        words(text, |rest| self.first_word(rest), word);
    }

    fn is_letter(self, c: char) -> bool {
        match Class::of(c) {
            Class::Letter => true,
            Class::Mark => self.marks,
            _ => false,
        }
    }

    fn first_word(self, text: &str) -> usize {
        let ending = ending(text);
        if ending > 0 {
            return ending;
        }
        let letters = self.letters(text);
        if letters > 0 {
            return letters;
        }
        let numbers = run_at_most(text, self.digits, |c| Class::of(c) == Class::Number);
        if numbers > 0 {
            return numbers;
        }
        let signs = self.signs(text);
        if signs > 0 {
            return signs + line_breaks(after(text, signs));
        }
        match spaces_to_line_break(text) {
            0 => spaces_but_last(text),
            to_line_break => to_line_break,
        }
    }

    /// `[^\r\n\p{L}\p{N}]?\p{L}+`: letters, with at most one other character before them.
    fn letters(self, text: &str) -> usize {
        let before = one(text, |c| {
            !matches!(c, '\r' | '\n') && !self.is_letter(c) && Class::of(c) != Class::Number
        });
        match run(after(text, before), |c| self.is_letter(c)) {
            0 => 0,
            letters => before + letters,
        }
    }

    /// ` ?[^\s\p{L}\p{N}]+`.
    fn signs(self, text: &str) -> usize {
        let space = usize::from(text.starts_with(' '));
        match run(after(text, space), |c| Class::of(c).is_sign() && !self.is_letter(c)) {
            0 => 0,
            signs => space + signs,
        }
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`. (Only ASCII letters have these as their lower case.)
pub(super) fn ending(text: &str) -> usize {
    let bytes = text.as_bytes();
    let lower = |at: usize| bytes.get(at).map(u8::to_ascii_lowercase);
    match (lower(0), lower(1), lower(2)) {
        (Some(b'\''), Some(b's' | b't' | b'm' | b'd'), _) => 2,
        (Some(b'\''), Some(b'r' | b'v'), Some(b'e')) | (Some(b'\''), Some(b'l'), Some(b'l')) => 3,
        _ => 0,
    }
}
