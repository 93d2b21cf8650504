//! Checks of regular expressions.

use crate::ConstraintError;
use crate::json::parse_regex;

/// Refuses an invalid expression, with its position.
pub(crate) fn check(text: &str) -> Result<(), ConstraintError> {
    if text.is_empty() {
        let message = "the expression is empty".to_owned();
        return Err(ConstraintError::Regex { offset: 0, message });
    }
    let parsed = parse_regex(text);
    parsed.map(drop).map_err(|(offset, message)| ConstraintError::Regex { offset, message })
}
