//! One agent: its specification, conversation, asks, reply and sequence.

use walla_exec::Draw;
use walla_grammar::CallReader;
use walla_plan::Detail;
use walla_types::{MAX_PENALTY_WINDOW, TokenId};

use super::background::BackgroundPrefill;
use super::reply::Reply;
use super::sequence::SequenceState;
use crate::api::{AgentId, AgentSpec, MAX_ASKS_WAITING};
use crate::ask_queue::AskQueue;
use crate::core::constraints::ReplyConstraint;
use crate::engine_core::ClientKey;
use crate::history::History;
use crate::reply_parts::ReplyParts;

/// An agent and its sequence.
#[derive(Debug)]
pub(in crate::core) struct AgentState {
    pub id: AgentId,
    pub client: ClientKey,
    pub spec: AgentSpec,
    /// Specification that applies from the next reply on. A change within a reply would be audible,
    /// and at a different word in every run.
    next_spec: Option<Box<AgentSpec>>,
    /// Turns that no prompt can hold any more are dropped.
    pub history: History,
    pub asks: AskQueue,
    pub reply: Option<Reply>,
    /// Whether the agent has a sequence. Without one it is parked: it may have asks, but no reply,
    /// no tokens and no buffers.
    has_slot: bool,
    pub output: ReplyParts,
    /// Created when the first reply with actions begins.
    pub calls: Option<Box<CallReader>>,
    pub sequence: SequenceState,
    pub background: BackgroundPrefill,
    /// Whether the latest prompt was a question, or there was none. The cache of other prompts is
    /// kept.
    pub is_chat: bool,
}

impl AgentState {
    /// A parked agent.
    pub fn new(client: ClientKey, id: AgentId, mut spec: AgentSpec) -> Self {
        let turns = std::mem::take(&mut spec.turns);
        Self {
            id,
            client,
            spec,
            next_spec: None,
            history: History::new(turns),
            asks: AskQueue::default(),
            reply: None,
            has_slot: false,
            output: ReplyParts::default(),
            calls: None,
            sequence: SequenceState::new(id),
            background: BackgroundPrefill::default(),
            is_chat: true,
        }
    }

    /// Whether the agent has a sequence. Without one it is parked.
    pub fn has_slot(&self) -> bool {
        self.has_slot
    }

    /// Assigns a slot. `buffer` is reused for its tokens.
    pub fn take_slot(&mut self, buffer: Vec<TokenId>, context_tokens: u32) {
        self.has_slot = true;
        self.output = ReplyParts::new(&self.spec.stop_strings);
        // Capacity for all asks that may wait, so that none allocates while others speak.
        let free = MAX_ASKS_WAITING.saturating_sub(self.asks.len());
        self.asks.reserve(free);
        self.sequence.set_buffer(buffer, context_tokens);
        self.background.restart();
    }

    /// Releases the slot and returns the token buffer. The agent has no reply in progress, and the
    /// cache holds nothing of its sequence.
    pub fn leave_slot(&mut self) -> Vec<TokenId> {
        debug_assert!(self.reply.is_none(), "an agent with a reply in progress keeps its slot");
        self.has_slot = false;
        self.output = ReplyParts::default();
        self.calls = None;
        self.asks.shrink_to_fit();
        self.sequence.take_buffer()
    }

    /// Changes the specification, except for the conversation: at once without a reply in progress,
    /// otherwise from the next reply on. Settings that affect scheduling but not the text apply at
    /// once.
    pub fn change(&mut self, mut spec: Box<AgentSpec>) {
        // They begin a conversation; a change keeps the one that there is.
        spec.turns = Vec::new();
        if self.reply.is_some() {
            self.spec.priority = spec.priority;
            self.spec.voice_rate = spec.voice_rate;
            self.spec.detail = spec.detail;
        }
        self.next_spec = Some(spec);
        if self.reply.is_none() {
            self.take_changes();
        }
    }

    /// Applies a change made during the previous reply. Called when a reply begins.
    pub fn take_changes(&mut self) {
        let Some(spec) = self.next_spec.take() else { return };
        if self.has_slot {
            self.output.set_stop_strings(&spec.stop_strings);
        }
        let is_same = has_same_prompts(&spec, &self.spec);
        self.spec = *spec;
        // A prompt that was prepared stays valid unless one of its parts has changed.
        if !is_same {
            self.background.outdate();
        }
    }

    /// The specification of the next reply.
    pub fn latest_spec(&self) -> &AgentSpec {
        self.next_spec.as_deref().unwrap_or(&self.spec)
    }

    pub fn set_detail(&mut self, detail: Detail) {
        self.spec.detail = detail;
        // Also in a change that waits, which would undo this one.
        if let Some(next) = &mut self.next_spec {
            next.detail = detail;
        }
    }

    /// Whether it has a reply in progress or an ask.
    pub fn has_work(&self) -> bool {
        self.reply.is_some() || !self.asks.is_empty()
    }

