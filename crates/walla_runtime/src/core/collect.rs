//! Output processing: tokens become text, text becomes events.

use std::collections::VecDeque;
use std::time::Duration;

use walla_device::step::{ResultHeader, ResultRow};
use walla_exec::{Completed, ExecError};
use walla_plan::SubmittedStep;
use walla_trace::{DeviceClock, Stage, StepTimes, enter};
use walla_types::{CANDIDATES_MAX, TokenId};

use super::agent::Epoch;
use super::{Core, outbox_of};
use crate::api::{Event, FinishReason, ReplyError, ReplyEvent, TokenDetail};
use crate::engine_core::Emit;
use crate::reply_parts::Part;

/// Agent and position of an output of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag {
    pub slot: usize,
    pub epoch: Epoch,
    pub position: u32,
}

#[derive(Debug)]
struct Submitted {
    step: u64,
    at_micros: u64,
    tags: Vec<Tag>,
    booked: SubmittedStep,
}

/// Steps whose results have not been read, oldest first. Their buffers are reused.
#[derive(Debug)]
pub(super) struct InFlight {
    steps: VecDeque<Submitted>,
    free: Vec<Vec<Tag>>,
    /// For traces.
    device_clock: DeviceClock,
    /// Results of the step being read.
    results: Vec<(ResultRow, Option<Box<TokenDetail>>)>,
}

impl InFlight {
    pub fn new(steps_max: usize, outputs_max: usize) -> Self {
        let free = (0..steps_max).map(|_| Vec::with_capacity(outputs_max)).collect();
        let steps = VecDeque::with_capacity(steps_max);
        let device_clock = DeviceClock::default();
        Self { steps, free, device_clock, results: Vec::with_capacity(outputs_max) }
    }

    pub fn start(&mut self, step: u64, at_micros: u64, booked: SubmittedStep) {
        let tags = self.free.pop().unwrap_or_default();
        self.steps.push_back(Submitted { step, at_micros, tags, booked });
    }

    /// Number of the oldest step.
    pub fn oldest(&self) -> Option<u64> {
        self.steps.front().map(|step| step.step)
    }

    /// Adds the next output of the step started last.
    pub fn push(&mut self, tag: Tag) {
        if let Some(step) = self.steps.back_mut() {
            step.tags.push(tag);
        }
    }
}

impl Core {
    /// Reads all completed steps. Returns `true` if there was one.
    pub(super) fn collect_steps(
        &mut self,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) -> Result<bool, ExecError> {
        let mut any = false;
        while let Some(completed) = self.sequences.poll()? {
            any = true;
            self.collect_step(completed, now_micros, emit)?;
        }
        Ok(any)
    }

    fn collect_step(
        &mut self,
        completed: Completed,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) -> Result<(), ExecError> {
        let _stage = enter(Stage::Read);
        let read = match self.read(completed) {
            Err(refused @ ExecError::ForeignResults { .. }) => Err(refused.to_string()),
            read => Ok(read?),
        };
        self.sequences.release(completed);
        let Some(mut submitted) = self.in_flight.steps.pop_front() else { return Ok(()) };
        debug_assert_eq!(submitted.step, completed.step, "steps complete in order");
        let (begin_nanos, end_nanos) = *read.as_ref().unwrap_or(&(0, 0));
        self.budget.completed(submitted.booked, begin_nanos, end_nanos);
        if let Err(refused) = read {
            submitted.tags.clear();
            self.retry_all(&refused);
        } else {
            self.stats.steps_done += 1;
            self.stats.device_time += Duration::from_nanos(end_nanos.saturating_sub(begin_nanos));
            self.stats.step = Duration::from_micros(now_micros.saturating_sub(submitted.at_micros));
            tracing::trace!(target: "walla::step", step = completed.step, micros = self.stats.step.as_micros() as u64, "completed");
            let mut results = std::mem::take(&mut self.in_flight.results);
            for (tag, (row, detail)) in submitted.tags.drain(..).zip(results.drain(..)) {
                self.take_token(tag, row, detail, now_micros, emit);
            }
            self.in_flight.results = results;
        }
        self.in_flight.free.push(submitted.tags);
        Ok(())
    }

    /// Reads a step's results. Returns its begin and end on the device's clock.
    fn read(&mut self, completed: Completed) -> Result<(u64, u64), ExecError> {
        let InFlight { results, device_clock, .. } = &mut self.in_flight;
        results.clear();
        let mut nanos = (0, 0);
        self.sequences.executor.read_results(completed, &mut |view| {
            nanos = (view.header.begin_nanos, view.header.end_nanos);
            trace_step(device_clock, completed, view.header);
            for (output, row) in view.rows.iter().take(completed.outputs as usize).enumerate() {
                let candidates = view.candidates.get(output * CANDIDATES_MAX as usize..);
                let detail = (row.candidates > 0).then(|| {
                    let listed =
                        candidates.unwrap_or_default().iter().take(row.candidates as usize);
                    Box::new(TokenDetail {
                        token: TokenId(row.token),
                        log_probability: row.log_probability,
                        candidates: listed.map(|c| (TokenId(c.token), c.log_probability)).collect(),
                    })
                });
                results.push((*row, detail));
            }
        })?;
        Ok(nanos)
    }

