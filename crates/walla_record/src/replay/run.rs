//! Sends the commands of a session again, in the order that decided its tokens.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use walla_runtime::{
    AgentId, Command, EngineClient, EngineError, EngineState, Event, Logged, ReplyEvent, ReplyId,
    TrySendError,
};

use super::report::{Difference, ReplayReport, compare};
use super::{Replay, ReplayError};
use crate::recording::{each_agent, each_reply};
use crate::session::{ReplyText, describe};
use crate::timeline::{Ending, Step};

/// Pause of the replay if the engine has nothing new.
const PAUSE: Duration = Duration::from_micros(100);

/// Waits until the engine is ready.
pub(super) fn ready(client: &dyn EngineClient) -> Result<(), ReplayError> {
    loop {
        match client.state() {
            EngineState::Ready => return Ok(()),
            EngineState::Loading { .. } => thread::sleep(Duration::from_millis(1)),
            over => return Err(ReplayError::EngineGone(reason(&over))),
        }
    }
}

fn reason(state: &EngineState) -> String {
    match state {
        EngineState::Failed(error) => error.to_string(),
        _ => EngineError::Stopped.to_string(),
    }
}

/// A replay in progress.
pub(super) struct Run<'a> {
    replay: &'a Replay<'a>,
    client: &'a dyn EngineClient,
    /// The engine reports the begin of replies and applied commands.
    is_logged: bool,
    queues: BTreeMap<AgentId, VecDeque<usize>>,
    agents: HashMap<AgentId, AgentId>,
    replies: HashMap<ReplyId, ReplyId>,
    /// Index of the ask of each new reply.
    asks: HashMap<ReplyId, usize>,
    got: Vec<Option<ReplyText>>,
    sent: HashSet<usize>,
    /// Steps that are done.
    done: HashSet<usize>,
    /// Replies in progress whose recording has no end.
    open: Vec<usize>,
    /// Agents of the engine that were added and not removed.
    added: HashSet<AgentId>,
    /// Commands that were sent and not reported as applied.
    unapplied: usize,
    /// A command that the engine's full queue refused.
    held_back: Option<Command>,
}

impl<'a> Run<'a> {
    pub fn new(replay: &'a Replay<'a>, client: &'a dyn EngineClient, is_logged: bool) -> Self {
        Self {
            replay,
            client,
            is_logged,
            queues: replay.timeline.queues.clone(),
            agents: HashMap::new(),
            replies: HashMap::new(),
            asks: HashMap::new(),
            got: vec![None; replay.session.asks.len()],
            sent: HashSet::new(),
            done: HashSet::new(),
            open: Vec::new(),
            added: HashSet::new(),
            unapplied: 0,
            held_back: None,
        }
    }

    pub fn run(&mut self, mut progress: impl FnMut(f32)) -> Result<(), ReplayError> {
        let steps = self.replay.timeline.steps.len().max(1);
        let (mut events, mut moved) = (Vec::new(), Instant::now());
        loop {
            let received = self.client.try_recv_many(1_024, &mut events);
            events.drain(..).for_each(|event| self.event(event));
            self.cancel_open()?;
            let has_moved = self.advance()?;
            let left: usize = self.queues.values().map(VecDeque::len).sum();
            if left == 0 && self.held_back.is_none() {
                progress(1.0);
                return Ok(());
            }
            if received > 0 || has_moved {
                moved = Instant::now();
                progress(1.0 - left.min(steps) as f32 / steps as f32);
            } else {
                let state = self.client.state();
                if state.is_over() {
                    return Err(ReplayError::EngineGone(reason(&state)));
                }
                if moved.elapsed() > self.replay.max_wait {
                    let ended = |got: &&ReplyText| got.end.is_none();
                    let waiting = self.got.iter().flatten().filter(ended).count();
                    let seconds = self.replay.max_wait.as_secs();
                    return Err(ReplayError::Stuck { seconds, waiting });
                }
                thread::sleep(PAUSE);
            }
            // A reply must not go on before a command that concerns it is applied.
            if self.unapplied == 0 && self.held_back.is_none() {
                self.client.frame();
            }
        }
    }

    fn event(&mut self, Event { reply_id, what, .. }: Event) {
        if matches!(what, ReplyEvent::Logged(Logged::Applied)) {
            self.unapplied = self.unapplied.saturating_sub(1);
        } else if let Some(&at) = self.asks.get(&reply_id)
            && let Some(Some(got)) = self.got.get_mut(at)
        {
            got.apply(&what);
        }
    }

    /// Cancels replies without a recorded end that have all that is recorded.
    fn cancel_open(&mut self) -> Result<(), ReplayError> {
        for at in self.open.clone() {
            let asks = &self.replay.session.asks;
            let (Some(ask), Some(got)) = (asks.get(at), self.reply(at)) else { continue };
            let expected = &ask.reply;
            let has_all = got.speech.len() >= expected.speech.len()
                && got.reasoning.len() >= expected.reasoning.len()
                && got.calls.len() >= expected.calls.len()
                && got.tokens.len() >= expected.tokens.len();
            if got.end.is_none() && (!has_all || self.held_back.is_some()) {
                continue;
            }
            let is_over = got.end.is_some();
            self.open.retain(|open| *open != at);
            if !is_over {
                let (agent, reply_id) = (ask.agent, ask.reply_id);
                let mut command = Command::Cancel { agent, reply_id };
                self.translate(&mut command);
                self.send(command)?;
            }
        }
        Ok(())
    }

