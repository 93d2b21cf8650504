//! Pending changes of an agent: only the latest of each kind, so that their memory is bounded.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::atomic::AtomicCell;
use walla_runtime::{AgentId, AgentSpec, Command, GenerationId, Turn};

use super::bounds::AgentPermit;

/// A new conversation.
#[derive(Debug)]
struct NewTurns {
    turns: Vec<Turn>,
    /// Asks with lower generations are cancelled.
    asked_before: GenerationId,
}

/// No host blocks on a lock.
const _: () = assert!(
    AtomicCell::<Option<Box<AgentSpec>>>::is_lock_free()
        && AtomicCell::<Option<Box<NewTurns>>>::is_lock_free()
);

/// Pending changes of one agent.
///
/// A host stores a change, then sets `is_told`; if that was not set, it sends a message. The event
/// loop clears `is_told`, then takes the changes: so it takes every change, or another message
/// follows.
pub(crate) struct Changes {
    id: AgentId,
    spec: AtomicCell<Option<Box<AgentSpec>>>,
    turns: AtomicCell<Option<Box<NewTurns>>>,
    is_removed: AtomicBool,
    is_told: AtomicBool,
    /// Asks with lower generations are cancelled. Written only by the event loop.
    asked_before: AtomicU64,
    /// The agent was sent to the engine. Written only by the event loop.
    is_added: AtomicBool,
    _permit: AgentPermit,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Changes {
    /// Changes of a new agent. The caller sends the first message.
    pub fn new(id: AgentId, mut spec: AgentSpec, permit: AgentPermit) -> Self {
        let turns = std::mem::take(&mut spec.history);
        let turns = NewTurns { turns, asked_before: GenerationId(0) };
        Self {
            id,
            spec: AtomicCell::new(Some(Box::new(spec))),
            turns: AtomicCell::new(Some(Box::new(turns))),
            is_removed: AtomicBool::new(false),
            is_told: AtomicBool::new(true),
            asked_before: AtomicU64::new(0),
            is_added: AtomicBool::new(false),
            _permit: permit,
        }
    }

    pub fn id(&self) -> AgentId {
        self.id
    }

    /// Stores a new specification. `true`: the caller sends a message.
    #[must_use]
    pub fn set_spec(&self, mut spec: AgentSpec) -> bool {
        spec.history = Vec::new();
        self.spec.store(Some(Box::new(spec)));
        self.tell()
    }

    /// Stores a new conversation. `true`: the caller sends a message.
    #[must_use]
    pub fn set_turns(&self, turns: Vec<Turn>, asked_before: GenerationId) -> bool {
        self.turns.store(Some(Box::new(NewTurns { turns, asked_before })));
        self.tell()
    }

    /// The host has dropped the agent. `true`: the caller sends a message.
    #[must_use]
    pub fn remove(&self) -> bool {
        self.is_removed.store(true, Ordering::SeqCst);
        self.tell()
    }

    fn tell(&self) -> bool {
        !self.is_told.swap(true, Ordering::SeqCst)
    }

    /// Takes all changes, as commands for the engine. Called by the event loop.
    pub fn take(&self, mut send: impl FnMut(Command)) {
        self.is_told.store(false, Ordering::SeqCst);
        let agent = self.id;
        let is_added = self.is_added.load(Ordering::Relaxed);
        if self.is_removed.load(Ordering::SeqCst) {
            self.is_added.store(false, Ordering::Relaxed);
            if is_added {
                send(Command::RemoveAgent { agent });
            }
            return;
        }
        let (spec, turns) = (self.spec.take(), self.turns.take());
        if let Some(turns) = &turns {
            self.asked_before.fetch_max(turns.asked_before.0, Ordering::Relaxed);
        }
        let turns = turns.map(|new| new.turns);
        match spec {
            Some(mut spec) if !is_added => {
                self.is_added.store(true, Ordering::Relaxed);
                spec.history = turns.unwrap_or_default();
                return send(Command::AddAgent { agent, spec });
            }
            Some(spec) => send(Command::ChangeAgent { agent, spec }),
            None => {}
        }
        if let Some(turns) = turns {
            send(Command::SetConversation { agent, turns });
        }
    }

    /// Whether a later change has cancelled an ask that the event loop has just read. Called by the
    /// event loop.
    pub fn cancels(&self, generation: GenerationId) -> bool {
        self.is_removed.load(Ordering::SeqCst)
            || generation.0 < self.asked_before.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walla_runtime::Speaker;

    use super::super::bounds::{Bounds, BoundsMax};
    use super::*;

    fn turn(text: &str) -> Vec<Turn> {
        vec![Turn { speaker: Speaker::User, text: text.into() }]
    }

    fn changes(spec: AgentSpec) -> Changes {
        let max = BoundsMax { asks: 1, ask_bytes: 1, agents: 1, slots: 1 };
        let permit = Bounds::reserve_agent(&Arc::new(Bounds::new(max))).unwrap();
        Changes::new(AgentId(1), spec, permit)
    }

    fn taken(changes: &Changes) -> Vec<Command> {
        let mut commands = Vec::new();
        changes.take(|command| commands.push(command));
        commands
    }

    #[test]
    fn the_latest_change_of_each_kind_is_told_once() {
        let agent = AgentId(1);
        let changes = changes(AgentSpec { history: turn("before"), ..AgentSpec::new("first") });
        assert!(!changes.set_spec(AgentSpec { history: turn("no"), ..AgentSpec::new("second") }));
        let spec = AgentSpec { history: turn("before"), ..AgentSpec::new("second") };
        assert_eq!(taken(&changes), [Command::AddAgent { agent, spec: Box::new(spec) }]);
        assert_eq!(taken(&changes), []);
        assert!(changes.set_turns(turn("one"), GenerationId(5)));
        assert!(!changes.set_spec(AgentSpec::new("third")));
        assert!(!changes.set_turns(turn("two"), GenerationId(9)));
        assert!(!changes.cancels(GenerationId(7)), "not told yet");
        let third = Box::new(AgentSpec::new("third"));
        let expected = [
            Command::ChangeAgent { agent, spec: third },
            Command::SetConversation { agent, turns: turn("two") },
        ];
        assert_eq!(taken(&changes), expected);
        assert!(changes.cancels(GenerationId(8)) && !changes.cancels(GenerationId(9)));
        assert!(changes.remove());
        assert!(changes.cancels(GenerationId(9)));
        assert_eq!(taken(&changes), [Command::RemoveAgent { agent }]);
        assert_eq!(taken(&changes), []);
    }

    #[test]
    fn an_agent_that_goes_before_the_engine_knows_it_is_not_told() {
        let changes = changes(AgentSpec::new("nobody"));
        assert!(!changes.remove());
        assert_eq!(taken(&changes), []);
    }
}
