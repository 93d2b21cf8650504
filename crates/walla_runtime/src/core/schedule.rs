//! Schedules the rows of the next step and fills its batch.

use walla_exec::StepError;
use walla_plan::{
    AGED_CHUNK_TOKENS, Batch, BatchLimits, CostModel, Deferral, Deferred, Detail, KvLedger, Limits,
    NextWork, Output, Plan, PlanRequest, Row, StepWork, TokenInput,
};
use walla_types::SeqId;

use super::agents::AgentState;
use super::clients::ClientState;
use super::constraints::ReplyConstraint;
use super::in_flight::{Evaluated, PendingOutput};
use super::pages::{Leader, MAX_LEADERS, Room};
use super::{Core, MAX_STEPS_AHEAD};
use crate::api::{Pacing, ReplyError};

/// [`Limits::chunk_gain_min`] of the rest of a frame, which is not spent on prefill chunks with
/// little gain.
const REST_GAIN_MIN: f32 = 1.25;

/// Maximum steps of one frame for an agent that prefills or whose voice is late. Usually the
/// budget ends first.
const MAX_STEPS: u32 = 32;

/// Buffers that are reused from step to step.
#[derive(Debug)]
pub(super) struct Scheduler {
    batch: Batch,
    requests: Vec<PlanRequest>,
    leaders: Vec<Leader>,
    plan: Plan,
    /// Slots in the batch with their number of rows.
    pub included: Vec<(usize, u32)>,
    /// No budget limits this step.
    pub is_unbudgeted: bool,
}

impl Scheduler {
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            batch: Batch::new(limits),
            requests: Vec::with_capacity(limits.max_sequences as usize),
            leaders: Vec::with_capacity(MAX_LEADERS),
            plan: Plan::new(limits.max_sequences),
            included: Vec::with_capacity(limits.max_sequences as usize),
            is_unbudgeted: false,
        }
    }

    fn rows_left(&self) -> u32 {
        let BatchLimits { max_tokens, max_batch_sequences, max_outputs, .. } = *self.batch.limits();
        let sequences = self.included.len() as u32;
        // Every agent needs a page table and at most one output.
        let is_full = sequences >= max_batch_sequences.min(max_outputs);
        if is_full { 0 } else { max_tokens - self.batch.len() }
    }

    /// Whether one agent at most has requested rows of this step.
    pub fn is_only_request(&self) -> bool {
        self.requests.len() <= 1
    }

    /// Outputs that the step can still have.
    pub fn outputs_left(&self) -> u32 {
        self.batch.limits().max_outputs.saturating_sub(self.batch.outputs())
    }

    /// Requests that the latest plan deferred.
    #[cfg(test)]
    pub fn deferred(&self) -> &[Deferred] {
        self.plan.deferred()
    }

    /// Sizes of a step.
    pub fn limits(&self) -> &BatchLimits {
        self.batch.limits()
    }

    /// Whether no agent has requested rows of this step.
    pub fn has_no_request(&self) -> bool {
        self.requests.is_empty() && self.batch.is_empty()
    }

    /// Plans a step for one request. Returns the rows that it gets, and its missing tokens.
    pub fn plan_prefill(
        &mut self,
        request: PlanRequest,
        ledger: &KvLedger,
        limits: &Limits<'_>,
    ) -> Option<(u32, u32)> {
        let planned = walla_plan::plan(&[request], ledger, limits, &mut self.plan);
        debug_assert!(planned.is_ok(), "one request fits: {planned:?}");
        let prefill = self.plan.prefill().first()?;
        Some((prefill.tokens, prefill.prompt_tokens))
    }

    /// Empties the batch.
    pub fn clear(&mut self) {
        self.included.clear();
        self.batch.clear();
    }

    /// Whether a slot is in the batch.
    pub fn includes(&self, slot: usize) -> bool {
        self.included.iter().any(|&(included, _)| included == slot)
    }
}

