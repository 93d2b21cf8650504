//! Plays a recording without a model.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use walla_runtime::{
    AgentId, CacheError, Capabilities, Command, EngineClient, EngineState, EngineStats, Event,
    FinishReason, Prompt, ReplyError, ReplyEvent, ReplyId, TrySendError, Usage,
};

use crate::recording::{Record, Recording, set_call_reply};
use crate::session::{Session, describe};

/// When the events of a reply are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At the frame in which they were received, counted from the ask. For a host that
    /// [grants frames](EngineClient::frame), such as a Bevy app.
    Frames,
    /// At the time at which they were received, counted from the ask.
    Time,
    /// At once.
    Immediate,
}

/// Plays the replies of a recording to a host that asks the same: for cutscenes, reports of defects
/// and tests of games. It has no model and no device.
///
/// # Which reply is played
/// - An agent is the first recorded agent that no other agent is yet, with the same persona, or, if
///   it is a copy, of the same source. So agents may be added in another order.
/// - The asks of an agent get the replies of its recorded asks, in order. An ask with another
///   prompt fails with [`ReplyError::NotRecorded`], which contains both prompts, and so does an ask
///   behind the last one. [Settings](walla_runtime::AskOptions) are not compared.
/// - A reply that the host cancels ends at once; a recorded cancel ends it in any case.
///
/// Conversations are not needed: their changes have no effect.
#[derive(Clone, Debug)]
pub struct Player {
    recording: Arc<Recording>,
    session: Arc<Session>,
    pace: Pace,
}

impl Player {
    /// A player of this recording, with the pace of its host: frames if it granted any.
    #[must_use]
    pub fn new(recording: Recording) -> Self {
        let pace = if recording.has_frames() { Pace::Frames } else { Pace::Time };
        let session = Arc::new(Session::new(&recording));
        Self { recording: Arc::new(recording), session, pace }
    }

    /// With another pace.
    #[must_use]
    pub fn pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// A client, which plays the recording from its begin.
    #[must_use]
    pub fn client(&self) -> PlayerClient {
        let taken = vec![false; self.session.agents.len()];
        let inner = Inner { taken, ..Inner::default() };
        let (player, begun) = (self.clone(), Instant::now());
        PlayerClient { player, begun, inner: Mutex::new(inner) }
    }
}

/// A client of a [`Player`].
#[derive(Debug)]
pub struct PlayerClient {
    player: Player,
    begun: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Frames granted.
    frame: u64,
    paused_since: Option<Instant>,
    /// Duration of all pauses that have ended.
    paused: Duration,
    is_stopped: bool,
    agents: HashMap<AgentId, PlayedAgent>,
    /// Recorded agents that are assigned, by index.
    taken: Vec<bool>,
    /// Replies in progress, in the order of their asks.
    replies: Vec<PlayedReply>,
    ready: VecDeque<Event>,
    /// Agents with an earlier reply; empty between calls.
    busy: HashSet<AgentId>,
}

#[derive(Debug)]
struct PlayedAgent {
    /// Its index in the session. `None`: no recorded agent is left that it could be.
    index: Option<usize>,
    asks: usize,
}

#[derive(Debug)]
struct PlayedReply {
    agent: AgentId,
    reply_id: ReplyId,
    /// Index of the recorded ask.
    ask: usize,
    /// Number of its events that were played.
    played: usize,
    /// Frame and time of the ask.
    frame: u64,
    time: Duration,
}

impl PlayedReply {
    fn event(&self, what: ReplyEvent) -> Event {
        Event { agent: self.agent, reply_id: self.reply_id, what }
    }
}

impl PlayerClient {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the begin, without pauses.
    fn time(&self, inner: &Inner) -> Duration {
        let end = inner.paused_since.unwrap_or_else(Instant::now);
        end.saturating_duration_since(self.begun).saturating_sub(inner.paused)
    }

