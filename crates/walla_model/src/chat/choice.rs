//! The template of a model: the file's, or one that the user chose.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{BuiltInTemplate, ChatTemplate, MAX_SOURCE_BYTES, TemplateError};
use crate::gguf::Gguf;
use crate::tokenizer::texts_of_bos_and_eos;

/// A chat template that replaces the model file's.
///
/// # Examples
/// ```
/// use walla_model::chat::{BuiltInTemplate, TemplateChoice};
/// assert_eq!(TemplateChoice::from("gemma"), BuiltInTemplate::Gemma.into());
/// assert_eq!(TemplateChoice::from("my.jinja"), TemplateChoice::File("my.jinja".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateChoice {
    /// A template of this crate.
    BuiltIn(BuiltInTemplate),
    /// A file with a template's Jinja source. It is read when the model is loaded.
    File(PathBuf),
    /// Jinja source, for instance from `include_str!`.
    Source(Arc<str>),
}

impl From<BuiltInTemplate> for TemplateChoice {
    fn from(template: BuiltInTemplate) -> Self {
        Self::BuiltIn(template)
    }
}

impl From<PathBuf> for TemplateChoice {
    fn from(file: PathBuf) -> Self {
        Self::File(file)
    }
}

impl From<&str> for TemplateChoice {
    /// The built-in template with this name; any other text is a file path.
    fn from(name_or_file: &str) -> Self {
        let built_in = BuiltInTemplate::from_name(name_or_file);
        built_in.map_or_else(|| Self::File(name_or_file.into()), Self::BuiltIn)
    }
}

impl From<String> for TemplateChoice {
    /// As `From<&str>`.
    fn from(name_or_file: String) -> Self {
        name_or_file.as_str().into()
    }
}

impl fmt::Display for TemplateChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(template) => template.fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::Source(source) => write!(f, "a source of {} bytes", source.len()),
        }
    }
}

impl TemplateChoice {
    /// Compiles and [checks](ChatTemplate::check) the template for a model.
    fn load(&self, file: &Gguf) -> Result<ChatTemplate, TemplateError> {
        let (bos, eos) = texts_of_bos_and_eos(file)?;
        let template = match self {
            Self::BuiltIn(template) => ChatTemplate::built_in(*template, &bos, &eos),
            Self::File(path) => ChatTemplate::new(&read(path)?, &bos, &eos),
            Self::Source(source) => ChatTemplate::new(source, &bos, &eos),
        }?;
        template.check()?;
        Ok(template)
    }
}

/// The text of a template file, bounded.
fn read(path: &Path) -> Result<String, TemplateError> {
    let refused = |reason: &dyn fmt::Display| TemplateError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    // Opening a FIFO could block.
    let metadata = path.metadata().map_err(|error| {
        refused(&format_args!(
            "{error}; the built-in templates are chatml, llama3, gemma and mistral"
        ))
    })?;
    if !metadata.is_file() {
        return Err(refused(&"not a file"));
    }
    let file = std::fs::File::open(path).map_err(|error| refused(&error))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_SOURCE_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| refused(&error))?;
    if bytes.len() > MAX_SOURCE_BYTES {
        return Err(refused(&format_args!("a template has at most {MAX_SOURCE_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| refused(&"not UTF-8"))
}

/// Which chat template a loaded model uses, or why it has no usable one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateState {
    /// The model file's template.
    FromFile,
    /// The template that the user chose, by its name or path.
    Chosen(String),
    /// The model file has no template. Raw prompts work, chat asks fail.
    Absent,
    /// The model file's template does not work. Raw prompts work, chat asks fail.
    Unusable(TemplateError),
}

impl TemplateState {
    /// Whether chat asks work.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::FromFile | Self::Chosen(_))
    }
}

impl fmt::Display for TemplateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FromFile => f.write_str("the chat template of the model file"),
            Self::Chosen(name) => write!(f, "the chosen chat template {name}"),
            Self::Absent => f.write_str("the model file has no chat template"),
            Self::Unusable(reason) => {
                write!(f, "the model file's chat template does not work: {reason}")
            }
        }
    }
}

impl ChatTemplate {
    /// The template of a model, if one works: the chosen one, else the file's.
    ///
    /// # Errors
    /// [`TemplateError`] if the chosen template does not work. If the file's template does not
    /// work, the result is a [`TemplateState`] instead, because the model can still continue raw
    /// prompts.
    pub fn resolve(
        file: &Gguf,
        choice: Option<&TemplateChoice>,
    ) -> Result<(Option<Self>, TemplateState), TemplateError> {
        if let Some(choice) = choice {
            let template = choice.load(file)?;
            return Ok((Some(template), TemplateState::Chosen(choice.to_string())));
        }
        let own = Self::from_gguf(file).and_then(|own| {
            own.as_ref().map_or(Ok(()), Self::check)?;
            Ok(own)
        });
        Ok(match own {
            Ok(Some(template)) => (Some(template), TemplateState::FromFile),
            Ok(None) => (None, TemplateState::Absent),
            Err(reason) => (None, TemplateState::Unusable(reason)),
        })
    }
}
