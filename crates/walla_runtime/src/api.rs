//! What hosts and the engine say to each other: agents, commands, events.

use std::sync::Arc;
use std::time::Duration;

use walla_model::chat::TemplateState;
use walla_plan::Detail;
use walla_types::{Sampling, TokenId};

use crate::inline_text::InlineText;

/// Names an agent of an engine: unique for the engine's life. It belongs to the
/// [`Client`](crate::Client) that added it: of another's agents a client changes nothing, and its
/// asks of them fail with [`ReplyError::UnknownAgent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u64);

/// Names one reply of an agent: unique for the engine's life, so that a late event of an earlier
/// reply is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationId(pub u64);

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Speaker {
    /// Whoever talks to the agent.
    User,
    /// The agent.
    Agent,
    /// The world: an event that the agent perceives, written by the game ("Odo leaves the room").
    /// Templates have no such role: it is rendered as a system message where the model's template
    /// takes one at any place, else as a user message behind a fixed prefix. Like all text of a
    /// conversation it never yields control tokens. Where observations are user messages, a player
    /// can type the same prefix.
    Observation,
}

/// One turn of a conversation. Turns may have any order: an agent may speak first, and one speaker
/// may have several turns in a row. Where the model's template refuses that, they are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Who said it.
    pub speaker: Speaker,
    /// What was said.
    pub text: String,
}

/// What to do when a conversation no longer fits in the agent's context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextPolicy {
    /// Forget the oldest turns; the persona stays. The default.
    #[default]
    DropOldest,
    /// An ask that does not fit fails with [`ReplyError::PromptTooLong`]; a reply that fills the
    /// context finishes with [`FinishReason::ContextFull`].
    Refuse,
    /// Like `Refuse` for replies; an ask that does not fit finishes at once, empty, with
    /// [`FinishReason::ContextFull`].
    Stop,
}

/// An agent: who it is and how it speaks.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSpec {
    /// System text. Untrusted like everything a player can reach: it never yields control tokens.
    pub persona: String,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens of speech in one reply, at most. Default 256.
    pub reply_tokens_max: u32,
    /// Whether the model reasons before it speaks, where its chat template has a switch for that
    /// ([`ModelCard::thinking_switch`](crate::ModelCard::thinking_switch)).
    /// [Reasoning](ReplyEvent::Reasoning) is never spoken. Default `false`: it takes seconds.
    pub thinking: bool,
    /// Tokens of reasoning in one reply, at most. They do not count for
    /// [`reply_tokens_max`](Self::reply_tokens_max). Default 512.
    ///
    /// At the limit the engine closes the block: it appends the model's closing marker to the
    /// sequence, and the model continues with speech. It does so earlier where the context is
    /// short: speech keeps [`reply_tokens_max`](Self::reply_tokens_max) tokens, or half of the
    /// context behind the prompt if that is less. Where the vocabulary cannot spell the marker, the
    /// reply ends with [`FinishReason::ReasoningLength`].
    ///
    /// The limit also holds for models that reason without a switch; with 0 they speak at once.
    pub reasoning_tokens_max: u32,
    /// Tokens due per second (speech speed): a deadline that the planner tries to keep, not a
    /// maximum of effort. Default: none.
    pub voice_rate: Option<f32>,
    /// Agents of higher priority go first. Default 0.
    pub priority: i32,
    /// How much of a frame the agent is worth; [`Command::SetDetail`] changes it in mid-reply.
    /// Default: all that its voice needs.
    pub detail: Detail,
    /// What happens when the context is full.
    pub context_policy: ContextPolicy,
    /// A reply ends before any of these strings appears in its speech. Reasoning is not searched.
    pub stop_strings: Vec<String>,
    /// A reply ends at any of these tokens in its speech, besides the model's own end-of-turn
    /// tokens. Like those they are not said.
    pub stop_tokens: Vec<TokenId>,
    /// Turns to start with, oldest first: a restored conversation, an agent's greeting, an
    /// observation.
    pub history: Vec<Turn>,
}

impl AgentSpec {
    /// An agent with this persona and defaults for all else.
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

/// What an ask carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// The next user turn, through the model's chat template. The reply becomes the next agent
    /// turn.
    Chat(String),
    /// Raw text to continue, without template or conversation. The text may come from a player: it
    /// becomes no control, unknown or user-defined token and none that ends a generation
    /// ([`Tokenizer::encode_untrusted`](crate::Tokenizer::encode_untrusted)). All of the reply is
    /// text: reasoning is separated in replies to [`Prompt::Chat`] alone.
    Raw(String),
    /// Raw text to continue, without template or conversation, in which markers such as
    /// `<|im_start|>` become their tokens: for a chat format that the program writes itself. Never
    /// with text from a player. All of the reply is text.
    RawTrusted(String),
    /// Raw tokens to continue. All of the reply is text.
    Tokens(Vec<TokenId>),
}

