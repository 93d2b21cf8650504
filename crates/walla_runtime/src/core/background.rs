//! Background prefill: while an agent is not asked, the device evaluates the tokens with which its
//! next prompt begins, in time that nothing else uses.
//!
//! # Rules
//! 1. The tokens are persona, conversation and the markers before the next question. They are
//!    encoded after an agent got a sequence, after its reply ended, and after its conversation or
//!    its specification changed (then at most once per second). If the next prompt would drop
//!    turns, they are dropped here too, so that a full context is evaluated before the next ask.
//! 2. A step evaluates tokens of one agent, first by level of detail, then by priority, then by
//!    slot. It runs only if no other agent has work for this frame, and uses at most the rest of
//!    the frame's budget, without time that earlier frames left. Without a budget it runs only
//!    while no reply is in progress and no step is in flight, for at most
//!    [`BUDGET_MICROS`](walla_plan::defaults::BUDGET_MICROS).
//! 3. It takes free pages only. An agent that loses its pages is not evaluated again before its
//!    next ask or change. An agent that was never asked loses its pages first.
//! 4. An ask continues with the evaluated tokens that its prompt begins with. While its prompt is
//!    encoded, the background prefill continues.
//! 5. Conversations are not changed: turns are dropped for ever by an ask only, by the same rule.

use std::cmp::Reverse;

use walla_exec::StepError;
use walla_plan::{Detail, Limits, NextWork, PlanRequest, StepWork};
use walla_types::SeqId;

use super::Core;
use super::agents::AgentState;
use super::encode::{Conversation, EncodeJob, Encoded, PromptSource, Purpose};
use super::schedule::base_limits;
use crate::api::{Pacing, ReplyError};
use crate::engine_core::ClientKey;

/// Minimum number of tokens for a step. Fewer are evaluated in a step of the next prompt.
const TOKENS_MIN: u32 = 16;

/// Order of agents, the first is the smallest: level of detail, priority, slot.
type Order = (u8, Reverse<i32>, usize);

fn order(slot: usize, agent: &AgentState) -> Order {
    let detail = match agent.spec.detail {
        Detail::Full => 0,
        Detail::Reduced => 1,
        Detail::Background => 2,
    };
    (detail, Reverse(agent.spec.priority), slot)
}

// Encoding.
impl Core {
    /// Whether conversations are evaluated before an ask.
    pub(super) fn prepares_in_background(&self) -> bool {
        self.background_prefill && self.model_text.template.is_some()
    }

    /// The agent whose conversation is encoded next, and the time until then; 0: now.
    fn next_outdated(&self, now_micros: u64) -> Option<(u64, usize)> {
        if !self.prepares_in_background() {
            return None;
        }
        let waits = |(slot, agent): (usize, &AgentState)| {
            let micros = agent.background.micros_to_encoding(now_micros)?;
            let is_loading = self.transfers.is_loading(agent.id);
            let is_idle = !agent.has_work() && agent.is_chat && !is_loading;
            let is_idle = is_idle && self.clients.runs(agent.client);
            is_idle.then(|| (micros, order(slot, agent)))
        };
        let (micros, (_, _, slot)) = self.agents.iter().filter_map(waits).min()?;
        Some((micros, slot))
    }

    /// Time until a conversation is encoded. `None` if none is waiting, or if the text thread
    /// reports its next capacity.
    pub(super) fn micros_to_background(&self, now_micros: u64) -> Option<u64> {
        let accepts = self.prompts.accepts_background();
        accepts.then(|| self.next_outdated(now_micros)).flatten().map(|(micros, _)| micros)
    }

    /// Starts to encode the next conversation. Returns `false` without one.
    pub(super) fn encode_in_background(&mut self, now_micros: u64) -> bool {
        if !self.prompts.accepts_background() {
            return false;
        }
        let Some((0, slot)) = self.next_outdated(now_micros) else { return false };
        let context_tokens = self.prompt_context_tokens();
        let Some(agent) = self.agents.get_mut(slot) else { return false };
        let version = agent.background.encode(now_micros);
        let job = EncodeJob {
            agent: agent.id,
            purpose: Purpose::Background(version),
            source: PromptSource::Unasked(Conversation::of(agent)),
            context_tokens,
            declared_tokens: self.context_tokens,
            reply_tokens: self.model_text.reply_tokens(&agent.spec).min(context_tokens / 2),
            score: None,
        };
        self.prompts.submit_background(job);
        true
    }

    /// Gives an agent the tokens of its conversation, if its cache lacks enough of them.
    ///
    /// An error is the next ask's to report.
    pub(super) fn begin_background(
        &mut self,
        slot: usize,
        version: u32,
        encoded: Result<Encoded, ReplyError>,
    ) {
        let is_waiting =
            |agent: &&mut AgentState| agent.background.expects(version) && agent.reply.is_none();
        let Some(agent) = self.agents.get_mut(slot).filter(is_waiting) else { return };
        agent.background.end();
        let Ok(Encoded { tokens, .. }) = encoded else { return };
        let cached = self.kv.len(slot);
        let same = agent.sequence.common_with(&tokens).min(cached);
        // The state of a recurrent layer covers all cached tokens.
        let is_kept = same == cached || !self.kv.ledger().options().recurrent;
        let missing = tokens.len() as u32 - if is_kept { same } else { 0 };
        let fits = (tokens.len() as u32) < self.context_tokens
            && tokens.iter().all(|token| token.0 < self.card.vocab);
        if !fits || missing < TOKENS_MIN {
            return;
        }
        self.keep_prefix(slot, &tokens);
        let ticks = self.budget.ticks;
        let Some(agent) = self.agents.get_mut(slot) else { return };
        agent.sequence.begin(&tokens, ticks);
        agent.background.prefill();
        tracing::debug!(target: "walla::reply", agent = agent.id.0, missing, "is evaluated in the background");
    }
}

