//! Finds the end of a call, byte by byte.

use crate::{CallFormat, CallMarkers, Delimiter};

use super::{ARGS, QUOTE, Syntax};

/// Follows texts and brackets of an open call.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    /// See [`Marks`].
    quotes: &'static [u8],
    outer: &'static [u8],
    /// Delimiters that are ordinary text in this vocabulary.
    close: Option<&'static str>,
    /// The closing delimiter is part of the call.
    keeps_close: bool,
    args: Option<&'static str>,
    quote: Option<&'static str>,
    /// The quotation mark of the current text; [`QUOTE`] for Gemma.
    inside: Option<u8>,
    is_escaped: bool,
    depth: u32,
}

/// The quotation marks of a syntax, and the brackets that open a call, which ends with the last
/// bracket. None: brackets do not count.
type Marks = (&'static [u8], &'static [u8]);

impl Scanner {
    pub fn new(markers: &CallMarkers) -> Self {
        let marks: Marks = match markers.format() {
            CallFormat::QwenXml => (b"", b""),
            CallFormat::Gemma4 => (&[QUOTE], b""),
            CallFormat::Lfm2 => (b"\"'", b""),
            CallFormat::LlamaJson | CallFormat::MistralNamed => (b"\"", b"{"),
            CallFormat::MistralList => (b"\"", b"{["),
            CallFormat::HermesJson | CallFormat::Phi4 | CallFormat::Plain => (b"\"", b""),
        };
        let [_, close, args, quote] = Delimiter::ALL.map(|delimiter| markers.text(delimiter));
        Self { close, args, quote, ..Self::of(marks) }
    }

    fn of((quotes, outer): Marks) -> Self {
        Self {
            quotes,
            outer,
            close: None,
            keeps_close: false,
            args: None,
            quote: None,
            inside: None,
            is_escaped: false,
            depth: 0,
        }
    }

    /// Scans a call without markers.
    pub fn unmarked(syntax: Syntax) -> Self {
        let marks: Marks = match syntax {
            Syntax::Json => (b"\"'", b"{["),
            Syntax::Named => (b"\"", b"{"),
            Syntax::Python => (b"\"'", b"(["),
            Syntax::Gemma => (&[QUOTE], b"{"),
            Syntax::Xml => (b"", b""),
        };
        Self {
            close: (syntax == Syntax::Xml).then_some("</function>"),
            keeps_close: true,
            args: (syntax == Syntax::Named).then_some("[ARGS]"),
            quote: (syntax == Syntax::Gemma).then_some("<|\"|>"),
            ..Self::of(marks)
        }
    }

    /// The end of the call with which a text begins.
    pub fn end_of(syntax: Syntax, text: &[u8]) -> Option<usize> {
        let mut scanner = Self::unmarked(syntax);
        let mut read = Vec::new();
        let closes = |byte: &u8| {
            read.push(*byte);
            scanner.advance(*byte, &mut read)
        };
        text.iter().position(closes).map(|at| at + 1)
    }

    /// Reads the last byte of the text; returns whether it closes the call. A delimiter of
    /// ordinary text at the end is removed or becomes its mark.
    pub fn advance(&mut self, byte: u8, text: &mut Vec<u8>) -> bool {
        let byte = if self.ends_with(self.quote, text) {
            replace(self.quote, text, Some(QUOTE));
            QUOTE
        } else {
            byte
        };
        self.read_quotes(byte);
        if self.inside.is_some() {
            return false;
        }
        if self.ends_with(self.close, text) {
            if !self.keeps_close {
                replace(self.close, text, None);
            }
            return true;
        }
        if self.ends_with(self.args, text) {
            replace(self.args, text, Some(ARGS));
            return false;
        }
        self.read_brackets(byte)
    }

    fn ends_with(&self, delimiter: Option<&'static str>, text: &[u8]) -> bool {
        delimiter.is_some_and(|delimiter| text.ends_with(delimiter.as_bytes()))
    }

    fn read_quotes(&mut self, byte: u8) {
        match self.inside {
            None if self.quotes.contains(&byte) => self.inside = Some(byte),
            None => {}
            Some(QUOTE) => self.inside = (byte != QUOTE).then_some(QUOTE),
            Some(_) if self.is_escaped => self.is_escaped = false,
            Some(_) if byte == b'\\' => self.is_escaped = true,
            // A line break cannot be part of the text. So a text that is not closed does not
            // include the end of the call.
            Some(mark) if byte == mark || byte == b'\n' => self.inside = None,
            Some(_) => {}
        }
    }

    /// Whether the last bracket was closed.
    fn read_brackets(&mut self, byte: u8) -> bool {
        match byte {
            b'{' | b'[' | b'(' if self.depth > 0 || self.outer.contains(&byte) => {
                self.depth = self.depth.saturating_add(1);
            }
            b'}' | b']' | b')' if self.depth > 0 => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Replaces the delimiter at the end of a text.
fn replace(delimiter: Option<&'static str>, text: &mut Vec<u8>, by: Option<u8>) {
    text.truncate(text.len().saturating_sub(delimiter.map_or(0, str::len)));
    text.extend(by);
}
