//! The tables of characters, as text in `tables/`: hexadecimal numbers, ascending.
//!
//! `classes`: positions where the [class](super::Class) of characters changes, Unicode 15.1, each
//! as `first_character << 3 | class`. Generated with CPython 3.13 (whose
//! `unicodedata.unidata_version` is 15.1.0):
//!
//! ```text
//! kinds = {'L': 1, 'N': 2, 'M': 3, 'P': 4, 'S': 5}
//! for c in range(0x110000):
//!     kind = 6 if c is White_Space else kinds.get(unicodedata.category(chr(c))[0], 0)
//!     if kind != the one before: emit(c << 3 | kind)
//! ```
//!
//! The others are of [`bert`](super::bert). The categories are from Unicode 8.0, as in the
//! reference implementation (the `tokenizers` library); the canonical decompositions are from
//! Unicode 12.1. Generated with CPython 3.6 (`unicodedata` 9.0) and 3.13 (15.1), without the
//! characters that later versions added, and compared with the reference for every character:
//!
//! ```text
//! other: category Cc, Cf or Co, and U+FFFD; not tab, line feed and carriage return
//! marks: category Mn
//! punctuation: category P*, and the signs of ASCII
//! decomposed: normalize('NFD', c) without marks, if it differs from c; not the syllables of Hangul
//! ```
//!
//! `cased`: the letters of `deepseek-llm`'s second expression.

/// `first_character << 3 | class`; a class applies until the next entry.
pub(super) static CLASSES: [[u32; 1]; 2255] = rows(include_str!("tables/classes.txt"));

/// Characters that are removed: the first and last of each range.
pub(super) static OTHER: [[u32; 2]; 25] = rows(include_str!("tables/other.txt"));

/// Accents and other marks that take no space.
pub(super) static MARKS: [[u32; 2]; 266] = rows(include_str!("tables/marks.txt"));

/// Characters that are separate words.
pub(super) static PUNCTUATION: [[u32; 2]; 156] = rows(include_str!("tables/punctuation.txt"));

/// Characters and the one to three that they become without their accents; 0 is none.
pub(super) static DECOMPOSED: [[u32; 4]; 2042] = rows(include_str!("tables/decomposed.txt"));

/// Letters of scripts that have case: the first and last of each range.
pub(crate) static CASED: [[u32; 2]; 87] = rows(include_str!("tables/cased.txt"));

/// Reads a table while the program is compiled. A table of another length is a compile error.
#[expect(clippy::indexing_slicing, reason = "the compiler evaluates every index")]
const fn rows<const WIDTH: usize, const COUNT: usize>(text: &str) -> [[u32; WIDTH]; COUNT] {
    let (text, mut table) = (text.as_bytes(), [[0; WIDTH]; COUNT]);
    let (mut at, mut numbers) = (0, 0);
    while at < text.len() {
        match (text[at] as char).to_digit(16) {
            Some(digit) => {
                let number = &mut table[numbers / WIDTH][numbers % WIDTH];
                *number = *number << 4 | digit;
            }
            None => numbers += (text[at] != b'\r') as usize,
        }
        at += 1;
    }
    assert!(numbers == WIDTH * COUNT, "a table of another length");
    table
}

/// Whether `c` is in one of the ranges.
pub(crate) fn is_in(ranges: &[[u32; 2]], c: char) -> bool {
    let c = u32::from(c);
    let at = ranges.partition_point(|&[_, last]| last < c);
    ranges.get(at).is_some_and(|&[first, _]| first <= c)
}
