//! One agent: its conversation, the tokens of its sequence, and the reply in progress.

use std::collections::VecDeque;
use std::sync::Arc;

use walla_plan::Detail;
use walla_types::{PENALTY_WINDOW_MAX, TokenId};

use crate::api::{ASKS_WAITING_MAX, AgentId, AgentSpec, GenerationId, Prompt, Turn, Usage};
use crate::reply_parts::ReplyParts;

use super::ClientKey;

/// An ask that waits for its turn.
#[derive(Debug)]
pub(super) struct Ask {
    pub generation: GenerationId,
    pub prompt: Prompt,
    pub arrived_micros: u64,
    /// Turns that were appended after the ask before this one.
    pub turns_before: Vec<Turn>,
}

impl Ask {
    pub fn new(generation: GenerationId, prompt: Prompt, arrived_micros: u64) -> Self {
        Self { generation, prompt, arrived_micros, turns_before: Vec::new() }
    }
}

/// A reply in progress.
#[derive(Debug)]
pub(super) struct Reply {
    pub generation: GenerationId,
    pub arrived_micros: u64,
    /// When it left the queue of asks.
    pub begun_micros: u64,
    /// The user's turn that it answers, as soon as it is encoded: both become part of the
    /// conversation when the reply ends.
    pub question: Option<String>,
    pub stage: Stage,
    pub usage: Usage,
    /// All speech so far, for the conversation.
    pub said: String,
    /// Bytes of it that the conversation keeps: [`u32::MAX`] unless the host interrupts.
    pub heard_bytes: u32,
    /// [`AgentState::turns_removed`] when the prompt was made.
    pub turns_removed: u32,
    /// When its first token of speech came.
    pub spoken_since_micros: Option<u64>,
    /// Tokens of reasoning, at most: as the context allows.
    pub reasoning_tokens_max: u32,
    /// Blocks of reasoning that the engine has closed.
    pub blocks_closed: u32,
    /// Times that its sequence was evaluated anew after a failed step.
    pub retries: u32,
}

impl Reply {
    /// A reply that begins.
    pub fn new(ask: &Ask, turns_removed: u32, now_micros: u64) -> Self {
        Self {
            generation: ask.generation,
            arrived_micros: ask.arrived_micros,
            begun_micros: now_micros,
            question: None,
            stage: Stage::Encoding,
            usage: Usage::default(),
            said: String::new(),
            heard_bytes: u32::MAX,
            turns_removed,
            spoken_since_micros: None,
            reasoning_tokens_max: 0,
            blocks_closed: 0,
            retries: 0,
        }
    }
}

/// How far a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Template and tokenizer are at work on another thread.
    Encoding,
    /// The device is.
    Speaking,
}

/// Tells results that an agent waits for from results that nobody waits for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    agent: AgentId,
    turn: u32,
}

/// An agent and its sequence.
///
/// `history` holds every token of the sequence that the host knows; the ledger says how many
/// positions have been submitted. What is known but not submitted is fed as it is (prompt or
/// re-evaluation); where everything known is submitted and a drawn token is still on its way, the
/// next row can be launched ahead with the token that the device itself remembers.
#[derive(Debug)]
pub(super) struct AgentState {
    pub id: AgentId,
    pub client: ClientKey,
    pub spec: AgentSpec,
    /// What the next reply begins with: a change in mid-reply would be heard, and at another word
    /// in every run.
    next_spec: Option<Box<AgentSpec>>,
    /// Shared with the text thread while it encodes them, with nobody else when they change. What
    /// no prompt has room for any more has been dropped.
    pub turns: Arc<Vec<Turn>>,
    /// Turns that were appended after the last ask.
    pub later: Vec<Turn>,
    /// The latest exchanges in `turns`, oldest first: the reply and the index of its question.
    pub exchanges: VecDeque<(GenerationId, usize)>,
    /// Counts exchanges that were taken out of the middle of `turns`.
    pub turns_removed: u32,
    pub asks: VecDeque<Ask>,
    pub reply: Option<Reply>,
    /// Whether the agent has a sequence. Without one it is parked: it has asks perhaps, but no
    /// reply, no tokens and no buffers.
    has_slot: bool,
    pub text: ReplyParts,
    pub history: Vec<TokenId>,
    /// Tokens of the cache whose steps have completed: what another agent may share.
    pub evaluated: u32,
    /// Tokens that the sequence has had at most since it was empty.
    pub reached: u32,
    /// Draws submitted whose results the host has not read.
    pub unread: u32,
    /// Changes whenever results in flight no longer concern the agent. Never the same for two
    /// agents: one that takes a freed slot must not take the results of the one before.
    pub epoch: Epoch,
    /// Step at which the agent last had a row: the least recent idle agent gives up its pages
    /// first.
    pub last_step: u64,
    /// Since when (in frames, or steps that no frame limits) the agent has had work but no row.
    pub waiting_since: u64,
    /// The grant of its client that it last took steps of, and how many.
    pub grant: u64,
    pub taken: u32,
}

