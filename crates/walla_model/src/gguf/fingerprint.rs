//! A fingerprint of a model that is the same on every machine, in memory and as a file.

use super::{Gguf, GgufError, bytes::Bytes};

/// Number of samples of a file's data, evenly spaced.
const SAMPLES: u64 = 64;
/// Bytes per sample; 1 MiB in total.
const SAMPLE_BYTES: u64 = 16 << 10;

impl Gguf {
    /// A 64-bit hash (FNV-1a) of lengths, metadata, tensor tables, and 1 MiB of samples of the
    /// tensors' data, of all parts: it names the model in recordings. Two files that differ only
    /// in bytes that are not sampled have the same one. It is no protection against an attacker.
    ///
    /// # Errors
    /// [`GgufError::Io`] or [`GgufError::Changed`] if the file cannot be read any longer.
    pub fn fingerprint(&self) -> Result<u64, GgufError> {
        let mut hash = Fnv1a::new();
        for part in self.files() {
            let (len, header) = (part.bytes.len(), part.bytes.header());
            let data_start = part.header.data_start.min(len);
            hash.write(&len.to_le_bytes());
            hash.write(header.get(..data_start as usize).unwrap_or(header));
            let data = len - data_start;
            let mut sample = vec![0; SAMPLE_BYTES.min(data) as usize];
            // If the data is shorter than all samples, the samples overlap.
            let count = data.div_ceil(SAMPLE_BYTES).min(SAMPLES);
            let last_start = data - sample.len() as u64;
            for i in 0..count {
                let at = u128::from(last_start) * u128::from(i) / u128::from(count.max(2) - 1);
                let at = data_start + at as u64;
                match &part.bytes {
                    Bytes::File { file, len, .. } => file.read_unchanged(*len, at, &mut sample)?,
                    memory => {
                        let end = at as usize + sample.len();
                        if let Some(bytes) = memory.header().get(at as usize..end) {
                            sample.copy_from_slice(bytes);
                        }
                    }
                }
                hash.write(&sample);
            }
        }
        Ok(hash.0)
    }
}

/// 64-bit FNV-1a.
struct Fnv1a(u64);

impl Fnv1a {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn write(&mut self, bytes: &[u8]) {
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, mix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::{self, Mixture, Model};

    #[test]
    fn a_model_has_one_fingerprint_in_memory_and_as_a_file() {
        let model = |seed| synth::write(&Model::TINY, Mixture::Q8_0, seed, Vec::new()).unwrap();
        let (bytes, other) = (model(1), model(2));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, &bytes).unwrap();
        let of_file = Gguf::open(&path).unwrap().fingerprint().unwrap();
        let in_memory =
            |bytes: Vec<u8>| Gguf::from_static(Vec::leak(bytes)).unwrap().fingerprint().unwrap();
        assert_eq!(of_file, in_memory(bytes.clone()));
        assert_ne!(of_file, in_memory(other));
        // Metadata and data count.
        let mut changed = bytes.clone();
        if let Some(last) = changed.last_mut() {
            *last ^= 1;
        }
        assert_ne!(of_file, in_memory(changed));
    }
}
