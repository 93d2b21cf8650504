use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Element, FileKind, Foreign, Shape};

/// Why a file is not a GGUF file that can be read.
///
/// [`Io`](Self::Io), [`Changed`](Self::Changed), [`Modified`](Self::Modified),
/// [`NotAFile`](Self::NotAFile) and [`Foreign`](Self::Foreign) are not about the contents of a GGUF
/// file; all other variants mean that the file is damaged or was made by a broken tool: download or
/// convert it again. Positions are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file cannot be opened or read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another program changed the length of the file while it was in use: try again when it is
    /// complete.
    #[error(
        "{path} changed while it was in use: {before} bytes became {after}",
        path = path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Length when it was opened, in bytes.
        before: u64,
        /// Length later, in bytes.
        after: u64,
    },
    /// Another program overwrote the file in place while it was in use. Replace model files by
    /// renaming a new one over the old one.
    #[error("{path} was overwritten while it was in use: {what} changed", path = path.display())]
    Modified {
        /// The file.
        path: PathBuf,
        /// The part that is not the same.
        what: &'static str,
    },
    /// A version that this crate does not read: convert the model again with a newer tool.
    #[error("GGUF version {0}, expected 2 or 3")]
    Version(u32),
    /// The path names no regular file: name the model file itself.
    #[error("{path}: {kind}", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of its target.
        kind: FileKind,
    },
    /// A file of another format: get a GGUF file instead.
    #[error("not a GGUF file but {0}")]
    Foreign(Foreign),
    /// The first four bytes are something else.
    #[error("not a GGUF file: it starts with {0:02x?}, expected 47 47 55 46 (\"GGUF\")")]
    Magic([u8; 4]),
    /// A file for big-endian machines: convert the model again.
    #[error("a big-endian GGUF file, expected little-endian")]
    BigEndian,
    /// The file ends before the part that it announces.
    #[error("{what} at byte {at} needs {needed} bytes, {remaining} remain in the file")]
    Truncated {
        /// The part.
        what: &'static str,
        /// Where it starts.
        at: u64,
        /// What it takes at least.
        needed: u64,
        /// What there is.
        remaining: u64,
    },
    /// A count or length beyond any sensible file.
    #[error("{what} at byte {at} is {found}, at most {max}")]
    TooLarge {
        /// The count or length.
        what: &'static str,
        /// Where it stands.
        at: u64,
        /// What the file says.
        found: u64,
        /// What is allowed.
        max: u64,
    },
    /// The value of a key is cut off or too large.
    #[error("key {key:?}: {source}")]
    Value {
        /// The key; its beginning if it is long.
        key: String,
        /// The defect.
        source: Box<Self>,
    },
    /// The description of a tensor is cut off or too large.
    #[error("tensor {tensor:?}: {source}")]
    TensorInfo {
        /// The name.
        tensor: String,
        /// The defect.
        source: Box<Self>,
    },
    /// A tensor's name that is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    Text {
        /// The text.
        what: &'static str,
        /// Where it starts.
        at: u64,
    },
    /// A tensor without a name.
    #[error("{what} at byte {at} is empty")]
    Unnamed {
        /// Tensor name.
        what: &'static str,
        /// Where it stands.
        at: u64,
    },
    /// A code that is no metadata type.
    #[error("key {key:?}: {code} is no metadata type (0 to 12)")]
    ValueType {
        /// The key.
        key: String,
        /// The code.
        code: u32,
    },
    /// Arrays within arrays, too deep to skip.
    #[error("key {key:?}: arrays are nested more than {levels_max} levels deep")]
    NestedArray {
        /// The key.
        key: String,
        /// Most levels that are skipped.
        levels_max: u32,
    },
    /// `general.alignment` has two values. Other keys with two values are an error only for a
    /// reader that uses them ([`MetadataError::Duplicate`]), and for [`Writer`](super::Writer).
    #[error("key {key:?} appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// `general.alignment` is unusable.
    #[error("general.alignment is {found}, expected a power of two in 8..=1048576 as UINT32")]
    Alignment {
        /// What the file says.
        found: String,
    },
    /// One name for two tensors.
    #[error("tensor {tensor:?} appears twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A number of dimensions outside `1..=4`.
    #[error("tensor {tensor:?} has {found} dimensions, expected 1 to 4")]
    Dimensions {
        /// The name.
        tensor: String,
        /// What the file says.
        found: u32,
    },
    /// A dimension of zero, or sizes whose product does not fit.
    #[error("tensor {tensor:?} has shape {shape}: {reason}")]
    Shape {
        /// The name.
        tensor: String,
        /// The dimensions as they stand.
        shape: Shape,
        /// What is wrong.
        reason: &'static str,
    },
    /// A row that is no whole number of blocks.
    #[error(
        "tensor {tensor:?}: rows of {row} numbers are no whole number of {block}-number blocks"
    )]
    PartialBlock {
        /// The name.
        tensor: String,
        /// Numbers in a row.
        row: u64,
        /// Numbers in a block of its type.
        block: u64,
    },
    /// A tensor whose data starts off the alignment.
    #[error("tensor {tensor:?}: offset {offset} is no multiple of the alignment {alignment}")]
    Unaligned {
        /// The name.
        tensor: String,
        /// From the start of the data, in bytes.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor whose data is not in the file: it was cut off, probably by an interrupted download.
    #[error(
        "tensor {tensor:?}: {needed} bytes at offset {offset} of the data, which has {available}: \
         the file is cut off, download it again"
    )]
    Outside {
        /// The name.
        tensor: String,
        /// From the start of the data, in bytes.
        offset: u64,
        /// What the tensor takes, in bytes.
        needed: u64,
        /// Bytes of data in the file.
        available: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
}