/// From a host to its engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Adds an agent. Until then its asks fail with [`ReplyError::UnknownAgent`].
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
        /// Who it is.
        spec: Box<AgentSpec>,
    },
    /// Replaces all but the conversation of an agent (`history` is ignored), from the next reply
    /// that begins on: one in progress ends as it began. Priority, voice rate and detail, which no
    /// word depends on, count at once.
    ChangeAgent {
        /// The agent.
        agent: AgentId,
        /// Who it is now.
        spec: Box<AgentSpec>,
    },
    /// Changes how much an agent is worth, from the next step on: it came near, it is out of sight.
    SetDetail {
        /// The agent.
        agent: AgentId,
        /// Of each frame.
        detail: Detail,
    },
    /// Replaces the conversation of an agent. A reply in progress and all asks that wait are
    /// cancelled.
    SetConversation {
        /// The agent.
        agent: AgentId,
        /// Oldest first.
        turns: Vec<Turn>,
    },
    /// Adds turns to the end of the conversation of an agent. Nothing is cancelled: turns that
    /// arrive while the agent has asks follow the exchanges of these asks, whether those have begun
    /// or not. So the conversation is in the order of the commands.
    AppendTurns {
        /// The agent.
        agent: AgentId,
        /// Oldest first.
        turns: Vec<Turn>,
    },
    /// Removes an agent: its reply is cancelled, its memory freed.
    RemoveAgent {
        /// The agent.
        agent: AgentId,
    },
    /// Asks for a reply. While the agent still speaks, the ask waits for its turn.
    Ask {
        /// The agent.
        agent: AgentId,
        /// From [`Client::new_generation`](crate::Client::new_generation).
        generation: GenerationId,
        /// What is asked.
        prompt: Prompt,
    },
    /// Ends a reply early. What was said so far stays in the conversation; if nothing was, the
    /// question is forgotten as well. Without effect if it has ended.
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
    /// The reply may have ended, since a voice is slower than a model: this works for the last
    /// [`EXCHANGES_KNOWN_MAX`] replies of the agent. Later replies stay.
    Interrupt {
        /// The agent.
        agent: AgentId,
        /// The reply.
        generation: GenerationId,
        /// Bytes of its text that were heard.
        heard_bytes: u32,
    },
}

/// When an engine works for a client's agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// So many steps for each [`Client::frame`](crate::Client::frame); grants do not pile up. A
    /// step is at most one token for each agent.
    ///
    /// Within a [budget](crate::EngineOptions::budget) this is what each agent gets, in as many
    /// steps of the device as it takes. As long as there is time left, speakers behind their voice
    /// rate get more, and prompts are read on.
    PerFrame {
        /// Steps a frame. Default 1.
        steps: u32,
    },
    /// As fast as the device goes. Such a client with work to do lifts the budget for all, unless
    /// the budget was made to hold for it: by
    /// [`EngineOptions::budget_free_running`](crate::EngineOptions::budget_free_running) or
    /// [`Engine::set_budget`](crate::Engine::set_budget).
    FreeRunning,
}

impl Default for Pacing {
    fn default() -> Self {
        Self::PerFrame { steps: 1 }
    }
}

/// Bytes of text that one delta carries at most.
pub const DELTA_BYTES_MAX: usize = 56;

/// Asks of one agent that may wait behind its reply in progress; more fail with
/// [`ReplyError::Busy`].
pub const ASKS_WAITING_MAX: usize = 8;

/// Latest exchanges of an agent that [`Command::Interrupt`] can shorten: more than any voice is
/// behind its model.
pub const EXCHANGES_KNOWN_MAX: usize = 16;

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop string.
    Stop {
        /// Its index in [`AgentSpec::stop_strings`], as they were when the reply began. If several
        /// end at the same character, the longest.
        index: u32,
    },
    /// A stop token.
    StopToken,
    /// [`AgentSpec::reply_tokens_max`] reached. With a limit of 0 the reply ends when its prompt is
    /// accepted, and no step runs for it.
    Length,
    /// [`AgentSpec::reasoning_tokens_max`] reached, and the engine could not make the model speak:
    /// the vocabulary cannot spell the closing marker, or the model opened a new block each time.
    ReasoningLength,
    /// The agent's context is full.
    ContextFull,
    /// Cancelled by the host.
    Cancelled,
    /// The reply exceeded [`Deadlines::reply`](crate::Deadlines::reply).
    TimedOut,
}

