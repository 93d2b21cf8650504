//! Events of replies.

use walla_types::TokenId;

use super::action::{Call, RefusedCall};
use super::error::ReplyError;
use super::logged::Logged;
use super::{AgentId, ReplyId};
use crate::inline_text::InlineText;

/// Maximum bytes of text of one delta.
pub const MAX_DELTA_BYTES: usize = 56;

/// Reason why a reply ended.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(Clone, Debug, PartialEq, Hash)
)]
pub enum FinishReason {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop string is complete.
    Stop {
        /// Its index in [`AgentSpec::stop_strings`](crate::AgentSpec::stop_strings) at the start of
        /// the reply. If several end at the same character, the longest.
        index: u32,
    },
    /// A stop token.
    StopToken,
    /// [`AgentSpec::max_reply_tokens`](crate::AgentSpec::max_reply_tokens) was reached. With a
    /// limit of 0 the reply ends when its prompt is accepted, and no step runs for it.
    Length,
    /// [`AgentSpec::max_reasoning_tokens`](crate::AgentSpec::max_reasoning_tokens) was reached and
    /// the engine could not switch to speech: the vocabulary cannot spell the closing marker, or
    /// the model opened a new block each time or sampled markers and white space outside of blocks.
    ReasoningLength,
    /// The reply has made [`Actions::max_calls`](crate::Actions::max_calls) calls.
    CallLimit,
    /// The agent's context is full.
    ContextFull,
    /// All texts of [`AskOptions::score`](crate::AskOptions::score) have their scores.
    Scored,
    /// Cancelled by the host.
    Cancelled,
    /// The reply exceeded [`Deadlines::reply`](crate::Deadlines::reply), or its host was stalled
    /// ([`Pacing`](crate::Pacing)).
    TimedOut,
}

/// Counts of a reply. Times are numbers because each [`Event`] has the size of the largest one: six
/// [`Duration`](std::time::Duration)s would make every event of a frame a third larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "reflect", derive(bevy_reflect::Reflect), reflect(Clone, Debug, PartialEq))]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were found in the cache, from earlier turns or from another agent whose
    /// prompt has the same prefix.
    pub cached_tokens: u32,
    /// Speech tokens of the reply. Tokens of a stop string count; the token that ended the turn
    /// (the model's or a [stop token](crate::AgentSpec::stop_tokens)) does not.
    pub reply_tokens: u32,
    /// Sampled tokens of the reply's reasoning and its markers.
    pub reasoning_tokens: u32,
    /// Tokens of calls and their delimiters. They do not count for
    /// [`max_reply_tokens`](crate::AgentSpec::max_reply_tokens).
    pub call_tokens: u32,
    /// Speech and call tokens that were not sampled, because the reply's constraint left no choice.
    /// They are evaluated like a prompt, several in one step.
    pub forced_tokens: u32,
    /// Number of turns that the conversation has forgotten for this prompt, because it did not fit
    /// in the context ([`ContextPolicy::DropOldest`](crate::ContextPolicy::DropOldest)). A remote
    /// engine does not know them.
    pub dropped_turns: u32,
    /// Time from the ask's arrival at the engine to its first token, speech or reasoning, in
    /// microseconds, without [pauses](crate::Client::set_paused).
    pub first_token_micros: u64,
    /// The parts of [`first_token_micros`](Self::first_token_micros).
    pub first_token: FirstTokenTimes,
    /// Time from the ask's arrival at the engine to the end, in microseconds, without pauses.
    pub total_micros: u64,
}

/// Time from the arrival of an ask to its first token, in parts whose sum is the whole. In
/// microseconds, without pauses. All parts are 0 until the first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "reflect", derive(bevy_reflect::Reflect), reflect(Clone, Debug, PartialEq))]
pub struct FirstTokenTimes {
    /// Nothing was done for the ask: it waited behind earlier replies of the agent, for a slot, for
    /// capacity of the text thread, or for device time before its first prompt token.
    pub waiting_micros: u64,
    /// The prompt was rendered and tokenised.
    pub encoding_micros: u64,
    /// The prompt was evaluated: from the launch of the step with the first prompt token that was
    /// not cached to the launch of the step with the last one. 0 if they are in one step.
    pub prefill_micros: u64,
    /// From the launch of the step with the last prompt token, which samples the first token, to
    /// the token.
    pub decode_micros: u64,
}

