//! The work of a session in the engine's order.
//!
//! The recording of a local engine shows when the engine applied each command and when it began and
//! ended each reply. This order determines each reply, at any frames, threads and batches. Without
//! these details the order of the host is used.
//!
//! | work | repeated by |
//! |---|---|
//! | begin of a reply | the ask, which is sent now |
//! | start and end of a reply | a wait for it |
//! | cancel of a reply in progress | the [token](walla_runtime::CancelAfter) after which it ends |
//! | turns that were appended while asks were open | the turns, when the engine adds them |
//! | copy of an agent or of its conversation | a hidden copy of the source at the same point of its work, and a copy of the hidden one |
//! | any other command | the command |
//!
//! Asks that never began, or were cancelled before their prompt was encoded, have no effect and are
//! left out.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use walla_runtime::{
    AgentId, CancelAfter, Command, ConversationEdit, Event, FinishReason, Logged, ReplyError,
    ReplyEvent, ReplyId,
};

use crate::recording::{Record, Recording};
use crate::session::{RecordedAsk, Session};

/// A step of a replay. It follows all earlier steps of its agent.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends the ask of this index, and waits until the reply begins.
    Begin(usize),
    /// Waits until the reply is started or has ended.
    Started(usize),
    /// Waits until the reply has ended.
    End(usize),
    /// Waits until the step of this index is done.
    After(usize),
    /// Sends a command.
    Command(Box<Command>),
}

/// How the end of a reply is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The engine decides, and must decide the same.
    Natural,
    /// Time decided (a cancel, a deadline, a failure): the reply is cancelled at the recorded
    /// token, and compared up to it.
    Cut(CancelAfter),
    /// The recording has no end: the reply is cancelled when it has all that is recorded. Nothing
    /// depends on its end.
    Open,
}

/// All steps of a session.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub steps: Vec<Step>,
    /// Indices of steps for each agent.
    pub queues: BTreeMap<AgentId, VecDeque<usize>>,
    /// For each ask; `None`: it is left out.
    pub endings: Vec<Option<Ending>>,
}

impl Timeline {
    pub fn new(recording: &Recording, session: &Session) -> Self {
        Builder::new(session, recording.has_tokens()).build(recording)
    }
}

/// The asks of an agent as the engine keeps them
/// ([`AskQueue`](walla_runtime::AskQueue)).
#[derive(Debug, Default)]
struct Asks {
    in_progress: Option<usize>,
    /// Waiting asks, each with turns that were appended before it.
    waiting: VecDeque<(usize, Vec<Command>)>,
    turns_after: Vec<Command>,
    /// Asks that have ended since a command cancelled all.
    ended: Vec<usize>,
}

impl Asks {
    /// Removes a waiting ask. Its turns stay in order.
    fn remove(&mut self, ask: usize) {
        let Some(at) = self.waiting.iter().position(|(waiting, _)| *waiting == ask) else { return };
        let Some((_, mut turns)) = self.waiting.remove(at) else { return };
        let later = self.waiting.get_mut(at).map_or(&mut self.turns_after, |(_, turns)| turns);
        turns.append(later);
        *later = turns;
    }

    /// Turns that are added now, because no ask precedes them.
    fn take_due(&mut self) -> Vec<Command> {
        let is_idle = self.in_progress.is_none() && self.waiting.is_empty();
        if is_idle { std::mem::take(&mut self.turns_after) } else { Vec::new() }
    }
}