    /// Moves the arrival times of its asks and its reply by the duration of a pause.
    pub fn postpone(&mut self, micros: u64) {
        self.asks.iter_mut().for_each(|ask| ask.arrived_micros += micros);
        self.reply.iter_mut().for_each(|reply| reply.postpone(micros));
    }

    /// Whether the prompt is encoded, so that the device prefills or decodes for the agent.
    pub fn is_running(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.is_running)
    }

    /// Whether the reply in progress may call actions.
    pub fn acts(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.policy.is_some())
    }

    /// The constraint of the reply in progress, if it has one.
    pub fn constraint(&self) -> Option<&ReplyConstraint> {
        self.reply.as_ref()?.constraint.as_ref()
    }

    /// The calls of the reply in progress, if it may have any.
    pub fn reply_calls(&self) -> Option<&CallReader> {
        self.calls.as_deref().filter(|_| self.reply.as_ref().is_some_and(Reply::may_have_calls))
    }

    /// How the next token is drawn.
    pub fn draw(&self) -> Draw<'_> {
        let sampling = &self.spec.sampling;
        let mask = self.constraint().and_then(ReplyConstraint::mask);
        let of_speech = || self.reply.as_ref()?.speech_mask.as_ref();
        // The masks of constraints and of speech already respect the allowed tokens of the
        // sampling.
        let mask = mask.or_else(of_speech).or_else(|| sampling.allowed_tokens());
        let seed = self.reply.as_ref().and_then(|reply| reply.options.seed);
        Draw { sampling, mask, seed, forced: None }
    }

    /// How the token behind a position is drawn.
    pub fn draw_behind(&self, position: u32) -> Draw<'_> {
        match self.scored_behind(position) {
            Some(token) => Draw { forced: Some(token), ..Draw::from(&self.spec.sampling) },
            None => self.draw(),
        }
    }

    /// The known tokens that can be taken from another agent's cache: none with outputs.
    pub fn shareable(&self) -> &[TokenId] {
        let tokens = self.sequence.tokens();
        let end = self.first_scored().map_or(tokens.len(), |first| first as usize);
        tokens.get(..end).unwrap_or(tokens)
    }

    /// Prefix of the known tokens that can be taken from the cache of the `source` sequence.
    pub fn prefix_of(&self, source: &SequenceState) -> u32 {
        let prefix = self.sequence.prefix_of(source, self.penalty_window());
        prefix.min(self.shareable().len() as u32)
    }

    /// Whether the known tokens begin with the `tokens` of a whole sequence that has had `reached`
    /// tokens, and all of it can be used.
    pub fn begins_with(&self, tokens: &[TokenId], reached: u32) -> bool {
        tokens.len() <= self.shareable().len()
            && self.sequence.begins_with(tokens, reached, self.penalty_window())
    }

    /// Number of earlier tokens that the agent's penalties consider.
    pub fn penalty_window(&self) -> u32 {
        let sampling = &self.spec.sampling;
        if sampling.has_penalties() { sampling.penalty_window().min(MAX_PENALTY_WINDOW) } else { 0 }
    }

    /// `due` of a decode: tokens by which the agent is behind its voice rate; negative if it is
    /// ahead. Tokens in flight count as delivered. `None` without a voice rate. Before the first
    /// speech token, also during reasoning, one token is due.
    pub fn tokens_due(&self, now_micros: u64) -> Option<f32> {
        let (rate, reply) = (self.spec.voice_rate?, self.reply.as_ref()?);
        let Some(first_micros) = reply.spoken_since_micros else {
            // Nothing is spoken yet, so one token is due, minus the draws in flight.
            return Some(1.0 - self.sequence.unread() as f32);
        };
        let spoken_seconds = now_micros.saturating_sub(first_micros) as f32 / 1e6;
        let known = reply.usage.reply_tokens + self.sequence.unread();
        Some(spoken_seconds * rate - known as f32 + 1.0)
    }

    /// `due` of a prefill: seconds waited - `tokens` / 1,000. Only the order matters: asks that
    /// arrive up to one second later per 1,000 tokens of a long prompt overtake it. Round-robin
    /// would delay all prompts equally.
    pub fn prefill_order(&self, tokens: u32, now_micros: u64) -> Option<f32> {
        let arrived_micros = self.reply.as_ref()?.arrived_micros;
        let waited_seconds = now_micros.saturating_sub(arrived_micros) as f32 / 1e6;
        Some(waited_seconds - tokens as f32 / 1e3)
    }
}

/// Whether the settings of prompts are equal, including the tokens that they keep for a reply.
fn has_same_prompts(spec: &AgentSpec, other: &AgentSpec) -> bool {
    let key = |spec: &AgentSpec| {
        let actions = spec.actions.as_ref().map(|actions| actions.set.listed());
        let reply_tokens = (spec.max_reply_tokens, spec.max_reasoning_tokens);
        let seed = spec.sampling.seed();
        (actions, reply_tokens, spec.thinking, spec.context_policy, seed)
    };
    spec.persona == other.persona && key(spec) == key(other)
}
