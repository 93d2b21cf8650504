//! Remote engines: servers of the chat completions protocol behind walla's
//! [interface of an engine](walla_runtime::EngineClient). With the feature `pull` also models from
//! a registry, into files.
//!
//! Agents, asks, events and saved conversations are the same as with a local engine. The
//! conversation is kept here; each ask sends persona, conversation and question as one request, and
//! the reply is streamed. Roles, actions and constraints are mapped to the fields of the protocol
//! and of the server's [`Dialect`]. A feature that the server lacks
//! fails the ask ([`Dialect::capabilities`]), or is in the table of [`Dialect`].
//!
//! # Data that leaves the machine
//! Each request contains the agent's persona, its whole conversation, the question, the names,
//! descriptions and choices of its actions, its constraint, its sampling settings, and, for
//! OpenAI's dialect, a key made of the process id and the number of the agent. Nothing else is
//! sent: no names of files, no saved game, no other agents.
//!
//! An encrypted connection to another machine goes through the [`Proxy`] of the environment, if one
//! is set there; plain HTTP and this machine are reached directly.
//!
//! # Differences to a local engine
//! - [`ReplyEvent::Started`](walla_runtime::ReplyEvent::Started) has an estimate of the prompt
//!   tokens, and a delta counts as one token. [`Usage`](walla_runtime::Usage) has the server's
//!   counts, if it sends them.
//! - A server may answer with one whole response in place of a stream: the reply then arrives at
//!   once. A stream that is done without a finish reason is
//!   [`EndOfTurn`](walla_runtime::FinishReason::EndOfTurn).
//! - A stop string is reported by index only if the server names it (vLLM, `walla serve`),
//!   otherwise as [`EndOfTurn`](walla_runtime::FinishReason::EndOfTurn). OpenAI accepts four.
//! - The limit of reasoning is added to the limit of the reply, and the server decides how both are
//!   used.
//! - Voice rate, level of detail and budget have no effect: the server decides about its time.
//! - A pause begins no request, and replies in progress continue.

#![forbid(unsafe_code)]

mod agent;
mod calls;
mod channels;
mod chunk;
mod dialect;
mod engine;
mod http;
mod hub;
mod key;
mod options;
mod parts;
mod proxy;
#[cfg(feature = "pull")]
pub mod pull;
mod request;
mod stream;
mod tls;

pub use dialect::{Dialect, PriorityField};
pub use engine::{RemoteClient, RemoteEngine};
pub use key::ApiKey;
pub use options::{OptionsError, RemoteOptions, Retries, SizeLimits, TimeLimits};
pub use proxy::Proxy;
