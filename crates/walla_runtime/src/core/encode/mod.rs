//! Templates and tokenizers on a separate thread: encoding a long prompt takes milliseconds, and no
//! step waits for it.

mod fitting;
mod prompt;
mod worker;

use std::sync::Arc;

use walla_grammar::ActionSet;
use walla_model::chat::ReplyStart;
use walla_types::TokenId;

pub(super) use self::worker::PromptEncoder;
use super::agents::{AgentState, Asked};
use crate::api::{AgentId, ContextPolicy, Notes, ReplyError, ReplyId, Turn};

/// Purpose of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The prompt of a reply.
    Reply(ReplyId),
    /// The part of an agent's next prompt that is known before the question, for a background
    /// prefill. The number is the version of the conversation.
    Background(u32),
}

/// A prompt to encode.
#[derive(Debug)]
pub(super) struct EncodeJob {
    pub agent: AgentId,
    pub purpose: Purpose,
    pub source: PromptSource,
    /// Capacity of the context in tokens, or of the present cache if that is less.
    pub context_tokens: u32,
    /// Capacity of the context in tokens.
    pub declared_tokens: u32,
    /// Tokens of the context to keep free for the reply.
    pub reply_tokens: u32,
    /// Texts to score behind the prompt.
    pub score: Option<Arc<Vec<String>>>,
}

/// Source of a prompt.
#[derive(Debug)]
pub(super) enum PromptSource {
    /// Untrusted raw text.
    Raw(String),
    /// Raw text whose markers are parsed.
    RawTrusted(String),
    /// Tokens, behind which texts are scored.
    Tokens(Vec<TokenId>),
    /// A conversation rendered by the template, and the subject of the reply.
    Chat { conversation: Box<Conversation>, asked: Asked },
    /// A conversation whose next turn is not known. The result is the part of the prompt that any
    /// next turn leaves as it is.
    Unasked(Box<Conversation>),
}

/// A conversation to render.
#[derive(Debug)]
pub(super) struct Conversation {
    pub persona: String,
    /// Shared with the agent, not copied.
    pub turns: Arc<Vec<Turn>>,
    /// [Size](Turn::size) of all earlier turns, which were dropped.
    pub dropped_size: u64,
    pub seed: u64,
    pub policy: ContextPolicy,
    pub thinking: bool,
    /// Empty: none.
    pub actions: ActionSet,
    /// Text with which the reply begins.
    pub opening: Option<Arc<String>>,
    /// Texts that the agent knows for this reply.
    pub notes: Option<Arc<Notes>>,
}

impl Conversation {
    pub fn of(agent: &AgentState) -> Box<Self> {
        Box::new(Self {
            persona: agent.spec.persona.clone(),
            turns: Arc::clone(agent.history.turns()),
            dropped_size: agent.history.dropped_size(),
            seed: agent.spec.sampling.seed(),
            policy: agent.spec.context_policy,
            thinking: agent.spec.thinking,
            actions: agent.spec.actions.as_ref().map(|a| a.set.clone()).unwrap_or_default(),
            opening: None,
            notes: None,
        })
    }
}

/// An encoded prompt.
#[derive(Debug)]
pub(super) struct EncodeResult {
    pub agent: AgentId,
    pub purpose: Purpose,
    /// Subject of the reply. The job took it from the ask.
    pub asked: Option<Asked>,
    /// The tokens, or the error.
    pub result: Result<Encoded, ReplyError>,
}

/// Tokens of a prompt.
#[derive(Debug)]
pub(super) struct Encoded {
    pub tokens: Vec<TokenId>,
    /// Number of oldest turns that were left out.
    pub dropped: usize,
    /// Number of them that will never fit. Turns that only the present cache is too small for are
    /// kept.
    pub forgotten: usize,
    /// State at the start of the reply, if speech and reasoning are separated.
    pub start: Option<ReplyStart>,
    /// Tokens of each text to score.
    pub texts: Vec<Vec<TokenId>>,
}

impl Encoded {
    fn of(tokens: Vec<TokenId>) -> Self {
        Self { tokens, dropped: 0, forgotten: 0, start: None, texts: Vec::new() }
    }
}
