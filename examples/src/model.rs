//! Which model an example runs.

use std::path::PathBuf;

use bevy_walla::{EngineOptions, ModelSource, WallaPlugin};
use clap::Args;

/// Flags that every example takes.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// A GGUF file, for instance a quantised chat model.
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// auto, cpu, cuda:0 …
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// Threads of a CPU device [default: half of the cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Tokens of each agent's context.
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    pub context: u32,
}

impl ModelArgs {
    /// The model that was named, or the one that comes along.
    ///
    /// # Errors
    /// One line that says what to pass.
    pub fn source(&self) -> Result<ModelSource, String> {
        match (&self.model, default_model()) {
            (Some(path), _) if path.is_file() => Ok(ModelSource::Path(path.clone())),
            (Some(path), _) => Err(format!("{}: no such file", path.display())),
            (None, Some(model)) => Ok(model),
            (None, None) => {
                Err("no model comes with this version: pass --model FILE.gguf, for instance \
                                 a quantised chat model of 0.5 to 4 billion parameters"
                    .to_owned())
            }
        }
    }

    /// The engine's settings for so many agents.
    ///
    /// # Errors
    /// As [`ModelArgs::source`].
    pub fn options(&self, agents: u32) -> Result<EngineOptions, String> {
        Ok(EngineOptions {
            device: self.device.clone(),
            threads: self.threads,
            context_tokens: self.context,
            agents_max: agents.max(1),
            ..EngineOptions::new(self.source()?)
        })
    }

    /// The plugin for so many agents.
    ///
    /// # Errors
    /// As [`ModelArgs::source`].
    pub fn plugin(&self, agents: u32) -> Result<WallaPlugin, String> {
        self.options(agents).map(WallaPlugin::with_options)
    }
}

/// The model that comes with walla: none yet.
fn default_model() -> Option<ModelSource> {
    None
}
