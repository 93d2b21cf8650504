//! State of a router: its engines, their events, and all that depends on time. Commands of the host
//! are in [`commands`](crate::commands), asks and replies in [`replies`](crate::replies).
//!
//! Rules:
//! 1. The router owns the conversation of each agent, and gives an engine one ask of an agent at a
//!    time. A copy in an engine that differs is replaced before the ask.
//! 2. Ids pass through. A reply that has moved to another engine keeps its id; events of the engine
//!    that had it before are ignored ([`Reply::on`](crate::agent::Reply::on)).
//! 3. A reply ends once: `State::end` takes it from its agent.
//! 4. Before its first output, a reply of an agent with a substitute can move, and its `Started` is
//!    held back. So the host sees one beginning and one end.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;
use std::time::Duration;

use walla_runtime::{
    AgentId, EngineClient, EngineState, Event, FrameBudget, ReplyError, ReplyId, ReplyInProgress,
};

use crate::agent::Agent;
use crate::child::{Child, Key, drop_aside, find};
use crate::health::HealthRules;
use crate::shares::Share;

pub(crate) struct State {
    /// Name of the engine of agents that name none.
    pub default: Arc<str>,
    pub rules: HealthRules,
    pub children: Vec<Child>,
    pub agents: HashMap<AgentId, Agent>,
    /// Events for the host.
    pub ready: VecDeque<Event>,
    /// Replies that move when this time has come.
    pub deadlines: BTreeSet<(Duration, AgentId, ReplyId)>,
    pub latest_key: u64,
    /// Child whose events are received first, in turn.
    pub first: usize,
    /// For each device. `None`: each engine has its own.
    pub budget: Option<FrameBudget>,
    /// The budget that was divided last, and the engines that it was divided among.
    pub shared: Option<FrameBudget>,
    pub sharing: Vec<Share>,
    /// Time of each frame that the host's other work on the processor has reserved.
    pub reserved: Duration,
    pub is_paused: bool,
    pub is_stopped: bool,
    pub waker: Option<Waker>,
    /// Engines that have become ready, have failed or were removed, for the host.
    pub changes: Vec<(Arc<str>, EngineState)>,
    /// Substitutes of routes that no engine has the name of, as reported.
    pub unknown_substitutes: BTreeSet<Arc<str>>,
    /// Clients that are not dropped yet.
    pub unloading: Arc<AtomicUsize>,
    pub inbox: Vec<Event>,
}

impl State {
    pub fn new(default: Arc<str>, rules: HealthRules) -> Self {
        Self {
            default,
            rules,
            children: Vec::new(),
            agents: HashMap::new(),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            latest_key: 0,
            first: 0,
            budget: None,
            shared: None,
            sharing: Vec::new(),
            reserved: Duration::ZERO,
            is_paused: false,
            is_stopped: false,
            waker: None,
            changes: Vec::new(),
            unknown_substitutes: BTreeSet::new(),
            unloading: Arc::default(),
            inbox: Vec::new(),
        }
    }

