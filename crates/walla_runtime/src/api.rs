//! Types exchanged between hosts and the engine: agents, commands, events.

use std::sync::Arc;
use std::time::Duration;

use walla_model::chat::TemplateState;
use walla_plan::Detail;
use walla_types::{Sampling, TokenId};

use crate::inline_text::InlineText;

/// Id of an agent, unique for the engine's life. An agent belongs to the [`Client`](crate::Client)
/// that added it. Another client cannot change it, and its asks fail with
/// [`ReplyError::UnknownAgent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u64);

/// Id of one reply of an agent, unique for the engine's life. It distinguishes late events of an
/// earlier reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(Clone, Debug, PartialEq, Hash)
)]
pub struct GenerationId(pub u64);

/// Speaker of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Speaker {
    /// The user or player who talks to the agent.
    User,
    /// The agent.
    Agent,
    /// The world: an event that the agent perceives, written by the game ("Odo leaves the room").
    /// Templates have no such role. It is rendered as a system message where the model's template
    /// accepts one at any position, otherwise as a user message with a fixed prefix. Like all
    /// conversation text it never yields control tokens. Where observations are user messages, a
    /// player can type the same prefix.
    Observation,
}

/// One turn of a conversation. Turns may have any order: an agent may speak first, and one speaker
/// may have several consecutive turns. Where the model's template refuses that, they are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The speaker.
    pub speaker: Speaker,
    /// Text of the turn.
    pub text: String,
}

/// Action when a conversation no longer fits in the agent's context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextPolicy {
    /// Forget the oldest turns and keep the persona. The default.
    #[default]
    DropOldest,
    /// An ask that does not fit fails with [`ReplyError::PromptTooLong`]. A reply that fills the
    /// context finishes with [`FinishReason::ContextFull`].
    Refuse,
    /// Like `Refuse` for replies. An ask that does not fit finishes at once, empty, with
    /// [`FinishReason::ContextFull`].
    Stop,
}

/// Specification of an agent: persona and generation settings.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSpec {
    /// System text. Untrusted, like all text that a player can influence: it never yields control
    /// tokens.
    pub persona: String,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Maximum speech tokens of one reply. Default 256.
    pub reply_tokens_max: u32,
    /// Whether the model reasons before it speaks, if its chat template has a switch for that
    /// ([`ModelCard::thinking_switch`](crate::ModelCard::thinking_switch)).
    /// [Reasoning](ReplyEvent::Reasoning) is never spoken. Default `false`, because it takes
    /// seconds.
    pub thinking: bool,
    /// Maximum reasoning tokens of one reply. They do not count for
    /// [`reply_tokens_max`](Self::reply_tokens_max). Default 512.
    ///
    /// At the limit the engine closes the block: it appends the model's closing marker to the
    /// sequence, and the model continues with speech. It closes the block earlier if the context is
    /// short: speech keeps [`reply_tokens_max`](Self::reply_tokens_max) tokens, or half of the
    /// context behind the prompt if that is less. If the vocabulary cannot spell the marker, the
    /// reply ends with [`FinishReason::ReasoningLength`].
    ///
    /// The limit also applies to models that reason without a switch; with 0 they speak
    /// immediately.
    pub reasoning_tokens_max: u32,
    /// Speech speed: tokens due per second. It is a deadline that the planner tries to meet, not a
    /// maximum rate. Default: none.
    pub voice_rate: Option<f32>,
    /// Agents of higher priority are scheduled first. Default 0.
    pub priority: i32,
    /// Level of detail: the agent's share of each frame. [`Command::SetDetail`] changes it during a
    /// reply. Default: all that its voice rate needs.
    pub detail: Detail,
    /// Action when the context is full.
    pub context_policy: ContextPolicy,
    /// A reply ends before any of these strings appears in its speech. Reasoning is not searched.
    pub stop_strings: Vec<String>,
    /// A reply ends at any of these tokens in its speech, in addition to the model's end-of-turn
    /// tokens. Like the latter, they are not part of the text.
    pub stop_tokens: Vec<TokenId>,
    /// Initial turns, oldest first: a restored conversation, an agent's greeting, an observation.
    pub history: Vec<Turn>,
}

