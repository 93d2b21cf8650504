//! Saves and loads of agents' caches.
//!
//! # Rules
//! 1. One job is active; others wait in order. A job that ends, ends its ticket.
//! 2. A save copies the agent's evaluated tokens into a separate sequence, so the agent may speak,
//!    change or leave while the copy runs. A load writes into that sequence, and the agent takes it
//!    over when it is complete. So an incomplete load changes no agent.
//! 3. Parts are copied between steps, within a quarter of each frame's budget, at least one per
//!    frame ([`WINDOW_MICROS`]). Without a budget they follow each other.
//! 4. Asks of an agent wait for its load, and so does its background prefill. A failed load only
//!    ends this wait. A file that is not read within [`MAX_READ_MICROS`], or not written within
//!    [`MAX_WRITE_MICROS`], is given up: the thread may hang in a call of the system. The next job
//!    waits for the thread, at most [`MAX_READ_MICROS`].
//! 5. A save waits for the background prefill of its agent, at most [`MAX_SAVE_WAIT_MICROS`].
//! 6. Agents that need pages end the active job.
//! 7. Loaded tokens are the agent's alone: no other agent shares them, and they are in no snapshot.

mod export;
mod import;
mod worker;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::Thread;

use walla_device::DeviceError;
use walla_exec::{ExecError, StepError};
use walla_types::SeqId;

use self::export::Export;
use self::import::Import;
use self::worker::{Done, FileDone, FileJob, FileWorker, file_worker};
use super::Core;
use super::budget::WINDOW_MICROS;
use crate::api::{AgentId, CacheError, CacheTicket, MAX_CACHE_JOBS};
use crate::cache_file::{Binding, Contents};
use crate::engine_core::{Advance, ClientKey};

/// Bytes of a chunk of pages: an estimated 0.1 ms over PCIe, 0.4 ms in memory.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Maximum time to read a file, in microseconds. Asks of the agent wait for it.
const MAX_READ_MICROS: u64 = 2_000_000;

/// Maximum time to write a file, in microseconds. Loads wait for it.
const MAX_WRITE_MICROS: u64 = 10_000_000;

/// Maximum time for which a save waits for the background prefill.
const MAX_SAVE_WAIT_MICROS: u64 = 1_000_000;

/// Time after which a copy is tried again that found no free commands, in microseconds.
const RETRY_MICROS: u64 = 1_000;

/// A save or a load.
#[derive(Debug)]
struct Job {
    client: ClientKey,
    agent: AgentId,
    ticket: CacheTicket,
    arrived_micros: u64,
}

/// Stage of the active job.
#[derive(Debug)]
enum Stage {
    /// The save has not begun.
    Saving,
    Exporting(Export),
    /// A file is to be read, or written with these contents.
    Queued {
        contents: Option<Contents>,
        end_micros: u64,
    },
    /// The file is read or written.
    InFile {
        end_micros: u64,
    },
    /// Contents and length of the file.
    Loaded(Contents, u64),
    Importing(Import),
}

/// Saves and loads.
#[derive(Debug)]
pub(super) struct Transfers {
    queue: VecDeque<Job>,
    active: Option<(Job, Stage)>,
    worker: FileWorker,
    /// `None`: the device cannot copy.
    binding: Option<Arc<Binding>>,
    /// The sequence of the active job.
    seq: SeqId,
    /// Number of the latest file job.
    number: u64,
    /// Begin of the current window, and the parts enqueued in it.
    window: (u64, u32),
    /// Next call of [`Core::run_transfers`] without other events.
    wakeup: Option<Advance>,
    /// The active save waits for the background prefill of its agent.
    awaits_background: bool,
    /// A job was ended for agents that need its pages: the next job, and asks that waited for a
    /// load, can begin.
    has_stopped: bool,
}

/// Tokens, length of the file, and the file if it is not on a disk.
type Copied = (u32, u64, Option<Vec<u8>>);

/// Result of one attempt to continue the active job.
enum Progress {
    /// Try again at once.
    Again,
    /// Nothing to do before this.
    Wait(Option<Advance>),
    /// The job is complete.
    Done(Copied),
}

/// Why a copy cannot continue.
enum Stop {
    /// The device is lost.
    Lost(ExecError),
    /// The job fails.
    Fail(CacheError),
    /// Try later.
    Later,
}