/// Why metadata is not what the caller asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The file does not have the key.
    #[error("key {key:?} is missing, expected {expected}")]
    Missing {
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The value has another type, or a number does not fit.
    #[error("key {key:?} holds {found}, expected {expected}")]
    Unexpected {
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
        /// Type and, of numbers, value.
        found: String,
    },
    /// The key has two values.
    #[error("key {key:?} appears twice, expected one value")]
    Duplicate {
        /// The key.
        key: String,
    },
}

/// Why a tensor's numbers cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// An index beyond the file's tensors: the [`Matrix`](crate::spec::Matrix) belongs to another
    /// file.
    #[error("tensor {index} of a file of {tensors}")]
    Index {
        /// What was asked for.
        index: usize,
        /// Tensors in the file.
        tensors: usize,
    },
    /// A type without kernels.
    #[error("tensor {tensor:?}: {source}")]
    Type {
        /// The name.
        tensor: String,
        /// The type's code.
        source: walla_types::UnknownTensorType,
    },
    /// Rows or numbers that the tensor does not have: the specification belongs to another file.
    #[error("tensor {tensor:?} of {found} does not hold {wanted}")]
    Range {
        /// The name.
        tensor: String,
        /// What was asked for.
        wanted: String,
        /// The tensor's type and shape.
        found: String,
    },
    /// The file was shortened after it was opened: try again when it is complete.
    #[error(
        "{path}: tensor {tensor:?} ends at byte {end}, the file has {file_bytes} now: \
         it was shortened after it was opened",
        path = path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// End of the bytes that were read, from the start of the file.
        end: u64,
        /// Length of the file now, in bytes.
        file_bytes: u64,
    },
    /// The file cannot be read any more.
    #[error("{path}: tensor {tensor:?}: {reason}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// The kind of error.
        kind: io::ErrorKind,
        /// The operating system's message.
        reason: String,
    },
}

impl GgufError {
    /// The file, where the message names it already.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Changed { path, .. }
            | Self::Modified { path, .. }
            | Self::NotAFile { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Adds the key to an error about its value that does not name it.
    pub(super) fn of_key(self, key: &[u8]) -> Self {
        match self {
            Self::Truncated { .. } | Self::TooLarge { .. } => {
                Self::Value { key: shown(key), source: Box::new(self) }
            }
            named => named,
        }
    }

    /// Adds the tensor to an error about its description that does not name it.
    pub(super) fn of_tensor(self, tensor: &str) -> Self {
        match self {
            Self::Truncated { .. } | Self::TooLarge { .. } => {
                Self::TensorInfo { tensor: tensor.to_owned(), source: Box::new(self) }
            }
            named => named,
        }
    }
}

impl TensorError {
    /// The file, where the message names it already.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Truncated { path, .. } | Self::Read { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// Most characters of a key in a message.
const SHOWN_MAX: usize = 128;

/// A key for messages: with U+FFFD for bytes that are not UTF-8, and cut off if it is long.
pub(super) fn shown(key: &[u8]) -> String {
    // A character has at most 4 bytes.
    let head = key.get(..4 * SHOWN_MAX + 4).unwrap_or(key);
    let text = String::from_utf8_lossy(head);
    let mut shown: String = text.chars().take(SHOWN_MAX).collect();
    if shown.len() < text.len() || head.len() < key.len() {
        shown.push('…');
    }
    shown
}

impl MetadataError {
    pub(super) fn unexpected(key: &str, expected: &'static str, found: String) -> Self {
        Self::Unexpected { key: key.to_owned(), expected, found }
    }
}

impl core::fmt::Display for Element {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