impl AgentSpec {
    /// An agent with this persona and default settings.
    #[must_use]
    pub fn new(persona: impl Into<String>) -> Self {
        Self {
            persona: persona.into(),
            sampling: Sampling::default(),
            reply_tokens_max: 256,
            thinking: false,
            reasoning_tokens_max: 512,
            voice_rate: None,
            priority: 0,
            detail: Detail::Full,
            context_policy: ContextPolicy::default(),
            stop_strings: Vec::new(),
            stop_tokens: Vec::new(),
            history: Vec::new(),
        }
    }
}

/// Content of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// The next user turn, rendered with the model's chat template. The reply becomes the next
    /// agent turn.
    Chat(String),
    /// Raw text to continue, without template or conversation. The text may come from a player: it
    /// yields no control, unknown or user-defined token and no token that ends a generation
    /// ([`Tokenizer::encode_untrusted`](crate::Tokenizer::encode_untrusted)). The whole reply is
    /// text: reasoning is separated only in replies to [`Prompt::Chat`].
    Raw(String),
    /// Raw text to continue, without template or conversation, in which markers such as
    /// `<|im_start|>` become their tokens. For a chat format that the program writes itself; never
    /// pass text from a player. The whole reply is text.
    RawTrusted(String),
    /// Raw tokens to continue. The whole reply is text.
    Tokens(Vec<TokenId>),
}

/// Command from a host to its engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Adds an agent. Before this command its asks fail with [`ReplyError::UnknownAgent`].
    ///
    /// An agent needs a slot to speak; there are [`agents_max`](crate::EngineOptions::agents_max)
    /// slots. Further agents are parked: the engine keeps their specification and conversation. A
    /// parked agent that is asked waits for a slot, unless
    /// [`wait_for_slot`](crate::EngineOptions::wait_for_slot) is off. Agents beyond
    /// [`agents_parked_max`](crate::EngineOptions::agents_parked_max) are not kept: their asks fail
    /// with [`ReplyError::TooManyAgents`].
    AddAgent {
        /// From [`Client::new_agent`](crate::Client::new_agent).
        agent: AgentId,
        /// Its specification.
        spec: Box<AgentSpec>,
    },
    /// Replaces the specification of an agent, except for the conversation (`history` is ignored).
    /// It applies from the next reply; a reply in progress ends with the old specification.
    /// Priority, voice rate and detail, which do not affect the text, apply at once.
    ChangeAgent {
        /// The agent.
        agent: AgentId,
        /// Its new specification.
        spec: Box<AgentSpec>,
    },
    /// Changes an agent's level of detail from the next step on, for example when it comes near or
    /// leaves the player's sight.
    SetDetail {
        /// The agent.
        agent: AgentId,
        /// Its share of each frame.
        detail: Detail,
    },
    /// Replaces the conversation of an agent. A reply in progress and all waiting asks are
    /// cancelled.
    SetConversation {
        /// The agent.
        agent: AgentId,
        /// Oldest first.
        turns: Vec<Turn>,
    },
    /// Appends turns to the conversation of an agent. Nothing is cancelled: turns that arrive while
    /// the agent has asks follow the exchanges of these asks, begun or not. The conversation is
    /// therefore in the order of the commands.
    AppendTurns {
        /// The agent.
        agent: AgentId,
        /// Oldest first.
        turns: Vec<Turn>,
    },
    /// Removes an agent, cancels its reply and frees its memory.
    RemoveAgent {
        /// The agent.
        agent: AgentId,
    },
    /// Requests a reply. While the agent still speaks, the ask waits.
    Ask {
        /// The agent.
        agent: AgentId,
        /// From [`Client::new_generation`](crate::Client::new_generation).
        generation: GenerationId,
        /// Content of the ask.
        prompt: Prompt,
    },
    /// Ends a reply early. Its text so far stays in the conversation; without text, the question is
    /// removed as well. Has no effect on a reply that has ended.
    Cancel {
        /// The agent.
        agent: AgentId,
        /// The reply.
        generation: GenerationId,
    },
    /// Ends a reply early and shortens it to the heard part. The conversation keeps the first
    /// `heard_bytes` bytes of its text, cut at the last whole character. If no byte is left, the
    /// question is removed as well.
    ///
    /// The reply may have ended, because a voice is slower than a model: this works for the last
    /// [`EXCHANGES_KNOWN_MAX`] replies of the agent. Later replies stay.
    CancelHeard {
        /// The agent.
        agent: AgentId,
        /// The reply.
        generation: GenerationId,
        /// Bytes of its text that were heard.
        heard_bytes: u32,
    },
}

