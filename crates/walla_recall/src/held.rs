//! Commands of agents that wait for a search.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use walla_runtime::{AgentId, AskOptions, Command, Notes, Prompt};

use crate::answer::Wanted;
use crate::search::{Found, searched};
use crate::{AgentRecall, Search};

/// Commands that can be held back, of all agents together. Each agent may hold back a few asks, as
/// the engine keeps only a few.
pub(crate) const HELD_MAX: usize = 65_536;

/// A command of an agent, in its order.
#[derive(Debug)]
pub(crate) enum Held {
    /// An ask that waits for its search, at most until then.
    Ask { command: Command, wanted: Wanted<Found>, until: Option<Instant> },
    /// Another command, which waits for the asks before it.
    Other(Command),
}

/// State of an agent in the client.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub recall: Option<Arc<AgentRecall>>,
    /// Text of the latest question or appended turn, for asks without a text.
    latest: Arc<str>,
    pub held: VecDeque<Held>,
}

/// Agents with memories or with held commands.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    pub known: BTreeMap<AgentId, Known>,
    /// Commands in all `held` queues.
    pub held: usize,
}

impl Known {
    /// The search of an ask; `None`: it needs none.
    pub fn search(&mut self, command: &Command, now: Duration) -> Option<Search> {
        let recall = self.recall.as_ref()?;
        let Command::Ask { prompt, .. } = command else { return None };
        match prompt {
            Prompt::Chat(text) => self.latest = searched(text),
            Prompt::Continue | Prompt::Again => {}
            Prompt::Raw(_) | Prompt::RawTrusted(_) | Prompt::Tokens(_) => return None,
        }
        let is_empty = recall.memories.is_empty() || recall.entries_max == 0;
        if is_empty || self.latest.trim().is_empty() {
            return None;
        }
        Some(Search {
            text: Arc::clone(&self.latest),
            memories: recall.memories.clone(),
            reader: recall.reader.clone(),
            tags: recall.tags.clone(),
            now,
            entries_max: recall.entries_max,
            recent_skipped: recall.recent_skipped,
            weights: recall.weights.clone(),
        })
    }

    /// Remembers texts that later asks without a text refer to.
    pub fn observe(&mut self, command: &Command) {
        if let Command::AppendTurns { turns, .. } = command
            && let Some(turn) = turns.last()
        {
            self.latest = searched(&turn.text);
        }
    }
}

/// The command of an ask with the found entries as notes, behind the notes that it has.
pub(crate) fn with_notes(command: Command, recall: &AgentRecall, found: &Found) -> Command {
    let Command::Ask { agent, reply_id, prompt, options } = command else { return command };
    let texts = found.entries.iter().map(|found| Arc::clone(&found.entry.text));
    let notes = match &options.notes {
        Some(notes) => {
            let mut notes = Notes::clone(notes);
            notes.texts.extend(texts);
            notes.tokens_max = notes.tokens_max.saturating_add(recall.tokens_max);
            notes
        }
        None => Notes {
            heading: Arc::clone(&recall.heading),
            texts: texts.collect(),
            tokens_max: recall.tokens_max,
        },
    };
    let has_notes = !notes.texts.is_empty();
    let options = AskOptions { notes: has_notes.then(|| Arc::new(notes)), ..options };
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
