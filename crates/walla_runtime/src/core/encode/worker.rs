//! The thread that encodes, and the order of its jobs.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Thread;

use super::prompt::encode;
use super::{EncodeJob, EncodeResult, PromptSource, Purpose};
use crate::api::{Prompt, ReplyError};
use crate::ask_queue::Ask;
use crate::model_text::ModelText;
use crate::worker::Worker;

/// Maximum number of prompts that the text thread holds.
const MAX_JOBS: usize = 64;

/// Prompts for the worker: which agent is next, and whether the worker is full.
#[derive(Debug)]
pub(in crate::core) struct PromptEncoder {
    worker: Worker<Arc<ModelText>, EncodeJob, EncodeResult>,
    /// Whether the worker had no capacity for an ask.
    is_full: bool,
    /// Round-robin cursor over agents with untokenised prompts: the slot after the last one served.
    next_slot: usize,
    /// Whether the worker holds a job for a background prefill. It holds at most one, because the
    /// prompts of asks wait behind it.
    has_background: bool,
}

impl PromptEncoder {
    /// Starts the text thread, which wakes `wakes` when a job is done. `None`: jobs run in the
    /// call.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(text: Arc<ModelText>, wakes: Option<Thread>) -> io::Result<Self> {
        let mut worker = Worker::new("walla-text", MAX_JOBS, wakes, text, encode_caught);
        worker.start()?;
        Ok(Self { worker, is_full: false, next_slot: 0, has_background: false })
    }

    /// Begins a round over `slots` slots. Returns the order of the slots.
    pub fn begin_round(&mut self, slots: usize) -> impl Iterator<Item = usize> + use<> {
        self.is_full = false;
        (self.next_slot..slots).chain(0..self.next_slot)
    }

    /// Whether the worker has capacity for an ask. Prompts of tokens need none without texts to
    /// score.
    pub fn accepts(&mut self, ask: &Ask) -> bool {
        let needs_none = matches!(ask.prompt, Prompt::Tokens(_)) && ask.options.score.is_none();
        let accepts = self.worker.has_room() || needs_none;
        self.is_full |= !accepts;
        accepts
    }

    /// Whether the worker had no capacity for an ask in this round.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Starts the job of the agent in `slot`, of `slots`.
    ///
    /// # Errors
    /// If the worker has ended.
    pub fn submit(&mut self, job: EncodeJob, slot: usize, slots: usize) -> io::Result<()> {
        self.next_slot = (slot + 1) % slots;
        self.worker.submit(job)
    }

    /// Whether the worker accepts a job for a background prefill: no ask waits for it.
    pub fn accepts_background(&self) -> bool {
        !self.has_background && !self.is_full && self.worker.has_room()
    }

    /// Starts a job for a background prefill. No effect if the worker has ended: the next ask
    /// reports that.
    pub fn submit_background(&mut self, job: EncodeJob) {
        self.has_background = self.worker.submit(job).is_ok();
    }

    /// Returns a finished job, if there is one.
    pub fn collect(&mut self) -> Option<EncodeResult> {
        let done = self.worker.collect()?;
        self.has_background &= !matches!(done.purpose, Purpose::Background(_));
        Some(done)
    }

    /// Begins the next round with the first slot.
    pub fn restart(&mut self) {
        self.next_slot = 0;
    }
}

/// A template or tokenizer that panics fails its prompt, not the engine.
fn encode_caught(text: &Arc<ModelText>, job: EncodeJob) -> EncodeResult {
    let _stage = walla_trace::enter(walla_trace::Stage::Encode);
    let result = catch_unwind(AssertUnwindSafe(|| encode(text, &job))).unwrap_or_else(|_| {
        let reason = "the prompt could not be encoded: a defect in walla";
        Err(ReplyError::Text(reason.into()))
    });
    let EncodeJob { agent, purpose, source, .. } = job;
    let asked = match source {
        // Drops the shared turns, so that the agent can append its next turn without a copy.
        PromptSource::Chat { asked, .. } => Some(asked),
        _ => None,
    };
    EncodeResult { agent, purpose, asked, result }
}
