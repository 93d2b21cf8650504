//! Bounds-checked reading of a header.

use super::error::GgufError;

/// Maximum size of the header, which is held in memory. A vocabulary of 260,000 tokens takes some
/// 20 MiB. Offsets into the header are stored as `u32`.
pub(super) const MAX_HEADER_BYTES: u64 = 256 << 20;

/// A text in the header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub start: u32,
    pub len: u32,
}

impl Span {
    /// The bytes.
    pub fn raw(self, bytes: &[u8]) -> &[u8] {
        let start = self.start as usize;
        bytes.get(start..start.saturating_add(self.len as usize)).unwrap_or_default()
    }

    /// The text; empty if it is not UTF-8.
    pub fn text(self, bytes: &[u8]) -> &str {
        core::str::from_utf8(self.raw(bytes)).unwrap_or_default()
    }
}

/// Reads the header sequentially, never beyond the file's end.
pub(super) struct Cursor<'a> {
    /// The first bytes of the file.
    bytes: &'a [u8],
    /// Length of the file.
    len: u64,
    at: usize,
    needs: Option<u64>,
}

impl<'a> Cursor<'a> {
    /// A cursor over the header of a file of `len` bytes, whose first bytes are `bytes`.
    pub const fn new(bytes: &'a [u8], len: u64) -> Self {
        Self { bytes, len, at: 0, needs: None }
    }

    /// The first bytes of the file.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of first bytes of the file that the last call required, if it failed for lack of
    /// bytes.
    pub const fn needs(&self) -> Option<u64> {
        self.needs
    }

    /// Bytes read so far.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Bytes read since `start`, an earlier [`Cursor::at`]. Lossless: the header is shorter than 4
    /// GiB.
    pub const fn since(&self, start: usize) -> u32 {
        self.at.saturating_sub(start) as u32
    }

    fn remaining(&self) -> u64 {
        self.len.saturating_sub(self.at as u64)
    }

    /// The next `count` bytes; `what` names them in the error.
    pub fn take(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let (at, remaining) = (self.at as u64, self.remaining());
        if count > remaining {
            return Err(GgufError::Truncated { what, at, needed: count, remaining });
        }
        let found = at.saturating_add(count);
        if found > MAX_HEADER_BYTES {
            return Err(GgufError::TooLarge { what, at, found, max: MAX_HEADER_BYTES });
        }
        // At most `MAX_HEADER_BYTES`: it fits a `usize`.
        let end = self.at.saturating_add(count as usize);
        let Some(taken) = self.bytes.get(self.at..end) else {
            self.needs = Some(end as u64);
            return Err(GgufError::Truncated { what, at, needed: count, remaining });
        };
        self.at = end;
        Ok(taken)
    }

    /// The first `count` bytes of the file, or all bytes of a shorter file. Does not move the
    /// cursor.
    pub fn head(&mut self, count: u64) -> Result<&'a [u8], GgufError> {
        let mut start = Self::new(self.bytes, self.len);
        let head = start.take(count.min(self.len), "magic");
        self.needs = self.needs.or(start.needs);
        head
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().unwrap_or([0; N]))
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Checks a count of items of at least `bytes_min` bytes each against the remaining bytes.
    pub fn plausible(
        &self,
        what: &'static str,
        count: u64,
        bytes_min: u64,
        max: u64,
    ) -> Result<usize, GgufError> {
        let at = self.at as u64;
        if count > max {
            return Err(GgufError::TooLarge { what, at, found: count, max });
        }
        let (needed, remaining) = (count.saturating_mul(bytes_min), self.remaining());
        if needed > remaining {
            return Err(GgufError::Truncated { what, at, needed, remaining });
        }
        // Lossless: at most the remaining bytes.
        Ok(count as usize)
    }

    /// Reads a length and the same number of bytes.
    pub fn sized(
        &mut self,
        what: &'static str,
        max_bytes: u64,
    ) -> Result<(Span, &'a [u8]), GgufError> {
        let at = self.at as u64;
        let len = self.u64(what)?;
        if len > max_bytes {
            return Err(GgufError::TooLarge { what, at, found: len, max: max_bytes });
        }
        // At most `MAX_HEADER_BYTES`, as is `len` once the bytes are taken.
        let start = self.at as u32;
        let raw = self.take(len, what)?;
        Ok((Span { start, len: len as u32 }, raw))
    }

    /// A tensor's name: UTF-8, not empty.
    pub fn name(
        &mut self,
        what: &'static str,
        max_bytes: u64,
    ) -> Result<(Span, &'a str), GgufError> {
        let at = self.at as u64;
        let (span, raw) = self.sized(what, max_bytes)?;
        let text = core::str::from_utf8(raw).map_err(|_| GgufError::Text { what, at })?;
        if text.is_empty() { Err(GgufError::Unnamed { what, at }) } else { Ok((span, text)) }
    }
}
