//! Agents and engines of a router.
//!
//! Rules:
//! 1. The router owns the conversation of each agent, and gives an engine one ask of an agent at a
//!    time. A copy in an engine that differs is replaced before the ask.
//! 2. Ids pass through. A reply that has moved to another engine keeps its id; events of the engine
//!    that had it before are ignored ([`Reply::on`]).
//! 3. A reply ends once: [`State::end`] takes it from its agent.
//! 4. Before its first output, a reply of an agent with a substitute can move, and its `Started` is
//!    held back. So the host sees one beginning and one end.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::Waker;
use std::time::Duration;

use walla_runtime::{
    ASKS_WAITING_MAX, AfterFailure, AgentId, Ask, AskOptions, Command, EngineClient, EngineState,
    Event, FinishReason, FrameBudget, Prompt, ReplyError, ReplyEvent, ReplyId, ReplyInProgress,
    Usage,
};

use crate::agent::{Agent, Reply};
use crate::child::{Child, Key, drop_aside};
use crate::health::{HealthRules, is_of_engine};
use crate::shares::{Use, divide};

pub(crate) struct State {
    /// Name of the engine of agents that name none.
    pub default: Arc<str>,
    pub rules: HealthRules,
    pub children: Vec<Child>,
    agents: HashMap<AgentId, Agent>,
    /// Events for the host.
    ready: VecDeque<Event>,
    /// Replies that move when this time has come.
    deadlines: BTreeSet<(Duration, AgentId, ReplyId)>,
    latest_key: u64,
    /// Child whose events are received first, in turn.
    first: usize,
    /// For each device. `None`: each engine has its own.
    pub budget: Option<FrameBudget>,
    /// The budget that was divided last, and the engines that it was divided among.
    shared: Option<FrameBudget>,
    sharing: Vec<(Key, bool, u32, bool)>,
    pub is_paused: bool,
    pub is_stopped: bool,
    pub waker: Option<Waker>,
    /// Engines that have become ready, have failed or were removed, for the host.
    pub changes: Vec<(Arc<str>, EngineState)>,
    /// Clients that are not dropped yet.
    pub unloading: Arc<AtomicUsize>,
    inbox: Vec<Event>,
}

/// Maximum tokens of a reply for whose text memory is reserved.
const TOKENS_MAX: u32 = 4_096;

