//! The work of a session in the engine's order.
//!
//! The recording of a local engine shows when the engine applied each command and when it began and
//! ended each reply. From that follows what each reply depends on, however the frames, threads and
//! batches were. Without these details the order of the host is used.
//!
//! | step | repeated by |
//! |---|---|
//! | begin of a reply | the ask, which is sent now |
//! | start and end of a reply | a wait for it |
//! | cancel of a reply in progress | the [token](walla_runtime::CancelAfter) after which it ends |
//! | turns that were appended while asks were open | the turns, behind these asks, as the engine does |
//! | any other command | the command |
//!
//! Asks that never began (cancelled or refused while they waited) have no effect and are left out.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use walla_runtime::{
    AgentId, CancelAfter, Command, Event, FinishReason, Logged, ReplyError, ReplyEvent, ReplyId,
};

use crate::recording::{Record, Recording};
use crate::session::{RecordedAsk, Session};

/// A step of a replay.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends the ask of this index, and waits until the reply begins.
    Begin(usize),
    /// Waits until the reply is started or has ended.
    Started(usize),
    /// Waits until the reply has ended.
    End(usize),
    /// Sends a command.
    Command(Box<Command>),
}

/// A step and the agents that it concerns. It follows all earlier steps of both.
#[derive(Clone, Debug)]
pub(crate) struct StepOf {
    pub step: Step,
    pub agent: AgentId,
    pub source: Option<AgentId>,
}

impl StepOf {
    pub fn agents(&self) -> impl Iterator<Item = AgentId> + use<> {
        [self.agent].into_iter().chain(self.source)
    }
}

/// How the end of a reply is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The engine decides, and must decide the same.
    Natural,
    /// Time decided (a cancel, a deadline, a failure): the reply is cancelled at the recorded token,
    /// and compared up to it.
    Cut(CancelAfter),
    /// The recording has no end: the reply is cancelled when it has all that is recorded. Nothing
    /// depends on its end.
    Open,
}

/// All steps of a session.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub steps: Vec<StepOf>,
    /// Indices of steps for each agent. A step that concerns two agents is in both queues.
    pub queues: BTreeMap<AgentId, VecDeque<usize>>,
    /// For each ask; `None`: it never began.
    pub endings: Vec<Option<Ending>>,
}

impl Timeline {
    pub fn new(recording: &Recording, session: &Session) -> Self {
        Builder::new(session, recording.has_tokens()).build(recording)
    }
}

struct Builder<'a> {
    session: &'a Session,
    /// The recording has the engine's order of work.
    is_logged: bool,
    timeline: Timeline,
    places: HashMap<ReplyId, usize>,
    /// Commands that were sent and not yet applied.
    sent: VecDeque<(Command, Vec<usize>)>,
    /// Asks of each agent that were sent and have not ended.
    open: HashMap<AgentId, Vec<usize>>,
    /// Turns that follow asks.
    deferred: HashMap<AgentId, VecDeque<(Command, Vec<usize>)>>,
    begun: HashSet<usize>,
    ended: HashSet<usize>,
    /// Cancelled replies whose cancel is known.
    claimed: HashSet<usize>,
    heard_bytes: HashMap<usize, u32>,
}

impl<'a> Builder<'a> {
    fn new(session: &'a Session, is_logged: bool) -> Self {
        let places = session.asks.iter().enumerate().map(|(at, ask)| (ask.reply_id, at));
        Self {
            session,
            is_logged,
            timeline: Timeline::default(),
            places: places.collect(),
            sent: VecDeque::new(),
            open: HashMap::new(),
            deferred: HashMap::new(),
            begun: HashSet::new(),
            ended: HashSet::new(),
            claimed: HashSet::new(),
            heard_bytes: HashMap::new(),
        }
    }

    fn build(mut self, recording: &Recording) -> Timeline {
        for entry in &recording.entries {
            match &entry.record {
                Record::Command(command) => self.command(command),
                Record::Event(event) => self.event(event),
                Record::Engine(_) | Record::Paused(_) => {}
            }
        }
        let open: Vec<_> = self.begun.difference(&self.ended).copied().collect();
        for at in open {
            if let Some(ask) = self.session.asks.get(at) {
                self.push(ask.agent, Step::End(at));
            }
        }
        let Self { session, begun, heard_bytes, mut timeline, .. } = self;
        let endings = session.asks.iter().enumerate().map(|(at, ask)| {
            let heard_bytes = heard_bytes.get(&at).copied().unwrap_or(u32::MAX);
            begun.contains(&at).then(|| ending(ask, heard_bytes))
        });
        timeline.endings = endings.collect();
        timeline
    }

    fn command(&mut self, command: &Command) {
        let agent = command.agent();
        if let Command::Ask { reply_id, .. } = command {
            if let Some(&at) = self.places.get(reply_id) {
                self.open.entry(agent).or_default().push(at);
            }
            return;
        }
        let open = self.open.get(&agent).cloned().unwrap_or_default();
        if self.is_logged {
            self.sent.push_back((command.clone(), open));
        } else {
            self.apply(command.clone(), open);
        }
    }

    fn event(&mut self, Event { reply_id, what, .. }: &Event) {
        if let ReplyEvent::Logged(Logged::Applied) = what {
            if let Some((command, open)) = self.sent.pop_front() {
                self.apply(command, open);
            }
            return;
        }
        let Some(&at) = self.places.get(reply_id) else { return };
        let Some(agent) = self.session.asks.get(at).map(|ask| ask.agent) else { return };
        match what {
            ReplyEvent::Logged(Logged::Begun) => self.begin(agent, at),
            ReplyEvent::Started { .. } => {
                if !self.is_logged {
                    self.begin(agent, at);
                }
                self.push(agent, Step::Started(at));
            }
            what if what.is_terminal() => self.end(agent, at),
            _ => {}
        }
    }

