use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use walla_cpu::priority::ThreadClass;
use walla_model::Gguf;
use walla_model::embedding::Pooling;

use crate::error::{EmbedError, LoadError, TrySubmitError};
use crate::options::{EmbedderOptions, Purpose};
use crate::pending::Pending;
use crate::queue::Shared;
use crate::text::Embedding;
use crate::{load, worker};

/// Properties of a loaded model.
#[derive(Debug)]
struct Info {
    name: Option<String>,
    hash: u64,
    dimensions: usize,
    max_tokens: usize,
    pooling: Pooling,
    memory_bytes: u64,
}

/// Ends the thread with the last handle.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    /// Used only by [`Embedder::close`].
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// A loaded embedding model with its thread. Clones share both.
///
/// Dropping the last handle ends the thread after its current batch and frees the model's memory;
/// the drop itself does not wait ([`close`](Self::close) does). Open requests fail with
/// [`EmbedError::Stopped`].
#[derive(Clone, Debug)]
pub struct Embedder {
    owner: Arc<Owner>,
    info: Arc<Info>,
}

impl Embedder {
    /// Loads the model of a GGUF file, or of the first part of a split one. Blocks while it loads:
    /// call it on a thread that may wait.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(path: impl AsRef<Path>, options: EmbedderOptions) -> Result<Self, LoadError> {
        Self::from_gguf(Gguf::open(path)?, options)
    }

    /// Loads the model inside the program, of the crate `walla_minilm`. Blocks while it loads.
    ///
    /// # Errors
    /// See [`LoadError`].
    #[cfg(feature = "minilm")]
    pub fn minilm(options: EmbedderOptions) -> Result<Self, LoadError> {
        Self::from_gguf(Gguf::from_static(walla_minilm::GGUF)?, options)
    }

    /// Loads the model of an open file. Blocks while it loads.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn from_gguf(file: Gguf, options: EmbedderOptions) -> Result<Self, LoadError> {
        if let Some(wrong) = options.wrong() {
            return Err(LoadError::Options(wrong));
        }
        let shared = Arc::new(Shared::new(&options));
        let (loaded, result) = mpsc::sync_channel(1);
        let threads_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("walla-embed".to_owned());
        let thread = thread.spawn(move || {
            // Before the threads of the model are started, which inherit it.
            if options.low_priority && !ThreadClass::Embedder.enter() {
                tracing::debug!("the embedder's thread keeps its priority");
            }
            let model = match load_in_thread(&file, options) {
                Ok((model, info)) => {
                    drop(file);
                    if loaded.send(Ok(info)).is_err() {
                        return;
                    }
                    model
                }
                Err(error) => return drop(loaded.send(Err(error))),
            };
            worker::run(model, &threads_shared);
        });
        let thread = thread.map_err(LoadError::Thread)?;
        shared.set_thread(thread.thread().clone());
        let thread = Mutex::new(Some(thread));
        let info = Arc::new(result.recv().map_err(|_| LoadError::Ended)??);
        Ok(Self { owner: Arc::new(Owner { shared, thread }), info })
    }

    /// Requests the vectors of texts. Never waits.
    ///
    /// # Errors
    /// [`TrySubmitError`] returns the texts: the queue is full, or the request is too large for it,
    /// or the thread has ended.
    pub fn try_submit(
        &self,
        texts: Vec<String>,
        purpose: Purpose,
    ) -> Result<Pending, TrySubmitError> {
        self.owner.shared.submit(texts, purpose)
    }

    /// The vectors of texts, in their order. Waits for room in the queue; any number of texts is
    /// divided into requests.
    ///
    /// # Errors
    /// See [`EmbedError`]. Indices of texts count from the first of all texts.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the texts that were not computed yet.
    pub async fn embed(
        &self,
        texts: Vec<String>,
        purpose: Purpose,
    ) -> Result<Vec<Embedding>, EmbedError> {
        let shared = &self.owner.shared;
        let (max_texts, max_bytes) = shared.max_part();
        let mut done = Vec::with_capacity(texts.len());
        let mut texts = VecDeque::from(texts);
        let mut pending = VecDeque::new();
        let mut first = 0;
        while !texts.is_empty() {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while let Some(text) = texts.front() {
                if !part.is_empty() && (part.len() >= max_texts || bytes + text.len() > max_bytes) {
                    break;
                }
                bytes += text.len();
                part.extend(texts.pop_front());
            }
            let count = part.len();
            if let Some(refused) = shared.never_fits(&part) {
                return Err(refused.into());
            }
            // The next part is sent before this one is awaited, so the thread has always work.
            pending.push_back((first, self.submit_when_free(part, purpose).await?));
            first += count;
        }
        while let Some((first, part)) = pending.pop_front() {
            done.extend(part.await.map_err(|error| error.behind(first))?);
        }
        Ok(done)
    }

    /// As [`embed`](Self::embed), blocking the calling thread: for tools and tests.
    ///
    /// # Errors
    /// See [`EmbedError`].
    pub fn embed_blocking(
        &self,
        texts: Vec<String>,
        purpose: Purpose,
    ) -> Result<Vec<Embedding>, EmbedError> {
        pollster::block_on(self.embed(texts, purpose))
    }

    /// Submits a request that fits into the empty queue.
    async fn submit_when_free(
        &self,
        texts: Vec<String>,
        purpose: Purpose,
    ) -> Result<Pending, EmbedError> {
        let shared = &self.owner.shared;
        let (mut texts, waiter) = (Some(texts), Arc::default());
        poll_fn(|context| {
            // Room may come between the first try and the registration.
            for is_last in [false, true] {
                match shared.submit(texts.take().unwrap_or_default(), purpose) {
                    Ok(pending) => return Poll::Ready(Ok(pending)),
                    Err(TrySubmitError::Full(back)) => texts = Some(back),
                    Err(TrySubmitError::TooLarge(_, refused)) => {
                        return Poll::Ready(Err(refused.into()));
                    }
                    Err(TrySubmitError::Stopped(_)) => {
                        return Poll::Ready(Err(EmbedError::Stopped));
                    }
                }
                if !is_last {
                    shared.wait_for_room(&waiter, context.waker());
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Limits the computing time: a batch begins only while time of a [frame](Self::frame) is left.
    ///
    /// As with the engine's budget, a batch that takes longer is deducted from later frames, up to
    /// 15 of them, so the budget holds on average; unused time does not add up. Batches have as
    /// many texts as are predicted to fit, and at least one. `None`: no limit, and frames have no
    /// effect. A budget of zero pauses.
    pub fn set_budget(&self, budget: Option<Duration>) {
        self.owner.shared.grants.set(budget);
        self.owner.shared.wake();
    }

    /// Sets the time between frames that the thread grants itself while it has work, for hosts
    /// without frames: from 1 ms to a day. `None`, the default: only [`frame`](Self::frame) does.
    pub fn set_frame_time(&self, time: Option<Duration>) {
        self.owner.shared.grants.set_frame_time(time);
        self.owner.shared.wake();
    }

    /// Grants the computing time of one frame, if there is a [budget](Self::set_budget). Call it
    /// once per frame. Never waits.
    pub fn frame(&self) {
        self.owner.shared.frame();
    }

    /// Whether a request waits or is being computed.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.owner.shared.has_work()
    }

    /// Numbers of a vector.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.info.dimensions
    }

    /// A number that binds stored vectors to the model: files with other weights, another
    /// vocabulary or another pooling have another one. Equal on all machines. Prefixes are not a
    /// part of it.
    #[must_use]
    pub fn model_hash(&self) -> u64 {
        self.info.hash
    }

    /// The model's name, `general.name` of the file.
    #[must_use]
    pub fn model_name(&self) -> Option<&str> {
        self.info.name.as_deref()
    }

    /// Tokens of the longest text.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.info.max_tokens
    }

    /// How tokens become a vector.
    #[must_use]
    pub fn pooling(&self) -> Pooling {
        self.info.pooling
    }

    /// Memory of weights and activations, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.info.memory_bytes
    }

    /// Ends the thread, also for all clones, and blocks until it has ended and the memory is free.
    pub fn close(self) {
        self.owner.shared.stop();
        let mut thread = self.owner.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic of the thread has failed its requests already.
            let _ = thread.join();
        }
    }
}

fn load_in_thread(
    file: &Gguf,
    options: EmbedderOptions,
) -> Result<(crate::model::Model, Info), LoadError> {
    let model = load::load(file, options)?;
    let info = Info {
        name: file.find::<&str>("general.name").ok().flatten().map(str::to_owned),
        hash: load::hash(file, model.pooling)?,
        dimensions: model.width,
        max_tokens: model.max_tokens,
        pooling: model.pooling,
        memory_bytes: model.memory_bytes(),
    };
    Ok((model, info))
}
