//! The router, and the handle that manages its engines.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use walla_runtime::{
    AgentId, Capabilities, Command, Engine, EngineClient, EngineState, EngineStats, Event,
    FrameBudget, ReplyInProgress, TrySendError,
};

use crate::child::{Child, drop_aside};
use crate::health::{Health, HealthRules};
use crate::state::State;

/// Settings of a [`Router`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouterOptions {
    /// Name of the engine for agents whose route names none.
    pub default: Arc<str>,
    /// When an engine is [unavailable](Health).
    pub health: HealthRules,
}

impl RouterOptions {
    /// With this name of the default engine.
    #[must_use]
    pub fn new(default: impl Into<Arc<str>>) -> Self {
        Self { default: default.into(), health: HealthRules::default() }
    }
}

impl Default for RouterOptions {
    /// The default engine is named `default`.
    fn default() -> Self {
        Self::new("default")
    }
}

/// An engine whose agents are on several named engines: see the [module](crate).
///
/// It is for one host. Its lock is held for the time of one call, by the host and by the holders of
/// its [`Engines`]; no call waits for an engine.
pub struct Router {
    engines: Engines,
}

/// The engines of a [`Router`]. Clones refer to the same router. When the router is dropped, its
/// engines are gone, and [`Engines::add`] fails with [`EnginesError::Stopped`].
#[derive(Clone)]
pub struct Engines {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<Locked>,
    begin: Instant,
}

struct Locked {
    state: State,
    /// Sum of all pauses that have ended.
    paused: Duration,
    pause_begin: Option<Instant>,
}

/// Why an engine was not added, replaced or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnginesError {
    /// The name is in use. [`Engines::replace`] replaces an engine.
    #[error("an engine has the name {0:?} already")]
    Exists(Arc<str>),
    /// No engine has this name.
    #[error("no engine has the name {0:?}")]
    Unknown(Arc<str>),
    /// A name must not be empty.
    #[error("the name of an engine is empty")]
    NoName,
    /// The router was stopped.
    #[error("the engines were stopped")]
    Stopped,
}

/// The state of one engine of a router.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it is the engine of agents that name none.
    pub is_default: bool,
    /// Whether it can answer.
    pub state: EngineState,
    /// Whether asks of agents with a substitute are sent to it.
    pub health: Health,
    /// Its counters.
    pub stats: EngineStats,
    /// Its features.
    pub capabilities: Capabilities,
    /// Replies in progress of this app.
    pub replies: u32,
    /// Its part of a shared [budget](Engines::set_budget).
    pub weight: f32,
    /// Asks of this engine that a substitute has taken over, since it was added.
    pub moved: u64,
    /// The engine that takes its place when it is ready ([`Engines::replace`]). After a failure it
    /// is absent, and the old engine stays.
    pub successor: Option<EngineState>,
}

impl Router {
    /// A router without engines: add some with [`engines`](Self::engines). Until then each ask
    /// fails with [`ReplyError::NoEngine`](walla_runtime::ReplyError::NoEngine).
    #[must_use]
    pub fn new(options: RouterOptions) -> Self {
        let state = State::new(options.default, options.health);
        let locked = Locked { state, paused: Duration::ZERO, pause_begin: None };
        let shared = Shared { state: Mutex::new(locked), begin: Instant::now() };
        Self { engines: Engines { shared: Arc::new(shared) } }
    }

    /// The engines.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.engines
    }
}

impl Engines {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the time since the begin, without pauses.
    fn lock_now(&self) -> (MutexGuard<'_, Locked>, Duration) {
        let locked = self.lock();
        let end = locked.pause_begin.unwrap_or_else(Instant::now);
        let now = end.saturating_duration_since(self.shared.begin).saturating_sub(locked.paused);
        (locked, now)
    }

    /// Adds an engine. It may still be loading: asks wait for it. An engine that failed to load
    /// stays in the list with its error, and asks of agents that name it fail or go to their
    /// substitute.
    ///
    /// # Errors
    /// The name is in use or empty, or the router was stopped. The client is dropped.
    pub fn add(
        &self,
        name: impl Into<Arc<str>>,
        client: Box<dyn EngineClient>,
    ) -> Result<(), EnginesError> {
        let name = name.into();
        let mut locked = self.lock();
        let state = &mut locked.state;
        let error = match () {
            () if state.is_stopped => EnginesError::Stopped,
            () if name.is_empty() => EnginesError::NoName,
            () if state.named(&name).is_some() => EnginesError::Exists(name),
            () => {
                state.add(name, client, 1.0);
                return Ok(());
            }
        };
        drop_aside(client, &state.unloading);
        Err(error)
    }

