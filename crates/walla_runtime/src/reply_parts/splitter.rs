use std::sync::Arc;

use walla_model::chat::{Marker, ReasoningFormat, ReasoningMarkers};
use walla_types::TokenId;

use super::held::Held;
use super::{Part, Say, Sinks};

/// Maximum bytes of a header. A longer header is treated as reasoning.
pub(super) const MAX_HEADER_BYTES: usize = 128;

/// Assigns bytes to parts.
#[derive(Debug)]
pub(super) struct Splitter {
    markers: Arc<ReasoningMarkers>,
    pub mode: Mode,
    /// Only white space has arrived so far; it is held back.
    pub is_blank: bool,
    /// White space is omitted, because a block was just closed.
    pub skips_space: bool,
    /// Bytes that may be the beginning of a marker.
    held: Held,
    pub header: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The reply is not separated.
    Off,
    Speech,
    Reasoning(ReasoningFormat),
    /// In a header, which belongs to no part.
    Header(ReasoningFormat),
}

/// Result of matching bytes against the markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Whole(Marker),
    Begun,
    None,
}

impl Splitter {
    pub fn new(markers: &Arc<ReasoningMarkers>) -> Self {
        Self {
            markers: Arc::clone(markers),
            mode: Mode::Off,
            is_blank: false,
            skips_space: false,
            held: Held::new(),
            header: Vec::with_capacity(MAX_HEADER_BYTES),
        }
    }

    pub fn reset(&mut self, mode: Mode) {
        self.mode = mode;
        (self.is_blank, self.skips_space) = (false, false);
        self.held.clear();
        self.header.clear();
    }

    /// The part to which bytes belong now.
    fn part(&self) -> Part {
        if self.mode == Mode::Speech { Part::Speech } else { Part::Reasoning }
    }

    pub fn push(&mut self, sinks: &mut Sinks, token: TokenId, bytes: &[u8], say: &mut Say<'_>) {
        if let Some(marker) = self.markers.of_token(token) {
            if !self.is_blank {
                self.release_all(sinks, say);
            }
            sinks.count_tokens(Part::Reasoning, 1);
            sinks.hide(Part::Reasoning, 1);
            self.meet(marker, sinks);
        } else if self.is_plain() {
            sinks.put_token(self.part(), bytes, say);
        } else if bytes.is_empty() {
            sinks.count_tokens(self.part(), 1);
            if self.held.is_empty() {
                sinks.put(self.part(), bytes, 1, say);
            } else {
                self.held.end_tokens(1);
            }
        } else {
            self.push_bytes(sinks, bytes, say);
        }
    }

    /// Whether a token can only be text of the current part. True for most tokens.
    fn is_plain(&self) -> bool {
        let is_in_header = matches!(self.mode, Mode::Header(_));
        let waits = self.is_blank || self.skips_space || is_in_header || !self.held.is_empty();
        !waits && self.markers.texts().is_empty()
    }

