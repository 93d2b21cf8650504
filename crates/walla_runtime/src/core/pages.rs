//! KV pages: prefix reuse, eviction and preemption.

use std::cmp::Reverse;

use walla_exec::{ExecError, StepError};
use walla_plan::{Detail, LedgerError, NextWork};
use walla_types::{SeqId, TokenId};

use super::Core;
use super::agents::{AgentState, Reply};
use crate::api::ReplyError;

/// Near before background, then priority, then age of the reply, then slot. The largest has
/// priority.
pub(super) type Urgency = (bool, i32, Reverse<(u64, usize)>);

/// Minimum number of pages of a common prefix for which a prompt waits.
pub(super) const PREFIX_PAGES_MIN: u32 = 2;

/// Maximum number of agents with which a prompt is compared in a plan.
pub(super) const MAX_LEADERS: usize = 16;

/// An agent for whose prompt others may wait: submitted tokens, urgency, slot.
pub(super) type Leader = (u32, Option<Urgency>, usize);

/// Maximum ticks that a prompt waits for another agent to evaluate their common prefix.
const MAX_PREFIX_WAIT_TICKS: u64 = 60;

/// Result of a request for pages.
#[derive(Debug)]
pub(super) enum Room {
    /// The pages are reserved.
    Granted,
    /// No pages are free now: steps in flight hold them, or more urgent agents.
    Wait,
    /// A snapshot lost its pages. The caller requests the pages again.
    Freed,
    /// Another agent must lose its pages first. The caller [drops](Core::drop_sequence) its
    /// sequence and requests the pages again.
    Preempt(usize),
    /// The device refused the cache operations: the agent is evaluated again.
    Refused(ExecError),
    /// There will be no pages: the reply fails.
    Failed(ReplyError),
}

impl Core {
    /// Keeps the cached prefix of `prompt` and drops the rest. Returns the number of tokens kept.
    pub(super) fn keep_prefix(&mut self, slot: usize, prompt: &[TokenId]) -> u32 {
        // First: closing a gap makes the common prefix longer.
        if self.context_shift {
            self.shift_context(slot, prompt);
        }
        let cached = self.kv.len(slot);
        let Some(agent) = self.agents.get_mut(slot) else { return 0 };
        let window = agent.penalty_window();
        let keep = agent.sequence.keep_prefix(prompt, cached, window);
        if keep == cached || self.kv.cut(slot, keep) {
            return keep;
        }
        self.clear_sequence(slot);
        0
    }

    /// Removes tokens from the middle of a sequence if the rest then continues `prompt`, and shifts
    /// the keys of the rest. No effect if the model or the device does not allow it.
    fn shift_context(&mut self, slot: usize, prompt: &[TokenId]) {
        let cached = self.kv.len(slot);
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let Some(gap) = agent.sequence.gap_before(prompt, cached) else { return };
        if self.kv.remove_and_shift(slot, gap.clone()) {
            tracing::debug!(target: "walla::reply", agent = agent.id.0, ?gap, "keys shifted");
            agent.sequence.close_gap(gap);
        }
    }

    /// The longest prefix in whole pages that an agent could share with another agent's sequence,
    /// and that agent's slot. `None` if none is longer than the agent's own cached prefix.
    fn longer_beginning(&self, slot: usize) -> Option<(u32, usize)> {
        let options = self.kv.ledger().options();
        let agent = self.agents.get(slot)?;
        let own = self.kv.len(slot);
        let page = options.page_tokens;
        let mut best = None;
        for (other, source) in self.agents.iter().filter(|&(other, _)| other != slot) {
            let evaluated = source.sequence.evaluated();
            debug_assert!(evaluated.len() as u32 <= self.kv.len(other));
            // The source must have one page more. Nearly all sources fail at the last token of that
            // page: they are shorter or differ there.
            let needed = (best.map_or(own, |(tokens, _)| tokens) / page + 1) * page;
            let last = needed as usize - 1;
            if evaluated
                .get(last)
                .is_none_or(|token| agent.sequence.tokens().get(last) != Some(token))
            {
                continue;
            }
            let tokens = agent.prefix_of(&source.sequence) / page * page;
            if tokens >= needed {
                best = Some((tokens, other));
            }
        }
        best
    }