impl AgentState {
    /// A parked agent.
    pub fn new(client: ClientKey, id: AgentId, mut spec: AgentSpec) -> Self {
        let turns = std::mem::take(&mut spec.history);
        Self {
            id,
            client,
            spec,
            next_spec: None,
            turns: Arc::new(turns),
            later: Vec::new(),
            exchanges: VecDeque::new(),
            turns_removed: 0,
            asks: VecDeque::new(),
            reply: None,
            has_slot: false,
            text: ReplyParts::default(),
            history: Vec::new(),
            evaluated: 0,
            reached: 0,
            unread: 0,
            epoch: Epoch { agent: id, turn: 0 },
            last_step: 0,
            waiting_since: 0,
            grant: 0,
            taken: 0,
        }
    }

    /// Whether the agent has a sequence; if not, it is parked.
    pub fn has_slot(&self) -> bool {
        self.has_slot
    }

    /// Takes those asks out of the queue; returns their names. Turns that were appended before them
    /// stay in order.
    pub fn cancel_asks(&mut self, matches: impl Fn(GenerationId) -> bool) -> Vec<GenerationId> {
        let (mut cancelled, mut turns) = (Vec::new(), Vec::new());
        self.asks.retain_mut(|ask| {
            turns.append(&mut ask.turns_before);
            if matches(ask.generation) {
                cancelled.push(ask.generation);
                return false;
            }
            ask.turns_before = std::mem::take(&mut turns);
            true
        });
        turns.append(&mut self.later);
        self.later = turns;
        cancelled
    }

    /// Gets a slot. `history` is a buffer to use again.
    pub fn take_slot(&mut self, history: Vec<TokenId>, context_tokens: u32) {
        self.has_slot = true;
        self.text = ReplyParts::new(&self.spec.stop_strings);
        self.asks.reserve(ASKS_WAITING_MAX.saturating_sub(self.asks.len()));
        self.history = history;
        self.history.clear();
        self.history.reserve_exact(context_tokens as usize + 1);
    }

    /// Loses its slot, and returns its buffer for tokens. The agent has no reply in progress, and
    /// the cache nothing of its sequence.
    pub fn leave_slot(&mut self) -> Vec<TokenId> {
        debug_assert!(self.reply.is_none(), "an agent that speaks keeps its slot");
        self.has_slot = false;
        self.text = ReplyParts::default();
        self.asks.shrink_to_fit();
        std::mem::take(&mut self.history)
    }

    /// Another specification, but for the conversation: at once if nothing is being said, else from
    /// the next reply on. What decides who goes first and not what is said counts at once.
    pub fn change(&mut self, mut spec: Box<AgentSpec>) {
        spec.history = Vec::new();
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

    /// Takes over what was changed in mid-reply: a reply begins.
    pub fn take_changes(&mut self) {
        let Some(spec) = self.next_spec.take() else { return };
        if self.has_slot {
            self.text.set_stop_strings(&spec.stop_strings);
        }
        self.spec = *spec;
    }

    pub fn set_detail(&mut self, detail: Detail) {
        self.spec.detail = detail;
        if let Some(next) = &mut self.next_spec {
            next.detail = detail;
        }
    }

    /// Whether the device has or should get work for the agent.
    pub fn is_speaking(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.stage == Stage::Speaking)
    }

