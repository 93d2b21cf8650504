//! Pending changes of an agent: only the latest of each kind, so that their memory is bounded.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::atomic::AtomicCell;
use walla_runtime::{AgentId, AgentSpec, Command, Detail, ReplyId, Turn};
use walla_types::Mark;

use super::bounds::AgentPermit;

/// A new specification.
#[derive(Debug)]
struct NewSpec {
    spec: AgentSpec,
    number: u64,
}

/// A new conversation.
#[derive(Debug)]
struct NewTurns {
    turns: Vec<Turn>,
    /// Asks with lower ids are cancelled.
    asked_before: ReplyId,
}

/// No host blocks on a lock.
const _: () = assert!(
    AtomicCell::<Option<Box<NewSpec>>>::is_lock_free()
        && AtomicCell::<Option<Box<NewTurns>>>::is_lock_free()
);

/// Pending changes of one agent.
///
/// A host stores a change, then sets `is_told`; if that was not set, it sends a message. The event
/// loop clears `is_told`, then takes the changes: so it takes every change, or another message
/// follows.
///
/// A specification contains a level of detail, which can also change alone. Both are numbered, and
/// the later one counts.
pub(crate) struct Changes {
    id: AgentId,
    spec: AtomicCell<Option<Box<NewSpec>>>,
    /// The latest level of detail that was set alone: its number in the upper bits.
    detail: AtomicU64,
    /// Number of the latest specification or level of detail.
    number: AtomicU64,
    /// The level of detail that was sent last. Written only by the event loop.
    detail_sent: AtomicU64,
    turns: AtomicCell<Option<Box<NewTurns>>>,
    is_removed: AtomicBool,
    is_told: Mark,
    /// Asks with lower ids are cancelled. Written only by the event loop.
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
        let turns = std::mem::take(&mut spec.turns);
        let turns = NewTurns { turns, asked_before: ReplyId(0) };
        Self {
            id,
            spec: AtomicCell::new(Some(Box::new(NewSpec { spec, number: 0 }))),
            detail: AtomicU64::new(0),
            number: AtomicU64::new(0),
            detail_sent: AtomicU64::new(0),
            turns: AtomicCell::new(Some(Box::new(turns))),
            is_removed: AtomicBool::new(false),
            is_told: Mark::new(true),
            asked_before: AtomicU64::new(0),
            is_added: AtomicBool::new(false),
            _permit: permit,
        }
    }

    /// Changes of a copy of another agent, which the event loop adds with
    /// [`added`](Self::added).
    pub fn of_fork(id: AgentId, permit: AgentPermit) -> Self {
        let changes = Self::new(id, AgentSpec::new(""), permit);
        changes.spec.take();
        changes.turns.take();
        changes.is_told.take();
        changes
    }

    /// The engine knows the agent. Returns `false` if the host has dropped it before. Called by the
    /// event loop.
    #[must_use]
    pub fn added(&self) -> bool {
        let is_wanted = !self.is_removed.load(Ordering::SeqCst);
        self.is_added.store(is_wanted, Ordering::Relaxed);
        is_wanted
    }

    /// Whether the engine knows the agent. Called by the event loop.
    pub fn is_known(&self) -> bool {
        self.is_added.load(Ordering::Relaxed) && !self.is_removed.load(Ordering::SeqCst)
    }

    pub fn id(&self) -> AgentId {
        self.id
    }

    /// Stores a new specification. `true`: the caller sends a message.
    #[must_use]
    pub fn set_spec(&self, mut spec: AgentSpec) -> bool {
        // Turns have a separate cell, so that a specification never replaces them.
        spec.turns = Vec::new();
        let number = self.next_number();
        self.spec.store(Some(Box::new(NewSpec { spec, number })));
        self.tell()
    }

    /// Stores a new level of detail. `true`: the caller sends a message.
    #[must_use]
    pub fn set_detail(&self, detail: Detail) -> bool {
        self.detail.fetch_max(numbered(self.next_number(), detail), Ordering::SeqCst);
        self.tell()
    }

    fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Stores a new conversation. `true`: the caller sends a message.
    #[must_use]
    pub fn set_turns(&self, turns: Vec<Turn>, asked_before: ReplyId) -> bool {
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
        !self.is_told.set()
    }

    /// Takes all changes, as commands for the engine. Called by the event loop.
    pub fn take(&self, mut send: impl FnMut(Command)) {
        // First: a change that is stored from here on sends another message.
        self.is_told.take();
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
        // Loaded after the specification: a level that was set before it is never missed.
        let detail = self.detail.load(Ordering::SeqCst);
        let has_new_detail = self.detail_sent.swap(detail, Ordering::Relaxed) != detail;
        if let Some(turns) = &turns {
            self.asked_before.fetch_max(turns.asked_before.0, Ordering::Relaxed);
        }
        let turns = turns.map(|new| new.turns);
        if let Some(new) = spec {
            let NewSpec { mut spec, number } = *new;
            // A level that was set behind the specification is not in it.
            if number_of(detail) > number {
                spec.detail = detail_of(detail);
            }
            if !is_added {
                self.is_added.store(true, Ordering::Relaxed);
                spec.turns = turns.unwrap_or_default();
                return send(Command::AddAgent { agent, spec: Box::new(spec) });
            }
            send(Command::ChangeAgent { agent, spec: Box::new(spec) });
        } else if has_new_detail && is_added {
            send(Command::SetDetail { agent, detail: detail_of(detail) });
        }
        if let Some(turns) = turns {
            send(Command::SetConversation { agent, turns });
        }
    }

    /// Whether a later change has cancelled an ask that the event loop has just read. Called by the
    /// event loop.
    pub fn cancels(&self, reply_id: ReplyId) -> bool {
        self.is_removed.load(Ordering::SeqCst)
            || reply_id.0 < self.asked_before.load(Ordering::Relaxed)
    }
}

