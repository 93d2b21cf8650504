//! Asks begin, replies end.

use std::sync::Arc;

use walla_model::chat::ReplyStart;
use walla_types::TokenId;

use super::agent::{AgentState, Ask, Reply, Stage};
use super::text::{Encoded, TextJob, TextSource};
use super::{Core, Unplaced};
use crate::api::{
    ASKS_WAITING_MAX, AgentId, AgentSpec, ContextPolicy, Event, FinishReason, GenerationId, Prompt,
    ReplyError, ReplyEvent, Usage,
};
use crate::reply_parts::Part;
use crate::shell::ClientKey;

impl Core {
    /// Adds an agent. If there is no place, it is kept for its asks to come, with so many others at most; then the oldest goes.
    pub(super) fn add_agent(&mut self, client: ClientKey, id: AgentId, spec: Box<AgentSpec>) {
        if self.slots.contains_key(&id) {
            return;
        }
        self.unplaced.retain(|waiting| waiting.0 != client || waiting.1 != id);
        if let Some(slot) = self.agents.iter().position(Option::is_none) {
            return self.place(slot, client, id, *spec);
        }
        if self.unplaced.len() >= self.agents.len() {
            self.unplaced.pop_front();
        }
        self.unplaced.push_back((client, id, spec));
    }

    fn place(&mut self, slot: usize, client: ClientKey, id: AgentId, spec: AgentSpec) {
        let state = AgentState::new(client, id, spec, self.context_tokens);
        self.agents[slot] = Some(Box::new(state));
        self.slots.insert(id, slot);
    }

    /// An agent for which there was no place when it was added gets one if there is one now: it is asked.
    fn place_if_waiting(&mut self, client: ClientKey, id: AgentId) {
        let is_it = |waiting: &Unplaced| waiting.0 == client && waiting.1 == id;
        let Some(place) = self.unplaced.iter().position(is_it) else { return };
        let Some(slot) = self.agents.iter().position(Option::is_none) else { return };
        if let Some((_, _, spec)) = self.unplaced.remove(place) {
            self.place(slot, client, id, *spec);
        }
    }

    /// What is known of an agent that has no place.
    pub(super) fn unplaced_of(&mut self, client: ClientKey, id: AgentId) -> Option<&mut AgentSpec> {
        let mut waiting = self.unplaced.iter_mut();
        waiting.find(|(of, agent, _)| *of == client && *agent == id).map(|(_, _, spec)| &mut **spec)
    }

    pub(super) fn ask(&mut self, client: ClientKey, id: AgentId, ask: Ask) {
        if !self.unplaced.is_empty() {
            self.place_if_waiting(client, id);
        }
        let agents_max = self.agents.len() as u32;
        let full = self.slots.len() >= agents_max as usize && !self.slots.contains_key(&id);
        let Some(agent) = self.agent_of(client, id) else {
            let error = if full {
                ReplyError::TooManyAgents { agents_max }
            } else {
                ReplyError::UnknownAgent
            };
            return self.post(client, id, ask.generation, ReplyEvent::Failed(error));
        };
        if agent.asks.len() >= ASKS_WAITING_MAX {
            let error = ReplyError::Busy { waiting: ASKS_WAITING_MAX as u32 };
            return self.post(client, id, ask.generation, ReplyEvent::Failed(error));
        }
        agent.asks.push_back(ask);
    }

    /// Ends a reply, or an ask that still waits, because the host wants it.
    pub(super) fn cancel(
        &mut self,
        client: ClientKey,
        id: AgentId,
        generation: Option<GenerationId>,
        now_micros: u64,
    ) {
        let Some(slot) = self.slot_of(client, id) else { return };
        let Some(agent) = self.agents[slot].as_mut() else { return };
        let matches = |g: GenerationId| generation.is_none_or(|wanted| wanted == g);
        let waiting: Vec<_> =
            agent.asks.iter().map(|ask| ask.generation).filter(|&g| matches(g)).collect();
        agent.asks.retain(|ask| !matches(ask.generation));
        let speaking = agent.reply.as_ref().is_some_and(|reply| matches(reply.generation));
        if speaking {
            self.finish(slot, FinishReason::Cancelled, now_micros);
        }
        for generation in waiting {
            let usage = Usage::default();
            let what = ReplyEvent::Finished { reason: FinishReason::Cancelled, usage };
            self.post(client, id, generation, what);
        }
    }

