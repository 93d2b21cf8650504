//! KV pages: prefix reuse, eviction and preemption.

use std::cmp::Reverse;

use walla_exec::{ExecError, Sequences};
use walla_plan::{Detail, LedgerError};
use walla_types::{SeqId, TokenId};

use super::Core;
use super::agents::AgentState;
use crate::api::ReplyError;

/// Near before background, then priority, then age of the reply, then slot. The largest has
/// priority.
type Urgency = (bool, i32, Reverse<(u64, usize)>);

/// State of the page allocation between calls.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Target number of pages for a resize, which runs when no step is in flight.
    resizes_to: Option<u32>,
    /// A reply ended or pages were freed since the last plan: agents that lacked pages may
    /// continue.
    has_freed: bool,
    /// The agent that preempted others for pages which steps in flight still hold.
    claim: Option<usize>,
}

impl Pages {
    /// A reply ended or pages were freed.
    pub fn note_freed(&mut self) {
        self.has_freed = true;
    }

    /// Whether [`note_freed`](Self::note_freed) was called since the last call of this.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.has_freed)
    }

    /// The slot of the agent that preempted others for pages which steps in flight still hold.
    pub fn claim(&self) -> Option<usize> {
        self.claim
    }

    pub fn end_claim(&mut self) {
        self.claim = None;
    }

    #[cfg(test)]
    pub fn set_claim(&mut self, slot: Option<usize>) {
        self.claim = slot;
    }

    #[cfg(test)]
    pub fn is_resizing(&self) -> bool {
        self.resizes_to.is_some()
    }
}

impl Core {
    /// Keeps the cached prefix of `prompt` and drops the rest. Returns the number of tokens kept.
    pub(super) fn keep_prefix(&mut self, slot: usize, prompt: &[TokenId]) -> u32 {
        let seq = SeqId(slot as u32);
        let cached = self.sequences.ledger.len(seq);
        let Some(agent) = self.agents.get_mut(slot) else { return 0 };
        let window = agent.penalty_window();
        let keep = agent.sequence.keep_prefix(prompt, cached, window);
        if keep == cached || self.cut(seq, keep) {
            return keep;
        }
        self.drop_sequence(slot);
        0
    }

    /// Capacity of the cache in tokens, shared by all agents.
    pub(super) fn cache_tokens(&self) -> u32 {
        let ledger = &self.sequences.ledger;
        ledger.usable_pages().saturating_mul(ledger.options().page_tokens)
    }

    /// The longest prefix in whole pages that an agent could share with another agent's sequence,
    /// and that agent's slot. `None` if none is longer than the agent's own cached prefix.
    fn longer_beginning(&self, slot: usize) -> Option<(u32, usize)> {
        let options = self.sequences.ledger.options();
        // The state of a recurrent layer covers a whole sequence, so it has no prefix to share.
        let agent = self.agents.get(slot).filter(|_| !options.recurrent)?;
        let own = self.sequences.ledger.len(SeqId(slot as u32));
        let (page, window) = (options.page_tokens, agent.penalty_window());
        let mut best = None;
        for (other, source) in self.agents.iter().filter(|&(other, _)| other != slot) {
            let evaluated = source.sequence.evaluated();
            debug_assert!(evaluated.len() as u32 <= self.sequences.ledger.len(SeqId(other as u32)));
            // The source must have one page more. Nearly all sources fail at the last token of that
            // page: they are shorter or differ there.
            let needed = (best.map_or(own, |(tokens, _)| tokens) / page + 1) * page;
            let last = needed as usize - 1;
            if evaluated
                .get(last)
                .is_none_or(|token| agent.sequence.history().get(last) != Some(token))
            {
                continue;
            }
            let tokens = agent.sequence.prefix_of(&source.sequence, window) / page * page;
            if tokens >= needed {
                best = Some((tokens, other));
            }
        }
        best
    }

