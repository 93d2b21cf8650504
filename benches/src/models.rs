//! The models of a measurement, as arguments.

use std::error::Error;
use std::path::PathBuf;

use walla_runtime::ModelSource;

use crate::synthetic;

/// The models of a measurement.
#[derive(Debug, clap::Args)]
pub struct Models {
    /// Synthetic models, `SHAPE:TYPES`; files in the system's folder for temporary files, kept for
    /// the next run.
    #[arg(long, value_delimiter = ',', default_value = "qwen3-0.6b:q8_0")]
    synth: Vec<String>,
    /// Model files.
    #[arg(long, value_delimiter = ',')]
    pub files: Vec<PathBuf>,
    /// Without the demo model.
    #[arg(long)]
    no_demo: bool,
}

/// A model to measure.
#[derive(Debug)]
pub struct Named {
    /// Its name in the results.
    pub name: String,
    /// Its file.
    pub source: ModelSource,
    /// It has random weights, and no template.
    pub is_synthetic: bool,
}

impl Models {
    /// The models, in the order of the results. Synthetic ones are written to their files.
    ///
    /// # Errors
    /// As [`synthetic`].
    pub fn open(&self) -> Result<Vec<Named>, Box<dyn Error>> {
        let mut models = Vec::new();
        let mut add =
            |name, source, is_synthetic| models.push(Named { name, source, is_synthetic });
        #[cfg(feature = "demo")]
        if !self.no_demo {
            add("demo".to_owned(), ModelSource::demo(), false);
        }
        for name in &self.synth {
            add(name.clone(), ModelSource::Path(synthetic(name)?), true);
        }
        for file in &self.files {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            add(name, ModelSource::Path(file.clone()), false);
        }
        Ok(models)
    }
}
