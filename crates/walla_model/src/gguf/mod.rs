//! GGUF files: metadata and tensors of a model, versions 2 and 3, little-endian.
//!
//! [`Gguf`] is an index over the file's bytes. Parsing checks all metadata and tensor descriptions
//! and copies only offsets, so a vocabulary of 150 000 tokens takes a table of 600 kB and no
//! strings.

mod array;
mod bytes;
mod convert;
#[deny(clippy::arithmetic_side_effects)]
mod cursor;
mod data;
mod error;
mod file;
mod foreign;
mod keep;
mod kind;
#[deny(clippy::arithmetic_side_effects)]
mod parse;
#[deny(clippy::arithmetic_side_effects)]
pub(crate) mod split;
mod value;
mod warning;
mod writer;

use std::{borrow::Cow, fmt, ops::Range, path::Path, sync::Arc};

pub use array::{Array, Flags, Floats, Integers, Item, Items, Strings};
pub use convert::FromValue;
pub use data::TensorData;
pub use error::{GgufError, MetadataError, TensorError};
pub use foreign::Foreign;
pub use keep::KeptGguf;
pub use kind::FileKind;
pub use split::PartError;
pub use value::{Element, Unreadable, Value};
use walla_types::{TensorType, UnknownTensorType};
pub use writer::{DataWriter, WriteError, Writer};

use self::{bytes::Bytes, file::ModelFile};
use crate::{
    dequantize,
    spec::{Bands, Matrix, Vector},
};

/// Dimensions of a tensor, the innermost (contiguous) one first: a matrix is `[cols, rows]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Dimensions beyond `rank` are 1.
    dims: [u64; 4],
    rank: u8,
}

impl Shape {
    const fn new(dims: [u64; 4], rank: u8) -> Self {
        Self { dims, rank }
    }

    /// `None` unless there are 1 to 4 dimensions.
    fn of(dims: &[u64]) -> Option<Self> {
        let mut padded = [1; 4];
        padded.get_mut(..dims.len()).filter(|_| !dims.is_empty())?.copy_from_slice(dims);
        Some(Self::new(padded, dims.len() as u8))
    }

    /// The dimensions: 1 to 4 of them.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        self.dims.get(..usize::from(self.rank)).unwrap_or_default()
    }

    /// Four dimensions, padded with ones.
    #[must_use]
    pub const fn padded(&self) -> [u64; 4] {
        self.dims
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().product() // Checked when the file was read.
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.dims()).finish()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The description of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its name, for example `blk.0.attn_q.weight`.
    pub name: &'a str,
    /// Its dimensions.
    pub shape: Shape,
    /// The stored type. A file with a type that has no kernels can be listed; using such a tensor
    /// is an error.
    pub ty: Result<TensorType, UnknownTensorType>,
}

impl fmt::Display for TensorInfo<'_> {
    /// Type and shape: `Q8_0 [128, 320]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ty {
            Ok(ty) => write!(f, "{ty} {}", self.shape),
            Err(unknown) => write!(f, "{} {}", unknown.label(), self.shape),
        }
    }
}

/// A checked GGUF file: metadata by key and tensors by index or name.
///
/// A [split model](Self::open) is one value with the tensors of all its files.
///
/// # Examples
/// ```
/// use walla_model::Gguf;
/// # let file: &'static [u8] = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// let gguf = Gguf::from_static(file)?;
/// let name: Option<&str> = gguf.find("general.name")?;
/// assert_eq!(name, None);
/// for tensor in gguf.tensors() {
///     println!("{}: {tensor}", tensor.name);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gguf {
    bytes: Bytes,
    header: parse::Header,
    /// The other parts of a split model. Only their tensors are used.
    others: Vec<Self>,
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("bytes", &self.file_bytes())
            .field("parts", &self.parts())
            .field("entries", &self.header.entries.len())
            .field("tensors", &self.tensor_count())
            .finish_non_exhaustive()
    }
}

