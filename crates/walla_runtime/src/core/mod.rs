//! The life of every agent's sequence: who gets rows in the next step, what comes back, and what hosts hear of it.
//!
//! The core is a state machine without clock or thread: the shell around it calls [`Core::advance`], tests do the same with
//! a virtual clock. One call collects finished steps, starts what can start and submits steps while the device has room.

mod agent;
mod collect;
mod compose;
mod load;
mod pages;
#[cfg(all(test, not(loom)))]
mod tests;
mod text;

use std::collections::{HashMap, VecDeque};

use walla_device::DeviceError;
use walla_exec::{ExecError, Sequences, StepError};

use self::agent::{ASKS_WAITING_MAX, AgentState, Ask, Reply, Stage};
use self::collect::InFlight;
use self::compose::Composer;
use self::text::{ModelText, TextJob, TextSource, TextWorker};
use crate::api::{
    AgentId, AgentSpec, Command, ContextPolicy, EngineStats, Event, FinishReason, GenerationId,
    Pacing, Prompt, ReplyError, ReplyEvent, Speaker, Turn, Usage,
};
use crate::options::EngineError;
use crate::shell::{Advance, ClientKey, Emit, EngineCore};
use crate::state::ModelCard;

/// Steps that may be submitted before the oldest one's results are read: one runs while the next waits behind it.
const STEPS_AHEAD_MAX: u32 = 2;

/// Times that a reply is evaluated anew after failed steps before it fails.
const RETRIES_MAX: u32 = 3;

/// Failed looks at the steps in flight, one after the other, after which the device counts as lost.
const FAILURES_MAX: u32 = 16;

/// One host.
#[derive(Debug)]
struct ClientState {
    key: ClientKey,
    pacing: Pacing,
    /// Steps granted and not yet used, under [`Pacing::PerFrame`].
    credits: u32,
    /// Events that its queue could not take. While there are any, its agents pause.
    outbox: VecDeque<Event>,
    /// Whether some agent is in the step just submitted.
    stepped: bool,
    removed: bool,
}