    pub(super) fn remove_agent(&mut self, client: ClientKey, id: AgentId, now_micros: u64) {
        self.unplaced.retain(|waiting| waiting.0 != client || waiting.1 != id);
        let Some(slot) = self.slot_of(client, id) else { return };
        self.cancel(client, id, None, now_micros);
        self.slots.remove(&id);
        self.agents[slot] = None;
        self.drop_sequence(slot);
    }

    /// Starts the next ask of every agent that is free; where one fails at once, the one after it.
    pub(super) fn start_asks(&mut self, now_micros: u64) {
        self.worker_is_full = false;
        let (first, agents) = (self.first_to_ask, self.agents.len());
        for slot in (first..agents).chain(0..first) {
            while self.start_next_ask(slot, now_micros) {}
        }
    }

    /// `false`: the agent has none, or it waits on.
    fn start_next_ask(&mut self, slot: usize, now_micros: u64) -> bool {
        let Some(agent) = self.agents[slot].as_mut() else { return false };
        let Some(ask) = agent.asks.front().filter(|_| agent.reply.is_none()) else { return false };
        // Looked at first, since it costs nothing: in a crowd this is nearly everybody's case, in every round.
        if !self.worker.has_room() && !matches!(ask.prompt, Prompt::Tokens(_)) {
            self.worker_is_full = true;
            return false;
        }
        let Some(ask) = agent.asks.pop_front() else { return false };
        self.start_ask(slot, ask, now_micros);
        true
    }

    fn start_ask(&mut self, slot: usize, ask: Ask, now_micros: u64) {
        let context_tokens = self.context_tokens;
        let Some(agent) = self.agents[slot].as_mut() else { return };
        agent.take_changes();
        let mut reply = Reply {
            generation: ask.generation,
            arrived_micros: ask.arrived_micros,
            question: None,
            stage: Stage::Encoding,
            usage: Usage::default(),
            said: String::new(),
            spoken_since_micros: None,
            reasoning_tokens_max: 0,
            blocks_closed: 0,
            retries: 0,
        };
        // Room for the reply, so that speaking does not allocate: 6 bytes a token are plenty for most languages.
        reply.said.reserve(6 * agent.spec.reply_tokens_max.min(context_tokens) as usize);
        agent.reply = Some(reply);
        let source = match ask.prompt {
            Prompt::Tokens(tokens) => return self.speak(slot, tokens, None, now_micros),
            Prompt::Raw(text) => TextSource::Raw(text),
            Prompt::Chat(question) => TextSource::Chat {
                persona: agent.spec.persona.clone(),
                turns: Arc::clone(&agent.turns),
                question,
                policy: agent.spec.context_policy,
                thinking: agent.spec.thinking,
            },
        };
        let reply_tokens = self.text.reply_tokens(&agent.spec);
        let job = TextJob {
            agent: agent.id,
            generation: ask.generation,
            source,
            context_tokens,
            // Half of the context at most: a persona needs room too.
            reply_tokens: reply_tokens.min(context_tokens / 2),
        };
        self.first_to_ask = (slot + 1) % self.agents.len();
        if self.worker.submit(job).is_err() {
            self.fail(
                slot,
                ReplyError::Text("the text thread has ended: a defect in walla".into()),
            );
        }
    }

    /// Takes what the worker has encoded. `true` if there was something.
    pub(super) fn collect_text(&mut self, now_micros: u64) -> bool {
        let mut any = false;
        while let Some(done) = self.worker.collect() {
            any = true;
            let Some(&slot) = self.slots.get(&done.agent) else { continue };
            let Some(agent) = self.agents[slot].as_mut() else { continue };
            let waits =
                |r: &&mut Reply| r.generation == done.generation && r.stage == Stage::Encoding;
            let Some(reply) = agent.reply.as_mut().filter(waits) else { continue };
            match done.result {
                Ok(Encoded { tokens, dropped, start }) => {
                    reply.question = done.question;
                    if dropped > 0 {
                        // They never come back, and what an agent remembers stays bounded by its context.
                        Arc::make_mut(&mut agent.turns).drain(..dropped);
                    }
                    self.speak(slot, tokens, start, now_micros);
                }
                Err(reason) => self.fail(slot, ReplyError::Text(reason)),
            }
        }
        any
    }

