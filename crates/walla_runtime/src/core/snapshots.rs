//! Snapshots of recurrent states.
//!
//! The state of a recurrent layer covers a whole sequence: it cannot be cut, and a prefix of it
//! cannot be shared. A snapshot is a copy of the state after some tokens. It is a sequence of the
//! ledger that no agent has, so it also shares the pages of those tokens. An agent whose prompt
//! begins with these tokens continues from a copy.
//!
//! # When
//! | place | for |
//! |---|---|
//! | the end of a common prefix of two agents, in whole pages | agents with the same persona |
//! | the end of a background prefill | the next ask, if its prompt replaces the last tokens |
//! | the end of a prompt | the next ask, if it writes the reply differently |
//!
//! Only the first place divides a chunk. A snapshot can be used when the step that computed it has
//! completed.
//!
//! # Which one is replaced
//! An agent continues from its latest snapshot, or from an earlier one: a repeated reply, and a
//! question in place of the last one, need a snapshot in front of that question. So each agent has
//! a second snapshot, of the earlier ones the last that was used. Others are replaced first, then
//! the second ones, then the latest ones and the ones of common prefixes; of equal ones the least
//! recently used. The end of a background prefill includes the end of the prompt before it, which
//! is no second snapshot then. If pages are lacking, snapshots lose theirs in this order before
//! agents do.

use walla_types::{SeqId, TokenId};

use super::Core;
use super::kv_cache::KvCache;
use super::pages::PREFIX_PAGES_MIN;
use crate::api::AgentId;

/// Purpose of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A prefix of several agents.
    #[default]
    Shared,
    /// The prompt of this agent's reply.
    Prompt(AgentId),
    /// This agent's prompt in front of its next question.
    Prepared(AgentId),
}

impl Purpose {
    fn agent(self) -> Option<AgentId> {
        match self {
            Self::Shared => None,
            Self::Prompt(agent) | Self::Prepared(agent) => Some(agent),
        }
    }
}

/// How useful a snapshot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    /// Its agent has two others, or is gone.
    #[default]
    Low,
    /// Its agent has a later one.
    Second,
    /// The latest one of its agent, or one of a common prefix.
    Latest,
}

/// A snapshot, or an unused place for one.
#[derive(Debug, Default)]
struct Snapshot {
    /// The tokens that the state covers; none: unused.
    tokens: Vec<TokenId>,
    /// Maximum length of the copied sequence since it was empty.
    reached: u32,
    /// The step that computes the state; `None` after it has completed.
    step: Option<u64>,
    purpose: Purpose,
    value: Value,
    /// Time of the last use, in uses of all snapshots.
    last_use: u64,
}

impl Snapshot {
    /// Snapshots with a lower value are replaced first.
    fn order(&self) -> (Value, u64) {
        (self.value, self.last_use)
    }
}

/// All snapshots. Their sequences follow the agents' sequences.
#[derive(Debug)]
pub(super) struct Snapshots {
    all: Vec<Snapshot>,
    first: u32,
    uses: u64,
    /// Number of times that agents have continued from a snapshot.
    #[cfg(test)]
    restored: u32,
}

impl Snapshots {
    /// `count` places for at most `max_tokens` tokens each; their first sequence is `first`.
    pub fn new(first: u32, count: u32, max_tokens: u32) -> Self {
        let place =
            |_| Snapshot { tokens: Vec::with_capacity(max_tokens as usize), ..Snapshot::default() };
        Self {
            all: (0..count).map(place).collect(),
            first,
            uses: 0,
            #[cfg(test)]
            restored: 0,
        }
    }

    fn seq(&self, place: usize) -> SeqId {
        SeqId(self.first + place as u32)
    }

