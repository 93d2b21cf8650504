//! An engine's client whose agents have memories.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use walla_runtime::{
    AgentId, Capabilities, Command, Engine, EngineClient, EngineState, EngineStats, Event,
    FrameBudget, ModelCard, ReplyError, ReplyEvent, TrySendError,
};

use super::held::{Agents, Held, Known, MAX_HELD, ends_waits, follows, with_notes};
use crate::{AgentRecall, Recall};

/// A client of an engine of any kind that adds found entries to asks.
///
/// Asks of [agents with memories](Self::set_agent) are held back until their search has ended, for
/// [`RecallOptions::max_time`](crate::RecallOptions::max_time) at most, and are sent at the next
/// call of [`frame`](EngineClient::frame) or of a receive function. All other commands pass
/// through. Texts are put into [notes](walla_runtime::Notes): see there for their place in the
/// prompt.
///
/// | ask | searched text |
/// |---|---|
/// | a question | the question |
/// | without a question | the agent's latest question or appended turn |
/// | a repetition | the text of the ask before it; behind a replaced conversation, what precedes its last reply |
/// | raw text or tokens | none: no search |
/// | any, with its own [notes](walla_runtime::AskOptions::notes) | none: they replace the found entries |
///
/// Clones are handles of the same client.
#[derive(Clone)]
pub struct RecallClient {
    inner: Arc<Inner>,
}

struct Inner {
    recall: Recall,
    client: Arc<dyn EngineClient>,
    /// Locked by hosts only, never during a search.
    agents: Mutex<Agents>,
    /// Ends of asks that the engine never received.
    ends: Mutex<VecDeque<Event>>,
    waker: Arc<AtomicWaker>,
    /// Whether the client has reserved time for the embedding model.
    is_reserved: AtomicBool,
}

