//! Positioned reads of an open file.
//!
//! The reader never maps a file: another process can shorten a mapped file, and an access to a lost
//! page raises `SIGBUS`. A positioned read of lost bytes returns fewer bytes, which is an error
//! value. It uses no file cursor, so threads can read at the same time.

use std::{
    fs::File,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{GgufError, kind};

/// An open model file. The handle refers to the file, not to its path: renaming, replacing or
/// deleting the path has no effect.
#[derive(Debug)]
pub(super) struct ModelFile {
    file: File,
    path: PathBuf,
}

/// Why a range of a file could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The operating system refused.
    Io(io::Error),
    /// The file ends before the end of the range.
    End,
}

impl ModelFile {
    /// Opens a regular file. Never blocks on another kind of file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Ok(Self { file: kind::open(path)?, path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An I/O error of this file.
    pub fn io(&self, source: io::Error) -> GgufError {
        GgufError::Io { path: self.path.clone(), source }
    }

    /// The current length in bytes.
    pub fn len(&self) -> Result<u64, GgufError> {
        Ok(self.file.metadata().map_err(|source| self.io(source))?.len())
    }

    /// The time of the last modification, if the system records it.
    pub fn modified(&self) -> Option<SystemTime> {
        self.file.metadata().ok()?.modified().ok()
    }

    /// Fills `out` with the bytes from `offset` on.
    pub fn read_exact_at(&self, mut offset: u64, mut out: &mut [u8]) -> Result<(), ReadError> {
        while !out.is_empty() {
            match read_at(&self.file, out, offset) {
                Ok(0) => return Err(ReadError::End),
                Ok(count) => {
                    offset += count as u64;
                    out = out.get_mut(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError::Io(error)),
            }
        }
        Ok(())
    }

    /// [`read_exact_at`](Self::read_exact_at) for a file that had `before` bytes when it was
    /// opened: an early end is [`GgufError::Changed`].
    pub fn read_unchanged(
        &self,
        before: u64,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), GgufError> {
        match self.read_exact_at(offset, out) {
            Ok(()) => Ok(()),
            Err(ReadError::Io(source)) => Err(self.io(source)),
            Err(ReadError::End) => {
                Err(GgufError::Changed { path: self.path.clone(), before, after: self.len()? })
            }
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

/// The call also moves the file cursor, which is not used here.
#[cfg(windows)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}

#[cfg(not(any(unix, windows)))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(ErrorKind::Unsupported.into())
}

/// Grows `buffer` to at least `len` bytes. Returns an error if memory is exhausted, instead of
/// aborting the process.
pub(super) fn grow(buffer: &mut Vec<u8>, len: usize) -> io::Result<()> {
    if buffer.len() < len {
        buffer
            .try_reserve_exact(len - buffer.len())
            .map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        buffer.resize(len, 0);
    }
    Ok(())
}
