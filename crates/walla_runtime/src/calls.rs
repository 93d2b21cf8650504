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

#[cfg(test)]
mod tests {
    use walla_action::CallFormat;
    use walla_model::Gguf;
    use walla_model::synth::{self, Dialect, Mixture, Model};
    use walla_model::tokenizer::Tokenizer;

    use super::*;

    /// Markers of a vocabulary with these special tokens.
    fn markers(format: CallFormat, special: &[&str]) -> (CallMarkers, Tokenizer) {
        let dialect = Dialect { template: "{{ messages }}", special };
        let file = synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new());
        let file = Gguf::from_static(Vec::leak(file.expect("a vector takes everything")));
        let tokenizer =
            Tokenizer::from_gguf(&file.expect("the file is sound")).expect("a vocabulary");
        (CallMarkers::new(format, &tokenizer), tokenizer)
    }

    /// Speech, and one letter for each event: `(` opened, `)` a valid call, `!` a malformed one.
    fn read(markers: CallMarkers, pieces: &[(TokenId, &[u8])]) -> String {
        let mut reader = CallReader::new(markers);
        reader.begin(1_000);
        let mut seen: Vec<u8> = Vec::new();
        let mut sink = |piece: Piece<'_>| match piece {
            Piece::Speech(_, bytes) => seen.extend_from_slice(bytes),
            Piece::Opened => seen.push(b'('),
            Piece::Call(Ok(_)) => seen.push(b')'),
            Piece::Call(Err(_)) => seen.push(b'!'),
        };
        for (token, bytes) in pieces {
            reader.push(*token, bytes, &mut sink);
        }
        reader.finish(&mut sink);
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// The text in pieces of every size, as ordinary tokens.
    fn read_split(markers: CallMarkers, text: &str, expected: &str) {
        for size in 1..=text.len() {
            let pieces: Vec<_> =
                text.as_bytes().chunks(size).map(|piece| (TokenId(1), piece)).collect();
            assert_eq!(read(markers, &pieces), expected, "{size} bytes of {text:?}");
        }
    }

    #[test]
    fn text_delimiters_are_found_in_any_split() {
        let (plain, _) = markers(CallFormat::Plain, &[]);
        let call = "<tool_call>\n{\"name\": \"wave\", \"arguments\": {}}\n</tool_call>";
        read_split(plain, call, "()");
        read_split(plain, &format!("Yes. {call} Bye."), "Yes. () Bye.");
        read_split(plain, &format!("{call}{call}"), "()()");
        read_split(plain, "a <tool <tool_cal> < <tool_", "a <tool <tool_cal> < <tool_");
        read_split(plain, "x<tool_call>nonsense</tool_call>y", "x(!y");
        read_split(plain, "x<tool_call>{\"name\": ", "x(!");
        let (llama, _) = markers(CallFormat::LlamaJson, &[]);
        let bare = "{\"name\": \"wave\", \"parameters\": {}}";
        read_split(llama, &format!("\n {bare}"), "()");
        read_split(llama, &format!("{bare} Bye {bare}"), &format!("() Bye {bare}"));
        read_split(llama, &format!("Hi {bare}"), &format!("Hi {bare}"));
        read_split(llama, " \n ", " \n ");
    }

    #[test]
    fn token_delimiters_count_only_as_tokens() {
        let special = ["<tool_call>", "</tool_call>"];
        let (hermes, tokenizer) = markers(CallFormat::HermesJson, &special);
        let [open, close] = special.map(|text| {
            let token = tokenizer.special_token(text).expect("the vocabulary has it");
            (token, tokenizer.text_bytes(token))
        });
        let text = |text: &'static str| (TokenId(1), text.as_bytes());
        let json = text("\n{\"name\": \"wave\", \"arguments\": {\"a\": \"</tool_call>\"}}\n");
        assert_eq!(read(hermes, &[text("Hi "), open, json, close, text(" Bye")]), "Hi () Bye");
        assert_eq!(read(hermes, &[text("Hi "), close, text("Bye")]), "Hi Bye", "a stray delimiter");
        assert_eq!(read(hermes, &[open, json, open, json, close]), "())", "a close is left out");
        let spelled = "Say <tool_call> and </tool_call>.";
        read_split(hermes, spelled, spelled);
    }

    /// Text in front of a delimiter is spoken before the call opens, and nothing is spoken twice.
    #[test]
    fn a_token_may_hold_speech_and_the_delimiter() {
        let (plain, _) = markers(CallFormat::Plain, &[]);
        let pieces: [(TokenId, &[u8]); 3] = [
            (TokenId(1), b"So! <tool"),
            (TokenId(2), b"_call>{\"name\": \"wave\", \"arguments\": {}}</tool_call> Bye"),
            (TokenId(3), b"!"),
        ];
        assert_eq!(read(plain, &pieces), "So! () Bye!");
    }
}
