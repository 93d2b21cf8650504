use super::{OUTPUT_BYTES_MAX, SOURCE_BYTES_MAX};
use crate::gguf::MetadataError;
use crate::tokenizer::VocabularyError;

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The file's entry is no text.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The file's BOS or EOS, which templates print, is none of its tokens.
    #[error("{0}")]
    Tokens(String),
    /// The source is too long.
    #[error("the chat template has {bytes} bytes, at most {SOURCE_BYTES_MAX}")]
    SourceTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The source uses the code points that stand for untrusted text.
    #[error("the chat template contains U+{code_point:X}, which stands for untrusted text")]
    Reserved {
        /// The first of them.
        code_point: u32,
    },
    /// The source is no valid Jinja.
    #[error("the chat template is invalid: {0}")]
    Syntax(String),
    /// The template refuses the conversation (`raise_exception`).
    #[error("the chat template refuses the conversation: {0}")]
    Raised(String),
    /// The template takes too long or nests too deep.
    #[error("the chat template does not come to an end: {0}")]
    Runaway(String),
    /// The output is too long.
    #[error("the rendered conversation has more than {OUTPUT_BYTES_MAX} bytes")]
    OutputTooLong,
    /// Something else fails while it renders.
    #[error("the chat template fails: {0}")]
    Failed(String),
}

impl From<VocabularyError> for TemplateError {
    fn from(error: VocabularyError) -> Self {
        match error {
            VocabularyError::Metadata(error) => Self::Metadata(error),
            error => Self::Tokens(error.to_string()),
        }
    }
}
