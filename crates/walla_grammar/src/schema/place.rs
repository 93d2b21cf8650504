//! Places of schemas, for messages.

use std::fmt;
use std::sync::Arc;

use crate::ConstraintError;

/// JSON pointer (RFC 6901) of a schema. Schemas share the beginnings of their pointers: a document
/// of many schemas within one long name needs no more memory than its text.
#[derive(Clone, Debug, Default)]
pub(crate) struct At(Option<Arc<Place>>);

#[derive(Debug)]
struct Place {
    parent: At,
    /// The end of the pointer, with a leading `/`.
    text: String,
}

impl At {
    pub(crate) fn root() -> Self {
        Self(None)
    }

    /// The place of a pointer.
    pub(crate) fn pointer(text: &str) -> Self {
        Self::root().join(text.to_owned())
    }

    pub(crate) fn child(&self, token: &str) -> Self {
        self.join(format!("/{}", token.replace('~', "~0").replace('/', "~1")))
    }

    fn join(&self, text: String) -> Self {
        Self(Some(Arc::new(Place { parent: self.clone(), text })))
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.as_ref().is_none_or(|place| place.text.is_empty() && place.parent.is_root())
    }

    /// A reason with its place.
    pub(crate) fn named(&self, reason: &str) -> String {
        if self.is_root() { reason.to_owned() } else { format!("at \"{self}\": {reason}") }
    }

    pub(crate) fn unsupported(&self, keyword: &str, reason: impl Into<String>) -> ConstraintError {
        let (keyword, at) = (keyword.to_owned(), self.to_string());
        ConstraintError::UnsupportedKeyword { keyword, at, reason: reason.into() }
    }

    pub(crate) fn invalid(&self, keyword: &str, expected: &'static str) -> ConstraintError {
        let (keyword, at) = (keyword.to_owned(), self.to_string());
        ConstraintError::InvalidKeyword { keyword, at, expected }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.0 else { return Ok(()) };
        place.parent.fmt(f)?;
        f.write_str(&place.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_pointers() {
        assert!(At::root().is_root() && At::pointer("").is_root());
        let at = At::pointer("/$defs/a").child("b/c~d").child("0");
        assert_eq!(at.to_string(), "/$defs/a/b~1c~0d/0");
        assert!(!at.is_root());
    }
}
