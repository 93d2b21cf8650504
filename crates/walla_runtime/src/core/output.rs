//! Output processing: tokens become text, text becomes events. Replies end here.

use walla_device::step::ResultRow;
use walla_grammar::CallReader;
use walla_types::TokenId;

use super::Core;
use super::actions::Delivery;
use super::agents::{AgentState, Reply};
use super::in_flight::{OutputResult, PendingOutput};
use super::reasoning::MAX_BLOCKS_CLOSED;
use crate::api::{Event, FinishReason, Logged, ReplyError, ReplyEvent};
use crate::engine_core::Emit;
use crate::reply_parts::Part;

impl Core {
    /// Handles one sampled token of one agent.
    pub(super) fn take_token(
        &mut self,
        output: PendingOutput,
        (row, logprobs): OutputResult,
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) {
        let Some(agent) =
            self.agents.get(output.slot).filter(|agent| agent.sequence.expects(output.epoch))
        else {
            return;
        };
        let now_micros = self.clients.now_micros(agent.client, now_micros);
        let Some(agent) = self.agents.get_mut(output.slot) else { return };
        let Some(reply) = agent.reply.as_mut() else { return };
        let reply_id = reply.reply_id;
        agent.sequence.read_draw();
        if row.flags & ResultRow::NOT_FINITE != 0 {
            self.fail(output.slot, ReplyError::NotFinite);
            // The cause may be in the cache: neither this agent nor another may continue from it.
            return self.drop_sequence(output.slot);
        }
        if reply.scoring.is_some() {
            return self.take_score(output, row, now_micros);
        }
        let token = TokenId(row.token);
        agent.sequence.append_sampled(output.position, token);
        if reply.usage.first_token_micros == 0 {
            reply.sampled_first(now_micros);
            reply.trace_first(agent.id, now_micros);
        }
        self.stats.tokens += 1;
        self.log_token(output.slot, token, emit);
        let Some(agent) = self.agents.get_mut(output.slot) else { return };
        let is_delimiter = agent.reply_calls().is_some_and(|calls| calls.is_delimiter(token));
        if !is_delimiter && self.model_text.tokenizer.is_end_of_generation(token) {
            if Self::ends_before_speech(agent) {
                return self.end_block(output.slot, token, now_micros);
            }
            return self.finish(output.slot, FinishReason::EndOfTurn, now_micros);
        }
        let bytes = self.model_text.tokenizer.text_bytes(token);
        let is_in_call = is_delimiter || agent.reply_calls().is_some_and(CallReader::is_open);
        let may_stop = !is_in_call && agent.output.would_speak(bytes);
        if may_stop && agent.spec.stop_tokens.contains(&token) {
            return self.finish(output.slot, FinishReason::StopToken, now_micros);
        }
        let (client, id) = (agent.client, agent.id);
        if let Some(logprobs) = logprobs {
            let event = Event { agent: id, reply_id, what: ReplyEvent::Token(logprobs) };
            self.clients.send(client, event, emit);
        }
        self.emit_text(output.slot, token, now_micros, emit);
        self.cancel_here(output.slot, now_micros);
        self.sampled_under_constraint(output.slot, token);
    }

    /// Counts a token of a reply, and sends tokens to a recording.
    fn log_token(&mut self, slot: usize, token: TokenId, emit: &mut Emit<'_>) {
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let Some(reply) = agent.reply.as_mut() else { return };
        let Some(run) = reply.count(token) else { return };
        let what = ReplyEvent::Logged(Logged::Tokens(run));
        let event = Event { agent: agent.id, reply_id: reply.reply_id, what };
        self.clients.send(agent.client, event, emit);
    }

    /// Ends a reply that is cancelled at this token.
    fn cancel_here(&mut self, slot: usize, now_micros: u64) {
        let reply = self.agents.get_mut(slot).and_then(|agent| agent.reply.as_mut());
        if reply.is_some_and(Reply::is_cancelled_here) {
            self.finish(slot, FinishReason::Cancelled, now_micros);
        }
    }

    /// Takes tokens that follow without a draw. Returns whether the reply continues.
    pub(super) fn take_forced(
        &mut self,
        slot: usize,
        tokens: &[TokenId],
        now_micros: u64,
        emit: &mut Emit<'_>,
    ) -> bool {
        for token in tokens {
            let Some(agent) = self.agents.get_mut(slot) else { return false };
            let Some(reply) = agent.reply.as_mut() else { return false };
            agent.sequence.append_known(&[*token]);
            reply.usage.forced_tokens += 1;
            if reply.usage.first_token_micros == 0 {
                reply.sampled_first(now_micros);
                reply.trace_first(agent.id, now_micros);
            }
            self.log_token(slot, *token, emit);
            self.emit_text(slot, *token, now_micros, emit);
            self.cancel_here(slot, now_micros);
        }
        self.agents.get(slot).is_some_and(|agent| agent.reply.is_some())
    }

