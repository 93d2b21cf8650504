//! An engine for tests: it keeps conversations as engines do, and speaks one word per frame.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use walla_runtime::{
    AgentId, AgentSpec, CacheError, Capabilities, Command, EngineClient, EngineState, EngineStats,
    Event, Exchange, FinishReason, FrameBudget, History, InlineText, Prompt, ReplyError,
    ReplyEvent, ReplyId, Speaker, TrySendError, Turn, Usage,
};

/// Conduct of an engine at an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// Speaks this many words.
    Speak(u32),
    /// Fails after this many words.
    Fail(u32),
    /// Begins, and has no output.
    Stall,
}

#[derive(Debug)]
struct Speaking {
    reply_id: ReplyId,
    question: Option<String>,
    conduct: Conduct,
    is_started: bool,
    speech: String,
    words: u32,
}

/// A sequence of numbers from a seed: splitmix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// An ask as the engine saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub reply_id: ReplyId,
    pub turns: Vec<String>,
    pub question: Option<String>,
    pub opening: Option<String>,
}

#[derive(Debug)]
struct Agent {
    spec: AgentSpec,
    history: History,
    reply: Option<Speaking>,
    asks: VecDeque<Speaking>,
}

pub struct Inner {
    name: &'static str,
    agents: BTreeMap<AgentId, Agent>,
    events: VecDeque<Event>,
    pub seen: Vec<Seen>,
    pub conduct: Box<dyn FnMut() -> Conduct + Send>,
    pub state: EngineState,
    pub capabilities: Capabilities,
    pub is_closed: bool,
    /// Commands that it refuses before it accepts one.
    pub refusals: u32,
    pub budgets: Vec<FrameBudget>,
    pub frames: u32,
}

/// A handle of the engine; its clone is a client.
#[derive(Clone)]
pub struct Talker(pub Arc<Mutex<Inner>>, &'static str);

impl Talker {
    pub fn new(name: &'static str) -> Self {
        let inner = Inner {
            name,
            agents: BTreeMap::new(),
            events: VecDeque::new(),
            seen: Vec::new(),
            conduct: Box::new(|| Conduct::Speak(2)),
            state: EngineState::Ready,
            capabilities: Capabilities::LOCAL,
            is_closed: false,
            refusals: 0,
            budgets: Vec::new(),
            frames: 0,
        };
        Self(Arc::new(Mutex::new(inner)), name)
    }

    pub fn name(&self) -> &'static str {
        self.1
    }

    pub fn client(&self) -> Box<dyn EngineClient> {
        Box::new(self.clone())
    }

    pub fn set<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.0.lock().expect("no panic"))
    }

    pub fn conducts(&self, conduct: Conduct) {
        self.set(|inner| inner.conduct = Box::new(move || conduct));
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.set(|inner| inner.seen.clone())
    }

    pub fn knows(&self, agent: AgentId) -> bool {
        self.set(|inner| inner.agents.contains_key(&agent))
    }

    /// Texts of the conversation that it knows.
    pub fn turns(&self, agent: AgentId) -> Vec<String> {
        self.set(|inner| {
            inner.agents.get(&agent).map_or_else(Vec::new, |agent| texts(agent.history.turns()))
        })
    }

    /// Ends as an engine does whose device is lost.
    pub fn die(&self) {
        self.set(|inner| {
            inner.state = EngineState::Stopped;
            inner.is_closed = true;
            let agents = std::mem::take(&mut inner.agents);
            for (agent, known) in agents {
                for reply in known.reply.into_iter().chain(known.asks) {
                    let what = ReplyEvent::Failed(ReplyError::EngineGone("dead".into()));
                    inner.events.push_back(Event { agent, reply_id: reply.reply_id, what });
                }
            }
        });
    }
}

pub fn texts(turns: &[Turn]) -> Vec<String> {
    turns.iter().map(|turn| turn.text.clone()).collect()
}