impl From<ExecError> for Stop {
    fn from(error: ExecError) -> Self {
        match &error {
            ExecError::Device(DeviceError::HostInFlight { .. }) => Self::Later,
            ExecError::Device(device) if device.is_lost() => Self::Lost(error),
            _ => Self::Fail(CacheError::Device(error.to_string())),
        }
    }
}

impl From<StepError> for Stop {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Exec(error) => error.into(),
            StepError::Ledger(walla_plan::LedgerError::NoPages { .. }) => {
                Self::Fail(CacheError::NoPages)
            }
            error => Self::Fail(CacheError::Device(error.to_string())),
        }
    }
}

impl Transfers {
    pub fn new(binding: Option<Binding>, seq: u32, wakes: Option<Thread>) -> Self {
        Self {
            queue: VecDeque::new(),
            active: None,
            worker: file_worker(wakes),
            binding: binding.map(Arc::new),
            seq: SeqId(seq),
            number: 0,
            window: (0, 0),
            wakeup: None,
            awaits_background: false,
            has_stopped: false,
        }
    }

    /// Whether a job was ended for its pages since the last call.
    pub fn take_stopped(&mut self) -> bool {
        std::mem::take(&mut self.has_stopped)
    }

    /// Whether an agent waits for a load.
    pub fn is_loading(&self, agent: AgentId) -> bool {
        let active = self.active.iter().map(|(job, _)| job);
        self.queue.iter().chain(active).any(|job| job.agent == agent && job.ticket.is_load())
    }

    /// Whether no save and no load is active or waiting.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.active.is_none() && self.queue.is_empty()
    }

    /// Earlier call of [`Core::run_transfers`] than `advance`, if it needs one.
    pub fn earlier(&self, advance: Advance) -> Advance {
        match (advance, self.wakeup) {
            (Advance::Again, _) | (_, None) => advance,
            (Advance::Idle, Some(wakeup)) => wakeup,
            (Advance::Pause(a), Some(Advance::Pause(b))) => Advance::Pause(a.min(b)),
            (Advance::Poll, Some(_)) | (_, Some(Advance::Poll)) => Advance::Poll,
            (_, Some(wakeup)) => wakeup,
        }
    }

    /// The binding of files.
    #[cfg(test)]
    pub fn binding(&self) -> Arc<Binding> {
        self.binding.clone().expect("the device copies")
    }

    /// Lets files hang, for tests.
    #[cfg(test)]
    pub fn hold_files(&mut self, is_held: bool) {
        self.worker.is_held = is_held;
    }

    /// Smaller chunks, for tests.
    #[cfg(test)]
    pub fn set_chunk_pages(&mut self, pages: u32) {
        if let Some(binding) = &mut self.binding {
            Arc::make_mut(binding).chunk_pages = pages;
        }
    }
}

impl Core {
    /// Adds a save or a load.
    pub(super) fn copy_cache(
        &mut self,
        client: ClientKey,
        agent: AgentId,
        ticket: CacheTicket,
        now_micros: u64,
    ) {
        let fault = if self.transfers.binding.is_none() {
            Some(CacheError::Unsupported)
        } else if self.transfers.queue.len() >= MAX_CACHE_JOBS {
            Some(CacheError::Busy)
        } else {
            match self.agents.of_client(client, agent) {
                None => Some(CacheError::UnknownAgent),
                Some(state) if ticket.is_load() && state.has_work() => Some(CacheError::Asked),
                Some(_) => None,
            }
        };
        match fault {
            Some(error) => ticket.fail(error),
            None => {
                let job = Job { client, agent, ticket, arrived_micros: now_micros };
                self.transfers.queue.push_back(job);
            }
        }
    }

    /// Ends the saves and loads of a client that has left.
    pub(super) fn remove_transfers(&mut self, client: ClientKey) {
        self.transfers.queue.retain(|job| job.client != client);
        if self.transfers.active.as_ref().is_some_and(|(job, _)| job.client == client) {
            self.end_transfer(Err(CacheError::EngineGone));
        }
    }

    /// Ends the active job if it holds pages, which others need. Returns `false` if it holds none.
    pub(super) fn stop_transfer(&mut self) -> bool {
        let seq = self.transfers.seq.index();
        let holds = self.transfers.active.is_some() && self.kv.holds_pages(seq);
        if holds {
            self.transfers.has_stopped = true;
            self.end_transfer(Err(CacheError::NoPages));
        }
        holds
    }