    /// Whether the prompt of an agent begins as the prompt of another agent that is being
    /// evaluated: of agents that are asked in the same frame, the first one evaluates their common
    /// prefix. An agent that has evaluated more, or that is more urgent, does not wait. Agents of
    /// other clients are not waited for, because their frames may be rare. Agents that cannot
    /// continue are not waited for either: one that lacks pages could wait for this agent's pages,
    /// and one that awaits a mask may take long.
    pub(super) fn awaits_prefix(&self, slot: usize, leaders: &[Leader]) -> bool {
        let Some(agent) = self.agents.get(slot) else { return false };
        let waited = self.budget.ticks.saturating_sub(agent.sequence.waiting_since());
        if waited >= MAX_PREFIX_WAIT_TICKS {
            return false;
        }
        let (page, own) = (self.kv.ledger().options().page_tokens, self.kv.len(slot));
        let needed = (own / page + PREFIX_PAGES_MIN) * page;
        let tokens = agent.shareable();
        leaders.iter().any(|&(submitted, urgency, other)| {
            let Some(leader) = self.agents.get(other) else { return false };
            let theirs = &leader.sequence;
            if other == slot
                || leader.client != agent.client
                || tokens.len().min(theirs.tokens().len()) < needed as usize
            {
                return false;
            }
            let is_ahead = (submitted, urgency) > (own, self.urgency(slot))
                && self.can_be_scheduled(other)
                && self.can_continue_prompt(other);
            let evaluated = theirs.evaluated().len() as u32;
            let in_flight = self.in_flight.tokens_of(other, theirs.epoch());
            if !is_ahead && in_flight <= evaluated {
                return false;
            }
            let common = theirs.common_with(tokens).min(theirs.exact()) / page * page;
            // A recurrent state is shared by a snapshot, for which the leader stops.
            let is_shared = !self.kv.is_recurrent()
                || submitted <= common
                || self.kv.awaits_snapshot(&tokens[..common as usize]);
            is_shared && common >= needed && evaluated < common && (is_ahead || common <= in_flight)
        })
    }

    /// Whether an agent's next tokens can be submitted: it has some, and there are pages for them.
    fn can_continue_prompt(&self, slot: usize) -> bool {
        let tokens = match self.work_of(slot) {
            Some(NextWork::Prefill { tokens }) => tokens,
            Some(NextWork::Decoding) => 1,
            None => return false,
        };
        let ledger = self.kv.ledger();
        let wanted = ledger.pages_wanted(SeqId(slot as u32), tokens);
        wanted.is_ok_and(|pages| pages <= ledger.free_pages())
    }

    /// Finds the agents for whose prompts others may wait: the agents that have evaluated most and
    /// are most urgent, at most [`MAX_LEADERS`]. None with recurrent layers without snapshots,
    /// because their state covers a whole sequence.
    pub(super) fn find_leaders(&self, leaders: &mut Vec<Leader>) {
        leaders.clear();
        if self.kv.is_recurrent() && !self.kv.has_snapshots() {
            return;
        }
        for (slot, agent) in self.agents.iter() {
            let (submitted, evaluated) = (self.kv.len(slot), agent.sequence.evaluated().len());
            let is_read = self.missing_tokens(slot, agent) == 0
                && evaluated as u32 >= submitted.min(agent.sequence.exact());
            if is_read || !(agent.is_running() || submitted as usize > evaluated) {
                continue;
            }
            let leader = (submitted, self.urgency(slot), slot);
            let at = leaders.partition_point(|other| *other > leader);
            if at < MAX_LEADERS {
                leaders.truncate(MAX_LEADERS - 1);
                leaders.insert(at, leader);
            }
        }
    }

