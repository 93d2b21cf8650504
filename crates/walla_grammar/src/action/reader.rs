//! Separates the calls of a reply from its speech.

use walla_types::TokenId;

use crate::unmarked::{Beginning, Closing, Syntax, beginning};
use crate::{
    ActionSet, CallError, CallMarkers, CallParser, Delimiter, Input, MAX_DELIMITER_BYTES,
    MalformedCall, ParsedCall, Progress, unmarked_start,
};

/// The treatment of calls of known actions without the markers of the model's format.
///
/// Small models write calls as bare JSON, in a block of code, or in the syntax of another family.
/// Such a call is recognised at the beginning of a reply, behind another call, and as JSON or with
/// markers at the beginning of a line. Until a text is known to be a call or not, it is held back;
/// so it is never spoken. From the name of the action on, draws are limited to valid arguments, if
/// the syntax is the one of the format.
///
/// A reply with a constraint has no such calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum UnmarkedCalls {
    /// It is a call like others.
    #[default]
    Call,
    /// It is refused with [`CallError::Unmarked`].
    Refuse,
}

/// A part of a reply.
#[derive(Debug, PartialEq)]
pub enum Piece<'a> {
    /// Speech: a token, and the part of its bytes that is spoken.
    Speech(TokenId, &'a [u8]),
    /// A call opens.
    Opened,
    /// A call has ended.
    Call(Result<ParsedCall, MalformedCall>),
}

/// Where a text begins in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Only white space is in front of it.
    Reply,
    /// Behind a call.
    Call,
    /// At the beginning of a line.
    Line,
    Else,
}

/// A call in the held text, or its possible beginning.
enum Found {
    /// A call between these bytes of the held text: its delimiter, or the markers in front of a
    /// call without one.
    Call { begin: usize, end: usize, syntax: Option<Syntax> },
    /// Perhaps the beginning of a call from this byte on.
    Perhaps(usize),
}

/// Receives the parts of a reply, in order.
pub type Sink<'a> = dyn FnMut(Piece<'_>) + 'a;

/// Separates the calls of one agent's replies from speech, one reply at a time.
///
/// A call opens at a delimiter: a special token, or a text in any tokenisation where the vocabulary
/// has no such token. A call without its delimiter ([`UnmarkedCalls`]) opens at the beginning of
/// the reply or of a line, or behind another call. Text that may be the beginning of either is held
/// back. Text of a call is never spoken; the text behind it is speech again.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use walla_grammar::{ActionSet, ActionSpec, CallMarkers, CallReader, Piece, UnmarkedCalls};
/// use walla_types::TokenId;
///
/// let wave = ActionSpec::new("wave", "", &json!({"type": "object"}))?;
/// let mut reader = CallReader::new(CallMarkers::text_only());
/// reader.begin(4_096, Some((ActionSet::new([wave])?, UnmarkedCalls::Call)));
/// let (mut speech, mut calls) = (String::new(), Vec::new());
/// for text in ["```json\n{\"name\"", ": \"wave\", \"arguments\": {}}\n```", " Bye."] {
///     reader.push(TokenId(0), text.as_bytes(), &mut |piece| match piece {
///         Piece::Speech(_, bytes) => speech.push_str(&String::from_utf8_lossy(bytes)),
///         Piece::Opened => {}
///         Piece::Call(call) => calls.push(call),
///     });
/// }
/// assert_eq!(speech, " Bye.");
/// assert_eq!(calls[0].as_ref().unwrap().name, "wave");
/// # Ok::<(), walla_grammar::ActionError>(())
/// ```
#[derive(Debug)]
pub struct CallReader {
    markers: CallMarkers,
    parser: CallParser,
    /// Tokens that are held back, with the positions in `text` where they end.
    held: Vec<(TokenId, usize)>,
    /// Their text.
    text: Vec<u8>,
    /// What may be called without a delimiter.
    unmarked: Option<(ActionSet, UnmarkedCalls)>,
    /// The beginning of the held text.
    place: Place,
    /// Of the latest call without delimiters: which markers may close it.
    closing: Option<Closing>,
    /// Of the latest call without delimiters, with only white space behind it.
    outer: Option<Closing>,
    /// Bytes of a call, at most; also of held text.
    max_bytes: usize,
    /// The open call has no delimiters.
    is_unmarked: bool,
    /// Text of the open call behind its opening delimiter, of the token with the delimiter. `None`:
    /// not a beginning of the format.
    behind: Option<Vec<u8>>,
    /// Tokens of calls.
    tokens: u32,
}

