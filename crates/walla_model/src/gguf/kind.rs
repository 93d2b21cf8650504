//! Kinds of files; opens a regular file without blocking and without side effects.

use std::{
    fmt,
    fs::{self, File, FileType},
    io,
    path::Path,
};

use super::{error::GgufError, split::PartName};

/// Maximum number of model files of a folder that a message lists.
const MAX_NAMED: usize = 3;
/// Maximum number of folder entries that are examined for a message.
const MAX_ENTRIES: usize = 1_000;

/// The kind of a path's target that is not a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A directory.
    Directory {
        /// Names of some GGUF files in it; of a split model only the first part, if it is there.
        models: Vec<String>,
    },
    /// A FIFO (named pipe).
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Any other target that is not a regular file.
    Other,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { models } if models.is_empty() => {
                f.write_str("this is a directory without GGUF files: name a model file")
            }
            Self::Directory { models } if let [part] = &models[..] && is_first(part) => write!(
                f,
                "this is a directory with the parts of one model: name the first part ({part})"
            ),
            Self::Directory { models } => {
                write!(f, "this is a directory: name the model file in it ({})", models.join(", "))
            }
            Self::Fifo => f.write_str(
                "this is a FIFO (named pipe), expected a regular file: write its data to a file first",
            ),
            Self::Socket => f.write_str("this is a socket, expected a regular file"),
            Self::Device => f.write_str("this is a device, expected a regular file"),
            Self::Other => f.write_str("this is no regular file"),
        }
    }
}

/// Opens a regular file for reading.
///
/// Opening a FIFO blocks until a writer opens it, and opening a device can have side effects, so
/// the type is checked first. It is checked again on the open file, because the path can be
/// replaced in between; `O_NONBLOCK` prevents blocking in that case.
pub(super) fn open(path: &Path) -> Result<File, GgufError> {
    let io = |source| GgufError::Io { path: path.to_owned(), source };
    refuse(path, fs::metadata(path).map_err(io)?.file_type())?;
    let file = open_without_waiting(path).map_err(io)?;
    refuse(path, file.metadata().map_err(io)?.file_type())?;
    Ok(file)
}

#[cfg(unix)]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(not(unix))]
fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

fn refuse(path: &Path, ty: FileType) -> Result<(), GgufError> {
    if ty.is_file() {
        return Ok(());
    }
    let kind = if ty.is_dir() { FileKind::Directory { models: models(path) } } else { special(ty) };
    Err(GgufError::NotAFile { path: path.to_owned(), kind })
}

#[cfg(unix)]
fn special(ty: FileType) -> FileKind {
    use std::os::unix::fs::FileTypeExt as _;
    if ty.is_fifo() {
        FileKind::Fifo
    } else if ty.is_socket() {
        FileKind::Socket
    } else if ty.is_char_device() || ty.is_block_device() {
        FileKind::Device
    } else {
        FileKind::Other
    }
}

#[cfg(not(unix))]
fn special(_: FileType) -> FileKind {
    FileKind::Other
}

fn is_later(name: &str) -> bool {
    PartName::parse(name).is_some_and(|name| name.part > 1)
}

fn is_first(name: &str) -> bool {
    PartName::parse(name).is_some_and(|name| name.part == 1)
}

/// Names of some GGUF files in a folder, sorted; without later parts of split models, unless there
/// is nothing else.
fn models(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.take(MAX_ENTRIES).flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let mut models: Vec<_> = names.filter(|name| name.ends_with(".gguf")).collect();
    models.sort_unstable();
    if models.iter().any(|name| !is_later(name)) {
        models.retain(|name| !is_later(name));
    }
    models.truncate(MAX_NAMED);
    models
}
