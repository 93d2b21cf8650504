//! The expressions of pre-tokenizers as matchers.

use super::scan::{
    after, is_break, is_letter, is_number, is_space, one, run, run_at_most, run_behind,
    signs_or_spaces, some, spaces_but_last,
};
use crate::tokenizer::unicode::{
    Class,
    tables::{CASED, is_in},
};

/// GPT-2: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
pub(super) fn gpt2(text: &str) -> usize {
    let ending = ending(text, u8::clone);
    if ending > 0 {
        return ending;
    }
    let space = usize::from(text.starts_with(' '));
    let behind = after(text, space);
    let Some(class) = behind.chars().next().map(Class::of) else {
        return space;
    };
    match class {
        Class::Letter | Class::Number => space + run(behind, |c| Class::of(c) == class),
        Class::Space => spaces_but_last(text),
        _ => space + run(behind, |c| Class::of(c).is_sign()),
    }
}

/// Llama 3, Qwen 2 and derivatives:
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, with at most `DIGITS` digits in a word. With
/// `MARKS`, combining marks count as letters.
pub(super) fn llama3<const DIGITS: usize, const MARKS: bool>(text: &str) -> usize {
    let is_letter = |c| is_letter(c) || MARKS && Class::of(c) == Class::Mark;
    let is_other = |c| !is_break(c) && !is_letter(c) && !is_number(c);
    some(ending(text, u8::to_ascii_lowercase))
        .or_else(|| some(run_behind(text, is_other, is_letter)))
        .or_else(|| some(run_at_most(text, DIGITS, is_number)))
        .unwrap_or_else(|| {
            signs_or_spaces(text, |c| Class::of(c).is_sign() && !is_letter(c), is_break)
        })
}

/// Words that change at a capital letter (`GPT-4o`, `Tekken`):
/// `[^\r\n\p{L}\p{N}]?U*L+E?|[^\r\n\p{L}\p{N}]?U+L*E?|\p{N}{1,d}|
/// ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+` where U is any letter but `a-z`, L any
/// letter but `A-Z` (so a letter beyond ASCII is both), and E an English ending such as `'ll`,
/// which `Tekken` lacks.
pub(super) fn mixed_case<const DIGITS: usize, const ENDINGS: bool>(text: &str) -> usize {
    let before = one(text, |c| !is_break(c) && !is_letter(c) && !is_number(c));
    let letters = cased_word(after(text, before));
    if letters > 0 {
        let word = before + letters;
        let behind = if ENDINGS { after(text, word) } else { "" };
        return word + ending(behind, u8::to_ascii_lowercase);
    }
    some(run_at_most(text, DIGITS, is_number)).unwrap_or_else(|| {
        signs_or_spaces(text, |c| Class::of(c).is_sign(), |c| is_break(c) || c == '/')
    })
}

/// `U*L+|U+L*` at the start of `text`.
///
/// `U*` is greedy. If no `L` follows, it backtracks until the character given back is an `L` (a
/// letter beyond ASCII). The match ends after that character, because the characters given back
/// before are not `L`. If no such character exists, `U+` matches them all at once, so the cost
/// stays linear.
fn cased_word(text: &str) -> usize {
    let uppers = run(text, |c| is_letter(c) && !c.is_ascii_lowercase());
    let lowers = run(after(text, uppers), |c| is_letter(c) && !c.is_ascii_uppercase());
    if lowers > 0 {
        return uppers + lowers;
    }
    let upper = text.get(..uppers).unwrap_or("");
    match upper.rfind(|c: char| !c.is_ascii()) {
        Some(at) => at + one(after(text, at), |_| true),
        None => uppers,
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`. (Only ASCII letters have these as their lower case.)
fn ending(text: &str, fold: fn(&u8) -> u8) -> usize {
    let Some(letters) = text.strip_prefix('\'') else { return 0 };
    let mut letters = letters.bytes().map(|byte| fold(&byte));
    match (letters.next(), letters.next()) {
        (Some(b's' | b't' | b'm' | b'd'), _) => 2,
        (Some(b'r' | b'v'), Some(b'e')) | (Some(b'l'), Some(b'l')) => 3,
        _ => 0,
    }
}

/// `deepseek-v3`, behind numbers and Chinese or kana:
/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*`` `|\s*[\r\n]+|\s+(?!\S)|\s+`. Numbers and other characters match nothing
/// here.
pub(super) fn deepseek_v3(text: &str) -> usize {
    let sign = one(text, |c| c.is_ascii_punctuation());
    let latin = run(after(text, sign), |c| c.is_ascii_alphabetic());
    if sign > 0 && latin > 0 {
        return sign + latin;
    }
    let is_other =
        |c| !is_break(c) && matches!(Class::of(c), Class::Number | Class::Space | Class::Other);
    let is_letter = |c| matches!(Class::of(c), Class::Letter | Class::Mark);
    let is_sign = |c| matches!(Class::of(c), Class::Punctuation | Class::Symbol);
    some(run_behind(text, is_other, is_letter))
        .unwrap_or_else(|| signs_or_spaces(text, is_sign, is_break))
}

/// `[\p{P}\$\+<=>\^~\|]+`: punctuation of any script, symbols of ASCII except the backtick.
pub(super) fn default_signs(text: &str) -> usize {
    run(text, |c| Class::of(c) == Class::Punctuation || "$+<=>^~|".contains(c))
}

/// As [`default_signs`], with the backtick.
pub(super) fn falcon_signs(text: &str) -> usize {
    run(text, |c| Class::of(c) == Class::Punctuation || "$+<=>^~|`".contains(c))
}

/// `\p{N}{1,n}`.
pub(super) fn numbers<const MAX: usize>(text: &str) -> usize {
    run_at_most(text, MAX, is_number)
}

/// `[0-9][0-9][0-9]`.
pub(super) fn three_digits(text: &str) -> usize {
    let digits = text.bytes().take(3).take_while(u8::is_ascii_digit).count();
    if digits == 3 { 3 } else { 0 }
}

/// `[\r\n]`.
pub(super) fn line_break(text: &str) -> usize {
    one(text, is_break)
}

/// `\s?\p{L}+`.
pub(super) fn letters(text: &str) -> usize {
    run_behind(text, is_space, is_letter)
}

/// `\s?\p{P}+`.
pub(super) fn punctuation(text: &str) -> usize {
    run_behind(text, is_space, |c| Class::of(c) == Class::Punctuation)
}

/// `\s?[…]+`: letters of scripts that have case.
pub(super) fn cased_letters(text: &str) -> usize {
    run_behind(text, is_space, |c| is_in(&CASED, c))
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`, without the ideographic space, which counts only as white space.
pub(super) fn signs(text: &str) -> usize {
    run_behind(
        text,
        is_space,
        |c| matches!(c, '!'..='/' | ':'..='~' | '！'..='／' | '：'..='～' | '‘'..='‟' | '、' | '。'),
    )
}

/// `[一-龥ࠀ-一가-퟿]+`, without white space.
pub(super) fn east_asian(text: &str) -> usize {
    run(text, |c| matches!(c, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}') && !is_space(c))
}

/// `[一-龥぀-ゟ゠-ヿ]+`.
pub(super) fn chinese_or_kana(text: &str) -> usize {
    run(text, |c| matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}'))
}