/// Event of a reply. Every reply gets at most one `Started`, then deltas, and exactly one of
/// `Finished` and `Failed` at the end. The concatenated deltas are the decoding of all its tokens,
/// up to a stop string, without reasoning.
///
/// Decoding: control tokens that a model samples within a reply have no text, other special tokens
/// have their text, and bytes that are not UTF-8 become U+FFFD. Speech is not trimmed: models whose
/// words begin with a space (Llama 2) begin a reply with one.
///
/// Reasoning is the text between a model's markers (`<think>` … `</think>` and others), in replies
/// to [`Prompt::Chat`](crate::Prompt::Chat). It is never in a delta and never part of the
/// conversation. No event carries markers, white space behind a closing marker, or white space
/// between the beginning of a reply and its first block. A marker is a special token of the
/// vocabulary; the same text spelled by other tokens is speech. Only if the vocabulary lacks the
/// token and the chat template contains the marker, the marker's text is recognised, with any
/// tokenisation.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReplyEvent {
    /// The prompt is encoded and the reply is scheduled.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
    },
    /// More text.
    Delta {
        /// Whole characters.
        text: InlineText<MAX_DELTA_BYTES>,
        /// Tokens that this text completes, including preceding tokens without text; 0 where one
        /// token's text fills several deltas. No delta includes tokens that end a reply without
        /// text, or the tokens of a stop string.
        tokens: u32,
    },
    /// More reasoning: text that is not speech. A host may ignore it.
    Reasoning {
        /// Whole characters.
        text: InlineText<MAX_DELTA_BYTES>,
        /// Tokens that this text completes, including preceding tokens without text, such as
        /// markers.
        tokens: u32,
    },
    /// A valid call of an action, between the text before and behind it.
    Call(Box<Call>),
    /// A call that cannot be executed. Its text is not speech.
    CallRefused(Box<RefusedCall>),
    /// One sampled token, of speech, reasoning or a call, with its alternatives. It precedes the
    /// token's text and is sent only to agents with
    /// [`Sampling::candidates`](walla_types::Sampling::candidates) above 0. It is the only event
    /// that allocates per token: two allocations on the device thread, freed by the receiver.
    Token(Box<TokenLogprobs>),
    /// The probability of a text of [`AskOptions::score`](crate::AskOptions::score).
    Score(Score),
    /// A detail for a recording, sent only to clients that
    /// [request](crate::EngineClient::set_logged) them. Hosts ignore it.
    Logged(Logged),
    /// The reply has ended.
    Finished {
        /// The reason.
        reason: FinishReason,
        /// Counts.
        usage: Usage,
    },
    /// The reply has failed.
    Failed(ReplyError),
}

impl ReplyEvent {
    /// Whether this event ends the reply.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_))
    }
}

/// A sampled token and the most likely alternatives at its position.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TokenLogprobs {
    /// The sampled token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the model, before any sampler.
    pub log_probability: f32,
    /// The most likely tokens with their log-probabilities.
    pub candidates: Vec<(TokenId, f32)>,
}

/// How probable a text is behind a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "reflect", derive(bevy_reflect::Reflect), reflect(Clone, Debug, PartialEq))]
pub struct Score {
    /// Index of the text in [`AskOptions::score`](crate::AskOptions::score).
    pub index: u32,
    /// Tokens of the text. 0: it is empty.
    pub tokens: u32,
    /// Natural logarithm of its probability under the model: the sum over its tokens. 0 for an
    /// empty text; negative infinity if the model excludes a token. Longer texts are less probable:
    /// [`per_token`](Self::per_token) compares texts of different lengths.
    pub log_probability: f32,
}

impl Score {
    /// Mean log-probability of a token, to compare texts of different lengths. 0 for an empty text.
    #[must_use]
    pub fn per_token(&self) -> f32 {
        self.log_probability / self.tokens.max(1) as f32
    }
}

/// Event from an engine to a host.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Event {
    /// The agent.
    pub agent: AgentId,
    /// The reply.
    pub reply_id: ReplyId,
    /// The event.
    pub what: ReplyEvent,
}
