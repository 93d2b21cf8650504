//! Asks of an agent that wait, and turns between them.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use crate::api::{AskOptions, Prompt, ReplyId, Turn};

/// An ask that waits for the agent's earlier replies.
#[derive(Debug)]
pub struct Ask {
    /// The reply.
    pub reply_id: ReplyId,
    /// Content of the ask.
    pub prompt: Prompt,
    /// Settings of the ask.
    pub options: AskOptions,
    /// Time of its arrival at the engine.
    pub arrived_micros: u64,
    /// Turns that were appended between the previous ask and this one.
    pub turns_before: Vec<Turn>,
}

impl Ask {
    /// An ask without turns before it.
    #[must_use]
    pub fn new(
        reply_id: ReplyId,
        prompt: Prompt,
        options: AskOptions,
        arrived_micros: u64,
    ) -> Self {
        Self { reply_id, prompt, options, arrived_micros, turns_before: Vec::new() }
    }
}

/// The asks of an agent, oldest first, and the turns that were appended between and behind them.
///
/// It is for implementations of [`EngineClient`](crate::EngineClient). Add asks with
/// [`push`](Self::push), which assigns the turns; read and remove them as in a [`VecDeque`].
#[derive(Debug, Default)]
pub struct AskQueue {
    asks: VecDeque<Ask>,
    turns_after: Vec<Turn>,
}

impl AskQueue {
    /// Adds an ask behind all turns so far.
    pub fn push(&mut self, mut ask: Ask) {
        ask.turns_before = std::mem::take(&mut self.turns_after);
        self.asks.push_back(ask);
    }

    /// Appends turns behind all asks, and keeps the latest `max_turns`.
    pub fn append_turns(&mut self, turns: Vec<Turn>, max_turns: usize) {
        self.turns_after.extend(turns);
        let surplus = self.turns_after.len().saturating_sub(max_turns);
        self.turns_after.drain(..surplus);
    }

    /// The turns behind all asks.
    #[must_use]
    pub fn turns_after(&self) -> &[Turn] {
        &self.turns_after
    }

    /// Removes the turns behind all asks.
    pub fn take_turns_after(&mut self) -> Vec<Turn> {
        std::mem::take(&mut self.turns_after)
    }

    /// Removes matching asks and returns them. Turns that were appended before them stay in order.
    pub fn cancel(&mut self, matches: impl Fn(ReplyId) -> bool) -> Vec<Ask> {
        let (mut cancelled, mut turns) = (Vec::new(), Vec::new());
        // Each ask moves to the end or out, so the capacity stays.
        for _ in 0..self.asks.len() {
            let Some(mut ask) = self.asks.pop_front() else { break };
            turns.append(&mut ask.turns_before);
            if matches(ask.reply_id) {
                cancelled.push(ask);
            } else {
                ask.turns_before = std::mem::take(&mut turns);
                self.asks.push_back(ask);
            }
        }
        turns.append(&mut self.turns_after);
        self.turns_after = turns;
        cancelled
    }
}

impl Deref for AskQueue {
    type Target = VecDeque<Ask>;

    fn deref(&self) -> &VecDeque<Ask> {
        &self.asks
    }
}

impl DerefMut for AskQueue {
    fn deref_mut(&mut self) -> &mut VecDeque<Ask> {
        &mut self.asks
    }
}