/// When an engine runs steps for a client's agents.
///
/// A client is stalled if for a second its event queue is full, or it grants no frames under
/// [`PerFrame`](Self::PerFrame). Neither a pause nor a suspended process is a stall. Other clients
/// of the engine then use its agents' pages, which are recomputed when it continues. After ten
/// seconds a reply of it can end with [`FinishReason::TimedOut`], if an agent of another client has
/// waited ten seconds for the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// A number of steps per [`Client::frame`](crate::Client::frame). Unused grants do not
    /// accumulate. A step yields at most one token per agent.
    ///
    /// Within a [budget](crate::EngineOptions::budget) each agent gets this many tokens, in as many
    /// device steps as needed. In the remaining time, agents behind their voice rate get more
    /// tokens, and prompts are prefilled.
    PerFrame {
        /// Steps per frame. Default 1.
        steps: u32,
    },
    /// As fast as the device can. While such a client has work, the budget is lifted for all
    /// clients, unless the budget was set to include it: by
    /// [`EngineOptions::budget_free_running`](crate::EngineOptions::budget_free_running) or
    /// [`Engine::set_budget`](crate::Engine::set_budget).
    FreeRunning,
}

impl Default for Pacing {
    fn default() -> Self {
        Self::PerFrame { steps: 1 }
    }
}

/// Maximum bytes of text of one delta.
pub const DELTA_BYTES_MAX: usize = 56;

/// Maximum asks of one agent that wait behind its reply in progress. Further asks fail with
/// [`ReplyError::Busy`].
pub const ASKS_WAITING_MAX: usize = 8;

/// Number of an agent's latest exchanges that [`Command::CancelHeard`] can shorten: a voice is
/// never further behind its model.
pub const EXCHANGES_KNOWN_MAX: usize = 16;

/// Reason why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
        /// Its index in [`AgentSpec::stop_strings`] at the start of the reply. If several end at
        /// the same character, the longest.
        index: u32,
    },
    /// A stop token.
    StopToken,
    /// [`AgentSpec::reply_tokens_max`] was reached. With a limit of 0 the reply ends when its
    /// prompt is accepted, and no step runs for it.
    Length,
    /// [`AgentSpec::reasoning_tokens_max`] was reached and the engine could not switch to speech:
    /// the vocabulary cannot spell the closing marker, or the model opened a new block each time or
    /// sampled markers and white space outside of blocks.
    ReasoningLength,
    /// The agent's context is full.
    ContextFull,
    /// Cancelled by the host.
    Cancelled,
    /// The reply exceeded [`Deadlines::reply`](crate::Deadlines::reply), or its host was stalled
    /// ([`Pacing`]).
    TimedOut,
}

/// Counts of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "reflect", derive(bevy_reflect::Reflect), reflect(Clone, Debug, PartialEq))]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were found in the cache, from earlier turns or from another agent whose
    /// prompt has the same prefix.
    pub cached_tokens: u32,
    /// Speech tokens of the reply. Tokens of a stop string count; the token that ended the turn
    /// (the model's or a [stop token](AgentSpec::stop_tokens)) does not.
    pub reply_tokens: u32,
    /// Sampled tokens of the reply's reasoning and its markers.
    pub reasoning_tokens: u32,
    /// Time from the ask's arrival at the engine to its first token, speech or reasoning, in
    /// microseconds, without [pauses](crate::Client::set_paused).
    pub first_token_micros: u64,
    /// Time from the ask's arrival at the engine to the end, in microseconds, without pauses.
    pub total_micros: u64,
}