/// Limits of a step without a budget. In the rest of a frame a prompt alone starts no small step.
pub(super) fn base_limits(
    step: &BatchLimits,
    max_prefill_tokens: u32,
    is_rest: bool,
) -> Limits<'static> {
    Limits {
        chunk_gain_min: if is_rest { REST_GAIN_MIN } else { 1.0 },
        max_rows: step.max_tokens,
        max_prefill_tokens,
        max_sequences: step.max_batch_sequences,
        ..Limits::default()
    }
}

/// The row with the lowest predicted cost among the requests of an empty plan that exceed a time
/// limit. `None` if the plan has rows.
fn smallest_left_out(
    plan: &Plan,
    requests: &[PlanRequest],
    ledger: &KvLedger,
    cost: &dyn CostModel,
) -> Option<StepWork> {
    if !plan.is_empty() {
        return None;
    }
    let exceeds = |deferred: &&Deferred| deferred.reason == Deferral::Budget;
    let works = plan.deferred().iter().filter(exceeds).filter_map(|deferred| {
        let request = requests.iter().find(|request| request.seq == deferred.seq)?;
        let cached_tokens = ledger.len(request.seq);
        Some(match request.work {
            NextWork::Prefill { .. } => StepWork::prefill(1, cached_tokens),
            _ => StepWork::decode(1, u64::from(cached_tokens) + 1),
        })
    });
    let micros = |work: &StepWork| cost.predict_micros(*work);
    works.min_by(|a, b| micros(a).total_cmp(&micros(b)))
}

impl Core {
    /// Work of the agent for the next step, if any.
    pub(super) fn work_of(&self, slot: usize) -> Option<NextWork> {
        let agent = self.agents.get(slot).filter(|agent| agent.is_running())?;
        let submitted = self.kv.len(slot);
        let constraint = agent.constraint();
        let mut missing = self.missing_tokens(slot, agent);
        if constraint.is_some_and(ReplyConstraint::awaits_mask) {
            // The last token is submitted with the draw behind it.
            missing = missing.saturating_sub(1);
        }
        match missing {
            0 if agent.is_scoring() => None,
            // No draw is launched ahead: its mask depends on the token before it.
            0 if constraint.is_some() => None,
            // If the draw opens a call, a draw behind it would be discarded.
            0 if agent.acts() && self.kv.ledger().options().recurrent => None,
            // All known tokens are submitted; the next input is the sampled token on the device.
            // None without such a draw, or with two.
            0 if agent.sequence.unread() == 0 || agent.sequence.unread() >= MAX_STEPS_AHEAD => None,
            0 if submitted >= self.context_tokens || !Self::wants_more(agent) => None,
            // A single missing prompt token is planned as decode.
            0 | 1 => Some(NextWork::Decoding),
            tokens => Some(NextWork::Prefill { tokens }),
        }
    }

    /// Known tokens of an agent that are not submitted.
    pub(super) fn missing_tokens(&self, slot: usize, agent: &AgentState) -> u32 {
        (agent.sequence.tokens().len() as u32).saturating_sub(self.kv.len(slot))
    }

    /// Whether the reply can continue after the draws in flight. A step launched ahead is wasted if
    /// the reply ends with them.
    fn wants_more(agent: &AgentState) -> bool {
        let Some(reply) = &agent.reply else { return false };
        if reply.tokens + agent.sequence.unread() >= reply.max_tokens() {
            return false;
        }
        if agent.output.open_format().is_some() {
            return reply.usage.reasoning_tokens + agent.sequence.unread()
                < reply.max_reasoning_tokens;
        }
        reply.usage.reply_tokens + agent.sequence.unread() < agent.spec.max_reply_tokens
    }

