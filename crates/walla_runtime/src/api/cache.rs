//! Saving and loading the cache of an agent.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use crate::cache_file::KvFileError;

/// Maximum number of saves and loads that wait in one engine. Further ones fail with
/// [`CacheError::Busy`].
pub const MAX_CACHE_JOBS: usize = 256;

/// Result of a save or a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheCopied {
    /// Tokens whose keys and values are in the file: the next prompt of an agent that loads it is
    /// evaluated from the first token that differs.
    pub tokens: u32,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Time from the request to the end, with waiting.
    pub elapsed: Duration,
}

/// Reason why a cache was not saved or loaded. The agent speaks as without it: its conversation is
/// evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The engine has no cache that can be copied: it is remote or scripted, or its device does not
    /// support it.
    #[error("this engine has no caches to save or load")]
    Unsupported,
    /// The engine does not know the agent.
    #[error("the engine does not know the agent")]
    UnknownAgent,
    /// There is nothing to save: no token of the agent is evaluated, or other agents have taken
    /// its slot or its pages. With recurrent layers also: the agent speaks, and there is no
    /// snapshot of its state.
    #[error("nothing of the agent is in the cache")]
    NotCached,
    /// The agent has asks or a reply: its cache is in use. Load while it is silent.
    #[error("the agent has been asked already")]
    Asked,
    /// The agent has no slot to load into: there are more agents than
    /// [`EngineOptions::max_agents`](crate::EngineOptions::max_agents).
    #[error("the agent has no slot")]
    NoSlot,
    /// Too few free pages. Agents that speak have priority.
    #[error("no KV pages are free for the copy")]
    NoPages,
    /// [`MAX_CACHE_JOBS`] saves and loads are waiting.
    #[error("{MAX_CACHE_JOBS} saves and loads are waiting already")]
    Busy,
    /// The file was not read within two seconds, or not written within ten, and the copy was
    /// abandoned: asks of its agent wait for a load, and later copies wait for both. The time that
    /// it waited behind other copies does not count.
    #[error("the file was not read within two seconds, or not written within ten")]
    TooSlow,
    /// The file cannot be written, read or used.
    #[error(transparent)]
    File(#[from] KvFileError),
    /// The device has failed.
    #[error("{0}")]
    Device(String),
    /// The engine ended, or the host left it, before the copy was complete.
    #[error("the engine has ended")]
    EngineGone,
}

/// Direction of the copy, and the place of the file.
#[derive(Clone, Debug)]
pub(crate) enum CacheWork {
    SaveFile(PathBuf),
    SaveBytes,
    LoadFile(PathBuf),
    LoadBytes(Arc<[u8]>),
}

impl CacheWork {
    pub fn is_load(&self) -> bool {
        matches!(self, Self::LoadFile(_) | Self::LoadBytes(_))
    }
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<CacheCopied, CacheError>>,
    bytes: Option<Vec<u8>>,
}

/// Shared by a ticket and its job.
struct Shared {
    state: Mutex<State>,
    waker: AtomicWaker,
    begun: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first result counts.
    fn end(&self, result: Result<(u32, u64), CacheError>, bytes: Option<Vec<u8>>) {
        let elapsed = self.begun.elapsed();
        let result = result.map(|(tokens, file_bytes)| CacheCopied { tokens, file_bytes, elapsed });
        let mut state = self.lock();
        if state.result.is_none() {
            *state = State { result: Some(result), bytes };
        }
        drop(state);
        self.waker.wake();
    }
}

/// The engine's end of a save or a load, in [`Command::CopyCache`](crate::Command::CopyCache).
///
/// If the last clone is dropped without a result, the job ends with [`CacheError::EngineGone`].
#[derive(Clone)]
pub struct CacheTicket(Arc<Guard>);

struct Guard {
    work: CacheWork,
    shared: Arc<Shared>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.end(Err(CacheError::EngineGone), None);
    }
}

impl CacheTicket {
    fn new(work: CacheWork) -> (Self, CacheJob) {
        let (state, waker, begun) = (Mutex::default(), AtomicWaker::new(), Instant::now());
        let shared = Arc::new(Shared { state, waker, begun });
        let job = CacheJob(Arc::clone(&shared));
        (Self(Arc::new(Guard { work, shared })), job)
    }