/// Reason why a reply failed. Other agents continue, except for [`ReplyError::EngineGone`].
///
/// Text delivered before the failure stays in the conversation. Without text, the question is
/// removed as well, so that asking again does not duplicate it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// [slots](crate::EngineOptions::agents_max) or more [parked
    /// agents](crate::EngineOptions::agents_parked_max).
    #[error("no room for more than {agents_max} agents")]
    TooManyAgents {
        /// The engine's limit.
        agents_max: u32,
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
        "{asks} asks with {bytes} bytes have not ended; at most {asks_max} with {bytes_max} bytes may be open"
    )]
    TooManyAsks {
        /// Number of open asks.
        asks: u32,
        /// Maximum number of open asks.
        asks_max: u32,
        /// Bytes of their prompts.
        bytes: u64,
        /// Maximum bytes of their prompts.
        bytes_max: u64,
    },
    /// The prompt does not fit in the context: make it shorter. It is a whole conversation under
    /// [`ContextPolicy::Refuse`]; persona and last question under [`ContextPolicy::DropOldest`];
    /// raw text or tokens under any policy except [`ContextPolicy::Stop`].
    #[error("the prompt has {prompt_tokens} tokens, the context {context_tokens}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens that an agent's context can hold.
        context_tokens: u32,
    },
    /// The text cannot be encoded, or the chat template failed.
    #[error("{0}")]
    Text(String),
    /// The model has no working chat template, and [`Prompt::Chat`] needs one: start the engine
    /// with another [`template`](crate::EngineOptions::template), or ask with [`Prompt::Raw`].
    #[error(
        "{0}; choose one (EngineOptions::template: chatml, llama3, gemma, mistral or a file), or \
         use raw prompts"
    )]
    NoTemplate(Arc<TemplateState>),
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
    /// The model's output contains a NaN or infinity.
    #[error("the model's output is not finite")]
    NotFinite,
    /// The device failed several times on this reply but is not lost: ask again.
    #[error("the device failed: {0}")]
    Device(String),
    /// The device is lost or the engine was stopped: start another engine.
    #[error("the engine is gone: {0}")]
    EngineGone(String),
}

/// Event of a reply. Every generation gets at most one `Started`, then deltas, and exactly one of
/// `Finished` and `Failed` at the end. The concatenated deltas are the decoding of all its tokens,
/// up to a stop string, without reasoning.
///
/// Decoding: control tokens that a model samples within a reply have no text, other special tokens
/// have their text, and bytes that are not UTF-8 become U+FFFD. Speech is not trimmed: models whose
/// words begin with a space (Llama 2) begin a reply with one.
///
/// Reasoning is the text between a model's markers (`<think>` … `</think>` and others), in replies
/// to [`Prompt::Chat`]. It is never in a delta and never part of the conversation. No event carries
/// markers, white space behind a closing marker, or white space between the beginning of a reply
/// and its first block. A marker is a special token of the vocabulary; the same text spelled by
/// other tokens is speech. Only if the vocabulary lacks the token and the chat template contains
/// the marker, the marker's text is recognised, with any tokenisation.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyEvent {
    /// The prompt is encoded and the reply is scheduled.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
    },
    /// More text.
    Delta {
        /// Whole characters.
        text: InlineText<DELTA_BYTES_MAX>,
        /// Tokens that this text completes, including preceding tokens without text; 0 where one
        /// token's text fills several deltas. No delta includes tokens that end a reply without
        /// text, or the tokens of a stop string.
        tokens: u32,
    },
    /// More reasoning: text that is not speech. A host may ignore it.
    Reasoning {
        /// Whole characters.
        text: InlineText<DELTA_BYTES_MAX>,
        /// Tokens that this text completes, including preceding tokens without text, such as
        /// markers.
        tokens: u32,
    },
    /// One sampled token, of speech or reasoning, with its alternatives. It precedes the token's
    /// text and is sent only to agents with [`Sampling::candidates`] above 0. It is the only event
    /// that allocates per token: two allocations on the device thread, freed by the receiver.
    Token(Box<TokenDetail>),
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
pub struct TokenDetail {
    /// The sampled token.
    pub token: TokenId,
    /// Natural logarithm of its probability under the model, before any sampler.
    pub log_probability: f32,
    /// The most likely tokens with their log-probabilities.
    pub candidates: Vec<(TokenId, f32)>,
}