    /// Collects the requests of agents whose clients can step.
    fn collect_requests(&mut self, now_micros: u64) {
        // Taken out, because the loop reads the rest of the core; put back for its capacity.
        let mut requests = std::mem::take(&mut self.scheduler.requests);
        requests.clear();
        let mut leaders = std::mem::take(&mut self.scheduler.leaders);
        self.find_leaders(&mut leaders);
        let (mut is_unbudgeted, mut has_window) = (false, false);
        for (slot, agent) in self.agents.iter() {
            let Some(client) = self.clients.that_may_step(agent.client) else { continue };
            let Some(work) = self.work_of(slot) else { continue };
            let (due, is_prefill) = match work {
                NextWork::Prefill { tokens } => (agent.prefill_order(tokens, now_micros), true),
                _ => (agent.tokens_due(now_micros), false),
            };
            if !self.may_take(client, agent, due, is_prefill)
                || (is_prefill && self.awaits_prefix(slot, &leaders))
            {
                continue;
            }
            is_unbudgeted |= self.budget.is_unbudgeted_for(client.pacing);
            has_window |= client.pacing == Pacing::FreeRunning;
            let waited = self.budget.ticks.saturating_sub(agent.sequence.waiting_since());
            requests.push(PlanRequest {
                priority: agent.spec.priority,
                detail: agent.spec.detail,
                due,
                waited_frames: u32::try_from(waited).unwrap_or(u32::MAX),
                ..PlanRequest::new(SeqId(slot as u32), work)
            });
        }
        self.scheduler.is_unbudgeted = is_unbudgeted;
        self.budget.waits_for_window = has_window && !is_unbudgeted;
        self.scheduler.requests = requests;
        self.scheduler.leaders = leaders;
    }

    /// Whether an agent may take another step of its client's grant. `due` of a decode is the
    /// number of tokens that it is behind; of a prefill it only determines an order.
    ///
    /// Without a time limit, a grant is a number of device steps. With a limit, it is a number of
    /// steps per agent. The remaining time of the budget is used for late voices and for prompts,
    /// for agents of full detail.
    fn may_take(
        &self,
        client: &ClientState,
        agent: &AgentState,
        due: Option<f32>,
        is_prefill: bool,
    ) -> bool {
        let Pacing::PerFrame { steps } = client.pacing else { return true };
        if !self.budget.governor.is_limiting() {
            return client.credits > 0;
        }
        let taken = agent.sequence.taken_of(client.grants);
        let is_late = due.is_some_and(|due| due >= 0.0);
        let wants_more = self.budget.has_limit() && (is_prefill || is_late);
        let most = match agent.spec.detail {
            Detail::Full if wants_more => steps.max(MAX_STEPS),
            Detail::Full => steps,
            Detail::Reduced | Detail::Background => steps.min(1),
        };
        client.grants > 0 && taken < most
    }

    /// Plans the next step. Returns `false` if no agent gets rows; the plan is outdated then.
    fn plan(&mut self) -> bool {
        let Self { scheduler, budget, kv, agents, .. } = self;
        let Scheduler { requests, plan, batch, is_unbudgeted, .. } = scheduler;
        let lengths = requests.iter().map(|request| kv.ledger().len(request.seq));
        let Some(shortest) = lengths.min() else {
            budget.governor.set_deferred(0);
            return false;
        };
        // Agents that already had rows in this frame do not count as deferred.
        let ticks = budget.ticks;
        let waits = |seq: &SeqId| {
            let agent = agents.get(seq.index());
            agent.is_some_and(|agent| agent.sequence.waiting_since() < ticks)
        };
        let unserved = |seqs: &mut dyn Iterator<Item = SeqId>| seqs.filter(waits).count() as u32;
        if !*is_unbudgeted && budget.is_spent() {
            budget.governor.set_deferred(unserved(&mut requests.iter().map(|request| request.seq)));
            return false;
        }
        let is_rest = !*is_unbudgeted && budget.governor.is_used();
        let base = base_limits(batch.limits(), self.max_prefill_tokens, is_rest);
        let mut smallest = StepWork::decode(1, u64::from(shortest) + 1);
        let wanted = StepWork::wanted(requests, &base);
        loop {
            let limits =
                if *is_unbudgeted { base } else { budget.governor.limits(base, smallest, wanted) };
            let planned = walla_plan::plan(requests, kv.ledger(), &limits, plan);
            debug_assert!(
                planned.is_ok(),
                "there are as many requests as sequences at most: {planned:?}"
            );
            // A prefill row, or a row with a longer context, may exceed a limit that the smallest
            // row meets. If all requests are such rows, the cheapest of them is used as the
            // smallest.
            let of_plan = smallest_left_out(plan, requests, kv.ledger(), budget.governor.cost());
            match of_plan.filter(|work| *work != smallest) {
                Some(work) => smallest = work,
                None => break,
            }
        }
        budget
            .governor
            .set_deferred(unserved(&mut plan.deferred().iter().map(|deferred| deferred.seq)));
        true
    }

