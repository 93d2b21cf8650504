//! An engine that replies from a script: for the tests of games, and of this crate.
//!
//! It has no model, thread or clock. An agent speaks one word each time a frame is granted, so a
//! test of dialogue runs in microseconds and gives the same result on every machine.
//!
//! ```
//! use bevy_app::App;
//! use bevy_walla::{prelude::*, scripted::ScriptedEngine};
//!
//! let engine = ScriptedEngine::new(|persona, question| format!("{persona} You said: {question}"));
//! let mut app = App::new();
//! app.add_plugins(WallaPlugin::new(&engine));
//! let odo = app.world_mut().spawn(Agent::persona("I am Odo.")).id();
//! app.world_mut().trigger(Ask::new(odo, "Hello!"));
//! for _ in 0..20 {
//!     app.update();
//! }
//! let talk = app.world().get::<Conversation>(odo).unwrap();
//! assert_eq!(talk.last_reply(), Some("I am Odo. You said: Hello!"));
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use walla_runtime::{
    AgentId, AgentSpec, CacheError, Call, CallError, CallId, Capabilities, Command, EngineClient,
    EngineError, EngineState, EngineStats, Event, FinishReason, History, InlineText,
    MAX_ASKS_WAITING, MAX_DELTA_BYTES, MalformedCall, Prompt, RefusedCall, ReplyError, ReplyEvent,
    ReplyId, Score, TrySendError, Usage,
};

/// Capacity of the command queue.
const COMMAND_QUEUE_DEFAULT: usize = 1_024;

/// Maximum number of commands that [`ScriptedEngine::commands`] returns.
const MAX_LOG: usize = 4_096;

/// A handle of a scripted engine; clones share the engine.
#[derive(Clone)]
pub struct ScriptedEngine {
    inner: Arc<Mutex<Inner>>,
}

/// Maps persona and question to a reply.
type Script = Box<dyn Fn(&str, &str) -> String + Send>;

/// Maps persona and question to calls: names, and arguments in JSON.
type CallScript = Box<dyn Fn(&str, &str) -> Vec<(String, String)> + Send>;

struct Inner {
    script: Script,
    reasoning: Option<Script>,
    acting: Option<CallScript>,
    endless: bool,
    state: EngineState,
    command_queue: usize,
    frames: u64,
    log: Vec<Command>,
    commands: VecDeque<Command>,
    agents: BTreeMap<AgentId, ScriptedAgent>,
    events: VecDeque<Event>,
    stats: EngineStats,
}

struct ScriptedAgent {
    spec: AgentSpec,
    asks: VecDeque<ScriptedReply>,
}

/// A reply in progress.
struct ScriptedReply {
    reply_id: ReplyId,
    /// Published before the text.
    reasoning: String,
    reasoned_bytes: usize,
    reasoning_tokens: u32,
    max_reasoning_tokens: u32,
    text: String,
    said_bytes: usize,
    /// Published behind the text.
    calls: VecDeque<(String, String)>,
    /// It has calls, also if all are published.
    acts: bool,
    calls_made: u32,
    started: bool,
    tokens: u32,
}