/// Counts of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those of them that were still in the cache, from the turns before or from another agent
    /// whose prompt begins alike.
    pub cached_tokens: u32,
    /// Tokens of the reply's speech, tokens of a stop string counted, the token that ended the turn
    /// (the model's own or a [stop token](AgentSpec::stop_tokens)) not.
    pub reply_tokens: u32,
    /// Tokens of the reply's reasoning and its markers, as far as the model drew them.
    pub reasoning_tokens: u32,
    /// From the ask's arrival at the engine to its first token, of speech or reasoning, in
    /// microseconds, without the time of [pauses](crate::Client::set_paused).
    pub first_token_micros: u64,
    /// From the ask's arrival at the engine to the end, in microseconds, without the time of
    /// pauses.
    pub total_micros: u64,
}

/// Why a reply failed. Other agents go on, except for [`ReplyError::EngineGone`].
///
/// What was said before stays in the conversation. If nothing was, the question is forgotten as
/// well: asked again it stands there once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// No agent of this client has this name: add it first.
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
    /// Too many asks of one agent wait: ask again later.
    #[error("{waiting} asks of this agent are waiting already")]
    Busy {
        /// How many.
        waiting: u32,
    },
    /// Too many asks of this program have not ended: ask again when one has. Only the async API
    /// bounds them, before they reach the engine.
    #[error(
        "{asks} asks with {bytes} bytes have not ended; at most {asks_max} with {bytes_max} bytes may be open"
    )]
    TooManyAsks {
        /// Open asks.
        asks: u32,
        /// Open asks at most.
        asks_max: u32,
        /// Bytes of their prompts.
        bytes: u64,
        /// Bytes of their prompts at most.
        bytes_max: u64,
    },
    /// The prompt does not fit in the context: of a conversation under [`ContextPolicy::Refuse`],
    /// or the last question alone with the persona under [`ContextPolicy::DropOldest`]; of raw text
    /// or tokens under any policy but [`ContextPolicy::Stop`]. Make it shorter.
    #[error("the prompt has {prompt_tokens} tokens, the context {context_tokens}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Tokens that an agent's context holds.
        context_tokens: u32,
    },
    /// Text that cannot be encoded, or a template that fails.
    #[error("{0}")]
    Text(String),
    /// The model has no chat template that works, and [`Prompt::Chat`] needs one: start the engine
    /// with another [`template`](crate::EngineOptions::template), or ask with [`Prompt::Raw`].
    #[error(
        "{0}; choose one (EngineOptions::template: chatml, llama3, gemma, mistral or a file), or \
         use raw prompts"
    )]
    NoTemplate(Arc<TemplateState>),
    /// The reply needs more pages than the whole cache has, also with nobody beside it: shorten the
    /// conversation, or give the cache more
    /// ([`EngineOptions::kv_tokens`](crate::EngineOptions::kv_tokens),
    /// [`Engine::set_kv_tokens`](crate::Engine::set_kv_tokens)).
    #[error("{wanted_pages} KV pages wanted, {free_pages} free")]
    NoPages {
        /// Pages that the next token needs.
        wanted_pages: u32,
        /// Pages left.
        free_pages: u32,
    },
    /// The agent's [`allowed_tokens`](walla_types::Sampling::allowed_tokens) are none of the
    /// model's: make the mask for its vocabulary.
    #[error("none of the model's tokens is allowed")]
    NothingAllowed,
    /// The model computed something that is not a number.
    #[error("the model's output is not finite")]
    NotFinite,
    /// The device failed several times on this reply, but lives: ask again.
    #[error("the device failed: {0}")]
    Device(String),
    /// The device is lost or the engine stopped: start another.
    #[error("the engine is gone: {0}")]
    EngineGone(String),
}

