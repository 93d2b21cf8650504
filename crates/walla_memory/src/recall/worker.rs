//! The thread: applies changes and runs searches, in the order in which they were sent.
//!
//! A search that waits for the vector of its text holds up later changes of the memories that it
//! reads, and nothing else.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use walla_embed::answer::{Answer, thread_waker};
use walla_embed::{Embedder, Pending};

use super::memory::Change;
use super::vectors::{Mirrors, QueueFull, Vectors};
use super::{Message, Shared};
use crate::{Found, FoundEntry, Hit, MemoryKey, Query, Search, SearchError, Store, search};

/// Time after which a search tries again if the queue of the embedding model is full: others may
/// use the model too, and their requests do not wake this thread.
const QUEUE_RETRY: Duration = Duration::from_millis(5);

/// Ends the service when the thread ends, for any reason.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A search in the queue.
#[derive(Debug)]
pub(crate) struct Job {
    search: Search,
    answer: Answer<Found>,
    since: Instant,
    /// The vector of its text was requested.
    is_begun: bool,
    question: Option<Pending>,
}

impl Job {
    pub fn new(search: Search, answer: Answer<Found>) -> Self {
        Self { search, answer, since: Instant::now(), is_begun: false, question: None }
    }
}

pub(crate) fn run(shared: &Arc<Shared>) {
    let _end = End(shared);
    let waker = thread_waker();
    let mut context = Context::from_waker(&waker);
    let mut worker = Worker {
        shared,
        mirrors: Mirrors::new(),
        vectors: Vectors::default(),
        items: VecDeque::new(),
        is_queue_full: false,
    };
    while !shared.stop.load(Ordering::SeqCst) {
        worker.items.extend(std::iter::from_fn(|| shared.next()));
        let wait = worker.advance(&mut context);
        worker.count();
        match wait {
            Some(time) => std::thread::park_timeout(time),
            None => std::thread::park(),
        }
    }
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    mirrors: Mirrors,
    vectors: Vectors,
    /// Messages that were not handled yet, in order.
    items: VecDeque<Message>,
    /// The embedding model has refused a request of a search in this pass.
    is_queue_full: bool,
}

