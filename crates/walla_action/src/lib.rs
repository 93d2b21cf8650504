//! Actions of agents: abilities of a character, and the calls with which a model uses them.
//!
//! | type | lifetime | purpose |
//! |---|---|---|
//! | [`ActionSpec`], [`ActionSet`] | plain data | names, descriptions and schemas of actions |
//! | [`CallFormat`] | one per model | the syntax of calls |
//! | [`CallMarkers`] | one per model | the delimiters of calls as tokens or text |
//! | [`call_grammar`] | one per set | a constraint for the text of calls |
//! | [`CallParser`] | one per reply | reads calls while tokens arrive |
//! | [`CallReader`] | one per agent | separates calls from speech |
//! | [`check`] | one call | validates and converts the arguments |
//! | [`render`] | one call | writes a call in a format |
//! | [`call_json`] | one call | writes a call as JSON, for a conversation |
//!
//! # A reply with calls
//!
//! 1. The prompt has the actions: [`ActionSet::tools`] for a template that takes tools, otherwise
//!    [`ActionSet::description`] in the system message.
//! 2. The reply is speech until a call opens: a token with [`Delimiter::Open`], the text
//!    [`CallMarkers::open_text`], or for Llama a first `{`. Then [`CallParser::begin`].
//! 3. Inside the call, [`call_grammar`] with [`GrammarStart::BehindOpen`] limits the tokens, and
//!    [`CallParser::push`] reads them.
//! 4. After [`Progress::Closed`] the rest is speech again. [`CallParser::take_calls`] returns the
//!    calls, [`check`] validates them.
//!
//! A call without its marker is found by [`unmarked::beginning`] and read behind
//! [`CallParser::begin_unmarked`].
//!
//! Text of players never opens a call: it is encoded without special tokens, and it is not part of
//! a reply.
//!
//! # Examples
//! ```
//! use serde_json::json;
//! use walla_action::{
//!     ActionSet, ActionSpec, CallFormat, CallLimits, CallMarkers, CallParser, Input, Progress,
//!     check,
//! };
//! use walla_model::{Gguf, tokenizer::Tokenizer};
//!
//! let give = ActionSpec::new(
//!     "give",
//!     "Hands an item over the counter.",
//!     &json!({"type": "object", "properties": {"item": {"enum": ["nails", "sword"]}}}),
//! )?;
//! let actions = ActionSet::new([give])?;
//! let tokenizer = Tokenizer::from_gguf(&Gguf::from_static(walla_demo_model::GGUF)?)?;
//! let markers = CallMarkers::new(CallFormat::Plain, &tokenizer);
//! let mut parser = CallParser::new(&markers, CallLimits::default());
//!
//! parser.begin(); // behind <tool_call>
//! let text = b"\n{\"name\": \"give\", \"arguments\": {\"item\": \"nails\"}}\n</tool_call> There!";
//! let Progress::Closed { consumed } = parser.push(Input::Text(text)) else { unreachable!() };
//! assert_eq!(&text[consumed..], b" There!");
//! let call = parser.take_calls().next().unwrap()?;
//! assert_eq!(check(&actions, call)?.arguments["item"], "nails");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod call;
mod error;
mod format;
mod grammar;
mod markers;
mod parser;
mod reader;
mod render;
mod schema;
mod set;
mod spec;
#[cfg(feature = "typed")]
mod typed;

pub use call::{ParsedCall, check};
pub use error::{ActionError, CallError, MalformedCall};
pub use format::CallFormat;
pub use grammar::{GrammarOptions, GrammarStart, call_grammar, unmarked_start};
pub use markers::{CallMarkers, Delimiter, MAX_DELIMITER_BYTES};
pub use parser::unmarked;
pub use parser::{CallLimits, CallParser, Input, Progress};
pub use reader::{CallReader, Piece, Sink, UnmarkedCalls};
pub use render::{call_json, render};
#[cfg(feature = "typed")]
pub use schemars;
pub use set::ActionSet;
pub use spec::ActionSpec;
#[cfg(feature = "typed")]
pub use typed::{Action, action_name, from_arguments};

/// Stores JSON as its text in formats that do not describe themselves. Their readers parse it where
/// they are asked for any value.
///
/// # Errors
/// Those of the serializer.
#[cfg(feature = "serde")]
#[doc(hidden)]
pub fn json_text<T: serde::Serialize, S: serde::Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        return value.serialize(serializer);
    }
    let text = serde_json::to_string(value).map_err(serde::ser::Error::custom)?;
    serializer.serialize_str(&text)
}