/// Something that happened to a reply. Every generation sees at most one `Started`, then deltas,
/// and ends with exactly one of `Finished` and `Failed`; the deltas joined are the decoding of all
/// its tokens, up to a stop string, without reasoning.
///
/// Which decoding: control tokens that a model draws in mid-reply have no text, other special
/// tokens have their text, bytes that are no UTF-8 become U+FFFD. Speech is not trimmed: models
/// whose words begin with a space (Llama 2) begin a reply with one.
///
/// Reasoning is the text between a model's markers (`<think>` … `</think>` and others), in replies
/// to [`Prompt::Chat`]. It is never in a delta and never part of the conversation. No event carries
/// markers, white space behind a closing marker, or white space between the beginning of a reply
/// and its first block. A marker is a special token of the vocabulary; the same text spelled by
/// other tokens is speech. Only if the vocabulary lacks the token and the chat template contains
/// the marker, its text counts, however it is cut into tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyEvent {
    /// The prompt is encoded and work begins.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
    },
    /// More text.
    Delta {
        /// Whole characters.
        text: InlineText<DELTA_BYTES_MAX>,
        /// Tokens that this text completes, and those without text before it; 0 where one token's
        /// text fills several deltas. Tokens that end a reply without text, and those of a stop
        /// string, are in no delta.
        tokens: u32,
    },
    /// More reasoning: text that is not speech. A host may ignore it.
    Reasoning {
        /// Whole characters.
        text: InlineText<DELTA_BYTES_MAX>,
        /// Tokens that this text completes, and those without text before it, such as markers.
        tokens: u32,
    },
    /// One token drawn, of speech or reasoning, with its alternatives: sent before its text, only
    /// to agents with [`Sampling::candidates`] above 0. The only event that takes memory for each
    /// token: two allocations on the device thread, freed by the receiver.
    Token(Box<TokenDetail>),
    /// The reply is over.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts.
        usage: Usage,
    },
    /// The reply is over, badly.
    Failed(ReplyError),
}

impl ReplyEvent {
    /// Whether the reply is over.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_))
    }
}

/// A token and the likeliest alternatives at its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenDetail {
    /// The token drawn.
    pub token: TokenId,
    /// Natural logarithm of its probability under the model alone.
    pub log_probability: f32,
    /// The likeliest tokens with the logarithms of their probabilities.
    pub candidates: Vec<(TokenId, f32)>,
}

/// From an engine to a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The agent.
    pub agent: AgentId,
    /// The reply.
    pub generation: GenerationId,
    /// What happened.
    pub what: ReplyEvent,
}

/// Counters of an engine, for diagnostics. All of them are since its start unless they say
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Tokens drawn.
    pub tokens: u64,
    /// Prompt tokens evaluated.
    pub prefill_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Those of them whose results have been read.
    pub steps_done: u64,
    /// What those took, by the device's own clock.
    pub device_time: Duration,
    /// Duration of the latest step, from launch to completion as the device thread saw it.
    pub step: Duration,
    /// Rows of the latest step.
    pub step_rows: u32,
    /// Agents that speak or wait to speak now.
    pub agents_active: u32,
    /// Agents in all now, parked ones included.
    pub agents: u32,
    /// Agents without a slot now: see [`Command::AddAgent`].
    pub agents_parked: u32,
    /// Parked agents that were asked and wait for a slot.
    pub agents_waiting: u32,
    /// Asks waiting now.
    pub asks_waiting: u32,
    /// KV pages in use now.
    pub pages_used: u32,
    /// KV pages in all.
    pub pages: u32,
    /// Memory that the device holds for them now, in bytes.
    pub kv_bytes: u64,
    /// Pages that [`set_kv_tokens`](crate::Engine::set_kv_tokens) last asked for and that there was
    /// no memory for any more: ask again later.
    pub pages_refused: u32,
    /// Outputs that could not be delivered at once because a client's queue was full.
    pub queue_full: u64,
    /// Calls of the device's driver since it was loaded, of all kinds: two a step where programs
    /// write results to the host themselves and one for some thirty looks; else six a step, and one
    /// each time the engine asks whether it is done. Zero on devices without a driver.
    pub driver_calls: u64,
    /// Programs that the device launches op by op although they could have been graphs: slower,
    /// with the same tokens. Its log and `walla devices` say why.
    pub graph_fallbacks: u64,
    /// What frames use of their budget.
    pub budget: BudgetStats,
}

/// How the frame budget is kept. Counts are since the engine's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetStats {
    /// Device time that the current frame may use; `None`: no limit.
    pub budget: Option<Duration>,
    /// Device time of the latest frame whose steps have all been measured; frames that ran none are
    /// left out.
    pub used: Duration,
    /// What earlier frames used too much and the current one pays for.
    pub debt: Duration,
    /// Frames begun.
    pub frames: u64,
    /// Frames that used more than their budget.
    pub frames_over: u64,
    /// Those of them that were planned to, because not even the smallest step fits in a budget; the
    /// frames after them pay.
    pub frames_overdrawn: u64,
    /// Frames in which somebody wanted something and nothing was run: they paid for others.
    pub frames_sat_out: u64,
    /// Prompt tokens that the latest frame was granted.
    pub prefill_tokens: u32,
    /// Agents that have wanted something since before the latest frame and got nothing of it.
    pub agents_deferred: u32,
    /// Half of the steps took no more and no less than predicted but for this share: 0.1 is 10 %.
    pub error_p50: f32,
    /// All steps but one in a hundred.
    pub error_p99: f32,
}
