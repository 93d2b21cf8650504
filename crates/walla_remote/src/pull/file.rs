//! The partial file, and digests of files.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use walla_runtime::replace::put;

use super::registry::Layer;
use super::{Events, PullError, PullEvent};

/// Bytes that are read at once, and between two events.
const READ_BYTES: usize = 1 << 20;

/// Attempts to lock a file that other processes rename and remove.
const MAX_LOCK_ATTEMPTS: u32 = 100;

/// A file that is being downloaded. It is locked until it is dropped, and removed then if it is
/// empty.
#[derive(Debug)]
pub(super) struct PartFile {
    file: File,
    path: PathBuf,
    /// Of the first `bytes` bytes.
    hash: Hash,
    bytes: u64,
}

impl PartFile {
    /// Opens or creates the file, and locks it.
    pub fn lock(path: &Path) -> Result<Self, PullError> {
        let io_error = PullError::io(path);
        for _ in 0..MAX_LOCK_ATTEMPTS {
            if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
                // Opening a pipe would wait, and a link leads to a file of another name.
                return Err(io_error(io::Error::new(io::ErrorKind::InvalidInput, "not a file")));
            }
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.open(path).map_err(&io_error)?;
            // Some file systems have no locks.
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                return Err(PullError::InUse { path: path.to_owned() });
            }
            // Another process may have renamed or removed the file before it was locked here.
            if has_name(&file, path) {
                return Ok(Self { file, path: path.to_owned(), hash: Hash::new(), bytes: 0 });
            }
        }
        Err(PullError::InUse { path: path.to_owned() })
    }

    /// Reads the bytes of earlier calls; a file that is longer than `size` is emptied.
    pub fn read_whole(&mut self, size: u64, events: Events<'_>) -> Result<(), PullError> {
        if self.length()? > size {
            return self.restart();
        }
        let read = Hash::read(&mut self.file, size, events);
        (self.hash, self.bytes) = read.map_err(PullError::io(&self.path))?;
        Ok(())
    }

    /// Bytes that have been read or appended.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The SHA-256 of these bytes, in hexadecimal digits.
    pub fn digest(&self) -> String {
        self.hash.hex()
    }

    pub fn append(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        if let Err(error) = self.file.write_all(bytes) {
            // A part of them may be written: the next attempt begins behind the known ones.
            let _emptied = self.file.set_len(self.bytes);
            let _rewound = self.file.seek(io::SeekFrom::Start(self.bytes));
            return Err(PullError::io(&self.path)(error));
        }
        self.hash.0.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Empties the file.
    pub fn restart(&mut self) -> Result<(), PullError> {
        (self.hash, self.bytes) = (Hash::new(), 0);
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(PullError::io(&self.path))
    }

    /// Checks that the rest of a file of `size` bytes fits on the disk, on systems that report its
    /// free space.
    pub fn check_space(&self, size: u64, folder: &Path) -> Result<(), PullError> {
        let needed = size.saturating_sub(self.length()?);
        match free_bytes(folder) {
            Some(free) if free < needed => {
                Err(PullError::NoSpace { folder: folder.to_owned(), needed, free })
            }
            _ => Ok(()),
        }
    }

    /// Stores the file, and gives it its name at once.
    pub fn put(&self, path: &Path, force: bool) -> Result<(), PullError> {
        self.file.sync_all().map_err(PullError::io(&self.path))?;
        if !force {
            // Reserves the name, which another program may have used since it was checked.
            File::create_new(path).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => PullError::Exists { path: path.to_owned() },
                _ => PullError::io(path)(error),
            })?;
        }
        put(&self.path, path).map_err(|error| {
            if !force {
                let _removed = fs::remove_file(path);
            }
            PullError::io(path)(error)
        })
    }

    fn length(&self) -> Result<u64, PullError> {
        Ok(self.file.metadata().map_err(PullError::io(&self.path))?.len())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.length().is_ok_and(|length| length == 0) {
            let _removed = fs::remove_file(&self.path);
        }
    }
}

/// Whether the path still leads to the file.
#[cfg(unix)]
fn has_name(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(file), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    (file.dev(), file.ino()) == (named.dev(), named.ino())
}

#[cfg(not(unix))]
fn has_name(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// Bytes that this user can write to the folder's disk.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Whether a file has the content of a layer.
pub(super) fn has_digest(path: &Path, layer: &Layer, events: Events<'_>) -> io::Result<bool> {
    let (hash, bytes) = Hash::read(&mut File::open(path)?, layer.size, events)?;
    Ok(bytes == layer.size && hash.hex() == layer.sha256)
}

/// An incremental SHA-256.
pub(super) struct Hash(Context);

impl Hash {
    fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    /// Of some bytes, in hexadecimal digits.
    pub fn of(bytes: &[u8]) -> String {
        let mut hash = Self::new();
        hash.0.update(bytes);
        hash.hex()
    }

    /// Of a file of about `total` bytes.
    fn read(file: &mut File, total: u64, events: Events<'_>) -> io::Result<(Self, u64)> {
        let (mut hash, mut done, mut buffer) = (Self::new(), 0, vec![0; READ_BYTES]);
        loop {
            let count = match file.read(&mut buffer) {
                Ok(0) => return Ok((hash, done)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            hash.0.update(&buffer[..count]);
            done += count as u64;
            events(PullEvent::Bytes { done, total });
        }
    }

    fn hex(&self) -> String {
        use std::fmt::Write as _;
        self.0.clone().finish().as_ref().iter().fold(String::new(), |mut text, byte| {
            let _infallible = write!(text, "{byte:02x}");
            text
        })
    }
}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on a full disk: the partial file stays as it was, for the next call.
    #[test]
    fn a_failed_write_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        let mut part = PartFile::lock(&path).unwrap();
        part.append(b"abc").unwrap();
        let digest = part.digest();
        let writable = std::mem::replace(&mut part.file, File::open(&path).unwrap());
        let error = part.append(b"def").unwrap_err();
        assert!(matches!(&error, PullError::Io { path: of, .. } if *of == path), "{error}");
        assert_eq!((part.bytes(), part.digest()), (3, digest));
        drop((part, writable));
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        let mut part = PartFile::lock(&path).unwrap();
        part.read_whole(6, &mut |_| {}).unwrap();
        part.append(b"def").unwrap();
        assert_eq!((part.bytes(), part.digest()), (6, Hash::of(b"abcdef")));
    }

    /// Between the opening and the lock, another process may finish its download.
    #[test]
    fn a_file_that_has_lost_its_name_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["m.part", "m"].map(|name| folder.path().join(name));
        let file = File::create_new(&path).unwrap();
        assert!(has_name(&file, &path));
        fs::rename(&path, &other).unwrap();
        assert!(!has_name(&file, &path));
        #[cfg(unix)]
        {
            fs::write(&path, "").unwrap();
            assert!(!has_name(&file, &path));
        }
    }

    #[test]
    fn an_empty_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.part");
        drop(PartFile::lock(&path).unwrap());
        assert!(!path.exists());
    }
}
