//! The owner of a client's agents: a task that receives commands and the progress of requests, and
//! sends events.
//!
//! Rules:
//! 1. An agent has one request in progress at most. Its other asks wait here.
//! 2. A reply ends once: [`Hub::end_reply`] takes it from its agent. Progress of a
//!    request whose reply has ended is ignored.
//! 3. While the client's queue is full, no progress is received, so that requests wait, and with
//!    them the connections. Commands are received until [`MAX_OUTBOX`] events wait.
//! 4. Asks that wait for a request are ordered by arrival. A step of priority counts like one
//!    second, so each ask is served in bounded time.

mod prepare;
mod replies;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{self, JoinSet};
use walla_runtime::{
    AgentId, Ask, CacheError, Command, Event, FinishReason, MAX_ASKS_WAITING, ReplyError,
    ReplyEvent, ReplyId, Usage,
};

use crate::agent::Agent;
use crate::channels::Channels;
use crate::http::{Report, Server};

/// Maximum number of events that wait for the client before commands wait too.
const MAX_OUTBOX: usize = 4_096;

/// Capacity of the channel of progress.
const MAX_PROGRESS: usize = 256;

/// Time that a step of priority counts.
const PRIORITY_MICROS: i64 = 1_000_000;

/// A future that resolves to a permit for a request.
type NextPermit = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

pub(crate) struct Hub {
    server: Arc<Server>,
    requests: Arc<Semaphore>,
    channels: Arc<Channels>,
    commands: mpsc::Receiver<Command>,
    reports: mpsc::Receiver<Report>,
    reporter: mpsc::Sender<Report>,
    tasks: JoinSet<()>,
    of_task: HashMap<task::Id, (AgentId, ReplyId)>,
    agents: HashMap<AgentId, Agent>,
    /// Agents that wait for a request.
    waiting: BTreeMap<(i64, ReplyId), AgentId>,
    asks_open: u32,
    /// Bytes of their texts.
    ask_bytes: u64,
    outbox: VecDeque<Event>,
    begin: Instant,
    /// Why the hub ends.
    reason: &'static str,
}

impl Hub {
    pub fn new(
        server: Arc<Server>,
        requests: Arc<Semaphore>,
        channels: Arc<Channels>,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let (reporter, reports) = mpsc::channel(MAX_PROGRESS);
        Self {
            server,
            requests,
            channels,
            commands,
            reports,
            reporter,
            tasks: JoinSet::new(),
            of_task: HashMap::new(),
            agents: HashMap::new(),
            waiting: BTreeMap::new(),
            asks_open: 0,
            ask_bytes: 0,
            outbox: VecDeque::new(),
            begin: Instant::now(),
            reason: "the client is gone",
        }
    }