    /// Replaces an engine. The old one answers until the new one is ready, and finishes its replies
    /// in progress. If the new one fails to load, the old one stays. Both are in memory for that
    /// time; to avoid that, [remove](Self::remove) the old one first.
    ///
    /// # Errors
    /// No engine has this name, or the router was stopped. The client is dropped.
    pub fn replace(&self, name: &str, client: Box<dyn EngineClient>) -> Result<(), EnginesError> {
        let mut locked = self.lock();
        let state = &mut locked.state;
        let error = if state.is_stopped {
            EnginesError::Stopped
        } else if let Some(child) = state.named(name) {
            let earlier = child.successor.replace(client);
            if let Some(earlier) = earlier {
                drop_aside(earlier, &state.unloading);
            }
            return Ok(());
        } else {
            EnginesError::Unknown(name.into())
        };
        drop_aside(client, &state.unloading);
        Err(error)
    }

    /// Removes an engine. Its replies in progress go on or are cancelled; later asks of its agents
    /// fail with [`ReplyError::NoEngine`](walla_runtime::ReplyError::NoEngine), or go to their
    /// substitute. Conversations stay. The client is dropped on a separate thread, so that no frame
    /// waits for the engine's end; [`unloading`](Self::unloading) counts such clients.
    ///
    /// # Errors
    /// No engine has this name.
    pub fn remove(&self, name: &str, in_progress: ReplyInProgress) -> Result<(), EnginesError> {
        let (mut locked, now) = self.lock_now();
        if !locked.state.retire(name, in_progress) {
            return Err(EnginesError::Unknown(name.into()));
        }
        locked.state.advance(now);
        Ok(())
    }

    /// Changes the weight of an engine among those on the same device. Default: 1. Negative numbers
    /// and NaN count as 0: such an engine runs only while the others have no work.
    ///
    /// # Errors
    /// No engine has this name.
    pub fn set_weight(&self, name: &str, weight: f32) -> Result<(), EnginesError> {
        let mut locked = self.lock();
        let child = locked.state.named(name).ok_or_else(|| EnginesError::Unknown(name.into()))?;
        child.weight = weight.max(0.0);
        Ok(())
    }

    /// Sets the frame budget of each device. The local engines on one device that have work divide
    /// it by weight. Without a budget, each engine keeps its own.
    pub fn set_budget(&self, budget: impl Into<FrameBudget>) {
        let mut locked = self.lock();
        locked.state.budget = Some(budget.into());
        locked.state.share_budget();
    }

    /// The engines, in the order of their addition.
    #[must_use]
    pub fn list(&self) -> Vec<EngineStatus> {
        let mut locked = self.lock();
        let state = &mut locked.state;
        let mut children: Vec<_> =
            state.children.iter().filter(|child| !child.is_retired).collect();
        children.sort_by_key(|child| child.key);
        let status = |child: &Child| EngineStatus {
            name: Arc::clone(&child.name),
            is_default: child.name == state.default,
            state: child.client.state(),
            health: child.breaker.health(),
            stats: child.client.stats(),
            capabilities: child.client.capabilities(),
            replies: child.replies,
            weight: child.weight,
            moved: child.moved,
            successor: child.successor.as_ref().map(|successor| successor.state()),
        };
        children.into_iter().map(status).collect()
    }