impl RecallClient {
    pub(crate) fn new(recall: Recall, client: Arc<dyn EngineClient>) -> Self {
        let inner = Inner {
            recall,
            client,
            agents: Mutex::default(),
            ends: Mutex::default(),
            waker: Arc::new(AtomicWaker::new()),
            is_reserved: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The service.
    #[must_use]
    pub fn recall(&self) -> &Recall {
        &self.inner.recall
    }

    /// Sets the memories of an agent from its next ask on; `None`: none. It may be called before
    /// the agent is added, and is forgotten when the agent is removed.
    pub fn set_agent(&self, agent: AgentId, recall: Option<AgentRecall>) {
        let mut agents = self.inner.agents();
        match recall {
            Some(recall) => {
                agents.known.entry(agent).or_default().recall = Some(Arc::new(recall));
            }
            None => {
                if let Some(known) = agents.known.get_mut(&agent) {
                    known.recall = None;
                    if known.held.is_empty() {
                        agents.known.remove(&agent);
                    }
                }
            }
        }
    }

    /// The memories of an agent.
    #[must_use]
    pub fn agent(&self, agent: AgentId) -> Option<AgentRecall> {
        let agents = self.inner.agents();
        agents.known.get(&agent)?.recall.as_deref().cloned()
    }

    /// Sets the game time of the service: [`Recall::set_now`].
    pub fn set_now(&self, now: Duration) {
        self.inner.recall.set_now(now);
    }
}

impl Inner {
    fn agents(&self) -> MutexGuard<'_, Agents> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the asks whose searches have ended, and what waits behind them.
    fn release(&self, agents: &mut Agents) {
        if agents.held == 0 {
            return;
        }
        let ids: Vec<AgentId> = agents
            .known
            .iter()
            .filter(|(_, its)| !its.held.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if self.release_agent(agents, id, false).is_err() {
                return;
            }
        }
    }

    /// Sends the commands of an agent, as far as they need not wait. `at_once`: none waits.
    fn release_agent(&self, agents: &mut Agents, id: AgentId, at_once: bool) -> Result<(), Full> {
        let Agents { known, held } = agents;
        let Some(of_agent) = known.get_mut(&id) else { return Ok(()) };
        let mut is_removed = false;
        while let Some(first) = of_agent.held.pop_front() {
            let mut fork = None;
            let command = match first {
                Held::Other(command) => command,
                Held::Fork { command, is_sent } => {
                    fork = Some(is_sent);
                    command
                }
                Held::Behind(is_sent) if is_sent.load(Ordering::Relaxed) => {
                    *held -= 1;
                    continue;
                }
                Held::Behind(is_sent) => {
                    of_agent.held.push_front(Held::Behind(is_sent));
                    break;
                }
                Held::Ask { command, recall, mut wanted, until } => match wanted.try_take() {
                    Some(Ok(found)) => with_notes(command, &recall, &found),
                    Some(Err(_)) => command,
                    // The command behind it ends this reply: waiting for a search would only delay
                    // both.
                    None if at_once => command,
                    None if until.is_none_or(|until| Instant::now() < until) => {
                        of_agent.held.push_front(Held::Ask { command, recall, wanted, until });
                        break;
                    }
                    None => {
                        let late = self.recall.count_late();
                        // A crowd that is asked in one frame would fill the log.
                        if late.is_power_of_two() {
                            tracing::warn!(target: "walla::memory", agent = id.0, late, "asks are sent without their memories: the search takes too long");
                        }
                        command
                    }
                },
            };
            is_removed |= matches!(command, Command::RemoveAgent { .. });
            match self.client.try_send(command) {
                Ok(()) => {}
                Err(TrySendError::Full(command)) => {
                    // In front again: nothing of this agent may overtake it.
                    of_agent.held.push_front(match fork {
                        Some(is_sent) => Held::Fork { command, is_sent },
                        None => Held::Other(command),
                    });
                    return Err(Full);
                }
                Err(TrySendError::Closed(command)) => self.end(command),
            }
            *held -= 1;
            // Only now: the engine must know the copy before the first command of the copy.
            if let Some(is_sent) = fork {
                is_sent.store(true, Ordering::Relaxed);
            }
        }
        if of_agent.is_empty() || (is_removed && of_agent.held.is_empty()) {
            known.remove(&id);
        }
        Ok(())
    }

    /// Ends an ask that the engine cannot receive any more.
    fn end(&self, command: Command) {
        let Command::Ask { agent, reply_id, .. } = command else { return };
        let reason = match self.client.state() {
            EngineState::Failed(error) => error.to_string(),
            _ => "it was stopped".to_owned(),
        };
        let what = ReplyEvent::Failed(ReplyError::EngineGone(reason));
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.push_back(Event { agent, reply_id, what });
    }

    /// Reserves the embedding model's part of the frame budget while that has work.
    fn reserve(&self) {
        let Some(part) = self.recall.options().embed_budget else { return };
        let is_embedding = self.recall.is_embedding();
        if self.is_reserved.swap(is_embedding, Ordering::Relaxed) != is_embedding {
            self.client.set_reserved(if is_embedding { part } else { Duration::ZERO });
        }
    }
}

/// The engine's mailbox is full.
struct Full;

impl EngineClient for RecallClient {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        let mut agents = self.inner.agents();
        let id = follows(&command);
        let is_removal = matches!(command, Command::RemoveAgent { .. });
        if !agents.known.contains_key(&id) {
            return self.inner.client.try_send(command);
        }
        if ends_waits(&command) {
            // The asks go first, without notes: the engine cannot cancel a reply that it does not
            // know.
            if self.inner.release_agent(&mut agents, id, true).is_err() {
                return Err(TrySendError::Full(command));
            }
            if let Some(known) = agents.known.get_mut(&id) {
                known.observe(&command);
            }
            // A copy that was not sent cannot be cancelled, removed or edited yet.
            if !agents.known.get(&id).is_some_and(Known::is_behind) {
                self.inner.client.try_send(command)?;
                if is_removal {
                    agents.known.remove(&id);
                }
                return Ok(());
            }
        }
        let now = self.inner.recall.now().unwrap_or_default();
        let held = agents.held;
        let Some(known) = agents.known.get_mut(&id) else {
            return self.inner.client.try_send(command);
        };
        known.observe(&command);
        let search = known.search(&command, now);
        // A command without a search passes only if no earlier one of its agent waits.
        let passes = search.is_none() && known.held.is_empty();
        if passes {
            agents.copy_texts(&command);
            return self.inner.client.try_send(command);
        }
        if held >= MAX_HELD {
            return Err(TrySendError::Full(command));
        }
        // Otherwise it would be held for an engine that never answers, and its refusal come late.
        if self.inner.client.state().is_over() {
            return Err(TrySendError::Closed(command));
        }
        let next = match search {
            Some((search, recall)) => {
                // `None`: the limit is beyond the clock.
                let until = Instant::now().checked_add(self.inner.recall.options().max_time);
                let wanted =
                    self.inner.recall.wanted_search(search, Some(Arc::clone(&self.inner.waker)));
                Held::Ask { command, recall, wanted, until }
            }
            None if matches!(command, Command::ForkAgent { .. }) => {
                agents.hold_fork(id, command);
                return Ok(());
            }
            None => Held::Other(command),
        };
        known.held.push_back(next);
        agents.held += 1;
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        self.inner.release(&mut self.inner.agents());
        let ended = self.inner.ends.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        ended.or_else(|| self.inner.client.try_recv())
    }

    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        self.inner.release(&mut self.inner.agents());
        // A host without frames reserves it here, all others in `frame`.
        if self.inner.recall.options().frame_time.is_some() {
            self.inner.reserve();
        }
        let before = events.len();
        {
            let mut ends = self.inner.ends.lock().unwrap_or_else(PoisonError::into_inner);
            let count = ends.len().min(most);
            events.extend(ends.drain(..count));
        }
        let received = events.len() - before;
        received + self.inner.client.try_recv_many(most - received, events)
    }

