//! A model file that stays open without its header in memory, and a fingerprint of its contents.

use std::{borrow::Cow, fmt, path::Path, sync::Arc, time::SystemTime};

use super::{
    Gguf, GgufError,
    bytes::Bytes,
    file::{ModelFile, grow},
};

/// Number of data samples in a fingerprint, evenly spaced. Each costs a seek on a hard disk: a
/// quarter of a second in total.
const SAMPLES: u64 = 64;
/// Bytes per sample; 1 MiB in total.
const SAMPLE_BYTES: u64 = 16 << 10;

/// A file (with all parts of a split model) that was read once and can be read again later, but
/// only with the same contents.
///
/// It holds the open file and a fingerprint: the length, the bytes of the metadata and the tensor
/// table, and 1 MiB of samples of the tensors' data; of each part separately. Renaming, replacing
/// or deleting the path has no effect, because the handle refers to the old file. The fingerprint
/// detects an in-place change, except for a change that keeps the length and modifies no sampled
/// byte.
///
/// While the value exists, the operating system keeps the storage of a deleted file, and Windows
/// may keep its name. A network file system may lose a file that another computer deleted; then
/// reading it again is an error.
#[derive(Clone)]
pub struct KeptGguf {
    first: Kept,
    /// The other parts of a split model.
    others: Vec<Kept>,
}

/// One file.
#[derive(Clone)]
struct Kept {
    storage: Storage,
    len: u64,
    /// Length of metadata and tensor table.
    header_len: usize,
    /// Digests of the header and of the samples.
    fingerprint: [u64; 2],
    modified: Option<SystemTime>,
}

#[derive(Clone)]
enum Storage {
    File(Arc<ModelFile>),
    Memory(Bytes),
}

impl fmt::Debug for KeptGguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptGguf").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl KeptGguf {
    /// Computes the fingerprints of a file's parts.
    pub(super) fn new(gguf: &Gguf) -> Result<Self, GgufError> {
        let others = gguf.others.iter().map(Kept::new).collect::<Result<_, _>>()?;
        Ok(Self { first: Kept::new(gguf)?, others })
    }

    fn files(&self) -> impl Iterator<Item = &Kept> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// A number that identifies the model: a hash of the length, the metadata, the tensor table
    /// and 1 MiB of samples of the weights, of all parts. The same on every machine and in every
    /// build. It tells models apart; it does not resist an attack.
    ///
    /// # Errors
    /// [`GgufError::Io`] or [`GgufError::Changed`] if a file cannot be read any more.
    pub fn digest(&self) -> Result<u64, GgufError> {
        self.files().try_fold(0, |digest, kept| kept.digest(digest))
    }

    /// The path with which the file was opened; `None` for a file in memory.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.first.path()
    }

    /// The path of a file that was written to since, according to its modification time. The
    /// contents may be unchanged.
    #[must_use]
    pub fn touched(&self) -> Option<&Path> {
        self.files().find(|kept| kept.is_touched())?.path()
    }

    /// Compares the file with its fingerprint. Reads the header and 1 MiB of the data of each part.
    ///
    /// # Errors
    /// [`GgufError::Changed`] for another length, [`GgufError::Modified`] for other contents,
    /// [`GgufError::Io`] if a file cannot be read any more.
    pub fn check(&self) -> Result<(), GgufError> {
        self.files().try_for_each(Kept::check)
    }

    /// Reads the file again if its contents are unchanged.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn open(&self) -> Result<Gguf, GgufError> {
        self.check()?;
        let first = self.first.open()?;
        let mut others = Vec::with_capacity(self.others.len());
        for kept in &self.others {
            others.push((kept.path().unwrap_or(Path::new("")).to_owned(), kept.open()?));
        }
        if others.is_empty() {
            return Ok(first);
        }
        first.joined(self.path().unwrap_or(Path::new("")), others)
    }
}

impl Kept {
    fn new(part: &Gguf) -> Result<Self, GgufError> {
        let len = part.bytes.len();
        let storage = match &part.bytes {
            Bytes::File { file, .. } => Storage::File(Arc::clone(file)),
            memory => Storage::Memory(memory.clone()),
        };
        let header_len = part.header.data_start.min(len) as usize; // It is in memory.
        let mut kept = Self { storage, len, header_len, fingerprint: [0; 2], modified: None };
        // Before the fingerprint: a write in between is then noticed as a later time.
        kept.modified = kept.file().and_then(ModelFile::modified);
        let header = part.bytes.header().get(..header_len).unwrap_or_default();
        kept.fingerprint = [mix(0, header), kept.samples(0)?];
        Ok(kept)
    }

