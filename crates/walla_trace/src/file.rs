//! The trace file and the thread that writes it.

use std::fs::{self, File, FileType};
use std::io::{self, BufWriter, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use walla_types::environment;

use crate::json::{self, BEGINNING, Events};
use crate::listeners::{FILE, LISTENERS};
use crate::queue::{self, Record};

/// Polling interval of the writer thread. A process that ends abruptly loses at most this much of
/// its trace. Polling an empty queue takes nanoseconds.
const ROUND: Duration = Duration::from_millis(5);

/// Default file size limit: 256 MiB, a million spans, about half an hour of a game.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reasons why no trace file was started.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Choose another path.
    #[error("{}: {source}", path.display())]
    Create {
        /// The path.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The path names a file with other contents, which is not overwritten. Choose another path or
    /// delete the file.
    #[error("{} exists and is not a trace: choose another path or delete it", .0.display())]
    NotATrace(PathBuf),
    /// A process writes one file at a time: finish the other file first.
    #[error("a trace file is being written already")]
    Busy,
    /// The operating system could not start the writer thread.
    #[error("a thread cannot be started: {0}")]
    Thread(io::Error),
}

/// Number of spans of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSummary {
    /// Spans written.
    pub spans: u64,
    /// Spans left out because the queue or the file was full.
    pub spans_lost: u64,
}

/// A trace file that is being written. Open it in <https://ui.perfetto.dev>. Dropping this ends the
/// file.
///
/// Every stage of every engine and app of this process is written to it, at about 100 bytes per
/// span: about 60 KB per second at 60 frames per second. Marking a stage neither waits nor
/// allocates: a dedicated thread writes the file. The queue takes 4 MiB of memory. The file is
/// limited to 256 MiB ([`max_start_with_bytes`](Self::max_start_with_bytes)); spans above a limit
/// are counted and left out.
/// # Examples
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("trace.json");
/// use walla_trace::{Stage, TraceFile, enter};
/// let trace = TraceFile::start(path)?;
/// drop(enter(Stage::Plan));
/// let summary = trace.finish()?;
/// assert!(summary.spans >= 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the file ends when this is dropped"]
pub struct TraceFile {
    is_over: Arc<AtomicBool>,
    writer: Option<JoinHandle<io::Result<TraceSummary>>>,
}

impl TraceFile {
    /// Creates the file and starts the writer. An empty file and an earlier trace are replaced.
    ///
    /// # Errors
    /// [`TraceError::NotATrace`] if the path names anything else, which remains unchanged.
    /// [`TraceError`] also if another file is being written, or a file or thread cannot be created.
    pub fn start(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::max_start_with_bytes(path, MAX_FILE_BYTES)
    }

    /// Like [`start`](Self::start), with a file of at most `max_bytes` bytes.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn max_start_with_bytes(
        path: impl AsRef<Path>,
        max_bytes: u64,
    ) -> Result<Self, TraceError> {
        if IS_WRITING.swap(true, Ordering::AcqRel) {
            return Err(TraceError::Busy);
        }
        Self::spawn(path.as_ref(), max_bytes)
            .inspect_err(|_| IS_WRITING.store(false, Ordering::Release))
    }

    /// The file that the environment variable `WALLA_TRACE` names, [shared](Self::share) by all
    /// callers. Returns `None` if the variable is unset or empty.
    #[must_use]
    pub fn from_environment() -> Option<SharedTrace> {
        Self::share(environment::trace_file()?)
    }

    /// A file shared by several engines of one process, concurrently or sequentially. It ends when
    /// its last holder is dropped. A file that starts after another has ended gets a number in its
    /// name, `trace.2.json`, so that no trace is overwritten. Returns `None` if another file is
    /// being written, or if the file cannot be created, which is logged.
    #[must_use]
    pub fn share(path: impl AsRef<Path>) -> Option<SharedTrace> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = shared.file.upgrade() {
            return Some(SharedTrace { file: Some(file) });
        }
        if IS_WRITING.load(Ordering::Acquire) {
            return None;
        }
        let number = shared.begun + 1;
        let file = Arc::new(Self::start_or_log(numbered(path.as_ref(), number))?);
        *shared = Shared { file: Arc::downgrade(&file), begun: number };
        Some(SharedTrace { file: Some(file) })
    }

    /// Like [`start`](Self::start), but logs an error instead of returning it: a missing trace
    /// should not end a game. Without a `tracing` subscriber the error is written to standard
    /// error.
    #[must_use]
    pub fn start_or_log(path: impl AsRef<Path>) -> Option<Self> {
        let log = |error: &TraceError| {
            tracing::warn!(%error, "no trace file");
            crate::warn_if_unlogged(format_args!("no trace file: {error}"));
        };
        Self::start(path).inspect_err(log).ok()
    }

    /// Whether the environment names a file.
    #[must_use]
    pub fn is_in_environment() -> bool {
        environment::trace_file().is_some()
    }

    /// Ends the file and waits until it is written, about 5 ms.
    ///
    /// # Errors
    /// The I/O error of the writer, such as a full disk.
    pub fn finish(mut self) -> io::Result<TraceSummary> {
        self.end().unwrap_or_else(|| Err(io::Error::other("the trace's writer panicked")))
    }

    fn spawn(path: &Path, max_bytes: u64) -> Result<Self, TraceError> {
        let file = create(path)?;
        let queue = queue::get();
        let is_over = Arc::new(AtomicBool::new(false));
        let of_writer = Arc::clone(&is_over);
        let writer = thread::Builder::new().name("walla-trace".into()).spawn(move || {
            let receiver = queue.receiver.lock().unwrap_or_else(PoisonError::into_inner);
            // Spans marked between two files belong to neither.
            while receiver.try_recv().is_ok() {}
            queue.lost.store(0, Ordering::Relaxed);
            LISTENERS.fetch_or(FILE, Ordering::Relaxed);
            let written = write(file, max_bytes, &receiver, &of_writer);
            LISTENERS.fetch_and(!FILE, Ordering::Relaxed);
            let (spans, left_out) = written?;
            let spans_lost = left_out + queue.lost.load(Ordering::Relaxed);
            Ok(TraceSummary { spans, spans_lost })
        });
        let writer = writer.map_err(TraceError::Thread)?;
        while LISTENERS.load(Ordering::Relaxed) & FILE == 0 && !writer.is_finished() {
            thread::yield_now(); // until the writer listens: the next mark counts
        }
        Ok(Self { is_over, writer: Some(writer) })
    }

    fn end(&mut self) -> Option<io::Result<TraceSummary>> {
        let writer = self.writer.take()?;
        self.is_over.store(true, Ordering::Release);
        writer.thread().unpark();
        let summary = writer.join().ok();
        IS_WRITING.store(false, Ordering::Release);
        summary
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.end() {
            tracing::warn!(%error, "the trace file is not whole");
        }
    }
}

