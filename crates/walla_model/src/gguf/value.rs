use core::fmt;

use super::array::Array;
use crate::names::named;

named! {
    /// The type of a metadata value that is not an array, or of an array's elements.
    ///
    /// The name is that in the format's specification.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Element {
        /// Unsigned, 8 bits.
        U8 = "UINT8",
        /// Signed, 8 bits.
        I8 = "INT8",
        /// Unsigned, 16 bits.
        U16 = "UINT16",
        /// Signed, 16 bits.
        I16 = "INT16",
        /// Unsigned, 32 bits.
        U32 = "UINT32",
        /// Signed, 32 bits.
        I32 = "INT32",
        /// IEEE 754 binary32.
        F32 = "FLOAT32",
        /// A byte, 0 or 1.
        Bool = "BOOL",
        /// A length and UTF-8.
        String = "STRING",
        /// Unsigned, 64 bits.
        U64 = "UINT64",
        /// Signed, 64 bits.
        I64 = "INT64",
        /// IEEE 754 binary64.
        F64 = "FLOAT64",
    }
}

/// The code of an array, which is not an [`Element`].
pub(super) const ARRAY_CODE: u32 = 9;

impl Element {
    /// The element with this code (`gguf_metadata_value_type`); `None` for arrays and unknown
    /// codes.
    pub(super) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.code() == code)
    }

    /// The inverse of [`Self::from_code`]: the elements in order, without the code of arrays.
    pub(super) const fn code(self) -> u32 {
        let nth = self as u32;
        if nth < ARRAY_CODE { nth } else { nth + 1 }
    }

    /// Bytes of one element; for a string, only the bytes of its length.
    pub(super) const fn bytes_min(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
        }
    }

    /// Reads a number or boolean from exactly [`Self::bytes_min`] bytes; `None` for a string or
    /// another length.
    pub(super) fn read(self, raw: &[u8]) -> Option<Value<'static>> {
        Some(match self {
            Self::U8 => Value::U8(u8::from_le_bytes(raw.try_into().ok()?)),
            Self::I8 => Value::I8(i8::from_le_bytes(raw.try_into().ok()?)),
            Self::U16 => Value::U16(u16::from_le_bytes(raw.try_into().ok()?)),
            Self::I16 => Value::I16(i16::from_le_bytes(raw.try_into().ok()?)),
            Self::U32 => Value::U32(u32::from_le_bytes(raw.try_into().ok()?)),
            Self::I32 => Value::I32(i32::from_le_bytes(raw.try_into().ok()?)),
            Self::F32 => Value::F32(f32::from_le_bytes(raw.try_into().ok()?)),
            Self::Bool => match u8::from_le_bytes(raw.try_into().ok()?) {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => Value::Unreadable(Unreadable::Bool(other)),
            },
            Self::U64 => Value::U64(u64::from_le_bytes(raw.try_into().ok()?)),
            Self::I64 => Value::I64(i64::from_le_bytes(raw.try_into().ok()?)),
            Self::F64 => Value::F64(f64::from_le_bytes(raw.try_into().ok()?)),
            Self::String => return None,
        })
    }
}

