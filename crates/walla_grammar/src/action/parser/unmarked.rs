//! Finds calls without their markers.
//!
//! Models also write calls as bare JSON, in a block of code, between markers that their vocabulary
//! does not have as tokens, or in the syntax of another family.

use super::Parsed;
use super::scan::Scanner;
use crate::schema::is_of_name;
use crate::{ActionSet, CallFormat, Delimiter};

/// The syntax of a call without markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syntax {
    /// `{"name": "f", "arguments": {…}}`, or a list of such objects.
    Json,
    /// `f{"k": "v"}` or `f[ARGS]{"k": "v"}`.
    Named,
    /// `f(k="v")` or `[f(k="v")]`.
    Python,
    /// `call:f{k:"v"}`.
    Gemma,
    /// `<function=f>…</function>`.
    Xml,
}

/// The beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// No call.
    Speech {
        /// The length of the object at the beginning, if the whole object is known not to be one.
        end: usize,
    },
    /// Perhaps a call: more text decides.
    Open {
        /// Markers and the first line of a block of code, and nothing else so far.
        is_wrapper: bool,
        /// If the text ends here, it is an unfinished call, whose text begins at this byte.
        unfinished: Option<(usize, Syntax)>,
    },
    /// A call, perhaps incomplete.
    Call {
        /// Where its text begins: behind markers and the first line of a block of code.
        at: usize,
        /// Its syntax.
        syntax: Syntax,
    },
}

use Beginning::Call;

const SPEECH: Beginning = Beginning::Speech { end: 0 };

const OPEN: Beginning = Beginning::Open { is_wrapper: false, unfinished: None };

/// Keys with which a call in JSON begins.
const KEYS: &[&str] = &["name", "function", "type", "id", "arguments", "parameters"];

/// Markers and first lines of blocks of code in front of a call, at most one less.
const MAX_WRAPPERS: usize = 6;

/// Begins and ends a block of code.
const FENCE: &[u8] = b"```";

/// Closes a call with doubled braces, `{{"name": …}}`: published templates show calls so, where
/// braces should be escaped.
const BRACE: &[u8] = b"}";

/// Markers that are part of no format, but of the replies of models.
const OTHER_MARKERS: (&str, &str) = ("<tools>", "</tools>");

/// Whether a text begins with a call without markers of one of these actions.
///
/// Bare JSON and the name of an action count only if the action is
/// [possible](crate::ActionSpec::is_possible), or if the object has arguments and nothing that a
/// call does not have. `f(…)` and `f{…}` count behind markers, and if `is_reply`: the text is the
/// beginning of a reply, or follows a call.
#[must_use]
pub fn beginning(text: &[u8], actions: &ActionSet, is_reply: bool) -> Beginning {
    let mut cursor = Cursor { text, at: 0 };
    match cursor.skip_markers() {
        Err(found) => found,
        Ok(_) if cursor.rest().is_empty() => {
            let is_wrapper = !text.trim_ascii().is_empty();
            Beginning::Open { is_wrapper, unfinished: None }
        }
        Ok(has_marker) => {
            cursor.body(actions, is_reply || has_marker).unwrap_or_else(|found| found)
        }
    }
}

/// The markers that may close a call without markers of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The call is in a block of code.
    is_code: bool,
    /// The call has a second brace around it.
    is_doubled: bool,
}

impl Closing {
    /// Behind a call with this text in front of it, which
    /// [`Beginning::Call::at`](Beginning::Call) ends.
    #[must_use]
    pub fn of(wrapper: &[u8]) -> Self {
        let is_code = wrapper.windows(FENCE.len()).any(|part| part == FENCE);
        Self { is_code, is_doubled: wrapper.ends_with(b"{") }
    }

    /// The same behind a call in a block of code that has not ended.
    #[must_use]
    pub fn within(self, outer: Option<Self>) -> Self {
        let outer = outer.unwrap_or(Self { is_code: false, is_doubled: false });
        Self {
            is_code: self.is_code || outer.is_code,
            is_doubled: self.is_doubled || outer.is_doubled,
        }
    }

