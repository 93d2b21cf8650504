//! Finds the end of a call, byte by byte.

use crate::{CallFormat, CallMarkers, Delimiter};

use super::{ARGS, QUOTE};

/// Follows texts and brackets of an open call.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    format: CallFormat,
    /// Delimiters that are ordinary text in this vocabulary.
    close: Option<&'static str>,
    args: Option<&'static str>,
    quote: Option<&'static str>,
    /// The quotation mark of the current text; [`QUOTE`] for Gemma.
    inside: Option<u8>,
    is_escaped: bool,
    depth: u32,
}

impl Scanner {
    pub fn new(markers: &CallMarkers) -> Self {
        Self {
            format: markers.format(),
            close: markers.text(Delimiter::Close),
            args: markers.text(Delimiter::Args),
            quote: markers.text(Delimiter::Quote),
            inside: None,
            is_escaped: false,
            depth: 0,
        }
    }

    pub fn reset(&mut self) {
        (self.inside, self.is_escaped, self.depth) = (None, false, 0);
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
            replace(self.close, text, None);
            return true;
        }
        if self.ends_with(self.args, text) {
            replace(self.args, text, Some(ARGS));
            return false;
        }
        match self.format {
            CallFormat::LlamaJson | CallFormat::MistralList | CallFormat::MistralNamed => {
                self.read_brackets(byte)
            }
            _ => false,
        }
    }

    fn ends_with(&self, delimiter: Option<&'static str>, text: &[u8]) -> bool {
        delimiter.is_some_and(|delimiter| text.ends_with(delimiter.as_bytes()))
    }

    fn read_quotes(&mut self, byte: u8) {
        let opens = |byte| match self.format {
            CallFormat::QwenXml => false,
            CallFormat::Gemma4 => byte == QUOTE,
            CallFormat::Lfm2 => matches!(byte, b'"' | b'\''),
            _ => byte == b'"',
        };
        match self.inside {
            None if opens(byte) => self.inside = Some(byte),
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
        let is_list = self.format == CallFormat::MistralList;
        match byte {
            b'{' => self.depth = self.depth.saturating_add(1),
            b'[' if is_list || self.depth > 0 => self.depth = self.depth.saturating_add(1),
            b'}' | b']' if self.depth > 0 => {
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