    /// The engine with this name.
    pub fn named(&mut self, name: &str) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| !child.is_retired && *child.name == *name)
    }

    pub fn key_of(&mut self, name: &str) -> Option<Key> {
        self.named(name).map(|child| child.key)
    }

    pub fn child(&mut self, key: Key) -> Option<&mut Child> {
        find(&mut self.children, key)
    }

    /// Adds an engine. Agents that name it move to it with their next ask.
    pub fn add(&mut self, name: Arc<str>, client: Box<dyn EngineClient>, weight: f32) {
        self.latest_key += 1;
        if self.is_paused {
            client.set_paused(true);
        }
        client.set_reserved(self.reserved);
        if let Some(waker) = &self.waker {
            client.register_waker(waker);
            waker.wake_by_ref();
        }
        self.children.push(Child::new(Key(self.latest_key), name, client, weight));
        self.prepare_all();
    }

    /// Retires an engine: its replies in progress go on, and new asks do not reach it.
    pub fn retire(&mut self, name: &str, in_progress: ReplyInProgress) -> bool {
        let Some(child) = self.named(name) else { return false };
        child.is_retired = true;
        let (key, name, successor) = (child.key, Arc::clone(&child.name), child.successor.take());
        self.changes.push((name, EngineState::Stopped));
        if let Some(successor) = successor {
            drop_aside(successor, &self.unloading);
        }
        if in_progress == ReplyInProgress::Cancel {
            self.cancel_on(key);
        }
        self.prepare_all();
        true
    }

    fn cancel_on(&mut self, key: Key) {
        let on = |(&id, agent): (&AgentId, &Agent)| {
            let reply = agent.reply.as_ref().filter(|reply| reply.on == key)?;
            (!agent.is_removed).then_some((id, reply.reply_id))
        };
        let replies: Vec<_> = self.agents.iter().filter_map(on).collect();
        for (id, reply_id) in replies {
            self.cancel(id, reply_id, None);
        }
    }

    /// Adds idle agents to their engines, so that these can prepare them.
    fn prepare_all(&mut self) {
        let ids: Vec<_> = self.agents.keys().copied().collect();
        for id in ids {
            self.prepare(id);
        }
    }

    /// Makes the engine of an idle agent know it, and the others forget it.
    pub fn prepare(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get(&id) else { return };
        if agent.reply.is_some() || agent.is_removed {
            return;
        }
        let route = agent.spec.route.clone();
        let engine = self.key_of(route.engine.as_ref().unwrap_or(&self.default).clone().as_ref());
        let substitute = route.substitute.as_ref().and_then(|name| self.key_of(name));
        let Self { agents, children, .. } = self;
        let Some(agent) = agents.get_mut(&id) else { return };
        agent.leave(id, children, |child| {
            Some(child.key) == engine || Some(child.key) == substitute
        });
        if let Some(child) = children.iter_mut().find(|child| Some(child.key) == engine) {
            agent.sync(id, child);
        }
    }

    /// Receives up to `most` events.
    pub fn receive(&mut self, most: usize, now: Duration, events: &mut Vec<Event>) -> usize {
        self.advance(now);
        let mut inbox = std::mem::take(&mut self.inbox);
        let children = self.children.len();
        for at in 0..children {
            let at = (self.first + at) % children;
            loop {
                // Each engine gets only the room that is left, so that none fills the queue of the
                // host.
                let room = most.saturating_sub(self.ready.len());
                let Some(child) = self.children.get(at).filter(|_| room > 0) else { break };
                let key = child.key;
                if child.client.try_recv_many(room, &mut inbox) == 0 {
                    break;
                }
                inbox.drain(..).for_each(|event| self.event(key, event, now));
            }
        }
        // In turn, so that an engine with many events does not starve the others.
        self.first = self.first.wrapping_add(1) % children.max(1);
        self.inbox = inbox;
        let taken = self.ready.len().min(most);
        events.extend(self.ready.drain(..taken));
        taken
    }

    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Moves replies behind their deadline, ends replies of lost engines, replaces engines by their
    /// successors and drops retired ones.
    pub fn advance(&mut self, now: Duration) {
        while let Some(&(deadline, id, reply_id)) = self.deadlines.first()
            && deadline <= now
            && !self.is_paused
        {
            self.deadlines.pop_first();
            self.overdue(id, reply_id, now);
        }
        let mut lost = Vec::new();
        for child in &mut self.children {
            child.flush();
            let asks = std::mem::take(&mut child.lost);
            lost.extend(asks.into_iter().map(|lost| (lost, child.key, child.reason())));
        }
        for ((id, reply_id), key, reason) in lost {
            let reply = self.agents.get(&id).and_then(|agent| agent.reply.as_ref());
            if reply.is_some_and(|reply| reply.reply_id == reply_id && reply.on == key) {
                self.failed(id, ReplyError::EngineGone(reason), now);
            }
        }
        self.report_changes();
        while !self.is_stopped
            && let Some(at) = self.children.iter().position(Child::can_be_replaced)
        {
            let child = &mut self.children[at];
            child.is_retired = true;
            // It is retired before its successor is added: two engines never have one name.
            let (name, weight) = (Arc::clone(&child.name), child.weight);
            if let Some(successor) = child.successor.take() {
                self.add(name, successor, weight);
            }
            self.report_changes();
        }
        while let Some(at) =
            self.children.iter().position(|child| child.is_retired && child.replies == 0)
        {
            // Its order does not matter: `list` sorts by key.
            let child = self.children.swap_remove(at);
            drop_aside(child.client, &self.unloading);
        }
    }

    /// Collects engines that have become ready or have failed since the last time.
    fn report_changes(&mut self) {
        let Self { children, changes, unloading, .. } = self;
        for child in children.iter_mut().filter(|child| !child.is_retired) {
            let state = child.client.state();
            let reported = match &state {
                EngineState::Loading { .. } => continue,
                EngineState::Ready => &mut child.is_ready_reported,
                EngineState::Failed(_) | EngineState::Stopped => &mut child.is_over_reported,
            };
            if !std::mem::replace(reported, true) {
                changes.push((Arc::clone(&child.name), state));
            }
            let failed = child.successor.take_if(|successor| successor.state().is_over());
            if let Some(failed) = failed {
                changes.push((Arc::clone(&child.name), failed.state()));
                drop_aside(failed, unloading);
            }
        }
    }

    /// A reply has no output in time.
    fn overdue(&mut self, id: AgentId, reply_id: ReplyId, now: Duration) {
        let rules = self.rules;
        let Some(reply) = self.agents.get_mut(&id).and_then(|agent| agent.reply.as_mut()) else {
            return;
        };
        // The deadline may be of an earlier reply, or the output may have come just before it.
        if reply.reply_id != reply_id || reply.has_output {
            return;
        }
        reply.deadline = None;
        let on = reply.on;
        if let Some(child) = self.child(on) {
            child.breaker.failed(reply_id, &rules, now);
        }
        // Without a usable substitute the reply stays on its engine.
        self.move_to_substitute(id, now);
    }

    /// Time of the next deadline.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, ..)| *deadline).filter(|_| !self.is_paused)
    }

    /// Grants the steps of a frame to engines with work.
    pub fn frame(&mut self, now: Duration) {
        self.advance(now);
        self.share_budget();
        for child in &self.children {
            if child.has_work() {
                child.client.frame();
            }
        }
    }

    /// The engine of an agent's reply in progress, or of its latest one.
    pub fn engine_of(&self, agent: AgentId) -> Option<Arc<str>> {
        let key = self.agents.get(&agent)?.latest?;
        let child = self.children.iter().find(|child| child.key == key)?;
        Some(Arc::clone(&child.name))
    }

    /// Number of agents.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }
}
