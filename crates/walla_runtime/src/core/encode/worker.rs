//! The thread that encodes, and the order of its jobs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{JoinHandle, Thread};

use super::prompt::encode;
use super::{EncodeJob, EncodeResult, PromptSource, Purpose};
use crate::api::{Prompt, ReplyError};
use crate::ask_queue::Ask;
use crate::model_text::ModelText;

/// Prompts for the worker: which agent is next, and whether the worker is full.
#[derive(Debug)]
pub(in crate::core) struct PromptEncoder {
    worker: EncodeWorker,
    /// Whether the worker had no capacity for an ask.
    is_full: bool,
    /// Round-robin cursor over agents with untokenised prompts: the slot after the last one served.
    next_slot: usize,
    /// Whether the worker holds a job for a background prefill. It holds at most one, because the
    /// prompts of asks wait behind it.
    has_background: bool,
}

impl PromptEncoder {
    pub fn new(worker: EncodeWorker) -> Self {
        Self { worker, is_full: false, next_slot: 0, has_background: false }
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

    /// Starts the job of the agent in `slot`, of `slots`. Returns the job if the worker has ended.
    pub fn submit(&mut self, job: EncodeJob, slot: usize, slots: usize) -> Result<(), EncodeJob> {
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

/// Encodes in the background, or inline in tests that need identical runs.
#[derive(Debug)]
pub(in crate::core) struct EncodeWorker {
    mode: Mode,
    /// Jobs that it can take before one is collected.
    jobs_left: usize,
}

#[derive(Debug)]
enum Mode {
    Inline {
        text: Arc<ModelText>,
        done: Vec<EncodeResult>,
    },
    Thread {
        jobs: Option<SyncSender<EncodeJob>>,
        done: Receiver<EncodeResult>,
        thread: Option<JoinHandle<()>>,
    },
}

impl EncodeWorker {
    /// A worker that encodes inside [`EncodeWorker::submit`].
    pub fn inline(text: Arc<ModelText>, max_jobs: usize) -> Self {
        Self { mode: Mode::Inline { text, done: Vec::new() }, jobs_left: max_jobs }
    }

    /// A worker thread that holds up to `max_jobs` jobs, done or not, and unparks `waker` when a
    /// job is done.
    pub fn spawn(text: Arc<ModelText>, max_jobs: usize, waker: Thread) -> std::io::Result<Self> {
        let (jobs, jobs_in) = sync_channel::<EncodeJob>(max_jobs);
        let (done_out, done) = sync_channel(max_jobs);
        let work = move || {
            while let Ok(job) = jobs_in.recv() {
                if done_out.send(encode_caught(&text, job)).is_err() {
                    return;
                }
                waker.unpark();
            }
        };
        let thread = std::thread::Builder::new().name("walla-text".into()).spawn(work)?;
        let mode = Mode::Thread { jobs: Some(jobs), done, thread: Some(thread) };
        Ok(Self { mode, jobs_left: max_jobs })
    }

    /// Whether it can take another job. If not, it wakes the device thread when it can.
    pub fn has_room(&self) -> bool {
        self.jobs_left > 0
    }

    /// Starts a job. Returns the job if there is no capacity or the thread has ended.
    pub fn submit(&mut self, job: EncodeJob) -> Result<(), EncodeJob> {
        if !self.has_room() {
            return Err(job);
        }
        match &mut self.mode {
            Mode::Inline { text, done } => done.push(encode_caught(text, job)),
            Mode::Thread { jobs: Some(jobs), .. } => jobs.try_send(job).map_err(|error| {
                let (TrySendError::Full(job) | TrySendError::Disconnected(job)) = error;
                job
            })?,
            Mode::Thread { jobs: None, .. } => return Err(job),
        }
        self.jobs_left -= 1;
        Ok(())
    }

    /// Returns a finished job, if there is one.
    pub fn collect(&mut self) -> Option<EncodeResult> {
        let done = match &mut self.mode {
            Mode::Inline { done, .. } => done.pop(),
            Mode::Thread { done, .. } => done.try_recv().ok(),
        };
        self.jobs_left += usize::from(done.is_some());
        done
    }
}

impl Drop for EncodeWorker {
    /// Detaches the thread. A job in progress is bounded by the template's fuel and the tokenizer's
    /// byte limit: it encodes about ten prompts at most.
    fn drop(&mut self) {
        if let Mode::Thread { jobs, thread, .. } = &mut self.mode {
            drop(jobs.take());
            drop(thread.take());
        }
    }
}

/// A template or tokenizer that panics fails its prompt, not the engine.
fn encode_caught(text: &ModelText, job: EncodeJob) -> EncodeResult {
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