/// A metadata value; strings and arrays are views into the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// UINT8.
    U8(u8),
    /// INT8.
    I8(i8),
    /// UINT16.
    U16(u16),
    /// INT16.
    I16(i16),
    /// UINT32.
    U32(u32),
    /// INT32.
    I32(i32),
    /// FLOAT32.
    F32(f32),
    /// BOOL.
    Bool(bool),
    /// STRING.
    String(&'a str),
    /// UINT64.
    U64(u64),
    /// INT64.
    I64(i64),
    /// FLOAT64.
    F64(f64),
    /// ARRAY.
    Array(Array<'a>),
    /// A value that violates the format, or an array of a type that walla does not support.
    Unreadable(Unreadable<'a>),
}

/// A metadata value that is stored and listed, but not interpreted: reading it as any type is an
/// error that names its key. So it is harmless under an unused key.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Unreadable<'a> {
    /// The bytes of a STRING that is not UTF-8.
    Text(&'a [u8]),
    /// A BOOL that is neither 0 nor 1.
    Bool(u8),
    /// An ARRAY of ARRAY, or an empty ARRAY of an unknown type: the value's bytes, from the element
    /// type on.
    Array(&'a [u8]),
}

impl fmt::Display for Unreadable<'_> {
    /// Type and defect: `a STRING that is not UTF-8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("a STRING that is not UTF-8"),
            Self::Bool(byte) => write!(f, "BOOL {byte}, which is neither 0 nor 1"),
            Self::Array(raw) => match raw.first_chunk().map(|code| u32::from_le_bytes(*code)) {
                Some(code) if code != ARRAY_CODE => {
                    write!(f, "an empty ARRAY of the unknown type {code}")
                }
                _ => f.write_str("an ARRAY of ARRAY"),
            },
        }
    }
}

impl Value<'_> {
    /// The value as an integer of any width; `None` if it is not an integer.
    #[must_use]
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(n) => n.into(),
            Self::I8(n) => n.into(),
            Self::U16(n) => n.into(),
            Self::I16(n) => n.into(),
            Self::U32(n) => n.into(),
            Self::I32(n) => n.into(),
            Self::U64(n) => n.into(),
            Self::I64(n) => n.into(),
            _ => return None,
        })
    }

    /// The element and the bytes of a number or boolean.
    pub(super) fn scalar(&self) -> Option<(Element, Vec<u8>)> {
        Some(match *self {
            Self::U8(n) => (Element::U8, n.to_le_bytes().to_vec()),
            Self::I8(n) => (Element::I8, n.to_le_bytes().to_vec()),
            Self::U16(n) => (Element::U16, n.to_le_bytes().to_vec()),
            Self::I16(n) => (Element::I16, n.to_le_bytes().to_vec()),
            Self::U32(n) => (Element::U32, n.to_le_bytes().to_vec()),
            Self::I32(n) => (Element::I32, n.to_le_bytes().to_vec()),
            Self::F32(n) => (Element::F32, n.to_le_bytes().to_vec()),
            Self::Bool(b) => (Element::Bool, vec![b.into()]),
            Self::U64(n) => (Element::U64, n.to_le_bytes().to_vec()),
            Self::I64(n) => (Element::I64, n.to_le_bytes().to_vec()),
            Self::F64(n) => (Element::F64, n.to_le_bytes().to_vec()),
            Self::String(_) | Self::Array(_) | Self::Unreadable(_) => return None,
        })
    }

    /// Type, and for numbers and booleans the value; for error messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::String(_) => "a STRING".to_owned(),
            Self::Array(a) => match a.not_text() {
                Some(index) => {
                    format!("an ARRAY of {} STRING, of which number {index} is not UTF-8", a.len())
                }
                None => format!("an ARRAY of {} {}", a.len(), a.element()),
            },
            Self::Unreadable(value) => value.to_string(),
            number => {
                format!("{} {number}", number.scalar().map_or("", |(element, _)| element.name()))
            }
        }
    }
}

impl fmt::Display for Value<'_> {
    /// Numbers and strings as text, with U+FFFD for bytes that are not UTF-8; arrays as length and
    /// type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(text) => f.write_str(text),
            Self::Bool(b) => b.fmt(f),
            Self::F32(n) => n.fmt(f),
            Self::F64(n) => n.fmt(f),
            Self::Array(a) => write!(f, "[{} {}]", a.len(), a.element()),
            Self::Unreadable(Unreadable::Text(bytes)) => String::from_utf8_lossy(bytes).fmt(f),
            Self::Unreadable(Unreadable::Bool(byte)) => byte.fmt(f),
            Self::Unreadable(Unreadable::Array(_)) => f.write_str("[ARRAY]"),
            _ => self.as_integer().unwrap_or_default().fmt(f),
        }
    }
}