    /// The engine with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<EngineStatus> {
        self.list().into_iter().find(|status| *status.name == *name)
    }

    /// Engines that have become ready, have failed ([`EngineState::Failed`]) or were removed
    /// ([`EngineState::Stopped`]) since the last call, in order. A successor that fails is reported
    /// under the name of its engine, which stays. Replacing an engine reports that it is ready.
    /// Changes are found when the host receives events or grants a frame.
    #[must_use]
    pub fn take_changes(&self) -> Vec<(Arc<str>, EngineState)> {
        std::mem::take(&mut self.lock().state.changes)
    }

    /// The local engine with this name. `None`: no engine has this name, or it is of another kind.
    /// A handle keeps the engine and its memory.
    #[must_use]
    pub fn local(&self, name: &str) -> Option<Engine> {
        self.lock().state.named(name)?.client.local().cloned()
    }

    /// Name of the engine of agents that name none. There may be no engine with this name.
    #[must_use]
    pub fn default_name(&self) -> Arc<str> {
        Arc::clone(&self.lock().state.default)
    }

    /// Name of the engine that an agent's reply in progress is on, otherwise of its latest one.
    /// `None`: it has not been asked, or that engine is gone.
    #[must_use]
    pub fn engine_of(&self, agent: AgentId) -> Option<Arc<str>> {
        self.lock().state.engine_of(agent)
    }

    /// Clients of removed and replaced engines that are not dropped yet. At 0 their memory is
    /// released, if no other owner shares them.
    #[must_use]
    pub fn unloading(&self) -> usize {
        self.lock().state.unloading.load(Ordering::Acquire)
    }
}

impl EngineClient for Router {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        let (mut locked, now) = self.engines.lock_now();
        if locked.state.is_stopped {
            return Err(TrySendError::Closed(command));
        }
        if locked.state.is_full(&command) {
            locked.state.advance(now);
            if locked.state.is_full(&command) {
                return Err(TrySendError::Full(command));
            }
        }
        locked.state.command(command, now);
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        let mut events = Vec::with_capacity(1);
        self.try_recv_many(1, &mut events);
        events.pop()
    }

    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        let (mut locked, now) = self.engines.lock_now();
        locked.state.receive(most, now, events)
    }

    fn frame(&self) {
        let (mut locked, now) = self.engines.lock_now();
        locked.state.frame(now);
    }

    fn set_paused(&self, is_paused: bool) {
        let mut locked = self.engines.lock();
        if locked.state.is_paused == is_paused {
            return;
        }
        locked.state.is_paused = is_paused;
        if is_paused {
            locked.pause_begin = Some(Instant::now());
        } else if let Some(begin) = locked.pause_begin.take() {
            locked.paused += begin.elapsed();
        }
        for child in &locked.state.children {
            child.client.set_paused(is_paused);
        }
    }

    /// `Ready` if the default engine is ready, or if it is missing or has failed and another engine
    /// is ready. `Stopped` after [`stop`](EngineClient::stop), otherwise `Loading`. Never `Failed`,
    /// because engines can be added at any time: [`Engines::list`] and each ask that needs an
    /// engine report its failure.
    fn state(&self) -> EngineState {
        let locked = self.engines.lock();
        let state = &locked.state;
        if state.is_stopped {
            return EngineState::Stopped;
        }
        let (mut is_any_ready, mut fraction) = (false, 0.0);
        for child in state.children.iter().filter(|child| !child.is_retired) {
            match child.client.state() {
                EngineState::Ready if child.name == state.default => return EngineState::Ready,
                EngineState::Ready => is_any_ready = true,
                EngineState::Loading { fraction } if child.name == state.default => {
                    return EngineState::Loading { fraction };
                }
                EngineState::Loading { fraction: loaded } => fraction = loaded.max(fraction),
                EngineState::Failed(_) | EngineState::Stopped => {}
            }
        }
        if is_any_ready { EngineState::Ready } else { EngineState::Loading { fraction } }
    }

    /// Sums over all engines; budget and latest step of the default engine.
    fn stats(&self) -> EngineStats {
        let mut locked = self.engines.lock();
        let state = &mut locked.state;
        let default = Arc::clone(&state.default);
        let mut sum = state.named(&default).map(|child| child.client.stats()).unwrap_or_default();
        let others =
            state.children.iter().filter(|child| child.is_retired || child.name != default);
        for stats in others.map(|child| child.client.stats()) {
            add(&mut sum, &stats);
        }
        sum.agents = u32::try_from(state.agents()).unwrap_or(u32::MAX);
        sum
    }

    fn capabilities(&self) -> Capabilities {
        let mut locked = self.engines.lock();
        let default = Arc::clone(&locked.state.default);
        let default = locked.state.named(&default);
        default.map_or(Capabilities::CHAT, |child| child.client.capabilities())
    }

    fn set_budget(&self, budget: FrameBudget) {
        self.engines.set_budget(budget);
    }

    /// From each engine on the processor.
    fn set_reserved(&self, time: Duration) {
        let mut locked = self.engines.lock();
        locked.state.reserved = time;
        for child in &locked.state.children {
            child.client.set_reserved(time);
        }
    }

    /// That of all engines, otherwise that of the default engine.
    fn budget(&self) -> Option<FrameBudget> {
        let mut locked = self.engines.lock();
        let default = Arc::clone(&locked.state.default);
        let shared = locked.state.budget;
        shared.or_else(|| locked.state.named(&default)?.client.budget())
    }

    fn max_wait(&self) -> Option<Duration> {
        let (locked, now) = self.engines.lock_now();
        let state = &locked.state;
        if state.has_events() {
            return Some(Duration::ZERO);
        }
        let deadline = state.next_deadline().map(|deadline| deadline.saturating_sub(now));
        let of_children = state.children.iter().filter_map(|child| child.client.max_wait()).min();
        // A successor does not wake the host when it is ready.
        let is_replacing = state.children.iter().any(|child| child.successor.is_some());
        let of_successor = is_replacing.then_some(SUCCESSOR_POLL);
        deadline.into_iter().chain(of_children).chain(of_successor).min()
    }

    fn stop(&self) {
        let mut locked = self.engines.lock();
        locked.state.is_stopped = true;
        for child in &locked.state.children {
            child.client.stop();
            if let Some(successor) = &child.successor {
                successor.stop();
            }
        }
    }

    fn is_ended(&self) -> bool {
        let locked = self.engines.lock();
        let state = &locked.state;
        let is_over = state.is_stopped && state.unloading.load(Ordering::Acquire) == 0;
        let is_ended = |child: &Child| {
            let successor = child.successor.as_ref();
            child.client.is_ended() && successor.is_none_or(|successor| successor.is_ended())
        };
        is_over && state.children.iter().all(is_ended)
    }

    fn register_waker(&self, waker: &Waker) {
        let mut locked = self.engines.lock();
        for child in &locked.state.children {
            child.client.register_waker(waker);
        }
        if locked.state.has_events() {
            waker.wake_by_ref();
        }
        locked.state.waker = Some(waker.clone());
    }
}