    /// Reads the text behind the call: the length of the closing markers with which it begins, what
    /// may close the call behind them, and whether the rest of the text may be the beginning of it.
    #[must_use]
    pub fn read(mut self, text: &[u8]) -> (usize, Self, bool) {
        let mut cursor = Cursor { text, at: 0 };
        let mut len = 0;
        loop {
            cursor.skip_space();
            let rest = cursor.rest();
            let fence = Some(FENCE).filter(|_| self.is_code);
            let brace = Some(BRACE).filter(|_| self.is_doubled);
            let mut markers = markers(Delimiter::Close).chain(fence).chain(brace);
            if let Some(marker) = markers.clone().find(|marker| rest.starts_with(marker)) {
                cursor.at += marker.len();
                self.is_code &= marker != FENCE;
                self.is_doubled &= marker != BRACE;
                len = cursor.at;
            } else {
                let is_open = markers.any(|marker| marker.starts_with(rest));
                return (len, self, is_open);
            }
        }
    }
}

/// The texts that open or close a call in any format, or in replies.
fn markers(side: Delimiter) -> impl Iterator<Item = &'static [u8]> + Clone {
    let of_formats = CallFormat::ALL.into_iter().filter_map(move |format| format.text(side));
    let (open, close) = OTHER_MARKERS;
    let other = if side == Delimiter::Open { open } else { close };
    of_formats.chain([other]).map(str::as_bytes)
}

struct Cursor<'t> {
    text: &'t [u8],
    at: usize,
}

/// `Err`: the beginning of the text.
type Read<T> = Result<T, Beginning>;