    /// Shares the prefix of another agent's sequence if it is longer than the agent's own, in whole
    /// pages that both sequences then reference. Returns the number of tokens gained. Keys and
    /// values of a token depend only on the preceding tokens, so sharing does not change the
    /// output.
    pub(super) fn share_prefix(&mut self, slot: usize) -> u32 {
        let Some((tokens, other)) = self.longer_beginning(slot) else { return 0 };
        let seq = SeqId(slot as u32);
        let own = self.sequences.ledger.len(seq);
        // One command drops the agent's own tokens, one copies the other's.
        if self.sequences.commands.free() < 2 {
            return 0;
        }
        self.drop_sequence(slot);
        let Sequences { ledger, commands, .. } = &mut self.sequences;
        let copied = ledger.copy(SeqId(other as u32), seq, ..tokens, commands);
        debug_assert!(copied.is_ok(), "a sequence that is there, and room: {copied:?}");
        if copied.is_err() {
            return 0;
        }
        let reached = self.agents.get(other).map_or(0, |source| source.sequence.reached());
        let Some(agent) = self.agents.get_mut(slot) else { return 0 };
        agent.sequence.share(tokens, reached);
        if let Some(reply) = agent.reply.as_mut() {
            // After a recompute, the shared prefix may include tokens of the reply.
            reply.usage.cached_tokens = tokens.min(reply.usage.prompt_tokens);
        }
        tracing::debug!(target: "walla::reply", agent = agent.id.0, tokens, "begins as another agent does");
        tokens - own
    }

    /// Drops the tokens from `keep` on, if the model's layers allow it.
    fn cut(&mut self, seq: SeqId, keep: u32) -> bool {
        self.sequences.ledger.remove(seq, keep.., &mut self.sequences.commands).is_ok()
    }

    /// Frees all pages of a sequence. If its agent speaks, its tokens are recomputed.
    pub(super) fn drop_sequence(&mut self, slot: usize) {
        let seq = SeqId(slot as u32);
        self.pages.has_freed |= !self.sequences.ledger.is_empty(seq);
        if self.sequences.ledger.remove(seq, .., &mut self.sequences.commands).is_err() {
            // The command buffer is full, and upkeep empties it. If that fails too, the device is
            // lost and reports it at the next call.
            let flush_cache_ops = self.sequences.flush_cache_ops();
            let removed = self.sequences.ledger.remove(seq, .., &mut self.sequences.commands);
            debug_assert!(
                removed.is_ok() || flush_cache_ops.is_err(),
                "a whole sequence can always be removed"
            );
        }
        if let Some(agent) = self.agents.get_mut(slot) {
            agent.sequence.forget_cache();
        }
    }

    /// Reserves pages for `rows` more tokens of an agent, by evicting idle agents or preempting
    /// less urgent ones.
    ///
    /// Returns `false` if none are free now (pages are fenced, or the agent itself was preempted)
    /// or its reply has failed.
    pub(super) fn make_room(&mut self, slot: usize, rows: u32) -> bool {
        let seq = SeqId(slot as u32);
        loop {
            match self.sequences.ledger.reserve(seq, rows, &mut self.sequences.commands) {
                Ok(()) => return true,
                Err(LedgerError::NoPages { wanted_pages, free_pages, fenced_pages }) => {
                    if self.evict_idle(slot) {
                        continue;
                    }
                    // Fenced pages become free when the steps in flight have completed.
                    if fenced_pages > 0 {
                        let claimed = self.pages.claim.map(|other| self.urgency(other));
                        if claimed.is_none_or(|of_claim| of_claim < self.urgency(slot)) {
                            self.pages.claim = Some(slot);
                        }
                        return false;
                    }
                    if let Some(victim) = self.victim(slot) {
                        self.exclude(victim);
                        self.drop_sequence(victim);
                        continue;
                    }
                    if self.is_alone(slot) {
                        self.fail(slot, ReplyError::NoPages { wanted_pages, free_pages });
                    }
                    return false;
                }
                Err(LedgerError::CommandsFull { .. }) if !self.sequences.commands.is_empty() => {
                    if let Err(error) = self.sequences.flush_cache_ops() {
                        // Counted as a retry of this reply, so that a device that never accepts the
                        // commands ends it.
                        self.recompute(slot, &error.to_string());
                        self.pages.note_freed();
                        return false;
                    }
                }
                Err(error) => {
                    self.fail(slot, ReplyError::Text(error.to_string()));
                    return false;
                }
            }
        }
    }

