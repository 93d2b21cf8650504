//! Values as bytes: serde's data model in the wire format of postcard 1
//! (<https://postcard.jamesmunns.com/wire-format>), with JSON as text.
//!
//! The crate `postcard` itself would add two crates to the build of every game. It would also need
//! a deserializer around it, because serde allocates up to 1 MiB for the claimed length of a list,
//! and does not limit all lists together: [`Reader`] counts items before they are allocated.

use std::fmt::Display;

use serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};
use serde::ser::{self, Impossible, Serialize};
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
    /// A value that is not allowed, for this reason.
    #[error("{0}")]
    Value(String),
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

impl ser::Error for Defect {
    fn custom<T: Display>(reason: T) -> Self {
        Self::Value(reason.to_string())
    }
}

impl de::Error for Defect {
    fn custom<T: Display>(reason: T) -> Self {
        Self::Value(reason.to_string())
    }
}

/// Appends values to a buffer.
#[derive(Debug)]
pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    fn number(&mut self, mut left: u64) -> Result<(), Defect> {
        while left >= 0x80 {
            self.0.push(left as u8 | 0x80);
            left >>= 7;
        }
        self.0.push(left as u8);
        Ok(())
    }

    fn signed(&mut self, value: i64) -> Result<(), Defect> {
        self.number((value << 1 ^ value >> 63) as u64)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Defect> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

type Done = Result<(), Defect>;
type Name = &'static str;

/// Methods of a serializer without type parameters.
macro_rules! put {
    ($writer:ident -> $ok:ty {
        $($method:ident($($arg:ident: $type:ty),*) => $put:expr;)+
    }) => {$(
        fn $method(self, $($arg: $type),*) -> Result<$ok, Defect> {
            let $writer = self;
            $put
        }
    )+};
}

impl ser::Serializer for &mut Writer<'_> {
    type Ok = ();
    type Error = Defect;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Impossible<(), Defect>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    put! { writer -> () {
        serialize_bool(value: bool) => writer.bytes(&[value.into()]);
        serialize_u8(value: u8) => writer.bytes(&[value]);
        serialize_u16(value: u16) => writer.number(value.into());
        serialize_u32(value: u32) => writer.number(value.into());
        serialize_u64(value: u64) => writer.number(value);
        serialize_i8(value: i8) => writer.bytes(&value.to_le_bytes());
        serialize_i16(value: i16) => writer.signed(value.into());
        serialize_i32(value: i32) => writer.signed(value.into());
        serialize_i64(value: i64) => writer.signed(value);
        serialize_f32(value: f32) => writer.bytes(&value.to_le_bytes());
        serialize_f64(value: f64) => writer.bytes(&value.to_le_bytes());
        serialize_char(value: char) => writer.serialize_str(value.encode_utf8(&mut [0; 4]));
        serialize_str(text: &str) => writer.serialize_bytes(text.as_bytes());
        serialize_bytes(bytes: &[u8]) => {
            writer.number(bytes.len() as u64)?;
            writer.bytes(bytes)
        };
        serialize_none() => writer.bytes(&[0]);
        serialize_unit() => writer.bytes(&[]);
        serialize_unit_struct(_name: Name) => writer.bytes(&[]);
        serialize_unit_variant(_name: Name, index: u32, _variant: Name) => {
            writer.number(index.into())
        };
    } }

    put! { writer -> Self {
        serialize_seq(len: Option<usize>) => {
            let len = len.ok_or_else(|| ser::Error::custom("a list of unknown length"))?;
            writer.number(len as u64)?;
            Ok(writer)
        };
        serialize_tuple(_len: usize) => Ok(writer);
        serialize_tuple_struct(_name: Name, _len: usize) => Ok(writer);
        serialize_tuple_variant(_name: Name, index: u32, _variant: Name, _len: usize) => {
            writer.number(index.into())?;
            Ok(writer)
        };
        serialize_struct(_name: Name, _len: usize) => Ok(writer);
        serialize_struct_variant(name: Name, index: u32, variant: Name, len: usize) => {
            writer.serialize_tuple_variant(name, index, variant, len)
        };
    } }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Self::SerializeMap, Defect> {
        Err(ser::Error::custom("a map that is not written as JSON"))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        self.bytes(&[1])?;
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: Name, value: &T) -> Done {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: Name,
        index: u32,
        _variant: Name,
        value: &T,
    ) -> Done {
        self.number(index.into())?;
        value.serialize(self)
    }
}

