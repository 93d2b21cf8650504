use std::io;
use std::path::PathBuf;

/// Why speech cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VoiceError {
    /// A file cannot be read: check the path.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file is damaged, or no model of the expected kind: use another one.
    #[error("{}: {reason}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// A setting is out of range.
    #[error("{name} is {value}, expected {expected}")]
    Option {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The range.
        expected: String,
    },
    /// The network failed on this input. Other inputs may succeed.
    #[error("the network failed: {0}")]
    Failed(String),
    /// The text or the recording is longer than the engine takes: divide it.
    #[error("{what} too long: {length}, at most {max}")]
    TooLong {
        /// The input.
        what: &'static str,
        /// Its length, with its unit.
        length: String,
        /// The longest, with its unit.
        max: String,
    },
    /// Too many mouths and ears are created at once: try again in the next frame.
    #[error("too many mouths and ears are created at once")]
    Busy,
    /// The system starts no thread.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
    /// The thread of the voice has ended.
    #[error("the voice thread has ended")]
    Stopped,
}

impl VoiceError {
    /// An error of a file's content.
    #[cfg(feature = "builtin")]
    pub(crate) fn model(path: &std::path::Path, reason: impl ToString) -> Self {
        Self::Model { path: path.to_owned(), reason: reason.to_string() }
    }
}
