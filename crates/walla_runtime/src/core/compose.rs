//! Who gets rows in the next step, and the step's block.

use std::cmp::Reverse;

use walla_exec::StepError;
use walla_plan::{Batch, BatchLimits, Output, TokenInput};
use walla_types::SeqId;

use super::agent::AgentState;
use super::collect::Tag;
use super::{Core, STEPS_AHEAD_MAX};

/// Storage that is reused from step to step.
#[derive(Debug)]
pub(super) struct Composer {
    batch: Batch,
    /// Agents with work, most urgent first.
    order: Vec<usize>,
    /// Agents in the batch with their rows.
    included: Vec<(usize, u32)>,
}

impl Composer {
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            batch: Batch::new(limits),
            order: Vec::with_capacity(limits.sequences_max as usize),
            included: Vec::with_capacity(limits.sequences_max as usize),
        }
    }

    fn rows_left(&self) -> u32 {
        let BatchLimits { tokens_max, batch_sequences_max, outputs_max, .. } = *self.batch.limits();
        let sequences = self.included.len() as u32;
        // Every agent needs a page table and at most one output.
        if sequences >= batch_sequences_max.min(outputs_max) {
            0
        } else {
            tokens_max - self.batch.len()
        }
    }
}

/// What an agent could be given in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// The token drawn last: one row.
    Decode,
    /// Known tokens that the cache lacks: up to so many rows.
    Prefill(u32),
}

impl Core {
    fn work_of(&self, slot: usize) -> Option<Work> {
        let agent = self.agents[slot].as_ref().filter(|agent| agent.is_speaking())?;
        let submitted = self.sequences.ledger.len(SeqId(slot as u32));
        let missing = (agent.history.len() as u32).saturating_sub(submitted);
        match missing {
            // Everything known is submitted: the next token is on its way, and the device knows it first.
            0 if agent.unread == 0 || agent.unread >= STEPS_AHEAD_MAX => None,
            0 => {
                (submitted < self.context_tokens && self.wants_more(agent)).then_some(Work::Decode)
            }
            1 => Some(Work::Decode),
            _ => Some(Work::Prefill(missing)),
        }
    }

    /// Whether the reply can go on after the draws in flight: a step launched ahead is wasted if the reply ends with them.
    fn wants_more(&self, agent: &AgentState) -> bool {
        let drawn = agent.reply.as_ref().map_or(0, |reply| reply.usage.reply_tokens);
        drawn + agent.unread < agent.spec.reply_tokens_max
    }

    /// Agents with work whose client lets them, most urgent first: by priority, then by how long they have waited.
    fn sort_candidates(&mut self) {
        let mut order = std::mem::take(&mut self.composer.order);
        order.clear();
        order.extend((0..self.agents.len()).filter(|&slot| {
            let client = self.agents[slot].as_ref().map(|agent| agent.client);
            let allowed = self.clients.iter().any(|c| Some(c.key) == client && c.may_step());
            allowed && self.work_of(slot).is_some()
        }));
        order.sort_unstable_by_key(|&slot| {
            let agent = self.agents[slot].as_ref();
            (
                Reverse(agent.map_or(0, |a| a.spec.priority)),
                agent.map_or(0, |a| a.waiting_since),
                slot,
            )
        });
        self.composer.order = order;
    }

    /// Fills the batch: decode rows first, whatever anyone's prefill wants, then prefill up to its bound.
    fn compose(&mut self) {
        self.sort_candidates();
        self.composer.batch.clear();
        self.composer.included.clear();
        for place in 0..self.composer.order.len() {
            let slot = self.composer.order[place];
            if self.work_of(slot) == Some(Work::Decode) && self.composer.rows_left() > 0 {
                self.include(slot, 1);
            }
        }
        let mut prefill_left = self.prefill_tokens_max;
        for place in 0..self.composer.order.len() {
            let slot = self.composer.order[place];
            // A preemption on the way here may have taken the agent's work away or turned decode into prefill.
            let Some(Work::Prefill(wanted)) = self.work_of(slot) else { continue };
            let rows = wanted.min(prefill_left).min(self.composer.rows_left());
            let is_included = self.composer.included.iter().any(|&(s, _)| s == slot);
            if rows > 0 && !is_included && self.include(slot, rows) {
                prefill_left -= rows;
            }
        }
    }