impl ScriptedEngine {
    /// An engine that is ready. `script` maps persona and question to the answer.
    pub fn new(script: impl Fn(&str, &str) -> String + Send + 'static) -> Self {
        let inner = Inner {
            script: Box::new(script),
            reasoning: None,
            acting: None,
            endless: false,
            state: EngineState::Ready,
            command_queue: COMMAND_QUEUE_DEFAULT,
            frames: 0,
            log: Vec::new(),
            commands: VecDeque::new(),
            agents: BTreeMap::new(),
            events: VecDeque::new(),
            stats: EngineStats::default(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Replies restart after their end, until they are cancelled: for tests of the steady state.
    /// Replies with [calls](Self::acting) end.
    #[must_use]
    pub fn endless(self) -> Self {
        self.lock().endless = true;
        self
    }

    /// Agents with [`thinking`](AgentSpec::thinking) reason before they speak. The script maps
    /// persona and question to the reasoning. A frame publishes one word of it, up to the agent's
    /// limit of tokens.
    #[must_use]
    pub fn reasoning(self, script: impl Fn(&str, &str) -> String + Send + 'static) -> Self {
        self.lock().reasoning = Some(Box::new(script));
        self
    }

    /// Replies of agents with actions end with calls. The script maps persona and question to the
    /// calls: the name of an action, and its arguments as a JSON object. A frame publishes one
    /// call. A call whose arguments are not JSON is refused.
    ///
    /// In a reply without a question, the question is the latest turn of the conversation: the
    /// result of an action, or an observation.
    #[must_use]
    pub fn acting(
        self,
        script: impl Fn(&str, &str) -> Vec<(String, String)> + Send + 'static,
    ) -> Self {
        self.lock().acting = Some(Box::new(script));
        self
    }

    /// Sets the capacity of the command queue; further commands are refused.
    #[must_use]
    pub fn command_queue(self, commands: usize) -> Self {
        self.lock().command_queue = commands;
        self
    }

    /// Starts in this state instead of ready.
    #[must_use]
    pub fn starting_in(self, state: EngineState) -> Self {
        self.set_state(state);
        self
    }

    /// A function that returns a client of this engine, for
    /// [`EngineSetup::client`](crate::engines::EngineSetup::client).
    pub fn new_client(&self) -> impl Fn() -> Box<dyn EngineClient> + Send + Sync + use<> {
        let engine = self.clone();
        move || Box::new(engine.clone())
    }

    /// Changes the state. A failed state ends every reply, as in an engine that fails.
    pub fn set_state(&self, state: EngineState) {
        let mut inner = self.lock();
        inner.state = state;
        inner.end_if_over();
    }

    /// The commands received so far, in order (the first 4,096 of them).
    #[must_use]
    pub fn commands(&self) -> Vec<Command> {
        self.lock().log.clone()
    }

    /// Number of agents.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.lock().agents.len()
    }

    /// Number of granted frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.lock().frames
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineClient for ScriptedEngine {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        let mut inner = self.lock();
        if inner.state.is_over() {
            return Err(TrySendError::Closed(command));
        }
        if inner.commands.len() >= inner.command_queue {
            return Err(TrySendError::Full(command));
        }
        // A test that runs for hours must not end by its memory.
        if inner.log.len() < MAX_LOG {
            inner.log.push(command.clone());
        }
        inner.commands.push_back(command);
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        let mut inner = self.lock();
        inner.apply_commands();
        inner.events.pop_front()
    }

    fn try_recv_many(&self, most: usize, events: &mut Vec<Event>) -> usize {
        // One lock for all: the default takes it for each event.
        let mut inner = self.lock();
        inner.apply_commands();
        let count = most.min(inner.events.len());
        events.extend(inner.events.drain(..count));
        count
    }

    fn frame(&self) {
        let mut inner = self.lock();
        inner.frames += 1;
        inner.apply_commands();
        if matches!(inner.state, EngineState::Ready) {
            inner.step();
        }
    }

    fn state(&self) -> EngineState {
        self.lock().state.clone()
    }

    fn stats(&self) -> EngineStats {
        self.lock().stats
    }

    fn stop(&self) {
        self.set_state(EngineState::Stopped);
    }

    /// It accepts every ask, constrains nothing and has no cache.
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::LOCAL;
        capabilities.cache_files = false;
        capabilities
    }
}

impl Inner {
    fn apply_commands(&mut self) {
        while matches!(self.state, EngineState::Ready)
            && let Some(command) = self.commands.pop_front()
        {
            self.apply_command(command);
        }
    }

    fn apply_command(&mut self, command: Command) {
        match command {
            Command::AddAgent { agent, spec } => self.add(agent, *spec),
            Command::ChangeAgent { agent, spec } => {
                if let Some(scripted) = self.agents.get_mut(&agent) {
                    scripted.spec = *spec;
                }
            }
            Command::SetDetail { agent, detail } => {
                if let Some(scripted) = self.agents.get_mut(&agent) {
                    scripted.spec.detail = detail;
                }
            }
            Command::SetConversation { agent, turns } => {
                let Some(scripted) = self.agents.get_mut(&agent) else { return };
                scripted.spec.turns = turns;
                self.cancel(agent, |_| true);
            }
            Command::AppendTurns { agent, turns } => {
                if let Some(scripted) = self.agents.get_mut(&agent) {
                    scripted.spec.turns.extend(turns);
                }
            }
            Command::EditConversation { agent, edit } => {
                let copied = edit.source().and_then(|source| self.agents.get(&source));
                let copied = copied.map(|source| History::new(source.spec.turns.clone()));
                let Some(scripted) = self.agents.get_mut(&agent) else { return };
                let mut history = History::new(std::mem::take(&mut scripted.spec.turns));
                history.edit(edit, copied);
                scripted.spec.turns = history.turns().to_vec();
                self.cancel(agent, |_| true);
            }
            Command::ForkAgent { agent, source, spec } => {
                let spec = spec.map(|spec| *spec);
                let known = || Some(self.agents.get(&source)?.spec.clone());
                if let Some(spec) = spec.or_else(known) {
                    self.add(agent, spec);
                }
            }
            Command::CopyCache { ticket, .. } => ticket.fail(CacheError::Unsupported),
            Command::RemoveAgent { agent } => {
                self.cancel(agent, |_| true);
                self.agents.remove(&agent);
            }
            Command::Ask { agent, reply_id, options, .. } if options.score.is_some() => {
                self.score(agent, reply_id, options.score.as_deref().map_or(&[], Vec::as_slice));
            }
            Command::Ask { agent, reply_id, prompt, .. } => self.ask(agent, reply_id, prompt),
            Command::Cancel { agent, reply_id } | Command::CancelHeard { agent, reply_id, .. } => {
                self.cancel(agent, |reply| reply.reply_id == reply_id);
            }
        }
    }

