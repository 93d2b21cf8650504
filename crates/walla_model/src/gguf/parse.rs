//! Parses bytes into checked offsets. The format:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! Every count and length in the file is compared with the remaining bytes before memory is
//! allocated for it. So parsing allocates, in addition to the header's bytes, at most twice the
//! file's length plus 1 MiB: an entry takes 28 bytes here (with its index) and at least 13 in the
//! file, a string in an array 4 and at least 8, a tensor 80 and at least 33. For the largest number
//! of tensors that is 14 * 32768 bytes = 448 KiB more than twice.
//!
//! Metadata is checked only as far as necessary to find the next entry. walla does not use most
//! keys, and a defect in such a value must not prevent loading. Readers check the values that they
//! use; [`Gguf::warnings`] lists the others.
//!
//! [`Gguf::warnings`]: super::Gguf::warnings

use walla_types::TensorType;

use super::{
    Shape,
    cursor::{Cursor, MAX_HEADER_BYTES, Span},
    error::GgufError,
    foreign,
    value::{ARRAY_CODE, Element},
};

/// Maximum number of metadata entries; real files have some dozens.
pub(super) const MAX_ENTRIES: u64 = 32_768;
/// Maximum number of tensors; real files have some hundreds.
pub(super) const MAX_TENSORS: u64 = 32_768;
/// Maximum number of arrays of strings; real files have one or two.
const MAX_STRING_ARRAYS: usize = 1024;
/// Maximum nesting depth of arrays that are skipped.
const MAX_LEVELS: u32 = 8;
/// The format's maximum length of a key.
const MAX_KEY_BYTES: u64 = 65_535;
/// The format's maximum length of a tensor name.
const MAX_NAME_BYTES: u64 = 64;
/// Alignment of the data if the file does not specify it.
pub(super) const ALIGNMENT_DEFAULT: u64 = 32;

pub(super) const ALIGNMENT_KEY: &str = "general.alignment";

#[derive(Clone, Copy, Debug)]
pub(super) enum Stored {
    /// The first [`Element::bytes_min`] bytes are used.
    Scalar(Element, [u8; 8]),
    Text(Span),
    /// `strings` is an index into [`Header::strings`], for strings only.
    Array {
        element: Element,
        strings: u16,
        len: u32,
        payload: Span,
    },
    /// An array of an unsupported type, from its element type on.
    Skipped(Span),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// UTF-8, possibly empty.
    pub key: Span,
    pub value: Stored,
}

/// The module's memory bound assumes this size.
const _: () = assert!(size_of::<Entry>() <= 24);

/// The elements of an array of strings.
#[derive(Debug)]
pub(super) struct Strings {
    /// Offsets of the elements in the array's payload, and the end of the payload.
    pub bounds: Box<[u32]>,
    /// The first element that is not UTF-8.
    pub not_text: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    pub name: Span,
    pub shape: Shape,
    pub code: u32,
    /// From the start of the data.
    pub offset: u64,
    /// One byte for types without kernels, because their size is unknown.
    pub bytes: u64,
}

/// A file's index, without its bytes.
#[derive(Debug)]
pub(super) struct Header {
    pub version: u32,
    pub alignment: u64,
    pub entries: Vec<Entry>,
    /// Indices into `entries`, sorted by key, entries with the same key in the file's order.
    pub entries_by_key: Vec<u32>,
    /// Keys that are not UTF-8. No reader can name them, so they are not entries.
    pub keys_not_text: Vec<Span>,
    /// One item per array of strings.
    pub strings: Vec<Strings>,
    pub tensors: Vec<Tensor>,
    /// Indices into `tensors`, sorted by name.
    pub tensors_by_name: Vec<u32>,
    /// Offset of the tensors' data in the file.
    pub data_start: u64,
}

/// The result of parsing the first bytes of a file.
pub(super) enum Parsed {
    /// The complete header.
    Header(Header),
    /// The header is incomplete: at least this number of first bytes is required.
    Needs(u64),
}

/// Checks a whole file.
pub(super) fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    let header = parse_header(bytes)?;
    check_placement(&header, bytes, bytes.len() as u64)?;
    Ok(header)
}

/// Checks everything except the presence of the tensors' data.
pub(super) fn parse_header(bytes: &[u8]) -> Result<Header, GgufError> {
    header(&mut Cursor::new(bytes, bytes.len() as u64))
}

/// [`parse_header`] for the first bytes of a file of `len` bytes, which may end within the header.
pub(super) fn parse_start(bytes: &[u8], len: u64) -> Result<Parsed, GgufError> {
    let mut cursor = Cursor::new(bytes, len);
    let header = header(&mut cursor);
    // With too few bytes an error is no defect of the file: the header is parsed again.
    cursor.needs().map_or_else(|| header.map(Parsed::Header), |end| Ok(Parsed::Needs(end)))
}