    /// Shares the prefix of another agent's sequence if it is longer than the agent's own, in whole
    /// pages that both sequences then reference. Returns the number of tokens gained. Keys and
    /// values of a token depend only on the preceding tokens, so sharing does not change the
    /// output.
    pub(super) fn share_prefix(&mut self, slot: usize) -> u32 {
        if self.kv.is_recurrent() {
            return self.restore_snapshot(slot);
        }
        // Pages are shared up to any page border; a recurrent state only as a whole.
        let Some((tokens, other)) = self.longer_beginning(slot) else { return 0 };
        let own = self.kv.len(slot);
        // Checked before the own tokens are dropped: without a free command, both would be lost.
        if !self.kv.has_commands() {
            return 0;
        }
        self.clear_sequence(slot);
        if !self.kv.share(other, slot, ..tokens) {
            return 0;
        }
        let reached = self.agents.get(other).map_or(0, |source| source.sequence.reached());
        self.begin_shared(slot, tokens, reached);
        tokens - own
    }

    /// An agent's sequence begins with `tokens` tokens of another one that has had `reached`
    /// tokens.
    pub(super) fn begin_shared(&mut self, slot: usize, tokens: u32, reached: u32) {
        let Some(agent) = self.agents.get_mut(slot) else { return };
        agent.sequence.share(tokens, reached);
        // A reply that has begun to speak has evaluated its prompt itself.
        let is_new = |reply: &&mut Reply| reply.usage.first_token_micros == 0;
        if let Some(reply) = agent.reply.as_mut().filter(is_new) {
            reply.usage.cached_tokens = tokens.min(reply.usage.prompt_tokens);
        }
        tracing::debug!(target: "walla::reply", agent = agent.id.0, tokens, "begins with shared tokens");
    }

    /// Frees all pages of a sequence. If its agent has a reply in progress, its tokens are
    /// recomputed.
    pub(super) fn drop_sequence(&mut self, slot: usize) {
        self.clear_sequence(slot);
        if let Some(agent) = self.agents.get_mut(slot) {
            agent.background.forget_cache();
        }
    }

    /// Frees all pages of a sequence, whose tokens are evaluated next.
    pub(super) fn clear_sequence(&mut self, slot: usize) {
        self.kv.clear(slot);
        if let Some(agent) = self.agents.get_mut(slot) {
            agent.sequence.forget_cache();
        }
    }

    /// Reserves pages for `tokens` more tokens of an agent. Idle agents lose their pages first,
    /// then less urgent ones.
    pub(super) fn make_room(&mut self, slot: usize, tokens: u32) -> Room {
        let (wanted_pages, free_pages, fenced_pages) = match self.kv.reserve(slot, tokens) {
            Ok(()) => return Room::Granted,
            Err(StepError::Ledger(LedgerError::NoPages {
                wanted_pages,
                free_pages,
                fenced_pages,
            })) => (wanted_pages, free_pages, fenced_pages),
            Err(StepError::Exec(error)) => return Room::Refused(error),
            Err(error) => return Room::Failed(ReplyError::Text(error.to_string())),
        };
        if self.kv.free_snapshot() {
            return Room::Freed;
        }
        if let Some(idle) = self.idle_holder(Some(slot)) {
            return Room::Preempt(idle);
        }
        // Fenced pages become free when the steps in flight have completed.
        if fenced_pages > 0 {
            let claimed = self.kv.claim.map(|other| self.urgency(other));
            if claimed.is_none_or(|of_claim| of_claim < self.urgency(slot)) {
                self.kv.claim = Some(slot);
            }
            return Room::Wait;
        }
        if self.kv.free_shared_snapshot() || self.stop_transfer() {
            return Room::Freed;
        }
        match self.victim(slot) {
            // The victim would share or reserve its pages again, and lose them again, without end.
            Some(_) if self.reachable_pages(slot).is_some_and(|pages| wanted_pages > pages) => {
                Room::Wait
            }
            Some(victim) => Room::Preempt(victim),
            None if self.kv.is_only_holder(slot) => {
                Room::Failed(ReplyError::NoPages { wanted_pages, free_pages })
            }
            // Without a step in flight or a victim, waiting helps only if the holder can continue.
            None => self.blocked_holder(slot).map_or(Room::Wait, Room::Preempt),
        }
    }

