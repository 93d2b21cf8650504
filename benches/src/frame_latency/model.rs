//! The built-in model.

use std::error::Error;

use bevy_walla::options::ModelSource;

/// The demo model.
#[cfg(feature = "demo")]
pub fn built_in() -> Result<ModelSource, Box<dyn Error>> {
    Ok(ModelSource::demo())
}

/// This build has no demo model.
#[cfg(not(feature = "demo"))]
pub fn built_in() -> Result<ModelSource, Box<dyn Error>> {
    Err("built without the demo model: name one with --model or --synth".into())
}