impl CallReader {
    /// A reader of calls with these delimiters.
    #[must_use]
    pub fn new(markers: CallMarkers) -> Self {
        Self {
            markers,
            parser: CallParser::new(&markers, CallParser::MAX_BYTES),
            held: Vec::new(),
            text: Vec::new(),
            unmarked: None,
            place: Place::Reply,
            closing: None,
            outer: None,
            max_bytes: 0,
            is_unmarked: false,
            behind: None,
            tokens: 0,
        }
    }

    /// Begins a reply whose calls have at most `max_bytes` bytes each. `unmarked`: actions that may
    /// also be called without delimiters.
    pub fn begin(&mut self, max_bytes: usize, unmarked: Option<(ActionSet, UnmarkedCalls)>) {
        let Self { markers, held, text, .. } = self;
        held.clear();
        text.clear();
        let (markers, held, text) = (*markers, std::mem::take(held), std::mem::take(text));
        let parser = CallParser::new(&markers, max_bytes);
        *self = Self { parser, held, text, unmarked, max_bytes, ..Self::new(markers) };
    }

    /// Whether a call is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.parser.is_open()
    }

    /// Whether a token is a delimiter of calls, and not the end of a reply.
    #[must_use]
    pub fn is_delimiter(&self, token: TokenId) -> bool {
        match self.markers.of_token(token) {
            Some(Delimiter::Open) => true,
            Some(_) => self.is_open(),
            None => false,
        }
    }

    /// Tokens of calls so far.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Tokens that are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Text of the open call behind its opening delimiter, when it was opened. `None`: the grammar
    /// of the format has no such text.
    #[must_use]
    pub fn behind(&self) -> Option<&[u8]> {
        self.behind.as_deref()
    }

    /// Takes a token of the reply, and passes its parts to `sink`.
    pub fn push(&mut self, token: TokenId, bytes: &[u8], sink: &mut Sink<'_>) {
        let delimiter = self.markers.of_token(token);
        // No call without delimiters contains one: the open call was cut short.
        if delimiter == Some(Delimiter::Open) && self.is_open() && self.is_unmarked {
            self.tokens += 1;
            self.parser.finish();
            self.report(sink);
            return self.open(None, sink);
        }
        if self.is_open() {
            self.tokens += 1;
            let input = delimiter.map_or(Input::Text(bytes), Input::Delimiter);
            if let Progress::Closed { consumed } = self.parser.push(input) {
                let rest = if delimiter.is_some() {
                    &[][..]
                } else {
                    bytes.get(consumed..).unwrap_or_default()
                };
                self.go_on(token, rest, sink);
            }
            return;
        }
        if delimiter == Some(Delimiter::Open) {
            self.drop_wrapper();
            self.end_unfinished(sink);
            self.tokens += 1;
            return self.open(None, sink);
        }
        if delimiter.is_some() {
            // Outside of a call it means nothing, and it is not speech.
            self.tokens += 1;
            return;
        }
        let searches = self.markers.open_text().is_some()
            || (self.place == Place::Reply && self.markers.opens_with_brace())
            || self.may_be_unmarked(bytes);
        if !searches {
            return sink(Piece::Speech(token, bytes));
        }
        self.hold(token, bytes);
        self.search(sink);
    }

    /// The reply has ended: passes the rest to `sink`.
    pub fn finish(&mut self, sink: &mut Sink<'_>) {
        self.end_unfinished(sink);
        self.parser.finish();
        self.report(sink);
    }

    /// No more text follows the held text.
    fn end_unfinished(&mut self, sink: &mut Sink<'_>) {
        if let Some((begin, end, syntax)) = self.unfinished() {
            self.open_at(begin, end, Some(syntax), sink);
            self.parser.finish();
            self.report(sink);
        }
        self.release(sink);
    }

    fn report(&mut self, sink: &mut Sink<'_>) {
        let refuses = self.refuses();
        for call in self.parser.take_calls() {
            sink(Piece::Call(match call {
                Ok(call) if refuses => Err(call.refused(CallError::Unmarked)),
                call => call,
            }));
        }
    }

    fn open(&mut self, syntax: Option<Syntax>, sink: &mut Sink<'_>) {
        self.place = Place::Else;
        self.is_unmarked = syntax.is_some();
        self.behind = syntax.is_none().then(Vec::new);
        match syntax {
            Some(syntax) => self.parser.begin_unmarked(syntax),
            None => self.parser.begin(),
        }
        sink(Piece::Opened);
    }

    /// A call has ended within a token, whose rest is speech.
    fn go_on(&mut self, token: TokenId, rest: &[u8], sink: &mut Sink<'_>) {
        self.report(sink);
        self.place = Place::Call;
        if rest.is_empty() {
            return;
        }
        if self.markers.open_text().is_none() && self.unmarked.is_none() {
            return sink(Piece::Speech(token, rest));
        }
        self.hold(token, rest);
        self.search(sink);
    }

    fn hold(&mut self, token: TokenId, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
        self.held.push((token, self.text.len()));
    }

    /// Whether text that ends with `bytes` may have a call without delimiter.
    fn may_be_unmarked(&self, bytes: &[u8]) -> bool {
        let is_place = self.place != Place::Else || !self.held.is_empty();
        self.unmarked.is_some() && (is_place || bytes.contains(&b'\n'))
    }

    /// Searches a call in the held text, and releases what cannot be part of one.
    fn search(&mut self, sink: &mut Sink<'_>) {
        // Before the search: closing markers of the last call are neither speech nor a new call.
        if let Some(closing) = self.closing {
            let (len, rest, is_open) = closing.read(&self.text);
            self.drop_range(0, len);
            let partial = self.text.trim_ascii_start().len();
            let is_held = partial <= MAX_DELIMITER_BYTES && self.text.len() <= self.max_bytes;
            self.closing = Some(rest).filter(|_| is_open && is_held);
            self.outer = Some(rest);
            if self.closing.is_some() {
                return;
            }
        }
        let marker = self.find_marker();
        let unmarked = self.find_unmarked().filter(|found| !self.is_in_front(found, &marker));
        let spoken =
            match [self.find_brace(), marker, unmarked].into_iter().flatten().min_by_key(|found| {
                match found {
                    // At one place a call that is there wins over one that may come.
                    Found::Call { begin, .. } => (*begin, 0),
                    Found::Perhaps(begin) => (*begin, 1),
                }
            }) {
                Some(Found::Call { begin, end, syntax }) => {
                    return self.open_at(begin, end, syntax, sink);
                }
                Some(Found::Perhaps(begin)) if self.text.len() - begin <= self.max_bytes => begin,
                _ => self.text.len(),
            };
        // A token is spoken as a whole, so the one with the beginning of a call is kept.
        let whole = self.held.iter().take_while(|(_, end)| *end <= spoken).count();
        self.release_first(whole, sink);
    }

    /// Whether only white space separates the beginning of a call without delimiter from the
    /// delimiter of the model's format, which the former then contains.
    fn is_in_front(&self, unmarked: &Found, marker: &Option<Found>) -> bool {
        let (Found::Call { begin, .. } | Found::Perhaps(begin)) = unmarked;
        let Some(Found::Call { begin: marker, .. }) = marker else { return false };
        self.text.get(*begin..*marker).is_some_and(|space| space.trim_ascii().is_empty())
    }

    fn find_brace(&self) -> Option<Found> {
        if self.place != Place::Reply || !self.markers.opens_with_brace() {
            return None;
        }
        match self.text.iter().position(|byte| !byte.is_ascii_whitespace()) {
            None => Some(Found::Perhaps(0)),
            Some(at) if self.text.get(at) == Some(&b'{') => {
                Some(Found::Call { begin: at, end: at, syntax: None })
            }
            Some(_) => None,
        }
    }

    fn find_marker(&self) -> Option<Found> {
        let marker = self.markers.open_text()?.as_bytes();
        if let Some(at) = self.text.windows(marker.len()).position(|part| part == marker) {
            return Some(Found::Call { begin: at, end: at + marker.len(), syntax: None });
        }
        let longest = self.text.len().min(marker.len() - 1);
        // The longest one, so that no byte of a marker is spoken.
        let begun = (1..=longest)
            .rev()
            .find(|&len| marker.get(..len).is_some_and(|part| self.text.ends_with(part)));
        begun.map(|begun| Found::Perhaps(self.text.len() - begun))
    }

    fn find_unmarked(&self) -> Option<Found> {
        self.beginnings().find_map(|(begin, beginning)| match beginning {
            Beginning::Call { at, syntax } => {
                Some(Found::Call { begin, end: begin + at, syntax: Some(syntax) })
            }
            Beginning::Open { .. } => Some(Found::Perhaps(begin)),
            Beginning::Speech { .. } => None,
        })
    }

    /// Calls that begin where a call without delimiter may begin, with these places.
    fn beginnings(&self) -> impl Iterator<Item = (usize, Beginning)> {
        let lines = self.text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let first = (self.place != Place::Else).then_some((0, self.place != Place::Line));
        let all = first.into_iter().chain(lines.map(|(at, _)| (at + 1, false)));
        // No call begins within an object that is speech.
        let mut after = 0;
        all.filter_map(move |(begin, is_reply)| {
            let (actions, _) = self.unmarked.as_ref()?;
            let text = self.text.get(begin..).filter(|_| begin >= after)?;
            // White space of a speech is spoken.
            let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
            if !is_reply && line.trim_ascii().is_empty() {
                return None;
            }
            let found = beginning(text, actions, is_reply);
            if let Beginning::Speech { end } = found {
                after = begin + end;
            }
            Some((begin, found))
        })
    }

    /// The call that the held text is, if the reply ends here.
    fn unfinished(&self) -> Option<(usize, usize, Syntax)> {
        self.beginnings().find_map(|(begin, beginning)| match beginning {
            Beginning::Open { unfinished: Some((at, syntax)), .. } => {
                Some((begin, begin + at, syntax))
            }
            _ => None,
        })
    }

    /// Drops markers of other formats in front of a delimiter.
    fn drop_wrapper(&mut self) {
        let is_wrapper =
            |beginning: &Beginning| matches!(beginning, Beginning::Open { is_wrapper: true, .. });
        let found = self.beginnings().find(|(_, beginning)| is_wrapper(beginning));
        if let Some((begin, _)) = found {
            self.closing = Some(Closing::of(self.text.get(begin..).unwrap_or_default()));
            let end = self.text.len();
            self.drop_range(begin, end);
        }
    }

    /// Drops bytes of the held text. Tokens without other bytes belong to a call.
    fn drop_range(&mut self, begin: usize, end: usize) {
        let (mut from, mut dropped) = (0, 0);
        self.held.retain_mut(|(_, to)| {
            *to -= (*to).min(end).saturating_sub(begin);
            let is_left = *to > from;
            dropped += u32::from(!is_left);
            from = *to;
            is_left
        });
        self.tokens += dropped;
        self.text.drain(begin..end);
    }

    /// Opens a call whose delimiter is at these bytes of the held text.
    fn open_at(&mut self, begin: usize, end: usize, syntax: Option<Syntax>, sink: &mut Sink<'_>) {
        let rest = self.text.split_off(end);
        // White space in front of a bare call of Llama is not speech.
        let is_bare = syntax.is_none() && begin == end;
        if syntax.is_some() {
            let closing = Closing::of(self.text.get(begin..).unwrap_or_default());
            self.closing = Some(closing.within(self.outer.take()));
        }
        let mut from = 0;
        let mut last = None;
        for (token, to) in std::mem::take(&mut self.held) {
            let spoken = to.min(begin);
            if spoken > from && !is_bare {
                sink(Piece::Speech(token, self.text.get(from..spoken).unwrap_or_default()));
            } else {
                self.tokens += 1;
            }
            from = spoken.max(from);
            last = Some(token);
        }
        self.text.clear();
        self.open(syntax, sink);
        self.behind = match syntax {
            None => Some(rest.clone()),
            Some(_) if self.refuses() => None,
            Some(syntax) => unmarked_start(self.markers.format(), syntax, &rest),
        };
        let progress = self.parser.push(Input::Text(&rest));
        if let (Progress::Closed { consumed }, Some(token)) = (progress, last) {
            self.go_on(token, rest.get(consumed..).unwrap_or_default(), sink);
        }
    }

    /// Whether the open call is refused because it has no delimiters.
    fn refuses(&self) -> bool {
        let policy = self.unmarked.as_ref().map(|(_, policy)| *policy);
        self.is_unmarked && policy == Some(UnmarkedCalls::Refuse)
    }

    fn release(&mut self, sink: &mut Sink<'_>) {
        self.release_first(self.held.len(), sink);
    }

    fn release_first(&mut self, count: usize, sink: &mut Sink<'_>) {
        let mut from = 0;
        for (token, to) in self.held.drain(..count) {
            sink(Piece::Speech(token, self.text.get(from..to).unwrap_or_default()));
            from = to;
        }
        let speech = self.text.get(..from).unwrap_or_default();
        self.outer = self.outer.filter(|_| speech.trim_ascii().is_empty());
        self.place = self.place.behind(speech);
        self.text.drain(..from);
        self.held.iter_mut().for_each(|(_, end)| *end -= from);
    }
}

