//! Copies a model file with other metadata.

use crate::gguf::{Gguf, TensorError, WriteError, Writer};

/// Why a file cannot be copied.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// A tensor of the original has an unknown type or cannot be read.
    #[error(transparent)]
    Read(#[from] TensorError),
    /// The copy cannot be written: a key is duplicated.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Copies a file without the metadata keys in `without`, and with the keys that `more` writes.
///
/// # Errors
/// [`RewriteError`] if a tensor cannot be read, or if the copy would be unreadable.
pub fn rewrite(
    file: &Gguf,
    without: &[&str],
    more: impl FnOnce(&mut Writer),
) -> Result<Vec<u8>, RewriteError> {
    let mut writer = Writer::new();
    for (key, value) in file.metadata().filter(|(key, _)| !without.contains(key)) {
        writer.value(key, value);
    }
    more(&mut writer);
    for tensor in file.tensors() {
        let of_type = |source| TensorError::Type { tensor: tensor.name.to_owned(), source };
        writer.tensor(tensor.name, tensor.ty.map_err(of_type)?, tensor.shape.dims());
    }
    let mut data = writer.begin(Vec::new())?;
    for index in 0..file.tensors().len() {
        data.tensor(&file.tensor_bytes(index)?)?;
    }
    Ok(data.finish()?)
}