    /// The recorded agent that a new one is.
    fn assign(
        &self,
        inner: &mut Inner,
        persona: Option<&str>,
        source: Option<AgentId>,
    ) -> PlayedAgent {
        let session = &self.player.session;
        let source = source.and_then(|source| inner.agents.get(&source)?.index);
        let source = source.and_then(|index| Some(session.agents.get(index)?.agent));
        let index = session.agents.iter().zip(&inner.taken).position(|(agent, is_taken)| {
            let is_it = match persona {
                Some(persona) => agent.persona.as_deref() == Some(persona),
                None => agent.persona.is_none(),
            };
            !is_taken && is_it && agent.source == source
        });
        if let Some(taken) = index.and_then(|index| inner.taken.get_mut(index)) {
            *taken = true;
        }
        PlayedAgent { index, asks: 0 }
    }

    fn ask(&self, inner: &mut Inner, agent: AgentId, reply_id: ReplyId, prompt: &Prompt) {
        let session = &self.player.session;
        let (frame, time) = (inner.frame, self.time(inner));
        let fail = |inner: &mut Inner, error| {
            let what = ReplyEvent::Failed(error);
            inner.ready.push_back(Event { agent, reply_id, what });
        };
        let Some(played) = inner.agents.get_mut(&agent) else {
            return fail(inner, ReplyError::UnknownAgent);
        };
        let recorded = played.index.and_then(|index| session.agents.get(index));
        let ask = recorded.and_then(|agent| agent.asks.get(played.asks).copied());
        let expected = ask.and_then(|ask| session.asks.get(ask)).map(|ask| &ask.prompt);
        match ask.filter(|_| expected == Some(prompt)) {
            Some(ask) => {
                played.asks += 1;
                inner.replies.push(PlayedReply { agent, reply_id, ask, played: 0, frame, time });
            }
            None => {
                let (expected, asked) = (expected.map(describe), describe(prompt));
                fail(inner, ReplyError::NotRecorded { expected, asked });
            }
        }
    }

    fn command(&self, inner: &mut Inner, command: Command) {
        match command {
            Command::AddAgent { agent, spec } => {
                let played = self.assign(inner, Some(&spec.persona), None);
                inner.agents.entry(agent).or_insert(played);
            }
            Command::ForkAgent { agent, source, spec } => {
                let persona = spec.as_ref().map(|spec| spec.persona.as_str());
                let played = self.assign(inner, persona, Some(source));
                inner.agents.entry(agent).or_insert(played);
            }
            Command::Ask { agent, reply_id, prompt, .. } => {
                self.ask(inner, agent, reply_id, &prompt);
            }
            Command::Cancel { agent, reply_id } | Command::CancelHeard { agent, reply_id, .. } => {
                inner.cancel(|reply| reply.agent == agent && reply.reply_id == reply_id);
            }
            Command::SetConversation { agent, .. } | Command::EditConversation { agent, .. } => {
                inner.cancel(|reply| reply.agent == agent);
            }
            Command::RemoveAgent { agent } => {
                inner.cancel(|reply| reply.agent == agent);
                inner.agents.remove(&agent);
            }
            Command::CopyCache { ticket, .. } => ticket.fail(CacheError::Unsupported),
            Command::ChangeAgent { .. }
            | Command::SetDetail { .. }
            | Command::AppendTurns { .. } => {}
        }
    }