    /// The device was lost: ends all jobs.
    pub(super) fn fail_transfers(&mut self, reason: &str) {
        let active = self.transfers.active.take().map(|(job, _)| job);
        for job in active.into_iter().chain(self.transfers.queue.drain(..)) {
            job.ticket.fail(CacheError::Device(reason.to_owned()));
        }
    }

    fn end_transfer(&mut self, result: Result<Copied, CacheError>) {
        let seq = self.transfers.seq.index();
        if self.kv.holds_pages(seq) {
            self.kv.clear(seq);
            self.kv.note_freed();
        }
        let Some((job, _)) = self.transfers.active.take() else { return };
        match result {
            Ok((tokens, file_bytes, bytes)) => {
                tracing::debug!(target: "walla::reply", agent = job.agent.0, tokens, file_bytes, job = ?job.ticket, "cache copied");
                job.ticket.succeed((tokens, file_bytes), bytes);
            }
            Err(error) => {
                tracing::debug!(target: "walla::reply", agent = job.agent.0, %error, job = ?job.ticket, "cache not copied");
                job.ticket.fail(error);
            }
        }
    }

    /// Continues saves and loads. Returns whether one ended, so that asks may begin.
    ///
    /// # Errors
    /// A lost device.
    pub(super) fn run_transfers(&mut self, now_micros: u64) -> Result<bool, ExecError> {
        let mut any = false;
        self.transfers.wakeup = None;
        self.transfers.awaits_background = false;
        // Each round enqueues or reads a part, or ends a job, and all of them are bounded.
        loop {
            if let Some(done) = self.transfers.worker.collect() {
                any |= self.take_file(done);
            }
            if !self.begin_next(now_micros) {
                return Ok(any);
            }
            match self.continue_transfer(now_micros) {
                Ok(Progress::Again) => {}
                Ok(Progress::Wait(wakeup)) => {
                    self.transfers.wakeup = wakeup;
                    return Ok(any);
                }
                Ok(Progress::Done(copied)) => {
                    any = true;
                    self.end_transfer(Ok(copied));
                }
                Err(Stop::Fail(error)) => {
                    any = true;
                    self.end_transfer(Err(error));
                }
                Err(Stop::Later) => {
                    self.transfers.wakeup = Some(Advance::Poll);
                    return Ok(any);
                }
                Err(Stop::Lost(error)) => return Err(error),
            }
        }
    }

    /// Makes the next job active. Returns `false` without one.
    fn begin_next(&mut self, now_micros: u64) -> bool {
        if self.transfers.active.is_none()
            && let Some(job) = self.transfers.queue.pop_front()
        {
            let to_read =
                Stage::Queued { contents: None, end_micros: now_micros + MAX_READ_MICROS };
            let stage = if job.ticket.is_load() { to_read } else { Stage::Saving };
            self.transfers.active = Some((job, stage));
        }
        self.transfers.active.is_some()
    }

    /// Takes the result of a file job. Returns whether the active job ended with it.
    fn take_file(&mut self, done: FileDone) -> bool {
        let Some((_, stage @ Stage::InFile { .. })) = &mut self.transfers.active else {
            return false;
        };
        if done.number != self.transfers.number {
            return false;
        }
        let copied = match done.result {
            Ok(Done::Written(copied)) => Ok(copied),
            Ok(Done::Read(contents, file_bytes)) => {
                *stage = Stage::Loaded(contents, file_bytes);
                return false;
            }
            Err(error) => Err(error),
        };
        self.end_transfer(copied);
        true
    }