/// Serializes the parts of a value one behind another.
macro_rules! parts {
    ($($trait:ident::$put:ident($($name:ty)?);)+) => {$(
        impl ser::$trait for &mut Writer<'_> {
            type Ok = ();
            type Error = Defect;

            fn $put<T: Serialize + ?Sized>(&mut self, $(_: $name,)? part: &T) -> Done {
                part.serialize(&mut **self)
            }

            fn end(self) -> Done {
                Ok(())
            }
        }
    )+};
}

parts! {
    SerializeSeq::serialize_element();
    SerializeTuple::serialize_element();
    SerializeTupleStruct::serialize_field();
    SerializeTupleVariant::serialize_field();
    SerializeStruct::serialize_field(Name);
    SerializeStructVariant::serialize_field(Name);
}

/// Estimated bytes of an allocation in an item of a list.
const ALLOCATION_BYTES: usize = 32;

/// Takes values from the start of bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Bytes that the values may still occupy in memory: an item of one byte becomes up to fifty.
    pub memory_left: u64,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], memory_left: u64) -> Self {
        Self { bytes, memory_left }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Counts `count` values of this type, before they are allocated.
    pub fn charge<T>(&mut self, count: usize) -> Result<(), Defect> {
        let allocated = if std::mem::needs_drop::<T>() { ALLOCATION_BYTES } else { 0 };
        let bytes = count.saturating_mul(size_of::<T>() + allocated) as u64;
        self.memory_left = self.memory_left.checked_sub(bytes).ok_or(Defect::Memory)?;
        Ok(())
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Defect> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(Defect::End)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Defect> {
        self.bytes(N)?.try_into().map_err(|_| Defect::End)
    }

    fn bool(&mut self) -> Result<bool, Defect> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Defect::Number),
        }
    }

    fn number(&mut self) -> Result<u64, Defect> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
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

    fn signed(&mut self) -> Result<i64, Defect> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A length. Each item has at least one byte, so no more than the rest is allocated.
    fn len(&mut self) -> Result<usize, Defect> {
        let len = usize::try_from(self.number()?).map_err(|_| Defect::Number)?;
        if len <= self.bytes.len() { Ok(len) } else { Err(Defect::End) }
    }

    fn text(&mut self) -> Result<&'a str, Defect> {
        let len = self.len()?;
        str::from_utf8(self.bytes(len)?).map_err(|_| Defect::Utf8)
    }

    /// A value in JSON. Until it is counted, the length of a chunk limits it.
    fn json(&mut self) -> Result<Value, Defect> {
        let value = serde_json::from_str(self.text()?).map_err(de::Error::custom)?;
        self.charge::<Value>(count_values(&value))?;
        Ok(value)
    }
}

