//! Reasons why replies fail.

use std::sync::Arc;

use walla_grammar::{ActionError, ConstraintError, MatchError, VocabularyError};
use walla_model::chat::TemplateState;

use super::action::ResultError;
use super::capabilities::Unsupported;

/// Reason why a reply failed. Other agents continue, except for [`ReplyError::EngineGone`].
///
/// Text delivered before the failure stays in the conversation. Without text, the question is
/// removed as well, so that asking again does not duplicate it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(opaque, Clone, Debug, PartialEq)
)]
pub enum ReplyError {
    /// This client has no agent with this id: add it first.
    #[error("no such agent")]
    UnknownAgent,
    /// Too many agents: remove one and ask again, or start the engine with more
    /// [slots](crate::EngineOptions::max_agents) or more [parked
    /// agents](crate::EngineOptions::max_agents_parked).
    #[error("no slot is free: at most {max_agents} agents can speak at the same time")]
    TooManyAgents {
        /// The engine's limit.
        max_agents: u32,
    },
    /// Too many asks of one agent are waiting: ask again later.
    #[error("{waiting} asks of this agent are waiting already")]
    Busy {
        /// Number of waiting asks.
        waiting: u32,
    },
    /// Too many asks of this program are open: ask again when one has ended. Only the async API
    /// limits them, before they reach the engine.
    #[error(
        "{asks} asks with {bytes} bytes have not ended; at most {max_asks} with {max_bytes} bytes may be open"
    )]
    TooManyAsks {
        /// Number of open asks.
        asks: u32,
        /// Maximum number of open asks.
        max_asks: u32,
        /// Bytes of their prompts.
        bytes: u64,
        /// Maximum bytes of their prompts.
        max_bytes: u64,
    },
    /// The prompt does not fit in the context: make it shorter. It is a whole conversation under
    /// [`ContextPolicy::Refuse`](crate::ContextPolicy::Refuse); persona and last question under
    /// [`ContextPolicy::DropOldest`](crate::ContextPolicy::DropOldest); raw text or tokens under
    /// any policy except [`ContextPolicy::Stop`](crate::ContextPolicy::Stop).
    #[error("the prompt has {prompt_tokens} tokens, the context {context_tokens}")]
    PromptTooLong {
        /// Tokens of the prompt; a lower bound if it is much too long.
        prompt_tokens: u32,
        /// Tokens that an agent's context can hold.
        context_tokens: u32,
    },
    /// The text cannot be encoded, or the chat template failed.
    #[error("{0}")]
    Text(String),
    /// The reply needs more KV pages than the whole cache has, even without other agents. Shorten
    /// the conversation, or enlarge the cache
    /// ([`EngineOptions::kv_tokens`](crate::EngineOptions::kv_tokens),
    /// [`Engine::set_kv_tokens`](crate::Engine::set_kv_tokens)).
    #[error("{wanted_pages} KV pages wanted, {free_pages} free")]
    NoPages {
        /// Pages that the next token needs.
        wanted_pages: u32,
        /// Pages that are free.
        free_pages: u32,
    },
    /// The agent's [`allowed_tokens`](walla_types::Sampling::allowed_tokens) contain no token of
    /// the model: build the mask for the model's vocabulary.
    #[error("none of the model's tokens is allowed")]
    NothingAllowed,
    /// The conversation has no reply that could be given [again](crate::Prompt::Again).
    #[error("the conversation has no reply to give again")]
    NoReply,
    /// The model's output contains a NaN or infinity: check the model file's checksum.
    #[error("the model's output is not finite: the model file may be damaged")]
    NotFinite,
    /// The device failed several times on this reply but is not lost: ask again.
    #[error("the device failed: {0}")]
    Device(String),
    /// The app has no engine with the name that the agent's [route](crate::Route) names.
    #[error("no engine has the name {name:?}")]
    NoEngine {
        /// The name.
        name: Arc<str>,
    },
    /// The agent's engine lacks a feature that the ask needs: choose another engine, or ask without
    /// it.
    #[error("this engine does not support {0}")]
    Unsupported(Unsupported),
    /// The server of a remote engine did not answer, or not as the protocol demands.
    #[error("the server {server}: {error}")]
    Remote {
        /// Host name and port of the server.
        server: Arc<str>,
        /// What happened.
        error: RemoteError,
    },
    /// A recording is played instead of an engine, and has no such ask.
    #[error("{}, asked was {asked:?}", not_recorded(expected.as_deref()))]
    NotRecorded {
        /// The recorded ask, shortened. `None`: the recording has no further ask of this agent.
        expected: Option<String>,
        /// The ask, shortened.
        asked: String,
    },
    /// The device is lost or the engine was stopped: start another engine.
    #[error("the engine has stopped: {0}")]
    EngineGone(String),
    // Variants that serde skips are the last ones: it counts them in one direction only.
    /// The agent's constraint cannot be used.
    #[error("the constraint cannot be used: {0}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    Constraint(Arc<ConstraintError>),
    /// The vocabulary of the model cannot be used with constraints.
    #[error("the vocabulary cannot be used with constraints: {0}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    ConstraintVocabulary(Arc<VocabularyError>),
    /// The grammar of the constraint cannot be continued after the text so far: the next mask
    /// exceeds a limit, or no token of the vocabulary conforms.
    #[error("the constraint cannot be continued: {0}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    ConstraintStopped(Arc<MatchError>),
    /// The agent's actions cannot be written in the call format of this model, or the list of tools
    /// is too long.
    #[error("the actions cannot be used: {0}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    Actions(Arc<ActionError>),
    /// The model has no working chat template, and [`Prompt::Chat`](crate::Prompt::Chat) needs one:
    /// start the engine with another [`template`](crate::EngineOptions::template), or ask with
    /// [`Prompt::Raw`](crate::Prompt::Raw).
    #[error(
        "{0}; choose one (EngineOptions::template: chatml, llama3, gemma, mistral or a file), or \
         use raw prompts"
    )]
    #[cfg_attr(feature = "serde", serde(skip))]
    NoTemplate(Arc<TemplateState>),
    /// The result of a call cannot be taken.
    #[error("the results cannot be used: {0}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    Result(ResultError),
    /// The file of the agent's character cannot be loaded: correct it.
    #[error("the character of the agent cannot be loaded: {reason}")]
    #[cfg_attr(feature = "serde", serde(skip))]
    NoCharacter {
        /// The error of the file, with its path.
        reason: Arc<str>,
    },
}