    fn begin(&mut self, agent: AgentId, at: usize) {
        if self.begun.insert(at) {
            self.push(agent, Step::Begin(at));
        }
    }

    fn end(&mut self, agent: AgentId, at: usize) {
        if !self.ended.insert(at) {
            return;
        }
        if self.begun.contains(&at) {
            self.push(agent, Step::End(at));
        }
        if let Some(open) = self.open.get_mut(&agent) {
            open.retain(|open| *open != at);
        }
        // Turns are appended when the last ask before them has ended.
        loop {
            let Some(deferred) = self.deferred.get_mut(&agent) else { return };
            let is_due = |(_, open): &(Command, Vec<usize>)| {
                open.iter().all(|open| self.ended.contains(open))
            };
            if !deferred.front().is_some_and(is_due) {
                return;
            }
            let Some((command, _)) = deferred.pop_front() else { return };
            self.push(agent, Step::Command(Box::new(command)));
        }
    }

    /// A command takes effect. `open`: asks of its agent that were sent before it and had not
    /// ended for the host.
    fn apply(&mut self, command: Command, open: Vec<usize>) {
        let agent = command.agent();
        match &command {
            Command::Cancel { reply_id, .. } => {
                self.claim(*reply_id, u32::MAX);
            }
            Command::CancelHeard { reply_id, heard_bytes, .. } => {
                if !self.claim(*reply_id, *heard_bytes) {
                    self.push(agent, Step::Command(Box::new(command)));
                }
            }
            Command::AppendTurns { .. } => {
                let open: Vec<_> =
                    open.into_iter().filter(|at| !self.ended.contains(at)).collect();
                if open.is_empty() {
                    self.push(agent, Step::Command(Box::new(command)));
                } else {
                    self.deferred.entry(agent).or_default().push_back((command, open));
                }
            }
            Command::EditConversation { edit, .. } => {
                let source = edit.source();
                self.claim_all(agent);
                self.push_of(agent, source, Step::Command(Box::new(command)));
            }
            Command::SetConversation { .. } | Command::RemoveAgent { .. } => {
                self.claim_all(agent);
                self.push(agent, Step::Command(Box::new(command)));
            }
            Command::ForkAgent { source, .. } => {
                let source = *source;
                self.push_of(agent, Some(source), Step::Command(Box::new(command)));
            }
            _ => self.push(agent, Step::Command(Box::new(command))),
        }
    }

    /// Whether a cancel ended this reply while it was in progress, or while it waited. Otherwise it
    /// had ended before.
    fn claim(&mut self, reply_id: ReplyId, heard_bytes: u32) -> bool {
        let Some(&at) = self.places.get(&reply_id) else { return false };
        let Some(ask) = self.session.asks.get(at) else { return false };
        // The engine ends the reply before it reports the command.
        let is_in_progress = if self.is_logged {
            matches!(ask.reply.end, Some(Ok((FinishReason::Cancelled, _))))
        } else {
            !self.ended.contains(&at)
        };
        let is_first = is_in_progress && self.claimed.insert(at);
        if is_first {
            self.heard_bytes.insert(at, heard_bytes);
        }
        is_first
    }

    /// A command cancelled all replies of an agent.
    fn claim_all(&mut self, agent: AgentId) {
        let of_agent = self.session.agents.iter().find(|known| known.agent == agent);
        let asks = of_agent.map_or(&[][..], |agent| &agent.asks);
        self.claimed.extend(asks.iter().filter(|at| self.ended.contains(at)));
        if !self.is_logged {
            let open = self.open.get(&agent).cloned().unwrap_or_default();
            self.claimed.extend(open);
        }
    }

    fn push(&mut self, agent: AgentId, step: Step) {
        self.push_of(agent, None, step);
    }

    fn push_of(&mut self, agent: AgentId, source: Option<AgentId>, step: Step) {
        let index = self.timeline.steps.len();
        let source = source.filter(|source| *source != agent);
        let step = StepOf { step, agent, source };
        for agent in step.agents() {
            self.timeline.queues.entry(agent).or_default().push_back(index);
        }
        self.timeline.steps.push(step);
    }
}

fn ending(ask: &RecordedAsk, heard_bytes: u32) -> Ending {
    let cut = || {
        let tokens = match &ask.reply.tokens {
            tokens if tokens.is_empty() => ask.reply.token_count(),
            tokens => tokens.len() as u32,
        };
        Ending::Cut(CancelAfter { tokens, heard_bytes })
    };
    match &ask.reply.end {
        None => Ending::Open,
        Some(Ok((reason, _))) => match reason {
            FinishReason::Cancelled | FinishReason::TimedOut => cut(),
            _ => Ending::Natural,
        },
        Some(Err(error)) if is_reproducible(error) => Ending::Natural,
        Some(Err(_)) => cut(),
    }
}

/// Whether an ask fails again in the same way: the ask, the agent or the model is the reason.
fn is_reproducible(error: &ReplyError) -> bool {
    matches!(
        error,
        ReplyError::PromptTooLong { .. }
            | ReplyError::Text(_)
            | ReplyError::Constraint(_)
            | ReplyError::ConstraintVocabulary(_)
            | ReplyError::ConstraintStopped(_)
            | ReplyError::Actions(_)
            | ReplyError::NoTemplate(_)
            | ReplyError::NothingAllowed
            | ReplyError::NoReply
    )
}