    fn continue_transfer(&mut self, now_micros: u64) -> Result<Progress, Stop> {
        let unsupported = Stop::Fail(CacheError::Unsupported);
        let binding = self.transfers.binding.clone().ok_or(unsupported)?;
        // Put back below, unless it has changed: its methods use the core.
        let Some((job, stage)) = &mut self.transfers.active else {
            return Ok(Progress::Wait(None));
        };
        let owner = (job.client, job.agent);
        let (ticket, arrived_micros) = (job.ticket.clone(), job.arrived_micros);
        let to_read = Stage::Queued { contents: None, end_micros: now_micros + MAX_READ_MICROS };
        // A load that is interrupted in between reads its file again.
        let before = std::mem::replace(stage, to_read);
        let (stage, progress) = match before {
            Stage::Saving => {
                let end_micros = arrived_micros + MAX_SAVE_WAIT_MICROS;
                if now_micros < end_micros && self.awaits_background(owner) {
                    let wakeup = Advance::Pause(end_micros - now_micros);
                    self.transfers.awaits_background = true;
                    (Stage::Saving, Ok(Progress::Wait(Some(wakeup))))
                } else if !self.kv.has_commands() {
                    let wakeup = Advance::Pause(RETRY_MICROS);
                    (Stage::Saving, Ok(Progress::Wait(Some(wakeup))))
                } else {
                    (Stage::Exporting(self.begin_export(owner, &binding)?), Ok(Progress::Again))
                }
            }
            Stage::Exporting(mut export) => {
                let progress = self.continue_export(&mut export, owner, &binding, now_micros);
                if export.is_done(&binding) {
                    // The pages are not needed any more.
                    let seq = self.transfers.seq.index();
                    self.kv.clear(seq);
                    self.kv.note_freed();
                    let contents = Some(export.contents);
                    let end_micros = now_micros + MAX_READ_MICROS;
                    (Stage::Queued { contents, end_micros }, Ok(Progress::Again))
                } else {
                    (Stage::Exporting(export), progress)
                }
            }
            // A file that was given up is still read or written.
            Stage::Queued { contents, end_micros } if !self.transfers.worker.has_room() => {
                (Stage::Queued { contents, end_micros }, wait(now_micros, end_micros))
            }
            Stage::Queued { contents, .. } => {
                let max = if contents.is_some() { MAX_WRITE_MICROS } else { MAX_READ_MICROS };
                self.submit_file(ticket, contents, binding)?;
                (Stage::InFile { end_micros: now_micros + max }, Ok(Progress::Again))
            }
            Stage::InFile { end_micros } => {
                (Stage::InFile { end_micros }, wait(now_micros, end_micros))
            }
            Stage::Loaded(contents, file_bytes) => {
                let copied = (contents.tokens.len() as u32, file_bytes, None);
                match self.begin_import(owner, contents, file_bytes)? {
                    Some(import) => (Stage::Importing(import), Ok(Progress::Again)),
                    None => (Stage::Saving, Ok(Progress::Done(copied))),
                }
            }
            Stage::Importing(mut import) => {
                let progress = self.continue_import(&mut import, owner, &binding, now_micros);
                (Stage::Importing(import), progress)
            }
        };
        if let Some((_, active)) = &mut self.transfers.active {
            *active = stage;
        }
        progress
    }

    fn submit_file(
        &mut self,
        ticket: CacheTicket,
        contents: Option<Contents>,
        binding: Arc<Binding>,
    ) -> Result<(), Stop> {
        self.transfers.number += 1;
        let number = self.transfers.number;
        let job = FileJob { number, ticket, contents, binding };
        let failed = |error: io::Error| Stop::Fail(CacheError::Device(error.to_string()));
        self.transfers.worker.submit(job).map_err(failed)
    }

    /// Whether no part may be enqueued until the budget changes.
    fn is_copying_paused(&self, client: ClientKey) -> bool {
        self.budget.copies_per_frame(self.clients.is_free_running(client)) == Some(0)
    }

    /// Whether a part may be enqueued now, which the caller then does. Otherwise the time of the
    /// next window; `None` if the budget is zero.
    fn may_copy(&mut self, client: ClientKey, now_micros: u64) -> Result<(), Option<Advance>> {
        let is_free = self.clients.is_free_running(client);
        let Some(max_parts) = self.budget.copies_per_frame(is_free) else { return Ok(()) };
        if max_parts == 0 {
            return Err(None);
        }
        let (begin_micros, parts) = self.transfers.window;
        let end_micros = begin_micros + WINDOW_MICROS;
        if now_micros >= end_micros {
            self.transfers.window = (now_micros, 1);
        } else if parts < max_parts {
            self.transfers.window.1 += 1;
        } else {
            return Err(Some(Advance::Pause(end_micros - now_micros)));
        }
        Ok(())
    }
}

/// Waits for the worker, which wakes the thread, until `end_micros`.
fn wait(now_micros: u64, end_micros: u64) -> Result<Progress, Stop> {
    if now_micros >= end_micros {
        return Err(Stop::Fail(CacheError::TooSlow));
    }
    Ok(Progress::Wait(Some(Advance::Pause(end_micros - now_micros))))
}