    fn file(&self) -> Option<&ModelFile> {
        if let Storage::File(file) = &self.storage { Some(file) } else { None }
    }

    fn path(&self) -> Option<&Path> {
        self.file().map(ModelFile::path)
    }

    fn is_touched(&self) -> bool {
        self.file().is_some_and(|file| file.modified() != self.modified)
    }

    fn check(&self) -> Result<(), GgufError> {
        // Bytes in memory cannot change.
        let Some(file) = self.file() else { return Ok(()) };
        let (path, len) = (file.path().to_owned(), file.len()?);
        let [header, samples] = self.fingerprint;
        // The cheapest comparison first: the length needs no read.
        if len != self.len {
            Err(GgufError::Changed { path, before: self.len, after: len })
        } else if mix(0, &self.header()?) != header {
            Err(GgufError::Modified { path, what: "its metadata or tensor table" })
        } else if self.samples(0)? != samples {
            Err(GgufError::Modified { path, what: "its weights" })
        } else {
            Ok(())
        }
    }

    fn digest(&self, digest: u64) -> Result<u64, GgufError> {
        let digest = mix(digest, &self.len.to_le_bytes());
        self.samples(mix(digest, &self.header()?))
    }

    /// The file without its other parts.
    fn open(&self) -> Result<Gguf, GgufError> {
        match &self.storage {
            Storage::File(file) => Gguf::of_file(Arc::clone(file)),
            Storage::Memory(bytes) => Gguf::new(bytes.clone()),
        }
    }

    /// The header again: metadata and tensor table.
    fn header(&self) -> Result<Cow<'_, [u8]>, GgufError> {
        match &self.storage {
            Storage::File(file) => {
                let mut header = Vec::new();
                grow(&mut header, self.header_len).map_err(|source| file.io(source))?;
                file.read_unchanged(self.len, 0, &mut header)?;
                Ok(header.into())
            }
            Storage::Memory(bytes) => {
                Ok(bytes.header().get(..self.header_len).unwrap_or_default().into())
            }
        }
    }

    /// Adds the samples of the data to a digest, or all data up to 1 MiB.
    fn samples(&self, mut digest: u64) -> Result<u64, GgufError> {
        let data = self.len.saturating_sub(self.header_len as u64);
        let mut buffer = vec![0; SAMPLE_BYTES.min(data) as usize];
        // If the data is shorter than all samples, the samples overlap.
        let count = data.div_ceil(SAMPLE_BYTES).min(SAMPLES);
        let last_start = data - buffer.len() as u64;
        for i in 0..count {
            // In 128 bits, because the length of a sparse file can be close to 2^63.
            let at = u128::from(last_start) * u128::from(i) / u128::from(count.max(2) - 1);
            let at = self.header_len as u64 + at as u64;
            let sample = match &self.storage {
                Storage::File(file) => {
                    file.read_unchanged(self.len, at, &mut buffer)?;
                    &buffer
                }
                Storage::Memory(bytes) => bytes
                    .header()
                    .get(at as usize..)
                    .and_then(|rest| rest.get(..buffer.len()))
                    .unwrap_or_default(),
            };
            digest = mix(digest, sample);
        }
        Ok(digest)
    }
}