impl Gguf {
    /// Opens a file and reads its header: metadata and tensor table, some megabytes for a large
    /// vocabulary. Tensors are read from the file on request.
    ///
    /// Of a model that `gguf-split` split into `NAME-00001-of-00003.gguf` and so on, open the first
    /// part: the others, in the same folder, are opened with it. The next paragraph applies to each
    /// part.
    ///
    /// The value keeps the file open, so replacing the file by renaming (as package managers and
    /// downloaders do) and deleting it are harmless. A program that overwrites the file in place
    /// changes the data that is read later; [`keep`](Self::keep) can detect that. If a program
    /// shortens the file, reading a tensor is an error. If that is not acceptable, read the file
    /// into memory ([`from_bytes`](Self::from_bytes)).
    ///
    /// # Errors
    /// [`GgufError::NotAFile`] for a directory, a FIFO, a socket or a device, [`GgufError::Io`] if
    /// it cannot be opened or read, [`GgufError::Changed`] if its length changed while it was read,
    /// [`GgufError::Split`] if it is a part of a split model and not the first, or if the parts are
    /// incomplete or do not belong together, [`GgufError::Part`] if another part is not a valid
    /// GGUF file, any other [`GgufError`] if it is not a valid GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::open_part(path.as_ref())?.with_parts(path.as_ref())
    }

    fn open_part(path: &Path) -> Result<Self, GgufError> {
        Self::of_file(Arc::new(ModelFile::open(path)?))
    }

    fn of_file(file: Arc<ModelFile>) -> Result<Self, GgufError> {
        let (bytes, header) = Bytes::read_header(file)?;
        Ok(Self { bytes, header, others: Vec::new() })
    }

    /// Reads a file that is already in memory. Use an `Arc` to avoid a copy. A part of a split
    /// model is read without the others, so it has only its own tensors.
    ///
    /// # Errors
    /// [`GgufError`] if it is not a valid GGUF file.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self, GgufError> {
        Self::new(Bytes::Shared(bytes.into()))
    }

    /// Reads a file that is embedded in the program (`include_bytes!`).
    ///
    /// # Errors
    /// [`GgufError`] if it is not a valid GGUF file.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, GgufError> {
        Self::new(Bytes::Static(bytes))
    }

    /// Keeps the file open without its header in memory. It can be read again later if its contents
    /// are unchanged.
    ///
    /// # Errors
    /// [`GgufError::Io`] or [`GgufError::Changed`] if the file cannot be read any longer.
    pub fn keep(&self) -> Result<KeptGguf, GgufError> {
        KeptGguf::new(self)
    }

    fn new(bytes: Bytes) -> Result<Self, GgufError> {
        let header = parse::parse(bytes.header())?;
        Ok(Self { bytes, header, others: Vec::new() })
    }

    /// Number of files: 1, or the parts of a split model.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.others.len() + 1
    }

    /// The format's version: 2 or 3.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.header.version
    }

    /// Alignment of the tensors' data in the (first) file, in bytes. In memory the data may be
    /// aligned less.
    #[must_use]
    pub const fn alignment(&self) -> u64 {
        self.header.alignment
    }

    /// Length of the file in bytes; of all parts together.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files().map(|part| part.bytes.len()).sum()
    }

    /// All keys and values, in the file's order. Keys that are not UTF-8 are left out.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.header
            .entries
            .iter()
            .map(|entry| (entry.key.text(self.bytes.header()), self.value(entry.value)))
    }

    /// The value of a key; the first one if the key is duplicated.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.entries_of(key).next().map(|entry| self.value(entry.value))
    }

    /// The value of an optional key, as `T`.
    ///
    /// # Errors
    /// [`MetadataError::Unexpected`] if the value is not a `T`, [`MetadataError::Duplicate`] if the
    /// key has several values.
    pub fn find<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetadataError> {
        let mut entries = self.entries_of(key);
        let Some(entry) = entries.next() else { return Ok(None) };
        if entries.next().is_some() {
            return Err(MetadataError::Duplicate { key: key.to_owned() });
        }
        T::from_entry(key, self.value(entry.value)).map(Some)
    }

    /// All entries with a key, in the file's order.
    fn entries_of(&self, key: &str) -> impl Iterator<Item = &parse::Entry> {
        let bytes = self.bytes.header();
        let order = &self.header.entries_by_key;
        let entry = |&i: &u32| self.header.entries.get(i as usize);
        let key_of = move |i: &u32| entry(i).map(|e| e.key.text(bytes));
        let first = order.partition_point(|i| key_of(i) < Some(key));
        let end = order.partition_point(|i| key_of(i) <= Some(key));
        order.get(first..end).unwrap_or_default().iter().filter_map(entry)
    }

    /// The value of a required key, as `T`.
    ///
    /// # Errors
    /// [`MetadataError`] names the key, the expected type and the value found.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetadataError> {
        let missing = || MetadataError::Missing { key: key.to_owned(), expected: T::EXPECTED };
        self.find(key)?.ok_or_else(missing)
    }

    /// All tensors, in the order of the file, or of all parts; [`Matrix::tensor`] is an index into
    /// it.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        let tensors = self
            .files()
            .flat_map(|part| part.header.tensors.iter().map(move |tensor| part.info(tensor)));
        tensors.collect::<Vec<_>>().into_iter()
    }

    /// The tensor at `index`, or `None` beyond the end.
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<TensorInfo<'_>> {
        self.place(index).map(|(part, tensor)| part.info(tensor))
    }

    /// The index of the tensor named `name`.
    #[must_use]
    pub fn find_tensor(&self, name: &str) -> Option<usize> {
        let mut before = 0;
        for part in self.files() {
            if let Some(index) = part.find_own_tensor(name) {
                return Some(before + index);
            }
            before += part.header.tensors.len();
        }
        None
    }

    fn find_own_tensor(&self, name: &str) -> Option<usize> {
        let order = &self.header.tensors_by_name;
        let place = order.binary_search_by_key(&Some(name), |&i| {
            self.header.tensors.get(i as usize).map(|t| t.name.text(self.bytes.header()))
        });
        order.get(place.ok()?).map(|&i| i as usize)
    }

    /// This file and the other parts, in order.
    fn files(&self) -> impl Iterator<Item = &Self> {
        core::iter::once(self).chain(&self.others)
    }

    fn tensor_count(&self) -> usize {
        self.files().map(|part| part.header.tensors.len()).sum()
    }

    /// The tensor at `index` and its part.
    fn place(&self, index: usize) -> Option<(&Self, &parse::Tensor)> {
        let mut index = index;
        for part in self.files() {
            match part.header.tensors.get(index) {
                Some(tensor) => return Some((part, tensor)),
                None => index -= part.header.tensors.len(),
            }
        }
        None
    }

    /// The data of the tensor at `index`: rows without gaps, in the file's format. Does not read
    /// the data.
    ///
    /// # Errors
    /// [`TensorError`] if there is no such tensor or its type has no kernels.
    pub fn tensor_data(&self, index: usize) -> Result<TensorData<'_>, TensorError> {
        let (part, tensor, _) = self.usable(index)?;
        let name = tensor.name.text(part.bytes.header());
        // The header check ensured that the tensor is in the file. It may exceed a 32-bit address
        // space.
        let start = part.header.data_start + tensor.offset;
        let len = usize::try_from(tensor.bytes)
            .map_err(|_| part.out_of_range(tensor, format!("{} bytes in memory", tensor.bytes)))?;
        Ok(TensorData::new(&part.bytes, name, start, len))
    }

    /// The bytes of the tensor at `index`: borrowed if the file is in memory, otherwise read into
    /// memory.
    ///
    /// The bytes may be aligned less than [`Gguf::alignment`].
    ///
    /// # Errors
    /// [`TensorError`] if there is no such tensor, its type has no kernels, or the file cannot be
    /// read.
    pub fn tensor_bytes(&self, index: usize) -> Result<Cow<'_, [u8]>, TensorError> {
        self.tensor_data(index)?.to_bytes()
    }

    /// The rows of a matrix: `rows * ty.row_bytes(cols)` bytes. Does not read the data.
    ///
    /// # Errors
    /// [`TensorError`] if the matrix belongs to another file.
    pub fn matrix_data(&self, matrix: &Matrix) -> Result<TensorData<'_>, TensorError> {
        let (part, tensor, ty) = self.usable(matrix.tensor)?;
        let row = ty
            .row_bytes(matrix.cols)
            .filter(|_| ty == matrix.ty && tensor.shape.padded()[0] == matrix.cols as u64);
        let part_of = |row: usize, rows: usize| {
            let range = byte_range(matrix.first_row, rows, row)?;
            self.tensor_data(matrix.tensor).ok()?.part(range)
        };
        let banded = |row: usize, bands: Bands| {
            let count = matrix.rows.checked_div(bands.rows)?;
            // The last band may be followed by nothing.
            let rows = count.checked_sub(1)?.checked_mul(bands.stride)?.checked_add(bands.rows)?;
            let [band, stride, len] =
                [bands.rows, bands.stride, matrix.rows].map(|rows| rows.checked_mul(row));
            part_of(row, rows)?.banded(band?, stride?, len?)
        };
        let data = row.and_then(|row| match matrix.bands {
            Some(bands) => banded(row, bands),
            None => part_of(row, matrix.rows),
        });
        data.ok_or_else(|| {
            let (first, end) = (matrix.first_row, matrix.first_row.saturating_add(matrix.rows));
            let wanted = format!("rows {first}..{end} of {} {}", matrix.cols, matrix.ty);
            part.out_of_range(tensor, wanted)
        })
    }

    /// The bytes of a matrix: borrowed if the file is in memory, otherwise read into memory.
    ///
    /// # Errors
    /// [`TensorError`] if the matrix belongs to another file, or the file cannot be read.
    pub fn matrix_bytes(&self, matrix: &Matrix) -> Result<Cow<'_, [u8]>, TensorError> {
        self.matrix_data(matrix)?.to_bytes()
    }

    /// The elements of a vector times its [scale](Vector::scale), as `f32`.
    ///
    /// # Errors
    /// [`TensorError`] if the vector belongs to another file, or the file cannot be read.
    pub fn vector(&self, vector: &Vector) -> Result<Vec<f32>, TensorError> {
        let (part, tensor, ty) = self.usable(vector.tensor)?;
        let block = ty.block_elements();
        let whole = ty == vector.ty
            && vector.first.is_multiple_of(block)
            && vector.len.is_multiple_of(block);
        let range = byte_range(vector.first / block, vector.len / block, ty.block_bytes());
        let range = range.filter(|_| whole);
        let data = range.and_then(|range| self.tensor_data(vector.tensor).ok()?.part(range));
        let Some(data) = data else {
            let (first, end) = (vector.first, vector.first.saturating_add(vector.len));
            let wanted = format!("numbers {first}..{end} of {}", vector.ty);
            return Err(part.out_of_range(tensor, wanted));
        };
        let mut numbers = vec![0.0; vector.len];
        dequantize(ty, &data.to_bytes()?, &mut numbers);
        numbers.iter_mut().for_each(|number| *number *= vector.scale);
        Ok(numbers)
    }

    fn value(&self, stored: parse::Stored) -> Value<'_> {
        let bytes = self.bytes.header();
        match stored {
            parse::Stored::Scalar(element, raw) => raw
                .get(..element.bytes_min())
                .and_then(|raw| element.read(raw))
                .unwrap_or(Value::Bool(false)), // Unreachable: no string, at most 8 bytes.
            parse::Stored::Text(span) => match core::str::from_utf8(span.raw(bytes)) {
                Ok(text) => Value::String(text),
                Err(_) => Value::Unreadable(Unreadable::Text(span.raw(bytes))),
            },
            parse::Stored::Array { element, strings, len, payload } => {
                let table = match element {
                    Element::String => self.header.strings.get(usize::from(strings)),
                    _ => None,
                };
                let table = table.map(|t| (t.bounds.as_ref(), t.not_text)).unwrap_or_default();
                Value::Array(Array::new(element, len as usize, payload.raw(bytes), table))
            }
            parse::Stored::Skipped(span) => Value::Unreadable(Unreadable::Array(span.raw(bytes))),
        }
    }

    /// The description of a tensor of this part.
    fn info(&self, tensor: &parse::Tensor) -> TensorInfo<'_> {
        let name = tensor.name.text(self.bytes.header());
        TensorInfo { name, shape: tensor.shape, ty: TensorType::from_ggml(tensor.code) }
    }

    /// The part with the tensor at `index`, the tensor, and its type.
    fn usable(&self, index: usize) -> Result<(&Self, &parse::Tensor, TensorType), TensorError> {
        let tensors = self.tensor_count();
        let (part, tensor) = self.place(index).ok_or(TensorError::Index { index, tensors })?;
        let ty = TensorType::from_ggml(tensor.code).map_err(|source| TensorError::Type {
            tensor: part.info(tensor).name.to_owned(),
            source,
        })?;
        Ok((part, tensor, ty))
    }

    /// An error about a tensor of this part.
    fn out_of_range(&self, tensor: &parse::Tensor, wanted: String) -> TensorError {
        let info = self.info(tensor);
        TensorError::Range { tensor: info.name.to_owned(), wanted, found: info.to_string() }
    }
}

/// The byte range of `count` items of `bytes` bytes from item `first` on; `None` on overflow.
fn byte_range(first: usize, count: usize, bytes: usize) -> Option<Range<usize>> {
    let end = first.checked_add(count)?.checked_mul(bytes)?;
    Some(first.checked_mul(bytes)?..end)
}
