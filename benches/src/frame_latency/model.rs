//! The model that is run.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use bevy_walla::ModelSource;
use walla_model::synth::{self, Mixture, Model};

/// A file of random weights, `shape:types`; made if it is not there.
pub fn synthetic(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let (shape, types) = name.split_once(':').ok_or("expected SHAPE:TYPES")?;
    let model = Model::named(shape).ok_or_else(|| format!("no shape {shape:?}"))?;
    let mixture = Mixture::named(types).ok_or_else(|| format!("no types {types:?}"))?;
    let path = std::env::temp_dir().join(format!("walla-{shape}-{types}.gguf"));
    if path.is_file() {
        return Ok(path);
    }
    // Under another name until it is whole.
    let part = path.with_extension("part");
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&part)?);
    synth::write(&model, mixture, 0, &mut out)?;
    out.flush()?;
    std::fs::rename(&part, &path)?;
    Ok(path)
}

/// The model inside the program.
#[cfg(feature = "demo")]
pub fn built_in() -> Result<ModelSource, Box<dyn Error>> {
    Ok(ModelSource::demo())
}

/// This build has none.
#[cfg(not(feature = "demo"))]
pub fn built_in() -> Result<ModelSource, Box<dyn Error>> {
    Err("built without the demo model: name one with --model or --synth".into())
}