/// Adds bytes to a digest, eight at a time.
fn mix(digest: u64, bytes: &[u8]) -> u64 {
    // The factor is 2^64 divided by the golden ratio, odd: multiplication by it is a bijection.
    let step = |digest: u64, word: u64| {
        let mixed = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    };
    let mut words = bytes.chunks_exact(8);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let digest = words.by_ref().fold(digest, |digest, bytes| step(digest, word(bytes)));
    // The length distinguishes inputs that differ in zeros at the end.
    step(step(digest, word(words.remainder())), bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Seek as _, SeekFrom, Write as _};

    use super::*;
    use walla_doubles::synth::{self, Mixture, Model};

    fn file() -> (tempfile::TempDir, std::path::PathBuf, Vec<u8>) {
        let bytes = synth::write(&Model::TINY, Mixture::Q8_0, 1, Vec::new()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, &bytes).unwrap();
        (folder, path, bytes)
    }

    fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
        let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(bytes).unwrap();
    }

    #[test]
    fn the_samples_of_a_small_file_are_all_its_data() {
        let (_folder, path, bytes) = file();
        let gguf = Gguf::open(&path).unwrap();
        let kept = gguf.keep().unwrap();
        assert!((bytes.len() as u64) < SAMPLES * SAMPLE_BYTES);
        let header = gguf.bytes.header().len();
        for at in (header..bytes.len()).step_by(997).chain([bytes.len() - 1]) {
            overwrite(&path, at as u64, &[!bytes[at]]);
            let error = kept.check().unwrap_err();
            assert!(matches!(&error, GgufError::Modified { what: "its weights", .. }), "{error}");
            assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
            overwrite(&path, at as u64, &[bytes[at]]);
            kept.check().unwrap();
        }
    }

    #[test]
    fn models_in_files_and_in_memory_have_the_same_digest_and_others_another() {
        let (_folder, path, bytes) = file();
        let digest = |gguf: Gguf| gguf.keep().unwrap().digest().unwrap();
        let first = digest(Gguf::open(&path).unwrap());
        assert_eq!(digest(Gguf::from_bytes(bytes.clone()).unwrap()), first);
        // The number is part of files: it never changes.
        assert_eq!(mix(mix(0, b"walla, eleven"), b""), MIXED);
        let other = synth::write(&Model::TINY, Mixture::Q8_0, 2, Vec::new()).unwrap();
        assert_eq!(other.len(), bytes.len());
        assert_ne!(digest(Gguf::from_bytes(other).unwrap()), first);
        let mut last = bytes;
        *last.last_mut().unwrap() ^= 1;
        assert_ne!(digest(Gguf::from_bytes(last).unwrap()), first);
    }

    /// Computed by another program.
    const MIXED: u64 = 0x381f_5625_7fbe_cd7e;

    #[test]
    fn every_byte_of_the_header_counts() {
        let (_folder, path, bytes) = file();
        let gguf = Gguf::open(&path).unwrap();
        let kept = gguf.keep().unwrap();
        for at in (0..gguf.bytes.header().len()).step_by(61) {
            overwrite(&path, at as u64, &[!bytes[at]]);
            let error = kept.open().unwrap_err();
            assert!(matches!(&error, GgufError::Modified { .. }), "byte {at}: {error}");
            overwrite(&path, at as u64, &[bytes[at]]);
        }
        assert_eq!(kept.touched(), Some(&*path));
        assert_eq!(kept.open().unwrap().tensors().count(), gguf.tensors().count());
    }

    #[test]
    fn samples_of_a_large_file_reach_from_its_first_byte_to_its_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        let len = (64 << 20) + 77;
        fs::File::create(&path).unwrap().set_len(len).unwrap();
        let storage = Storage::File(Arc::new(ModelFile::open(&path).unwrap()));
        let mut kept = Kept { storage, len, header_len: 100, fingerprint: [0; 2], modified: None };
        let before = kept.samples(0).unwrap();
        for at in [100, 100 + SAMPLE_BYTES - 1, len - SAMPLE_BYTES, len - 1] {
            overwrite(&path, at, &[1]);
            assert_ne!(kept.samples(0).unwrap(), before, "{at}");
            overwrite(&path, at, &[0]);
        }
        assert_eq!(kept.samples(0).unwrap(), before);
        kept.len += SAMPLE_BYTES;
        assert!(matches!(
            kept.samples(0),
            Err(GgufError::Changed { before: _, after, .. }) if after == len
        ));
    }

    #[test]
    fn other_lengths_are_named_and_files_in_memory_never_change() {
        let (_folder, path, bytes) = file();
        let kept = Gguf::open(&path).unwrap().keep().unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for len in [bytes.len() as u64 - 1, 0, bytes.len() as u64 + 1] {
            file.set_len(len).unwrap();
            let error = kept.open().unwrap_err();
            assert!(
                matches!(error, GgufError::Changed { after, .. } if after == len),
                "{len}: {error}"
            );
        }
        let gguf = Gguf::from_bytes(bytes).unwrap();
        let kept = gguf.keep().unwrap();
        assert_eq!((kept.path(), kept.touched()), (None, None));
        assert_eq!(kept.open().unwrap().tensors().count(), gguf.tensors().count());
    }
}