/// Bits of a level of detail.
const DETAIL_BITS: u32 = 2;

fn numbered(number: u64, detail: Detail) -> u64 {
    let bits = match detail {
        Detail::Full => 0,
        Detail::Reduced => 1,
        Detail::Background => 2,
    };
    number << DETAIL_BITS | bits
}

fn number_of(numbered: u64) -> u64 {
    numbered >> DETAIL_BITS
}

fn detail_of(numbered: u64) -> Detail {
    match numbered % (1 << DETAIL_BITS) {
        0 => Detail::Full,
        1 => Detail::Reduced,
        _ => Detail::Background,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walla_runtime::Speaker;

    use super::super::bounds::{Bounds, BoundsMax};
    use super::*;

    fn turn(text: &str) -> Vec<Turn> {
        vec![Turn::new(Speaker::User, text)]
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
    fn the_latest_change_of_each_kind_is_sent_once() {
        let agent = AgentId(1);
        let changes = changes(AgentSpec { turns: turn("before"), ..AgentSpec::new("first") });
        assert!(!changes.set_spec(AgentSpec { turns: turn("no"), ..AgentSpec::new("second") }));
        let spec = AgentSpec { turns: turn("before"), ..AgentSpec::new("second") };
        assert_eq!(taken(&changes), [Command::AddAgent { agent, spec: Box::new(spec) }]);
        assert_eq!(taken(&changes), []);
        assert!(changes.set_turns(turn("one"), ReplyId(5)));
        assert!(!changes.set_spec(AgentSpec::new("third")));
        assert!(!changes.set_turns(turn("two"), ReplyId(9)));
        assert!(!changes.cancels(ReplyId(7)), "not told yet");
        let third = Box::new(AgentSpec::new("third"));
        let expected = [
            Command::ChangeAgent { agent, spec: third },
            Command::SetConversation { agent, turns: turn("two") },
        ];
        assert_eq!(taken(&changes), expected);
        assert!(changes.cancels(ReplyId(8)) && !changes.cancels(ReplyId(9)));
        assert!(changes.remove());
        assert!(changes.cancels(ReplyId(9)));
        assert_eq!(taken(&changes), [Command::RemoveAgent { agent }]);
        assert_eq!(taken(&changes), []);
    }

    #[test]
    fn the_latest_level_of_detail_wins_alone_or_in_a_specification() {
        let agent = AgentId(1);
        let spec = |detail| AgentSpec { detail, ..AgentSpec::new("p") };
        let boxed = |detail| Box::new(spec(detail));
        let changes = changes(spec(Detail::Full));
        assert!(!changes.set_detail(Detail::Background), "told with the agent");
        let added = Command::AddAgent { agent, spec: boxed(Detail::Background) };
        assert_eq!(taken(&changes), [added]);
        assert!(changes.set_detail(Detail::Reduced));
        assert!(!changes.set_detail(Detail::Full));
        assert_eq!(taken(&changes), [Command::SetDetail { agent, detail: Detail::Full }]);
        assert!(changes.set_detail(Detail::Full));
        let again = [Command::SetDetail { agent, detail: Detail::Full }];
        assert_eq!(taken(&changes), again);
        assert!(changes.set_detail(Detail::Background));
        assert!(!changes.set_spec(spec(Detail::Reduced)));
        let changed = |detail| [Command::ChangeAgent { agent, spec: boxed(detail) }];
        assert_eq!(taken(&changes), changed(Detail::Reduced));
        assert!(changes.set_spec(spec(Detail::Full)));
        assert!(!changes.set_detail(Detail::Background));
        assert_eq!(taken(&changes), changed(Detail::Background));
        assert!(changes.set_turns(turn("one"), ReplyId(5)));
        let only_turns = [Command::SetConversation { agent, turns: turn("one") }];
        assert_eq!(taken(&changes), only_turns, "a level is told once");
        assert!(changes.remove() && !changes.set_detail(Detail::Full));
        assert_eq!(taken(&changes), [Command::RemoveAgent { agent }]);
    }

    #[test]
    fn an_agent_dropped_before_it_was_added_sends_no_command() {
        let changes = changes(AgentSpec::new("nobody"));
        assert!(!changes.remove());
        assert_eq!(taken(&changes), []);
    }
}