    /// Plans one step and fills its batch.
    fn schedule(&mut self, now_micros: u64) {
        self.kv.sequences.free_fenced();
        self.collect_requests(now_micros);
        self.apply_claim();
        self.scheduler.clear();
        if !self.plan() {
            return self.schedule_background();
        }
        for index in 0..self.scheduler.plan.decode().len() {
            let slot = self.scheduler.plan.decode()[index].index();
            self.include(slot, 1, 1);
        }
        for index in 0..self.scheduler.plan.prefill().len() {
            let prefill = self.scheduler.plan.prefill()[index];
            self.include(prefill.seq.index(), prefill.tokens, prefill.prompt_tokens);
        }
        self.preempt_for_pages();
    }

    /// Reserves pages for the agent that preempted others and waits until the steps in flight
    /// release them. Without this, a less urgent agent would take them first and be preempted
    /// again, without end. Agents that need no new page continue, and so do more urgent ones.
    fn apply_claim(&mut self) {
        let Some(slot) = self.kv.claim else { return };
        let mut requests = std::mem::take(&mut self.scheduler.requests);
        if requests.iter().any(|request| request.seq.index() == slot) {
            let urgency = self.urgency(slot);
            let ledger = self.kv.ledger();
            requests.retain(|request| {
                let other = request.seq.index();
                let page = ledger.options().page_tokens;
                let fills_a_page = ledger.len(request.seq).is_multiple_of(page);
                let needs_pages = fills_a_page || request.work != NextWork::Decoding;
                other == slot || !needs_pages || self.urgency(other) > urgency
            });
        } else if self.work_of(slot).is_none() || !self.can_be_scheduled(slot) {
            // A claim that outlasts a stall or a pause would keep other agents from claiming pages,
            // and they would preempt each other without end.
            self.kv.claim = None;
        }
        // Otherwise its host has no step left for it in this frame, and no agent is held back.
        self.scheduler.requests = requests;
    }

    pub(super) fn can_be_scheduled(&self, slot: usize) -> bool {
        self.agents.get(slot).is_some_and(|agent| self.clients.is_schedulable(agent.client))
    }

    /// Finds pages for the most urgent agent that the plan deferred for lack of pages. It must be
    /// the most urgent one: the least urgent agent has no victim to preempt, and if all agents wait
    /// at the end of a page, none would ever continue.
    fn preempt_for_pages(&mut self) {
        let lacks = |deferred: &&Deferred| matches!(deferred.reason, Deferral::Pages { .. });
        let slots = self.scheduler.plan.deferred().iter().filter(lacks).map(|d| d.seq.index());
        let Some(slot) = slots.max_by_key(|&slot| self.urgency(slot)) else { return };
        let rows_left = self.scheduler.rows_left();
        match self.work_of(slot) {
            Some(NextWork::Decoding) if rows_left > 0 => {
                self.include(slot, 1, 1);
            }
            Some(NextWork::Prefill { tokens }) if rows_left > 0 => {
                // This exceeds the budget: only a small chunk, so that the agent makes progress at
                // all.
                let chunk = if self.scheduler.is_unbudgeted { u32::MAX } else { AGED_CHUNK_TOKENS };
                let rows = tokens.min(self.max_prefill_tokens).min(rows_left).min(chunk);
                self.include(slot, rows, tokens);
            }
            _ => {}
        }
    }