impl Worker<'_> {
    /// Searches that wait request their vectors again: vectors of another model cannot be compared.
    fn set_embedder(&mut self, embedder: Option<Embedder>, waiting: &mut VecDeque<Message>) {
        self.vectors.set(embedder, &mut self.mirrors);
        for item in waiting {
            if let Message::Search(job) = item {
                (job.is_begun, job.question) = (false, None);
            }
        }
    }

    /// Handles all items that need not wait. Returns the time until the first one that waits is too
    /// late.
    fn advance(&mut self, context: &mut Context<'_>) -> Option<Duration> {
        self.vectors.store(&mut self.mirrors, context);
        self.is_queue_full = false;
        // Rule 2: a waiting search delays changes of the memories that it reads, and such a change
        // delays the searches behind it. So each search sees exactly the changes before it.
        // Memories that a waiting search reads, and memories with changes that wait for it.
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        let mut waiting = VecDeque::new();
        let mut wait: Option<Duration> = None;
        for item in std::mem::take(&mut self.items) {
            match item {
                Message::Change(key, change) => {
                    if read.contains(&key) {
                        written.insert(key);
                        waiting.push_back(Message::Change(key, change));
                    } else {
                        self.apply(key, change);
                    }
                }
                Message::Close(key, entries) => {
                    if read.contains(&key) {
                        written.insert(key);
                        waiting.push_back(Message::Close(key, entries));
                    } else {
                        self.mirrors.remove(&key);
                    }
                }
                Message::Save(key, answer) => {
                    if written.contains(&key) {
                        waiting.push_back(Message::Save(key, answer));
                    } else if let Some(mirror) = self.mirrors.get(&key) {
                        answer.send(mirror.store.save(true));
                    }
                }
                Message::Embedder(embedder) => self.set_embedder(embedder, &mut waiting),
                Message::Load if self.mirrors.values().any(|its| !its.store.is_empty()) => {
                    self.need_model();
                }
                Message::Load => {}
                Message::Search(job) => {
                    let is_blocked = job.search.memories.iter().any(|key| written.contains(key));
                    if let Some((job, left)) = self.advance_search(job, is_blocked, context) {
                        read.extend(job.search.memories.iter().copied());
                        wait = Some(wait.map_or(left, |wait| wait.min(left)));
                        waiting.push_back(Message::Search(job));
                    }
                }
            }
        }
        self.items = waiting;
        self.vectors.request_background(&mut self.mirrors);
        // It may have ended at once, without a wake.
        if self.vectors.store(&mut self.mirrors, context) {
            return Some(Duration::ZERO);
        }
        wait
    }

    /// Begins to load the model if it is the first time that it is needed.
    fn need_model(&mut self) {
        if self.shared.begin_load() {
            self.vectors.is_loading = true;
        }
    }

    fn apply(&mut self, key: MemoryKey, change: Change) {
        self.shared.queued_bytes.fetch_sub(change.bytes(), Ordering::Relaxed);
        let is_whole = matches!(change, Change::Replace(_));
        let mirror = self.mirrors.entry(key).or_default();
        mirror.apply(change, self.vectors.is_some());
        if is_whole {
            self.vectors.prepare(mirror);
        }
        if !mirror.store.is_empty() {
            self.need_model();
        }
    }

    /// Runs a search, or returns it with the time that is left for it. `is_blocked`: a change
    /// before it waits.
    fn advance_search(
        &mut self,
        mut job: Box<Job>,
        is_blocked: bool,
        context: &mut Context<'_>,
    ) -> Option<(Box<Job>, Duration)> {
        if job.answer.is_unwanted() {
            return None;
        }
        // From the ask on, so that time in the queue counts too.
        let left = self.shared.options.max_vector_time().saturating_sub(job.since.elapsed());
        if is_blocked && !left.is_zero() {
            return Some((job, left));
        }
        if !job.is_begun {
            // Searches get the model's queue in their order.
            if !self.is_queue_full && self.request_vectors(&mut job).is_err() {
                self.is_queue_full = true;
            }
            // Without time left it uses words alone.
            if self.is_queue_full && !left.is_zero() {
                return Some((job, left.min(QUEUE_RETRY)));
            }
        }
        let mut vector = None;
        if let Some(question) = &mut job.question {
            match Pin::new(question).poll(context) {
                Poll::Ready(result) => {
                    vector = result.ok().and_then(|vectors| vectors.into_iter().next());
                    // The results of requests before it have come before it.
                    self.vectors.store(&mut self.mirrors, context);
                }
                Poll::Pending if !left.is_zero() => return Some((job, left)),
                Poll::Pending => {}
            }
        }
        if (self.vectors.is_some() || self.vectors.is_loading) && vector.is_none() {
            self.shared.counters.without_vector.fetch_add(1, Ordering::Relaxed);
        }
        // Behind the wait for the vector: the counter is the cost of the search alone.
        let begin = Instant::now();
        let found = self.search(&job.search, vector.as_ref().map(|of| &of.vector[..]));
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.shared.counters.search_nanos.store(nanos, Ordering::Relaxed);
        self.shared.counters.searches.fetch_add(1, Ordering::Relaxed);
        job.answer.send(found);
        None
    }

    /// Requests the vector of a search's text, after the vectors of fresh entries.
    fn request_vectors(&mut self, job: &mut Job) -> Result<(), QueueFull> {
        let most = self.shared.options.max_fresh;
        for key in &job.search.memories {
            if let Some(mirror) = self.mirrors.get_mut(key) {
                self.vectors.request_fresh(*key, mirror, most)?;
            }
        }
        job.question = self.vectors.of_question(&job.search.text)?;
        job.is_begun = true;
        Ok(())
    }

    fn search(&self, of: &Search, vector: Option<&[f32]>) -> Found {
        let known = of.memories.iter().filter_map(|key| Some((*key, self.mirrors.get(key)?)));
        let known: Vec<_> = known.collect();
        let stores: Vec<&Store> = known.iter().map(|(_, mirror)| &mirror.store).collect();
        // Recent entries and equal texts are left out below.
        let most = of.max_entries.saturating_mul(2).saturating_add(of.recent_skipped);
        let mut query = Query {
            vector,
            reader: &of.reader,
            tags: &of.tags,
            now: of.now,
            most,
            weights: of.weights.clone(),
            ..Query::new(&of.text)
        };
        let hits = match search(&stores, &query) {
            Err(SearchError::Vector { error, .. }) => {
                tracing::warn!(target: "walla::memory", %error, "a search uses words alone");
                // One vector that does not fit must not end the search: words still find entries.
                query.vector = None;
                search(&stores, &query)
            }
            hits => hits,
        };
        let hits = hits.unwrap_or_else(|error| {
            tracing::warn!(target: "walla::memory", %error, "a search has no result");
            Vec::new()
        });
        let mut found = Found { entries: Vec::new(), has_vectors: query.vector.is_some() };
        for Hit { store, id, entry, score, cosine, .. } in hits {
            let Some((memory, mirror)) = known.get(store) else { continue };
            let is_known = found.texts().any(|text| *text == *entry.text);
            if found.entries.len() < of.max_entries
                && !is_known
                && !mirror.is_recent(id, of.recent_skipped)
            {
                let (memory, entry) = (*memory, entry.clone());
                found.entries.push(FoundEntry { memory, id, entry, score, cosine });
            }
        }
        found
    }

    fn count(&self) {
        let of = &self.shared.counters;
        let sum = |of: fn(&Store) -> usize| {
            self.mirrors.values().map(|mirror| of(&mirror.store) as u64).sum::<u64>()
        };
        of.memories.store(self.mirrors.len() as u32, Ordering::Relaxed);
        of.entries.store(sum(Store::len), Ordering::Relaxed);
        of.vectors.store(sum(Store::vectors_len), Ordering::Relaxed);
    }
}
