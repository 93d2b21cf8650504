//! A model of an engine's conversations: the documented effects of every command, without text
//! reply id. It advances only when a test steps it, at random.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bevy_walla::actions::{Call, CallId};
use bevy_walla::conversation::{Speaker, Turn};
use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{
    AgentId, Capabilities, Command, EngineClient, EngineState, Event, MAX_ASKS_WAITING,
    MAX_EXCHANGES_KNOWN, Prompt, ReplyEvent, TrySendError,
};
use bevy_walla::reply::{FinishReason, InlineText, ReplyError, ReplyId, Usage};

use crate::common::dice::Dice;

/// A handle of the model; clones share it.
#[derive(Clone)]
pub struct EngineModel(Arc<Mutex<State>>);

struct State {
    dice: Dice,
    commands: VecDeque<Command>,
    max_commands: usize,
    commands_received: u64,
    events: VecDeque<Event>,
    is_paused: bool,
    agents: BTreeMap<AgentId, Character>,
    /// What happened, for the message of a failed test.
    log: Vec<String>,
}

/// An agent in the engine.
#[derive(Default)]
struct Character {
    persona: String,
    turns: Vec<Turn>,
    /// Appended turns that follow the open asks.
    later: Vec<Turn>,
    /// The latest exchanges: the reply, the index of its first turn, and that of its answer.
    exchanges: VecDeque<(ReplyId, usize, usize)>,
    asks: VecDeque<WaitingAsk>,
    reply: Option<Reply>,
}

struct WaitingAsk {
    reply_id: ReplyId,
    prompt: Prompt,
    /// Turns that were appended between the ask before and this one.
    turns_before: Vec<Turn>,
}

/// A reply in progress.
struct Reply {
    reply_id: ReplyId,
    asked: Asked,
    /// Words that are not said yet.
    words: VecDeque<String>,
    /// Calls that are not made yet.
    calls_left: u32,
    /// The texts of the calls so far.
    acted: Vec<Turn>,
    said: String,
    heard_bytes: u32,
    has_started: bool,
    has_reasoned: bool,
    will_fail: bool,
}

enum Asked {
    Question(String),
    /// The conversation as it was.
    Conversation,
    /// Raw text, which is not part of a conversation.
    Raw,
}

