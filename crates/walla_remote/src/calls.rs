//! The calls of a streamed reply, which arrive in fragments.

use serde_json::Value;
use walla_grammar::{ActionSet, CallError, MalformedCall, ParsedCall, check};

use crate::chunk::{Arguments, CallDelta};

/// Calls that have begun and were not passed on, in the order of their begin.
///
/// A call is passed on when a later one has begun and its arguments are a whole JSON object, or at
/// the end of the reply. So fragments of several calls may alternate.
#[derive(Debug)]
pub(crate) struct OpenCalls {
    /// The actions that may be called; `None`: none.
    actions: Option<ActionSet>,
    /// Maximum bytes of one call.
    max_call_bytes: usize,
    open: Vec<OpenCall>,
}

#[derive(Debug)]
struct OpenCall {
    index: u32,
    id: String,
    name: String,
    arguments: String,
    is_too_long: bool,
    /// Its arguments came as JSON, and not as text.
    has_json: bool,
    /// Whether nothing can follow, if that is known: each text is read once.
    is_whole: Option<bool>,
}

/// Maximum calls that have begun and are not whole.
const MAX_OPEN: usize = 64;

impl OpenCall {
    fn begins(&self) -> bool {
        self.arguments.is_empty() && !self.is_too_long && !self.has_json
    }

    /// Whether nothing can follow. A call without arguments may get some.
    fn is_whole(&mut self) -> bool {
        let Self { arguments, is_too_long, is_whole, .. } = self;
        *is_whole.get_or_insert_with(|| {
            let arguments = arguments.trim();
            *is_too_long
                || arguments.ends_with('}') && serde_json::from_str::<Value>(arguments).is_ok()
        })
    }
}

impl OpenCalls {
    pub fn new(actions: Option<ActionSet>, max_call_bytes: usize) -> Self {
        Self { actions, max_call_bytes, open: Vec::new() }
    }

    /// Adds a fragment.
    pub fn push(&mut self, delta: CallDelta) {
        let id = delta.id.unwrap_or_default();
        let function = delta.function.unwrap_or_default();
        let name = function.name.unwrap_or_default();
        let Arguments { text: arguments, is_json } = function.arguments.unwrap_or_default();
        let at = self.open_call(delta.index, id, &name);
        let Some(call) = self.open.get_mut(at) else { return };
        // The fragment may end the arguments: they are read again.
        call.is_whole = None;
        // Some servers repeat the whole name.
        if call.name != name {
            call.name.push_str(&name);
        }
        call.has_json |= is_json;
        let bytes = call.name.len() + call.arguments.len() + arguments.len();
        if bytes > self.max_call_bytes {
            call.is_too_long = true;
            call.name.truncate(call.name.floor_char_boundary(self.max_call_bytes));
        } else {
            call.arguments.push_str(&arguments);
        }
    }

    /// Position of the call that a fragment belongs to, which may begin here.
    fn open_call(&mut self, index: Option<u32>, id: String, name: &str) -> usize {
        let known = match index {
            Some(index) => self.open.iter().rposition(|call| call.index == index),
            None => self.open.len().checked_sub(1),
        };
        if let Some(at) = known
            && let Some(call) = self.open.get(at)
        {
            // Some servers write index 0, or none, for every call: a name with another id begins
            // the next one. Others write a new id for each fragment.
            let is_other = match index {
                Some(_) => !id.is_empty() && id != call.id && !call.begins(),
                None => true,
            };
            if name.is_empty() || !is_other {
                return at;
            }
        }
        // No server has so many calls; a hostile one may begin with the last index.
        let next = || self.open.last().map_or(0, |call| call.index.wrapping_add(1));
        let index = index.unwrap_or_else(next);
        let (name, arguments) = (String::new(), String::new());
        let (is_too_long, has_json, is_whole) = (false, false, None);
        self.open.push(OpenCall { index, id, name, arguments, is_too_long, has_json, is_whole });
        self.open.len() - 1
    }

    /// The oldest call, if a later one has begun and it is whole, or if too many have begun.
    pub fn next_whole(&mut self) -> Option<Result<ParsedCall, MalformedCall>> {
        let calls = self.open.len();
        let is_whole = calls > 1 && self.open.first_mut()?.is_whole() || calls > MAX_OPEN;
        is_whole.then(|| self.open.remove(0)).map(|call| self.checked(&call, false))
    }

    /// The oldest call at the end of the reply. `is_cut`: the reply ended within its last call.
    pub fn next_at_end(&mut self, is_cut: bool) -> Option<Result<ParsedCall, MalformedCall>> {
        let is_last = self.open.len() == 1;
        let mut call = (!self.open.is_empty()).then(|| self.open.remove(0))?;
        let is_cut = is_cut && (is_last || !call.is_whole());
        Some(self.checked(&call, is_cut))
    }

    /// Forgets all calls.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// The call, if it may be made.
    pub fn admit(&self, call: ParsedCall) -> Result<ParsedCall, MalformedCall> {
        match &self.actions {
            Some(actions) => check(actions, call),
            None => Err(call.refused(not_allowed(&call.name))),
        }
    }

    fn checked(&self, call: &OpenCall, is_cut: bool) -> Result<ParsedCall, MalformedCall> {
        let malformed = |error| {
            let mut text = format!("{} {}", call.name, call.arguments);
            text.truncate(text.floor_char_boundary(MalformedCall::MAX_TEXT_BYTES));
            Err(MalformedCall { text, error })
        };
        if call.is_too_long {
            return malformed(CallError::TooLong { max_bytes: self.max_call_bytes });
        }
        if is_cut {
            return malformed(CallError::Unfinished);
        }
        if self.actions.is_none() {
            return malformed(not_allowed(&call.name));
        }
        let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
        match serde_json::from_str(text) {
            Ok(Value::Object(arguments)) => {
                self.admit(ParsedCall::new(call.name.clone(), arguments))
            }
            Ok(_) => malformed(CallError::Syntax { reason: "the arguments are no JSON object" }),
            Err(_) => malformed(CallError::Syntax { reason: "the arguments are not JSON" }),
        }
    }
}

fn not_allowed(name: &str) -> CallError {
    let end = name.floor_char_boundary(64);
    CallError::NotAllowed { name: name.get(..end).unwrap_or_default().to_owned() }
}
