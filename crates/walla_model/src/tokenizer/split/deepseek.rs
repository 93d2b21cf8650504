//! DeepSeek: several expressions, each applied to the pieces of the previous one.

use super::scan::{
    after, isolate, line_breaks, one, run, run_of, spaces_but_last, spaces_to_line_break,
};
use super::{numbers, one_number, up_to_three_numbers};
use crate::tokenizer::unicode::Class;

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

fn is_within(c: char, ranges: &[(char, char)]) -> bool {
    let at = ranges.partition_point(|&(_, last)| last < c);
    ranges.get(at).is_some_and(|&(first, _)| first <= c)
}

/// Letters of scripts that have case.
fn cased_letters(text: &str) -> usize {
    spaced(text, |c| is_within(c, &CASED_LETTERS))
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

/// The letters of `deepseek-llm`'s second expression: first and last of each range, ascending.
#[rustfmt::skip]
const CASED_LETTERS: [(char, char); 87] = [
    ('\u{41}', '\u{5a}'), ('\u{61}', '\u{7a}'), ('\u{b5}', '\u{b5}'), ('\u{c0}', '\u{d6}'), ('\u{d8}', '\u{f6}'),
    ('\u{f8}', '\u{1ba}'), ('\u{1bc}', '\u{1bf}'), ('\u{1c4}', '\u{293}'), ('\u{295}', '\u{2af}'),
    ('\u{370}', '\u{373}'), ('\u{376}', '\u{376}'), ('\u{377}', '\u{377}'), ('\u{37b}', '\u{37d}'),
    ('\u{37f}', '\u{37f}'), ('\u{386}', '\u{386}'), ('\u{388}', '\u{38a}'), ('\u{38c}', '\u{38c}'),
    ('\u{38e}', '\u{3a1}'), ('\u{3a3}', '\u{3f5}'), ('\u{3f7}', '\u{481}'), ('\u{48a}', '\u{52f}'),
    ('\u{531}', '\u{556}'), ('\u{10a0}', '\u{10c5}'), ('\u{13a0}', '\u{13f5}'), ('\u{13f8}', '\u{13fd}'),
    ('\u{1c90}', '\u{1cba}'), ('\u{1cbd}', '\u{1cbf}'), ('\u{1d00}', '\u{1d2b}'), ('\u{1d6b}', '\u{1d77}'),
    ('\u{1d79}', '\u{1d9a}'), ('\u{1e00}', '\u{1f15}'), ('\u{1f18}', '\u{1f1d}'), ('\u{1f20}', '\u{1f45}'),
    ('\u{1f48}', '\u{1f4d}'), ('\u{1f50}', '\u{1f57}'), ('\u{1f59}', '\u{1f59}'), ('\u{1f5b}', '\u{1f5b}'),
    ('\u{1f5d}', '\u{1f5d}'), ('\u{1f5f}', '\u{1f7d}'), ('\u{1f80}', '\u{1fb4}'), ('\u{1fb6}', '\u{1fbc}'),
    ('\u{1fbe}', '\u{1fbe}'), ('\u{1fc2}', '\u{1fc4}'), ('\u{1fc6}', '\u{1fcc}'), ('\u{1fd0}', '\u{1fd3}'),
    ('\u{1fd6}', '\u{1fdb}'), ('\u{1fe0}', '\u{1fec}'), ('\u{1ff2}', '\u{1ff4}'), ('\u{1ff6}', '\u{1ffc}'),
    ('\u{2102}', '\u{2102}'), ('\u{2107}', '\u{2107}'), ('\u{210a}', '\u{2113}'), ('\u{2115}', '\u{2115}'),
    ('\u{2119}', '\u{211d}'), ('\u{2124}', '\u{2124}'), ('\u{2126}', '\u{2126}'), ('\u{2128}', '\u{2128}'),
    ('\u{212a}', '\u{212d}'), ('\u{212f}', '\u{2134}'), ('\u{2139}', '\u{2139}'), ('\u{213c}', '\u{213f}'),
    ('\u{2145}', '\u{2149}'), ('\u{214e}', '\u{214e}'), ('\u{2183}', '\u{2183}'), ('\u{2184}', '\u{2184}'),
    ('\u{2c00}', '\u{2c7b}'), ('\u{2c7e}', '\u{2ce4}'), ('\u{2ceb}', '\u{2cee}'), ('\u{2cf2}', '\u{2cf2}'),
    ('\u{2cf3}', '\u{2cf3}'), ('\u{a640}', '\u{a66d}'), ('\u{a680}', '\u{a69b}'), ('\u{a722}', '\u{a76f}'),
    ('\u{a771}', '\u{a787}'), ('\u{a78b}', '\u{a78e}'), ('\u{ab70}', '\u{abbf}'), ('\u{fb00}', '\u{fb06}'),
    ('\u{fb13}', '\u{fb17}'), ('\u{ff21}', '\u{ff3a}'), ('\u{ff41}', '\u{ff5a}'), ('\u{10400}', '\u{1044f}'),
    ('\u{104b0}', '\u{104d3}'), ('\u{104d8}', '\u{104fb}'), ('\u{10c80}', '\u{10cb2}'), ('\u{10cc0}', '\u{10cf2}'),
    ('\u{118a0}', '\u{118df}'), ('\u{1e900}', '\u{1e943}'),
];