    /// Scores texts at once: a word counts as a token, and earlier texts are more probable.
    fn score(&mut self, agent: AgentId, reply_id: ReplyId, texts: &[String]) {
        let mut send = |what| self.events.push_back(Event { agent, reply_id, what });
        if !self.agents.contains_key(&agent) {
            return send(ReplyEvent::Failed(ReplyError::UnknownAgent));
        }
        send(ReplyEvent::Started { prompt_tokens: 1 });
        for (index, text) in (0..).zip(texts) {
            let tokens = text.split_whitespace().count() as u32;
            let log_probability = -(((index + 1) * tokens) as f32);
            send(ReplyEvent::Score(Score { index, tokens, log_probability }));
        }
        let (reason, usage) = (FinishReason::Scored, Usage::default());
        send(ReplyEvent::Finished { reason, usage });
    }

    fn ask(&mut self, agent: AgentId, reply_id: ReplyId, prompt: Prompt) {
        let mut fail = |error| {
            let what = ReplyEvent::Failed(error);
            self.events.push_back(Event { agent, reply_id, what });
        };
        let Some(scripted) = self.agents.get_mut(&agent) else {
            return fail(ReplyError::UnknownAgent);
        };
        if scripted.asks.len() >= MAX_ASKS_WAITING {
            return fail(ReplyError::Busy { waiting: MAX_ASKS_WAITING as u32 });
        }
        let question = match prompt {
            Prompt::Chat(text) | Prompt::Raw(text) | Prompt::RawTrusted(text) => text,
            Prompt::Named(named) => named.text,
            Prompt::Tokens(tokens) => format!("{tokens:?}"),
            Prompt::Continue | Prompt::Results(_) | Prompt::Again => {
                scripted.spec.turns.last().map(|turn| turn.text.clone()).unwrap_or_default()
            }
        };
        let text = (self.script)(&scripted.spec.persona, &question);
        let acting = self.acting.as_ref().filter(|_| scripted.spec.actions.is_some());
        let calls = acting.map(|script| script(&scripted.spec.persona, &question));
        let calls = calls.unwrap_or_default();
        let reasoning = self.reasoning.as_ref().filter(|_| scripted.spec.thinking);
        let reasoning = reasoning.map(|script| script(&scripted.spec.persona, &question));
        scripted.asks.push_back(ScriptedReply {
            reply_id,
            reasoning: reasoning.unwrap_or_default(),
            reasoned_bytes: 0,
            reasoning_tokens: 0,
            max_reasoning_tokens: scripted.spec.max_reasoning_tokens,
            text,
            said_bytes: 0,
            acts: !calls.is_empty(),
            calls: calls.into(),
            calls_made: 0,
            started: false,
            tokens: 0,
        });
    }

    /// Produces one word for every agent with an open ask.
    fn step(&mut self) {
        let Self { agents, events, endless, stats, .. } = self;
        stats.steps += 1;
        stats.step_rows = 0;
        for (&agent, scripted) in agents.iter_mut() {
            let Some(reply) = scripted.asks.front_mut() else { continue };
            let what = reply.next(*endless && !reply.acts);
            stats.tokens += u64::from(matches!(what, ReplyEvent::Delta { .. }));
            stats.step_rows += 1;
            let event = Event { agent, reply_id: reply.reply_id, what };
            if event.what.is_terminal() {
                scripted.asks.pop_front();
            }
            events.push_back(event);
        }
        stats.agents = agents.len() as u32;
        stats.agents_active = stats.step_rows;
        stats.asks_waiting = agents.values().map(|a| a.asks.len().saturating_sub(1) as u32).sum();
    }

    fn add(&mut self, agent: AgentId, spec: AgentSpec) {
        self.agents.insert(agent, ScriptedAgent { spec, asks: VecDeque::new() });
    }