fn header(cursor: &mut Cursor<'_>) -> Result<Header, GgufError> {
    let bytes = cursor.bytes();
    let version = cursor.preamble()?;
    let (entry_count, tensor_count) = cursor.counts()?;
    let mut entries = Vec::with_capacity(entry_count);
    let (mut keys_not_text, mut strings) = (Vec::new(), Vec::new());
    for _ in 0..entry_count {
        let entry = cursor.entry(&mut strings)?;
        if core::str::from_utf8(entry.key.raw(bytes)).is_ok() {
            entries.push(entry);
        } else {
            keys_not_text.push(entry.key);
        }
    }
    let entries_by_key = sorted_by(entries.len(), |i| entries.get(i).map(|e| e.key.text(bytes)));
    // Before the tensors, whose offsets are checked against it.
    let alignment = alignment(&entries, bytes)?;

    let mut tensors = Vec::with_capacity(tensor_count);
    for _ in 0..tensor_count {
        tensors.push(cursor.tensor(alignment)?);
    }
    let tensors_by_name = sorted_by(tensors.len(), |i| tensors.get(i).map(|t| t.name.text(bytes)));
    if let Some(name) = twice(&tensors_by_name, |i| tensors.get(i).map(|t| t.name.text(bytes))) {
        return Err(GgufError::of_tensor(name, "it appears twice"));
    }
    // `at` is at most 2^32 and the alignment at most 2^20.
    let data_start = (cursor.at() as u64).next_multiple_of(alignment);
    Ok(Header {
        version,
        alignment,
        entries,
        entries_by_key,
        keys_not_text,
        strings,
        tensors,
        tensors_by_name,
        data_start,
    })
}

fn sorted_by<'a>(count: usize, name: impl Fn(usize) -> Option<&'a str>) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_unstable_by_key(|&i| (name(i as usize), i));
    order
}

/// The first name that occurs twice in a sorted list.
pub(super) fn twice<'a>(order: &[u32], name: impl Fn(usize) -> Option<&'a str>) -> Option<&'a str> {
    order.windows(2).find_map(|pair| match *pair {
        [a, b] if name(a as usize) == name(b as usize) => name(a as usize),
        _ => None,
    })
}

fn alignment(entries: &[Entry], bytes: &[u8]) -> Result<u64, GgufError> {
    let mut found = entries.iter().filter(|e| e.key.text(bytes) == ALIGNMENT_KEY);
    let Some(entry) = found.next() else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    // Programs that take the first and programs that take the last would read other weights.
    if found.next().is_some() {
        return Err(GgufError::of_key(ALIGNMENT_KEY.as_bytes(), "it appears twice"));
    }
    let found = match entry.value {
        Stored::Scalar(Element::U32, [a, b, c, d, ..]) => u32::from_le_bytes([a, b, c, d]),
        Stored::Scalar(other, _) => return Err(GgufError::Alignment { found: other.to_string() }),
        Stored::Text(_) => return Err(GgufError::Alignment { found: "a STRING".to_owned() }),
        Stored::Array { .. } | Stored::Skipped(_) => {
            return Err(GgufError::Alignment { found: "an ARRAY".to_owned() });
        }
    };
    if found.is_power_of_two() && (8..=1 << 20).contains(&found) {
        Ok(found.into())
    } else {
        Err(GgufError::Alignment { found: found.to_string() })
    }
}

/// Checks that every tensor is inside a file of `len` bytes and that no two tensors share a byte.
/// `bytes` contains the header.
pub(super) fn check_placement(header: &Header, bytes: &[u8], len: u64) -> Result<(), GgufError> {
    let tensors = &header.tensors;
    let available = len.saturating_sub(header.data_start);
    for tensor in tensors {
        if tensor.offset.checked_add(tensor.bytes).is_none_or(|end| end > available) {
            let Tensor { name, offset, bytes: needed, .. } = tensor;
            let reason = format!(
                "{needed} bytes at offset {offset} of the data, which has {available}: the file is \
                 cut off, download it again"
            );
            return Err(GgufError::of_tensor(name.text(bytes), reason));
        }
    }
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    // In this order it is enough to compare neighbours: all pairs of 32,768 tensors are 2^29.
    order.sort_unstable_by_key(|&i| tensors.get(i as usize).map(|t| t.offset));
    let in_order = order.iter().filter_map(|&i| tensors.get(i as usize));
    for (first, second) in in_order.clone().zip(in_order.skip(1)) {
        if first.offset.saturating_add(first.bytes) > second.offset {
            let name = |t: &Tensor| t.name.text(bytes).to_owned();
            return Err(GgufError::Overlap { first: name(first), second: name(second) });
        }
    }
    Ok(())
}

