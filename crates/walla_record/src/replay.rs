//! Verifies a recording with a model.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use walla_runtime::{
    AgentId, Command, EngineClient, EngineError, EngineState, Event, FinishReason, Logged,
    ReplyEvent, ReplyId, TrySendError,
};
use walla_types::TokenId;

use crate::recording::{EngineInfo, Recording, each_id};
use crate::session::{RecordedAsk, ReplyText, Session, describe};
use crate::timeline::{Ending, Step, Timeline};

/// Pause of the replay if the engine has nothing new.
const PAUSE: Duration = Duration::from_micros(100);

/// Repeats a session on an engine, and compares every token.
///
/// # Reproducible replies
/// An engine with the same model, the same kind of device, the same kernels and the same
/// [settings](walla_runtime::TextSettings) gives the same tokens, at any batch, number of threads,
/// number of slots, budget and pacing. Other devices and other kernels round differently; they are
/// compared up to the first difference. Servers ensure nothing.
///
/// Each command is sent when everything is done that the engine had done before it for this agent,
/// so time has no influence: see the table below. A reply that time ended (a cancel, a deadline, a
/// failed device, the end of the recording) is compared up to this point.
///
/// | in the recording | in the replay |
/// |---|---|
/// | reply with a natural end | all tokens, text, calls and the end are compared |
/// | reply that time ended | the same number of tokens is compared, and the conversation stays equal |
/// | ask that never began | left out |
/// | pauses, frames, levels of detail | without influence on tokens |
///
/// Use a client that is [paced by frames](walla_runtime::Pacing::PerFrame): the replay grants no
/// frame while a copy of an agent that speaks is due, so that it is made within the same reply.
#[derive(Debug)]
pub struct Replay<'a> {
    session: Session,
    timeline: Timeline,
    recording: &'a Recording,
    wait_max: Duration,
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// Replies that were repeated.
    pub replies: u64,
    /// Asks that never began, and were left out.
    pub left_out: u64,
    /// Tokens that were compared. Without ids in the recording, by the counts of its deltas.
    pub tokens: u64,
    /// Whether ids were compared. Otherwise the texts were.
    pub has_ids: bool,
    /// Replies that differ. A reply behind a difference of the same agent can differ as its
    /// consequence.
    pub different: u64,
    /// The first difference, in the order of the recorded asks.
    pub first: Option<Difference>,
}

impl ReplayReport {
    /// Whether all replies are equal.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.different == 0
    }
}

/// A reply that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Number of the agent in the recording.
    pub agent: AgentId,
    /// Number of the reply in the recording.
    pub reply_id: ReplyId,
    /// Content of the ask, shortened.
    pub ask: String,
    /// Index of the token at which it differs, from 0.
    pub token: u32,
    /// The recorded value.
    pub expected: Differing,
    /// The value of the replay.
    pub got: Differing,
}

/// What differs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Differing {
    /// A token; `None`: the reply has no further one.
    Token(Option<TokenId>),
    /// Text from the difference on, shortened.
    Text(String),
    /// The calls.
    Calls(Vec<String>),
    /// The end, in words.
    End(String),
}

impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(Some(token)) => write!(f, "token {token}"),
            Self::Token(None) => f.write_str("no token"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Calls(calls) => write!(f, "calls [{}]", calls.join(", ")),
            Self::End(end) => f.write_str(end),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agent, reply_id, ask, token, expected, got } = self;
        let (agent, reply) = (agent.0, reply_id.0);
        write!(
            f,
            "agent {agent}, reply {reply} to {ask:?}, token {token}: recorded {expected}, now {got}"
        )
    }
}

