//! Requests of all agents: scheduling, output processing and events.
//!
//! The core is a state machine without clock or thread. The shell calls [`Core::advance`]; tests do
//! the same with a virtual clock. One call collects completed steps, starts all work that can
//! start, and submits steps while the device has capacity.

mod agent;
mod budget;
mod calibrate;
mod collect;
mod cost_file;
mod deadline;
mod fallback;
mod load;
mod pages;
mod pause;
mod reasoning;
mod requests;
mod schedule;
mod slots;
mod source;
mod stall;
#[cfg(test)]
mod tests;
mod text;
mod turns;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use walla_device::DeviceError;
use walla_exec::{ExecError, Sequences, StepError};
use walla_model::tokenizer::Tokenizer;
use walla_plan::BUCKETS;
use walla_plan::governor::BucketError;

use self::agent::{AgentState, Ask};
use self::budget::Budget;
use self::collect::InFlight;
use self::deadline::hung;
use self::schedule::Scheduler;
use self::slots::Parked;
pub(crate) use self::source::Source;
use self::text::TextWorker;
use crate::api::{
    AgentId, Command, EngineStats, Event, GenerationId, Pacing, ReplyError, ReplyEvent,
};
use crate::clock::WaitMeter;
use crate::engine_core::{Advance, ClientKey, Control, Emit, EngineCore};
use crate::model_text::ModelText;
use crate::options::{Deadlines, EngineError};
use crate::state::ModelCard;

/// Maximum steps in flight: one runs while the next is queued behind it.
const STEPS_AHEAD_MAX: u32 = 2;

/// Maximum recomputations of a reply after failed steps. Then the reply fails.
const RETRIES_MAX: u32 = 3;

/// Consecutive failed polls of the steps in flight after which the device counts as lost.
const FAILURES_MAX: u32 = 16;

/// One host.
#[derive(Debug)]
struct ClientState {
    key: ClientKey,
    pacing: Pacing,
    /// Steps granted and not yet used, under [`Pacing::PerFrame`] without a budget.
    credits: u32,
    /// Frames granted so far.
    grants: u64,
    /// Whether it has granted a frame since the engine's current frame began.
    is_framed: bool,
    /// Events that its queue refused. While it is not empty, the client's agents pause.
    outbox: VecDeque<Event>,
    /// Whether one of its agents is in the step just submitted.
    stepped: bool,
    removed: bool,
    /// Its host requests a pause.
    wants_pause: bool,
    /// Begin of its current pause.
    paused_since_micros: Option<u64>,
    /// Time of its last frame.
    granted_micros: u64,
    /// Last time at which its agents could be scheduled.
    schedulable_micros: Option<u64>,
    is_stalled: bool,
}

/// The outbox of a client, if the client exists.
fn outbox_of(clients: &mut [ClientState], key: ClientKey) -> Option<&mut VecDeque<Event>> {
    clients.iter_mut().find(|client| client.key == key).map(|client| &mut client.outbox)
}

