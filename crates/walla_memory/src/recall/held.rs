//! Commands of agents that wait for a search.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use walla_embed::answer::Wanted;
use walla_runtime::{AgentId, AskOptions, Command, Notes, Prompt, Speaker, Turn};

use super::search::{Found, searched};
use crate::{AgentRecall, Search};

/// Commands that can be held back, of all agents together. Each agent may hold back a few asks, as
/// the engine keeps only a few.
pub(crate) const MAX_HELD: usize = 65_536;

/// A command of an agent, in its order.
#[derive(Debug)]
pub(crate) enum Held {
    /// An ask that waits for its search, at most until then. `recall`: the settings at the ask.
    Ask {
        command: Command,
        recall: Arc<AgentRecall>,
        wanted: Wanted<Found>,
        until: Option<Instant>,
    },
    /// Another command, which waits for the asks before it.
    Other(Command),
    /// The copy of this agent, which waits for the asks before it. The flag is set when it is sent.
    Fork { command: Command, is_sent: Arc<AtomicBool> },
    /// First command of a copy that was not sent: the commands of the copy follow.
    Behind(Arc<AtomicBool>),
}

/// State of an agent in the client.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub recall: Option<Arc<AgentRecall>>,
    latest: Latest,
    pub held: VecDeque<Held>,
}

/// Texts that are searched for asks without a text.
#[derive(Clone, Debug, Default)]
struct Latest {
    /// The latest question or appended turn, for an ask that continues.
    turn: Arc<str>,
    /// The text that the latest ask has searched, for its repetition.
    asked: Arc<str>,
}

/// Agents with memories or with held commands.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    pub known: BTreeMap<AgentId, Known>,
    /// Commands in all `held` queues.
    pub held: usize,
}

impl Agents {
    /// Remembers the texts of an agent for its copy.
    pub fn copy_texts(&mut self, command: &Command) {
        let Command::ForkAgent { agent, source, spec } = command else { return };
        let latest = match (spec, self.known.get(source)) {
            (Some(spec), _) => Latest::of(&spec.turns),
            (None, Some(source)) => source.latest.clone(),
            (None, None) => return,
        };
        self.known.entry(*agent).or_default().latest = latest;
    }

    /// Holds back the copy of an agent behind the asks of the agent, and the commands of the copy
    /// behind it.
    pub fn hold_fork(&mut self, source: AgentId, command: Command) {
        self.copy_texts(&command);
        let is_sent = Arc::new(AtomicBool::new(false));
        let behind = Held::Behind(Arc::clone(&is_sent));
        self.known.entry(command.agent()).or_default().held.push_back(behind);
        let fork = Held::Fork { command, is_sent };
        self.known.entry(source).or_default().held.push_back(fork);
        self.held += 2;
    }
}

impl Known {
    /// The search of an ask with the settings of its agent; `None`: it needs none.
    pub fn search(
        &mut self,
        command: &Command,
        now: Duration,
    ) -> Option<(Search, Arc<AgentRecall>)> {
        let recall = self.recall.as_ref()?;
        let Command::Ask { prompt, options, .. } = command else { return None };
        match prompt {
            Prompt::Chat(_) | Prompt::Named(_) => {
                self.latest.turn = searched(prompt.text());
                self.latest.asked = Arc::clone(&self.latest.turn);
            }
            Prompt::Results(results) => {
                if let Some(last) = results.last() {
                    self.latest.turn = searched(&last.text);
                }
                self.latest.asked = Arc::clone(&self.latest.turn);
            }
            Prompt::Continue => self.latest.asked = Arc::clone(&self.latest.turn),
            Prompt::Again => {}
            Prompt::Raw(_) | Prompt::RawTrusted(_) | Prompt::Tokens(_) => return None,
        }
        let is_empty = recall.memories.is_empty() || recall.max_entries == 0;
        // Its own notes replace what would be found.
        if options.notes.is_some() || is_empty || self.latest.asked.trim().is_empty() {
            return None;
        }
        let search = Search {
            text: Arc::clone(&self.latest.asked),
            memories: recall.memories.clone(),
            reader: recall.reader.clone(),
            tags: recall.tags.clone(),
            now,
            max_entries: recall.max_entries,
            recent_skipped: recall.recent_skipped,
            weights: recall.weights.clone(),
        };
        Some((search, Arc::clone(recall)))
    }

    /// Remembers texts that later asks without a text refer to.
    pub fn observe(&mut self, command: &Command) {
        match command {
            Command::AppendTurns { turns, .. } => {
                if let Some(turn) = turns.last() {
                    self.latest.turn = searched(&turn.text);
                }
            }
            Command::AddAgent { spec, .. } => self.latest = Latest::of(&spec.turns),
            Command::SetConversation { turns, .. } => self.latest = Latest::of(turns),
            _ => {}
        }
    }

    /// Whether nothing is known of the agent.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.recall.is_none() && self.latest.turn.is_empty()
    }

    /// Whether its commands wait for a copy that was not sent.
    pub fn is_behind(&self) -> bool {
        self.held.iter().any(|held| matches!(held, Held::Behind(_)))
    }
}

impl Latest {
    fn of(turns: &[Turn]) -> Self {
        let is_own = |turn: &&Turn| !matches!(turn.speaker, Speaker::Agent | Speaker::Action);
        let last = |turns: &[Turn]| {
            turns.iter().rfind(is_own).map_or_else(Arc::default, |turn| searched(&turn.text))
        };
        let reply = turns.iter().rposition(|turn| turn.speaker == Speaker::Agent);
        let asked = reply.and_then(|reply| turns.get(..reply)).map_or_else(Arc::default, last);
        Self { turn: last(turns), asked }
    }
}

/// The command of an ask with the found entries as notes.
pub(crate) fn with_notes(command: Command, recall: &AgentRecall, found: &Found) -> Command {
    let Command::Ask { agent, reply_id, prompt, options } = command else { return command };
    let texts: Vec<_> = found.entries.iter().map(|found| Arc::clone(&found.entry.text)).collect();
    let (heading, max_tokens) = (Arc::clone(&recall.heading), recall.max_tokens);
    let notes = (!texts.is_empty()).then(|| Arc::new(Notes { heading, texts, max_tokens }));
    let options = AskOptions { notes, ..options };
    Command::Ask { agent, reply_id, prompt, options }
}

/// Whether a command ends the wait of the asks before it: their replies are cancelled anyway.
pub(crate) fn ends_waits(command: &Command) -> bool {
    matches!(
        command,
        Command::Cancel { .. }
            | Command::CancelHeard { .. }
            | Command::RemoveAgent { .. }
            | Command::SetConversation { .. }
            | Command::EditConversation { .. }
    )
}

/// The agent whose earlier commands a command must follow.
pub(crate) fn follows(command: &Command) -> AgentId {
    match command {
        Command::ForkAgent { source, .. } => *source,
        other => other.agent(),
    }
}
