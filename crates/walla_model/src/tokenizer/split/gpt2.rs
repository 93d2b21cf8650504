//! GPT-2: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.

use super::scan::{after, run, run_of, spaces_but_last, words};
use crate::tokenizer::unicode::Class;

pub(super) fn split<'t>(text: &'t str, word: &mut impl FnMut(&'t str)) {
    words(text, first_word, word);
}

fn first_word(text: &str) -> usize {
    let ending = ending(text);
    if ending > 0 {
        return ending;
    }
    let space = usize::from(text.starts_with(' '));
    let behind = after(text, space);
    let Some(class) = behind.chars().next().map(Class::of) else {
        return space;
    };
    match class {
        Class::Letter | Class::Number => space + run_of(behind, class),
        Class::Space => spaces_but_last(text),
        _ => space + run(behind, |c| Class::of(c).is_sign()),
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`.
fn ending(text: &str) -> usize {
    match text.as_bytes() {
        [b'\'', b's' | b't' | b'm' | b'd', ..] => 2,
        [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => 3,
        _ => 0,
    }
}
