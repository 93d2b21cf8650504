//! The replies of a recording, by agent.

use std::collections::HashMap;

use walla_runtime::{
    AgentId, AskOptions, Command, Event, FinishReason, Logged, Prompt, ReplyError, ReplyEvent,
    ReplyId, Score, Usage,
};
use walla_types::TokenId;

use crate::recording::{Entry, Record, Recording};

/// An agent of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAgent {
    /// Its number.
    pub agent: AgentId,
    /// Its persona when it was added. `None`: a copy with the specification of its source.
    pub persona: Option<String>,
    /// The agent that it is a copy of.
    pub source: Option<AgentId>,
    /// Indices of its asks in [`Session::asks`], in order.
    pub asks: Vec<usize>,
}

/// An ask and its reply.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedAsk {
    /// The agent.
    pub agent: AgentId,
    /// The reply.
    pub reply_id: ReplyId,
    /// Content of the ask.
    pub prompt: Prompt,
    /// Settings of the ask.
    pub options: AskOptions,
    /// Frames that were granted before the ask.
    pub frame: u64,
    /// Microseconds from the begin of the session to the ask.
    pub micros: u64,
    /// Indices of the events of its reply in [`Recording::entries`].
    pub events: Vec<usize>,
    /// The reply.
    pub reply: ReplyText,
}

/// The content of a reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplyText {
    /// Whether the engine has begun it. Only a local engine with details reports this; otherwise
    /// as `is_started`.
    pub has_begun: bool,
    /// Whether its prompt was encoded.
    pub is_started: bool,
    /// Ids of all tokens, if the recording has them.
    pub tokens: Vec<TokenId>,
    /// Number of tokens with text, by the counts of deltas.
    pub tokens_of_text: u32,
    /// Speech.
    pub speech: String,
    /// Reasoning.
    pub reasoning: String,
    /// Texts of calls and refused calls, in order.
    pub calls: Vec<String>,
    /// Scores of texts, in place of a text.
    pub scores: Vec<Score>,
    /// How it ended. `None`: it did not.
    pub end: Option<Result<(FinishReason, Usage), ReplyError>>,
}

impl ReplyText {
    /// Applies an event.
    pub fn apply(&mut self, what: &ReplyEvent) {
        match what {
            ReplyEvent::Started { .. } => (self.has_begun, self.is_started) = (true, true),
            ReplyEvent::Delta { text, tokens } => {
                self.speech.push_str(text);
                self.tokens_of_text = self.tokens_of_text.saturating_add(*tokens);
            }
            ReplyEvent::Reasoning { text, tokens } => {
                self.reasoning.push_str(text);
                self.tokens_of_text = self.tokens_of_text.saturating_add(*tokens);
            }
            ReplyEvent::Call(call) => self.calls.push(call.text()),
            ReplyEvent::CallRefused(refused) => self.calls.push(refused.call.text.clone()),
            ReplyEvent::Score(score) => self.scores.push(*score),
            ReplyEvent::Logged(Logged::Begun) => self.has_begun = true,
            ReplyEvent::Logged(Logged::Tokens(run)) => self.tokens.extend(run.tokens()),
            &ReplyEvent::Finished { reason, usage } => self.end = Some(Ok((reason, usage))),
            ReplyEvent::Failed(error) => self.end = Some(Err(error.clone())),
            _ => {}
        }
    }

    /// Number of tokens, as far as it is known.
    #[must_use]
    pub fn token_count(&self) -> u32 {
        let of_usage = match &self.end {
            Some(Ok((_, usage))) => usage
                .reply_tokens
                .saturating_add(usage.reasoning_tokens)
                .saturating_add(usage.call_tokens),
            _ => 0,
        };
        (self.tokens.len() as u32).max(self.tokens_of_text).max(of_usage)
    }
}

/// Agents, asks and replies of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// All agents, in the order of their appearance.
    pub agents: Vec<RecordedAgent>,
    /// All asks, in the order in which the host sent them.
    pub asks: Vec<RecordedAsk>,
}

impl Session {
    /// The session of a recording. Events of replies that were never asked are left out.
    #[must_use]
    pub fn new(recording: &Recording) -> Self {
        let mut session = Self::default();
        let mut places: HashMap<ReplyId, usize> = HashMap::new();
        let mut agents: HashMap<AgentId, usize> = HashMap::new();
        for (index, Entry { frame, micros, record }) in recording.entries.iter().enumerate() {
            match record {
                Record::Command(command) => {
                    let agent = command.agent();
                    let at = *agents.entry(agent).or_insert_with(|| {
                        let (persona, source) = origin(command);
                        let asks = Vec::new();
                        session.agents.push(RecordedAgent { agent, persona, source, asks });
                        session.agents.len() - 1
                    });
                    let Command::Ask { reply_id, prompt, options, .. } = &**command else {
                        continue;
                    };
                    if places.contains_key(reply_id) {
                        continue;
                    }
                    places.insert(*reply_id, session.asks.len());
                    if let Some(agent) = session.agents.get_mut(at) {
                        agent.asks.push(session.asks.len());
                    }
                    session.asks.push(RecordedAsk {
                        agent,
                        reply_id: *reply_id,
                        prompt: prompt.clone(),
                        options: options.clone(),
                        frame: *frame,
                        micros: *micros,
                        events: Vec::new(),
                        reply: ReplyText::default(),
                    });
                }
                Record::Event(Event { agent, reply_id, what }) => {
                    let ask = places.get(reply_id).and_then(|at| session.asks.get_mut(*at));
                    let of_agent =
                        |ask: &&mut RecordedAsk| ask.agent == *agent && ask.reply.end.is_none();
                    if let Some(ask) = ask.filter(of_agent) {
                        ask.events.push(index);
                        ask.reply.apply(what);
                    }
                }
                Record::Engine(_) | Record::Paused(_) => {}
            }
        }
        session
    }

    /// Number of tokens of all replies.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.asks.iter().map(|ask| u64::from(ask.reply.token_count())).sum()
    }
}

/// Persona and source of the agent that a command adds.
fn origin(command: &Command) -> (Option<String>, Option<AgentId>) {
    match command {
        Command::AddAgent { spec, .. } => (Some(spec.persona.clone()), None),
        Command::ForkAgent { source, spec, .. } => {
            (spec.as_ref().map(|spec| spec.persona.clone()), Some(*source))
        }
        _ => (None, None),
    }
}

/// Maximum bytes of an ask in an error.
const MAX_SHOWN_BYTES: usize = 200;

/// The content of an ask, shortened, as a part of errors.
pub(crate) fn describe(prompt: &Prompt) -> String {
    let (kind, text) = match prompt {
        Prompt::Chat(_) | Prompt::Named(_) => ("", prompt.text()),
        Prompt::Raw(text) => ("raw: ", text.as_str()),
        Prompt::RawTrusted(text) => ("trusted: ", text.as_str()),
        Prompt::Continue => ("(continue)", ""),
        Prompt::Again => ("(again)", ""),
        Prompt::Results(results) => return format!("({} results)", results.len()),
        Prompt::Tokens(tokens) => return format!("({} tokens)", tokens.len()),
    };
    let shown = &text[..text.floor_char_boundary(MAX_SHOWN_BYTES)];
    format!("{kind}{shown}{}", if shown.len() < text.len() { "…" } else { "" })
}