    /// Limits all agents together to `tokens` cached tokens. If they hold more, idle agents lose
    /// their cache first, then the least urgent speakers: they keep their history and recompute it
    /// when pages are free.
    pub(super) fn limit_kv(&mut self, tokens: u32) {
        let ledger = &mut self.sequences.ledger;
        let pages = tokens.div_ceil(ledger.options().page_tokens).max(1);
        ledger.limit_pages(pages);
        let end = ledger.pages_end();
        let wanted = pages.min(ledger.options().pages - 1);
        self.stats.pages_refused = 0;
        self.pages.resizes_to = (wanted + 1 != end).then_some(wanted);
        self.stats.pages = self.sequences.ledger.usable_pages();
        while self.sequences.ledger.used_pages() > self.sequences.ledger.usable_pages() {
            if self.evict_idle(usize::MAX) {
                continue;
            }
            let holds = |&slot: &usize| !self.sequences.ledger.pages(SeqId(slot as u32)).is_empty();
            let held = (0..self.agents.slots()).filter(holds);
            let Some(victim) = held.min_by_key(|&slot| self.urgency(slot)) else { return };
            self.drop_sequence(victim);
        }
    }

    /// Resizes the cache's memory when no step is in flight, because the device may wait for them.
    /// Returns whether steps have to wait for the resize.
    pub(super) fn resize(&mut self) -> Result<bool, ExecError> {
        let Some(pages) = self.pages.resizes_to else { return Ok(false) };
        if self.sequences.executor.in_flight() > 0 {
            return Ok(true);
        }
        self.pages.resizes_to = None;
        let grows = pages + 1 > self.sequences.ledger.pages_end();
        match self.sequences.resize(pages) {
            Ok(()) => {}
            Err(ExecError::Device(error)) if grows && !error.is_lost() => {
                let usable = self.sequences.ledger.usable_pages();
                self.stats.pages_refused = pages.saturating_sub(usable);
                tracing::warn!(target: "walla::load", %error, pages, usable, "no memory for a larger cache");
            }
            Err(ExecError::Device(error)) if !error.is_lost() => {
                tracing::warn!(target: "walla::load", %error, "the cache's memory is not given back");
            }
            Err(error) => return Err(error),
        }
        self.stats.pages = self.sequences.ledger.usable_pages();
        self.stats.kv_bytes = self.sequences.executor.device().memory().cache_bytes;
        Ok(false)
    }

    /// Drops the cache of the least recently used idle agent.
    fn evict_idle(&mut self, except: usize) -> bool {
        let idle = |&slot: &usize| {
            let holds = !self.sequences.ledger.is_empty(SeqId(slot as u32));
            // A paused agent needs no pages; after the pause its tokens are recomputed.
            let speaks = |agent: &AgentState| {
                agent.reply.is_some() && self.clients.is_schedulable(agent.client)
            };
            let speaks = self.agents.get(slot).is_some_and(speaks);
            slot != except && holds && !speaks
        };
        let least_recent =
            |&slot: &usize| self.agents.get(slot).map_or(0, |agent| agent.sequence.last_step());
        let Some(slot) = (0..self.agents.slots()).filter(idle).min_by_key(least_recent) else {
            return false;
        };
        // An agent of a stalled client that just continued may be in the batch.
        self.exclude(slot);
        self.drop_sequence(slot);
        true
    }

    /// Urgency of an agent: near before background, then by priority, then by age of the reply, so
    /// that at least one reply always completes.
    pub(super) fn urgency(&self, slot: usize) -> Option<Urgency> {
        let agent = self.agents.get(slot)?;
        let arrived = agent.reply.as_ref().map_or(u64::MAX, |reply| reply.arrived_micros);
        let is_near = agent.spec.detail != Detail::Background;
        Some((is_near, agent.spec.priority, Reverse((arrived, slot))))
    }

    /// The agent that is preempted for `slot`: the least urgent one that holds pages, if it is less
    /// urgent than `slot`.
    fn victim(&self, slot: usize) -> Option<usize> {
        let holds = |&s: &usize| s != slot && !self.sequences.ledger.is_empty(SeqId(s as u32));
        let victim = (0..self.agents.slots()).filter(holds).min_by_key(|&s| self.urgency(s))?;
        (self.urgency(victim) < self.urgency(slot)).then_some(victim)
    }

    /// Whether no other agent holds pages, so that waiting does not help.
    fn is_alone(&self, slot: usize) -> bool {
        (0..self.agents.slots())
            .all(|s| s == slot || self.sequences.ledger.is_empty(SeqId(s as u32)))
    }
}
