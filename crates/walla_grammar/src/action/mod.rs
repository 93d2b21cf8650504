//! Actions of agents: see the [crate](crate#actions).

mod call;
mod check;
mod error;
mod format;
mod grammar;
mod markers;
mod parser;
mod reader;
mod render;
mod set;
mod spec;
#[cfg(feature = "typed")]
mod typed;

pub(crate) use error::shown;

pub use call::{ParsedCall, check};
pub use error::{ActionError, CallError, MalformedCall};
pub use format::CallFormat;
pub use grammar::{GrammarOptions, GrammarStart, call_grammar, unmarked_start};
pub use markers::{CallMarkers, Delimiter, MAX_DELIMITER_BYTES};
pub use parser::unmarked;
pub use parser::{CallParser, Input, Progress};
pub use reader::{CallReader, Piece, Sink, UnmarkedCalls};
pub use render::{call_json, render};
#[cfg(feature = "typed")]
pub use schemars;
pub use set::ActionSet;
pub use spec::ActionSpec;
#[cfg(feature = "typed")]
pub use typed::{Action, action_name, from_arguments};
