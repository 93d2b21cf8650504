//! Words that change at a capital letter (`GPT-4o`, `Tekken`):
//! `[^\r\n\p{L}\p{N}]?U*L+E?|[^\r\n\p{L}\p{N}]?U+L*E?|\p{N}{1,d}|
//! ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+` where U is any letter but `a-z`, L any
//! letter but `A-Z` (so a letter beyond ASCII is both), and E an English ending such as `'ll`,
//! which `Tekken` lacks.

use super::llama3::ending;
use super::scan::{after, one, run, run_at_most, spaces_but_last, spaces_to_line_break, words};
use crate::tokenizer::unicode::Class;

/// Differences within the family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Maximum number of digits in a word.
    pub digits: usize,
    /// Whether an English ending stays with its word.
    pub endings: bool,
}

impl Rules {
    pub(super) fn split<'t>(self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        words(text, |rest| self.first_word(rest), word);
    }

    fn first_word(self, text: &str) -> usize {
        let before = one(text, |c| {
            !matches!(c, '\r' | '\n') && !matches!(Class::of(c), Class::Letter | Class::Number)
        });
        let letters = cased_word(after(text, before));
        if letters > 0 {
            let word = before + letters;
            return word + if self.endings { ending(after(text, word)) } else { 0 };
        }
        let numbers = run_at_most(text, self.digits, |c| Class::of(c) == Class::Number);
        if numbers > 0 {
            return numbers;
        }
        let space = usize::from(text.starts_with(' '));
        let signs = run(after(text, space), |c| Class::of(c).is_sign());
        if signs > 0 {
            let tail = after(text, space + signs);
            return space + signs + run(tail, |c| matches!(c, '\r' | '\n' | '/'));
        }
        match spaces_to_line_break(text) {
            0 => spaces_but_last(text),
            to_line_break => to_line_break,
        }
    }
}

fn is_letter(c: char) -> bool {
    Class::of(c) == Class::Letter
}

fn is_upper(c: char) -> bool {
    is_letter(c) && !c.is_ascii_lowercase()
}

fn is_lower(c: char) -> bool {
    is_letter(c) && !c.is_ascii_uppercase()
}

/// `U*L+|U+L*` at the start of `text`.
///
/// `U*` is greedy. If no `L` follows, it backtracks until the character given back is an `L` (a
/// letter beyond ASCII). The match ends after that character, because the characters given back
/// before are not `L`. If no such character exists, `U+` matches them all at once, so the cost
/// stays linear.
fn cased_word(text: &str) -> usize {
    let uppers = run(text, is_upper);
    let lowers = run(after(text, uppers), is_lower);
    if lowers > 0 {
        return uppers + lowers;
    }
    let upper = text.get(..uppers).unwrap_or("");
    match upper.rfind(|c: char| !c.is_ascii()) {
        Some(at) => at + one(after(text, at), |_| true),
        None => uppers,
    }
}
