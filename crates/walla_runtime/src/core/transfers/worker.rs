//! Reads and writes files on a separate thread, one at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, Thread};

use crate::api::{CacheError, CacheTicket, CacheWork};
use crate::cache_file::{self, Binding, Contents, KvFileError};

/// A file to read or write.
#[derive(Debug)]
pub(super) struct FileJob {
    /// Distinguishes it from abandoned jobs.
    pub number: u64,
    pub ticket: CacheTicket,
    /// Contents of a file to write.
    pub contents: Option<Contents>,
    pub binding: Arc<Binding>,
}

/// Result of a job.
#[derive(Debug)]
pub(super) struct FileDone {
    pub number: u64,
    pub result: Result<Done, CacheError>,
}

#[derive(Debug)]
pub(super) enum Done {
    /// Length of the file, and its bytes if it is not on a disk.
    Written(u64, Option<Vec<u8>>),
    /// Contents and length of the file.
    Read(Contents, u64),
}

/// The thread, which is started with the first job.
#[derive(Debug)]
pub(super) struct FileWorker {
    /// The thread to wake when a job is done. `None`: jobs run in the call, for tests.
    wakes: Option<Thread>,
    channel: Option<(SyncSender<FileJob>, Receiver<FileDone>)>,
    /// Result of a job that ran in the call.
    done: Option<FileDone>,
    is_busy: bool,
    /// The system hangs: results come when this is cleared.
    #[cfg(test)]
    pub is_held: bool,
}

impl FileWorker {
    pub fn new(wakes: Option<Thread>) -> Self {
        Self {
            wakes,
            channel: None,
            done: None,
            is_busy: false,
            #[cfg(test)]
            is_held: false,
        }
    }

    /// Whether a job is not collected yet.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Starts a job. The worker is not busy.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn submit(&mut self, job: FileJob) -> Result<(), CacheError> {
        let Some(wakes) = &self.wakes else {
            self.done = Some(run(job));
            self.is_busy = true;
            return Ok(());
        };
        if self.channel.is_none() {
            self.channel = Some(spawn(wakes.clone())?);
        }
        let Some((jobs, _)) = &self.channel else { return Ok(()) };
        // The channel holds one job, and none is waiting.
        let sent = jobs.try_send(job);
        self.is_busy = sent.is_ok();
        sent.map_err(|_| CacheError::Device("the thread for files has ended".to_owned()))
    }

    /// The result of the job, once.
    pub fn collect(&mut self) -> Option<FileDone> {
        #[cfg(test)]
        if self.is_held {
            return None;
        }
        let done = match (&self.channel, self.done.take()) {
            (_, Some(done)) => Some(done),
            (Some((_, results)), None) => match results.try_recv() {
                Ok(done) => Some(done),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => {
                    self.channel = None;
                    self.is_busy = false;
                    None
                }
            },
            (None, None) => None,
        };
        self.is_busy &= done.is_none();
        done
    }
}

fn spawn(wakes: Thread) -> Result<(SyncSender<FileJob>, Receiver<FileDone>), CacheError> {
    let (jobs, queue) = sync_channel::<FileJob>(1);
    let (results, collected) = sync_channel(1);
    let work = move || {
        for job in queue {
            if results.send(run(job)).is_err() {
                return;
            }
            wakes.unpark();
        }
    };
    let spawned = thread::Builder::new().name("walla-files".to_owned()).spawn(work);
    spawned.map_err(|error| CacheError::Device(error.to_string()))?;
    Ok((jobs, collected))
}

fn run(job: FileJob) -> FileDone {
    let number = job.number;
    let result = catch_unwind(AssertUnwindSafe(|| work(job)));
    let defect = |_| Err(CacheError::Device("a defect in the reader of cache files".to_owned()));
    FileDone { number, result: result.unwrap_or_else(defect) }
}

fn work(job: FileJob) -> Result<Done, CacheError> {
    let FileJob { ticket, contents, binding, .. } = job;
    let contents = || contents.ok_or(KvFileError::Invalid("contents"));
    Ok(match ticket.work() {
        CacheWork::SaveFile(path) => {
            Done::Written(cache_file::write_file(path, contents()?, &binding)?, None)
        }
        CacheWork::SaveBytes => {
            let bytes = cache_file::to_bytes(contents()?, &binding)?;
            Done::Written(bytes.len() as u64, Some(bytes))
        }
        CacheWork::LoadFile(path) => {
            let (contents, file_bytes) = cache_file::read_file(path, &binding)?;
            Done::Read(contents, file_bytes)
        }
        CacheWork::LoadBytes(bytes) => {
            Done::Read(cache_file::read_bytes(bytes, &binding)?, bytes.len() as u64)
        }
    })
}