/// Event from an engine to a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The agent.
    pub agent: AgentId,
    /// The reply.
    pub generation: GenerationId,
    /// The event.
    pub what: ReplyEvent,
}

/// Counters of an engine, for diagnostics. They count from the engine's start unless documented
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Tokens sampled.
    pub tokens: u64,
    /// Prompt tokens evaluated.
    pub prefill_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Steps whose results have been read.
    pub steps_done: u64,
    /// Duration of these steps, by the device's clock.
    pub device_time: Duration,
    /// Duration of the latest step, from launch to completion as seen by the device thread.
    pub step: Duration,
    /// Rows of the latest step.
    pub step_rows: u32,
    /// Agents that speak or wait to speak now.
    pub agents_active: u32,
    /// Agents that exist now, including parked ones.
    pub agents: u32,
    /// Agents without a slot now: see [`Command::AddAgent`].
    pub agents_parked: u32,
    /// Parked agents that were asked and wait for a slot.
    pub agents_waiting: u32,
    /// Asks waiting now.
    pub asks_waiting: u32,
    /// KV pages in use now.
    pub pages_used: u32,
    /// Total KV pages.
    pub pages: u32,
    /// Device memory of the KV pages now, in bytes.
    pub kv_bytes: u64,
    /// Pages of the last [`set_kv_tokens`](crate::Engine::set_kv_tokens) that could not be
    /// allocated for lack of memory: call it again later.
    pub pages_refused: u32,
    /// Events that were delayed because a client's queue was full.
    pub queue_full: u64,
    /// Driver calls of all kinds since the driver was loaded. If programs write results to host
    /// memory: two per step, and one per about thirty completion checks. Otherwise: six per step,
    /// and one per completion check. Zero on devices without a driver.
    pub driver_calls: u64,
    /// Programs that the device launches op by op although graphs are supported: slower, with the
    /// same tokens. The device's log and `walla devices` report the reasons.
    pub graph_fallbacks: u64,
    /// Use of the frame budget.
    pub budget: BudgetStats,
}

/// Use of the frame budget. Counts are since the engine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetStats {
    /// Device time that the current frame may use; `None`: no limit.
    pub budget: Option<Duration>,
    /// Device time of the latest frame whose steps have all been measured. Frames without steps are
    /// skipped.
    pub used: Duration,
    /// Debt: time by which earlier frames exceeded their budget, which the current frame repays.
    pub debt: Duration,
    /// Frames begun.
    pub frames: u64,
    /// Frames that exceeded their budget.
    pub frames_over: u64,
    /// Frames that were planned over budget, because not even the smallest step fits in a budget.
    /// They are included in `frames_over`; the following frames repay the debt.
    pub frames_overdrawn: u64,
    /// Frames that ran no step although work was pending, because they repaid debt.
    pub frames_skipped: u64,
    /// Prompt tokens that the latest frame was granted.
    pub prefill_tokens: u32,
    /// Agents that have been waiting since before the latest frame and got no rows in it.
    pub agents_deferred: u32,
    /// Median of the relative error between predicted and measured step time: 0.1 is 10 %.
    pub error_p50: f32,
    /// 99th percentile of that error.
    pub error_p99: f32,
}