    /// Lets the device continue `prompt`, reusing its cached prefix. `start`: the reply is
    /// separated into speech and reasoning.
    fn speak(
        &mut self,
        slot: usize,
        mut prompt: Vec<TokenId>,
        start: Option<ReplyStart>,
        now_micros: u64,
    ) {
        if let Some(start) = start {
            self.begin_parts(slot, start, &mut prompt);
        }
        let context_tokens = self.context_tokens;
        let vocab = self.card.vocab;
        let Some(agent) = self.agents[slot].as_mut() else { return };
        if let Some(token) = prompt.iter().find(|token| token.0 >= vocab) {
            let reason = format!("token {token} is not in the vocabulary of {vocab}");
            return self.fail(slot, ReplyError::Text(reason));
        }
        if prompt.is_empty() {
            return self.fail(slot, ReplyError::Text("the prompt is empty".into()));
        }
        let prompt_tokens = prompt.len() as u32;
        if let Some(reply) = agent.reply.as_mut() {
            reply.usage.prompt_tokens = prompt_tokens;
        }
        if prompt_tokens >= context_tokens {
            if agent.spec.context_policy == ContextPolicy::Stop {
                return self.finish(slot, FinishReason::ContextFull, now_micros);
            }
            return self.fail(slot, ReplyError::PromptTooLong { prompt_tokens, context_tokens });
        }
        let cached_tokens = self.keep_prefix(slot, &prompt);
        let Some(agent) = self.agents[slot].as_mut() else { return };
        agent.history.clear();
        agent.history.extend_from_slice(&prompt);
        agent.forget_in_flight();
        agent.waiting_since = self.budget.ticks;
        let (client, id) = (agent.client, agent.id);
        let Some(reply) = agent.reply.as_mut() else { return };
        reply.stage = Stage::Speaking;
        reply.usage.cached_tokens = cached_tokens;
        let generation = reply.generation;
        tracing::debug!(target: "walla::reply", agent = id.0, generation = generation.0, prompt_tokens, cached_tokens, "started");
        self.post(client, id, generation, ReplyEvent::Started { prompt_tokens });
    }

    /// Ends the reply in progress because something is wrong. Other agents go on.
    pub(super) fn fail(&mut self, slot: usize, error: ReplyError) {
        self.end(slot, Err(error), 0);
    }

    /// Ends the reply in progress.
    pub(super) fn finish(&mut self, slot: usize, reason: FinishReason, now_micros: u64) {
        self.end(slot, Ok(reason), now_micros);
    }

    /// What is held back of the reply's text goes out, then the terminal event.
    fn end(&mut self, slot: usize, how: Result<FinishReason, ReplyError>, now_micros: u64) {
        let Some(agent) = self.agents[slot].as_mut() else { return };
        let Some(mut reply) = agent.reply.take() else { return };
        agent.forget_in_flight();
        let (client, id, generation) = (agent.client, agent.id, reply.generation);
        let mut outbox = self.clients.iter_mut().find(|c| c.key == client).map(|c| &mut c.outbox);
        let said = &mut reply.said;
        agent.text.finish(&mut |part, text, tokens| {
            if part == Part::Speech {
                said.push_str(&text);
            }
            if let Some(outbox) = outbox.as_mut() {
                let what = part.event(text, tokens);
                outbox.push_back(Event { agent: id, generation, what });
            }
        });
        // Whatever ends the next reply, even before it begins, finds nothing of this one.
        agent.text.reset();
        reply.usage.total_micros = now_micros.saturating_sub(reply.arrived_micros);
        let usage = reply.usage;
        agent.keep_turn(reply, matches!(how, Ok(reason) if reason != FinishReason::Cancelled));
        let what = match how {
            Ok(reason) => {
                let tokens = usage.reply_tokens;
                tracing::debug!(target: "walla::reply", agent = id.0, generation = generation.0, ?reason, tokens, "finished");
                ReplyEvent::Finished { reason, usage }
            }
            Err(error) => {
                tracing::warn!(target: "walla::reply", agent = id.0, generation = generation.0, %error, "failed");
                ReplyEvent::Failed(error)
            }
        };
        self.post(client, id, generation, what);
    }
}