/// Why a replay could not run to its end.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The engine has another model.
    #[error(
        "the recording is of the model {} ({:016x}), the engine has {} ({:016x})",
        recorded.model.as_deref().unwrap_or("without a name"), recorded.fingerprint,
        given.model.as_deref().unwrap_or("one without a name"), given.fingerprint
    )]
    OtherModel {
        /// The recorded engine.
        recorded: Box<EngineInfo>,
        /// The engine of the replay.
        given: Box<EngineInfo>,
    },
    /// The engine has other settings than the recorded one, on which its replies depend.
    #[error("the engine has another {setting}: {given}, recorded {recorded}")]
    OtherSetting {
        /// Name of the setting.
        setting: &'static str,
        /// The recorded value.
        recorded: String,
        /// The engine's value.
        given: String,
    },
    /// The recording names no model: it is not of one local engine, or ends before it was loaded.
    #[error("the recording names no model, so no engine can repeat it")]
    NoModel,
    /// The engine has failed or was stopped.
    #[error("the engine has ended: {0}")]
    EngineGone(String),
    /// The engine made no progress.
    #[error("no progress for {seconds} s: {waiting} replies wait")]
    Stuck {
        /// The limit.
        seconds: u64,
        /// Number of replies in progress.
        waiting: usize,
    },
}

impl<'a> Replay<'a> {
    /// A replay of this recording.
    #[must_use]
    pub fn new(recording: &'a Recording) -> Self {
        let session = Session::new(recording);
        let timeline = Timeline::new(recording, &session);
        Self { session, timeline, recording, wait_max: Duration::from_secs(120) }
    }

    /// Maximum time without progress. Default: 120 s.
    #[must_use]
    pub fn wait_max(self, wait_max: Duration) -> Self {
        Self { wait_max, ..self }
    }

    /// Checks that an engine can repeat the recording: the same model and the same settings.
    ///
    /// # Errors
    /// [`ReplayError::OtherModel`], [`ReplayError::OtherSetting`], [`ReplayError::NoModel`].
    pub fn check(&self, client: &dyn EngineClient) -> Result<(), ReplayError> {
        let recorded = self.recording.engine().ok_or(ReplayError::NoModel)?;
        let given = client.model().map(|card| EngineInfo::new(card, true));
        let given = given.ok_or(ReplayError::NoModel)?;
        if given.fingerprint != recorded.fingerprint {
            let (recorded, given) = (Box::new(recorded.clone()), Box::new(given));
            return Err(ReplayError::OtherModel { recorded, given });
        }
        let shown = |option: &Option<String>| option.as_deref().unwrap_or("none").to_owned();
        let settings = |engine: &EngineInfo| {
            [
                ("context_tokens", engine.context_tokens.to_string()),
                ("kv_tokens", engine.kv_tokens.to_string()),
                ("kv_type", engine.kv_type.clone()),
                ("context_shift", engine.context_shift.to_string()),
                ("pre_tokenizer", shown(&engine.pre_tokenizer)),
                ("template", shown(&engine.template)),
            ]
        };
        for ((setting, recorded), (_, given)) in
            settings(recorded).into_iter().zip(settings(&given))
        {
            if recorded != given {
                return Err(ReplayError::OtherSetting { setting, recorded, given });
            }
        }
        Ok(())
    }

    /// Waits until the engine is ready, checks it, and repeats the session. Blocks until the end:
    /// do not call it in a game loop.
    ///
    /// # Errors
    /// As [`check`](Self::check); [`ReplayError::EngineGone`], [`ReplayError::Stuck`].
    pub fn run(&self, client: &dyn EngineClient) -> Result<ReplayReport, ReplayError> {
        self.run_with_progress(client, |_| {})
    }

    /// As [`run`](Self::run); `progress` receives the share of the work that is done, from 0 to 1.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with_progress(
        &self,
        client: &dyn EngineClient,
        progress: impl FnMut(f32),
    ) -> Result<ReplayReport, ReplayError> {
        let is_logged = client.set_logged(true);
        ready(client)?;
        self.check(client)?;
        let mut run = Run::new(self, client, is_logged);
        let result = run.run(progress);
        run.remove_agents();
        client.set_logged(false);
        result.map(|()| run.report())
    }
}