    /// Tokens by which the agent is behind its voice, those on their way not missing; below 0 if it
    /// is ahead. `None` without a voice rate. Before the first token of speech, also while the
    /// model reasons, one is due.
    pub fn tokens_due(&self, now_micros: u64) -> Option<f32> {
        let (rate, reply) = (self.spec.voice_rate?, self.reply.as_ref()?);
        let Some(first_micros) = reply.spoken_since_micros else {
            return Some(1.0 - self.unread as f32);
        };
        let spoken_seconds = now_micros.saturating_sub(first_micros) as f32 / 1e6;
        let known = reply.usage.reply_tokens + self.unread;
        Some(spoken_seconds * rate - known as f32 + 1.0)
    }

    /// How urgent it is to read so many tokens: in the order of the asks, but a long prompt lets
    /// those pass that came up to a second later for each 1,000 of its tokens. Turns around would
    /// make everybody wait for everybody.
    pub fn reading_due(&self, tokens: u32, now_micros: u64) -> Option<f32> {
        let arrived_micros = self.reply.as_ref()?.arrived_micros;
        let waited_seconds = now_micros.saturating_sub(arrived_micros) as f32 / 1e6;
        Some(waited_seconds - tokens as f32 / 1e3)
    }

    /// Tokens that penalties look back on when the agent draws.
    fn window(&self) -> u32 {
        let sampling = &self.spec.sampling;
        if sampling.has_penalties() { sampling.penalty_window().min(PENALTY_WINDOW_MAX) } else { 0 }
    }

    /// How many tokens of `prompt` the agent can begin with of a sequence that begins with `same`
    /// of them and has had `reached` tokens.
    ///
    /// At least one token is evaluated anew: its output is what the reply begins with. And
    /// penalties count tokens by position modulo
    /// [`PENALTY_WINDOW_MAX`]: where later ones of the sequence have taken the place of those that the first draw counts, these are read anew.
    pub fn begins_with(&self, prompt: &[TokenId], same: u32, reached: u32) -> u32 {
        let prompt_tokens = prompt.len() as u32;
        let keep = same.min(prompt_tokens - 1);
        let window = self.window();
        let is_remembered = reached + window <= keep + PENALTY_WINDOW_MAX;
        if is_remembered { keep } else { keep.min(prompt_tokens.saturating_sub(window)) }
    }

    /// The cache has nothing of the sequence any more.
    pub fn forget_cache(&mut self) {
        (self.evaluated, self.reached) = (0, 0);
        self.forget_in_flight();
    }

    /// Forgets results in flight: they belong to a reply that has ended or to tokens that are
    /// evaluated anew.
    pub fn forget_in_flight(&mut self) {
        self.unread = 0;
        self.epoch.turn = self.epoch.turn.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use walla_types::Sampling;

    use super::*;

    fn agent(window: u32) -> AgentState {
        let sampling = Sampling::builder().repetition_penalty(1.3).penalty_window(window);
        let spec = AgentSpec { sampling: sampling.build().expect("valid"), ..AgentSpec::new("") };
        AgentState::new(ClientKey(0), AgentId(1), spec)
    }

    #[test]
    fn penalties_count_no_token_of_a_longer_past() {
        let prompt = vec![TokenId(1); 400];
        let agent = agent(64);
        // Position 336 is still there when 591 is the last.
        assert_eq!(agent.begins_with(&prompt, 400, 592 - 1), 399);
        // Another token has taken its place: the last 64 tokens are read anew.
        assert_eq!(agent.begins_with(&prompt, 400, 592), 336);
        assert_eq!(agent.begins_with(&prompt, 200, 592), 200);
        assert_eq!(agent.begins_with(&prompt[..40], 40, 592), 0);
    }

    #[test]
    fn without_penalties_all_but_one_token_may_be_another_s() {
        let prompt = vec![TokenId(1); 400];
        let mut agent = agent(64);
        agent.spec.sampling = Sampling::greedy();
        assert_eq!(agent.begins_with(&prompt, 400, 1_000), 399);
        assert_eq!(agent.begins_with(&prompt[..1], 1, 1_000), 0);
    }
}