    fn use_now(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// The snapshot after exactly these tokens.
    fn find(&self, tokens: &[TokenId]) -> Option<usize> {
        self.all.iter().position(|snapshot| !tokens.is_empty() && snapshot.tokens == tokens)
    }

    /// The place for a new snapshot: an unused one, or the one that is replaced first.
    fn next_place(&self) -> Option<usize> {
        let order = |&place: &usize| {
            let snapshot = &self.all[place];
            (!snapshot.tokens.is_empty(), snapshot.order())
        };
        (0..self.all.len()).min_by_key(order)
    }

    /// A new snapshot supersedes earlier ones of its agent, except for the one that was used last.
    fn supersede(&mut self, new: Purpose) {
        let Some(agent) = new.agent() else { return };
        let is_own = |snapshot: &Snapshot| snapshot.purpose.agent() == Some(agent);
        let is_included =
            |old: Purpose| new == Purpose::Prepared(agent) && old == Purpose::Prompt(agent);
        let own = self.all.iter().enumerate().filter(|(_, snapshot)| is_own(snapshot));
        let kept = own
            .filter(|(_, own)| own.value > Value::Low && !is_included(own.purpose))
            .max_by_key(|(_, own)| own.last_use)
            .map(|(place, _)| place);
        for (place, own) in self.all.iter_mut().enumerate().filter(|(_, own)| is_own(own)) {
            own.value = if kept == Some(place) { Value::Second } else { Value::Low };
        }
    }
}

impl KvCache {
    /// Whether sequences have recurrent states.
    pub fn is_recurrent(&self) -> bool {
        self.ledger().options().recurrent
    }

    /// Whether there are places for snapshots.
    pub fn has_snapshots(&self) -> bool {
        !self.snapshots.all.is_empty()
    }

    /// Snapshots in use.
    pub fn snapshots_used(&self) -> u32 {
        self.snapshots.all.iter().filter(|snapshot| !snapshot.tokens.is_empty()).count() as u32
    }

    /// Number of times that agents have continued from a snapshot.
    #[cfg(test)]
    pub fn snapshots_restored(&self) -> u32 {
        self.snapshots.restored
    }

    /// Whether a step in flight computes the snapshot after these tokens.
    pub fn awaits_snapshot(&self, tokens: &[TokenId]) -> bool {
        let place = self.snapshots.find(tokens);
        place.is_some_and(|place| self.snapshots.all[place].step.is_some())
    }

    /// Whether there is no snapshot after these tokens, computed or not.
    fn lacks_snapshot(&self, tokens: &[TokenId]) -> bool {
        self.snapshots.find(tokens).is_none()
    }

    /// Takes a snapshot of a sequence after all its tokens, which `step` computes.
    pub fn take_snapshot(
        &mut self,
        slot: usize,
        (tokens, reached): (&[TokenId], u32),
        purpose: Purpose,
        step: u64,
    ) {
        debug_assert_eq!(tokens.len() as u32, self.len(slot));
        let now = self.snapshots.use_now();
        if let Some(place) = self.snapshots.find(tokens) {
            let snapshot = &mut self.snapshots.all[place];
            (snapshot.last_use, snapshot.value) = (now, Value::Latest);
            return;
        }
        self.snapshots.supersede(purpose);
        let Some(place) = self.snapshots.next_place().filter(|_| self.has_commands()) else {
            return;
        };
        self.drop_snapshot(place);
        if !self.copy_whole(SeqId(slot as u32), self.snapshots.seq(place)) {
            return;
        }
        let snapshot = &mut self.snapshots.all[place];
        snapshot.tokens.extend_from_slice(tokens);
        (snapshot.reached, snapshot.step) = (reached, Some(step));
        (snapshot.purpose, snapshot.value, snapshot.last_use) = (purpose, Value::Latest, now);
    }

    /// An agent was removed: its snapshots are replaced first.
    pub fn supersede_snapshots(&mut self, agent: AgentId) {
        for snapshot in &mut self.snapshots.all {
            if snapshot.purpose.agent() == Some(agent) {
                snapshot.value = Value::Low;
            }
        }
    }

    /// A step has completed, and all before it.
    pub fn complete_snapshots(&mut self, step: u64) {
        for snapshot in &mut self.snapshots.all {
            snapshot.step = snapshot.step.filter(|computed_by| *computed_by > step);
        }
    }

    /// The longest snapshot that can be used and for which `fits(tokens, reached)` holds, and its
    /// number of tokens.
    fn longest_snapshot(&self, fits: impl Fn(&[TokenId], u32) -> bool) -> Option<(u32, usize)> {
        let all = self.snapshots.all.iter().enumerate();
        let usable = all.filter(|(_, snapshot)| {
            snapshot.step.is_none()
                && !snapshot.tokens.is_empty()
                && fits(&snapshot.tokens, snapshot.reached)
        });
        let longest = usable.max_by_key(|(_, snapshot)| snapshot.tokens.len());
        longest.map(|(place, snapshot)| (snapshot.tokens.len() as u32, place))
    }