/// Waits until the engine is ready.
fn ready(client: &dyn EngineClient) -> Result<(), ReplayError> {
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
struct Run<'a> {
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
    fn new(replay: &'a Replay<'a>, client: &'a dyn EngineClient, is_logged: bool) -> Self {
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

    fn run(&mut self, mut progress: impl FnMut(f32)) -> Result<(), ReplayError> {
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
                if moved.elapsed() > self.replay.wait_max {
                    let ended = |got: &&ReplyText| got.end.is_none();
                    let waiting = self.got.iter().flatten().filter(ended).count();
                    let seconds = self.replay.wait_max.as_secs();
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
        each_id(
            command,
            &mut |agent| *agent = *agents.entry(*agent).or_insert_with(AgentId::unique),
            &mut |reply| *reply = *replies.entry(*reply).or_insert_with(ReplyId::unique),
        );
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
    fn remove_agents(&mut self) {
        let begun = Instant::now();
        for agent in self.added.drain() {
            let mut command = Command::RemoveAgent { agent };
            while let Err(TrySendError::Full(refused)) = self.client.try_send(command) {
                if begun.elapsed() > self.replay.wait_max {
                    return;
                }
                command = refused;
                thread::sleep(PAUSE);
            }
        }
    }

    fn report(&self) -> ReplayReport {
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

/// Index of the token, the recorded value, the value of the replay.
type Unequal = (u32, Differing, Differing);

/// Compares a reply. Returns the number of equal tokens.
fn compare(ask: &RecordedAsk, got: &ReplyText, ending: Ending) -> Result<u32, Unequal> {
    let expected = &ask.reply;
    let tokens = compare_tokens(expected, got)?;
    let is_cut = ending != Ending::Natural;
    // The last run of tokens of a reply without an end is missing.
    let has_end = expected.end.is_some();
    for (expected, got) in [(&expected.reasoning, &got.reasoning), (&expected.speech, &got.speech)]
    {
        // Behind a cut, held text may follow.
        let is_equal = if has_end { expected == got } else { got.starts_with(expected.as_str()) };
        if !is_equal {
            let at = expected.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count();
            return Err((tokens, text_at(expected, at), text_at(got, at)));
        }
    }
    let calls = got.calls.get(..expected.calls.len()).filter(|_| !has_end).unwrap_or(&got.calls);
    if calls != expected.calls {
        let calls = [&expected.calls, &got.calls].map(|calls| Differing::Calls(calls.clone()));
        let [expected, got] = calls;
        return Err((tokens, expected, got));
    }
    if !is_cut && end_of(expected) != end_of(got) {
        let [expected, got] = [expected, got].map(|reply| Differing::End(end_of(reply)));
        return Err((tokens, expected, got));
    }
    Ok(tokens)
}

fn compare_tokens(expected: &ReplyText, got: &ReplyText) -> Result<u32, Unequal> {
    if expected.tokens.is_empty() || got.tokens.is_empty() {
        return Ok(expected.token_count().min(got.token_count()));
    }
    let pairs = expected.tokens.iter().zip(&got.tokens);
    let equal = pairs.take_while(|(expected, got)| expected == got).count();
    let is_prefix = equal == expected.tokens.len() && expected.end.is_none();
    if equal == expected.tokens.len().max(got.tokens.len()) || is_prefix {
        return Ok(equal as u32);
    }
    let [expected, got] =
        [expected, got].map(|reply| Differing::Token(reply.tokens.get(equal).copied()));
    Err((equal as u32, expected, got))
}

/// Maximum bytes of a text in a difference.
const SHOWN_BYTES_MAX: usize = 60;

fn text_at(text: &str, at: usize) -> Differing {
    let rest = text.get(text.floor_char_boundary(at)..).unwrap_or_default();
    Differing::Text(
        rest.get(..rest.floor_char_boundary(SHOWN_BYTES_MAX)).unwrap_or_default().into(),
    )
}

/// The end of a reply in words.
fn end_of(reply: &ReplyText) -> String {
    match &reply.end {
        None => "no end".to_owned(),
        Some(Ok((FinishReason::Stop { index }, _))) => format!("stop string {index}"),
        Some(Ok((reason, _))) => format!("{reason:?}"),
        Some(Err(error)) => format!("failed: {error}"),
    }
}