impl ClientState {
    fn may_step(&self) -> bool {
        self.outbox.is_empty() && !self.removed && !self.is_paused()
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Core {
    sequences: Sequences,
    text: Arc<ModelText>,
    worker: TextWorker,
    /// Whether the worker had no capacity for an ask.
    worker_is_full: bool,
    /// Round-robin cursor over agents with untokenised prompts: the agent after the last one
    /// served.
    first_to_ask: usize,
    card: ModelCard,
    context_tokens: u32,
    prefill_tokens_max: u32,
    /// Indexed by the agent's sequence.
    agents: Vec<Option<Box<AgentState>>>,
    slots: HashMap<AgentId, usize>,
    /// Agents without a slot.
    parked: Parked,
    clients: Vec<ClientState>,
    /// Time of the last update of the clients' stalls.
    stalls_updated_micros: u64,
    scheduler: Scheduler,
    budget: Budget,
    deadlines: Deadlines,
    step_meter: WaitMeter,
    in_flight: InFlight,
    failures_in_a_row: u32,
    driver_calls_of_load: u64,
    /// Target number of pages for a resize, which runs when no step is in flight.
    resizes_to: Option<u32>,
    /// A reply ended or pages were freed since the last plan: agents that lacked pages may
    /// continue.
    has_freed: bool,
    /// The agent that preempted others for pages which steps in flight still hold.
    page_claim: Option<usize>,
    /// Reason why this core cannot continue the replies of its predecessor. The next call of
    /// `advance` returns it.
    refused: Option<EngineError>,
    stats: EngineStats,
}

impl Core {
    fn client(&mut self, key: ClientKey) -> Option<&mut ClientState> {
        self.clients.iter_mut().find(|client| client.key == key)
    }

    /// The slot of an agent of this client. `None` for agents of other clients.
    fn slot_of(&self, client: ClientKey, id: AgentId) -> Option<usize> {
        let slot = *self.slots.get(&id)?;
        self.agents[slot].as_ref().filter(|agent| agent.client == client).map(|_| slot)
    }

    /// An agent of this client, parked or not.
    fn agent_of(&mut self, client: ClientKey, id: AgentId) -> Option<&mut AgentState> {
        let agent = match self.slots.get(&id) {
            Some(&slot) => self.agents[slot].as_deref_mut(),
            None => self.parked.agents.get_mut(&id).map(|agent| &mut **agent),
        };
        agent.filter(|agent| agent.client == client)
    }

    /// Sends an event, or keeps it until the client's queue has free slots.
    fn send(&mut self, key: ClientKey, event: Event, emit: &mut Emit<'_>) {
        let Some(client) = self.clients.iter_mut().find(|client| client.key == key) else { return };
        if !client.outbox.is_empty() {
            client.outbox.push_back(event);
        } else if let Err(event) = emit(key, event) {
            client.outbox.push_back(event);
            self.stats.queue_full += 1;
        }
    }

    /// Queues an event without sending it: commands arrive between calls of [`Core::advance`],
    /// which delivers.
    fn queue_event(
        &mut self,
        key: ClientKey,
        agent: AgentId,
        generation: GenerationId,
        what: ReplyEvent,
    ) {
        if let Some(outbox) = outbox_of(&mut self.clients, key) {
            outbox.push_back(Event { agent, generation, what });
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

    /// Fails every reply and every waiting ask.
    fn fail_all(&mut self, reason: &str) {
        for slot in 0..self.agents.len() {
            self.fail(slot, ReplyError::EngineGone(reason.to_owned()));
        }
        let parked = std::mem::take(&mut self.parked.agents).into_values();
        for mut agent in std::mem::take(&mut self.agents).into_iter().flatten().chain(parked) {
            let (client, id) = (agent.client, agent.id);
            for ask in agent.asks.drain(..) {
                let error = ReplyError::EngineGone(reason.to_owned());
                self.queue_event(client, id, ask.generation, ReplyEvent::Failed(error));
            }
        }
    }

    fn count(&mut self) {
        let agents = self.agents.iter().flatten();
        let active = agents.clone().filter(|agent| agent.reply.is_some()).count();
        let waiting: usize = agents.clone().map(|agent| agent.asks.len()).sum();
        let parked = self.parked.agents.len() as u32;
        self.stats.agents = self.slots.len() as u32 + parked;
        self.stats.agents_parked = parked;
        self.stats.agents_waiting = self.parked.waiting();
        self.stats.agents_active = active as u32 + self.parked.waiting();
        self.stats.asks_waiting = waiting as u32 + self.parked.asks();
        self.stats.pages_used = self.sequences.ledger.used_pages();
        let device = self.sequences.executor.device();
        self.stats.driver_calls = device.counters().total() - self.driver_calls_of_load;
        self.stats.graph_fallbacks = device.graph_fallbacks().total();
        self.stats.budget = self.budget.stats();
    }
}

impl EngineCore for Core {
    fn add_client(&mut self, key: ClientKey, pacing: Pacing) {
        let outbox = VecDeque::with_capacity(256);
        self.clients.push(ClientState {
            key,
            pacing,
            credits: 0,
            grants: 0,
            is_framed: false,
            outbox,
            stepped: false,
            removed: false,
            wants_pause: false,
            paused_since_micros: None,
            granted_micros: 0,
            schedulable_micros: None,
            is_stalled: false,
        });
    }

    fn remove_client(&mut self, key: ClientKey) {
        self.parked.remove_client(key);
        let agents = self.agents.iter().flatten();
        let ids: Vec<_> =
            agents.filter(|agent| agent.client == key).map(|agent| agent.id).collect();
        for id in ids {
            self.remove_agent(key, id, 0);
        }
        if let Some(client) = self.client(key) {
            client.outbox.clear();
            client.removed = true;
        }
    }

    fn command(&mut self, client: ClientKey, command: Command, now_micros: u64) {
        let now_micros = self.client_micros(client, now_micros);
        match command {
            Command::AddAgent { agent, spec } => self.add_agent(client, agent, *spec),
            Command::ChangeAgent { agent, spec } => {
                if let Some(state) = self.agent_of(client, agent) {
                    state.change(spec);
                    self.parked.refresh(agent);
                }
            }
            Command::SetDetail { agent, detail } => {
                if let Some(state) = self.agent_of(client, agent) {
                    state.set_detail(detail);
                }
            }
            Command::SetConversation { agent, turns } => {
                self.cancel(client, agent, None, now_micros);
                if let Some(state) = self.agent_of(client, agent) {
                    state.replace_turns(turns);
                }
            }
            Command::AppendTurns { agent, turns } => {
                let turns_max = self.context_tokens as usize;
                if let Some(state) = self.agent_of(client, agent) {
                    state.append_turns(turns, turns_max);
                }
            }
            Command::RemoveAgent { agent } => self.remove_agent(client, agent, now_micros),
            Command::Ask { agent, generation, prompt } => {
                self.ask(client, agent, Ask::new(generation, prompt, now_micros));
            }
            Command::Cancel { agent, generation } => {
                self.cancel(client, agent, Some(generation), now_micros);
            }
            Command::Interrupt { agent, generation, heard_bytes } => {
                self.interrupt(client, agent, (generation, heard_bytes), now_micros);
            }
        }
    }

    fn set_paused(&mut self, client: ClientKey, is_paused: bool) {
        if let Some(client) = self.client(client) {
            client.wants_pause = is_paused;
        }
    }

    fn is_paused(&self) -> bool {
        self.is_all_paused()
    }

    fn frame(&mut self, key: ClientKey, now_micros: u64) {
        if let Some(place) = self.clients.iter().position(|client| client.key == key) {
            self.grant_frame(place, now_micros);
        }
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Budget(budget) => self.budget.set(budget),
            Control::KvTokens(tokens) => self.limit_kv(tokens),
        }
    }

    fn advance(&mut self, now_micros: u64, emit: &mut Emit<'_>) -> Result<Advance, EngineError> {
        self.update_pauses(now_micros);
        self.deliver(emit);
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let collected = match self.collect_steps(now_micros, emit) {
            Ok(collected) => {
                self.failures_in_a_row = 0;
                collected
            }
            // The step remains in flight: the next call polls again.
            Err(ExecError::Device(error))
                if !error.is_lost() && self.failures_in_a_row < FAILURES_MAX =>
            {
                self.failures_in_a_row += 1;
                false
            }
            Err(error) => return Err(error.into()),
        };
        self.check_step_deadline(now_micros)?;
        self.update_stalls(now_micros);
        self.end_overdue_replies(now_micros);
        self.end_stalled_reply(now_micros);
        self.start_asks(now_micros);
        // If a prompt fails, its agent's next ask can start.
        while self.collect_text(now_micros) {
            self.start_asks(now_micros);
        }
        // Events that are still undelivered afterwards wait for a slow host, whose agents pause.
        self.deliver(emit);
        self.update_stalls(now_micros);
        let has_free_client =
            self.clients.iter().any(|client| client.pacing == Pacing::FreeRunning);
        self.budget.begin_window(now_micros, has_free_client);
        let (mut submitted, mut failed, mut waits, mut freed) = (false, false, false, false);
        let resizes = self.resize()?;
        while !resizes
            && self.sequences.executor.in_flight() < STEPS_AHEAD_MAX
            && self.sequences.executor.has_room()
        {
            self.has_freed = false;
            match self.submit_step(now_micros) {
                Ok(true) => submitted = true,
                // Planning itself ended a reply or freed pages, so another agent may continue. Only
                // existing replies and pages can be freed, so this repeats a bounded number of
                // times.
                Ok(false) => {
                    freed = self.has_freed;
                    break;
                }
                // The block of a partly failed step is still being copied: try later. No completion
                // reports the end of the copy, because no step may be in flight.
                Err(StepError::Exec(ExecError::Device(DeviceError::HostInFlight { .. }))) => {
                    waits = true;
                    break;
                }
                Err(StepError::Exec(ExecError::Device(error))) if !error.is_lost() => {
                    self.retry_scheduled(&error.to_string());
                    failed = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.deliver(emit);
        self.count();
        // A reply that ended during this call frees its agent for the next ask, or its slot for the
        // next agent.
        let can_start = (!self.worker_is_full
            && (0..self.agents.len()).any(|slot| self.is_free(slot)))
            || self.next_placement(now_micros).is_some();
        Ok(match () {
            () if collected || submitted || freed || can_start => Advance::Again,
            () if waits || self.sequences.executor.in_flight() > 0 => Advance::Poll,
            () if failed => Advance::Again,
            () if self.budget.waits_for_window => {
                Advance::Pause(self.budget.micros_to_window(now_micros).max(1))
            }
            // A reply with a deadline may get no other wake-up.
            () => {
                let deadline = self.micros_to_reply_deadline(now_micros);
                let next = deadline.into_iter().chain(self.micros_to_stall(now_micros)).min();
                next.map_or(Advance::Idle, Advance::Pause)
            }
        })
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }

    fn changed_errors(&mut self) -> Option<[BucketError; BUCKETS.len()]> {
        self.budget.changed_errors()
    }

    fn card(&self) -> ModelCard {
        self.card.clone()
    }

    fn tokenizer(&self) -> Option<Arc<Tokenizer>> {
        Some(Arc::clone(&self.text.tokenizer))
    }

    fn take_over(&mut self, lost: Self) {
        self.continue_from(lost);
    }

    fn drain_events(&mut self, reason: &str) -> Vec<(ClientKey, VecDeque<Event>)> {
        self.fail_all(reason);
        self.clients.drain(..).map(|client| (client.key, client.outbox)).collect()
    }
}
