//! Reads calls while the text of a reply arrives.
//!
//! The parser keeps the text of the open call and looks for its end. The text is parsed as a whole
//! when the call is closed: bounded by the maximum length of a call, linear in time.

mod json;
mod literal;
mod python;
mod scan;
pub mod unmarked;
mod xml;

use crate::{CallError, CallFormat, CallMarkers, Delimiter, MalformedCall, ParsedCall};
use scan::Scanner;
use unmarked::Syntax;

/// A part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'t> {
    /// Text. It may be cut anywhere, also inside a character.
    Text(&'t [u8]),
    /// A special token that is a delimiter.
    Delimiter(Delimiter),
}

/// State of the parser after a part of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The call is open.
    Open,
    /// No call is open.
    Closed {
        /// Number of bytes of the text that belong to the call. The rest is speech. 0 for a
        /// delimiter, and for text when no call was open before.
        consumed: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open,
    /// The call is too long. It was reported; its end is awaited.
    TooLong,
}

/// Marks [`Delimiter::Args`] in the kept text. UTF-8 does not have this byte.
const ARGS: u8 = 0xff;

/// Marks [`Delimiter::Quote`] in the kept text.
const QUOTE: u8 = 0xfe;

/// Replaces bytes that are not part of UTF-8.
const INVALID: u8 = 0xfd;

/// Maximum number of calls in one block; further ones are one error.
const MAX_CALLS: usize = 64;

/// Reads the calls of one reply.
///
/// # Examples
/// See the [crate documentation](crate#examples).
#[derive(Clone, Debug)]
pub struct CallParser {
    markers: CallMarkers,
    max_bytes: usize,
    state: State,
    /// The open call has no markers.
    unmarked: Option<Syntax>,
    scanner: Scanner,
    /// Text of the open call.
    bytes: Vec<u8>,
    calls: Vec<Result<ParsedCall, MalformedCall>>,
}

impl CallParser {
    /// A usual maximum length of a block of calls in bytes: above that of any call that a
    /// [grammar](crate::call_grammar) of usual schemas allows.
    pub const MAX_BYTES: usize = 16 << 10;