    /// Sends the text and the calls that the token completes, and ends the reply if it is over.
    fn emit_text(&mut self, slot: usize, token: TokenId, now_micros: u64, emit: &mut Emit<'_>) {
        let Self { agents, clients, model_text, .. } = self;
        let Some(agent) = agents.get_mut(slot) else { return };
        let mut outbox = clients.outbox(agent.client);
        let bytes = model_text.tokenizer.text_bytes(token);
        let mut send = |event| {
            if let Some(outbox) = outbox.as_mut() {
                outbox.send(event, emit);
            }
        };
        let Some(mut delivery) = Delivery::new(agent, &mut send) else { return };
        delivery.push(token, bytes);
        let Delivery { stopped, is_too_long, has_opened, has_ended, .. } = delivery;
        let is_open = agent.reply_calls().is_some_and(CallReader::is_open);
        let call_tokens = agent.reply_calls().map_or(0, CallReader::tokens);
        let Some(reply) = agent.reply.as_mut() else { return };
        reply.usage.reply_tokens = agent.output.speech_tokens();
        reply.usage.reasoning_tokens = agent.output.reasoning_tokens();
        reply.usage.call_tokens = call_tokens;
        if reply.usage.reply_tokens > 0 {
            reply.spoken_since_micros.get_or_insert(now_micros);
        }
        self.finish_if_over(slot, stopped, is_too_long, now_micros);
        if has_ended && !is_open {
            self.free_after_call(slot);
        } else if has_opened {
            self.constrain_open_call(slot);
        }
    }

    fn finish_if_over(&mut self, slot: usize, stopped: bool, is_too_long: bool, now_micros: u64) {
        let context_tokens = self.context_tokens as usize;
        let Some(agent) = self.agents.get(slot) else { return };
        let Some(reply) = agent.reply.as_ref() else { return };
        // Text that is held back may become speech.
        let held = agent.reply_calls().map_or(0, |calls| calls.held() as u32);
        let spoken = reply.usage.reply_tokens.saturating_add(held);
        let reason = match () {
            () if stopped => FinishReason::Stop { index: agent.output.stop_index() },
            () if is_too_long => FinishReason::Length,
            () if Self::has_made_all_calls(agent) => FinishReason::CallLimit,
            () if spoken >= agent.spec.max_reply_tokens => FinishReason::Length,
            () if reply.tokens >= reply.max_tokens() => FinishReason::Length,
            // The last sampled token would need a position beyond the context.
            () if agent.sequence.tokens().len() > context_tokens => FinishReason::ContextFull,
            () if Self::reasons_outside_of_blocks(agent, reply) => FinishReason::ReasoningLength,
            () => return self.close_reasoning(slot, now_micros),
        };
        self.finish(slot, reason, now_micros);
    }

    /// Closes the open block of a reply if its limit is reached.
    fn close_reasoning(&mut self, slot: usize, now_micros: u64) {
        let Some(agent) =
            self.agents.get(slot).filter(|agent| agent.output.open_format().is_some())
        else {
            return;
        };
        let Some(reply) = agent.reply.as_ref() else { return };
        if reply.usage.reasoning_tokens < reply.max_reasoning_tokens {
            return;
        }
        if let Err(reason) = self.close_block(slot) {
            self.finish(slot, reason, now_micros);
        }
    }

    /// Whether the end of the turn, which the model has drawn now, is within a block of reasoning,
    /// and the reply has nothing else, or a condition that it does not meet.
    fn ends_before_speech(agent: &AgentState) -> bool {
        let is_unmet = agent.constraint().is_some() || agent.output.speech_tokens() == 0;
        let calls_ended = agent.reply.as_ref().map_or(0, |reply| reply.calls_ended);
        agent.output.open_format().is_some() && is_unmet && calls_ended == 0
    }

    /// The model has ended its turn within a block of reasoning: closes the block instead, so that
    /// the model speaks, or makes its call.
    fn end_block(&mut self, slot: usize, end: TokenId, now_micros: u64) {
        let Some(agent) = self.agents.get_mut(slot) else { return };
        agent.sequence.drop_sampled();
        let known = agent.sequence.tokens().to_vec();
        if self.kv.len(slot) as usize > known.len() {
            // A step that was launched ahead has evaluated it.
            self.keep_prefix(slot, &known);
        }
        match self.close_block(slot) {
            Ok(()) => self.sampled_under_constraint(slot, end),
            Err(reason) => self.finish(slot, reason, now_micros),
        }
    }

