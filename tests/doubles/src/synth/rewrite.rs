//! Copies a model file: with other metadata, or in parts.

use core::ops::Range;

use walla_model::gguf::{Gguf, TensorError, Value, WriteError, Writer};

/// Number of a part, from 0.
const NUMBER: &str = "split.no";
/// Number of parts.
const COUNT: &str = "split.count";
/// Number of tensors in all parts.
const TENSORS: &str = "split.tensors.count";
const SPLIT_KEYS: [&str; 3] = [NUMBER, COUNT, TENSORS];

/// Why a file cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// A tensor of the original has an unknown type or cannot be read.
    #[error(transparent)]
    Read(#[from] TensorError),
    /// The copy cannot be written: a key is duplicated.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The requested parts do not hold all tensors.
    #[error("parts of {found} tensors together, the file has {tensors}")]
    Parts {
        /// Tensors of the original.
        tensors: usize,
        /// Tensors of all parts.
        found: usize,
    },
}

/// Copies a file without the metadata keys in `without`, and with the keys that `more` writes. A
/// split model becomes one file.
///
/// # Errors
/// [`RewriteError`] if a tensor cannot be read, or if the copy would be unreadable.
pub fn rewrite(
    file: &Gguf,
    without: &[&str],
    more: impl FnOnce(&mut Writer),
) -> Result<Vec<u8>, RewriteError> {
    let mut writer = Writer::new();
    let is_of_parts = |key: &str| file.parts() > 1 && SPLIT_KEYS.contains(&key);
    let is_kept = |key: &str| !without.contains(&key) && !is_of_parts(key);
    for (key, value) in file.metadata().filter(|(key, _)| is_kept(key)) {
        writer.value(key, value);
    }
    more(&mut writer);
    write(file, writer, 0..file.tensors().len())
}

/// Splits a file into parts as llama.cpp's `gguf-split` does: `part_tensors` are the numbers of
/// tensors of each part. Returns the parts in order. Their files must have the names of
/// [`part_name`].
///
/// # Errors
/// [`RewriteError::Parts`] if the sum of the numbers is not the number of tensors, else as
/// [`rewrite`].
///
/// # Examples
/// ```
/// # use walla_doubles::synth;
/// # use walla_model::Gguf;
/// # let whole = synth::write(&synth::Model::TINY, synth::Mixture::Q8_0, 0, Vec::new())?;
/// # let whole = Gguf::from_bytes(whole)?;
/// # let folder = tempfile::tempdir()?;
/// let tensors = whole.tensors().len();
/// let parts = synth::split(&whole, &[2, tensors - 2])?;
/// for (part, bytes) in (1..).zip(&parts) {
///     std::fs::write(folder.path().join(synth::part_name("model", part, parts.len())), bytes)?;
/// }
/// let first = folder.path().join("model-00001-of-00002.gguf");
/// assert_eq!(Gguf::open(first)?.tensors().len(), tensors);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn split(file: &Gguf, part_tensors: &[usize]) -> Result<Vec<Vec<u8>>, RewriteError> {
    let (tensors, found) = (file.tensors().len(), part_tensors.iter().sum());
    if found != tensors || part_tensors.is_empty() {
        return Err(RewriteError::Parts { tensors, found });
    }
    let mut first = 0;
    let mut parts = Vec::with_capacity(part_tensors.len());
    for (number, &count) in part_tensors.iter().enumerate() {
        let mut writer = Writer::new();
        if number == 0 {
            for (key, value) in file.metadata().filter(|(key, _)| !SPLIT_KEYS.contains(key)) {
                writer.value(key, value);
            }
        }
        writer
            .value(NUMBER, Value::U16(number as u16))
            .value(COUNT, Value::U16(part_tensors.len() as u16))
            .value(TENSORS, Value::I32(tensors as i32));
        parts.push(write(file, writer, first..first + count)?);
        first += count;
    }
    Ok(parts)
}

/// The file name of a part, counted from 1: `model-00001-of-00003.gguf`.
#[must_use]
pub fn part_name(stem: &str, part: usize, parts: usize) -> String {
    format!("{stem}-{part:05}-of-{parts:05}.gguf")
}

/// Writes the tensors `range` of a file behind the metadata of `writer`.
fn write(file: &Gguf, mut writer: Writer, range: Range<usize>) -> Result<Vec<u8>, RewriteError> {
    for tensor in file.tensors().skip(range.start).take(range.len()) {
        let of_type = |source| TensorError::Type { tensor: tensor.name.to_owned(), source };
        writer.tensor(tensor.name, tensor.ty.map_err(of_type)?, tensor.shape.dims());
    }
    let mut data = writer.begin(Vec::new())?;
    for index in range {
        data.tensor(&file.tensor_bytes(index)?)?;
    }
    Ok(data.finish()?)
}