    /// Adds the agent's next `rows` rows to the batch if there are pages for `tokens` more tokens.
    fn include(&mut self, slot: usize, rows: u32, tokens: u32) {
        // Preemption for other agents may have taken the agent's pages, and with them its work.
        let work = self.work_of(slot).filter(|_| !self.scheduler.includes(slot));
        if work.is_none() || !self.admit_mask(slot) {
            return;
        }
        let missing = match work {
            Some(NextWork::Prefill { tokens }) => tokens - self.share_prefix(slot),
            _ => 1,
        };
        let (rows, tokens) = (rows.min(missing), tokens.min(missing));
        let rows = self.rows_with_outputs(slot, self.rows_to_snapshot(slot, rows));
        // A shared prefix may have all tokens but the one that awaits its mask.
        if rows == 0 || !self.reserve(slot, tokens) || !self.push_rows(slot, rows) {
            return;
        }
        self.scheduler.included.push((slot, rows));
        if self.kv.claim == Some(slot) {
            self.kv.claim = None;
        }
    }

    /// Reserves pages for `tokens` more tokens of an agent. Returns `false` if none are free now or
    /// its reply has failed.
    fn reserve(&mut self, slot: usize, tokens: u32) -> bool {
        loop {
            match self.make_room(slot, tokens) {
                Room::Granted => return true,
                Room::Freed => {}
                Room::Wait => return false,
                Room::Preempt(other) => {
                    // An agent of a stalled client that just continued may be in the batch.
                    self.exclude(other);
                    self.drop_sequence(other);
                    // It may have had reserved pages only.
                    self.kv.note_freed();
                }
                Room::Refused(error) => {
                    // Counted as a retry of this reply, so that a device that never accepts the
                    // commands ends it.
                    self.recompute(slot, &error.to_string());
                    self.kv.note_freed();
                    return false;
                }
                Room::Failed(error) => {
                    self.fail(slot, error);
                    return false;
                }
            }
        }
    }

    /// Adds the agent's next `rows` rows to the batch.
    pub(super) fn push_rows(&mut self, slot: usize, rows: u32) -> bool {
        let Some(agent) = self.agents.get(slot) else { return false };
        let start = self.kv.len(slot);
        let first = self.scheduler.batch.len();
        for position in start..start + rows {
            let token = agent.sequence.tokens().get(position as usize);
            let token = token.map_or(TokenInput::LastSampled, |&token| TokenInput::Id(token));
            let is_end = position as usize + 1 >= agent.sequence.tokens().len();
            let is_wanted =
                if agent.is_scoring() { agent.scored_behind(position).is_some() } else { is_end };
            let samples = is_wanted && agent.is_running();
            let output = if samples { Output::Sample } else { Output::None };
            let seq = SeqId(slot as u32);
            if self.scheduler.batch.push(token, Some(position), seq, output).is_err() {
                debug_assert!(false, "rows and tokens are checked before they come here");
                self.scheduler.batch.truncate(first);
                return false;
            }
        }
        true
    }

    /// Checks the agent's mask of allowed tokens, if it has one. Returns `false` if it allows no
    /// token of this vocabulary, which fails the reply.
    fn admit_mask(&mut self, slot: usize) -> bool {
        let vocab = self.kv.executor().vocab();
        let agent = self.agents.get(slot);
        let mask = agent.and_then(|agent| agent.draw().mask);
        let is_usable = mask.is_none_or(|mask| mask.allows_some_of(vocab));
        if !is_usable {
            self.fail(slot, ReplyError::NothingAllowed);
        }
        is_usable
    }

    /// Removes an agent's rows from the batch, because its sequence has been dropped.
    fn exclude(&mut self, slot: usize) {
        self.scheduler.included.retain(|&(s, _)| s != slot);
        self.scheduler.batch.remove_sequence(SeqId(slot as u32));
    }

