use std::io;
use std::path::PathBuf;

/// Reason why a file with the cache of an agent cannot be written, read or used. The agent's
/// conversation is evaluated then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvFileError {
    /// The system refused to open, read or write the file.
    #[error("{path}: {message}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Kind of the error.
        kind: io::ErrorKind,
        /// The system's message.
        message: String,
    },
    /// A directory, a FIFO or a device.
    #[error("{path}: not a regular file", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file does not begin as a cache file. A save does not replace it.
    #[error("not a file with the cache of an agent")]
    NotACacheFile,
    /// A file of another version of walla.
    #[error("version {found} of the format, expected {expected}")]
    OtherVersion {
        /// Version of the file.
        found: u32,
        /// Version of this program.
        expected: u32,
    },
    /// The file is truncated, or something follows it.
    #[error("the file has {found} bytes, expected {expected}")]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes by its header; the minimum if the header is incomplete.
        expected: u64,
    },
    /// Bytes have changed since the file was written.
    #[error("the checksum of the {part} does not match")]
    Checksum {
        /// The header or the contents.
        part: &'static str,
    },
    /// A number in the file is impossible. A damaged file has [another](Self::Checksum) error, so
    /// the file was made like this.
    #[error("invalid {0}")]
    Invalid(&'static str),
    /// The cache of another model, or of the same model with other weights.
    #[error("the cache of another model")]
    OtherModel {
        /// Digest of the model in the file.
        found: u64,
        /// Digest of the engine's model.
        expected: u64,
    },
    /// The cache of another architecture.
    #[error("the cache of architecture {found}, expected {expected}")]
    OtherArchitecture {
        /// Architecture in the file.
        found: String,
        /// The engine's.
        expected: String,
    },
    /// The positions are rotated by other factors, because the engine has another context length.
    #[error("the cache of another context length, which changes the rotation of positions")]
    OtherRotation,
    /// Keys and values of another type ([`EngineOptions::kv_type`](crate::EngineOptions::kv_type)).
    #[error("keys and values of type {found}, expected {expected}")]
    OtherKvType {
        /// Type in the file.
        found: &'static str,
        /// The engine's.
        expected: &'static str,
    },
    /// The cache of another kind of device, or of pages of another size.
    #[error("the cache of a device with the layout {found}, expected {expected}")]
    OtherLayout {
        /// Layout in the file.
        found: String,
        /// The device's.
        expected: String,
    },
    /// More tokens than the context of the engine.
    #[error("{tokens} tokens, the context has {context_tokens}")]
    TooManyTokens {
        /// Tokens in the file.
        tokens: u32,
        /// Tokens of the context.
        context_tokens: u32,
    },
    /// Keys, values or states that are infinite, no numbers, or larger than any that a model
    /// computes (65,504; states 2^24).
    #[error("keys, values or states that are not finite or too large")]
    NotFinite,
    /// There is no memory for the contents.
    #[error("no memory for {bytes} bytes")]
    NoMemory {
        /// Bytes of the contents.
        bytes: usize,
    },
}