    /// Whether pages are free for the tokens from `shared` to `end` of a sequence whose first
    /// `shared` tokens are shared. A shared page that is partly filled is copied.
    fn has_pages_behind(&self, shared: u32, end: u32) -> bool {
        let page = self.ledger().options().page_tokens;
        end.div_ceil(page) - shared / page <= self.ledger().free_pages()
    }

    /// Lets an empty sequence begin with a snapshot. Returns its maximum length; `None` if that
    /// failed.
    fn restore(&mut self, place: usize, slot: usize) -> Option<u32> {
        if !self.copy_whole(self.snapshots.seq(place), SeqId(slot as u32)) {
            return None;
        }
        let now = self.snapshots.use_now();
        #[cfg(test)]
        {
            self.snapshots.restored += 1;
        }
        let snapshot = self.snapshots.all.get_mut(place)?;
        (snapshot.last_use, snapshot.value) = (now, Value::Latest);
        Some(snapshot.reached)
    }

    /// Copies the longest snapshot whose tokens fit to an empty sequence. Returns its number of
    /// tokens; 0 without one.
    pub fn copy_snapshot(&mut self, fits: impl Fn(&[TokenId]) -> bool, to: SeqId) -> u32 {
        let longest = self.longest_snapshot(|tokens, _| fits(tokens));
        let copied = longest.filter(|(_, place)| self.copy_whole(self.snapshots.seq(*place), to));
        copied.map_or(0, |(tokens, _)| tokens)
    }

    /// Frees the pages of a snapshot that has exclusive pages: of several, the one that is replaced
    /// first. Returns `false` without such a snapshot.
    pub fn free_snapshot(&mut self) -> bool {
        self.free_snapshot_if(|kv, seq| kv.ledger().exclusive_pages(seq) > 0)
    }

    /// Drops the snapshot that is replaced first: an agent that continues from it may need no copy
    /// of its last page then. Returns `false` without snapshots.
    pub fn free_shared_snapshot(&mut self) -> bool {
        self.free_snapshot_if(|_, _| true)
    }

    fn free_snapshot_if(&mut self, condition: impl Fn(&Self, SeqId) -> bool) -> bool {
        let holds = |&place: &usize| {
            let is_used = !self.snapshots.all[place].tokens.is_empty();
            is_used && condition(self, self.snapshots.seq(place))
        };
        let order = |&place: &usize| self.snapshots.all[place].order();
        let place = (0..self.snapshots.all.len()).filter(holds).min_by_key(order);
        place.map(|place| self.drop_snapshot(place)).is_some()
    }

    /// Drops all snapshots.
    pub fn drop_snapshots(&mut self) {
        (0..self.snapshots.all.len()).for_each(|place| self.drop_snapshot(place));
    }

    fn drop_snapshot(&mut self, place: usize) {
        let seq = self.snapshots.seq(place);
        if self.snapshots.all[place].tokens.is_empty() {
            return;
        }
        self.clear(seq.index());
        let snapshot = &mut self.snapshots.all[place];
        snapshot.tokens.clear();
        (snapshot.step, snapshot.purpose) = (None, Purpose::Shared);
    }
}

impl Core {
    /// Rows, of the next `rows` of an agent, until the end of a prefix that it has in common with
    /// another agent and that has no snapshot.
    pub(super) fn rows_to_snapshot(&self, slot: usize, rows: u32) -> u32 {
        if rows < 2 || !self.kv.has_snapshots() {
            return rows;
        }
        let Some(agent) = self.agents.get(slot) else { return rows };
        let (start, tokens) = (self.kv.len(slot), agent.sequence.tokens());
        let page = self.kv.ledger().options().page_tokens;
        let least = (PREFIX_PAGES_MIN * page).max(start + 1);
        let mut end = start + rows;
        for (other, theirs) in self.agents.iter() {
            let theirs = theirs.sequence.tokens();
            let last = least as usize - 1;
            // Most others are shorter or differ at the first token that counts.
            if other == slot || theirs.get(last).is_none_or(|token| tokens.get(last) != Some(token))
            {
                continue;
            }
            let common = agent.sequence.common_with(theirs) / page * page;
            let is_inside = common >= least && common < end;
            if is_inside && self.kv.lacks_snapshot(&tokens[..common as usize]) {
                end = common;
            }
        }
        end - start
    }