    /// Ends the asks of an agent that match.
    fn cancel(&mut self, agent: AgentId, mut matches: impl FnMut(&ScriptedReply) -> bool) {
        let Self { agents, events, .. } = self;
        let Some(scripted) = agents.get_mut(&agent) else { return };
        scripted.asks.retain(|reply| {
            let is_ended = matches(reply);
            if is_ended {
                let (reason, usage) = (FinishReason::Cancelled, reply.usage());
                let what = ReplyEvent::Finished { reason, usage };
                events.push_back(Event { agent, reply_id: reply.reply_id, what });
            }
            !is_ended
        });
    }

    fn end_if_over(&mut self) {
        let reason = match &self.state {
            EngineState::Failed(error) => error.to_string(),
            EngineState::Stopped => EngineError::Stopped.to_string(),
            EngineState::Loading { .. } | EngineState::Ready => return,
        };
        let gone = ReplyEvent::Failed(ReplyError::EngineGone(reason));
        for (agent, scripted) in std::mem::take(&mut self.agents) {
            self.events.extend(scripted.asks.into_iter().map(|reply| Event {
                agent,
                reply_id: reply.reply_id,
                what: gone.clone(),
            }));
        }
        for command in self.commands.drain(..) {
            if let Command::Ask { agent, reply_id, .. } = command {
                self.events.push_back(Event { agent, reply_id, what: gone.clone() });
            }
        }
    }
}

impl ScriptedReply {
    fn next(&mut self, endless: bool) -> ReplyEvent {
        if !self.started {
            self.started = true;
            return ReplyEvent::Started { prompt_tokens: 1 };
        }
        let may_reason = self.reasoning_tokens < self.max_reasoning_tokens;
        if may_reason && self.reasoned_bytes < self.reasoning.len() {
            let text = next_word(&self.reasoning, &mut self.reasoned_bytes);
            self.reasoning_tokens += 1;
            return ReplyEvent::Reasoning { text, tokens: 1 };
        }
        if endless && self.said_bytes >= self.text.len() {
            self.said_bytes = 0;
        }
        if self.said_bytes >= self.text.len()
            && let Some((name, arguments)) = self.calls.pop_front()
        {
            let id = CallId { reply_id: self.reply_id, index: self.calls_made };
            self.calls_made += 1;
            return match Call::new(id, name, &arguments) {
                Ok(call) => ReplyEvent::Call(Box::new(call)),
                Err(_) => {
                    let error = CallError::Syntax { reason: "the script gave no JSON" };
                    let call = MalformedCall { text: arguments, error };
                    ReplyEvent::CallRefused(Box::new(RefusedCall { id, call }))
                }
            };
        }
        if self.said_bytes >= self.text.len() {
            return ReplyEvent::Finished { reason: FinishReason::EndOfTurn, usage: self.usage() };
        }
        let text = next_word(&self.text, &mut self.said_bytes);
        self.tokens += 1;
        ReplyEvent::Delta { text, tokens: 1 }
    }

    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: 1,
            reply_tokens: self.tokens,
            reasoning_tokens: self.reasoning_tokens,
            ..Usage::default()
        }
    }
}

/// The next word with the space before it, as most tokenizers split. `said_bytes`: bytes of the
/// text that were already published.
fn next_word(text: &str, said_bytes: &mut usize) -> InlineText<MAX_DELTA_BYTES> {
    let rest = text.get(*said_bytes..).unwrap_or_default();
    let word_bytes = rest.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(i, _)| i);
    let word = rest.get(..word_bytes.unwrap_or(rest.len())).unwrap_or_default();
    let mut text = InlineText::new();
    let left_over = text.push(word);
    *said_bytes += word.len() - left_over.len();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_a_conversation_ends_waiting_asks_too() {
        let engine = ScriptedEngine::new(|_, _| "one two three".into());
        let agent = AgentId::unique();
        let send = |command| engine.try_send(command).unwrap();
        send(Command::AddAgent { agent, spec: Box::new(AgentSpec::new("")) });
        let asks = [(); 3].map(|()| ReplyId::unique());
        for reply_id in asks {
            send(Command::ask(agent, reply_id, Prompt::Chat("count".into())));
        }
        engine.frame();
        send(Command::SetConversation { agent, turns: Vec::new() });
        let events: Vec<Event> = std::iter::from_fn(|| engine.try_recv()).collect();
        let ended = |reply_id| {
            events.iter().filter(|e| e.reply_id == reply_id && e.what.is_terminal()).count()
        };
        assert_eq!(asks.map(ended), [1; 3]);
    }
}