    fn push_bytes(&mut self, sinks: &mut Sinks, bytes: &[u8], say: &mut Say<'_>) {
        // Bytes before this position are processed.
        let mut done = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let ends_token = at + 1 == bytes.len();
            if self.skips_space {
                if byte.is_ascii_whitespace() {
                    done = at + 1;
                    if ends_token {
                        sinks.count_tokens(Part::Reasoning, 1);
                        sinks.hide(Part::Reasoning, 1);
                    }
                    continue;
                }
                self.skips_space = false;
            }
            if self.held.is_empty() && !self.may_begin(byte) {
                self.is_blank = false;
                continue;
            }
            self.put(sinks, &bytes[done..at], 0, say);
            done = at + 1;
            self.held.push(byte);
            if ends_token {
                self.held.end_tokens(1);
                sinks.count_tokens(self.part(), 1);
            }
            self.match_held(sinks, say);
        }
        if done < bytes.len() {
            self.put(sinks, &bytes[done..], 1, say);
            sinks.count_tokens(self.part(), 1);
        }
    }

    /// Whether a byte must be held back although no byte is held.
    fn may_begin(&self, byte: u8) -> bool {
        let begins = |(text, _): &(&str, Marker)| text.as_bytes().first() == Some(&byte);
        (self.is_blank && byte.is_ascii_whitespace()) || self.markers.texts().iter().any(begins)
    }

    /// Sends the bytes that cannot be part of a marker any more, and handles a complete marker.
    fn match_held(&mut self, sinks: &mut Sinks, say: &mut Say<'_>) {
        if self.is_blank {
            let text = self.held.bytes().trim_ascii_start();
            match if text.is_empty() { Match::Begun } else { self.find(text) } {
                Match::Whole(marker) => return self.meet(marker, sinks),
                Match::Begun if !self.held.is_full() => return,
                Match::Begun | Match::None => self.is_blank = false,
            }
        }
        let held = self.held.bytes();
        let mut found = (0..held.len()).map(|start| (start, self.find(&held[start..])));
        match found.find(|(_, found)| *found != Match::None) {
            Some((start, Match::Whole(marker))) => {
                self.release(start, sinks, say);
                self.meet(marker, sinks);
            }
            Some((start, _)) => self.release(start, sinks, say),
            None => self.release_all(sinks, say),
        }
    }

    fn find(&self, bytes: &[u8]) -> Match {
        let texts = self.markers.texts().iter();
        let mut begun = texts.filter(|(text, _)| text.as_bytes().starts_with(bytes));
        match begun.next() {
            // No marker is a prefix of another.
            Some((text, marker)) if text.len() == bytes.len() => Match::Whole(*marker),
            Some(_) => Match::Begun,
            None => Match::None,
        }
    }

    /// Handles a complete marker. The held bytes are the marker, and possibly white space between
    /// the beginning of the reply and the marker.
    fn meet(&mut self, marker: Marker, sinks: &mut Sinks) {
        sinks.hide(self.part(), self.held.clear());
        self.is_blank = false;
        match marker {
            Marker::Open(format) if self.mode == Mode::Speech => {
                self.skips_space = false;
                self.header.clear();
                self.mode = match format.has_header() {
                    true => Mode::Header(format),
                    false => Mode::Reasoning(format),
                };
            }
            // A second opening marker in a block is ignored.
            Marker::Open(_) => {}
            Marker::Close(format) => {
                if matches!(self.mode, Mode::Reasoning(open) | Mode::Header(open) if open == format)
                {
                    self.mode = Mode::Speech;
                }
                self.skips_space = self.mode == Mode::Speech;
            }
            Marker::Start | Marker::Channel | Marker::End => {
                self.skips_space = false;
                self.header.clear();
                self.mode = Mode::Header(ReasoningFormat::CHANNELS);
            }
            Marker::Message if self.mode == Mode::Header(ReasoningFormat::CHANNELS) => {
                // Without a channel, the header is empty or names the role.
                let header = self.header.trim_ascii();
                let is_spoken = header.is_empty()
                    || header == b"assistant"
                    || ReasoningMarkers::is_spoken_channel(header);
                self.skips_space = is_spoken;
                self.mode = match is_spoken {
                    true => Mode::Speech,
                    false => Mode::Reasoning(ReasoningFormat::CHANNELS),
                };
            }
            Marker::Message => {}
        }
    }

    pub fn release_all(&mut self, sinks: &mut Sinks, say: &mut Say<'_>) {
        self.release(self.held.bytes().len(), sinks, say);
    }

    /// Sends the first `count` held bytes.
    fn release(&mut self, count: usize, sinks: &mut Sinks, say: &mut Say<'_>) {
        let mut from = 0;
        while let Some((to, tokens)) = self.held.end_behind(from, count) {
            let piece = self.held.copied(from..to);
            self.put(sinks, &piece[..to - from], tokens, say);
            from = to;
        }
        self.held.remove_first(count);
    }

    /// Sends bytes in which `tokens` tokens end. The caller counts these tokens.
    fn put(&mut self, sinks: &mut Sinks, bytes: &[u8], tokens: u32, say: &mut Say<'_>) {
        let text = match self.mode {
            Mode::Header(format) => self.take_header(format, sinks, bytes, say),
            _ => bytes,
        };
        if !text.is_empty() || tokens > 0 {
            sinks.put(self.part(), text, tokens, say);
        }
    }

    /// Takes bytes of a header. Returns the bytes behind the header.
    fn take_header<'a>(
        &mut self,
        format: ReasoningFormat,
        sinks: &mut Sinks,
        bytes: &'a [u8],
        say: &mut Say<'_>,
    ) -> &'a [u8] {
        let end = bytes.iter().position(|&byte| byte == b'\n').filter(|_| format.has_header());
        if let Some(end) = end {
            self.mode = Mode::Reasoning(format);
            return &bytes[end + 1..];
        }
        if self.header.len() + bytes.len() > MAX_HEADER_BYTES {
            self.mode = Mode::Reasoning(format);
            sinks.put(Part::Reasoning, &self.header, 0, say);
            return bytes;
        }
        self.header.extend_from_slice(bytes);
        &[]
    }
}