    /// A parser without an open call, for blocks of calls of at most `max_bytes` bytes without
    /// their delimiters. It allocates when a call opens.
    #[must_use]
    pub fn new(markers: &CallMarkers, max_bytes: usize) -> Self {
        Self {
            markers: *markers,
            max_bytes,
            state: State::Closed,
            unmarked: None,
            scanner: Scanner::new(markers),
            bytes: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Opens a call: [`push`](Self::push) receives the text behind the opening delimiter next. For
    /// a call of Llama without a delimiter the text begins with `{`.
    ///
    /// An open call becomes [`CallError::Unfinished`].
    pub fn begin(&mut self) {
        self.open(None);
    }

    /// Opens a call without markers, which ends with its last bracket. [`push`](Self::push)
    /// receives its text from the beginning.
    ///
    /// An open call becomes [`CallError::Unfinished`].
    pub fn begin_unmarked(&mut self, syntax: Syntax) {
        self.open(Some(syntax));
    }

    fn open(&mut self, unmarked: Option<Syntax>) {
        self.finish();
        self.state = State::Open;
        self.unmarked = unmarked;
        self.scanner = unmarked.map_or_else(|| Scanner::new(&self.markers), Scanner::unmarked);
        self.bytes.clear();
    }

    /// Whether a call is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// Reads a part of the reply while a call is open. If none is open, only
    /// [`Delimiter::Open`] has an effect: it [begins](Self::begin) a call.
    pub fn push(&mut self, input: Input<'_>) -> Progress {
        match input {
            Input::Delimiter(Delimiter::Open) => self.begin(),
            _ if !self.is_open() => {}
            Input::Delimiter(Delimiter::Close)
                if self.unmarked.is_some()
                    || self.markers.format().text(Delimiter::Close).is_some() =>
            {
                self.close();
            }
            Input::Delimiter(Delimiter::Close) => {}
            Input::Delimiter(Delimiter::Args) => self.mark(ARGS),
            Input::Delimiter(Delimiter::Quote) => self.mark(QUOTE),
            Input::Text(text) => {
                for (index, &byte) in text.iter().enumerate() {
                    // No text may forge the marks of special tokens.
                    let byte = if byte >= INVALID { INVALID } else { byte };
                    self.keep(byte);
                    if self.scanner.advance(byte, &mut self.bytes) {
                        self.close();
                        return Progress::Closed { consumed: index + 1 };
                    }
                }
            }
        }
        if self.is_open() { Progress::Open } else { Progress::Closed { consumed: 0 } }
    }

    /// Ends the reply. An open call becomes [`CallError::Unfinished`], unless its text is complete:
    /// an end-of-generation token may take the place of the closing delimiter.
    pub fn finish(&mut self) {
        if self.state == State::Open {
            let first = self.calls.len();
            self.parse();
            let is_complete = self.calls.iter().skip(first).all(Result::is_ok);
            if !is_complete {
                self.calls.truncate(first);
                self.fail(CallError::Unfinished);
            }
        }
        self.state = State::Closed;
        self.bytes.clear();
    }

    /// Removes and returns the calls that were closed, in order.
    pub fn take_calls(&mut self) -> impl Iterator<Item = Result<ParsedCall, MalformedCall>> {
        self.calls.drain(..)
    }

    fn mark(&mut self, mark: u8) {
        self.keep(mark);
        self.scanner.advance(mark, &mut self.bytes);
    }

    /// Appends a byte. Of a call that is too long only the end is kept, for the closing delimiter.
    fn keep(&mut self, byte: u8) {
        let longest = self.max_bytes.saturating_add(crate::MAX_DELIMITER_BYTES);
        if self.state == State::Open && self.bytes.len() >= longest {
            self.fail(CallError::TooLong { max_bytes: self.max_bytes });
            self.state = State::TooLong;
        }
        if self.state == State::TooLong && self.bytes.len() > 4 * crate::MAX_DELIMITER_BYTES {
            let kept = self.bytes.len() - crate::MAX_DELIMITER_BYTES;
            self.bytes.drain(..kept);
        }
        self.bytes.push(byte);
    }

    fn close(&mut self) {
        if self.state == State::Open {
            // `keep` accepts a delimiter more, which the scanner has removed by now.
            if self.bytes.len() > self.max_bytes {
                self.fail(CallError::TooLong { max_bytes: self.max_bytes });
            } else {
                self.parse();
            }
        }
        self.state = State::Closed;
        self.bytes.clear();
    }

    /// Parses the kept text.
    fn parse(&mut self) {
        let parsed = match self.unmarked {
            Some(syntax) => syntax.parse(&self.bytes),
            None => parse(self.markers.format(), &self.bytes),
        };
        match parsed {
            Ok(calls) if calls.len() <= MAX_CALLS => {
                for call in calls {
                    match call {
                        Ok(call) => self.calls.push(Ok(call)),
                        Err(reason) => self.fail(CallError::Syntax { reason }),
                    }
                }
            }
            Ok(_) => self.fail(CallError::Syntax { reason: "too many calls" }),
            Err(reason) => self.fail(CallError::Syntax { reason }),
        }
    }

    fn fail(&mut self, error: CallError) {
        let is_text = |byte: &&u8| **byte != ARGS && **byte != QUOTE;
        let shown = self.bytes.iter().filter(is_text).take(MalformedCall::MAX_TEXT_BYTES);
        let shown: Vec<u8> = shown.copied().collect();
        self.calls.push(Err(MalformedCall::new(&shown, error)));
    }
}

/// Parses a block of calls.
fn parse(format: CallFormat, text: &[u8]) -> Calls {
    match format {
        CallFormat::HermesJson | CallFormat::Plain | CallFormat::LlamaJson | CallFormat::Phi4 => {
            json::calls(text)
        }
        CallFormat::MistralList | CallFormat::MistralNamed => json::mistral(text),
        CallFormat::QwenXml => xml::calls(text),
        CallFormat::Lfm2 => python::list(text),
        CallFormat::Gemma4 => python::gemma(text),
    }
}

impl Syntax {
    /// Parses a call without markers.
    fn parse(self, text: &[u8]) -> Calls {
        match self {
            Self::Json => json::lenient(text),
            Self::Named => json::mistral(text),
            Self::Python => python::list(text),
            Self::Gemma => python::gemma(text),
            Self::Xml => xml::calls(text),
        }
    }
}

/// A call, or its defect.
type Parsed = Result<ParsedCall, &'static str>;

/// The calls of a block, or the defect of each one; or the defect of the block.
type Calls = Result<Vec<Parsed>, &'static str>;