    /// Takes a snapshot of an agent's sequence if the submitted step ended at a place for one.
    pub(super) fn snapshot_after(&mut self, slot: usize, step: u64) {
        if !self.kv.has_snapshots() {
            return;
        }
        let Some(agent) = self.agents.get(slot) else { return };
        let submitted = self.kv.len(slot);
        let Some(tokens) = agent.sequence.tokens().get(..submitted as usize) else { return };
        // Other agents may continue from a snapshot.
        if agent.sequence.is_loaded() {
            return;
        }
        let (is_end, purpose) = match &agent.reply {
            Some(reply) if agent.is_running() => {
                // The texts of a score begin in front of the last token.
                let end = reply.usage.prompt_tokens - u32::from(agent.is_scoring());
                (submitted == end, Purpose::Prompt(agent.id))
            }
            _ => (tokens.len() == agent.sequence.tokens().len(), Purpose::Prepared(agent.id)),
        };
        let is_shared = self.ends_common_prefix(slot, tokens);
        if is_end || is_shared {
            let reached = agent.sequence.reached();
            let purpose = if is_shared { Purpose::Shared } else { purpose };
            self.kv.take_snapshot(slot, (tokens, reached), purpose, step);
        }
    }

    /// Whether another agent begins with the same tokens, in whole pages, and differs behind them.
    fn ends_common_prefix(&self, slot: usize, tokens: &[TokenId]) -> bool {
        let page = self.kv.ledger().options().page_tokens;
        let length = tokens.len() as u32;
        if !length.is_multiple_of(page) || length < PREFIX_PAGES_MIN * page {
            return false;
        }
        let Some(agent) = self.agents.get(slot) else { return false };
        let all = self.agents.iter().filter(|&(other, _)| other != slot);
        let mut theirs = all.map(|(_, other)| other.sequence.tokens());
        theirs.any(|theirs| {
            theirs.get(..tokens.len()) == Some(tokens)
                && agent.sequence.common_with(theirs) / page * page == length
        })
    }

    /// Lets a recurrent sequence begin with the longest snapshot, or with the whole sequence of
    /// another agent, that its tokens begin with. Returns the number of tokens gained.
    pub(super) fn restore_snapshot(&mut self, slot: usize) -> u32 {
        let own = self.kv.len(slot);
        let Some(agent) = self.agents.get(slot) else { return 0 };
        let snapshot = self.kv.longest_snapshot(|tokens, reached| {
            tokens.len() as u32 > own && agent.begins_with(tokens, reached)
        });
        let is_whole = |&(other, source): &(usize, &super::agents::AgentState)| {
            let evaluated = source.sequence.evaluated();
            let reached = source.sequence.reached();
            // An agent of this step has reserved pages, without one for a copy of its last page.
            other != slot
                && !self.scheduler.includes(other)
                && evaluated.len() as u32 > own
                && evaluated.len() as u32 == self.kv.len(other)
                && agent.begins_with(evaluated, reached)
        };
        let whole = self.agents.iter().filter(is_whole);
        let whole = whole.map(|(other, _)| (self.kv.len(other), other)).max();
        let longest = snapshot.iter().chain(&whole).map(|(tokens, _)| *tokens).max();
        let known = agent.sequence.tokens().len() as u32;
        // Without pages for the rest, the copy would only be taken away again.
        let fits = longest.is_some_and(|tokens| self.kv.has_pages_behind(tokens, known));
        if !fits || !self.kv.has_commands() {
            return 0;
        }
        let (tokens, reached) = match (snapshot, whole) {
            (Some((tokens, place)), whole) if whole.is_none_or(|(length, _)| length <= tokens) => {
                self.clear_sequence(slot);
                (tokens, self.kv.restore(place, slot))
            }
            (_, Some((tokens, other))) => {
                self.clear_sequence(slot);
                let reached = self.agents.get(other).map_or(0, |source| source.sequence.reached());
                let copied = self.kv.copy_whole(SeqId(other as u32), SeqId(slot as u32));
                (tokens, copied.then_some(reached))
            }
            (_, None) => return 0,
        };
        let Some(reached) = reached else { return 0 };
        self.begin_shared(slot, tokens, reached);
        tokens - own
    }
}
