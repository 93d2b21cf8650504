//! The thread that writes a recording.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::RecordError;
use crate::file::ChunkWriter;
use crate::format::{Clock, Item, Last, MAGIC, MAX_CHUNK_BYTES, put_record};
use crate::recorder::Shared;

/// Interval at which the thread looks for buffers. It is not woken, because waking it would take a
/// system call of the frame.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Time after which records are written.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

// A crash costs a second at most, if the disk is fast enough.
const _: () = assert!(WRITE_INTERVAL.as_millis() + LOOK_INTERVAL.as_millis() <= 1_000);

/// Records of this size are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// A buffer above this capacity is not used again.
const MAX_KEPT_CAPACITY: usize = 1 << 20;

/// Creates the file, or empties an existing recording.
///
/// # Errors
/// [`RecordError::Io`], [`RecordError::NotARecording`], [`RecordError::InUse`].
pub(crate) fn create(path: &Path) -> Result<File, RecordError> {
    let failed = |source| RecordError::Io { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // Others may read a recording in progress, but not write it.
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 1);
    let mut file = options.open(path).map_err(|source| match source.raw_os_error() {
        // ERROR_SHARING_VIOLATION: another program or recorder writes it.
        Some(32) if cfg!(windows) => RecordError::InUse { path: path.to_owned() },
        _ => failed(source),
    })?;
    let is_file = file.metadata().map_err(failed)?.is_file();
    // Only advisory, so that others may read it. Some file systems have no locks.
    #[cfg(unix)]
    if is_file && matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)) {
        return Err(RecordError::InUse { path: path.to_owned() });
    }
    let mut begin = Vec::new();
    if is_file {
        let mut first = (&mut file).take(MAGIC.len() as u64);
        first.read_to_end(&mut begin).map_err(failed)?;
    }
    if !is_file || !(begin.is_empty() || begin == MAGIC) {
        return Err(RecordError::NotARecording { path: path.to_owned() });
    }
    file.set_len(0).map_err(failed)?;
    std::io::Seek::rewind(&mut file).map_err(failed)?;
    Ok(file)
}

/// Writes buffers until the recorder is dropped or the recording fails.
pub(crate) fn run(shared: &Shared, file: File) {
    let mut chunks = ChunkWriter::new(file);
    let written = write_all(shared, &mut chunks);
    let written = written.and_then(|()| match shared.error.get() {
        // The reason is a part of the recording, if it can be written.
        Some(error) => write_end(&mut chunks, &error.to_string()),
        None => Ok(()),
    });
    if let Err(source) = written {
        shared.fail(RecordError::Io { path: shared.path.clone(), source });
    }
    shared.bytes.store(chunks.bytes, Ordering::Relaxed);
}

fn write_all(shared: &Shared, chunks: &mut ChunkWriter<File>) -> std::io::Result<()> {
    let mut records = Vec::new();
    let mut written = Instant::now();
    chunks.begin()?;
    loop {
        // Before the queue is read, so that no buffer is missed.
        let is_last = shared.is_closing.load(Ordering::Acquire) || shared.error.get().is_some();
        while let Some(mut buffer) = shared.full.pop() {
            shared.waiting_bytes.fetch_sub(buffer.len(), Ordering::Relaxed);
            if records.len() + buffer.len() > MAX_CHUNK_BYTES {
                store(shared, chunks, &mut records)?;
            }
            records.extend_from_slice(&buffer);
            if buffer.capacity() <= MAX_KEPT_CAPACITY {
                buffer.clear();
                let _surplus = shared.empty.push(buffer);
            }
        }
        let is_due = written.elapsed() >= WRITE_INTERVAL || records.len() >= WRITE_BYTES;
        if is_due || is_last {
            store(shared, chunks, &mut records)?;
            written = Instant::now();
        }
        if is_last {
            return Ok(());
        }
        thread::park_timeout(LOOK_INTERVAL);
    }
}

/// Writes records as a chunk and asks the system to store it.
fn store(
    shared: &Shared,
    chunks: &mut ChunkWriter<File>,
    records: &mut Vec<u8>,
) -> std::io::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    chunks.write(records)?;
    chunks.target().sync_data()?;
    records.clear();
    shared.bytes.store(chunks.bytes, Ordering::Relaxed);
    Ok(())
}

fn write_end(chunks: &mut ChunkWriter<File>, reason: &str) -> std::io::Result<()> {
    let (mut bytes, mut last, end) = (Vec::new(), Last::default(), Item::End(Some(reason.into())));
    put_record(&mut bytes, &mut last, Clock::default(), end).map_err(std::io::Error::other)?;
    chunks.write(&bytes)?;
    chunks.target().sync_data()
}
