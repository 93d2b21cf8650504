//! Calls.

use serde_json::{Map, Value};

use crate::action::check::check_arguments;
use crate::action::error::shown;
use crate::action::render::{Style, call_json};
use crate::{ActionSet, CallError, MalformedCall};

/// A call as the model wrote it.
///
/// Two calls are equal if their names and arguments are.
#[derive(Clone, Debug)]
pub struct ParsedCall {
    /// Name of the action.
    pub name: String,
    /// The arguments. Before [`check`] they have the types that the model wrote; all values of
    /// [`CallFormat::QwenXml`](crate::CallFormat::QwenXml) are texts.
    pub arguments: Map<String, Value>,
    /// Whether all arguments are texts because the format has no types.
    pub(crate) is_untyped: bool,
}

impl PartialEq for ParsedCall {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.arguments == other.arguments
    }
}

impl ParsedCall {
    /// A call with arguments that have their types.
    pub fn new(name: impl Into<String>, arguments: Map<String, Value>) -> Self {
        Self { name: name.into(), arguments, is_untyped: false }
    }

    pub(crate) fn untyped(name: String, arguments: Map<String, Value>) -> Self {
        Self { name, arguments, is_untyped: true }
    }

    /// The refusal of a whole call. Its text is the call as JSON.
    #[must_use]
    pub fn refused(&self, error: CallError) -> MalformedCall {
        MalformedCall { text: call_json(&self.name, &self.arguments), error }
    }

    fn malformed(&self, error: CallError) -> MalformedCall {
        let text = format!("{} {}", self.name, Style::Json.object(&self.arguments));
        MalformedCall::new(text.as_bytes(), error)
    }
}

/// The call with arguments that are valid by the schema of its action, in the order of the schema.
///
/// Arguments are converted where models often write another type: a number, a list or `True` as
/// text, an integer as `3.0`, null for an optional property. In a format without types a text that
/// spells a value of another allowed type has this type: `null` of an optional text is null.
///
/// # Errors
/// [`CallError::UnknownAction`] if the set has no [possible](crate::ActionSpec::is_possible) action
/// of this name, [`CallError::InvalidArgument`] with the name of the property.
pub fn check(actions: &ActionSet, call: ParsedCall) -> Result<ParsedCall, MalformedCall> {
    let Some(action) = actions.get(&call.name) else {
        let error = CallError::UnknownAction { name: shown(&call.name) };
        return Err(call.malformed(error));
    };
    let arguments = call.arguments.clone();
    match check_arguments(action.arguments(), arguments, call.is_untyped) {
        Ok(arguments) => Ok(ParsedCall::new(call.name, arguments)),
        Err(error) => Err(call.malformed(error)),
    }
}
