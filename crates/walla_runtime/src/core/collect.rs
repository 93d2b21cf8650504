//! Output processing: tokens become text, text becomes events.

use std::time::Duration;

use walla_device::step::ResultRow;
use walla_exec::{Completed, ExecError};
use walla_trace::{Stage, enter};
use walla_types::TokenId;

use super::Core;
use super::in_flight::Tag;
use crate::api::{Event, FinishReason, ReplyError, ReplyEvent, TokenDetail};
use crate::engine_core::Emit;
use crate::reply_parts::Part;

impl Core {
    /// Reads all completed steps. Returns `true` if there was one.
    pub(super) fn collect_steps(
        &mut self,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) -> Result<bool, ExecError> {
        let mut any = false;
        while let Some(completed) = self.kv.poll()? {
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
        let read = match self.in_flight.read(self.kv.executor_mut(), completed) {
            Err(refused @ ExecError::ForeignResults { .. }) => Err(refused.to_string()),
            read => Ok(read?),
        };
        self.kv.release(completed);
        let Some(mut submitted) = self.in_flight.complete() else { return Ok(()) };
        debug_assert_eq!(submitted.step, completed.step, "steps complete in order");
        let device_nanos = *read.as_ref().unwrap_or(&0);
        self.budget.completed(submitted.booked, device_nanos);
        if let Err(refused) = read {
            submitted.tags.clear();
            self.retry_all(&refused);
        } else {
            self.stats.steps_done += 1;
            self.stats.device_time += Duration::from_nanos(device_nanos);
            self.stats.step = Duration::from_micros(now_micros.saturating_sub(submitted.at_micros));
            tracing::trace!(target: "walla::step", step = completed.step, micros = self.stats.step.as_micros() as u64, "completed");
            let mut results = self.in_flight.take_results();
            for (tag, (row, detail)) in submitted.tags.drain(..).zip(results.drain(..)) {
                self.take_token(tag, row, detail, now_micros, emit);
            }
            self.in_flight.return_results(results);
        }
        self.in_flight.recycle(submitted.tags);
        Ok(())
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
        let Some(agent) =
            self.agents.get(tag.slot).filter(|agent| agent.sequence.expects(tag.epoch))
        else {
            return;
        };
        let now_micros = self.clients.now_micros(agent.client, now_micros);
        let Some(agent) = self.agents.get_mut(tag.slot) else { return };
        let Some(reply) = agent.reply.as_mut() else { return };
        agent.sequence.read_draw();
        if row.flags & ResultRow::NOT_FINITE != 0 {
            self.fail(tag.slot, ReplyError::NotFinite);
            // The cause may be in the cache: neither this agent nor another may continue from it.
            return self.drop_sequence(tag.slot);
        }
        let token = TokenId(row.token);
        agent.sequence.append_sampled(tag.position, token);
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
            let event = Event { agent: id, generation, what: ReplyEvent::Token(detail) };
            if let Some(outbox) = self.clients.outbox(client) {
                outbox.send(event, emit);
            }
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
        let Self { agents, clients, text, .. } = self;
        let Some(agent) = agents.get_mut(slot) else { return false };
        let Some(reply) = agent.reply.as_mut() else { return false };
        let (id, generation) = (agent.id, reply.generation);
        let mut outbox = clients.outbox(agent.client);
        let bytes = text.tokenizer.text_bytes(token);
        let stopped = agent.text.push(token, bytes, &mut |part, text, tokens| {
            if part == Part::Speech {
                reply.speech.push_str(&text);
            }
            let Some(outbox) = outbox.as_mut() else { return };
            outbox.send(Event { agent: id, generation, what: part.event(text, tokens) }, emit);
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
        let Some(agent) = self.agents.get(slot) else { return };
        let Some(reply) = agent.reply.as_ref() else { return };
        let reason = match () {
            () if stopped => FinishReason::Stop { index: agent.text.stop_index() },
            () if reply.usage.reply_tokens >= agent.spec.reply_tokens_max => FinishReason::Length,
            // The last sampled token would need a position beyond the context.
            () if agent.sequence.history().len() > context_tokens => FinishReason::ContextFull,
            () if Self::reasons_outside_of_blocks(agent, reply) => FinishReason::ReasoningLength,
            () => return self.close_reasoning(slot, now_micros),
        };
        self.finish(slot, reason, now_micros);
    }
}
