//! The thread that finds entries at each ask, and its handle. The rules are at the top of the
//! crate.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use crossbeam_queue::SegQueue;
use walla_embed::Embedder;
use walla_embed::answer::{Answer, Wanted, answer};
use walla_runtime::EngineClient;

use crate::{SavedStore, Store, UpdateError};

mod client;
mod held;
mod load;
mod memory;
mod mirror;
mod options;
mod search;
mod vectors;
mod worker;

pub use client::RecallClient;
pub use load::EmbeddingState;
pub use memory::{Memory, MemoryKey};
pub use options::{AgentRecall, EXCHANGE_TAG, OBSERVATION_TAG, RecallOptions};
pub use search::{Found, FoundEntry, PendingSearch, Search};

use load::Slot;
use memory::Change;
use worker::Job;

/// A message to the thread.
#[derive(Debug)]
pub(crate) enum Message {
    Change(MemoryKey, Change),
    /// Ends the index of a memory, and drops the host's entries.
    Close(MemoryKey, Option<Arc<Store>>),
    Search(Box<Job>),
    Save(MemoryKey, Answer<SavedStore>),
    Embedder(Option<Embedder>),
    /// There is a model that is loaded when it is needed.
    Load,
}

/// State that the hosts and the thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub options: RecallOptions,
    messages: SegQueue<Message>,
    /// Bytes of the changes in `messages` and in the thread's own queue.
    pub queued_bytes: AtomicUsize,
    pub stop: AtomicBool,
    /// The thread takes no messages any more.
    ended: AtomicBool,
    is_started: AtomicBool,
    thread: OnceLock<Thread>,
    /// The embedding model. Held for a copy of a handle at most.
    slot: Mutex<Slot>,
    /// The slot has a model that is loaded when it is needed.
    has_loader: AtomicBool,
    /// Game time in microseconds, or [`NO_TIME`].
    now: AtomicU64,
    pub counters: Counters,
}

/// No game time was set.
const NO_TIME: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub searches: AtomicU64,
    pub late: AtomicU64,
    pub without_vector: AtomicU64,
    pub memories: AtomicU32,
    pub entries: AtomicU64,
    pub vectors: AtomicU64,
    pub search_nanos: AtomicU64,
}

/// Counters of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecallStats {
    /// Searches that have ended.
    pub searches: u64,
    /// Asks that were sent without notes, because the search exceeded the
    /// [time limit](RecallOptions::max_time).
    pub late: u64,
    /// Searches by words alone, although there is an embedding model: the vector came too late.
    pub without_vector: u64,
    /// Memories that the thread knows.
    pub memories: u32,
    /// Their entries.
    pub entries: u64,
    /// Entries with a vector.
    pub vectors: u64,
    /// Time of the latest search, without the vector of its text.
    pub search: Duration,
}

impl Shared {
    fn send(self: &Arc<Self>, message: Message) {
        self.start();
        if self.ended.load(Ordering::SeqCst) {
            return;
        }
        self.messages.push(message);
        // The thread may have ended since.
        if self.ended.load(Ordering::SeqCst) {
            self.drop_messages();
        }
        self.wake();
    }

    /// Starts the thread, once.
    fn start(self: &Arc<Self>) {
        // Most programs with this crate in their build have no memories: no thread for them.
        if self.is_started.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("walla-recall".to_owned());
        match thread.spawn(move || worker::run(&shared)) {
            Ok(thread) => {
                let _ = self.thread.set(thread.thread().clone());
            }
            Err(error) => {
                tracing::error!(target: "walla::memory", %error, "memories have no thread");
                self.end();
            }
        }
    }

    /// The game time that was set last.
    pub fn now(&self) -> Option<Duration> {
        let micros = self.now.load(Ordering::Relaxed);
        (micros != NO_TIME).then(|| Duration::from_micros(micros))
    }

    pub fn close(self: &Arc<Self>, key: MemoryKey, entries: Option<Arc<Store>>) {
        self.send(Message::Close(key, entries));
    }

    pub fn next(&self) -> Option<Message> {
        self.messages.pop()
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn drop_messages(&self) {
        while self.messages.pop().is_some() {}
    }

    /// The thread has ended: no search waits for it.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.drop_messages();
    }
}

/// Ends the thread with the last handle.
#[derive(Debug)]
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
        self.0.wake();
    }
}

/// The service: a thread with an index, and optionally vectors, of memories. Clones share it.
///
/// The last handle ends the thread, which never blocks the host. Searches that run then have an
/// empty result.
#[derive(Clone, Debug)]
pub struct Recall {
    owner: Arc<Owner>,
}

impl Recall {
    /// A service without memories. Its thread starts with the first memory, search or embedding
    /// model.
    #[must_use]
    pub fn new(options: RecallOptions) -> Self {
        let shared = Arc::new(Shared {
            options,
            messages: SegQueue::new(),
            queued_bytes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            thread: OnceLock::new(),
            slot: Mutex::default(),
            has_loader: AtomicBool::new(false),
            now: AtomicU64::new(NO_TIME),
            counters: Counters::default(),
        });
        Self { owner: Arc::new(Owner(shared)) }
    }

    /// Sets the game time: of the later asks of all clients, from which the ages of entries are
    /// counted, and of entries that [have none](Memory::add).
    pub fn set_now(&self, now: Duration) {
        let micros = u64::try_from(now.as_micros()).unwrap_or(NO_TIME).min(NO_TIME - 1);
        self.owner.0.now.store(micros, Ordering::Relaxed);
    }

