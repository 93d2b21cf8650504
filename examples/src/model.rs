//! Model arguments of the examples.

use std::path::PathBuf;

use bevy_walla::options::ModelSource;
use bevy_walla::{EngineOptions, WallaPlugin};
use clap::Args;

/// Flags of every example.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// A GGUF file, for instance a quantised chat model [default: the demo model]
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
    /// The model named on the command line, otherwise the demo model.
    ///
    /// # Errors
    /// One line with the remedy.
    pub fn source(&self) -> Result<ModelSource, String> {
        match &self.model {
            Some(path) if path.is_dir() => Err(format!("{}: a directory", path.display())),
            Some(path) if !path.exists() => Err(format!("{}: no such file", path.display())),
            Some(path) => Ok(ModelSource::Path(path.clone())),
            None => Ok(default_model()),
        }
    }

    /// The engine's settings for at most `agents` agents.
    ///
    /// # Errors
    /// As [`ModelArgs::source`].
    pub fn options(&self, agents: u32) -> Result<EngineOptions, String> {
        Ok(EngineOptions {
            device: self.device.clone(),
            threads: self.threads,
            context_tokens: self.context,
            max_agents: Some(agents.max(1)),
            ..EngineOptions::new(self.source()?)
        })
    }

    /// The plugin for at most `agents` agents.
    ///
    /// # Errors
    /// As [`ModelArgs::source`].
    pub fn plugin(&self, agents: u32) -> Result<WallaPlugin, String> {
        self.options(agents).map(WallaPlugin::new)
    }
}

/// The model that is included in walla.
fn default_model() -> ModelSource {
    ModelSource::demo()
}