impl<'t> Cursor<'t> {
    fn rest(&self) -> &'t [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) -> Option<u8> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
        self.rest().first().copied()
    }

    /// Skips opening markers, the first line of a block of code, and white space. Returns whether
    /// there was a marker.
    fn skip_markers(&mut self) -> Read<bool> {
        let mut has_marker = false;
        for _ in 0..MAX_WRAPPERS {
            self.skip_space();
            let rest = self.rest();
            if rest.is_empty() {
                return Ok(has_marker);
            }
            let mut markers = markers(Delimiter::Open).chain([FENCE]);
            if let Some(marker) = markers.clone().find(|marker| rest.starts_with(marker)) {
                self.at += marker.len();
                has_marker |= marker != FENCE;
                if marker == FENCE {
                    self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                }
            } else if markers.any(|marker| marker.starts_with(rest)) {
                return Err(OPEN);
            } else {
                self.at += usize::from(rest.starts_with(b"{{"));
                return Ok(has_marker);
            }
        }
        Err(SPEECH)
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'t [u8] {
        let rest = self.rest();
        let end = rest.iter().position(|&byte| !is_part(byte)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn byte(&mut self, expected: u8) -> Read<()> {
        match self.skip_space() {
            Some(byte) if byte == expected => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(SPEECH),
            None => Err(OPEN),
        }
    }

    /// A text in quotes without escapes. `Err` with the part of a text that is not closed.
    fn quoted(&mut self) -> Read<Result<&'t [u8], &'t [u8]>> {
        let mark = match self.skip_space() {
            Some(mark @ (b'"' | b'\'')) => mark,
            Some(_) => return Err(SPEECH),
            None => return Err(OPEN),
        };
        self.at += 1;
        let text = self.take_while(|byte| byte != mark && byte != b'\\' && byte != b'\n');
        match self.rest().first() {
            None => Ok(Err(text)),
            Some(&byte) if byte == mark => {
                self.at += 1;
                Ok(Ok(text))
            }
            Some(_) => Err(SPEECH),
        }
    }

    /// The text behind markers.
    fn body(&mut self, actions: &ActionSet, is_reply: bool) -> Read<Beginning> {
        let at = self.at;
        match self.skip_space() {
            Some(b'{') => self.json(at, actions),
            Some(b'[') => {
                self.at += 1;
                match self.skip_space() {
                    Some(b'{') => self.json(at, actions),
                    Some(_) if is_reply => self.named(at, actions, true),
                    Some(_) => Err(SPEECH),
                    None => Err(OPEN),
                }
            }
            Some(b'<') => {
                self.literal("<function=")?;
                self.name_before(b'>', actions).map(|()| Call { at, syntax: Syntax::Xml })
            }
            _ => match self.literal("call:") {
                Ok(()) => {
                    self.name_before(b'{', actions).map(|()| Call { at, syntax: Syntax::Gemma })
                }
                Err(Beginning::Speech { .. }) if is_reply => self.named(at, actions, false),
                Err(found) => Err(found),
            },
        }
    }

    fn literal(&mut self, text: &str) -> Read<()> {
        let (rest, text) = (self.rest(), text.as_bytes());
        if rest.starts_with(text) {
            self.at += text.len();
            return Ok(());
        }
        Err(if text.starts_with(rest) { OPEN } else { SPEECH })
    }

    /// The name of an action, and the byte behind it.
    fn name_before(&mut self, end: u8, actions: &ActionSet) -> Read<()> {
        let name = self.take_while(is_of_name);
        match self.rest().first() {
            Some(byte) if *byte == end && is_possible(name, actions) => Ok(()),
            None if begins_name(name, actions) => Err(OPEN),
            _ => Err(SPEECH),
        }
    }

    /// The name of an action and its arguments.
    fn named(&mut self, at: usize, actions: &ActionSet, is_list: bool) -> Read<Beginning> {
        let name = self.take_while(is_of_name);
        if self.rest().is_empty() {
            return Err(if begins_name(name, actions) { OPEN } else { SPEECH });
        }
        if !is_possible(name, actions) {
            return Err(SPEECH);
        }
        if self.rest().first() == Some(&b'(') {
            return Ok(Call { at, syntax: Syntax::Python });
        }
        match self.skip_space() {
            _ if is_list => Err(SPEECH),
            Some(b'{') => Ok(Call { at, syntax: Syntax::Named }),
            Some(b'[') => self.literal("[ARGS]").map(|()| Call { at, syntax: Syntax::Named }),
            Some(_) => Err(SPEECH),
            None => Err(OPEN),
        }
    }

    /// An object that may be a call. The cursor is at its `{`.
    fn json(&mut self, at: usize, actions: &ActionSet) -> Read<Beginning> {
        let syntax = Syntax::Json;
        let unfinished = Err(Beginning::Open { is_wrapper: false, unfinished: Some((at, syntax)) });
        self.at += 1;
        let key = match self.quoted()? {
            Ok(key) => key,
            Err(part) => {
                let is_key = KEYS.iter().any(|key| key.as_bytes().starts_with(part));
                return Err(if is_key { OPEN } else { SPEECH });
            }
        };
        if !KEYS.iter().any(|known| known.as_bytes() == key) {
            return Err(SPEECH);
        }
        if key == b"name" {
            self.byte(b':')?;
            match self.quoted()? {
                Ok(name) if is_possible(name, actions) => return Ok(Call { at, syntax }),
                Ok(_) => {}
                Err(_) => return unfinished,
            }
        }
        // Only the whole text decides.
        let whole = self.text.get(at..).unwrap_or_default();
        let Some(end) = Scanner::end_of(syntax, whole) else { return unfinished };
        let calls = syntax.parse(whole.get(..end).unwrap_or_default()).unwrap_or_default();
        let is_call = |call: &Parsed| {
            call.as_ref()
                .is_ok_and(|call| actions.get(&call.name).is_some() || !call.arguments.is_empty())
        };
        let all = !calls.is_empty() && calls.iter().all(is_call);
        Ok(if all { Call { at, syntax } } else { Beginning::Speech { end: at + end } })
    }
}

fn begins_name(part: &[u8], actions: &ActionSet) -> bool {
    actions.possible().any(|action| action.name().as_bytes().starts_with(part))
}

fn is_possible(name: &[u8], actions: &ActionSet) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| actions.get(name).is_some())
}