fn not_recorded(expected: Option<&str>) -> String {
    match expected {
        Some(expected) => format!("the recording has another ask: {expected:?}"),
        None => "the recording has no further ask of this agent, or no agent with its persona: \
                 it ends here, or the game has changed"
            .to_owned(),
    }
}

/// Why the server of a remote engine gave no reply, or only a part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum RemoteError {
    /// No connection: unknown host, refused, or no TLS with a trusted certificate.
    #[error("no connection: {0}")]
    Connect(String),
    /// A time limit was exceeded.
    #[error("no answer in time: {0} took longer than its limit")]
    TimedOut(TimeLimit),
    /// The server is busy (status 429 or 503), also after the retries.
    #[error("busy (status {status}): {message}")]
    Busy {
        /// Status code of HTTP.
        status: u16,
        /// The server's message, shortened.
        message: String,
    },
    /// The key is missing or not accepted (status 401 or 403).
    #[error("the key is not accepted (status {status}): {message}")]
    Unauthorized {
        /// Status code of HTTP.
        status: u16,
        /// The server's message, shortened.
        message: String,
    },
    /// The server refused the request, for instance because it does not know the model.
    #[error("the request was refused (status {status}): {message}")]
    Refused {
        /// Status code of HTTP.
        status: u16,
        /// The server's message, shortened.
        message: String,
    },
    /// The conversation exceeds the context of the server's model: shorten it, or choose another
    /// model.
    #[error("the conversation exceeds the context (status {status}): {message}")]
    ContextExceeded {
        /// Status code of HTTP.
        status: u16,
        /// The server's message, shortened.
        message: String,
    },
    /// The server failed (status 500 and above), or reported a failure within the reply.
    #[error("failed (status {status}): {message}")]
    Failed {
        /// Status code of HTTP.
        status: u16,
        /// The server's message, shortened.
        message: String,
    },
    /// The connection ended within the reply.
    #[error("the connection ended within the reply: {0}")]
    Interrupted(String),
    /// The answer is not of the protocol.
    #[error("not an answer of the chat completions protocol: {0}")]
    Protocol(String),
    /// The answer exceeds a limit of size.
    #[error("the answer exceeds {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The server's filter withheld the reply.
    #[error("the server's content filter withheld the reply")]
    Filtered,
    /// The key cannot be read: the environment variable is not set, or the callback failed.
    #[error("no key: {0}")]
    NoKey(String),
}

/// A time limit of a remote engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TimeLimit {
    /// The connection.
    #[error("the connection")]
    Connect,
    /// The first token.
    #[error("the first token")]
    FirstToken,
    /// The next token after another.
    #[error("the next token")]
    NextToken,
    /// The whole reply.
    #[error("the reply")]
    Reply,
}