// Steps.
impl Core {
    /// Agents with tokens to evaluate in the background and enough free pages, by slot.
    fn with_background(&self) -> impl Iterator<Item = (usize, &AgentState)> {
        let ledger = self.kv.ledger();
        let running = self.agents.iter().filter(|(_, agent)| agent.is_running()).count() as u32;
        // A page for the next tokens of each reply in progress.
        let free_pages = ledger.free_pages().saturating_sub(running);
        let candidates = self.agents.iter().filter(|(_, agent)| {
            agent.background.is_prefilling()
                && !self.transfers.is_loading(agent.id)
                && self.clients.that_may_step(agent.client).is_some()
        });
        candidates.filter(move |&(slot, agent)| {
            let tokens = self.missing_tokens(slot, agent);
            let wanted = ledger.pages_wanted(SeqId(slot as u32), tokens);
            tokens > 0 && wanted.is_ok_and(|pages| pages <= free_pages)
        })
    }

    /// Number of agents that are evaluated in the background.
    pub(super) fn background_agents(&self) -> u32 {
        self.with_background().count() as u32
    }

    /// Whether a client has granted steps that the background may use.
    fn has_granted(&self, client: ClientKey) -> bool {
        let Some(client) = self.clients.that_may_step(client) else { return false };
        match client.pacing {
            Pacing::FreeRunning => true,
            Pacing::PerFrame { .. } if !self.budget.has_limit() => client.credits > 0,
            Pacing::PerFrame { .. } => client.grants > 0,
        }
    }

    /// The request of the first of them whose client has granted steps.
    fn background_request(&self) -> Option<PlanRequest> {
        let granted = self.with_background().filter(|(_, agent)| self.has_granted(agent.client));
        let (slot, agent) = granted.min_by_key(|&(slot, agent)| order(slot, agent))?;
        let work = NextWork::Prefill { tokens: self.missing_tokens(slot, agent) };
        Some(PlanRequest::new(SeqId(slot as u32), work))
    }

    /// Plans a step of a background prefill, if there are no other requests.
    pub(super) fn schedule_background(&mut self) {
        if !self.background_prefill || !self.scheduler.has_no_request() {
            return;
        }
        let Some(request) = self.background_request() else { return };
        let slot = request.seq.index();
        let Some(client) =
            self.agents.get(slot).and_then(|agent| self.clients.that_may_step(agent.client))
        else {
            return;
        };
        let pacing = client.pacing;
        let is_unbudgeted = self.budget.is_unbudgeted_for(pacing) || !self.budget.has_limit();
        // A reply of a paused or stalled client gets no steps.
        let has_reply =
            |agent: &AgentState| agent.reply.is_some() && self.clients.is_schedulable(agent.client);
        let is_quiet = self.kv.executor().in_flight() == 0
            && !self.agents.iter().any(|(_, agent)| has_reply(agent));
        if is_unbudgeted && !is_quiet {
            return;
        }
        let smallest = StepWork::prefill(1, self.kv.len(slot));
        let is_rest = !is_unbudgeted && self.budget.governor.is_used();
        let base = base_limits(self.scheduler.limits(), self.max_prefill_tokens, is_rest);
        let base = Limits { forces: false, ..base };
        if !is_unbudgeted && pacing == Pacing::FreeRunning {
            self.budget.waits_for_window = true;
        }
        let Self { scheduler, budget, kv, .. } = self;
        let limits = if is_unbudgeted {
            budget.unbudgeted_spare_limits(base, smallest)
        } else {
            budget.governor.spare_limits(base, smallest, is_quiet)
        };
        let Some((rows, tokens)) = scheduler.plan_prefill(request, kv.ledger(), &limits) else {
            return;
        };
        scheduler.is_unbudgeted = budget.is_unbudgeted_for(pacing);
        self.include_background(slot, rows, tokens);
    }

    /// Adds the next `rows` of `tokens` rows to the batch, in free pages.
    fn include_background(&mut self, slot: usize, rows: u32, tokens: u32) {
        let shared = self.share_prefix(slot);
        let tokens = tokens.saturating_sub(shared);
        let rows = self.rows_to_snapshot(slot, rows.min(tokens));
        match self.kv.reserve(slot, tokens) {
            Ok(()) if self.push_rows(slot, rows) => {
                self.scheduler.included.push((slot, rows));
            }
            // Steps in flight still hold the free pages.
            Ok(()) | Err(StepError::Ledger(_)) => {}
            Err(_) => self.drop_sequence(slot),
        }
    }
}
