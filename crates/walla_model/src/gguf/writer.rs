use std::io::{self, Write};

use walla_types::TensorType;

use super::{
    GgufError, Shape, Unreadable, Value,
    parse::{self, Header},
    value::{ARRAY_CODE, Element},
};

const VERSION: u32 = 3;

/// Writes a GGUF file, version 3: metadata and the tensor table first, then the tensors' data as a
/// stream.
///
/// Adding never fails; [`Writer::begin`] checks everything with the reader's rules.
///
/// # Examples
/// ```
/// use walla_model::{Gguf, gguf::Writer};
/// use walla_types::TensorType;
///
/// let mut writer = Writer::new();
/// writer.str("general.name", "tiny").u32("answer", 42);
/// writer.tensor("ones", TensorType::F32, &[2, 1]);
/// let mut file = Vec::new();
/// let mut data = writer.begin(&mut file)?;
/// data.tensor(&[0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f])?;
/// data.finish()?;
///
/// let gguf = Gguf::from_bytes(file)?;
/// assert_eq!(gguf.require::<u32>("answer")?, 42);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Writer {
    entries: Vec<u8>,
    entry_count: u64,
    /// `general.alignment`, if it was set.
    alignment: Option<u32>,
    tensors: Vec<(String, TensorType, Vec<u64>)>,
}

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Metadata or tensors that a reader would refuse: duplicate names, impossible shapes.
    #[error("this file would be unreadable: {0}")]
    Unreadable(#[from] GgufError),
    /// A tensor received too few or too many bytes.
    #[error("tensor {tensor:?} takes {expected} bytes, {found} given")]
    Length {
        /// The name.
        tensor: String,
        /// Bytes that its type and shape require.
        expected: u64,
        /// Bytes that were given.
        found: u64,
    },
    /// More tensors were given than were listed.
    #[error("all {0} tensors are written already")]
    Surplus(usize),
    /// The destination returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Writer {
    /// An empty file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a UINT32.
    pub fn u32(&mut self, key: &str, value: u32) -> &mut Self {
        self.value(key, Value::U32(value))
    }

    /// Adds a FLOAT32.
    pub fn f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.value(key, Value::F32(value))
    }

    /// Adds a BOOL.
    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.value(key, Value::Bool(value))
    }

    /// Adds a STRING.
    pub fn str(&mut self, key: &str, value: &str) -> &mut Self {
        self.value(key, Value::String(value))
    }

    /// Adds an ARRAY of STRING.
    pub fn strings<'a>(
        &mut self,
        key: &str,
        values: impl ExactSizeIterator<Item = &'a str>,
    ) -> &mut Self {
        self.array(key, Element::String, values.len());
        values.for_each(|text| put_text(&mut self.entries, text.as_bytes()));
        self
    }

    /// Adds an ARRAY of INT32.
    pub fn i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.array(key, Element::I32, values.len());
        self.entries.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    /// Adds an ARRAY of BOOL.
    pub fn bools(&mut self, key: &str, values: &[bool]) -> &mut Self {
        self.array(key, Element::Bool, values.len());
        self.entries.extend(values.iter().map(|&value| u8::from(value)));
        self
    }

    /// Adds an ARRAY of FLOAT32.
    pub fn f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.array(key, Element::F32, values.len());
        self.entries.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }

    /// Adds any value, for example one from another file.
    pub fn value(&mut self, key: &str, value: Value<'_>) -> &mut Self {
        if let Some((element, raw)) = value.scalar() {
            return self.entry(key, element, &raw);
        }
        match value {
            Value::String(text) => self.text(key, text.as_bytes()),
            Value::Unreadable(Unreadable::Text(bytes)) => self.text(key, bytes),
            Value::Unreadable(Unreadable::Bool(byte)) => self.entry(key, Element::Bool, &[byte]),
            Value::Unreadable(Unreadable::Array(raw)) => {
                self.key(key, ARRAY_CODE);
                self.entries.extend_from_slice(raw);
                self
            }
            Value::Array(array) => {
                self.array(key, array.element(), array.len());
                self.entries.extend_from_slice(array.payload());
                self
            }
            _ => self, // a number, which is written above
        }
    }

    /// Lists a tensor. `dims` starts with the innermost (contiguous) dimension, so a matrix is
    /// `[cols, rows]`.
    pub fn tensor(&mut self, name: &str, ty: TensorType, dims: &[u64]) -> &mut Self {
        self.tensors.push((name.to_owned(), ty, dims.to_vec()));
        self
    }

    /// Checks the additions and writes everything except the tensors' data.
    ///
    /// # Errors
    /// [`WriteError::Unreadable`] if the reader would refuse the file or a key was added twice,
    /// [`WriteError::Io`] from `out`.
    pub fn begin<W: Write>(&self, mut out: W) -> Result<DataWriter<W>, WriteError> {
        let mut bytes = self.header()?;
        let header = parse::parse_header(&bytes)?;
        let key = |i: usize| header.entries.get(i).map(|entry| entry.key.text(&bytes));
        if let Some(key) = parse::twice(&header.entries_by_key, key) {
            return Err(GgufError::of_key(key.as_bytes(), "it appears twice").into());
        }
        bytes.resize(header.data_start as usize, 0); // At most 1 MiB more.
        out.write_all(&bytes)?;
        let names = self.tensors.iter().map(|(name, ..)| name.clone()).collect();
        Ok(DataWriter { out, header, names, index: 0, written: 0 })
    }

    fn header(&self) -> Result<Vec<u8>, WriteError> {
        let mut header = b"GGUF".to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend(self.entry_count.to_le_bytes());
        header.extend_from_slice(&self.entries);
        let alignment = self.alignment.map_or(parse::ALIGNMENT_DEFAULT, u64::from);
        let mut offset = 0_u64;
        for (name, ty, dims) in &self.tensors {
            put_text(&mut header, name.as_bytes());
            header.extend((dims.len() as u32).to_le_bytes());
            header.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
            header.extend(ty.to_ggml().to_le_bytes());
            header.extend(offset.to_le_bytes());
            // The reader's checks below refuse anything impossible.
            let shape = Shape::of(dims);
            let bytes = shape.map_or(Ok(0), |s| parse::tensor_bytes(name, s, ty.to_ggml()))?;
            let end = offset.saturating_add(bytes);
            offset = end.checked_next_multiple_of(alignment).unwrap_or(end);
        }
        Ok(header)
    }

    fn key(&mut self, key: &str, code: u32) {
        put_text(&mut self.entries, key.as_bytes());
        self.entries.extend(code.to_le_bytes());
        self.entry_count += 1;
    }

    fn entry(&mut self, key: &str, element: Element, raw: &[u8]) -> &mut Self {
        if let (parse::ALIGNMENT_KEY, Element::U32, &[a, b, c, d]) = (key, element, raw) {
            self.alignment = Some(u32::from_le_bytes([a, b, c, d]));
        }
        self.key(key, element.code());
        self.entries.extend_from_slice(raw);
        self
    }

    fn text(&mut self, key: &str, text: &[u8]) -> &mut Self {
        self.key(key, Element::String.code());
        put_text(&mut self.entries, text);
        self
    }

    fn array(&mut self, key: &str, element: Element, len: usize) {
        self.key(key, ARRAY_CODE);
        self.entries.extend(element.code().to_le_bytes());
        self.entries.extend((len as u64).to_le_bytes());
    }
}