    /// Handles one sampled token of one agent.
    fn take_token(
        &mut self,
        tag: Tag,
        row: ResultRow,
        detail: Option<Box<TokenDetail>>,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) {
        let Some(agent) = self.agents[tag.slot].as_ref().filter(|a| a.epoch == tag.epoch) else {
            return;
        };
        let now_micros = self.client_micros(agent.client, now_micros);
        let Some(agent) = self.agents[tag.slot].as_mut() else { return };
        let Some(reply) = agent.reply.as_mut() else { return };
        agent.unread = agent.unread.saturating_sub(1);
        if row.flags & ResultRow::NOT_FINITE != 0 {
            self.fail(tag.slot, ReplyError::NotFinite);
            // The cause may be in the cache: neither this agent nor another may continue from it.
            return self.drop_sequence(tag.slot);
        }
        agent.evaluated = agent.evaluated.max(tag.position + 1);
        debug_assert_eq!(agent.history.len() as u32, tag.position + 1, "draws come back in order");
        let token = TokenId(row.token);
        agent.history.push(token);
        if reply.usage.first_token_micros == 0 {
            reply.usage.first_token_micros = now_micros.saturating_sub(reply.arrived_micros).max(1);
        }
        self.stats.tokens += 1;
        if self.text.tokenizer.is_end_of_generation(token) {
            return self.finish(tag.slot, FinishReason::EndOfTurn, now_micros);
        }
        let bytes = self.text.tokenizer.text_bytes(token);
        if agent.spec.stop_tokens.contains(&token) && agent.text.would_speak(bytes) {
            return self.finish(tag.slot, FinishReason::StopToken, now_micros);
        }
        let (client, id, generation) = (agent.client, agent.id, reply.generation);
        if let Some(detail) = detail {
            self.send(
                client,
                Event { agent: id, generation, what: ReplyEvent::Token(detail) },
                emit,
            );
        }
        let stopped = self.take_text(tag.slot, token, now_micros, emit);
        self.finish_if_over(tag.slot, stopped, now_micros);
    }

    /// Sends the text that the token completes. Returns `true` if it completes a stop string.
    fn take_text(
        &mut self,
        slot: usize,
        token: TokenId,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) -> bool {
        let Self { agents, clients, text, stats, .. } = self;
        let Some(agent) = agents[slot].as_mut() else { return false };
        let Some(reply) = agent.reply.as_mut() else { return false };
        let (id, generation, key) = (agent.id, reply.generation, agent.client);
        let mut outbox = outbox_of(clients, key);
        let bytes = text.tokenizer.text_bytes(token);
        let stopped = agent.text.push(token, bytes, &mut |part, text, tokens| {
            if part == Part::Speech {
                reply.said.push_str(&text);
            }
            let Some(outbox) = outbox.as_mut() else { return };
            let event = Event { agent: id, generation, what: part.event(text, tokens) };
            if !outbox.is_empty() {
                outbox.push_back(event);
            } else if let Err(event) = emit(key, event) {
                outbox.push_back(event);
                stats.queue_full += 1;
            }
        });
        reply.usage.reply_tokens = agent.text.speech_tokens();
        reply.usage.reasoning_tokens = agent.text.reasoning_tokens();
        if reply.usage.reply_tokens > 0 {
            reply.spoken_since_micros.get_or_insert(now_micros);
        }
        stopped
    }

    fn finish_if_over(&mut self, slot: usize, stopped: bool, now_micros: u64) {
        let context_tokens = self.context_tokens as usize;
        let Some(agent) = self.agents[slot].as_ref() else { return };
        let Some(reply) = agent.reply.as_ref() else { return };
        let reason = match () {
            () if stopped => FinishReason::Stop { index: agent.text.stop_index() },
            () if reply.usage.reply_tokens >= agent.spec.reply_tokens_max => FinishReason::Length,
            // The last sampled token would need a position beyond the context.
            () if agent.history.len() > context_tokens => FinishReason::ContextFull,
            () if Self::reasons_outside_of_blocks(agent, reply) => FinishReason::ReasoningLength,
            () => return self.close_reasoning(slot, now_micros),
        };
        self.finish(slot, reason, now_micros);
    }
}

/// Traces when the device ran the step. A step that was launched before a listener existed is
/// skipped.
fn trace_step(clock: &mut DeviceClock, completed: Completed, header: &ResultHeader) {
    let Completed { step, rows, launched_nanos, .. } = completed;
    if launched_nanos == 0 || !walla_trace::is_listening() {
        return;
    }
    let device_nanos = header.begin_nanos..header.end_nanos;
    let seen_nanos = walla_trace::now_nanos();
    let times = StepTimes { step, rows, launched_nanos, device_nanos, seen_nanos };
    walla_trace::device_step(clock, times);
}