    /// Saves the cache of an agent to a file, which replaces an older one when it is complete. Any
    /// other file is kept ([`KvFileError::NotACacheFile`]).
    #[must_use]
    pub fn save(path: impl Into<PathBuf>) -> (Self, CacheJob) {
        Self::new(CacheWork::SaveFile(path.into()))
    }

    /// Saves the cache of an agent to memory: [`CacheJob::take_bytes`].
    #[must_use]
    pub fn save_bytes() -> (Self, CacheJob) {
        Self::new(CacheWork::SaveBytes)
    }

    /// Loads the cache of an agent from a file.
    #[must_use]
    pub fn load(path: impl Into<PathBuf>) -> (Self, CacheJob) {
        Self::new(CacheWork::LoadFile(path.into()))
    }

    /// Loads the cache of an agent from the bytes of a file.
    #[must_use]
    pub fn load_bytes(bytes: impl Into<Arc<[u8]>>) -> (Self, CacheJob) {
        Self::new(CacheWork::LoadBytes(bytes.into()))
    }

    /// Whether the cache is loaded, not saved.
    #[must_use]
    pub fn is_load(&self) -> bool {
        self.0.work.is_load()
    }

    /// Ends the job with an error. Without effect if it has ended.
    pub fn fail(&self, error: CacheError) {
        self.0.shared.end(Err(error), None);
    }

    pub(crate) fn work(&self) -> &CacheWork {
        &self.0.work
    }

    /// Ends the job: tokens and length of the file, and its bytes if the host wants them.
    pub(crate) fn succeed(&self, copied: (u32, u64), bytes: Option<Vec<u8>>) {
        self.0.shared.end(Ok(copied), bytes);
    }
}

impl fmt::Debug for CacheTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = match self.work() {
            CacheWork::SaveFile(path) => format!("save {}", path.display()),
            CacheWork::LoadFile(path) => format!("load {}", path.display()),
            CacheWork::SaveBytes => "save bytes".to_owned(),
            CacheWork::LoadBytes(bytes) => format!("load {} bytes", bytes.len()),
        };
        f.debug_tuple("CacheTicket").field(&work).finish()
    }
}

/// Equal: of the same job.
impl PartialEq for CacheTicket {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The host's end of a save or a load: a future, or polled in each frame with
/// [`result`](Self::result). Dropping it cancels nothing.
///
/// # Cancel safety
/// Dropping the future loses only the result.
pub struct CacheJob(Arc<Shared>);

impl CacheJob {
    /// The result, if the job has ended. Never waits.
    #[must_use]
    pub fn result(&self) -> Option<Result<CacheCopied, CacheError>> {
        self.0.lock().result.clone()
    }

    /// The bytes of a file that was saved to memory, once.
    #[must_use]
    pub fn take_bytes(&self) -> Option<Vec<u8>> {
        self.0.lock().bytes.take()
    }

    /// Wakes `waker` once when the job ends. Replaces an earlier one.
    pub fn register_waker(&self, waker: &Waker) {
        self.0.waker.register(waker);
    }
}

impl fmt::Debug for CacheJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CacheJob").field(&self.result()).finish()
    }
}

impl Future for CacheJob {
    type Output = Result<CacheCopied, CacheError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.register_waker(context.waker());
        self.result().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_ends_once_and_a_dropped_ticket_ends_it() {
        let (ticket, job) = CacheTicket::save_bytes();
        assert_eq!(job.result(), None);
        let copy = ticket.clone();
        assert_eq!(copy, ticket);
        drop(ticket);
        assert_eq!(job.result(), None, "another clone may still end it");
        copy.succeed((3, 100), Some(vec![1]));
        copy.fail(CacheError::Unsupported);
        drop(copy);
        let copied = job.result().unwrap().unwrap();
        assert_eq!((copied.tokens, copied.file_bytes), (3, 100));
        assert_eq!((job.take_bytes(), job.take_bytes()), (Some(vec![1]), None));
        let (ticket, job) = CacheTicket::load("file");
        assert!(ticket.is_load());
        drop(ticket);
        assert_eq!(job.result(), Some(Err(CacheError::EngineGone)));
    }
}
