use core::marker::PhantomData;

use super::convert::FromValue;
use super::value::{Element, Unreadable, Value};

/// An array of metadata: a view into the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: Element,
    len: usize,
    /// Elements without gaps; each string follows its 8-byte length.
    payload: &'a [u8],
    /// For strings: the offset of each length, and the end of the last string. Empty otherwise.
    bounds: &'a [u32],
    /// The first string that is not UTF-8.
    not_text: Option<u32>,
}

impl<'a> Array<'a> {
    pub(super) const fn new(
        element: Element,
        len: usize,
        payload: &'a [u8],
        (bounds, not_text): (&'a [u32], Option<u32>),
    ) -> Self {
        Self { element, len, payload, bounds, not_text }
    }

    /// Index of the first string that is not UTF-8.
    pub(super) const fn not_text(&self) -> Option<u32> {
        self.not_text
    }

    /// Type of the elements.
    #[must_use]
    pub const fn element(&self) -> Element {
        self.element
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the array is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element at `index`, or `None` beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        if self.element == Element::String {
            return self.text(index);
        }
        let bytes = self.element.bytes_min();
        let start = index.checked_mul(bytes)?;
        self.element.read(self.payload.get(start..start.checked_add(bytes)?)?)
    }

    /// All elements in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Value<'a>> {
        // The fallback is unreachable: the elements were counted when the file was read.
        (0..self.len).map(move |index| self.get(index).unwrap_or(Value::Bool(false)))
    }

    pub(super) const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    fn text(&self, index: usize) -> Option<Value<'a>> {
        let start = *self.bounds.get(index)? as usize;
        let end = *self.bounds.get(index.checked_add(1)?)? as usize;
        let text = self.payload.get(start.checked_add(size_of::<u64>())?..end)?;
        // The check costs as much as a read of the text.
        Some(match core::str::from_utf8(text) {
            Ok(text) => Value::String(text),
            Err(_) => Value::Unreadable(Unreadable::Text(text)),
        })
    }
}

/// An array whose elements are read as `T`: a view into the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Items<'a, T> {
    array: Array<'a>,
    item: PhantomData<T>,
}

/// An array of strings (a vocabulary, its merges), with an offset table.
pub type Strings<'a> = Items<'a, &'a str>;

/// An array of integers of any one width. UINT64 beyond `i64::MAX` reads as `i64::MAX`.
pub type Integers<'a> = Items<'a, i64>;

/// An array of booleans.
pub type Flags<'a> = Items<'a, bool>;

/// An array of FLOAT32 or FLOAT64.
pub type Floats<'a> = Items<'a, f32>;

/// Types that an array's elements can be read as.
pub trait Item<'a>: FromValue<'a> + Default {
    /// The expected type, for messages: "an ARRAY of STRING".
    const EXPECTED_ARRAY: &'static str;

    /// Whether elements of this type can be read as `Self`.
    fn accepts(element: Element) -> bool;

    /// Reads one element; `None` if it has another type.
    fn from_element(element: Value<'a>) -> Option<Self> {
        Self::from_value(element)
    }
}

impl<'a, T: Item<'a>> Items<'a, T> {
    /// `None` if the elements have another type, or if a string is not UTF-8.
    pub(super) fn of(array: Array<'a>) -> Option<Self> {
        let is_readable = T::accepts(array.element) && array.not_text.is_none();
        is_readable.then_some(Self { array, item: PhantomData })
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.array.len
    }

    /// Whether the array is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    /// The element at `index`, or `None` beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<T> {
        T::from_element(self.array.get(index)?)
    }

    /// All elements in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = T> {
        (0..self.len()).map(move |index| self.get(index).unwrap_or_default())
    }
}

impl<'a> Item<'a> for &'a str {
    const EXPECTED_ARRAY: &'static str = "an ARRAY of STRING";

    fn accepts(element: Element) -> bool {
        element == Element::String
    }
}

impl<'a> Item<'a> for i64 {
    const EXPECTED_ARRAY: &'static str = "an ARRAY of integers";

    fn accepts(element: Element) -> bool {
        !matches!(element, Element::String | Element::Bool | Element::F32 | Element::F64)
    }

    fn from_element(element: Value<'a>) -> Option<Self> {
        element.as_integer().map(|wide| Self::try_from(wide).unwrap_or(Self::MAX))
    }
}

impl<'a> Item<'a> for bool {
    const EXPECTED_ARRAY: &'static str = "an ARRAY of BOOL";

    fn accepts(element: Element) -> bool {
        element == Element::Bool
    }
}

impl<'a> Item<'a> for f32 {
    const EXPECTED_ARRAY: &'static str = "an ARRAY of floats";

    fn accepts(element: Element) -> bool {
        matches!(element, Element::F32 | Element::F64)
    }
}