/// Methods of a deserializer: the method of the visitor and its argument.
macro_rules! get {
    ($reader:ident {
        $($method:ident($($arg:ident: $type:ty),*) => $visit:ident($($value:expr)?);)+
    }) => {$(
        fn $method<V: Visitor<'de>>(self, $($arg: $type,)* visitor: V) -> Result<V::Value, Defect> {
            let $reader = self;
            visitor.$visit($($value)?)
        }
    )+};
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de> {
    type Error = Defect;

    get! { reader {
        deserialize_bool() => visit_bool(reader.bool()?);
        deserialize_u8() => visit_u8(u8::from_le_bytes(reader.array()?));
        deserialize_u16() => visit_u64(reader.number()?);
        deserialize_u32() => visit_u64(reader.number()?);
        deserialize_u64() => visit_u64(reader.number()?);
        deserialize_i8() => visit_i8(i8::from_le_bytes(reader.array()?));
        deserialize_i16() => visit_i64(reader.signed()?);
        deserialize_i32() => visit_i64(reader.signed()?);
        deserialize_i64() => visit_i64(reader.signed()?);
        deserialize_f32() => visit_f32(f32::from_le_bytes(reader.array()?));
        deserialize_f64() => visit_f64(f64::from_le_bytes(reader.array()?));
        deserialize_char() => visit_borrowed_str(reader.text()?);
        deserialize_str() => visit_borrowed_str(reader.text()?);
        deserialize_string() => visit_borrowed_str(reader.text()?);
        deserialize_newtype_struct(_name: Name) => visit_newtype_struct(reader);
        deserialize_seq() => visit_seq(Items { left: reader.len()?, is_list: true, reader });
        deserialize_tuple(left: usize) => visit_seq(Items { left, is_list: false, reader });
        deserialize_tuple_struct(_name: Name, left: usize)
            => visit_seq(Items { left, is_list: false, reader });
        deserialize_struct(_name: Name, fields: &'static [Name])
            => visit_seq(Items { left: fields.len(), is_list: false, reader });
        deserialize_enum(_name: Name, _variants: &'static [Name]) => visit_enum(reader);
    } }

    fn is_human_readable(&self) -> bool {
        false
    }

    /// Only JSON describes itself.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Defect> {
        de::Deserializer::deserialize_any(self.json()?, visitor).map_err(de::Error::custom)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Defect> {
        if self.bool()? { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    serde::forward_to_deserialize_any! {
        bytes byte_buf unit unit_struct map identifier ignored_any
    }
}

/// The items of a list, or the fields of a struct.
struct Items<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
    is_list: bool,
}

impl<'de> de::SeqAccess<'de> for Items<'_, 'de> {
    type Error = Defect;

    // There is no hint of the length: a list would be allocated for it.
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Defect> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        if self.is_list {
            self.reader.charge::<T::Value>(1)?;
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> de::EnumAccess<'de> for &mut Reader<'de> {
    type Error = Defect;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Defect> {
        let index: de::value::U64Deserializer<Defect> = self.number()?.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Reader<'de> {
    type Error = Defect;

    fn unit_variant(self) -> Result<(), Defect> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Defect> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Defect> {
        de::Deserializer::deserialize_tuple(self, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [Name],
        visitor: V,
    ) -> Result<V::Value, Defect> {
        de::Deserializer::deserialize_tuple(self, fields.len(), visitor)
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
    use serde::Deserialize;

    use super::*;

    fn written(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.serialize(&mut Writer(&mut bytes)).expect("no map");
        bytes
    }

    fn read<'de, T: Deserialize<'de>>(bytes: &'de [u8], memory: u64) -> Result<T, Defect> {
        let mut reader = Reader::new(bytes, memory);
        let value = T::deserialize(&mut reader)?;
        assert!(reader.is_empty());
        Ok(value)
    }

    #[test]
    fn numbers_survive() {
        let numbers = (
            [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX],
            [0, -1, 1, 63, -64, i64::MIN, i64::MAX],
            (u8::MAX, u16::MAX, i8::MIN, i16::MIN, i32::MIN, -0.5_f32, 1e300, 'ü', true),
        );
        assert_eq!(read(&written(&numbers), 0), Ok(numbers));
        assert!(read::<u32>(&written(&u64::MAX), 0).is_err());
    }

    /// Examples of the specification.
    #[test]
    fn bytes_are_those_of_postcard() {
        let number = |number: u16| written(&number);
        assert_eq!([number(127), number(128)], [vec![0x7f], vec![0x80, 0x01]]);
        assert_eq!([number(16_383), number(16_384)], [vec![0xff, 0x7f], vec![0x80, 0x80, 0x01]]);
        assert_eq!(number(u16::MAX), [0xff, 0xff, 0x03]);
        let signed = [0_i16, -1, 1, 63, -64].map(|number| written(&number));
        assert_eq!(signed.concat(), [0, 1, 2, 0x7e, 0x7f]);
        assert_eq!(written(&-32.005_86_f32), [0x00, 0x06, 0x00, 0xc2]);
        assert_eq!(written(&(Some("hi"), None::<u8>)), [1, 2, b'h', b'i', 0]);
        assert_eq!(written(&[0x0201_u16, 3][..]), [2, 0x81, 0x04, 3]);
    }

    #[test]
    fn lengths_are_checked_before_the_allocation() {
        let bytes = written(&(u64::MAX >> 1));
        assert_eq!(read::<&str>(&bytes, 100), Err(Defect::End));
        assert_eq!(read::<Vec<u8>>(&bytes, 100), Err(Defect::End));
        assert_eq!(read::<u64>(&[0xff; 12], 100), Err(Defect::Number));
        assert_eq!(read::<u64>(&[0x80], 100), Err(Defect::End));
    }

    #[test]
    fn items_are_counted_before_the_allocation() {
        let list = [&[3][..], &[0; 3]].concat();
        let bytes = 3 * (size_of::<String>() + ALLOCATION_BYTES) as u64;
        assert_eq!(read(&list, bytes), Ok(vec![String::new(); 3]));
        assert_eq!(read::<Vec<String>>(&list, bytes - 1), Err(Defect::Memory));
        assert_eq!(read::<Vec<u32>>(&list, 11), Err(Defect::Memory));
    }
}
