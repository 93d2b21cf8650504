//! Models of real shapes with random weights.

use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use walla_doubles::synth::{self, Mixture, Model};

use crate::output;

/// A file of random weights, `shape:types`, in the system's folder for temporary files. Created if
/// it does not exist.
///
/// # Errors
/// Unknown shape or types, or an error of the file.
pub fn synthetic(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let (shape, types) = name.split_once(':').ok_or("expected SHAPE:TYPES")?;
    let path = std::env::temp_dir().join(format!("walla-{shape}-{types}.gguf"));
    if !path.is_file() {
        write_synthetic(&path, shape, types, 0)?;
    }
    Ok(path)
}

/// Writes a file of random weights.
///
/// # Errors
/// Unknown shape or types, or an error of the file.
pub fn write_synthetic(
    path: &Path,
    shape: &str,
    types: &str,
    seed: u64,
) -> Result<(), Box<dyn Error>> {
    let model = Model::named(shape).ok_or_else(|| {
        let known: Vec<&str> = Model::ALL.iter().map(|model| model.name).collect();
        format!("no shape {shape:?}; there are: {}", known.join(", "))
    })?;
    let mixture = Mixture::named(types).ok_or_else(|| {
        let known: Vec<&str> = Mixture::ALL.iter().map(|mixture| mixture.name()).collect();
        format!("no types {types:?}; there are: {}", known.join(", "))
    })?;
    let written = output::replace_with(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        synth::write(&model, mixture, seed, &mut out).map_err(io::Error::other)?;
        out.flush()
    });
    Ok(written?)
}