impl Cursor<'_> {
    fn preamble(&mut self) -> Result<u32, GgufError> {
        // Before the magic: the name of the format helps more than four wrong bytes.
        if let Some(foreign) = foreign::recognize(self.head(foreign::HEAD_BYTES)?) {
            return Err(GgufError::Foreign(foreign));
        }
        let magic: [u8; 4] = self.array("magic")?;
        if magic != foreign::MAGIC {
            return Err(GgufError::Magic(magic));
        }
        match self.u32("version")? {
            version @ 2..=3 => Ok(version),
            swapped if (1..=3).contains(&swapped.swap_bytes()) => Err(GgufError::BigEndian),
            other => Err(GgufError::Version(other)),
        }
    }

    /// Numbers of entries and of tensors. Together they must fit in the remaining bytes.
    fn counts(&mut self) -> Result<(usize, usize), GgufError> {
        let tensors = self.u64("tensor count")?;
        let entries = self.u64("metadata count")?;
        // An empty key, a type and a one-byte value.
        let entry_bytes_min = 8 + 4 + 1;
        // A one-byte name, the number of dimensions, one dimension, a type and an offset.
        let tensor_bytes_min = 8 + 1 + 4 + 8 + 4 + 8;
        let entry_count =
            self.plausible("metadata count", entries, entry_bytes_min, MAX_ENTRIES)?;
        let tensor_count =
            self.plausible("tensor count", tensors, tensor_bytes_min, MAX_TENSORS)?;
        let of_tensors = tensors.saturating_mul(tensor_bytes_min);
        let needed = entries.saturating_mul(entry_bytes_min).saturating_add(of_tensors);
        // Each number fits alone, but both may count the same bytes.
        self.plausible("header", needed, 1, u64::MAX)?;
        Ok((entry_count, tensor_count))
    }

    fn entry(&mut self, strings: &mut Vec<Strings>) -> Result<Entry, GgufError> {
        let (key, raw) = self.sized("key", MAX_KEY_BYTES)?;
        let value = self.value(raw, strings).map_err(|error| match error {
            // The cursor does not know whose bytes it reads.
            unnamed if unnamed.is_of_read() => GgufError::of_key(raw, unnamed),
            named => named,
        })?;
        Ok(Entry { key, value })
    }

    fn value(&mut self, key: &[u8], strings: &mut Vec<Strings>) -> Result<Stored, GgufError> {
        let code = self.u32("value type")?;
        match Element::from_code(code) {
            Some(Element::String) => {
                self.sized("string", MAX_HEADER_BYTES).map(|(span, _)| Stored::Text(span))
            }
            Some(element) => {
                let raw = self.take(element.bytes_min() as u64, "value")?;
                let mut padded = [0; 8];
                padded.iter_mut().zip(raw).for_each(|(to, from)| *to = *from);
                Ok(Stored::Scalar(element, padded))
            }
            None if code == ARRAY_CODE => self.array_value(key, strings),
            None => Err(unknown_type(key, code)),
        }
    }

    fn array_value(&mut self, key: &[u8], strings: &mut Vec<Strings>) -> Result<Stored, GgufError> {
        let whole = self.at();
        let code = self.u32("array type")?;
        let count = self.u64("array length")?;
        let Some(element) = Element::from_code(code) else {
            self.skip_elements(key, (code, count), MAX_LEVELS)?;
            let span = Span { start: whole as u32, len: self.since(whole) };
            return Ok(Stored::Skipped(span));
        };
        let bytes_min = element.bytes_min() as u64;
        let len = self.plausible("array length", count, bytes_min, MAX_HEADER_BYTES)?;
        let start = self.at();
        let mut table = 0;
        if element == Element::String {
            if strings.len() >= MAX_STRING_ARRAYS {
                let (found, max) =
                    ((strings.len() as u64).saturating_add(1), MAX_STRING_ARRAYS as u64);
                let what = "number of string arrays";
                return Err(GgufError::TooLarge { what, at: start as u64, found, max });
            }
            table = strings.len() as u16;
            strings.push(self.strings(len)?);
        } else {
            self.take(count.saturating_mul(bytes_min), "array")?;
        }
        let payload = Span { start: start as u32, len: self.since(start) };
        Ok(Stored::Array { element, strings: table, len: len as u32, payload })
    }

    /// Offset of each string's length, relative to the current position, and the end of the last
    /// string.
    fn strings(&mut self, len: usize) -> Result<Strings, GgufError> {
        let start = self.at();
        let mut starts = Vec::with_capacity(len.saturating_add(1));
        let mut not_text = None;
        for index in 0..len as u32 {
            starts.push(self.since(start));
            let (_, raw) = self.sized("string in an array", MAX_HEADER_BYTES)?;
            if not_text.is_none() && core::str::from_utf8(raw).is_err() {
                not_text = Some(index);
            }
        }
        starts.push(self.since(start));
        Ok(Strings { bounds: starts.into_boxed_slice(), not_text })
    }

    /// Skips `count` elements of an array; elements that are arrays are skipped up to `levels`
    /// levels deep.
    fn skip_elements(
        &mut self,
        key: &[u8],
        (code, count): (u32, u64),
        levels: u32,
    ) -> Result<(), GgufError> {
        // The element type and the length of an array take 12 bytes.
        let bytes_min = match Element::from_code(code) {
            Some(element) => element.bytes_min() as u64,
            None if code == ARRAY_CODE => 12,
            // Nothing is skipped, so the size of its unknown type does not matter.
            None if count == 0 => return Ok(()),
            None => return Err(unknown_type(key, code)),
        };
        let len = self.plausible("array length", count, bytes_min, MAX_HEADER_BYTES)?;
        match Element::from_code(code) {
            Some(Element::String) => {
                for _ in 0..len {
                    self.sized("string in an array", MAX_HEADER_BYTES)?;
                }
            }
            Some(_) => _ = self.take(count.saturating_mul(bytes_min), "array")?,
            None => {
                let Some(levels) = levels.checked_sub(1) else {
                    let reason = format!("arrays are nested more than {MAX_LEVELS} levels deep");
                    return Err(GgufError::of_key(key, reason));
                };
                for _ in 0..len {
                    let inner = (self.u32("array type")?, self.u64("array length")?);
                    self.skip_elements(key, inner, levels)?;
                }
            }
        }
        Ok(())
    }

    fn tensor(&mut self, alignment: u64) -> Result<Tensor, GgufError> {
        let (name, text) = self.name("tensor name", MAX_NAME_BYTES)?;
        self.tensor_info(name, text, alignment).map_err(|error| match error {
            unnamed if unnamed.is_of_read() => GgufError::of_tensor(text, unnamed),
            named => named,
        })
    }

    fn tensor_info(&mut self, name: Span, text: &str, alignment: u64) -> Result<Tensor, GgufError> {
        let rank = self.u32("number of dimensions")?;
        let mut dims = [1; 4];
        let Some(used) = dims.get_mut(..rank as usize).filter(|used| !used.is_empty()) else {
            let reason = format!("{rank} dimensions, expected 1 to 4");
            return Err(GgufError::of_tensor(text, reason));
        };
        for dim in used {
            *dim = self.u64("dimension")?;
        }
        let shape = Shape::new(dims, rank as u8);
        let code = self.u32("tensor type")?;
        let offset = self.u64("tensor offset")?;
        let bytes = tensor_bytes(text, shape, code)?;
        if !offset.is_multiple_of(alignment) {
            let reason = format!("offset {offset} is no multiple of the alignment {alignment}");
            return Err(GgufError::of_tensor(text, reason));
        }
        Ok(Tensor { name, shape, code, offset, bytes })
    }
}