/// One holder of a [`TraceFile`] that several engines share. The file ends when the last holder is
/// dropped.
#[derive(Debug)]
#[must_use = "the file ends when this is dropped"]
pub struct SharedTrace {
    file: Option<Arc<TraceFile>>,
}

impl Drop for SharedTrace {
    fn drop(&mut self) {
        // A concurrent `share` waits for this lock until the file has ended.
        let _turn = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.file.take());
    }
}

#[derive(Debug)]
struct Shared {
    file: Weak<TraceFile>,
    /// Files begun so far.
    begun: u32,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { file: Weak::new(), begun: 0 });

/// Opens a trace file and empties it. Only a file that is empty or begins as a trace is truncated,
/// so that a wrong path never destroys a file. FIFOs, sockets and block devices are refused. A
/// character device such as `/dev/null` is accepted.
fn create(path: &Path) -> Result<File, TraceError> {
    let failed = |source| TraceError::Create { path: path.to_path_buf(), source };
    let other = || TraceError::NotATrace(path.to_path_buf());
    // Checked before opening, because opening a FIFO could wait.
    match fs::metadata(path) {
        Ok(found) if !is_writable(found.file_type()) => return Err(other()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = opened.map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !is_writable(found.file_type()) {
        return Err(other());
    }
    if found.is_file() && found.len() > 0 {
        let mut head = Vec::with_capacity(BEGINNING.len());
        (&file).take(BEGINNING.len() as u64).read_to_end(&mut head).map_err(failed)?;
        if head != BEGINNING.as_bytes() {
            return Err(other());
        }
        file.set_len(0).map_err(failed)?;
        file.rewind().map_err(failed)?;
    }
    Ok(file)
}

#[cfg(unix)]
fn is_writable(ty: FileType) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    ty.is_file() || ty.is_char_device()
}

#[cfg(not(unix))]
fn is_writable(ty: FileType) -> bool {
    ty.is_file()
}

/// `trace.json` of the first file, `trace.2.json` of the second.
fn numbered(path: &Path, number: u32) -> PathBuf {
    match path.extension() {
        _ if number == 1 => path.to_path_buf(),
        Some(extension) => path.with_extension(format!("{number}.{}", extension.display())),
        None => path.with_extension(number.to_string()),
    }
}

/// True while a [`TraceFile`] exists.
static IS_WRITING: AtomicBool = AtomicBool::new(false);

/// Writes records until `is_over` is set. Returns the spans written and the spans left out because
/// the file is full.
fn write(
    file: File,
    max_bytes: u64,
    receiver: &Receiver<Record>,
    is_over: &AtomicBool,
) -> io::Result<(u64, u64)> {
    let mut events = Events::begin(BufWriter::with_capacity(1 << 16, file))?;
    let mut bytes_left = max_bytes;
    let (mut spans, mut left_out) = (0, 0);
    loop {
        // Loaded before the queue is emptied, so every span marked before the end is in the file.
        let is_last = is_over.load(Ordering::Acquire);
        loop {
            match receiver.try_recv() {
                Ok(record) if json::max_bytes(&record) <= bytes_left => {
                    events.record(&record)?;
                    bytes_left -= json::max_bytes(&record);
                    spans += 1;
                }
                Ok(_) => left_out += 1,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        if is_last {
            events.count("spans_left_out", left_out)?;
            events.count("spans_lost", queue::get().lost.load(Ordering::Relaxed))?;
            events.end()?;
            return Ok((spans, left_out));
        }
        events.flush()?;
        thread::park_timeout(ROUND);
    }
}
