use std::{
    io,
    path::{Path, PathBuf},
};

use super::{FileKind, Foreign, PartError};

/// Why a file is not a readable GGUF file.
///
/// [`Io`](Self::Io), [`Changed`](Self::Changed), [`Modified`](Self::Modified),
/// [`NotAFile`](Self::NotAFile), [`Split`](Self::Split) and [`Foreign`](Self::Foreign) do not
/// concern the contents of one GGUF file. All other variants mean that the file is damaged or that
/// a broken tool wrote it: download or convert it again. Positions are bytes from the start of the
/// file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file cannot be opened or read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
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
        /// The part that changed.
        what: &'static str,
    },
    /// A version that this crate does not read: convert the model again with a newer tool.
    #[error("GGUF version {0}, expected 2 or 3: convert the model again with a current tool")]
    Version(u32),
    /// The path is not a regular file: specify the model file.
    #[error("{path}: {kind}", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of file.
        kind: FileKind,
    },
    /// The parts of a split model are incomplete, do not belong together, or the path is not that
    /// of the first one.
    #[error("{path}: {source}", path = path.display())]
    Split {
        /// The part with the defect.
        path: PathBuf,
        /// The defect.
        source: PartError,
    },
    /// A part of a split model, after the first, is not a readable GGUF file.
    #[error("{path}: {source}", path = path.display())]
    Part {
        /// The part.
        path: PathBuf,
        /// The defect.
        source: Box<Self>,
    },
    /// A file of another format: get a GGUF file instead.
    #[error("not a GGUF file but {0}")]
    Foreign(Foreign),
    /// The first four bytes are not the magic number.
    #[error("not a GGUF file: it starts with {0:02x?}, expected 47 47 55 46 (\"GGUF\")")]
    Magic([u8; 4]),
    /// A file for big-endian machines: convert the model again.
    #[error("a big-endian GGUF file, expected little-endian: convert the model again")]
    BigEndian,
    /// The file ends before the announced part.
    #[error(
        "{what} at byte {at} needs {needed} bytes, {remaining} remain in the file, which is cut \
         off or damaged: download it again"
    )]
    Truncated {
        /// The part.
        what: &'static str,
        /// Position of the part.
        at: u64,
        /// Minimum size of the part, in bytes.
        needed: u64,
        /// Bytes that remain in the file.
        remaining: u64,
    },
    /// A count or length is out of range.
    #[error("{what} at byte {at} is {found}, at most {max}")]
    TooLarge {
        /// The count or length.
        what: &'static str,
        /// Position of the number.
        at: u64,
        /// The number in the file.
        found: u64,
        /// The maximum.
        max: u64,
    },
    /// A tensor's name is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    Text {
        /// The text.
        what: &'static str,
        /// Position of the text.
        at: u64,
    },
    /// A tensor has no name.
    #[error("{what} at byte {at} is empty")]
    Unnamed {
        /// Tensor name.
        what: &'static str,
        /// Position of the name.
        at: u64,
    },
    /// The value of a key is truncated or too large, or its type is unknown; or `general.alignment`
    /// has two values. Other duplicate keys are an error only for a reader that uses them
    /// ([`MetadataError::Duplicate`]), and for [`Writer`](super::Writer).
    #[error("key {key:?}: {reason}")]
    Key {
        /// The key; truncated if it is long.
        key: String,
        /// The defect.
        reason: String,
    },
    /// The description of a tensor is truncated, too large or impossible, its data is not in the
    /// file, or another tensor has its name.
    #[error("tensor {tensor:?}: {reason}")]
    Tensor {
        /// The name.
        tensor: String,
        /// The defect.
        reason: String,
    },
    /// `general.alignment` is invalid.
    #[error("general.alignment is {found}, expected a power of two in 8..=1048576 as UINT32")]
    Alignment {
        /// The value in the file.
        found: String,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
    },
}

/// Why metadata does not have the requested form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The file does not contain the key.
    #[error("key {key:?} is missing, expected {expected}")]
    Missing {
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The value has another type, or does not fit.
    #[error("key {key:?} holds {found}, expected {expected}")]
    Unexpected {
        /// The key.
        key: String,
        /// The expected type.
        expected: &'static str,
        /// Type, and for numbers the value.
        found: String,
    },
    /// The key has two values.
    #[error("key {key:?} appears twice, expected one value")]
    Duplicate {
        /// The key.
        key: String,
    },
}

/// Why a tensor's data cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The index exceeds the number of tensors: the [`Matrix`](crate::spec::Matrix) belongs to
    /// another file.
    #[error("tensor {index} of a file of {tensors}")]
    Index {
        /// The requested index.
        index: usize,
        /// Number of tensors in the file.
        tensors: usize,
    },
    /// The type has no kernels.
    #[error("tensor {tensor:?}: {source}")]
    Type {
        /// The name.
        tensor: String,
        /// The type's code.
        source: walla_types::UnknownTensorType,
    },
    /// The tensor does not contain the requested rows or elements: the specification belongs to
    /// another file.
    #[error("tensor {tensor:?} of {found} does not hold {wanted}")]
    Range {
        /// The name.
        tensor: String,
        /// The requested rows or elements.
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
    /// The file cannot be read any longer.
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
    /// The path of the file, if the message already contains it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Changed { path, .. }
            | Self::Modified { path, .. }
            | Self::NotAFile { path, .. }
            | Self::Split { path, .. }
            | Self::Part { path, .. } => Some(path),
            _ => None,
        }
    }

    /// A defect of a key.
    pub(super) fn of_key(key: &[u8], reason: impl ToString) -> Self {
        Self::Key { key: shown(key), reason: reason.to_string() }
    }

    /// A defect of a tensor.
    pub(super) fn of_tensor(tensor: &str, reason: impl ToString) -> Self {
        Self::Tensor { tensor: tensor.to_owned(), reason: reason.to_string() }
    }

    /// Whether a read ended early: the error names no key and no tensor.
    pub(super) const fn is_of_read(&self) -> bool {
        matches!(self, Self::Truncated { .. } | Self::TooLarge { .. })
    }
}

impl TensorError {
    /// The path of the file, if the message already contains it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Truncated { path, .. } | Self::Read { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// Maximum number of characters of a key in a message.
const MAX_SHOWN: usize = 128;

/// A key for messages: with U+FFFD for bytes that are not UTF-8, and truncated if it is long.
pub(super) fn shown(key: &[u8]) -> String {
    // A character has at most 4 bytes.
    let head = key.get(..4 * MAX_SHOWN + 4).unwrap_or(key);
    let text = String::from_utf8_lossy(head);
    let mut shown: String = text.chars().take(MAX_SHOWN).collect();
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
