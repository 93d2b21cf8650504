//! Errors of action specifications and of calls.

use crate::ConstraintError;

/// An action, a set of actions or a grammar of calls that cannot be used. The specification must
/// be changed; a second attempt fails too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ActionError {
    /// The name of an action or a property is not `[A-Za-z0-9_-]{1,64}`.
    #[error("the name {name:?} at \"{at}\" must be 1 to 64 letters, digits, _ or -")]
    Name {
        /// The name, shortened.
        name: String,
        /// JSON pointer of the property; empty for the action.
        at: String,
    },
    /// The schema of the parameters is not the schema of an object.
    #[error("the parameters of an action must be an object")]
    NotAnObject,
    /// The schema or a limit, as of a constraint: the schema has a part that is not supported, no
    /// value is valid, or something is too large.
    #[error(transparent)]
    Schema(#[from] ConstraintError),
    /// A chat template cannot list it, or the error was read from a recording.
    #[error("{reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// An error of one of several actions.
    #[error("action {action}: {error}")]
    Of {
        /// Name of the action.
        action: String,
        /// The error.
        #[source]
        error: Box<ActionError>,
    },
    /// The action has no property of this name.
    #[error("the action {action} has no property {property:?}")]
    NoProperty {
        /// Name of the action.
        action: String,
        /// The name, shortened.
        property: String,
    },
    /// Choices were set for a property that is neither a text nor a list of texts.
    #[error("the property {property} of the action {action} is not a text or a list of texts")]
    NotText {
        /// Name of the action.
        action: String,
        /// Name of the property.
        property: String,
    },
    /// Two actions of a set have the same name.
    #[error("two actions have the name {name}")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// No action of the set is possible, so no call can be written.
    #[error("a call is required, but no action is possible")]
    NoAction,
    /// The reply has a constraint, so it cannot have a call.
    #[error("a call is required of a reply that has a constraint")]
    Constrained,
    /// A text of a choice contains syntax of the call format and cannot be written in it.
    #[error("the text {text:?} at \"{at}\" cannot be written in this call format")]
    Unwritable {
        /// The text, shortened.
        text: String,
        /// JSON pointer of its schema.
        at: String,
    },
}

impl ActionError {
    /// The error with the name of its action.
    #[must_use]
    pub(crate) fn of(self, action: &str) -> Self {
        match self {
            Self::Of { .. } | Self::NoProperty { .. } | Self::NotText { .. } => self,
            error => Self::Of { action: action.to_owned(), error: Box::new(error) },
        }
    }
}

/// Why a call is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum CallError {
    /// The text is not a call of the format.
    #[error("not a call of the format: {reason}")]
    Syntax {
        /// The defect.
        #[cfg_attr(feature = "serde", serde(skip, default = "recorded"))]
        reason: &'static str,
    },
    /// The set has no possible action of this name.
    #[error("unknown action {name:?}")]
    UnknownAction {
        /// The name, shortened.
        name: String,
    },
    /// The reply may not call actions.
    #[error("the reply may not call actions, also not {name:?}")]
    NotAllowed {
        /// The name, shortened.
        name: String,
    },
    /// An argument is not valid by the schema.
    #[error("argument {property:?}: {reason}")]
    InvalidArgument {
        /// Name of the property, shortened; nested names and indices are separated by `/`.
        property: String,
        /// The defect.
        #[cfg_attr(feature = "serde", serde(skip, default = "recorded"))]
        reason: &'static str,
    },
    /// The call is longer than its [parser](crate::CallParser) allows.
    #[error("longer than {max_bytes} bytes")]
    TooLong {
        /// The limit.
        max_bytes: usize,
    },
    /// The markers of the format are missing, and the agent does not accept such calls.
    #[error("without the markers of the format")]
    Unmarked,
    /// The reply or another call began before the call was closed.
    #[error("unfinished")]
    Unfinished,
}

/// A call that cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[error("{error} in {text:?}")]
pub struct MalformedCall {
    /// The text of the call, at most [`MalformedCall::MAX_TEXT_BYTES`] bytes. Delimiters that are
    /// special tokens are left out.
    pub text: String,
    /// The defect.
    #[source]
    pub error: CallError,
}

impl MalformedCall {
    /// Maximum length of [`text`](Self::text) in bytes.
    pub const MAX_TEXT_BYTES: usize = 1024;

    pub(crate) fn new(text: &[u8], error: CallError) -> Self {
        let start = text.get(..text.len().min(Self::MAX_TEXT_BYTES)).unwrap_or_default();
        Self { text: shorten(&String::from_utf8_lossy(start), Self::MAX_TEXT_BYTES), error }
    }
}

/// Maximum length of a name or text in an error, in bytes.
const MAX_SHOWN_BYTES: usize = 80;

/// The reason of a defect that was stored: reasons are texts of the program.
#[cfg(feature = "serde")]
fn recorded() -> &'static str {
    "as recorded"
}

/// As its text.
#[cfg(feature = "serde")]
impl serde::Serialize for ActionError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for ActionError {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::Refused { reason: serde::Deserialize::deserialize(deserializer)? })
    }
}

/// The start of a text, for an error.
pub(crate) fn shown(text: &str) -> String {
    shorten(text, MAX_SHOWN_BYTES)
}

fn shorten(text: &str, max_bytes: usize) -> String {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or_default().to_owned()
}
