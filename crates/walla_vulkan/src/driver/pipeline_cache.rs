//! The file in which a driver's cache of pipelines is kept, so that a later load compiles no
//! shader.
//!
//! ```text
//! MAGIC | CRC-32 of the data, 4 bytes | data of vkGetPipelineCacheData
//! ```
//!
//! A driver checks only the header of such data, so a damaged file is found here. A file is
//! replaced as a whole. It is not stored before it is renamed: a part of it, after a power failure,
//! has another checksum. No failure has an effect, other than that shaders are compiled again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const MAGIC: &[u8; 8] = b"walla pc";
/// Bytes before the data.
const HEAD_BYTES: usize = MAGIC.len() + 4;
/// The crate's pipelines take a few MB with any driver. A larger cache holds old ones.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of `VkPipelineCacheHeaderVersionOne`.
const HEADER_BYTES: usize = 32;

/// Number of the next new file: two devices of a process may write at once.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A GPU and the driver that wrote a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheKey {
    pub(super) vendor: u32,
    pub(super) device: u32,
    pub(super) driver_version: u32,
    pub(super) uuid: [u8; 16],
}

impl CacheKey {
    fn file_name(&self) -> String {
        let Self { vendor, device, driver_version, uuid } = self;
        let uuid = u128::from_be_bytes(*uuid);
        format!("vulkan-{vendor:04x}-{device:04x}-{driver_version:08x}-{uuid:032x}.bin")
    }

    /// Whether this driver wrote the data for this GPU: `VkPipelineCacheHeaderVersionOne`.
    fn wrote(&self, data: &[u8]) -> bool {
        let word = |index: usize| Some(u32::from_le_bytes(*data.get(4 * index..)?.first_chunk()?));
        let header = [HEADER_BYTES as u32, 1, self.vendor, self.device];
        (0..).zip(header).all(|(index, wanted)| word(index) == Some(wanted))
            && data.get(16..HEADER_BYTES) == Some(&self.uuid)
    }
}

/// The file of a GPU.
#[derive(Debug)]
pub(super) struct CacheFile {
    path: PathBuf,
    key: CacheKey,
    /// Bytes of the data in the file, as far as this process knows. 0: there is no usable file.
    bytes: usize,
}

impl CacheFile {
    pub(super) fn new(folder: &Path, key: &CacheKey) -> Self {
        Self { path: folder.join(key.file_name()), key: key.clone(), bytes: 0 }
    }

    /// The data, if the file is whole and of this GPU and driver.
    pub(super) fn read(&mut self) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        let limit = (HEAD_BYTES + MAX_BYTES) as u64;
        // Opening a pipe would wait for its other end.
        if !fs::metadata(&self.path).ok()?.is_file() {
            return None;
        }
        File::open(&self.path).ok()?.take(limit).read_to_end(&mut all).ok()?;
        let (magic, rest) = all.split_first_chunk::<{ MAGIC.len() }>()?;
        let (checksum, data) = rest.split_first_chunk()?;
        let is_whole = magic == MAGIC && crc32fast::hash(data) == u32::from_le_bytes(*checksum);
        if !is_whole || !self.key.wrote(data) {
            return None;
        }
        self.bytes = data.len();
        Some(data.to_vec())
    }

    /// Replaces the file if the data has grown. Removes it if the data is too large, so that the
    /// next load begins with an empty cache.
    pub(super) fn write(&mut self, data: &[u8]) {
        if data.len() > MAX_BYTES {
            let _removed = fs::remove_file(&self.path);
        } else if data.len() != self.bytes
            && self.key.wrote(data)
            && replace(&self.path, data).is_ok()
        {
            self.bytes = data.len();
        }
    }
}

