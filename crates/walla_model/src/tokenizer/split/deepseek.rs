//! DeepSeek: several expressions, each applied to the pieces of the previous one.

use super::scan::{
    after, isolate, line_breaks, one, run, run_of, spaces_but_last, spaces_to_line_break,
};
use super::{numbers, one_number, up_to_three_numbers};
use crate::tokenizer::unicode::{
    Class,
    tables::{CASED, is_in},
};

/// `deepseek-llm`.
pub(super) fn split_llm<'t>(text: &'t str, word: &mut impl FnMut(&'t str)) {
    isolate(text, line_break, &mut |piece| {
        isolate(piece, cased_letters, &mut |piece| {
            isolate(piece, signs, &mut |piece| {
                end_spaces(piece, &mut |piece| {
                    isolate(piece, east_asian, &mut |piece| isolate(piece, numbers, word));
                });
            });
        });
    });
}

/// `deepseek-coder`.
pub(super) fn split_coder<'t>(text: &'t str, word: &mut impl FnMut(&'t str)) {
    isolate(text, line_break, &mut |piece| {
        isolate(piece, |text| spaced(text, |c| Class::of(c) == Class::Letter), &mut |piece| {
            isolate(
                piece,
                |text| spaced(text, |c| Class::of(c) == Class::Punctuation),
                &mut |piece| {
                    isolate(piece, east_asian, &mut |piece| isolate(piece, one_number, word));
                },
            );
        });
    });
}

/// `deepseek-v3`.
pub(super) fn split_v3<'t>(text: &'t str, word: &mut impl FnMut(&'t str)) {
    isolate(text, up_to_three_numbers, &mut |piece| {
        isolate(piece, chinese_or_kana, &mut |piece| isolate(piece, v3_word, word));
    });
}

/// `[\r\n]`.
fn line_break(text: &str) -> usize {
    one(text, |c| matches!(c, '\r' | '\n'))
}

/// `\s?[…]+`: characters of one kind (never white space) with at most one white-space character
/// before them.
fn spaced(text: &str, is: impl Fn(char) -> bool) -> usize {
    let space = one(text, |c| Class::of(c) == Class::Space);
    match run(after(text, space), is) {
        0 => 0,
        matched => space + matched,
    }
}

/// Letters of scripts that have case.
fn cased_letters(text: &str) -> usize {
    spaced(text, |c| is_in(&CASED, c))
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`, without the ideographic space, which counts only as white space.
fn signs(text: &str) -> usize {
    spaced(
        text,
        |c| matches!(c, '!'..='/' | ':'..='~' | '！'..='／' | '：'..='～' | '‘'..='‟' | '、' | '。'),
    )
}

/// `\s+$`: white space at the end of the piece.
fn end_spaces<'t>(text: &'t str, piece: &mut impl FnMut(&'t str)) {
    let kept = text.trim_end_matches(|c| Class::of(c) == Class::Space);
    let (kept, spaces) = text.split_at(kept.len());
    for part in [kept, spaces] {
        if !part.is_empty() {
            piece(part);
        }
    }
}

/// `[一-龥ࠀ-一가-퟿]+`, without white space.
fn east_asian(text: &str) -> usize {
    run(text, |c| {
        matches!(c, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}')
            && Class::of(c) != Class::Space
    })
}

/// `[一-龥぀-ゟ゠-ヿ]+`.
fn chinese_or_kana(text: &str) -> usize {
    run(text, |c| matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}'))
}

/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*`` `|\s*[\r\n]+|\s+(?!\S)|\s+`. Numbers and other characters match nothing
/// here.
fn v3_word(text: &str) -> usize {
    let sign = one(text, |c| c.is_ascii_punctuation());
    let latin = run(after(text, sign), |c| c.is_ascii_alphabetic());
    if sign > 0 && latin > 0 {
        return sign + latin;
    }
    let letters = v3_letters(text);
    if letters > 0 {
        return letters;
    }
    let space = usize::from(text.starts_with(' '));
    let signs =
        run(after(text, space), |c| matches!(Class::of(c), Class::Punctuation | Class::Symbol));
    if signs > 0 {
        return space + signs + line_breaks(after(text, space + signs));
    }
    match spaces_to_line_break(text) {
        0 if run_of(text, Class::Space) > 0 => spaces_but_last(text),
        to_line_break => to_line_break,
    }
}

/// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`.
fn v3_letters(text: &str) -> usize {
    let is_letter = |c| matches!(Class::of(c), Class::Letter | Class::Mark);
    let before = one(text, |c| {
        !matches!(c, '\r' | '\n')
            && matches!(Class::of(c), Class::Number | Class::Space | Class::Other)
    });
    match run(after(text, before), is_letter) {
        0 => 0,
        letters => before + letters,
    }
}