struct Builder<'a> {
    session: &'a Session,
    /// The recording has the engine's order of work.
    is_logged: bool,
    timeline: Timeline,
    places: HashMap<ReplyId, usize>,
    /// Commands that were sent and not yet applied.
    sent: VecDeque<Command>,
    asks: HashMap<AgentId, Asks>,
    begun: HashSet<usize>,
    ended: HashSet<usize>,
    /// Cancelled replies whose cancel is known.
    claimed: HashSet<usize>,
    heard_bytes: HashMap<usize, u32>,
    /// Number of hidden copies.
    hidden: u64,
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
            asks: HashMap::new(),
            begun: HashSet::new(),
            ended: HashSet::new(),
            claimed: HashSet::new(),
            heard_bytes: HashMap::new(),
            hidden: 0,
        }
    }

    fn build(mut self, recording: &Recording) -> Timeline {
        for entry in &recording.entries {
            match &entry.record {
                Record::Command(command) if self.is_logged => {
                    self.sent.push_back((**command).clone());
                }
                Record::Command(command) => self.apply((**command).clone()),
                Record::Event(event) => self.event(event),
                Record::Engine(_) | Record::Paused(_) => {}
            }
        }
        // Replies without a recorded end: the replay waits for their ends, which it causes itself.
        let mut open: Vec<_> = self.begun.difference(&self.ended).copied().collect();
        // A set has no order, and steps must be the same in every replay.
        open.sort_unstable();
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

    fn event(&mut self, Event { reply_id, what, .. }: &Event) {
        if let ReplyEvent::Logged(Logged::Applied) = what {
            if let Some(command) = self.sent.pop_front() {
                self.apply(command);
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
                if self.begun.contains(&at) {
                    self.push(agent, Step::Started(at));
                }
            }
            what if what.is_terminal() => self.end(agent, at),
            _ => {}
        }
    }

    fn begin(&mut self, agent: AgentId, at: usize) {
        let asks = self.asks.entry(agent).or_default();
        let before = match asks.waiting.front() {
            Some((waiting, _)) if *waiting == at => asks.waiting.pop_front(),
            _ => None,
        };
        asks.in_progress = Some(at);
        self.push_all(agent, before.map_or_else(Vec::new, |(_, turns)| turns));
        // An ask that is left out still frees the turns before it.
        let has_effect = self.session.asks.get(at).is_some_and(has_effect);
        if has_effect && self.begun.insert(at) {
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
        let asks = self.asks.entry(agent).or_default();
        if asks.in_progress == Some(at) {
            asks.in_progress = None;
        }
        // A command that cancels all is reported behind the ends that it has caused.
        asks.ended.push(at);
        asks.remove(at);
        let due = asks.take_due();
        self.push_all(agent, due);
    }

    /// A command takes effect.
    fn apply(&mut self, command: Command) {
        let agent = command.agent();
        match &command {
            Command::Ask { reply_id, .. } => {
                // An ask that was refused has ended already.
                let place = self.places.get(reply_id).filter(|at| !self.ended.contains(at));
                if let Some(&at) = place {
                    let asks = self.asks.entry(agent).or_default();
                    let turns = std::mem::take(&mut asks.turns_after);
                    asks.waiting.push_back((at, turns));
                }
            }
            Command::AppendTurns { .. } => {
                let asks = self.asks.entry(agent).or_default();
                asks.turns_after.push(command);
                let due = asks.take_due();
                self.push_all(agent, due);
            }
            Command::Cancel { reply_id, .. } => {
                self.claim(*reply_id, u32::MAX);
            }
            Command::CancelHeard { reply_id, heard_bytes, .. } => {
                if !self.claim(*reply_id, *heard_bytes) {
                    self.push_command(agent, command);
                }
            }
            Command::EditConversation { edit, .. } => {
                let source = edit.source().filter(|source| *source != agent);
                self.claim_all(agent);
                match source {
                    None => self.push_command(agent, command),
                    Some(source) => self.push_copy(agent, source, |source| {
                        let edit = ConversationEdit::CopyOf { source };
                        Command::EditConversation { agent, edit }
                    }),
                }
            }
            Command::ForkAgent { source, spec: None, .. } => {
                let source = *source;
                self.push_copy(agent, source, |source| Command::ForkAgent {
                    agent,
                    source,
                    spec: None,
                });
            }
            Command::SetConversation { .. } | Command::RemoveAgent { .. } => {
                self.claim_all(agent);
                self.push_command(agent, command);
            }
            _ => self.push_command(agent, command),
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
        let Some(asks) = self.asks.get_mut(&agent) else { return };
        self.claimed.extend(asks.ended.drain(..));
        if !self.is_logged {
            let waiting = asks.waiting.iter().map(|(at, _)| *at);
            self.claimed.extend(asks.in_progress.into_iter().chain(waiting));
        }
    }

    fn push(&mut self, agent: AgentId, step: Step) -> usize {
        let index = self.timeline.steps.len();
        self.timeline.steps.push(step);
        self.timeline.queues.entry(agent).or_default().push_back(index);
        index
    }

    fn push_command(&mut self, agent: AgentId, command: Command) {
        self.push(agent, Step::Command(Box::new(command)));
    }

    fn push_all(&mut self, agent: AgentId, commands: Vec<Command>) {
        commands.into_iter().for_each(|command| self.push_command(agent, command));
    }

    /// A command that copies the source as it is now. Its own steps may be late: a hidden agent
    /// keeps the copy until then.
    fn push_copy(&mut self, agent: AgentId, source: AgentId, copy: impl Fn(AgentId) -> Command) {
        // From the end of the range: recorded agents are numbered from 0.
        self.hidden += 1;
        let hidden = AgentId(u64::MAX - self.hidden);
        let fork = Command::ForkAgent { agent: hidden, source, spec: None };
        let made = self.push(source, Step::Command(Box::new(fork)));
        self.move_before_begin(source);
        self.push(agent, Step::After(made));
        self.push_command(agent, copy(hidden));
        self.push_command(agent, Command::RemoveAgent { agent: hidden });
    }
}

impl Builder<'_> {
    /// Moves the last step of an agent before the begin of a reply that is not started. Encoding
    /// its prompt takes no frame, so a replay cannot hold the engine there, and it may drop turns
    /// of the conversation, which until then is as before the ask.
    fn move_before_begin(&mut self, agent: AgentId) {
        let Some(queue) = self.timeline.queues.get_mut(&agent) else { return };
        let Some(at) = queue.len().checked_sub(2) else { return };
        let before = queue.get(at).and_then(|index| self.timeline.steps.get(*index));
        if matches!(before, Some(Step::Begin(_))) {
            queue.swap(at, at + 1);
        }
    }
}

/// Whether a reply that has begun changes its conversation or is to be compared. Before its prompt
/// is encoded it does not, unless it fails in the same way each time.
fn has_effect(ask: &RecordedAsk) -> bool {
    ask.reply.is_started
        || match &ask.reply.end {
            None => false,
            Some(Ok((reason, _))) => {
                !matches!(reason, FinishReason::Cancelled | FinishReason::TimedOut)
            }
            Some(Err(error)) => is_reproducible(error),
        }
}

fn ending(ask: &RecordedAsk, heard_bytes: u32) -> Ending {
    let cut = || {
        let tokens = match ask.reply.tokens.len() {
            0 => ask.reply.token_count(),
            tokens => tokens as u32,
        };
        Ending::Cut(CancelAfter { tokens, heard_bytes })
    };
    match &ask.reply.end {
        None => Ending::Open,
        Some(Ok((FinishReason::Cancelled | FinishReason::TimedOut, _))) => cut(),
        Some(Ok(_)) => Ending::Natural,
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use walla_runtime::{AgentSpec, Prompt, Usage};

    use super::*;
    use crate::recording::{End, Entry};

    /// Copies while the prompt is encoded, which may drop turns: of the conversation before it.
    #[test]
    fn a_copy_before_the_start_of_a_reply_precedes_its_begin() {
        let (agent, reply_id) = (AgentId(0), ReplyId(1));
        let event = |agent, reply_id, what| Record::Event(Event { agent, reply_id, what });
        let of_reply = |what| event(agent, reply_id, what);
        let command = |command: Command| {
            let applied = ReplyEvent::Logged(Logged::Applied);
            let applied = event(command.agent(), ReplyId::NONE, applied);
            [Record::Command(Box::new(command)), applied]
        };
        let copy = |copy| Command::ForkAgent { agent: AgentId(copy), source: agent, spec: None };
        let (reason, usage) = (FinishReason::EndOfTurn, Usage::default());
        let add = Command::AddAgent { agent, spec: Box::new(AgentSpec::new("a smith")) };
        let mut records = command(add).to_vec();
        records.extend(command(Command::ask(agent, reply_id, Prompt::Continue)));
        records.push(of_reply(ReplyEvent::Logged(Logged::Begun)));
        records.extend([1, 2].map(copy).into_iter().flat_map(command));
        records.push(of_reply(ReplyEvent::Started { prompt_tokens: 1 }));
        records.extend(command(copy(3)));
        records.push(of_reply(ReplyEvent::Finished { reason, usage }));
        let entries =
            records.into_iter().map(|record| Entry { frame: 0, micros: 0, record }).collect();
        let recording = Recording { entries, end: End::Complete, micros: 0 };
        let timeline = Timeline::new(&recording, &Session::new(&recording));
        let steps = timeline.queues[&agent].iter().map(|index| match &timeline.steps[*index] {
            Step::Command(command) if matches!(**command, Command::ForkAgent { .. }) => "copy",
            Step::Command(_) => "command",
            Step::Begin(_) => "begin",
            Step::Started(_) => "started",
            Step::End(_) => "end",
            Step::After(_) => "after",
        });
        let expected = ["command", "copy", "copy", "begin", "started", "copy", "end"];
        assert_eq!(steps.collect::<Vec<_>>(), expected);
    }

    /// A long session of one agent with many edits.
    #[test]
    fn edits_of_an_agent_with_many_replies_take_linear_time() {
        let (agent, count) = (AgentId(0), 40_000);
        let command = |command| Record::Command(Box::new(command));
        let mut records =
            vec![command(Command::AddAgent { agent, spec: Box::new(AgentSpec::new("a smith")) })];
        for reply_id in (1..=count).map(ReplyId) {
            let event = |what| Record::Event(Event { agent, reply_id, what });
            let (reason, usage) = (FinishReason::EndOfTurn, Usage::default());
            records.extend([
                command(Command::ask(agent, reply_id, Prompt::Continue)),
                event(ReplyEvent::Started { prompt_tokens: 1 }),
                event(ReplyEvent::Finished { reason, usage }),
                command(Command::SetConversation { agent, turns: Vec::new() }),
            ]);
        }
        let entries =
            records.into_iter().map(|record| Entry { frame: 0, micros: 0, record }).collect();
        let recording = Recording { entries, end: End::Complete, micros: 0 };
        let session = Session::new(&recording);
        let begun = Instant::now();
        let timeline = Timeline::new(&recording, &session);
        // It takes 0.1 s; two minutes in quadratic time.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        // One command each, and three steps for each reply.
        assert_eq!(timeline.steps.len() as u64, 1 + 4 * count);
    }
}