/// Polling interval of an engine that is to replace another one.
const SUCCESSOR_POLL: Duration = Duration::from_millis(20);

/// Adds the counters of another engine.
fn add(sum: &mut EngineStats, other: &EngineStats) {
    let EngineStats { tokens, prefill_tokens, background_tokens, steps, steps_done, .. } = other;
    sum.tokens += tokens;
    sum.prefill_tokens += prefill_tokens;
    sum.background_tokens += background_tokens;
    sum.steps += steps;
    sum.steps_done += steps_done;
    sum.background_agents += other.background_agents;
    sum.device_time += other.device_time;
    sum.agents_active += other.agents_active;
    sum.agents_parked += other.agents_parked;
    sum.agents_waiting += other.agents_waiting;
    sum.asks_waiting += other.asks_waiting;
    sum.pages_used += other.pages_used;
    sum.pages += other.pages;
    sum.kv_bytes += other.kv_bytes;
    sum.pages_refused += other.pages_refused;
    sum.snapshots_used += other.snapshots_used;
    sum.snapshots += other.snapshots;
    sum.queue_full += other.queue_full;
    sum.driver_calls += other.driver_calls;
    sum.graph_fallbacks += other.graph_fallbacks;
    sum.masks += other.masks;
    sum.masks_late += other.masks_late;
    sum.mask_time += other.mask_time;
    sum.grammars += other.grammars;
    sum.grammar_bytes += other.grammar_bytes;
}

/// Drops the clients, also if a holder of [`Engines`] remains.
impl Drop for Router {
    fn drop(&mut self) {
        let mut locked = self.engines.lock();
        locked.state.is_stopped = true;
        let children = std::mem::take(&mut locked.state.children);
        drop(locked);
        drop(children);
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("engines", &self.engines).finish_non_exhaustive()
    }
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.list().into_iter().map(|status| status.name).collect();
        f.debug_tuple("Engines").field(&names).finish()
    }
}
