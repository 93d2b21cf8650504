use std::io;
use std::path::{Path, PathBuf};

use super::MAX_TEXT_BYTES;
use crate::options::OptionsError;

/// Why a model was not pulled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// Correct the name.
    #[error("{name:?} is no name of a model: {reason} (expected OWNER/MODEL[:TAG])")]
    Name {
        /// As the caller wrote it.
        name: String,
        /// The defect.
        reason: &'static str,
    },
    /// Correct the address of the registry, which is not repeated: it may contain a password.
    #[error("the address of the registry {0}")]
    Registry(String),
    /// Use `https`: a key is not sent without encryption to another machine.
    #[error("a key is sent to another machine with https only")]
    PlainKey,
    /// The key cannot be read.
    #[error("{0}")]
    Key(String),
    /// TLS or the proxy cannot be set up.
    #[error(transparent)]
    Client(#[from] OptionsError),
    /// Correct the name or the tag, or name another registry.
    #[error("{registry} has no model {name} (HTTP 404): check the name and the tag")]
    NotFound {
        /// With its tag.
        name: String,
        /// Host and port.
        registry: String,
    },
    /// Correct the name, or use a key with access to the model.
    #[error(
        "{registry} refuses {name} (HTTP {status}: {message}): check the name; a private model, or \
         one whose terms must be accepted, needs a key"
    )]
    Unauthorized {
        /// With its tag.
        name: String,
        /// Host and port.
        registry: String,
        /// 401 or 403.
        status: u16,
        /// Of the server.
        message: String,
    },
    /// The server refuses the request; 408, 429 and 5xx in all attempts: try again later.
    #[error("{host} answers with HTTP {status}: {message}")]
    Status {
        /// Host and port, behind redirects.
        host: String,
        /// Of HTTP.
        status: u16,
        /// Of the server.
        message: String,
    },
    /// Try again later. The partial file is continued.
    #[error("the connection to {host} failed: {reason}")]
    Connection {
        /// Host and port, behind redirects.
        host: String,
        /// The cause.
        reason: String,
    },
    /// The address is not that of a registry, or a login page answers for it.
    #[error("{registry} sends no manifest of a model: {reason}")]
    NotAManifest {
        /// Host and port.
        registry: String,
        /// The defect.
        reason: String,
    },
    /// A manifest or licence is too long.
    #[error("a text of the registry is longer than {MAX_TEXT_BYTES} bytes")]
    TooLong,
    /// Choose another tag.
    #[error("the manifest names {0} files of weights, and walla pulls models of one")]
    NumberOfFiles(usize),
    /// Only SHA-256 is known.
    #[error("the manifest has the digest {0:?}, which is no SHA-256")]
    UnknownDigest(String),
    /// The server sends another file.
    #[error("the server sends another file than the manifest names: {0}")]
    WrongContent(String),
    /// The download was damaged, or the registry is wrong about it. The partial file is removed.
    #[error(
        "the file has the SHA-256 {found}, and the manifest names {expected}: it is removed; if \
         the next attempt ends like this, the server sends another file than the registry names"
    )]
    WrongDigest {
        /// In hexadecimal digits.
        expected: String,
        /// In hexadecimal digits.
        found: String,
    },
    /// Make room, or choose another folder.
    #[error(
        "{folder} has {free} free bytes, and {needed} more are needed: make room, or choose \
         another folder",
        folder = folder.display()
    )]
    NoSpace {
        /// Of the files.
        folder: PathBuf,
        /// Without the partial file.
        needed: u64,
        /// For this user.
        free: u64,
    },
    /// Move the file, or allow that it is replaced.
    #[error("{path} exists with other content", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Wait for the other process.
    #[error("{path} is being downloaded by another process", path = path.display())]
    InUse {
        /// The partial file.
        path: PathBuf,
    },
    /// A file cannot be read or written. The partial file stays.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Of the system.
        source: io::Error,
    },
}

impl PullError {
    /// Adds the path to an error.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}
