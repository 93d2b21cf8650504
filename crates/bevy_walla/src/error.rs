use std::path::PathBuf;
use std::sync::Arc;

use walla_runtime::EngineError;

/// Why the plugin has no engine. Agents stay silent, every ask fails, and the game continues.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WallaError {
    /// The plugin was added without a model: use [`WallaPlugin::model`](crate::WallaPlugin::model).
    #[error("no model was given: use WallaPlugin::model(path of a GGUF file)")]
    NoModel,
    /// The engine could not start, or stopped: its message names the file, tensor, key or device.
    #[error("{0}")]
    Engine(Arc<EngineError>),
    /// The options of a remote engine cannot be used.
    #[error("the remote engine cannot start: {0}")]
    Remote(String),
    /// [`WallaPlugin::pacing`](crate::WallaPlugin::pacing) is set, and the only engine of the app
    /// has no steps in this process: remove the setting.
    #[error("WallaPlugin::pacing is for local engines, and the app has none")]
    NotPaced,
    /// The recording cannot be played.
    #[error("the recording cannot be read: {0}")]
    Recording(Arc<walla_record::ReadError>),
    /// No file has the relative path of the model or recording.
    #[error("no file {}", paths(.tried))]
    ModelNotFound {
        /// The absolute paths that it could have, in the order in which they were tried.
        tried: Vec<PathBuf>,
    },
    /// The name of an engine cannot be used.
    #[error("{0}")]
    Name(String),
    /// Another owner shut the engine down.
    #[error("the engine was stopped")]
    Stopped,
}

impl From<EngineError> for WallaError {
    fn from(error: EngineError) -> Self {
        Self::Engine(Arc::new(error))
    }
}

fn paths(tried: &[PathBuf]) -> String {
    let tried: Vec<_> = tried.iter().map(|path| path.display().to_string()).collect();
    tried.join(", nor ")
}