    /// The least urgent agent that has reserved pages, but no token yet and no row in this step, if
    /// it is less urgent than `slot`: a [claim](Self::apply_claim) may hold it back.
    fn blocked_holder(&self, slot: usize) -> Option<usize> {
        let is_blocked = |&other: &usize| {
            let has_pages = self.kv.holds_pages(other);
            other != slot && has_pages && self.kv.is_empty(other) && !self.scheduler.includes(other)
        };
        let holders = (0..self.agents.slots()).filter(is_blocked);
        let other = holders.min_by_key(|&other| self.urgency(other))?;
        (self.urgency(other) < self.urgency(slot)).then_some(other)
    }

    /// Limits all agents together to `tokens` cached tokens. If they hold more, idle agents lose
    /// their cache first, then the least urgent agents: they keep their tokens and recompute them
    /// when pages are free.
    pub(super) fn limit_kv(&mut self, tokens: u32) {
        self.kv.limit(tokens);
        while self.kv.exceeds_limit() {
            if self.kv.free_snapshot() {
                continue;
            }
            let holds = |&slot: &usize| self.kv.holds_pages(slot);
            let least_urgent = || {
                let held = (0..self.agents.slots()).filter(holds);
                held.min_by_key(|&slot| self.urgency(slot))
            };
            match self.idle_holder(None).or_else(least_urgent) {
                Some(slot) => self.drop_sequence(slot),
                None if self.stop_transfer() => {}
                None => break,
            }
        }
        self.kv.update_stats(&mut self.stats);
    }

    /// The least recently used idle agent that holds pages.
    fn idle_holder(&self, except: Option<usize>) -> Option<usize> {
        let is_idle = |&slot: &usize| {
            // A paused agent needs no pages; after the pause its tokens are recomputed.
            let is_busy = |agent: &AgentState| {
                agent.reply.is_some() && self.clients.is_schedulable(agent.client)
            };
            let is_busy = self.agents.get(slot).is_some_and(is_busy);
            Some(slot) != except && !self.kv.is_empty(slot) && !is_busy
        };
        let least_recent =
            |&slot: &usize| self.agents.get(slot).map_or(0, |agent| agent.sequence.last_step());
        (0..self.agents.slots()).filter(is_idle).min_by_key(least_recent)
    }

    /// Urgency of an agent: near before background, then by priority, then by age of the reply, so
    /// that at least one reply always completes.
    pub(super) fn urgency(&self, slot: usize) -> Option<Urgency> {
        let agent = self.agents.get(slot)?;
        let arrived = agent.reply.as_ref().map_or(u64::MAX, |reply| reply.arrived_micros);
        let is_near = agent.spec.detail != Detail::Background;
        Some((is_near, agent.spec.priority, Reverse((arrived, slot))))
    }

    /// Pages that an agent gets at most if all less urgent ones lose theirs. `None` if no more
    /// urgent one has pages.
    fn reachable_pages(&mut self, slot: usize) -> Option<u32> {
        let urgency = self.urgency(slot);
        let mut held = std::mem::take(&mut self.kv.held_pages);
        held.fill(0);
        let ledger = self.kv.ledger();
        let mut is_alone = true;
        for other in (0..self.agents.slots()).filter(|&other| self.urgency(other) >= urgency) {
            is_alone &= other == slot || !self.kv.holds_pages(other);
            for page in ledger.pages(SeqId(other as u32)) {
                // A set, not a sum, because agents share pages.
                held[page.index() / 64] |= 1 << (page.index() % 64);
            }
        }
        let count: u32 = held.iter().map(|bits| bits.count_ones()).sum();
        let reachable = ledger.usable_pages().saturating_sub(count);
        self.kv.held_pages = held;
        (!is_alone).then_some(reachable)
    }

    /// The agent that is preempted for `slot`: the least urgent one that holds pages, if it is less
    /// urgent than `slot`.
    fn victim(&self, slot: usize) -> Option<usize> {
        let holds = |&s: &usize| s != slot && !self.kv.is_empty(s);
        let victim = (0..self.agents.slots()).filter(holds).min_by_key(|&s| self.urgency(s))?;
        (self.urgency(victim) < self.urgency(slot)).then_some(victim)
    }
}
