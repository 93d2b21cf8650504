//! The model of an engine, independent of the device.

use std::sync::{Arc, OnceLock};

use walla_model::gguf::KeptGguf;
use walla_model::{Gguf, GgufError, ModelSpec};

use crate::model_text::ModelText;
use crate::options::{EngineError, EngineOptions};

/// The device-independent parts of a model, and the open file, from which another device can load
/// the same weights later.
#[derive(Debug)]
pub(crate) struct Source {
    file: KeptGguf,
    pub(super) model: ModelSpec,
    pub(super) text: Arc<ModelText>,
    pub(super) context_tokens: u32,
    /// Identifies the model.
    pub(super) digest: u64,
    /// Number of slots of the first device.
    pub(super) slots: OnceLock<u32>,
}

impl Source {
    /// Opens the model of `options`. Returns the file with its header, which only loading needs.
    ///
    /// # Errors
    /// A defect of the file, with its path.
    pub(crate) fn open(options: &EngineOptions) -> Result<(Arc<Self>, Gguf), EngineError> {
        Self::read(options).map_err(|error| error.in_file(&options.model))
    }

    fn read(options: &EngineOptions) -> Result<(Arc<Self>, Gguf), EngineError> {
        let file = options.model.open()?;
        let model = ModelSpec::from_gguf(&file, options.context_tokens)?;
        let context_tokens = options.context_tokens.min(model.context_train.max(1));
        let text = Arc::new(ModelText::load(&file, options, context_tokens)?);
        if options.prepare_constraints && !options.inline_text {
            text.compiler.prepare();
        }
        let kept = file.keep()?;
        let digest = kept.digest()?;
        let source =
            Self { file: kept, model, text, context_tokens, digest, slots: OnceLock::new() };
        Ok((Arc::new(source), file))
    }

    /// Opens the file again. Returns the same contents or an error.
    ///
    /// # Errors
    /// [`GgufError::Changed`] or [`GgufError::Modified`] if the file was changed in place,
    /// [`GgufError::Io`] if it cannot be read any more.
    pub(super) fn reopen(&self) -> Result<Gguf, GgufError> {
        let file = self.file.open()?;
        self.report_touch();
        Ok(file)
    }

    /// Checks that the file was not overwritten while it was loaded.
    ///
    /// # Errors
    /// As [`reopen`](Self::reopen).
    pub(super) fn check_unchanged(&self) -> Result<(), GgufError> {
        self.file.check()?;
        self.report_touch();
        Ok(())
    }

    /// A new modification time alone may result from a copy of the same contents.
    fn report_touch(&self) {
        if let Some(path) = self.file.touched() {
            tracing::warn!(
                target: "walla::load",
                file = %path.display(),
                "the model file was written to while it was in use; \
                 its length, metadata and sampled weights are the same"
            );
        }
    }
}
