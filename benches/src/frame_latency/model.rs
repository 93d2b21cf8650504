//! The model that is run.

use std::error::Error;

use bevy_walla::ModelSource;

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
