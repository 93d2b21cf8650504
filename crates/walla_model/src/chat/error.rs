use std::path::PathBuf;

use super::{MAX_OUTPUT_BYTES, MAX_SOURCE_BYTES, Role};
use crate::gguf::MetadataError;
use crate::tokenizer::VocabularyError;

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The metadata entry is not a text.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// BOS or EOS, which templates print, is not a token of the file.
    #[error("{0}")]
    Tokens(String),
    /// The source is too long.
    #[error("the chat template has {bytes} bytes, at most {MAX_SOURCE_BYTES}")]
    SourceTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The source is empty.
    #[error("the chat template is empty")]
    Empty,
    /// The source has no tag, so no message is ever part of its output.
    #[error("the chat template is only the text {text:?}: no message is part of it")]
    PlainText {
        /// Its beginning.
        text: String,
    },
    /// The template prints a conversation without the messages of one role.
    #[error("the chat template leaves out {}", messages_of(*.role))]
    LeavesOut {
        /// User or assistant.
        role: Role,
    },
    /// The template prints only a part of a conversation of this many messages.
    #[error("the chat template leaves out messages of a conversation of {messages} messages")]
    Forgets {
        /// Number of messages.
        messages: usize,
    },
    /// The template prints only a part of a message of this length.
    #[error("the chat template cuts a message of {characters} characters")]
    Shortens {
        /// Its length.
        characters: usize,
    },
    /// The template prints the messages of user and agent in another order.
    #[error("the chat template prints the messages in another order")]
    Disordered,
    /// The template prints nothing but white space between messages of user and agent, so the model
    /// cannot distinguish them.
    #[error("the chat template prints no mark between the user's text and the agent's")]
    Unmarked,
    /// A template file that the user chose cannot be read.
    #[error("{}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The source uses code points that represent untrusted text.
    #[error("the chat template contains U+{code_point:X}, which stands for untrusted text")]
    Reserved {
        /// The first of these code points.
        code_point: u32,
    },
    /// The source is not valid Jinja.
    #[error("the chat template is invalid: {0}")]
    Syntax(String),
    /// The template refuses the conversation (`raise_exception`).
    #[error("the chat template refuses the conversation: {0}")]
    Raised(String),
    /// The template takes too long or nests too deeply.
    #[error("the chat template does not come to an end: {0}")]
    Runaway(String),
    /// The output is too long.
    #[error("the rendered conversation has more than {MAX_OUTPUT_BYTES} bytes")]
    OutputTooLong,
    /// Rendering fails for another reason.
    #[error("the chat template fails: {0}")]
    Failed(String),
}

fn messages_of(role: Role) -> &'static str {
    match role {
        Role::System => "the persona",
        Role::User => "the user's messages",
        Role::Assistant => "the agent's messages",
        Role::Observation => "observations",
        Role::Action => "the agent's calls",
        Role::ActionResult => "results of actions",
    }
}

impl From<VocabularyError> for TemplateError {
    fn from(error: VocabularyError) -> Self {
        match error {
            VocabularyError::Metadata(error) => Self::Metadata(error),
            error => Self::Tokens(error.to_string()),
        }
    }
}