    /// Moves one due event of each reply to the queue. Returns whether there was one, and the time
    /// until the next one is due.
    fn play(&self, inner: &mut Inner) -> (bool, Option<Duration>) {
        if inner.paused_since.is_some() {
            return (false, None);
        }
        let (now, mut next) = (self.time(inner), None::<Duration>);
        let mut has_played = false;
        let Inner { replies, ready, frame, busy, .. } = inner;
        busy.clear();
        replies.retain_mut(|reply| {
            // An agent gives one reply after another.
            if !busy.insert(reply.agent) {
                return true;
            }
            let Some(ask) = self.player.session.asks.get(reply.ask) else { return false };
            let Some(&index) = ask.events.get(reply.played) else {
                // The recording ends within this reply.
                let (expected, asked) = (None, describe(&ask.prompt));
                let error = ReplyError::NotRecorded { expected, asked };
                ready.push_back(reply.event(ReplyEvent::Failed(error)));
                return false;
            };
            let Some(entry) = self.player.recording.entries.get(index) else { return false };
            // From the ask on, not from the begin: the host may ask later than the recorded one.
            let after = Duration::from_micros(entry.micros.saturating_sub(ask.micros));
            let due = reply.time.saturating_add(after);
            let frames = entry.frame.saturating_sub(ask.frame);
            let is_due = match self.player.pace {
                Pace::Immediate => true,
                Pace::Frames => *frame >= reply.frame.saturating_add(frames),
                Pace::Time => now >= due,
            };
            if !is_due {
                let left = due.saturating_sub(now);
                next = Some(next.map_or(left, |next| next.min(left)));
                return true;
            }
            reply.played += 1;
            has_played = true;
            let Record::Event(event) = &entry.record else { return true };
            if matches!(event.what, ReplyEvent::Logged(_)) {
                return true;
            }
            let mut event = reply.event(event.what.clone());
            // Calls name the reply of this session, whose id is another one.
            set_call_reply(&mut event);
            let is_over = event.what.is_terminal();
            ready.push_back(event);
            !is_over
        });
        (has_played, next)
    }

    /// Plays all that is due.
    fn play_all(&self, inner: &mut Inner) -> Option<Duration> {
        loop {
            if let (false, next) = self.play(inner) {
                return next;
            }
        }
    }
}

impl Inner {
    fn cancel(&mut self, matches: impl Fn(&PlayedReply) -> bool) {
        let (reason, usage) = (FinishReason::Cancelled, Usage::default());
        self.end(matches, &ReplyEvent::Finished { reason, usage });
    }

    fn end(&mut self, matches: impl Fn(&PlayedReply) -> bool, what: &ReplyEvent) {
        let ended = self.replies.extract_if(.., |reply| matches(reply));
        self.ready.extend(ended.map(|reply| reply.event(what.clone())));
    }
}

impl EngineClient for PlayerClient {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        let mut inner = self.lock();
        if inner.is_stopped {
            return Err(TrySendError::Closed(command));
        }
        self.command(&mut inner, command);
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        let mut inner = self.lock();
        if inner.ready.is_empty() {
            self.play_all(&mut inner);
        }
        inner.ready.pop_front()
    }

    fn frame(&self) {
        self.lock().frame += 1;
    }

    fn set_paused(&self, is_paused: bool) {
        let mut inner = self.lock();
        match (is_paused, inner.paused_since) {
            (true, None) => inner.paused_since = Some(Instant::now()),
            (false, Some(since)) => {
                inner.paused += since.elapsed();
                inner.paused_since = None;
            }
            _ => {}
        }
    }

    fn state(&self) -> EngineState {
        if self.lock().is_stopped { EngineState::Stopped } else { EngineState::Ready }
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    /// It accepts every ask of the recording.
    fn capabilities(&self) -> Capabilities {
        Capabilities::LOCAL
    }

    fn max_wait(&self) -> Option<Duration> {
        let mut inner = self.lock();
        let next = self.play_all(&mut inner);
        if inner.ready.is_empty() { next } else { Some(Duration::ZERO) }
    }

    fn stop(&self) {
        let mut inner = self.lock();
        inner.is_stopped = true;
        let reason = "the player was stopped".into();
        inner.end(|_| true, &ReplyEvent::Failed(ReplyError::EngineGone(reason)));
    }

    /// A host is not woken: [`max_wait`](Self::max_wait) is the time until the next event.
    fn register_waker(&self, _waker: &Waker) {}
}
