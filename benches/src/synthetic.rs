//! Models of real shapes with random weights.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use walla_model::synth::{self, Mixture, Model};

/// A file of random weights, `shape:types`, in the system's folder for temporary files. Created if
/// it does not exist.
///
/// # Errors
/// Unknown shape or types, or an error of the file.
pub fn synthetic(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let (shape, types) = name.split_once(':').ok_or("expected SHAPE:TYPES")?;
    let model = Model::named(shape).ok_or_else(|| format!("no shape {shape:?}"))?;
    let mixture = Mixture::named(types).ok_or_else(|| format!("no types {types:?}"))?;
    let path = std::env::temp_dir().join(format!("walla-{shape}-{types}.gguf"));
    if path.is_file() {
        return Ok(path);
    }
    // Written under another name until it is complete.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let write = || -> Result<(), Box<dyn Error>> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        synth::write(&model, mixture, 0, &mut out)?;
        out.flush()?;
        Ok(std::fs::rename(&part, &path)?)
    };
    let written = write();
    if written.is_err() {
        let _removed = std::fs::remove_file(&part);
    }
    written.map(|()| path.clone())
}
