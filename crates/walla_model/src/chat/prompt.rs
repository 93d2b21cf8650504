//! The result of rendering.

/// A part of a rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Template text: special tokens are parsed in it.
    Template(String),
    /// Untrusted text: no special token is parsed in it.
    Untrusted(String),
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// In order. Adjacent segments differ in kind, and none is empty.
    pub segments: Vec<Segment>,
}

impl Segment {
    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Template(text) | Self::Untrusted(text) => text,
        }
    }
}

impl Prompt {
    /// The text in readable form.
    #[must_use]
    pub fn text(&self) -> String {
        self.segments.iter().map(Segment::text).collect()
    }

    /// Adds untrusted text to the end.
    pub fn push_untrusted(&mut self, text: &str) {
        match self.segments.last_mut() {
            _ if text.is_empty() => {}
            Some(Segment::Untrusted(last)) => last.push_str(text),
            _ => self.segments.push(Segment::Untrusted(text.to_owned())),
        }
    }

    /// Length of the text in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.text().len()).sum()
    }
}