    /// The game time that was set last.
    pub(crate) fn now(&self) -> Option<Duration> {
        self.owner.0.now()
    }

    /// Sends the changes of a memory since its last update; the first time, all of it. Never waits.
    ///
    /// # Errors
    /// [`UpdateError`]: the changes are kept, and the next update sends them.
    pub fn update(&self, memory: &mut Memory) -> Result<(), UpdateError> {
        let shared = &self.owner.0;
        if memory.is_sent_to(shared) {
            return Ok(());
        }
        if shared.ended.load(Ordering::SeqCst) {
            return Err(UpdateError::Ended);
        }
        let (queued, most) =
            (shared.queued_bytes.load(Ordering::Relaxed), self.options().max_queued_bytes);
        // Checked before, not with the new bytes: one memory may be larger than the limit.
        if queued > most {
            return Err(UpdateError::Full { queued, most });
        }
        let key = memory.key();
        for change in memory.changes_for(shared).drain(..) {
            // Added before the thread can take it, so that the count is never below zero.
            shared.queued_bytes.fetch_add(change.bytes(), Ordering::Relaxed);
            shared.send(Message::Change(key, change));
        }
        Ok(())
    }

    /// Searches memories that were [sent](Self::update). Never waits.
    pub fn search(&self, search: Search) -> PendingSearch {
        PendingSearch { wanted: self.wanted_search(search, None) }
    }

    pub(crate) fn wanted_search(
        &self,
        search: Search,
        host: Option<Arc<AtomicWaker>>,
    ) -> Wanted<Found> {
        let (answer, wanted) = answer(host);
        self.owner.0.send(Message::Search(Box::new(Job::new(search, answer))));
        wanted
    }

    /// The entries of a memory with their vectors, for a saved game or a lore file of a game.
    /// `None`: the memory was not sent, or the service has ended.
    pub async fn saved(&self, memory: MemoryKey) -> Option<SavedStore> {
        let (answer, mut wanted) = answer(None);
        self.owner.0.send(Message::Save(memory, answer));
        std::future::poll_fn(|context| wanted.poll(context)).await.ok()
    }

    /// Sets the embedding model, or removes it. Vectors of another model are dropped; all entries
    /// are embedded in the background, and found by their words until then.
    ///
    /// The embedder gets the [budget](RecallOptions::embed_budget) and the
    /// [time between frames](RecallOptions::frame_time) of the service.
    pub fn set_embedder(&self, embedder: Option<Embedder>) {
        self.owner.0.set_embedder(embedder);
    }

    /// Loads the embedding model when it is needed: with the first entry, or at once if there is
    /// one. `load` runs on a thread. Searches wait for the model as for a vector; if it cannot be
    /// loaded, entries are found by their words ([`embedding`](Self::embedding)).
    pub fn load_embedder<E: Display>(
        &self,
        load: impl FnOnce() -> Result<Embedder, E> + Send + 'static,
    ) {
        self.owner.0.set_loader(load, true);
    }

    /// Uses the embedding model inside the program (`walla_minilm`), as
    /// [`load_embedder`](Self::load_embedder) does, unless a model, or none, was chosen before.
    #[cfg(feature = "minilm")]
    pub fn use_minilm(&self) {
        let options = walla_embed::EmbedderOptions::default();
        self.owner.0.set_loader(move || Embedder::minilm(options), false);
    }

    /// State of the embedding model.
    #[must_use]
    pub fn embedding(&self) -> EmbeddingState {
        self.owner.0.slot().state.clone()
    }

    /// The embedding model in use.
    #[must_use]
    pub fn embedder(&self) -> Option<Embedder> {
        self.owner.0.slot().embedder.clone()
    }

    /// A client whose agents can have memories. `client`: of an engine of any kind.
    #[must_use]
    pub fn client(&self, client: impl EngineClient) -> RecallClient {
        RecallClient::new(self.clone(), Arc::new(client))
    }

    /// As [`client`](Self::client), of a client whose type is not known.
    #[must_use]
    pub fn client_of(&self, client: impl Into<Arc<dyn EngineClient>>) -> RecallClient {
        RecallClient::new(self.clone(), client.into())
    }

    /// Grants the embedding model the computing time of a frame. [`RecallClient::frame`] does it
    /// too; one of the two per frame is enough.
    ///
    /// [`RecallClient::frame`]: walla_runtime::EngineClient::frame
    pub fn frame(&self) {
        if let Some(embedder) = &self.owner.0.slot().embedder {
            embedder.frame();
        }
    }

    /// Whether the embedding model has work.
    #[must_use]
    pub fn is_embedding(&self) -> bool {
        self.owner.0.slot().embedder.as_ref().is_some_and(Embedder::has_work)
    }

    /// The settings.
    #[must_use]
    pub fn options(&self) -> &RecallOptions {
        &self.owner.0.options
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> RecallStats {
        let of = &self.owner.0.counters;
        RecallStats {
            searches: of.searches.load(Ordering::Relaxed),
            late: of.late.load(Ordering::Relaxed),
            without_vector: of.without_vector.load(Ordering::Relaxed),
            memories: of.memories.load(Ordering::Relaxed),
            entries: of.entries.load(Ordering::Relaxed),
            vectors: of.vectors.load(Ordering::Relaxed),
            search: Duration::from_nanos(of.search_nanos.load(Ordering::Relaxed)),
        }
    }

    /// Counts an ask that was sent without its memories. Returns their number.
    pub(crate) fn count_late(&self) -> u64 {
        self.owner.0.counters.late.fetch_add(1, Ordering::Relaxed) + 1
    }
}