fn unknown_type(key: &[u8], code: u32) -> GgufError {
    GgufError::of_key(key, format!("{code} is no metadata type (0 to 12)"))
}

/// Bytes of a tensor's data; 1 for a type without kernels.
pub(super) fn tensor_bytes(name: &str, shape: Shape, code: u32) -> Result<u64, GgufError> {
    let [row, rest @ ..] = shape.padded();
    let wrong = |reason| GgufError::of_tensor(name, format!("shape {shape}: {reason}"));
    if shape.padded().contains(&0) {
        return Err(wrong("a dimension is 0"));
    }
    let overflow = "its size overflows";
    let rows = rest.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    let rows = rows.ok_or_else(|| wrong(overflow))?;
    rows.checked_mul(row).ok_or_else(|| wrong(overflow))?;
    let Ok(ty) = TensorType::from_ggml(code) else {
        return Ok(1);
    };
    let block = ty.block_elements() as u64;
    if !row.is_multiple_of(block) {
        let reason = format!("rows of {row} numbers are no whole number of {block}-number blocks");
        return Err(GgufError::of_tensor(name, reason));
    }
    let row_bytes = row.checked_div(block).unwrap_or(0).checked_mul(ty.block_bytes() as u64);
    row_bytes.and_then(|bytes| bytes.checked_mul(rows)).ok_or_else(|| wrong(overflow))
}
