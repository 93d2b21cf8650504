//! An ask and the reply to it.

use crate::api::{Prompt, ReplyId, Turn, Usage};

/// An ask that waits for the agent's earlier replies.
#[derive(Debug)]
pub(in crate::core) struct Ask {
    pub reply_id: ReplyId,
    pub prompt: Prompt,
    pub arrived_micros: u64,
    /// Turns that were appended between the previous ask and this one.
    pub turns_before: Vec<Turn>,
}

impl Ask {
    pub fn new(reply_id: ReplyId, prompt: Prompt, arrived_micros: u64) -> Self {
        Self { reply_id, prompt, arrived_micros, turns_before: Vec::new() }
    }
}

/// A reply in progress.
#[derive(Debug)]
pub(in crate::core) struct Reply {
    pub reply_id: ReplyId,
    pub arrived_micros: u64,
    /// Time at which it left the queue of asks.
    pub begun_micros: u64,
    /// The user's turn that it answers, set when it is encoded. Both become part of the
    /// conversation when the reply ends.
    pub question: Option<String>,
    pub phase: ReplyPhase,
    pub usage: Usage,
    /// All speech so far, for the conversation.
    pub speech: String,
    /// Bytes of `speech` that the conversation keeps: [`u32::MAX`] unless the host interrupts.
    pub heard_bytes: u32,
    /// Value of [`AgentState::exchanges_removed`](super::AgentState::exchanges_removed) when the
    /// prompt was made.
    pub exchanges_removed: u32,
    /// Time of its first speech token.
    pub spoken_since_micros: Option<u64>,
    /// Maximum reasoning tokens, limited by the context.
    pub reasoning_tokens_max: u32,
    /// Blocks of reasoning that the engine has closed.
    pub blocks_closed: u32,
    /// Number of recomputations of its sequence after failed steps.
    pub retries: u32,
}

impl Reply {
    /// A new reply.
    pub fn new(ask: &Ask, exchanges_removed: u32, now_micros: u64) -> Self {
        Self {
            reply_id: ask.reply_id,
            arrived_micros: ask.arrived_micros,
            begun_micros: now_micros,
            question: None,
            phase: ReplyPhase::Encoding,
            usage: Usage::default(),
            speech: String::new(),
            heard_bytes: u32::MAX,
            exchanges_removed,
            spoken_since_micros: None,
            reasoning_tokens_max: 0,
            blocks_closed: 0,
            retries: 0,
        }
    }
}

/// Progress of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum ReplyPhase {
    /// The prompt is being rendered and tokenised, on another thread.
    Encoding,
    /// The device runs prefill or decode.
    Running,
}