    /// Closes the open block of a reply. The closing marker is evaluated like a prompt, and the
    /// next draw is speech. A draw in flight is discarded.
    ///
    /// # Errors
    /// Why the reply must end instead.
    fn close_block(&mut self, slot: usize) -> Result<(), FinishReason> {
        let Self { agents, model_text, clients, .. } = self;
        let Some(agent) = agents.get_mut(slot) else { return Ok(()) };
        let (Some(format), Some(reply)) = (agent.output.open_format(), agent.reply.as_mut()) else {
            return Ok(());
        };
        let closing =
            model_text.reasoning.as_ref().map_or(&[][..], |markers| markers.closing(format));
        if closing.is_empty() || reply.blocks_closed >= MAX_BLOCKS_CLOSED {
            return Err(FinishReason::ReasoningLength);
        }
        // The last token of the marker needs a position, because the first speech token is sampled
        // from it.
        if agent.sequence.tokens().len() + closing.len() > self.context_tokens as usize {
            return Err(FinishReason::ContextFull);
        }
        reply.blocks_closed += 1;
        let mut outbox = clients.outbox(agent.client);
        let (agent_id, reply_id) = (agent.id, reply.reply_id);
        agent.output.close(&mut |part, text, tokens| {
            if part == Part::Speech {
                reply.speech.push_str(&text);
            }
            if let Some(outbox) = outbox.as_mut() {
                let what = part.event(text, tokens);
                outbox.queue(Event { agent: agent_id, reply_id, what });
            }
        });
        agent.sequence.append_known(closing);
        Ok(())
    }

    /// Ends the reply in progress with an error. Other agents continue.
    pub(super) fn fail(&mut self, slot: usize, error: ReplyError) {
        self.end(slot, Err(error), 0);
    }

    /// Ends the reply in progress.
    pub(super) fn finish(&mut self, slot: usize, reason: FinishReason, now_micros: u64) {
        self.end(slot, Ok(reason), now_micros);
    }

    /// Sends the held text of the reply, then the terminal event.
    fn end(&mut self, slot: usize, how: Result<FinishReason, ReplyError>, now_micros: u64) {
        let max_turns = self.context_tokens as usize;
        let Some(client) = self.agents.get(slot).map(|agent| agent.client) else { return };
        let now_micros = self.clients.now_micros(client, now_micros);
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let mut outbox = self.clients.outbox(client);
        let mut send = |event| {
            if let Some(outbox) = outbox.as_mut() {
                outbox.queue(event);
            }
        };
        let Some(mut delivery) = Delivery::new(agent, &mut send) else { return };
        delivery.finish(!matches!(how, Ok(reason) if reason != FinishReason::Cancelled));
        let call_tokens = agent.reply_calls().map_or(0, CallReader::tokens);
        let Some(mut reply) = agent.reply.take() else { return };
        if let Some(run) = reply.log.filter(|run| !run.tokens().is_empty()) {
            let what = ReplyEvent::Logged(Logged::Tokens(run));
            send(Event { agent: agent.id, reply_id: reply.reply_id, what });
        }
        self.kv.note_freed();
        // Draws that were launched ahead belong to no reply any more.
        agent.sequence.forget_in_flight();
        let (id, reply_id) = (agent.id, reply.reply_id);
        // Held text may have become speech, or an unfinished call.
        reply.usage.reply_tokens = agent.output.speech_tokens();
        reply.usage.call_tokens = call_tokens;
        // A next reply that ends before it begins must not find this text.
        agent.output.reset();
        reply.usage.total_micros = now_micros.saturating_sub(reply.arrived_micros);
        let usage = reply.usage;
        if !reply.options.is_aside() {
            agent.keep_turn(reply, matches!(how, Ok(reason) if reason != FinishReason::Cancelled));
        }
        agent.history.restore_reply();
        agent.flush_turns_after_asks(max_turns);
        // The next prompt has them, and so does its background prefill.
        // Changes that waited for the end of the reply.
        agent.take_changes();
        if agent.is_chat {
            agent.background.restart();
        }
        let what = match how {
            Ok(reason) => {
                let tokens = usage.reply_tokens;
                tracing::debug!(target: "walla::reply", agent = id.0, reply_id = reply_id.0, ?reason, tokens, "finished");
                ReplyEvent::Finished { reason, usage }
            }
            Err(error) => {
                tracing::warn!(target: "walla::reply", agent = id.0, reply_id = reply_id.0, %error, "failed");
                ReplyEvent::Failed(error)
            }
        };
        self.clients.queue_event(client, id, reply_id, what);
    }
}
