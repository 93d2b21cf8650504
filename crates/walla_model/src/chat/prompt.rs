//! The result of rendering.

/// A stretch of a rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The template's own text: special tokens are parsed in it.
    Template(String),
    /// Untrusted text: no special token is parsed in it.
    Untrusted(String),
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// In order; two of a kind never follow each other, none is empty.
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
    /// The text as a person would read it.
    #[must_use]
    pub fn text(&self) -> String {
        self.segments.iter().map(Segment::text).collect()
    }

    /// Length of the text in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.text().len()).sum()
    }
}
