//! Reads and writes files on a separate thread, one at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::Thread;

use super::Copied;
use crate::api::{CacheError, CacheTicket, CacheWork};
use crate::cache_file::{self, Binding, Contents, KvFileError};
use crate::worker::Worker;

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
    Written(Copied),
    /// Contents and length of the file.
    Read(Contents, u64),
}

/// The thread starts with the first job.
pub(super) type FileWorker = Worker<(), FileJob, FileDone>;

/// A worker that wakes `wakes` when a job is done. `None`: jobs run in the call, for tests.
pub(super) fn file_worker(wakes: Option<Thread>) -> FileWorker {
    Worker::new("walla-files", 1, wakes, (), run)
}

fn run((): &(), job: FileJob) -> FileDone {
    let number = job.number;
    let result = catch_unwind(AssertUnwindSafe(|| work(job)));
    let defect = |_| Err(CacheError::Device("a defect in the reader of cache files".to_owned()));
    FileDone { number, result: result.unwrap_or_else(defect) }
}

fn work(job: FileJob) -> Result<Done, CacheError> {
    let FileJob { ticket, contents, binding, .. } = job;
    let tokens = contents.as_ref().map_or(0, |contents| contents.tokens.len() as u32);
    let contents = || contents.ok_or(KvFileError::Invalid("contents"));
    Ok(match ticket.work() {
        CacheWork::SaveFile(path) => {
            let file_bytes = cache_file::write_file(path, contents()?, &binding)?;
            Done::Written((tokens, file_bytes, None))
        }
        CacheWork::SaveBytes => {
            let bytes = cache_file::to_bytes(contents()?, &binding)?;
            Done::Written((tokens, bytes.len() as u64, Some(bytes)))
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