    /// Composes and submits one step. Returns `false` if no agent has work that can run now.
    pub(super) fn submit_step(&mut self, now_micros: u64) -> Result<bool, StepError> {
        let stage = walla_trace::enter(walla_trace::Stage::Plan);
        self.schedule(now_micros);
        if self.scheduler.batch.is_empty() {
            stage.discard();
            return Ok(false);
        }
        drop(stage);
        let agents = &self.agents;
        let draw =
            |row: &Row| agents.get(row.seq.index()).map(|agent| agent.draw_behind(row.position));
        let step = self.kv.sequences.submit(&mut self.scheduler.batch, &draw)?;
        self.record_submitted(step, now_micros);
        Ok(true)
    }

    /// Records the submitted step.
    fn record_submitted(&mut self, step: u64, now_micros: u64) {
        for place in 0..self.scheduler.included.len() {
            let (slot, rows) = self.scheduler.included[place];
            let Some(agent) = self.agents.get_mut(slot) else { continue };
            let tokens = self.kv.len(slot);
            let grant = self.clients.take_step(agent.client);
            if !agent.is_running() {
                self.stats.background_tokens += u64::from(rows);
                agent.sequence.prefilled(tokens);
                if tokens as usize == agent.sequence.tokens().len() {
                    agent.background.end();
                }
                continue;
            }
            agent.sequence.stepped(step, tokens, self.budget.ticks);
            if let Some(reply) = agent.reply.as_mut()
                && tokens - rows < reply.usage.prompt_tokens
                && reply.usage.first_token_micros == 0
            {
                reply.submitted_prompt(now_micros);
            }
            let reply = agent.reply.as_mut();
            if let Some(constraint) = reply.and_then(|reply| reply.constraint.as_mut()) {
                // This step is counted below.
                constraint.stepped(self.stats.steps + 1);
            }
            if rows > 1 {
                self.stats.prefill_tokens += u64::from(rows);
            }
            if let Some(grant) = grant {
                agent.sequence.charge(grant);
            }
        }
        self.clients.charge_step();
        let work = self.work_of_step();
        let charged = self.budget.charge(work, self.scheduler.is_unbudgeted);
        self.in_flight.start(step, now_micros, charged);
        for place in 0..self.scheduler.included.len() {
            self.snapshot_after(self.scheduler.included[place].0, step);
        }
        for &(slot, _) in &self.scheduler.included {
            let Some(agent) = self.agents.get(slot) else { continue };
            let (epoch, tokens) = (agent.sequence.epoch(), self.kv.len(slot));
            self.in_flight.push_evaluated(Evaluated { slot, epoch, tokens });
        }
        for row in self.kv.sequences.ubatch().rows() {
            if row.output_row.is_none() {
                continue;
            }
            let slot = row.seq.index();
            if let Some(agent) = self.agents.get_mut(slot) {
                let epoch = agent.sequence.drawing();
                self.in_flight.push(PendingOutput { slot, epoch, position: row.position });
            }
        }
        self.stats.steps += 1;
        let rows = self.kv.sequences.ubatch().len();
        tracing::trace!(target: "walla::step", step, rows, agents = self.scheduler.included.len(), "submitted");
        self.stats.step_rows = self.kv.sequences.ubatch().len();
    }

    /// Work of the composed step in the units of the governor. The ledger already contains the rows
    /// of the included agents.
    fn work_of_step(&self) -> StepWork {
        let mut all = StepWork::default();
        for &(slot, rows) in &self.scheduler.included {
            let length = self.kv.len(slot);
            let of_agent = if rows == 1 {
                StepWork::decode(1, length.into())
            } else if self.agents.get(slot).is_some_and(AgentState::is_scoring) {
                // Each row has logits, as a decode row has.
                StepWork { decode_rows: rows, ..StepWork::decode(0, length.into()) }
            } else {
                StepWork::prefill(rows, length.saturating_sub(rows))
            };
            all.decode_rows += of_agent.decode_rows;
            all.prefill_tokens += of_agent.prefill_tokens;
            all.context_tokens += of_agent.context_tokens;
            all.prefill_pairs += of_agent.prefill_pairs;
        }
        all
    }
}