impl Place {
    /// The place behind more speech.
    fn behind(self, speech: &[u8]) -> Self {
        let line = speech.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        if !line.trim_ascii().is_empty() {
            Self::Else
        } else if speech.trim_ascii().is_empty() && self != Self::Else {
            self
        } else if line.len() < speech.len() {
            Self::Line
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use walla_doubles::synth::{self, Dialect, Mixture, Model};
    use walla_model::Gguf;
    use walla_model::tokenizer::Tokenizer;

    use super::*;
    use crate::{ActionSpec, CallFormat};

    /// Markers of a vocabulary with these special tokens.
    fn markers(format: CallFormat, special: &[&str]) -> (CallMarkers, Tokenizer) {
        let dialect = Dialect { template: "{{ messages }}", special };
        let file = synth::write_dialect(&Model::TINY, Mixture::Q8_0, 7, &dialect, Vec::new());
        let file = Gguf::from_static(Vec::leak(file.expect("a vector takes everything")));
        let tokenizer =
            Tokenizer::from_gguf(&file.expect("the file is sound")).expect("a vocabulary");
        (CallMarkers::new(format, &tokenizer), tokenizer)
    }

    /// A special token and its text.
    fn special_piece<'t>(tokenizer: &'t Tokenizer, text: &str) -> (TokenId, &'t [u8]) {
        let token = tokenizer.special_token(text).expect("the vocabulary has it");
        (token, tokenizer.text_bytes(token))
    }

    /// Speech, and one letter for each event: `(` opened, `)` a valid call, `!` a malformed one.
    fn read(markers: CallMarkers, pieces: &[(TokenId, &[u8])]) -> String {
        read_with(markers, None, pieces)
    }

    fn read_with(
        markers: CallMarkers,
        unmarked: Option<(ActionSet, UnmarkedCalls)>,
        pieces: &[(TokenId, &[u8])],
    ) -> String {
        let mut reader = CallReader::new(markers);
        reader.begin(1_000, unmarked);
        let mut seen: Vec<u8> = Vec::new();
        let mut spoken = 0;
        let mut sink = |piece: Piece<'_>| match piece {
            Piece::Speech(_, bytes) => {
                spoken += 1;
                seen.extend_from_slice(bytes);
            }
            Piece::Opened => seen.push(b'('),
            Piece::Call(Ok(_)) => seen.push(b')'),
            Piece::Call(Err(_)) => seen.push(b'!'),
        };
        for (token, bytes) in pieces {
            reader.push(*token, bytes, &mut sink);
        }
        reader.finish(&mut sink);
        // A token counts once, unless it ends a call and is speech behind it.
        let counted = spoken + reader.tokens();
        assert!((counted as usize) >= pieces.len() && reader.held() == 0, "{pieces:?}");
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

    fn actions() -> ActionSet {
        let schema = json!({"type": "object", "properties": {"item": {"type": "string"}}});
        let spec = |name| ActionSpec::new(name, "", &schema).expect("a valid action");
        ActionSet::new(["sell", "sell_all"].map(spec)).expect("a valid set")
    }

    /// As [`read_split`], of a reply with calls without delimiters.
    fn read_unmarked(markers: CallMarkers, text: &str, expected: &str) {
        for size in 1..=text.len() {
            let pieces: Vec<_> =
                text.as_bytes().chunks(size).map(|piece| (TokenId(1), piece)).collect();
            let unmarked = Some((actions(), UnmarkedCalls::Call));
            assert_eq!(read_with(markers, unmarked, &pieces), expected, "{size} bytes of {text:?}");
        }
    }

    /// A call of `sell`, as different models write it.
    const UNMARKED: [&str; 23] = [
        r#"{"name": "sell", "arguments": {"item": "axe"}}"#,
        r#"{{"name": "sell", "arguments": {"item": "axe"}}}"#,
        r#"  {"name":"sell","parameters":{"item":"a } b"}}"#,
        "{\n  \"name\": \"sell\",\n  \"arguments\": {\n    \"item\": \"axe\"\n  }\n}",
        r#"{"type": "function", "function": {"name": "sell", "arguments": {"item": "axe"}}}"#,
        r#"{"arguments": {"item": "axe"}, "name": "sell"}"#,
        r#"{"id": "call_1", "name": "sell", "arguments": "{\"item\": \"axe\"}"}"#,
        r#"{'name': 'sell', 'arguments': {'item': 'axe'}}"#,
        r#"[{"name": "sell", "arguments": {"item": "axe"}}]"#,
        "```json\n{\"name\": \"sell\", \"arguments\": {\"item\": \"axe\"}}\n```",
        "```\n{\"name\": \"sell\", \"arguments\": {\"item\": \"axe\"}}\n```\n",
        "<tools>\n{\"name\": \"sell\", \"arguments\": {\"item\": \"axe\"}}\n</tools>",
        r#"<|tool_call|>[{"name": "sell", "arguments": {"item": "axe"}}]<|/tool_call|>"#,
        r#"[TOOL_CALLS][{"name": "sell", "arguments": {"item": "axe"}}]"#,
        r#"[TOOL_CALLS]sell[ARGS]{"item": "axe"}"#,
        r#"<|python_tag|>{"name": "sell", "parameters": {"item": "axe"}}"#,
        r#"sell{"item": "axe"}"#,
        r#"sell[ARGS]{"item": "axe"}"#,
        r#"sell(item="a) axe")"#,
        r#"[sell(item='axe')]"#,
        r#"<|tool_call_start|>[sell(item="axe")]<|tool_call_end|>"#,
        r#"<|tool_call>call:sell{item:<|"|>axe<|"|>}<tool_call|>"#,
        "<function=sell>\n<parameter=item>\naxe\n</parameter>\n</function>",
    ];

    #[test]
    fn calls_without_delimiters_are_calls_in_any_split() {
        let special = ["<tool_call>", "</tool_call>"];
        let (hermes, _) = markers(CallFormat::HermesJson, &special);
        let (plain, _) = markers(CallFormat::Plain, &[]);
        let (named, _) = markers(CallFormat::MistralNamed, &["[TOOL_CALLS]", "[ARGS]"]);
        for markers in [hermes, plain, named] {
            for text in UNMARKED {
                let trimmed = text.trim_end();
                let end = &text[trimmed.len()..];
                read_unmarked(markers, text, &format!("(){end}"));
                read_unmarked(markers, &format!("{trimmed} Sold!"), "() Sold!");
                read_unmarked(markers, &format!("{trimmed}\n{text}"), &format!("()(){end}"));
            }
            // Behind speech: JSON, and calls with markers of other formats.
            for text in &UNMARKED[..16] {
                let text = text.trim();
                read_unmarked(markers, &format!("Here:\n{text}\nBye"), "Here:\n()\nBye");
            }
        }
        let text = format!("<tool_call>\n{}\n</tool_call>", UNMARKED[0]);
        for markers in [hermes, plain] {
            read_unmarked(markers, &text, "()");
            read_unmarked(markers, &format!("```xml\n{text}\n``` Sold!"), "() Sold!");
        }
    }

    #[test]
    fn other_text_is_speech_in_any_split() {
        let (hermes, _) = markers(CallFormat::HermesJson, &["<tool_call>", "</tool_call>"]);
        for text in [
            "sell is a verb.",
            "sell_all the things",
            "[sell it]",
            "Sell(item) is what I wrote.",
            "call: me {later}",
            "\n\nHello.\n\nBye.\n",
            " \n ",
            "```rust\nfn main() {}\n```",
            r#"{"mood": "glad", "name": "sell"}"#,
            r#"{"name": "Anna", "age": 3}"#,
            r#"{"name": "Anna"}"#,
            r#"{"name": 3}"#,
            r#"{"type": "elf", "arguments": "none"}"#,
            r#"[1, 2, {"name": "sell"}]"#,
            r#"I wrote {"name": "sell", "arguments": {}} there."#,
            "She said:\nsell(item=1)",
            "<function=foo> is how you write it. Then more.",
            "call:Anna{she waits} and more",
            "call:{}",
            "```\n```\n```\n```\n```\n```\n```\n",
            "Notes:\n{\"id\":\n{\"id\": 1}}",
            "<b>{</b>",
            "`sell`",
            "{",
            "{\"na",
        ] {
            read_unmarked(hermes, text, text);
        }
        // Longer than a call may be.
        let long = format!(r#"{{"type": "elf", "text": "{}"}}"#, "a".repeat(2_000));
        let pieces: Vec<_> = long.as_bytes().chunks(7).map(|piece| (TokenId(1), piece)).collect();
        let unmarked = Some((actions(), UnmarkedCalls::Call));
        assert_eq!(read_with(hermes, unmarked, &pieces), long);
    }

    #[test]
    fn calls_next_to_each_other_leave_no_marker() {
        let (hermes, _) = markers(CallFormat::HermesJson, &["<tool_call>", "</tool_call>"]);
        let (plain, _) = markers(CallFormat::Plain, &[]);
        let call = UNMARKED[0];
        for markers in [hermes, plain] {
            read_unmarked(markers, &format!("```json\n{call}\n{call}\n```"), "()()");
            read_unmarked(markers, &format!("{call}{}</tool_call>{call}", " ".repeat(30)), "()()");
            read_unmarked(markers, &format!("Hi\n\n{call}"), "Hi\n\n()");
            read_unmarked(markers, &format!("```json\n{{{call}}}\n```}} Hi"), "()} Hi");
            read_unmarked(markers, &format!("{call}}} Hi"), "()} Hi");
        }
        read_unmarked(plain, "\n<tool_call>\n{\"na", "\n(!");
        read_unmarked(plain, "Hi\n <tool_call>\n{\"na", "Hi\n (!");
    }

    /// An unfinished call without delimiters does not change the next one, which has them.
    #[test]
    fn a_delimiter_ends_a_call_without_one() {
        let special = ["<tool_call>", "</tool_call>"];
        let (hermes, tokenizer) = markers(CallFormat::HermesJson, &special);
        let [open, close] = special.map(|text| special_piece(&tokenizer, text));
        let text = |text: &'static str| (TokenId(1), text.as_bytes());
        let call = text(UNMARKED[0]);
        for policy in [UnmarkedCalls::Call, UnmarkedCalls::Refuse] {
            for begun in [r#"{"name": "sel"#, r#"{"name": "sell", "#, r#"{"id": "1", "name": "#] {
                let pieces = [text(begun), open, call, close];
                let read = read_with(hermes, Some((actions(), policy)), &pieces);
                assert_eq!(read, "(!()", "{begun} {policy:?}");
            }
        }
    }

    /// A server may send a whole reply in one piece.
    #[test]
    fn a_large_piece_takes_linear_time() {
        let (hermes, _) = markers(CallFormat::HermesJson, &["<tool_call>", "</tool_call>"]);
        let count = 20_000;
        for text in [
            format!("x{}x", "```\n".repeat(count)),
            format!("x{}x", "\n".repeat(count)),
            format!("x{}x", " \n".repeat(count)),
            format!("x{}1{}", "\n{\"id\":".repeat(count), "}".repeat(count)),
            format!("x{}", "\n{\"id\": 1}".repeat(count)),
            format!("x{}", "\nsell(".repeat(count)),
        ] {
            let begun = std::time::Instant::now();
            let pieces: [(TokenId, &[u8]); 1] = [(TokenId(1), text.as_bytes())];
            let unmarked = Some((actions(), UnmarkedCalls::Call));
            assert_eq!(read_with(hermes, unmarked, &pieces), text);
            // Quadratic time is minutes.
            assert!(begun.elapsed().as_secs() < 10, "{:?} {:?}", &text[..9], begun.elapsed());
        }
    }

    /// A call without delimiters that is cut, wrong or not accepted is refused, and not spoken.
    #[test]
    fn defective_calls_without_delimiters_are_refused() {
        let (hermes, _) = markers(CallFormat::HermesJson, &["<tool_call>", "</tool_call>"]);
        for text in [
            r#"{"name": "sell", "arguments": {"item": "a"#,
            r#"{"name": "sell""#,
            r#"{"name": "sel"#,
            r#"{"type": "function", "function": {"name": "sell", "#,
            r#"sell(item="axe""#,
            r#"sell("axe")"#,
            r#"{"name": "sell", "arguments": {"item": axe}}"#,
            "```json\n{\"name\": \"sell\", \"arguments\": {\"item\": \"axe\"",
            "<function=sell>\n<parameter=item>\naxe",
        ] {
            read_unmarked(hermes, text, "(!");
        }
        let whole: [(TokenId, &[u8]); 1] = [(TokenId(1), UNMARKED[0].as_bytes())];
        let refusing = Some((actions(), UnmarkedCalls::Refuse));
        assert_eq!(read_with(hermes, refusing, &whole), "(!");
    }

    /// Fragments of calls in random order: no text is lost, and nothing panics.
    #[test]
    fn random_fragments_are_read() {
        let fragments = [
            "```",
            "json",
            "\n",
            " ",
            "{",
            "}",
            "[",
            "]",
            "\"name\"",
            ":",
            "\"sell\"",
            "sell",
            "(",
            ")",
            "\"arguments\"",
            ",",
            "<tool_call>",
            "</tool_call>",
            "[ARGS]",
            "call:",
            "<function=",
            "sell>",
            "</function>",
            "Sold!",
            "'",
            "\"",
            "é",
            "<|\"|>",
            "<tools>",
        ];
        let (hermes, _) = markers(CallFormat::HermesJson, &["<tool_call>", "</tool_call>"]);
        let (plain, _) = markers(CallFormat::Plain, &[]);
        let (llama, _) = markers(CallFormat::LlamaJson, &[]);
        let mut random = 1_u64;
        for round in 0..20_000 {
            let mut text = String::new();
            let mut pieces = Vec::new();
            for _ in 0..12 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let fragment = fragments[(random % fragments.len() as u64) as usize];
                pieces.push((TokenId(1), fragment.as_bytes()));
                text.push_str(fragment);
            }
            let unmarked = Some((actions(), UnmarkedCalls::Call));
            let read = read_with([hermes, plain, llama][round % 3], unmarked, &pieces);
            // Speech is a subsequence of the text.
            let mut rest = text.chars();
            let is_part = |sign: char| sign == '!' || rest.any(|other| other == sign);
            let speech = read.replace("()", "").replace('(', "");
            assert!(speech.chars().all(is_part) || read.contains('!'), "{text:?}: {read:?}");
        }
    }

    #[test]
    fn token_delimiters_count_only_as_tokens() {
        let special = ["<tool_call>", "</tool_call>"];
        let (hermes, tokenizer) = markers(CallFormat::HermesJson, &special);
        let [open, close] = special.map(|text| special_piece(&tokenizer, text));
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