impl ClientState {
    fn may_step(&self) -> bool {
        self.outbox.is_empty()
            && !self.removed
            && (self.credits > 0 || self.pacing == Pacing::FreeRunning)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Core {
    sequences: Sequences,
    text: std::sync::Arc<ModelText>,
    worker: TextWorker,
    /// Whether some ask could not be given to the worker.
    worker_is_full: bool,
    card: ModelCard,
    context_tokens: u32,
    prefill_tokens_max: u32,
    /// Index: the agent's sequence.
    agents: Vec<Option<Box<AgentState>>>,
    slots: HashMap<AgentId, usize>,
    clients: Vec<ClientState>,
    composer: Composer,
    in_flight: InFlight,
    failures_in_a_row: u32,
    stats: EngineStats,
}

impl Core {
    fn client(&mut self, key: ClientKey) -> Option<&mut ClientState> {
        self.clients.iter_mut().find(|client| client.key == key)
    }

    /// Sends an event, or keeps it until the client's queue has room.
    fn send(&mut self, key: ClientKey, event: Event, emit: &mut Emit<'_>) {
        let Some(client) = self.clients.iter_mut().find(|client| client.key == key) else { return };
        if !client.outbox.is_empty() {
            client.outbox.push_back(event);
        } else if let Err(event) = emit(key, event) {
            client.outbox.push_back(event);
            self.stats.queue_full += 1;
        }
    }

    /// Without a way to send now: commands arrive between calls of [`Core::advance`], which delivers.
    fn post(&mut self, key: ClientKey, agent: AgentId, generation: GenerationId, what: ReplyEvent) {
        if let Some(client) = self.client(key) {
            client.outbox.push_back(Event { agent, generation, what });
        }
    }

    fn deliver(&mut self, emit: &mut Emit<'_>) {
        for client in &mut self.clients {
            while let Some(event) = client.outbox.pop_front() {
                if let Err(event) = emit(client.key, event) {
                    client.outbox.push_front(event);
                    break;
                }
            }
        }
        self.clients.retain(|client| !client.removed);
    }

    fn add_agent(&mut self, client: ClientKey, id: AgentId, spec: AgentSpec) {
        let free = self.agents.iter().position(Option::is_none);
        if self.slots.contains_key(&id) {
            return;
        }
        // Without a slot the agent stays unknown; its asks say so.
        let Some(slot) = free else { return };
        let state = AgentState::new(client, id, spec, self.context_tokens);
        self.agents[slot] = Some(Box::new(state));
        self.slots.insert(id, slot);
    }

    fn ask(&mut self, client: ClientKey, id: AgentId, ask: Ask) {
        let agents_max = self.agents.len() as u32;
        let Some(agent) = self.slots.get(&id).and_then(|&slot| self.agents[slot].as_mut()) else {
            let full = self.slots.len() >= agents_max as usize;
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
    fn cancel(&mut self, id: AgentId, generation: Option<GenerationId>, now_micros: u64) {
        let Some(&slot) = self.slots.get(&id) else { return };
        let Some(agent) = self.agents[slot].as_mut() else { return };
        let client = agent.client;
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

    fn remove_agent(&mut self, id: AgentId, now_micros: u64) {
        self.cancel(id, None, now_micros);
        let Some(slot) = self.slots.remove(&id) else { return };
        self.agents[slot] = None;
        self.drop_sequence(slot);
    }

    /// Starts the next ask of every agent that is free; where one fails at once, the one after it.
    fn start_asks(&mut self) {
        self.worker_is_full = false;
        for slot in 0..self.agents.len() {
            while let Some(agent) = self.agents[slot].as_mut().filter(|agent| agent.reply.is_none())
            {
                let Some(ask) = agent.asks.pop_front() else { break };
                if !self.start_ask(slot, ask) {
                    break;
                }
            }
        }
    }

    /// `false`: not now, the ask waits on.
    fn start_ask(&mut self, slot: usize, ask: Ask) -> bool {
        let context_tokens = self.context_tokens;
        let Some(agent) = self.agents[slot].as_mut() else { return false };
        let mut reply = Reply {
            generation: ask.generation,
            arrived_micros: ask.arrived_micros,
            is_turn: matches!(ask.prompt, Prompt::Chat(_)),
            stage: Stage::Encoding,
            usage: Usage::default(),
            said: String::new(),
            retries: 0,
        };
        // Room for the reply, so that speaking does not allocate: 6 bytes a token are plenty for most languages.
        reply.said.reserve(6 * agent.spec.reply_tokens_max.min(context_tokens) as usize);
        let source = match &ask.prompt {
            Prompt::Tokens(tokens) => {
                agent.reply = Some(reply);
                let tokens = tokens.clone();
                self.speak(slot, tokens);
                return true;
            }
            Prompt::Raw(text) => TextSource::Raw(text.clone()),
            Prompt::Chat(text) => {
                agent.turns.push(Turn { speaker: Speaker::User, text: text.clone() });
                TextSource::Chat {
                    persona: agent.spec.persona.clone(),
                    turns: agent.turns.clone(),
                    dropped: agent.turns_dropped,
                    policy: agent.spec.context_policy,
                }
            }
        };
        let job = TextJob {
            agent: agent.id,
            generation: ask.generation,
            source,
            context_tokens,
            // Half of the context at most: a persona needs room too.
            reply_tokens: agent.spec.reply_tokens_max.min(context_tokens / 2),
        };
        if self.worker.submit(job).is_ok() {
            agent.reply = Some(reply);
            return true;
        }
        // The worker is full: undo, and try again when it has done something (it wakes us).
        self.worker_is_full = true;
        let Some(agent) = self.agents[slot].as_mut() else { return false };
        if reply.is_turn {
            agent.turns.pop();
        }
        agent.asks.push_front(ask);
        false
    }

    /// Takes what the worker has encoded. `true` if there was something.
    fn collect_text(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.worker.collect() {
            any = true;
            let Some(&slot) = self.slots.get(&done.agent) else { continue };
            let Some(agent) = self.agents[slot].as_mut() else { continue };
            let waits = |r: &Reply| r.generation == done.generation && r.stage == Stage::Encoding;
            if !agent.reply.as_ref().is_some_and(waits) {
                continue;
            }
            match done.result {
                Ok((tokens, dropped)) => {
                    agent.turns_dropped = dropped;
                    self.speak(slot, tokens);
                }
                Err(reason) => self.fail(slot, ReplyError::Text(reason)),
            }
        }
        any
    }

    /// Lets the device continue `prompt`, keeping what the cache already holds of it.
    fn speak(&mut self, slot: usize, prompt: Vec<walla_types::TokenId>) {
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
        if prompt_tokens >= context_tokens {
            if agent.spec.context_policy == ContextPolicy::Stop {
                return self.finish(slot, FinishReason::ContextFull, 0);
            }
            return self.fail(slot, ReplyError::PromptTooLong { prompt_tokens, context_tokens });
        }
        let cached_tokens = self.keep_prefix(slot, &prompt);
        let Some(agent) = self.agents[slot].as_mut() else { return };
        agent.history.clear();
        agent.history.extend_from_slice(&prompt);
        agent.text.reset();
        agent.forget_in_flight();
        agent.waiting_since = self.stats.steps;
        let (client, id) = (agent.client, agent.id);
        let Some(reply) = agent.reply.as_mut() else { return };
        reply.stage = Stage::Speaking;
        reply.usage.prompt_tokens = prompt_tokens;
        reply.usage.cached_tokens = cached_tokens;
        let generation = reply.generation;
        tracing::debug!(target: "walla::reply", agent = id.0, generation = generation.0, prompt_tokens, cached_tokens, "started");
        self.post(client, id, generation, ReplyEvent::Started { prompt_tokens });
    }

    fn fail(&mut self, slot: usize, error: ReplyError) {
        let Some(agent) = self.agents[slot].as_mut() else { return };
        let Some(reply) = agent.reply.take() else { return };
        agent.forget_in_flight();
        let (client, id, generation) = (agent.client, agent.id, reply.generation);
        agent.keep_turn(reply);
        tracing::warn!(target: "walla::reply", agent = id.0, generation = generation.0, %error, "failed");
        self.post(client, id, generation, ReplyEvent::Failed(error));
    }

    /// Ends the reply in progress: what is held back of its text goes out, then the terminal event.
    fn finish(&mut self, slot: usize, reason: FinishReason, now_micros: u64) {
        let Some(agent) = self.agents[slot].as_mut() else { return };
        let Some(mut reply) = agent.reply.take() else { return };
        agent.forget_in_flight();
        let (client, id, generation) = (agent.client, agent.id, reply.generation);
        // After a stop string, what was held back is (part of) the stop string itself.
        let outbox = self.clients.iter_mut().find(|c| c.key == client).map(|c| &mut c.outbox);
        if reason != FinishReason::Stop {
            let said = &mut reply.said;
            let mut outbox = outbox;
            agent.text.finish(&mut |text, tokens| {
                said.push_str(&text);
                if let Some(outbox) = outbox.as_mut() {
                    outbox.push_back(Event {
                        agent: id,
                        generation,
                        what: ReplyEvent::Delta { text, tokens },
                    });
                }
            });
        }
        reply.usage.total_micros = now_micros.saturating_sub(reply.arrived_micros);
        let usage = reply.usage;
        agent.keep_turn(reply);
        let tokens = usage.reply_tokens;
        tracing::debug!(target: "walla::reply", agent = id.0, generation = generation.0, ?reason, tokens, "finished");
        self.post(client, id, generation, ReplyEvent::Finished { reason, usage });
    }

    fn count(&mut self) {
        let agents = self.agents.iter().flatten();
        let active = agents.clone().filter(|agent| agent.reply.is_some()).count();
        let waiting: usize = agents.clone().map(|agent| agent.asks.len()).sum();
        self.stats.agents = self.slots.len() as u32;
        self.stats.agents_active = active as u32;
        self.stats.asks_waiting = waiting as u32;
        self.stats.pages_used = self.sequences.ledger.used_pages();
    }
}

impl EngineCore for Core {
    fn add_client(&mut self, key: ClientKey, pacing: Pacing) {
        let outbox = VecDeque::with_capacity(256);
        self.clients.push(ClientState {
            key,
            pacing,
            credits: 0,
            outbox,
            stepped: false,
            removed: false,
        });
    }

    fn remove_client(&mut self, key: ClientKey) {
        let agents = self.agents.iter().flatten();
        let ids: Vec<_> =
            agents.filter(|agent| agent.client == key).map(|agent| agent.id).collect();
        for id in ids {
            self.remove_agent(id, 0);
        }
        if let Some(client) = self.client(key) {
            client.outbox.clear();
            client.removed = true;
        }
    }

    fn command(&mut self, client: ClientKey, command: Command, now_micros: u64) {
        match command {
            Command::AddAgent { agent, spec } => self.add_agent(client, agent, *spec),
            Command::ChangeAgent { agent, spec } => {
                let Some(&slot) = self.slots.get(&agent) else { return };
                let Some(state) = self.agents[slot].as_mut() else { return };
                state.text.set_stop_strings(&spec.stop_strings);
                state.spec = AgentSpec { history: Vec::new(), ..*spec };
            }
            Command::SetConversation { agent, turns } => {
                self.cancel(agent, None, now_micros);
                let Some(&slot) = self.slots.get(&agent) else { return };
                let Some(state) = self.agents[slot].as_mut() else { return };
                state.turns = turns;
                state.turns_dropped = 0;
            }
            Command::RemoveAgent { agent } => self.remove_agent(agent, now_micros),
            Command::Ask { agent, generation, prompt } => {
                self.ask(client, agent, Ask { generation, prompt, arrived_micros: now_micros });
            }
            Command::Cancel { agent, generation } => {
                self.cancel(agent, Some(generation), now_micros);
            }
        }
    }

    fn frame(&mut self, key: ClientKey) {
        if let Some(client) = self.client(key)
            && let Pacing::PerFrame { steps } = client.pacing
        {
            client.credits = steps;
        }
    }

    fn advance(&mut self, now_micros: u64, emit: &mut Emit<'_>) -> Result<Advance, EngineError> {
        self.deliver(emit);
        let collected = match self.collect_steps(now_micros, emit) {
            Ok(collected) => {
                self.failures_in_a_row = 0;
                collected
            }
            // The step stays where it is: the next call looks again.
            Err(ExecError::Device(error))
                if !error.is_lost() && self.failures_in_a_row < FAILURES_MAX =>
            {
                self.failures_in_a_row += 1;
                false
            }
            Err(error) => return Err(error.into()),
        };
        self.start_asks();
        // A prompt that fails makes way for the next ask.
        while self.collect_text() {
            self.start_asks();
        }
        // What is still undelivered after this waits for a host that is slow: its agents pause.
        self.deliver(emit);
        let (mut submitted, mut failed) = (false, false);
        while self.sequences.executor.in_flight() < STEPS_AHEAD_MAX
            && self.sequences.executor.has_room()
        {
            match self.submit_step(now_micros) {
                Ok(true) => submitted = true,
                Ok(false) => break,
                // The block of a step that failed half-way is still being copied: later.
                Err(StepError::Exec(ExecError::Device(DeviceError::HostInFlight { .. }))) => break,
                Err(StepError::Exec(ExecError::Device(error))) if !error.is_lost() => {
                    self.retry_composed(&error.to_string());
                    failed = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.deliver(emit);
        self.count();
        // A reply that ended while this step was made up leaves its agent free for the next ask.
        let is_free = |agent: &AgentState| agent.reply.is_none() && !agent.asks.is_empty();
        let can_start = !self.worker_is_full && self.agents.iter().flatten().any(|a| is_free(a));
        Ok(match () {
            () if collected || submitted || can_start => Advance::Again,
            () if self.sequences.executor.in_flight() > 0 => Advance::Poll,
            () if failed => Advance::Again,
            () => Advance::Idle,
        })
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }

    fn card(&self) -> ModelCard {
        self.card.clone()
    }

    fn fail_all(&mut self, reason: &str, emit: &mut Emit<'_>) -> bool {
        for slot in 0..self.agents.len() {
            self.fail(slot, ReplyError::EngineGone(reason.to_owned()));
            let Some(agent) = self.agents[slot].as_mut() else { continue };
            let (client, id) = (agent.client, agent.id);
            let waiting: Vec<_> = agent.asks.drain(..).collect();
            for ask in waiting {
                let error = ReplyError::EngineGone(reason.to_owned());
                self.post(client, id, ask.generation, ReplyEvent::Failed(error));
            }
        }
        self.deliver(emit);
        self.clients.iter().all(|client| client.outbox.is_empty())
    }
}