    /// Puts the agent's next `rows` rows into the batch if there are pages for them.
    fn include(&mut self, slot: usize, rows: u32) -> bool {
        let seq = SeqId(slot as u32);
        if !self.make_room(slot, rows) {
            return false;
        }
        let Some(agent) = self.agents[slot].as_ref() else { return false };
        let start = self.sequences.ledger.len(seq);
        let first = self.composer.batch.len();
        for position in start..start + rows {
            let token = agent.history.get(position as usize);
            let token = token.map_or(TokenInput::LastSampled, |&token| TokenInput::Id(token));
            let is_end = position as usize + 1 >= agent.history.len();
            let output = if is_end { Output::Sample } else { Output::None };
            if self.composer.batch.push(token, Some(position), seq, output).is_err() {
                debug_assert!(false, "rows and tokens are checked before they come here");
                self.composer.batch.truncate(first);
                return false;
            }
        }
        self.composer.included.push((slot, rows));
        true
    }

    /// Takes an agent's rows out of the batch again: its sequence has been dropped.
    pub(super) fn exclude(&mut self, slot: usize) {
        self.composer.included.retain(|&(s, _)| s != slot);
        self.composer.batch.remove_sequence(SeqId(slot as u32));
    }

    /// Composes and submits one step. `false`: nobody has work that can be done now.
    pub(super) fn submit_step(&mut self, now_micros: u64) -> Result<bool, StepError> {
        self.compose();
        if self.composer.batch.is_empty() {
            return Ok(false);
        }
        let agents = &self.agents;
        let sampling = |seq: SeqId| {
            agents.get(seq.index()).and_then(Option::as_ref).map(|agent| &agent.spec.sampling)
        };
        let step = self.sequences.submit(&mut self.composer.batch, &sampling)?;
        self.submitted(step, now_micros);
        Ok(true)
    }

    /// Books what was submitted.
    fn submitted(&mut self, step: u64, now_micros: u64) {
        for place in 0..self.composer.included.len() {
            let (slot, rows) = self.composer.included[place];
            let Some(agent) = self.agents[slot].as_mut() else { continue };
            agent.last_step = step;
            agent.waiting_since = step;
            let client = agent.client;
            if rows > 1 {
                self.stats.prefill_tokens += u64::from(rows);
            }
            if let Some(client) = self.clients.iter_mut().find(|c| c.key == client) {
                client.stepped = true;
            }
        }
        for client in &mut self.clients {
            client.credits = client.credits.saturating_sub(u32::from(client.stepped));
            client.stepped = false;
        }
        self.in_flight.start(step, now_micros);
        for row in self.sequences.ubatch().rows() {
            if row.output_row.is_none() {
                continue;
            }
            let slot = row.seq.index();
            if let Some(agent) = self.agents[slot].as_mut() {
                agent.unread += 1;
                self.in_flight.push(Tag { slot, epoch: agent.epoch, position: row.position });
            }
        }
        self.stats.steps += 1;
        self.stats.step_rows = self.sequences.ubatch().len();
    }

    /// A step could not be submitted although the device lives: nobody knows how much of it happened, so its agents are
    /// evaluated anew from their tokens. A reply fails after some tries.
    pub(super) fn retry_composed(&mut self, reason: &str) {
        for place in 0..self.composer.included.len() {
            let (slot, _) = self.composer.included[place];
            self.drop_sequence(slot);
            let Some(agent) = self.agents[slot].as_mut() else { continue };
            let Some(reply) = agent.reply.as_mut() else { continue };
            reply.retries += 1;
            if reply.retries > super::RETRIES_MAX {
                self.fail(slot, crate::api::ReplyError::Device(reason.to_owned()));
            }
        }
        self.composer.included.clear();
        self.composer.batch.clear();
    }
}