fn put_text(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u64).to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Takes the tensors' data in the listed order, whole or, through [`Write`], in pieces.
#[derive(Debug)]
#[must_use = "the file is complete only after `finish`"]
pub struct DataWriter<W> {
    out: W,
    header: Header,
    names: Vec<String>,
    /// The tensor being written.
    index: usize,
    /// Bytes of it written so far.
    written: u64,
}

impl<W: Write> DataWriter<W> {
    /// Writes the whole data of the next tensor.
    ///
    /// # Errors
    /// [`WriteError::Length`] if `bytes` is not exactly the size of (the rest of) the tensor,
    /// [`WriteError::Surplus`] after the last tensor, [`WriteError::Io`] from the destination.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let Some(tensor) = self.header.tensors.get(self.index) else {
            return Err(WriteError::Surplus(self.header.tensors.len()));
        };
        if tensor.bytes - self.written != bytes.len() as u64 {
            return Err(self.wrong_length(tensor.bytes, self.written + bytes.len() as u64));
        }
        Ok(self.write_all(bytes)?)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// [`WriteError::Length`] names the first tensor that lacks data, [`WriteError::Io`] from the
    /// destination.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if let Some(tensor) = self.header.tensors.get(self.index) {
            return Err(self.wrong_length(tensor.bytes, self.written));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn wrong_length(&self, expected: u64, found: u64) -> WriteError {
        let tensor = self.names.get(self.index).cloned().unwrap_or_default();
        WriteError::Length { tensor, expected, found }
    }

    /// Pads a complete tensor with zeros up to the next one.
    fn advance(&mut self) -> io::Result<()> {
        let Some(tensor) = self.header.tensors.get(self.index) else { return Ok(()) };
        if self.written < tensor.bytes {
            return Ok(());
        }
        let gap = tensor.bytes.next_multiple_of(self.header.alignment) - tensor.bytes;
        io::copy(&mut io::Read::take(io::repeat(0), gap), &mut self.out)?;
        self.index += 1;
        self.written = 0;
        Ok(())
    }
}

impl<W: Write> Write for DataWriter<W> {
    /// Takes at most the missing bytes of one tensor; 0 after the last one.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tensor) = self.header.tensors.get(self.index) else { return Ok(0) };
        let missing = usize::try_from(tensor.bytes - self.written).unwrap_or(usize::MAX);
        let bytes = bytes.get(..missing).unwrap_or(bytes);
        let count = self.out.write(bytes)?;
        self.written += count as u64;
        self.advance()?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