    /// Runs until the client is dropped or the engine stops.
    pub async fn run(mut self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut permit: Option<NextPermit> = None;
        loop {
            let can_begin = !self.channels.is_paused() && !self.waiting.is_empty();
            if can_begin && permit.is_none() {
                let requests = Arc::clone(&self.requests);
                // Kept over the rounds, so that it keeps its place in the queue of the semaphore.
                permit = Some(Box::pin(async move { requests.acquire_owned().await.ok() }));
            }
            tokio::select! {
                // A stop precedes all, and a cancel the progress that it would outdate.
                biased;
                _ = stop.wait_for(|is_stopped| *is_stopped) => {
                    self.reason = "the engine was stopped";
                    return;
                }
                command = self.commands.recv(), if self.outbox.len() < MAX_OUTBOX => {
                    match command {
                        Some(command) => self.command(command),
                        None => return,
                    }
                }
                Some((agent, reply_id, progress)) = self.reports.recv(),
                    if self.outbox.is_empty() => self.progress(agent, reply_id, progress),
                Some(ended) = self.tasks.join_next_with_id(), if self.outbox.is_empty() => {
                    self.task_ended(ended);
                }
                got = next(&mut permit), if can_begin => {
                    permit = None;
                    if let Some(got) = got {
                        self.begin_next(got);
                    }
                }
                () = self.channels.space.notified(), if !self.outbox.is_empty() => {}
                () = self.channels.pause_changed.notified() => {}
            }
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.channels.send(&mut self.outbox);
        let counts = &self.channels.counts;
        let active = self.of_task.len() as u32;
        counts.agents.store(self.agents.len() as u32, Ordering::Relaxed);
        counts.agents_active.store(active, Ordering::Relaxed);
        let waiting = self.asks_open.saturating_sub(active);
        counts.asks_waiting.store(waiting, Ordering::Relaxed);
    }

    fn now_micros(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    fn emit(&mut self, agent: AgentId, reply_id: ReplyId, what: ReplyEvent) {
        self.outbox.push_back(Event { agent, reply_id, what });
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::AddAgent { agent, spec } => {
                let has_room = self.agents.len() < self.server.options.max_agents as usize;
                if has_room && !self.agents.contains_key(&agent) {
                    self.agents.insert(agent, Agent::new(*spec));
                }
            }
            Command::ChangeAgent { agent, spec } => {
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.change(spec);
                    self.place(agent);
                }
            }
            Command::SetDetail { agent, detail } => {
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.spec.detail = detail;
                }
            }
            Command::SetConversation { agent, turns } => {
                self.cancel_all(agent);
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.replace(turns);
                }
            }
            Command::AppendTurns { agent, turns } => {
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.append(turns);
                }
            }
            Command::EditConversation { agent, edit } => {
                self.cancel_all(agent);
                let copied = edit.source().and_then(|source| self.agents.get(&source));
                let copied = copied.map(|source| source.history.copy());
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.history.edit(edit, copied);
                }
            }
            Command::ForkAgent { agent, source, spec } => {
                let copy = match (spec, self.agents.get(&source)) {
                    (Some(spec), _) => Some(Agent::new(*spec)),
                    (None, Some(source)) => Some(source.fork()),
                    (None, None) => None,
                };
                let has_room = self.agents.len() < self.server.options.max_agents as usize;
                if let Some(copy) = copy.filter(|_| has_room) {
                    self.agents.entry(agent).or_insert(copy);
                }
            }
            Command::CopyCache { ticket, .. } => ticket.fail(CacheError::Unsupported),
            Command::RemoveAgent { agent } => {
                self.cancel_all(agent);
                self.agents.remove(&agent);
            }
            Command::Ask { agent, reply_id, prompt, options } => {
                let arrived_micros = self.now_micros();
                let ask = Ask::new(reply_id, prompt, options, arrived_micros);
                if let Err(error) = self.ask(agent, ask) {
                    self.emit(agent, reply_id, ReplyEvent::Failed(error));
                }
            }
            Command::Cancel { agent, reply_id } => self.cancel(agent, reply_id, u32::MAX),
            Command::CancelHeard { agent, reply_id, heard_bytes } => {
                self.cancel(agent, reply_id, heard_bytes);
            }
        }
    }

    fn ask(&mut self, id: AgentId, ask: Ask) -> Result<(), ReplyError> {
        let options = &self.server.options;
        let (asks, max_asks, max_agents) = (self.asks_open, options.max_asks, options.max_agents);
        let (bytes, max_bytes) = (self.ask_bytes, options.max_ask_bytes);
        let is_full = self.agents.len() >= max_agents as usize;
        let Some(agent) = self.agents.get_mut(&id) else {
            return Err(if is_full {
                ReplyError::TooManyAgents { max_agents }
            } else {
                ReplyError::UnknownAgent
            });
        };
        if agent.asks.len() >= MAX_ASKS_WAITING {
            return Err(ReplyError::Busy { waiting: MAX_ASKS_WAITING as u32 });
        }
        if asks >= max_asks || bytes_of(&ask) > max_bytes.saturating_sub(bytes) {
            return Err(ReplyError::TooManyAsks { asks, max_asks, bytes, max_bytes });
        }
        self.asks_open += 1;
        self.ask_bytes += bytes_of(&ask);
        agent.asks.push(ask);
        self.place(id);
        Ok(())
    }

    /// Adds an agent to the agents that wait for a request, or removes it.
    fn place(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let next = agent.asks.front().filter(|_| agent.reply.is_none());
        let place = next.map(|ask| {
            let ahead = i64::from(agent.spec.priority).saturating_mul(PRIORITY_MICROS);
            ((ask.arrived_micros as i64).saturating_sub(ahead), ask.reply_id)
        });
        // Removed by its key, which contains the former priority.
        if let Some(old) = std::mem::replace(&mut agent.place, place) {
            self.waiting.remove(&old);
        }
        if let Some(place) = place {
            self.waiting.insert(place, id);
        }
    }

    fn cancel_all(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let reply = agent.reply.as_ref().map(|reply| reply.reply_id);
        let asks: Vec<ReplyId> = agent.asks.iter().map(|ask| ask.reply_id).collect();
        for reply_id in reply.into_iter().chain(asks) {
            self.cancel(id, reply_id, u32::MAX);
        }
    }

    fn cancel(&mut self, id: AgentId, reply_id: ReplyId, heard_bytes: u32) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if let Some(reply) = agent.reply.as_mut().filter(|reply| reply.reply_id == reply_id) {
            reply.heard_bytes = heard_bytes;
            // A report that its task has sent before finds no reply (rule 2).
            return self.finish(id, FinishReason::Cancelled, None);
        }
        let taken = agent.asks.cancel(|known| known == reply_id);
        if taken.is_empty() {
            if heard_bytes < u32::MAX {
                agent.history.shorten_reply(reply_id, heard_bytes);
            }
            return;
        }
        agent.settle();
        for ask in &taken {
            self.asks_open -= 1;
            self.ask_bytes -= bytes_of(ask);
        }
        let reason = FinishReason::Cancelled;
        self.emit(id, reply_id, ReplyEvent::Finished { reason, usage: Usage::default() });
        self.place(id);
    }
}

/// Ends every reply and every ask, also if the hub panicked.
impl Drop for Hub {
    fn drop(&mut self) {
        self.tasks.abort_all();
        // Before it is drained: no ask may come in behind and stay without an end.
        self.commands.close();
        let gone = || ReplyEvent::Failed(ReplyError::EngineGone(self.reason.into()));
        let mut events = std::mem::take(&mut self.outbox);
        for (&agent, known) in &self.agents {
            let reply = known.reply.as_ref().map(|reply| reply.reply_id);
            let asks = known.asks.iter().map(|ask| ask.reply_id);
            let ended = reply.into_iter().chain(asks);
            events.extend(ended.map(|reply_id| Event { agent, reply_id, what: gone() }));
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Ask { agent, reply_id, .. } = command {
                events.push_back(Event { agent, reply_id, what: gone() });
            }
        }
        self.channels.end(events);
    }
}

/// Bytes of the texts of an ask.
fn bytes_of(ask: &Ask) -> u64 {
    (ask.prompt.bytes() + ask.options.source_bytes()) as u64
}

async fn next(permit: &mut Option<NextPermit>) -> Option<OwnedSemaphorePermit> {
    match permit {
        Some(permit) => permit.await,
        None => std::future::pending().await,
    }
}