    fn frame(&self) {
        self.inner.release(&mut self.inner.agents());
        self.inner.reserve();
        self.inner.recall.frame();
        self.inner.client.frame();
    }

    fn set_paused(&self, is_paused: bool) {
        self.inner.client.set_paused(is_paused);
    }

    fn set_logged(&self, is_logged: bool) -> bool {
        self.inner.client.set_logged(is_logged)
    }

    fn state(&self) -> EngineState {
        self.inner.client.state()
    }

    fn stats(&self) -> EngineStats {
        self.inner.client.stats()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.client.capabilities()
    }

    fn model(&self) -> Option<&ModelCard> {
        self.inner.client.model()
    }

    fn set_budget(&self, budget: FrameBudget) {
        self.inner.client.set_budget(budget);
    }

    fn budget(&self) -> Option<FrameBudget> {
        self.inner.client.budget()
    }

    fn max_wait(&self) -> Option<Duration> {
        let options = self.inner.recall.options();
        let is_held = self.inner.agents().held > 0;
        // Nothing else wakes a host without frames when the embedding model has ended its work.
        let is_reserved = self.inner.is_reserved.load(Ordering::Relaxed);
        let until = (is_held || (options.frame_time.is_some() && is_reserved))
            .then(|| options.max_time.clamp(Duration::from_millis(1), Duration::from_millis(100)));
        [until, self.inner.client.max_wait()].into_iter().flatten().min()
    }

    fn stop(&self) {
        self.inner.client.stop();
    }

    fn is_ended(&self) -> bool {
        self.inner.client.is_ended()
    }

    fn local(&self) -> Option<&Engine> {
        self.inner.client.local()
    }

    fn register_waker(&self, waker: &Waker) {
        self.inner.waker.register(waker);
        self.inner.client.register_waker(waker);
    }
}

impl std::fmt::Debug for RecallClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecallClient").field("recall", &self.inner.recall).finish_non_exhaustive()
    }
}
