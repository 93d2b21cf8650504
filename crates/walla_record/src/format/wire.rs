//! Numbers, texts and lists as bytes.
//!
//! Numbers are LEB128: seven bits per byte, the lowest first. Signed numbers are mapped to unsigned
//! ones first (0, -1, 1, -2, …). Texts and lists begin with their length.

use serde_json::Value;

/// A defect of bytes that should be a part of a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    /// The bytes end within a value.
    #[error("a value is cut off")]
    End,
    /// A number is too large for its type.
    #[error("a number is out of range")]
    Number,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Utf8,
    /// An unknown variant.
    #[error("unknown {what} {tag}")]
    Tag {
        /// The kind of value.
        what: &'static str,
        /// The variant.
        tag: u64,
    },
    /// A value that is not allowed.
    #[error("{what}: {reason}")]
    Value {
        /// The kind of value.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// A chunk is longer than allowed, or empty.
    #[error("a chunk of {bytes} bytes")]
    ChunkLength {
        /// The length.
        bytes: u64,
    },
    /// The checksum is wrong.
    #[error("wrong checksum")]
    Checksum,
    /// The compressed data is damaged.
    #[error("the compressed data is damaged")]
    Compression,
    /// The values of the recording need more memory than the reader may use.
    #[error("the values need too much memory")]
    Memory,
}

impl Defect {
    pub(crate) fn value(what: &'static str, reason: impl ToString) -> Self {
        Self::Value { what, reason: reason.to_string() }
    }
}

/// Appends values to a buffer.
#[derive(Debug)]
pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub fn number(&mut self, value: impl Into<u64>) {
        let mut left = value.into();
        while left >= 0x80 {
            self.u8(left as u8 | 0x80);
            left >>= 7;
        }
        self.u8(left as u8);
    }

    pub fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63) as u64);
    }

    pub fn float(&mut self, value: f32) {
        self.0.extend_from_slice(&value.to_bits().to_le_bytes());
    }

    pub fn len(&mut self, len: usize) {
        self.number(len as u64);
    }

    pub fn text(&mut self, text: &str) {
        self.len(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    pub fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    pub fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut put: impl FnMut(&mut Self, T),
    ) {
        self.len(items.len());
        items.for_each(|item| put(self, item));
    }
}

/// Estimated bytes of an allocation in an item of a list.
const ALLOCATION_BYTES: usize = 32;

/// Takes values from the start of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Bytes that the values may still occupy in memory: an item of one byte becomes up to fifty.
    memory_left: u64,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], memory_left: u64) -> Self {
        Self { bytes, memory_left }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn memory_left(&self) -> u64 {
        self.memory_left
    }

    /// Counts `count` values of this type, before they are allocated.
    pub fn charge<T>(&mut self, count: usize) -> Result<(), Defect> {
        let allocated = if std::mem::needs_drop::<T>() { ALLOCATION_BYTES } else { 0 };
        let bytes = count.saturating_mul(size_of::<T>() + allocated) as u64;
        self.memory_left = self.memory_left.checked_sub(bytes).ok_or(Defect::Memory)?;
        Ok(())
    }

    /// A value in JSON. Until it is counted, the length of a chunk limits it.
    pub fn json(&mut self, what: &'static str) -> Result<Value, Defect> {
        let value = serde_json::from_str(self.text()?);
        let value = value.map_err(|error| Defect::value(what, error))?;
        self.charge::<Value>(count_values(&value))?;
        Ok(value)
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Defect> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(Defect::End)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8, Defect> {
        let (&byte, rest) = self.bytes.split_first().ok_or(Defect::End)?;
        self.bytes = rest;
        Ok(byte)
    }

    pub fn bool(&mut self) -> Result<bool, Defect> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(Defect::Tag { what: "flag", tag: tag.into() }),
        }
    }

    pub fn number(&mut self) -> Result<u64, Defect> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Defect::Number);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Defect::Number)
    }

    pub fn u32(&mut self) -> Result<u32, Defect> {
        u32::try_from(self.number()?).map_err(|_| Defect::Number)
    }

    pub fn signed(&mut self) -> Result<i64, Defect> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub fn float(&mut self) -> Result<f32, Defect> {
        let bytes = self.bytes(4)?.try_into().map_err(|_| Defect::End)?;
        Ok(f32::from_bits(u32::from_le_bytes(bytes)))
    }

    /// A length. Each item has at least one byte, so no more than the rest is allocated.
    pub fn len(&mut self) -> Result<usize, Defect> {
        let len = usize::try_from(self.number()?).map_err(|_| Defect::Number)?;
        if len <= self.bytes.len() { Ok(len) } else { Err(Defect::End) }
    }

    pub fn text(&mut self) -> Result<&'a str, Defect> {
        let len = self.len()?;
        str::from_utf8(self.bytes(len)?).map_err(|_| Defect::Utf8)
    }

    pub fn option<T>(
        &mut self,
        get: impl FnOnce(&mut Self) -> Result<T, Defect>,
    ) -> Result<Option<T>, Defect> {
        if self.bool()? { get(self).map(Some) } else { Ok(None) }
    }

    pub fn list<T>(
        &mut self,
        mut get: impl FnMut(&mut Self) -> Result<T, Defect>,
    ) -> Result<Vec<T>, Defect> {
        let len = self.len()?;
        self.charge::<T>(len)?;
        (0..len).map(|_| get(self)).collect()
    }
}

/// Number of values in a value of JSON. A parser limits its depth.
fn count_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count_values).sum(),
        Value::Object(fields) => fields.values().map(|value| 1 + count_values(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let signed = [0, -1, 1, 63, -64, i64::MIN, i64::MAX];
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        numbers.iter().for_each(|&number| writer.number(number));
        signed.iter().for_each(|&number| writer.signed(number));
        writer.float(-0.5);
        let mut reader = Reader::new(&bytes, 100);
        assert!(numbers.iter().all(|&number| reader.number() == Ok(number)));
        assert!(signed.iter().all(|&number| reader.signed() == Ok(number)));
        assert_eq!(reader.float(), Ok(-0.5));
        assert!(reader.is_empty());
    }

    #[test]
    fn lengths_are_checked_before_the_allocation() {
        let mut bytes = Vec::new();
        Writer(&mut bytes).number(u64::MAX >> 1);
        assert_eq!(Reader::new(&bytes, 100).text(), Err(Defect::End));
        assert_eq!(Reader::new(&bytes, 100).list(Reader::u8), Err(Defect::End));
        assert_eq!(Reader::new(&[0xff; 12], 100).number(), Err(Defect::Number));
        assert_eq!(Reader::new(&[0x80], 100).number(), Err(Defect::End));
    }

    #[test]
    fn items_are_counted_before_the_allocation() {
        let list = [&[3][..], &[0; 3]].concat();
        let texts =
            |memory| Reader::new(&list, memory).list(|reader| Ok(reader.text()?.to_owned()));
        let bytes = 3 * (size_of::<String>() + ALLOCATION_BYTES) as u64;
        assert_eq!(texts(bytes), Ok(vec![String::new(); 3]));
        assert_eq!(texts(bytes - 1), Err(Defect::Memory));
        assert_eq!(Reader::new(&list, 11).list(Reader::u32), Err(Defect::Memory));
    }
}
