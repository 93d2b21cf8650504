use super::{
    array::{Array, Item, Items},
    error::MetadataError,
    value::Value,
};

/// Types that [`Gguf::find`](super::Gguf::find) and [`Gguf::require`](super::Gguf::require) can
/// return.
///
/// Integers are read from any integer type if the value fits, floats from both widths, and all
/// other types only from the same type.
pub trait FromValue<'a>: Sized {
    /// The expected type, for messages: "a UINT32".
    const EXPECTED: &'static str;

    /// Converts the value; `None` if it has another type or does not fit.
    fn from_value(value: Value<'a>) -> Option<Self>;

    /// Converts the value of `key`.
    ///
    /// # Errors
    /// [`MetadataError::Unexpected`] names the key, the expected type and the value found.
    fn from_entry(key: &str, value: Value<'a>) -> Result<Self, MetadataError> {
        Self::from_value(value)
            .ok_or_else(|| MetadataError::unexpected(key, Self::EXPECTED, value.describe()))
    }
}

macro_rules! from_integer {
    ($($type:ty: $expected:literal),* $(,)?) => {$(
        impl<'a> FromValue<'a> for $type {
            const EXPECTED: &'static str = $expected;
            fn from_value(value: Value<'a>) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }
        }
    )*};
}

from_integer! {
    u32: "an integer in 0..=4294967295",
    u64: "an integer in 0..=18446744073709551615",
    i32: "an integer in -2147483648..=2147483647",
    i64: "an integer of 64 bits",
}

impl<'a> FromValue<'a> for f32 {
    const EXPECTED: &'static str = "a float";
    fn from_value(value: Value<'a>) -> Option<Self> {
        match value {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as Self),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const EXPECTED: &'static str = "a BOOL";
    fn from_value(value: Value<'a>) -> Option<Self> {
        if let Value::Bool(b) = value { Some(b) } else { None }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a STRING";
    fn from_value(value: Value<'a>) -> Option<Self> {
        if let Value::String(text) = value { Some(text) } else { None }
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "an ARRAY";
    fn from_value(value: Value<'a>) -> Option<Self> {
        if let Value::Array(array) = value { Some(array) } else { None }
    }
}

impl<'a, T: Item<'a>> FromValue<'a> for Items<'a, T> {
    const EXPECTED: &'static str = T::EXPECTED_ARRAY;
    fn from_value(value: Value<'a>) -> Option<Self> {
        Array::from_value(value).and_then(Self::of)
    }
}