impl Inner {
    fn command(&mut self, command: Command) {
        match command {
            // Each router sends the whole specification of a copy.
            Command::ForkAgent { agent, spec: Some(mut spec), .. }
            | Command::AddAgent { agent, mut spec } => {
                let history = History::new(std::mem::take(&mut spec.turns));
                let (reply, asks) = (None, VecDeque::new());
                let before = self.agents.insert(agent, Agent { spec: *spec, history, reply, asks });
                assert!(before.is_none(), "added twice");
            }
            Command::ForkAgent { spec: None, .. } | Command::EditConversation { .. } => {
                panic!("an engine would do this with its own copy of a conversation")
            }
            Command::ChangeAgent { agent, spec } => {
                self.agents.get_mut(&agent).expect("known").spec = *spec;
            }
            Command::SetDetail { agent, detail } => {
                self.agents.get_mut(&agent).expect("known").spec.detail = detail;
            }
            Command::SetConversation { agent, turns } => {
                self.cancel_all(agent);
                let known = self.agents.get_mut(&agent).expect("known");
                known.history.replace(turns, 1_000);
            }
            Command::AppendTurns { agent, turns } => {
                let known = self.agents.get_mut(&agent).expect("known");
                assert!(known.reply.is_none(), "appended within a reply");
                known.history.extend(turns, 1_000);
            }
            Command::CopyCache { agent, ticket } => {
                assert!(self.agents.contains_key(&agent), "copied before it was added");
                ticket.fail(CacheError::Device(self.name.into()));
            }
            Command::RemoveAgent { agent } => {
                self.cancel_all(agent);
                assert!(self.agents.remove(&agent).is_some(), "removed twice");
            }
            Command::Ask { agent, reply_id, prompt, options } => {
                let conduct = (self.conduct)();
                let known = self.agents.get_mut(&agent).expect("asked before it was added");
                let question = match prompt {
                    Prompt::Chat(question) => Some(question),
                    _ => None,
                };
                let opening = options.opening.map(|opening| opening.to_string());
                let turns = texts(known.history.turns());
                self.seen.push(Seen { reply_id, turns, question: question.clone(), opening });
                let (is_started, speech, words) = (false, String::new(), 0);
                known.asks.push_back(Speaking {
                    reply_id,
                    question,
                    conduct,
                    is_started,
                    speech,
                    words,
                });
            }
            Command::Cancel { agent, reply_id } => self.cancel(agent, reply_id, u32::MAX),
            Command::CancelHeard { agent, reply_id, heard_bytes } => {
                self.cancel(agent, reply_id, heard_bytes);
            }
        }
    }

    fn cancel_all(&mut self, agent: AgentId) {
        let known = self.agents.get(&agent).expect("known");
        let open = known.reply.iter().chain(&known.asks).map(|reply| reply.reply_id);
        for reply_id in open.collect::<Vec<_>>() {
            self.cancel(agent, reply_id, u32::MAX);
        }
    }

    fn cancel(&mut self, agent: AgentId, reply_id: ReplyId, heard_bytes: u32) {
        let known = self.agents.get_mut(&agent).expect("known");
        let is_it = |reply: &Speaking| reply.reply_id == reply_id;
        let what = ReplyEvent::Finished { reason: FinishReason::Cancelled, usage: usage() };
        if known.reply.as_ref().is_some_and(is_it) {
            known.end(heard_bytes, false);
        } else if let Some(at) = known.asks.iter().position(is_it) {
            known.asks.remove(at);
        } else {
            known.history.shorten_reply(reply_id, heard_bytes);
            return;
        }
        self.events.push_back(Event { agent, reply_id, what });
    }

    fn step(&mut self) {
        for (&agent, known) in &mut self.agents {
            if known.reply.is_none() {
                known.reply = known.asks.pop_front();
            }
            let Some(reply) = &mut known.reply else { continue };
            let reply_id = reply.reply_id;
            let mut say = |what| self.events.push_back(Event { agent, reply_id, what });
            if !std::mem::replace(&mut reply.is_started, true) {
                say(ReplyEvent::Started { prompt_tokens: 1 });
                continue;
            }
            match reply.conduct {
                Conduct::Stall => {}
                Conduct::Speak(words) | Conduct::Fail(words) if reply.words < words => {
                    let word = format!("{}.{} ", reply_id.0, reply.words);
                    reply.words += 1;
                    reply.speech.push_str(&word);
                    let mut text = InlineText::new();
                    text.push(&word);
                    say(ReplyEvent::Delta { text, tokens: 1 });
                }
                Conduct::Speak(_) => {
                    let reason = FinishReason::EndOfTurn;
                    say(ReplyEvent::Finished { reason, usage: usage() });
                    known.end(u32::MAX, true);
                }
                Conduct::Fail(_) => {
                    say(ReplyEvent::Failed(ReplyError::Device("broken".into())));
                    known.end(u32::MAX, false);
                }
            }
        }
    }
}

fn usage() -> Usage {
    Usage { first_token_micros: 1, total_micros: 2, ..Usage::default() }
}

impl Agent {
    fn end(&mut self, heard_bytes: u32, is_answer: bool) {
        let Some(reply) = self.reply.take().filter(|reply| reply.is_started) else { return };
        let Speaking { reply_id, question, speech, .. } = reply;
        let question = question.map(|text| Turn::new(Speaker::User, text));
        let exchange = Exchange { reply_id, question, speech, actions: Vec::new() };
        self.history.end_reply(exchange, heard_bytes, is_answer);
    }
}

impl EngineClient for Talker {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.set(|inner| {
            if inner.is_closed {
                return Err(TrySendError::Closed(command));
            }
            if inner.refusals > 0 {
                inner.refusals -= 1;
                return Err(TrySendError::Full(command));
            }
            inner.command(command);
            Ok(())
        })
    }

    fn try_recv(&self) -> Option<Event> {
        self.set(|inner| inner.events.pop_front())
    }

    fn frame(&self) {
        self.set(|inner| {
            inner.frames += 1;
            inner.step();
        });
    }

    fn state(&self) -> EngineState {
        self.set(|inner| inner.state.clone())
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn capabilities(&self) -> Capabilities {
        self.set(|inner| inner.capabilities)
    }

    fn set_budget(&self, budget: FrameBudget) {
        self.set(|inner| inner.budgets.push(budget));
    }

    fn stop(&self) {
        self.die();
    }

    fn register_waker(&self, _waker: &Waker) {}
}
