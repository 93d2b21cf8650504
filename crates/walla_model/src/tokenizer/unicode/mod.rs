//! The character classes that pre-tokenizers use.
//!
//! Splitting must match the training of the vocabulary and llama.cpp. So this crate contains the
//! tables, pinned to Unicode 15.1, instead of using the version of the standard library.

pub(crate) mod bert;
pub(crate) mod tables;

use std::sync::LazyLock;

use tables::CLASSES;

/// Class of a character for a pre-tokenizer: its general category, except that white space is a
/// separate class.
///
/// White space is Unicode's `White_Space`; no letter, number, mark or sign has this property, so
/// one class is sufficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// Control, format, private-use and unassigned characters.
    Other = 0,
    /// `\p{L}`.
    Letter = 1,
    /// `\p{N}`.
    Number = 2,
    /// `\p{M}`.
    Mark = 3,
    /// `\p{P}`.
    Punctuation = 4,
    /// `\p{S}`.
    Symbol = 5,
    /// `\s`.
    Space = 6,
}

impl Class {
    const fn from_bits(bits: u32) -> Self {
        match bits & 7 {
            1 => Self::Letter,
            2 => Self::Number,
            3 => Self::Mark,
            4 => Self::Punctuation,
            5 => Self::Symbol,
            6 => Self::Space,
            _ => Self::Other,
        }
    }

    /// The class of `c`: one table access for ASCII, two for other characters.
    pub(crate) fn of(c: char) -> Self {
        let c = c as usize;
        if let Some(class) = ASCII.get(c) { *class } else { TABLE.get(c) }
    }

    /// Whether the class is split as "signs": all classes without a separate pattern (letters,
    /// numbers and white space have one).
    pub(crate) fn is_sign(self) -> bool {
        !matches!(self, Self::Letter | Self::Number | Self::Space)
    }
}

/// Classes of the first 128 characters, evaluated at compile time.
#[expect(clippy::indexing_slicing, reason = "the compiler evaluates every index")]
static ASCII: [Class; 128] = {
    let mut classes = [Class::Other; 128];
    let mut change = 0;
    let mut c = 0;
    while c < 128 {
        if CLASSES[change + 1][0] >> 3 == c as u32 {
            change += 1;
        }
        classes[c] = Class::from_bits(CLASSES[change][0]);
        c += 1;
    }
    classes
};

/// Characters in a block of the two-stage table.
const BLOCK: usize = 256;

/// Two-stage table: equal blocks of 256 characters are stored once (about 45 KiB instead of 1.1
/// MiB).
struct Table {
    /// Block number → index of the stored block.
    stored: Vec<u16>,
    /// The stored blocks, without gaps.
    classes: Vec<Class>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::expand);

impl Table {
    fn expand() -> Self {
        let mut table = Self { stored: Vec::with_capacity(0x11_0000 / BLOCK), classes: Vec::new() };
        let mut changes = CLASSES.as_flattened().iter().copied().peekable();
        let mut class = Class::Other;
        let mut block = [Class::Other; BLOCK];
        for first in (0..0x11_0000_u32).step_by(BLOCK) {
            for (c, slot) in (first..).zip(&mut block) {
                if let Some(change) = changes.next_if(|change| change >> 3 == c) {
                    class = Class::from_bits(change);
                }
                *slot = class;
            }
            let known = table.classes.chunks(BLOCK).position(|stored| stored == block);
            let number = known.unwrap_or_else(|| {
                table.classes.extend_from_slice(&block);
                table.classes.len() / BLOCK - 1
            });
            table.stored.push(number as u16);
        }
        table
    }

    fn get(&self, c: usize) -> Class {
        let block = self.stored.get(c / BLOCK).copied().unwrap_or(0) as usize;
        self.classes.get(block * BLOCK + c % BLOCK).copied().unwrap_or(Class::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_known_characters() {
        let expected = [
            ('a', Class::Letter),
            ('9', Class::Number),
            ('²', Class::Number),
            ('Ⅷ', Class::Number),
            ('語', Class::Letter),
            ('\u{301}', Class::Mark),
            ('!', Class::Punctuation),
            ('、', Class::Punctuation),
            ('+', Class::Symbol),
            ('😀', Class::Symbol),
            (' ', Class::Space),
            ('\u{a0}', Class::Space),
            ('\u{3000}', Class::Space),
            ('\u{1c}', Class::Other),
            ('\u{200b}', Class::Other),
            ('\u{e000}', Class::Other),
            ('\u{10ffff}', Class::Other),
            // Assigned in 15.0 (letter) and in 15.1 (symbol): the table is not older …
            ('\u{31350}', Class::Letter),
            ('\u{2ffc}', Class::Symbol),
            // … and assigned in 16.0: it is not newer.
            ('\u{1c89}', Class::Other),
        ];
        for (c, class) in expected {
            assert_eq!(Class::of(c), class, "U+{:04X}", c as u32);
        }
    }

    #[test]
    fn the_table_agrees_with_the_standard_library_where_unicode_promises_stability() {
        for c in '\0'..=char::MAX {
            assert_eq!(Class::of(c) == Class::Space, c.is_whitespace(), "U+{:04X}", c as u32);
            if Class::of(c) == Class::Number {
                assert!(c.is_numeric(), "U+{:04X}", c as u32);
            }
        }
    }

    #[test]
    fn ascii_and_the_large_table_agree() {
        for c in 0..128_u8 {
            assert_eq!(Class::of(c as char), TABLE.get(c as usize));
        }
    }
}