fn replace(path: &Path, data: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let beside = path.with_file_name(format!(".walla-vulkan-{process}-{number}.new"));
    // An existing link is not followed.
    let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    let written = file
        .write_all(MAGIC)
        .and_then(|()| file.write_all(&crc32fast::hash(data).to_le_bytes()))
        .and_then(|()| file.write_all(data));
    drop(file);
    let replaced = written.and_then(|()| fs::rename(&beside, path));
    if replaced.is_err() {
        // A full disk leaves a part of the new file.
        let _removed = fs::remove_file(&beside);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> CacheKey {
        CacheKey { vendor: 0x10de, device: 7, driver_version: 3, uuid: [9; 16] }
    }

    /// Data that a driver could write.
    fn data(key: &CacheKey, pipelines: &[u8]) -> Vec<u8> {
        let words = [HEADER_BYTES as u32, 1, key.vendor, key.device];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        words.chain(key.uuid).chain(pipelines.iter().copied()).collect()
    }

    #[test]
    fn a_file_is_read_by_its_gpu_and_driver_only() {
        let folder = tempfile::tempdir().unwrap();
        let open = |key: &CacheKey| CacheFile::new(&folder.path().join("new"), key);
        assert_eq!(open(&key()).read(), None);
        let kept = data(&key(), b"pipelines");
        open(&key()).write(&kept);
        assert_eq!(open(&key()).read().as_deref(), Some(&*kept));
        let others = [
            CacheKey { vendor: 1, ..key() },
            CacheKey { device: 8, ..key() },
            CacheKey { driver_version: 4, ..key() },
            CacheKey { uuid: [8; 16], ..key() },
        ];
        for other in others {
            let mut file = open(&other);
            assert_eq!(file.read(), None, "{other:?}");
            // Another driver's data under this driver's name, but for the version, which the data
            // does not hold.
            fs::copy(&open(&key()).path, &file.path).unwrap();
            assert_eq!(file.read().is_some(), other.driver_version != key().driver_version);
            fs::remove_file(&file.path).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let kept = data(&key(), b"pipelines");
        let mut file = CacheFile::new(folder.path(), &key());
        file.write(&kept);
        let whole = fs::read(&file.path).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|cut| whole[..cut].to_vec()).collect();
        damaged.extend((0..whole.len()).map(|index| {
            let mut bytes = whole.clone();
            bytes[index] ^= 1;
            bytes
        }));
        damaged.push([&*whole, b"more"].concat());
        for bytes in damaged {
            fs::write(&file.path, bytes).unwrap();
            let mut file = CacheFile::new(folder.path(), &key());
            assert_eq!(file.read(), None);
            file.write(&kept);
            assert_eq!(fs::read(&file.path).unwrap(), whole);
        }
    }

    #[test]
    fn only_grown_data_of_a_bounded_size_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = CacheFile::new(folder.path(), &key());
        file.write(b"no header");
        assert!(!file.path.exists());
        file.write(&data(&key(), b"one"));
        assert!(file.read().is_some());
        fs::remove_file(&file.path).unwrap();
        file.write(&data(&key(), b"two"));
        assert!(!file.path.exists(), "the size is the same");
        file.write(&data(&key(), b"three"));
        assert!(file.path.exists());
        file.write(&vec![0; MAX_BYTES + 1]);
        assert!(!file.path.exists());
        // A folder that cannot be made.
        fs::write(folder.path().join("file"), "").unwrap();
        CacheFile::new(&folder.path().join("file"), &key()).write(&data(&key(), b"one"));
    }

    /// A pipe, whose opening waits for its other end, and links at the names of the next new files.
    #[cfg(unix)]
    #[test]
    fn pipes_are_not_opened_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = CacheFile::new(folder.path(), &key());
        let made = std::process::Command::new("mkfifo").arg(&file.path).status().unwrap();
        assert!(made.success());
        assert_eq!(file.read(), None);
        file.write(&data(&key(), b"one"));
        assert!(file.read().is_some(), "the pipe is replaced");
        let (process, number) = (std::process::id(), NUMBER.load(Ordering::Relaxed));
        let target = folder.path().join("target");
        fs::write(&target, "of another program").unwrap();
        // Other tests take numbers too.
        for number in number..number + 10_000 {
            let link = folder.path().join(format!(".walla-vulkan-{process}-{number}.new"));
            std::os::unix::fs::symlink(&target, link).unwrap();
        }
        file.write(&data(&key(), b"longer"));
        assert_eq!(fs::read(&target).unwrap(), b"of another program");
    }
}
