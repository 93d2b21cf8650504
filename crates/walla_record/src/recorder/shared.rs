//! The file of a recording, the thread that writes it, and the state that both sides share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use crossbeam_queue::ArrayQueue;

use super::{BUFFER_CAPACITY, MAX_BUFFERS};
use crate::error::RecordError;
use crate::writer;

/// Number of buffers at the begin.
const BUFFERS_FIRST: usize = 4;

/// Shared with the thread that writes.
#[derive(Debug)]
pub(crate) struct Shared {
    pub path: PathBuf,
    pub full: ArrayQueue<Vec<u8>>,
    pub empty: ArrayQueue<Vec<u8>>,
    /// Bytes of the full buffers.
    pub waiting_bytes: AtomicUsize,
    pub error: OnceLock<RecordError>,
    /// Bytes of the file.
    pub bytes: AtomicU64,
    /// The recorder was dropped.
    pub is_closing: AtomicBool,
}

impl Shared {
    /// Ends the recording.
    pub fn fail(&self, error: RecordError) {
        if self.error.set(error).is_ok()
            && let Some(error) = self.error.get()
        {
            let file = self.path.display();
            tracing::warn!(target: "walla::record", %file, %error, "the recording has ended early");
        }
    }
}

/// State of a recording; clones share it.
#[derive(Clone, Debug)]
pub struct RecordingStatus(pub(super) Arc<Shared>);

impl RecordingStatus {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether the session is being recorded.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.error().is_none() && !self.0.is_closing.load(Ordering::Relaxed)
    }

    /// Why the recording has ended early.
    #[must_use]
    pub fn error(&self) -> Option<&RecordError> {
        self.0.error.get()
    }

    /// Bytes of the file so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

/// The file of a recording, and the thread that writes it.
#[derive(Debug)]
pub struct RecordingFile {
    pub(super) shared: Arc<Shared>,
    pub(super) thread: JoinHandle<()>,
}

impl RecordingFile {
    /// Creates the file and starts the thread. An existing recording is replaced.
    ///
    /// # Errors
    /// As [`Recorder::new`](super::Recorder::new).
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, RecordError> {
        let path = path.into();
        let file = writer::create(&path)?;
        Self::start(path, move |shared| writer::run(shared, file))
    }

    pub(super) fn start(
        path: PathBuf,
        write: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<Self, RecordError> {
        let shared = Arc::new(Shared {
            path,
            full: ArrayQueue::new(MAX_BUFFERS),
            empty: ArrayQueue::new(MAX_BUFFERS),
            waiting_bytes: AtomicUsize::new(0),
            error: OnceLock::new(),
            bytes: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        });
        for _ in 0..BUFFERS_FIRST {
            let _has_room = shared.empty.push(Vec::with_capacity(BUFFER_CAPACITY));
        }
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("walla-record".into())
            .spawn(move || write(&of_thread))
            .map_err(|error| RecordError::Thread(error.to_string()))?;
        Ok(Self { shared, thread })
    }
}