    /// Does all steps that can be done. Returns whether there was one.
    fn advance(&mut self) -> Result<bool, ReplayError> {
        if let Some(command) = self.held_back.take()
            && !self.send(command)?
        {
            return Ok(false);
        }
        let mut has_moved = false;
        loop {
            // One step of each agent in turn; `Step::After` orders agents where it matters.
            let heads: Vec<_> = self
                .queues
                .iter()
                .filter_map(|(agent, queue)| Some((*agent, *queue.front()?)))
                .collect();
            let mut is_done = true;
            for (agent, index) in heads {
                let Some(step) = self.replay.timeline.steps.get(index) else { continue };
                if self.step(step)? {
                    (is_done, has_moved) = (false, true);
                    self.done.insert(index);
                    // Only when it is done: later steps of the agent depend on it.
                    self.queues.get_mut(&agent).and_then(VecDeque::pop_front);
                }
                if self.held_back.is_some() {
                    return Ok(true);
                }
            }
            if is_done {
                return Ok(has_moved);
            }
        }
    }

    /// Does a step. Returns whether it is done.
    fn step(&mut self, step: &Step) -> Result<bool, ReplayError> {
        match *step {
            Step::Begin(at) => {
                if self.sent.insert(at) {
                    self.ask(at)?;
                }
                Ok(self.reply(at).is_none_or(|got| got.has_begun || got.end.is_some()))
            }
            Step::Started(at) => {
                Ok(self.reply(at).is_none_or(|got| got.is_started || got.end.is_some()))
            }
            Step::End(at) => Ok(self.reply(at).is_none_or(|got| got.end.is_some())),
            Step::After(index) => Ok(self.done.contains(&index)),
            Step::Command(ref command) => {
                let mut command = (**command).clone();
                self.translate(&mut command);
                self.send(command)?;
                Ok(true)
            }
        }
    }

    fn reply(&self, at: usize) -> Option<&ReplyText> {
        self.got.get(at)?.as_ref()
    }

    fn ask(&mut self, at: usize) -> Result<(), ReplayError> {
        let Some(ask) = self.replay.session.asks.get(at) else { return Ok(()) };
        let (agent, reply_id) = (ask.agent, ask.reply_id);
        let (prompt, mut options) = (ask.prompt.clone(), ask.options.clone());
        match self.replay.timeline.endings.get(at) {
            Some(Some(Ending::Cut(cancel))) => options.cancel_after = Some(Box::new(*cancel)),
            Some(Some(Ending::Open)) => self.open.push(at),
            _ => {}
        }
        let mut command = Command::Ask { agent, reply_id, prompt, options };
        self.translate(&mut command);
        if let Command::Ask { reply_id, .. } = &command {
            self.asks.insert(*reply_id, at);
        }
        if let Some(got) = self.got.get_mut(at) {
            *got = Some(ReplyText::default());
        }
        self.send(command)?;
        Ok(())
    }

    /// Replaces recorded ids by new ones.
    fn translate(&mut self, command: &mut Command) {
        let Self { agents, replies, .. } = self;
        each_agent(command, |id| *id = *agents.entry(*id).or_insert_with(AgentId::unique));
        each_reply(command, |id| *id = *replies.entry(*id).or_insert_with(ReplyId::unique));
    }

    /// Sends a command, or holds it back. Returns whether it was sent.
    fn send(&mut self, command: Command) -> Result<bool, ReplayError> {
        let agent = command.agent();
        let adds = matches!(command, Command::AddAgent { .. } | Command::ForkAgent { .. });
        let removes = matches!(command, Command::RemoveAgent { .. });
        match self.client.try_send(command) {
            Ok(()) => {}
            Err(TrySendError::Full(command)) => {
                self.held_back = Some(command);
                return Ok(false);
            }
            Err(TrySendError::Closed(_)) => {
                return Err(ReplayError::EngineGone(reason(&self.client.state())));
            }
        }
        self.unapplied += usize::from(self.is_logged);
        if adds {
            self.added.insert(agent);
        } else if removes {
            self.added.remove(&agent);
        }
        Ok(true)
    }

    /// Removes the agents that the recording did not remove, if the engine takes commands.
    pub fn remove_agents(&mut self) {
        let begun = Instant::now();
        for agent in self.added.drain() {
            let mut command = Command::RemoveAgent { agent };
            while let Err(TrySendError::Full(refused)) = self.client.try_send(command) {
                if begun.elapsed() > self.replay.max_wait {
                    return;
                }
                command = refused;
                thread::sleep(PAUSE);
            }
        }
    }

    pub fn report(&self) -> ReplayReport {
        let Replay { session, timeline, .. } = self.replay;
        let mut report = ReplayReport::default();
        for ((ask, ending), got) in session.asks.iter().zip(&timeline.endings).zip(&self.got) {
            let (Some(ending), Some(got)) = (ending, got) else {
                report.left_out += 1;
                continue;
            };
            report.replies += 1;
            let has_ids = !ask.reply.tokens.is_empty() && !got.tokens.is_empty();
            report.has_ids |= has_ids;
            match compare(ask, got, *ending) {
                Ok(tokens) => report.tokens += u64::from(tokens),
                Err((token, expected, got)) => {
                    report.tokens += u64::from(token);
                    report.different += 1;
                    report.first.get_or_insert_with(|| {
                        let (agent, reply_id) = (ask.agent, ask.reply_id);
                        let ask = describe(&ask.prompt);
                        Difference { agent, reply_id, ask, token, expected, got }
                    });
                }
            }
        }
        report
    }
}
