//! Separates the calls of a reply from its speech.
//!
//! A call opens at a delimiter: a special token, or a text in any tokenisation where the vocabulary
//! has no such token. Text that may be the beginning of a delimiter is held back. Text of a call is
//! never spoken; the text behind it is speech again.

use walla_action::{
    CallLimits, CallMarkers, CallParser, Delimiter, Input, MalformedCall, ParsedCall, Progress,
};
use walla_types::TokenId;

/// A part of a reply.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece<'a> {
    /// Speech: a token, and the part of its bytes that is spoken.
    Speech(TokenId, &'a [u8]),
    /// A call opens.
    Opened,
    /// A call has ended.
    Call(Result<ParsedCall, MalformedCall>),
}

/// Receives the parts of a reply, in order.
type Sink<'a> = dyn FnMut(Piece<'_>) + 'a;

/// The calls of one agent's replies, one reply at a time.
#[derive(Debug)]
pub(crate) struct CallReader {
    markers: CallMarkers,
    parser: CallParser,
    /// Tokens that are held back, with the positions in `text` where they end.
    held: Vec<(TokenId, usize)>,
    /// Their text.
    text: Vec<u8>,
    /// Only white space has been spoken.
    is_blank: bool,
    /// Text of the open call behind its opening delimiter, of the token with the delimiter.
    behind: Vec<u8>,
    /// Tokens of calls.
    tokens: u32,
}

impl CallReader {
    pub(crate) fn new(markers: CallMarkers) -> Self {
        Self {
            markers,
            parser: CallParser::new(&markers, CallLimits::default()),
            held: Vec::new(),
            text: Vec::new(),
            is_blank: true,
            behind: Vec::new(),
            tokens: 0,
        }
    }

    /// Begins a reply whose calls have at most `bytes_max` bytes each.
    pub(crate) fn begin(&mut self, bytes_max: usize) {
        self.parser = CallParser::new(&self.markers, CallLimits { bytes_max });
        self.held.clear();
        self.text.clear();
        self.behind.clear();
        (self.is_blank, self.tokens) = (true, 0);
    }

    /// Whether a call is open.
    pub(crate) fn is_open(&self) -> bool {
        self.parser.is_open()
    }

    /// Whether a token is a delimiter of calls, and not the end of a reply.
    pub(crate) fn is_delimiter(&self, token: TokenId) -> bool {
        match self.markers.of_token(token) {
            Some(Delimiter::Open) => true,
            Some(_) => self.is_open(),
            None => false,
        }
    }

    /// Tokens of calls so far.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Text of the open call behind its opening delimiter, when it was opened.
    pub(crate) fn behind(&self) -> &[u8] {
        &self.behind
    }

    /// Takes a token of the reply, and passes its parts to `sink`.
    pub(crate) fn push(&mut self, token: TokenId, bytes: &[u8], sink: &mut Sink<'_>) {
        let delimiter = self.markers.of_token(token);
        if self.is_open() {
            self.tokens += 1;
            let input = delimiter.map_or(Input::Text(bytes), Input::Delimiter);
            if let Progress::Closed { consumed } = self.parser.push(input) {
                let rest = if delimiter.is_some() { &[][..] } else { &bytes[consumed..] };
                self.go_on(token, rest, sink);
            }
            return;
        }
        if delimiter == Some(Delimiter::Open) {
            self.release(sink);
            self.tokens += 1;
            return self.open(sink);
        }
        if delimiter.is_some() {
            // Outside of a call it means nothing, and it is not speech.
            self.tokens += 1;
            return;
        }
        let searches = self.markers.open_text().is_some()
            || (self.is_blank && self.markers.opens_with_brace());
        if !searches {
            return sink(Piece::Speech(token, bytes));
        }
        self.hold(token, bytes);
        self.search(sink);
    }

    /// The reply has ended: passes the rest to `sink`.
    pub(crate) fn finish(&mut self, sink: &mut Sink<'_>) {
        self.release(sink);
        self.parser.finish();
        self.report(sink);
    }

    fn report(&mut self, sink: &mut Sink<'_>) {
        for call in self.parser.take_calls() {
            sink(Piece::Call(call));
        }
    }

    fn open(&mut self, sink: &mut Sink<'_>) {
        self.behind.clear();
        self.is_blank = false;
        self.parser.begin();
        sink(Piece::Opened);
    }

    /// A call has ended within a token, whose rest is speech.
    fn go_on(&mut self, token: TokenId, rest: &[u8], sink: &mut Sink<'_>) {
        self.report(sink);
        if rest.is_empty() {
            return;
        }
        if self.markers.open_text().is_none() {
            return sink(Piece::Speech(token, rest));
        }
        self.hold(token, rest);
        self.search(sink);
    }

    fn hold(&mut self, token: TokenId, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
        self.held.push((token, self.text.len()));
    }

    /// Searches an opening delimiter in the held text, and releases what cannot be part of one.
    fn search(&mut self, sink: &mut Sink<'_>) {
        if self.is_blank && self.markers.opens_with_brace() {
            match self.text.iter().position(|byte| !byte.is_ascii_whitespace()) {
                None => return,
                Some(at) if self.text[at] == b'{' => return self.open_at(at, at, sink),
                Some(_) => self.is_blank = false,
            }
        }
        let Some(marker) = self.markers.open_text() else {
            return self.release(sink);
        };
        let marker = marker.as_bytes();
        if let Some(at) = self.text.windows(marker.len()).position(|part| part == marker) {
            return self.open_at(at, at + marker.len(), sink);
        }
        let longest = self.text.len().min(marker.len() - 1);
        let begun = (1..=longest).rev().find(|&len| self.text.ends_with(&marker[..len]));
        let spoken = self.text.len() - begun.unwrap_or(0);
        // A token is spoken as a whole, so the one with the beginning of a delimiter is kept.
        let whole = self.held.iter().take_while(|(_, end)| *end <= spoken).count();
        self.release_first(whole, sink);
    }

    /// Opens a call whose delimiter is at these bytes of the held text.
    fn open_at(&mut self, begin: usize, end: usize, sink: &mut Sink<'_>) {
        let rest = self.text.split_off(end);
        let is_speech = self.markers.opens_with_brace() && begin == end;
        let mut from = 0;
        let mut last = None;
        for (token, to) in std::mem::take(&mut self.held) {
            let spoken = to.min(begin);
            // White space in front of a bare call is not speech.
            if spoken > from && !is_speech {
                sink(Piece::Speech(token, &self.text[from..spoken]));
            } else {
                self.tokens += 1;
            }
            from = spoken.max(from);
            last = Some(token);
        }
        self.text.clear();
        self.open(sink);
        self.behind.extend_from_slice(&rest);
        let progress = self.parser.push(Input::Text(&rest));
        if let (Progress::Closed { consumed }, Some(token)) = (progress, last) {
            self.go_on(token, &rest[consumed..], sink);
        }
    }

    fn release(&mut self, sink: &mut Sink<'_>) {
        self.release_first(self.held.len(), sink);
    }

    fn release_first(&mut self, count: usize, sink: &mut Sink<'_>) {
        let mut from = 0;
        for (token, to) in self.held.drain(..count) {
            sink(Piece::Speech(token, &self.text[from..to]));
            from = to;
        }
        self.text.drain(..from);
        self.held.iter_mut().for_each(|(_, end)| *end -= from);
    }
}