/// The engine for an ask, and whether it is the substitute.
struct Choice {
    key: Key,
    is_substitute: bool,
    /// The ask can move to a substitute.
    can_move: bool,
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
            is_paused: false,
            is_stopped: false,
            waker: None,
            changes: Vec::new(),
            unloading: Arc::default(),
            inbox: Vec::new(),
        }
    }

    // Engines.

    /// The engine with this name.
    pub fn named(&mut self, name: &str) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| !child.is_retired && *child.name == *name)
    }

    fn key_of(&mut self, name: &str) -> Option<Key> {
        self.named(name).map(|child| child.key)
    }

    fn child(&mut self, key: Key) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.key == key)
    }

    /// Adds an engine. Agents that name it move to it with their next ask.
    pub fn add(&mut self, name: Arc<str>, client: Box<dyn EngineClient>, weight: f32) {
        self.latest_key += 1;
        if self.is_paused {
            client.set_paused(true);
        }
        if let Some(waker) = &self.waker {
            client.register_waker(waker);
            waker.wake_by_ref();
        }
        self.children.push(Child::new(Key(self.latest_key), name, client, weight));
        self.prepare_all();
    }

    /// Retires an engine: its replies in progress go on, and new asks do not reach it.
    pub fn retire(&mut self, name: &str, in_progress: ReplyInProgress) -> bool {
        let Some(child) =
            self.children.iter_mut().find(|child| !child.is_retired && *child.name == *name)
        else {
            return false;
        };
        child.is_retired = true;
        let key = child.key;
        self.changes.push((Arc::clone(&child.name), EngineState::Stopped));
        if let Some(successor) = child.successor.take() {
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
    fn prepare(&mut self, id: AgentId) {
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

    // Commands.

    /// Whether a command must wait, because the engine that it concerns is behind.
    pub fn is_full(&self, command: &Command) -> bool {
        let Some(agent) = self.agents.get(&agent_of(command)) else {
            return self.children.iter().any(Child::is_full);
        };
        self.children.iter().any(|child| child.is_full() && agent.is_known_to(child.key))
    }

    pub fn command(&mut self, command: Command, now: Duration) {
        let agent = self.agents.get(&agent_of(&command));
        // A removed agent is kept only for the end of its reply in progress.
        if agent.is_some_and(|agent| agent.is_removed) && !matches!(command, Command::Ask { .. }) {
            return;
        }
        match command {
            Command::AddAgent { agent, spec } => {
                self.agents.entry(agent).or_insert_with(|| Agent::new(spec));
                self.prepare(agent);
            }
            Command::ChangeAgent { agent, spec } => self.change(agent, spec),
            Command::SetDetail { agent: id, detail } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.spec.detail = detail;
                for child in &mut self.children {
                    if agent.is_known_to(child.key) {
                        child.send(Command::SetDetail { agent: id, detail });
                    }
                }
            }
            Command::SetConversation { agent: id, turns } => {
                // First, because turns between the asks belong to the old conversation.
                self.cancel_asks(id, |_| true);
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.replace(turns);
                let on = agent.reply.as_ref().map(|reply| reply.on);
                if let Some(child) = self.children.iter_mut().find(|child| Some(child.key) == on) {
                    agent.sync(id, child);
                }
                self.prepare(id);
            }
            Command::AppendTurns { agent: id, turns } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                if agent.reply.is_some() || !agent.asks.is_empty() {
                    agent.asks.append_turns(turns, crate::agent::TURNS_MAX);
                } else {
                    agent.append(id, turns, &mut self.children);
                }
            }
            Command::RemoveAgent { agent: id } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.is_removed = true;
                if let Some(reply) = &mut agent.reply {
                    reply.is_cancelled = true;
                }
                agent.leave(id, &mut self.children, |_| false);
                self.cancel_asks(id, |_| true);
                self.forget_if_done(id);
            }
            Command::Ask { agent: id, reply_id, prompt, options } => {
                let ask = Ask::new(reply_id, prompt, options, micros(now));
                match self.agents.get_mut(&id).filter(|agent| !agent.is_removed) {
                    None => self.fail(id, reply_id, ReplyError::UnknownAgent),
                    Some(agent) if agent.asks.len() >= ASKS_WAITING_MAX => {
                        let waiting = ASKS_WAITING_MAX as u32;
                        self.fail(id, reply_id, ReplyError::Busy { waiting });
                    }
                    Some(agent) => {
                        agent.asks.push(ask);
                        self.begin_asks(id, now);
                    }
                }
            }
            Command::Cancel { agent, reply_id } => self.cancel(agent, reply_id, None),
            Command::CancelHeard { agent, reply_id, heard_bytes } => {
                self.cancel(agent, reply_id, Some(heard_bytes));
            }
        }
    }

    fn change(&mut self, id: AgentId, spec: Box<walla_runtime::AgentSpec>) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let has_moved = agent.spec.route.engine != spec.route.engine;
        agent.change(spec);
        let in_progress = agent.reply.as_ref().map(|reply| (reply.on, reply.reply_id));
        let Some((on, reply_id)) = in_progress else {
            for child in &mut self.children {
                agent.sync_spec(id, child);
            }
            return self.prepare(id);
        };
        let cancels = agent.spec.route.reply_in_progress == ReplyInProgress::Cancel;
        if let Some(child) = self.children.iter_mut().find(|child| child.key == on) {
            agent.sync_spec(id, child);
        }
        if has_moved && cancels {
            self.cancel(id, reply_id, None);
        }
    }

    /// Ends waiting asks as cancelled.
    fn cancel_asks(&mut self, id: AgentId, matches: impl Fn(ReplyId) -> bool) -> bool {
        let Some(agent) = self.agents.get_mut(&id) else { return false };
        let cancelled = agent.asks.cancel(matches);
        for ask in &cancelled {
            self.ready.push_back(Event {
                agent: id,
                reply_id: ask.reply_id,
                what: cancelled_end(),
            });
        }
        self.settle(id);
        !cancelled.is_empty()
    }

    fn cancel(&mut self, id: AgentId, reply_id: ReplyId, heard_bytes: Option<u32>) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if let Some(reply) = agent.reply.as_mut().filter(|reply| reply.reply_id == reply_id) {
            reply.is_cancelled = true;
            reply.heard_bytes = reply.heard_bytes.min(heard_bytes.unwrap_or(u32::MAX));
            // A substitute has only a part of the text.
            let command = match heard_bytes.filter(|_| reply.first.is_none()) {
                Some(heard_bytes) => Command::CancelHeard { agent: id, reply_id, heard_bytes },
                None => Command::Cancel { agent: id, reply_id },
            };
            let on = reply.on;
            if let Some(child) = self.child(on) {
                child.send(command);
            }
            return;
        }
        if !self.cancel_asks(id, |known| known == reply_id)
            && let Some(heard_bytes) = heard_bytes
            && let Some(agent) = self.agents.get_mut(&id)
        {
            agent.shorten(reply_id, heard_bytes);
            self.prepare(id);
        }
    }

    /// Moves appended turns into the conversation once no ask precedes them.
    fn settle(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if agent.reply.is_none() && agent.asks.is_empty() {
            let turns = agent.asks.take_turns_after();
            agent.append(id, turns, &mut self.children);
        }
    }

    fn forget_if_done(&mut self, id: AgentId) {
        if self.agents.get(&id).is_some_and(|agent| agent.is_removed && agent.reply.is_none()) {
            self.agents.remove(&id);
        }
    }

    // Asks.

    fn fail(&mut self, agent: AgentId, reply_id: ReplyId, error: ReplyError) {
        self.ready.push_back(Event { agent, reply_id, what: ReplyEvent::Failed(error) });
    }

    /// Begins the next ask of a free agent; asks that fail at once end here.
    fn begin_asks(&mut self, id: AgentId, now: Duration) {
        while let Some(agent) = self.agents.get_mut(&id)
            && agent.reply.is_none()
            && !agent.is_removed
            && let Some((ask, turns)) = agent.next_ask()
        {
            agent.append(id, turns, &mut self.children);
            match self.choose(id, &ask, now) {
                Ok(choice) => self.begin(id, ask, &choice, now),
                Err(error) => self.fail(id, ask.reply_id, error),
            }
        }
        self.settle(id);
    }

    /// The engine for an ask.
    fn choose(&mut self, id: AgentId, ask: &Ask, now: Duration) -> Result<Choice, ReplyError> {
        let Some(agent) = self.agents.get(&id) else { return Err(ReplyError::UnknownAgent) };
        let route = &agent.spec.route;
        let find = |name: &Arc<str>| {
            self.children.iter().position(|child| !child.is_retired && child.name == *name)
        };
        let name = route.engine.as_ref().unwrap_or(&self.default);
        let engine = find(name);
        let can_do = |at: &usize| {
            let child = &self.children[*at];
            let capabilities = child.client.capabilities();
            !child.is_over() && capabilities.check(&agent.spec, &ask.prompt, &ask.options).is_ok()
        };
        let substitute = route.substitute.as_ref().and_then(find);
        let substitute = substitute.filter(|at| Some(*at) != engine).filter(can_do);
        let (at, is_substitute) = match (engine, substitute) {
            (None, None) => return Err(ReplyError::NoEngine { name: Arc::clone(name) }),
            (Some(engine), None) => (engine, false),
            (None, Some(substitute)) => (substitute, true),
            (Some(engine), Some(substitute)) => {
                let asks =
                    can_do(&engine) && self.children[engine].breaker.admits(ask.reply_id, now);
                if asks { (engine, false) } else { (substitute, true) }
            }
        };
        let key = self.children[at].key;
        if is_substitute && let Some(engine) = engine {
            self.children[engine].moved += 1;
        }
        Ok(Choice { key, is_substitute, can_move: !is_substitute && substitute.is_some() })
    }

    fn begin(&mut self, id: AgentId, ask: Ask, choice: &Choice, now: Duration) {
        let Ask { reply_id, prompt, options, arrived_micros, .. } = ask;
        let Self { agents, children, deadlines, .. } = self;
        let Some(agent) = agents.get_mut(&id) else { return };
        let Some(child) = children.iter_mut().find(|child| child.key == choice.key) else { return };
        agent.sync(id, child);
        let question = match &prompt {
            Prompt::Chat(text) => Some(text.clone()),
            _ => None,
        };
        let limit = agent.spec.route.first_token_max.filter(|_| choice.can_move);
        let deadline = limit.map(|limit| now.saturating_add(limit));
        deadlines.extend(deadline.map(|deadline| (deadline, id, reply_id)));
        agent.latest = Some(choice.key);
        // 6 bytes per token suffice for most languages, so that no token allocates.
        let speech =
            String::with_capacity(6 * agent.spec.reply_tokens_max.min(TOKENS_MAX) as usize);
        agent.reply = Some(Reply {
            reply_id,
            on: choice.key,
            ask: choice.can_move.then(|| (prompt.clone(), options.clone())),
            question,
            is_chat: matches!(prompt, Prompt::Chat(_) | Prompt::Continue),
            begun: None,
            is_started: false,
            has_output: false,
            speech,
            actions: Vec::new(),
            heard_bytes: u32::MAX,
            is_cancelled: false,
            is_outdated: false,
            has_moved: choice.is_substitute,
            arrived: Duration::from_micros(arrived_micros),
            asked: now,
            deadline,
            first: None,
        });
        child.replies += 1;
        child.send(Command::Ask { agent: id, reply_id, prompt, options });
    }

    /// Moves the reply in progress of an agent to its substitute. Returns whether there is one that
    /// can do it.
    fn move_to_substitute(&mut self, id: AgentId, now: Duration) -> bool {
        let Some(agent) = self.agents.get(&id) else { return false };
        let Some(reply) = &agent.reply else { return false };
        let Some((prompt, options)) = &reply.ask else { return false };
        if reply.is_cancelled || agent.is_removed {
            return false;
        }
        let (from, mut options, prompt) = (reply.on, options.clone(), prompt.clone());
        if reply.has_output {
            options.opening = Some(Arc::new(reply.speech.clone()));
        }
        let Some(name) = agent.spec.route.substitute.clone() else { return false };
        let spec = &agent.spec;
        let can_do = |child: &Child| {
            let capabilities = child.client.capabilities();
            !child.is_over() && capabilities.check(spec, &prompt, &options).is_ok()
        };
        let at = self.children.iter().position(|child| {
            !child.is_retired && child.name == name && child.key != from && can_do(child)
        });
        let Some(at) = at else { return false };
        let reply_id = reply.reply_id;
        if let Some(child) = self.child(from) {
            child.breaker.ended(reply_id);
            child.replies -= 1;
            child.moved += 1;
            if !child.is_over() {
                child.send(Command::Cancel { agent: id, reply_id });
            }
        }
        let Some(agent) = self.agents.get_mut(&id) else { return false };
        agent.outdate(from);
        let child = &mut self.children[at];
        agent.sync(id, child);
        agent.latest = Some(child.key);
        if let Some(reply) = &mut agent.reply {
            if let Some(deadline) = reply.deadline.take() {
                self.deadlines.remove(&(deadline, id, reply_id));
            }
            (reply.on, reply.has_moved, reply.ask, reply.begun) = (child.key, true, None, None);
            reply.asked = now;
        }
        child.replies += 1;
        child.send(Command::Ask { agent: id, reply_id, prompt, options });
        true
    }

    // Events.

    /// Applies an event of an engine.
    fn event(&mut self, key: Key, event: Event, now: Duration) {
        let Event { agent: id, reply_id, what } = event;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let is_current = |reply: &&mut Reply| reply.reply_id == reply_id && reply.on == key;
        let Some(reply) = agent.reply.as_mut().filter(is_current) else { return };
        match &what {
            &ReplyEvent::Started { prompt_tokens } => {
                if reply.ask.is_some() && !reply.has_output {
                    reply.begun = Some(prompt_tokens);
                } else if !std::mem::replace(&mut reply.is_started, true) {
                    self.ready.push_back(Event { agent: id, reply_id, what });
                }
                return;
            }
            ReplyEvent::Finished { reason, usage } => {
                let (reason, usage) = (*reason, reply.whole(usage));
                return self.end(id, Ok((reason, usage)), now);
            }
            ReplyEvent::Failed(error) => return self.failed(id, error.clone(), now),
            ReplyEvent::Delta { text, .. } => reply.speech.push_str(text),
            ReplyEvent::Call(call) => reply.actions.push(call.text()),
            ReplyEvent::Reasoning { .. } | ReplyEvent::CallRefused(_) | ReplyEvent::Token(_) => {}
        }
        if !std::mem::replace(&mut reply.has_output, true) {
            if let Some(deadline) = reply.deadline.take() {
                self.deadlines.remove(&(deadline, id, reply_id));
            }
            let continues = agent.spec.route.after_failure == AfterFailure::Continue;
            let is_constrained = |options: &AskOptions| {
                options.constraint.is_some() || agent.spec.constraint.is_some()
            };
            // The text is continued only if it is speech alone.
            let can_continue = reply.is_chat
                && continues
                && reply.ask.as_ref().is_some_and(|(_, options)| !is_constrained(options));
            if !can_continue {
                reply.ask = None;
            }
            reply.publish_begin(id, &mut self.ready);
            let rules = self.rules;
            if let Some(child) = self.children.iter_mut().find(|child| child.key == key) {
                child.breaker.succeeded(reply_id, &rules);
            }
        }
        if matches!(what, ReplyEvent::Call(_) | ReplyEvent::CallRefused(_)) {
            reply.ask = None;
        }
        self.ready.push_back(Event { agent: id, reply_id, what });
    }

    /// The engine of a reply has failed.
    fn failed(&mut self, id: AgentId, error: ReplyError, now: Duration) {
        let Some(reply) = self.agents.get_mut(&id).and_then(|agent| agent.reply.as_mut()) else {
            return;
        };
        let (reply_id, on) = (reply.reply_id, reply.on);
        if reply.has_output && reply.first.is_none() {
            let micros = micros(now.saturating_sub(reply.arrived));
            reply.first = Some(Usage { first_token_micros: micros, ..Usage::default() });
        }
        let rules = self.rules;
        if is_of_engine(&error)
            && let Some(child) = self.child(on)
        {
            child.breaker.failed(reply_id, &rules, now);
        }
        if !self.move_to_substitute(id, now) {
            self.end(id, Err(error), now);
        }
    }

    /// Ends the reply in progress of an agent, and begins its next ask.
    fn end(&mut self, id: AgentId, end: Result<(FinishReason, Usage), ReplyError>, now: Duration) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if let Some(reply) = &mut agent.reply {
            reply.publish_begin(id, &mut self.ready);
        }
        let Some(reply) =
            agent.end_reply(end.as_ref().ok().map(|(reason, usage)| (*reason, usage)))
        else {
            return;
        };
        let reply_id = reply.reply_id;
        if let Some(deadline) = reply.deadline {
            self.deadlines.remove(&(deadline, id, reply_id));
        }
        let rules = self.rules;
        if let Some(child) = self.child(reply.on) {
            child.replies -= 1;
            let is_answer = matches!(&end, Ok((reason, _)) if *reason != FinishReason::Cancelled);
            if is_answer && !reply.has_output {
                child.breaker.succeeded(reply_id, &rules);
            }
            child.breaker.ended(reply_id);
        }
        let what = match end {
            Ok((reason, usage)) => ReplyEvent::Finished { reason, usage },
            Err(error) => ReplyEvent::Failed(error),
        };
        self.ready.push_back(Event { agent: id, reply_id, what });
        self.forget_if_done(id);
        self.begin_asks(id, now);
        self.prepare(id);
    }

    /// Receives up to `most` events.
    pub fn receive(&mut self, most: usize, now: Duration, events: &mut Vec<Event>) -> usize {
        self.advance(now);
        let mut inbox = std::mem::take(&mut self.inbox);
        let children = self.children.len();
        for at in 0..children {
            let at = (self.first + at) % children;
            loop {
                let room = most.saturating_sub(self.ready.len());
                let Some(child) = self.children.get(at).filter(|_| room > 0) else { break };
                let key = child.key;
                if child.client.try_recv_many(room, &mut inbox) == 0 {
                    break;
                }
                inbox.drain(..).for_each(|event| self.event(key, event, now));
            }
        }
        self.first = self.first.wrapping_add(1) % children.max(1);
        self.inbox = inbox;
        let taken = self.ready.len().min(most);
        events.extend(self.ready.drain(..taken));
        taken
    }

    pub fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    // Time.

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
        while let Some(at) = self.children.iter().position(Child::can_be_replaced) {
            let child = &mut self.children[at];
            child.is_retired = true;
            let (name, weight) = (Arc::clone(&child.name), child.weight);
            if let Some(successor) = child.successor.take() {
                self.add(name, successor, weight);
            }
            self.report_changes();
        }
        while let Some(at) =
            self.children.iter().position(|child| child.is_retired && child.replies == 0)
        {
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
        if reply.reply_id != reply_id || reply.has_output {
            return;
        }
        reply.deadline = None;
        let on = reply.on;
        if let Some(child) = self.child(on) {
            child.breaker.failed(reply_id, &rules, now);
        }
        // Without a usable substitute the reply goes on where it is.
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

    /// Divides the budget among engines on the same device, if it has changed, or the engines with
    /// work have.
    pub fn share_budget(&mut self) {
        let Some(total) = self.budget else { return };
        let works = self.children.iter_mut().map(|child| {
            (child.key, child.find_device().is_some(), child.weight.to_bits(), child.has_work())
        });
        if self.shared == Some(total) && works.eq(self.sharing.iter().copied()) {
            return;
        }
        self.shared = Some(total);
        self.sharing.clear();
        for child in &mut self.children {
            let is_known = child.find_device().is_some();
            self.sharing.push((child.key, is_known, child.weight.to_bits(), child.has_work()));
        }
        for at in 0..self.children.len() {
            let Some((name, is_gpu)) = &self.children[at].device else { continue };
            let is_same = |other: &usize| {
                let device = &self.children[*other].device;
                device.as_ref().is_some_and(|(other, _)| other == name)
            };
            if (0..at).any(|earlier| is_same(&earlier)) {
                continue; // divided with the first engine of the device
            }
            let same: Vec<usize> = (at..self.children.len()).filter(is_same).collect();
            let budgets: Vec<FrameBudget> = match total.of_device(*is_gpu) {
                None => vec![FrameBudget::Unlimited; same.len()],
                Some(_) if same.len() == 1 => vec![total],
                Some(time) => {
                    let uses: Vec<Use> = same
                        .iter()
                        .map(|at| &self.children[*at])
                        .map(|child| Use { weight: child.weight, has_work: child.has_work() })
                        .collect();
                    divide(time, &uses).into_iter().map(FrameBudget::Time).collect()
                }
            };
            for (at, budget) in same.into_iter().zip(budgets) {
                let child = &mut self.children[at];
                if child.budget.replace(budget) != Some(budget) {
                    child.client.set_budget(budget);
                }
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

impl Reply {
    /// Publishes the begin that was held back.
    fn publish_begin(&mut self, agent: AgentId, ready: &mut VecDeque<Event>) {
        if let Some(prompt_tokens) = self.begun.take()
            && !std::mem::replace(&mut self.is_started, true)
        {
            let what = ReplyEvent::Started { prompt_tokens };
            ready.push_back(Event { agent, reply_id: self.reply_id, what });
        }
    }

    /// Counts of the whole reply, from those of its last engine: with the time that passed before
    /// it was asked.
    fn whole(&self, usage: &Usage) -> Usage {
        let mut usage = *usage;
        let before = micros(self.asked.saturating_sub(self.arrived));
        usage.total_micros = usage.total_micros.saturating_add(before);
        match &self.first {
            Some(first) => {
                usage.first_token_micros = first.first_token_micros;
                usage.first_token = first.first_token;
            }
            None if usage.first_token_micros > 0 => {
                usage.first_token_micros = usage.first_token_micros.saturating_add(before);
                let parts = &mut usage.first_token;
                parts.waiting_micros = parts.waiting_micros.saturating_add(before);
            }
            None => {}
        }
        usage
    }
}

fn agent_of(command: &Command) -> AgentId {
    match command {
        Command::AddAgent { agent, .. }
        | Command::ChangeAgent { agent, .. }
        | Command::SetDetail { agent, .. }
        | Command::SetConversation { agent, .. }
        | Command::AppendTurns { agent, .. }
        | Command::RemoveAgent { agent }
        | Command::Ask { agent, .. }
        | Command::Cancel { agent, .. }
        | Command::CancelHeard { agent, .. } => *agent,
    }
}

fn cancelled_end() -> ReplyEvent {
    ReplyEvent::Finished { reason: FinishReason::Cancelled, usage: Usage::default() }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