impl EngineModel {
    /// A model whose mailbox keeps `max_commands` commands.
    pub fn new(dice: Dice, max_commands: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            dice,
            commands: VecDeque::new(),
            max_commands,
            commands_received: 0,
            events: VecDeque::new(),
            is_paused: false,
            agents: BTreeMap::new(),
            log: Vec::new(),
        })))
    }

    /// A function that returns a client, for
    /// [`EngineSetup::client`](bevy_walla::engines::EngineSetup::client).
    pub fn new_client(&self) -> impl Fn() -> Box<dyn EngineClient> + Send + Sync + 'static {
        let engine = self.clone();
        move || Box::new(engine.clone())
    }

    /// Applies all commands. Outside of a pause, most agents also advance by one event.
    pub fn step(&self) {
        let mut state = self.lock();
        state.apply_commands();
        if !state.is_paused {
            state.advance();
        }
    }

    /// Whether no command and no event is under way.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        let mut agents = state.agents.values();
        let is_silent = agents.all(|agent| agent.reply.is_none() && agent.asks.is_empty());
        state.commands.is_empty() && state.events.is_empty() && is_silent
    }

    /// Number of commands so far.
    pub fn commands_received(&self) -> u64 {
        self.lock().commands_received
    }

    /// Conversations by persona.
    pub fn conversations(&self) -> BTreeMap<String, Vec<Turn>> {
        let state = self.lock();
        let of_agent = |agent: &Character| {
            assert!(agent.later.is_empty(), "turns wait although no ask is open");
            (agent.persona.clone(), agent.turns.clone())
        };
        state.agents.values().map(of_agent).collect()
    }

    pub fn note(&self, line: String) {
        self.lock().log.push(line);
    }

    /// All commands, events and notes, in order.
    pub fn log(&self) -> String {
        self.lock().log.join("\n")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineClient for EngineModel {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        let mut state = self.lock();
        if state.commands.len() >= state.max_commands {
            return Err(TrySendError::Full(command));
        }
        state.log.push(described(&command));
        state.commands_received += 1;
        state.commands.push_back(command);
        Ok(())
    }

    fn try_recv(&self) -> Option<Event> {
        self.lock().events.pop_front()
    }

    fn frame(&self) {}

    fn set_paused(&self, is_paused: bool) {
        self.lock().is_paused = is_paused;
    }

    fn stop(&self) {}

    fn capabilities(&self) -> Capabilities {
        Capabilities::LOCAL
    }

    fn state(&self) -> EngineState {
        EngineState::Ready
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

fn described(command: &Command) -> String {
    let texts = |turns: &[Turn]| turns.iter().map(|turn| turn.text.clone()).collect::<Vec<_>>();
    match command {
        Command::AddAgent { agent, spec } => {
            format!("  > AddAgent {} {} {:?}", agent.0, spec.persona, texts(&spec.turns))
        }
        Command::ChangeAgent { agent, spec } => {
            format!("  > ChangeAgent {} {}", agent.0, spec.persona)
        }
        Command::SetConversation { agent, turns } => {
            format!("  > SetConversation {} {:?}", agent.0, texts(turns))
        }
        Command::AppendTurns { agent, turns } => {
            format!("  > AppendTurns {} {:?}", agent.0, texts(turns))
        }
        other => format!("  > {other:?}"),
    }
}

impl State {
    fn publish(&mut self, agent: AgentId, reply_id: ReplyId, what: ReplyEvent) {
        let event = match &what {
            ReplyEvent::Delta { text, .. } => format!("Delta {:?}", &**text),
            ReplyEvent::Finished { reason, .. } => format!("Finished {reason:?}"),
            other => format!("{other:?}"),
        };
        self.log.push(format!("  < {} {} {event}", agent.0, reply_id.0));
        self.events.push_back(Event { agent, reply_id, what });
    }

    fn apply_commands(&mut self) {
        while let Some(command) = self.commands.pop_front() {
            self.apply_command(command);
        }
    }

    fn apply_command(&mut self, command: Command) {
        match command {
            Command::AddAgent { agent, spec } => {
                let (persona, turns) = (spec.persona, spec.turns);
                self.agents.insert(agent, Character { persona, turns, ..Character::default() });
            }
            Command::ForkAgent { agent, spec, .. } => {
                let spec = spec.expect("the plugin knows the components of a copy");
                let (persona, turns) = (spec.persona, spec.turns);
                self.agents.insert(agent, Character { persona, turns, ..Character::default() });
            }
            Command::CopyCache { .. } => panic!("the game copies no caches"),
            Command::EditConversation { .. } => panic!("the plugin edits its components"),
            Command::ChangeAgent { agent, spec } => {
                if let Some(character) = self.agents.get_mut(&agent) {
                    character.persona = spec.persona;
                }
            }
            Command::SetDetail { .. } => {}
            Command::SetConversation { agent, turns } => {
                self.cancel(agent, None);
                if let Some(character) = self.agents.get_mut(&agent) {
                    character.replace_turns(turns);
                }
            }
            Command::AppendTurns { agent, turns } => {
                if let Some(character) = self.agents.get_mut(&agent) {
                    character.later.extend(turns);
                    character.settle_turns();
                }
            }
            Command::RemoveAgent { agent } => {
                self.cancel(agent, None);
                self.agents.remove(&agent);
            }
            Command::Ask { agent, reply_id, prompt, .. } => self.ask(agent, reply_id, prompt),
            Command::Cancel { agent, reply_id } => self.cancel(agent, Some(reply_id)),
            Command::CancelHeard { agent, reply_id, heard_bytes } => {
                if let Some(character) = self.agents.get_mut(&agent) {
                    character.interrupt(reply_id, heard_bytes);
                }
                self.cancel(agent, Some(reply_id));
            }
        }
    }

    fn ask(&mut self, agent: AgentId, reply_id: ReplyId, prompt: Prompt) {
        let failed = match self.agents.get_mut(&agent) {
            None => ReplyError::UnknownAgent,
            Some(character) if character.asks.len() >= MAX_ASKS_WAITING => {
                ReplyError::Busy { waiting: MAX_ASKS_WAITING as u32 }
            }
            Some(character) => {
                let turns_before = std::mem::take(&mut character.later);
                character.asks.push_back(WaitingAsk { reply_id, prompt, turns_before });
                return;
            }
        };
        self.publish(agent, reply_id, ReplyEvent::Failed(failed));
    }

    /// Cancels a reply or a waiting ask. `None`: all of them.
    fn cancel(&mut self, agent: AgentId, reply_id: Option<ReplyId>) {
        let Some(character) = self.agents.get_mut(&agent) else { return };
        for reply_id in character.cancel(reply_id) {
            let usage = Usage::default();
            let what = ReplyEvent::Finished { reason: FinishReason::Cancelled, usage };
            self.publish(agent, reply_id, what);
        }
    }

    /// Two of three agents begin their next ask or publish the next event of their reply.
    fn advance(&mut self) {
        let ids: Vec<_> = self.agents.keys().copied().collect();
        for id in ids {
            let Some(character) = self.agents.get_mut(&id) else { continue };
            if self.dice.one_in(3) {
                continue;
            }
            if character.reply.is_none() {
                character.begin_next_ask(&mut self.dice);
            } else if let Some((reply_id, what)) = character.next_event(&mut self.dice) {
                self.publish(id, reply_id, what);
            }
        }
    }
}

impl Character {
    fn replace_turns(&mut self, turns: Vec<Turn>) {
        self.turns = turns;
        self.later.clear();
        self.exchanges.clear();
    }

    /// Moves appended turns into the conversation once no ask precedes them.
    fn settle_turns(&mut self) {
        if self.reply.is_none() && self.asks.is_empty() {
            self.turns.append(&mut self.later);
        }
    }

    fn begin_next_ask(&mut self, dice: &mut Dice) {
        let Some(ask) = self.asks.pop_front() else { return };
        self.turns.extend(ask.turns_before);
        let prompt = match ask.prompt {
            Prompt::Again => self.take_last_reply(),
            prompt => Some(prompt),
        };
        let mut reply = Reply::new(ask.reply_id, prompt.clone().unwrap_or(Prompt::Again), dice);
        reply.will_fail |= prompt.is_none();
        self.reply = Some(reply);
    }

    /// Removes the last reply, the question before it and all behind it.
    fn take_last_reply(&mut self) -> Option<Prompt> {
        let answer = self.turns.iter().rposition(|turn| turn.speaker == Speaker::Agent)?;
        let question = self.turns[..answer].last().filter(|turn| turn.speaker == Speaker::User);
        let question = question.map(|turn| turn.text.clone());
        self.turns.truncate(answer - usize::from(question.is_some()));
        let left = self.turns.len();
        self.exchanges.retain(|(.., answer)| *answer < left);
        Some(question.map_or(Prompt::Continue, Prompt::Chat))
    }

    /// The next event of the reply in progress. A reply that fails does so before it begins or
    /// after its first word.
    fn next_event(&mut self, dice: &mut Dice) -> Option<(ReplyId, ReplyEvent)> {
        let reply = self.reply.as_mut()?;
        let reply_id = reply.reply_id;
        let may_fail = !reply.has_started && dice.one_in(2) || !reply.said.is_empty();
        let fails = reply.will_fail && may_fail;
        if !fails && !reply.has_started {
            reply.has_started = true;
            return Some((reply_id, ReplyEvent::Started { prompt_tokens: 1 }));
        }
        if !fails && let Some(word) = reply.words.pop_front() {
            reply.said.push_str(&word);
            let mut text = InlineText::new();
            text.push(&word);
            return Some((reply_id, ReplyEvent::Delta { text, tokens: 1 }));
        }
        if !fails && reply.calls_left > 0 {
            reply.calls_left -= 1;
            let id = CallId { reply_id, index: reply.acted.len() as u32 };
            // No two calls have the same text.
            let arguments = format!(r#"{{"n": {}}}"#, reply_id.0 * 10 + u64::from(id.index));
            let call = Call::new(id, "wave", &arguments).expect("it is JSON");
            reply.acted.push(call.turn());
            return Some((reply_id, ReplyEvent::Call(Box::new(call))));
        }
        let reply = self.reply.take()?;
        let what = reply.end();
        self.keep_exchange(reply, matches!(what, ReplyEvent::Finished { .. }));
        self.settle_turns();
        Some((reply_id, what))
    }

    /// Adds question and answer to the conversation, unless the answer would be empty because it
    /// was cancelled, failed or interrupted.
    fn keep_exchange(&mut self, mut reply: Reply, is_finished: bool) {
        cut_text(&mut reply.said, reply.heard_bytes);
        let has_spoken = !reply.said.is_empty() || !reply.acted.is_empty();
        let is_answered = (is_finished && !reply.has_reasoned) || has_spoken;
        if !reply.has_started || !is_answered || matches!(reply.asked, Asked::Raw) {
            return;
        }
        if self.exchanges.len() >= MAX_EXCHANGES_KNOWN {
            self.exchanges.pop_front();
        }
        let begin = self.turns.len();
        if let Asked::Question(text) = reply.asked {
            self.turns.push(Turn::new(Speaker::User, text));
        }
        self.exchanges.push_back((reply.reply_id, begin, self.turns.len()));
        self.turns.push(Turn::new(Speaker::Agent, reply.said));
        self.turns.extend(reply.acted);
    }

    /// Ends asks; returns them. The turns before an ask stay in the order of the commands.
    fn cancel(&mut self, reply_id: Option<ReplyId>) -> Vec<ReplyId> {
        let is_meant = |of: ReplyId| reply_id.is_none_or(|wanted| wanted == of);
        let mut ended = Vec::new();
        if let Some(reply) = self.reply.take_if(|reply| is_meant(reply.reply_id)) {
            ended.push(reply.reply_id);
            self.keep_exchange(reply, false);
        }
        let mut turns = Vec::new();
        self.asks.retain_mut(|ask| {
            turns.append(&mut ask.turns_before);
            if is_meant(ask.reply_id) {
                ended.push(ask.reply_id);
                return false;
            }
            ask.turns_before = std::mem::take(&mut turns);
            true
        });
        turns.append(&mut self.later);
        self.later = turns;
        self.settle_turns();
        ended
    }

    /// The caller cancels the reply.
    fn interrupt(&mut self, reply_id: ReplyId, heard_bytes: u32) {
        match &mut self.reply {
            Some(reply) if reply.reply_id == reply_id => reply.heard_bytes = heard_bytes,
            _ => self.shorten(reply_id, heard_bytes),
        }
    }

    /// Shortens a reply that has ended.
    fn shorten(&mut self, reply_id: ReplyId, heard_bytes: u32) {
        let known = self.exchanges.iter().position(|(of, ..)| *of == reply_id);
        let Some(at) = known else { return };
        let (_, begin, answer) = self.exchanges[at];
        cut_text(&mut self.turns[answer].text, heard_bytes);
        let next = self.turns.get(answer + 1);
        let has_acted = next.is_some_and(|turn| turn.speaker == Speaker::Action);
        if self.turns[answer].text.is_empty() && !has_acted {
            let removed = self.turns.drain(begin..=answer).len();
            self.exchanges.remove(at);
            for (_, begin, answer) in self.exchanges.iter_mut().skip(at) {
                (*begin, *answer) = (*begin - removed, *answer - removed);
            }
        }
    }
}

impl Reply {
    /// A random answer, which may be empty, reasoned only, or fail.
    fn new(reply_id: ReplyId, prompt: Prompt, dice: &mut Dice) -> Self {
        let (asked, text) = match prompt {
            Prompt::Chat(question) => {
                let text = format!("é{} to {question}.", dice.throw(6));
                (Asked::Question(question), text)
            }
            Prompt::Continue => {
                let text = format!("é{} as {}.", dice.throw(6), reply_id.0);
                (Asked::Conversation, text)
            }
            _ => (Asked::Raw, "raw text".to_owned()),
        };
        let is_empty = dice.one_in(6);
        let words = text.split_inclusive(' ').filter(|_| !is_empty).map(str::to_owned).collect();
        Self {
            reply_id,
            asked,
            words,
            calls_left: if dice.one_in(3) { dice.throw(3) as u32 } else { 0 },
            acted: Vec::new(),
            said: String::new(),
            heard_bytes: u32::MAX,
            has_started: false,
            has_reasoned: dice.one_in(4),
            will_fail: dice.one_in(12),
        }
    }

    fn end(&self) -> ReplyEvent {
        if self.will_fail {
            return ReplyEvent::Failed(ReplyError::NotFinite);
        }
        let reasoning_tokens = u32::from(self.has_reasoned);
        let usage = Usage { reasoning_tokens, ..Usage::default() };
        ReplyEvent::Finished { reason: FinishReason::EndOfTurn, usage }
    }
}

/// Cuts a text at a byte, or before the character that contains this byte.
fn cut_text(text: &mut String, bytes: u32) {
    text.truncate(text.floor_char_boundary(bytes as usize));
}
