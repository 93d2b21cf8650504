//! Bytes as a source of choices: every byte string is valid input.

/// The unread bytes. At the end every choice is zero or empty, so every sequence of choices
/// terminates.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Reads all of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all bytes are used.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        byte
    }

    /// One bit; consumes a byte.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A number below `end`, or 0 if `end` is 0; `end` is at most 2^16.
    pub fn below(&mut self, end: usize) -> usize {
        let number = if end > 256 {
            usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
        } else {
            usize::from(self.byte())
        };
        number.checked_rem(end).unwrap_or(0)
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len())]
    }

    /// Text up to the next byte 0xFF (never part of UTF-8) or the end. The terminator keeps
    /// mutations of the text within it.
    pub fn text(&mut self) -> String {
        let end = self.rest.iter().position(|&byte| byte == 0xff);
        let (text, rest) = match end {
            Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
            None => (self.rest, &[][..]),
        };
        self.rest = rest;
        String::from_utf8_lossy(text).into_owned()
    }
}
