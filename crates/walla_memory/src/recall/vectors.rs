//! Vectors of entries and questions, from the embedding model.

use std::collections::{BTreeMap, VecDeque};
use std::task::Context;

use walla_embed::{EmbedError, Embedder, Embedding, Pending, Purpose, TrySubmitError};

use super::mirror::Mirror;
use crate::{EntryId, MemoryKey};

/// Texts of one request in the background: a request is not interrupted, and a question waits for
/// the one in work.
const BACKGROUND_TEXTS: usize = 8;

/// The memories of the thread.
pub(crate) type Mirrors = BTreeMap<MemoryKey, Mirror>;

/// The model's queue takes no request now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueFull;

/// A request for vectors of entries.
#[derive(Debug)]
struct Request {
    memory: MemoryKey,
    ids: Vec<EntryId>,
    pending: Pending,
    is_background: bool,
}

/// The embedding model with the requests for entries.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    embedder: Option<Embedder>,
    /// The model is being loaded.
    pub is_loading: bool,
    /// In the order of their submission, which is the order of their results.
    requests: VecDeque<Request>,
}

impl Vectors {
    /// Changes the model.
    pub fn set(&mut self, embedder: Option<Embedder>, mirrors: &mut Mirrors) {
        // Late vectors of the old model must not be stored among vectors of the new one.
        self.requests.clear();
        self.is_loading = false;
        self.embedder = embedder;
        mirrors.values_mut().for_each(|mirror| self.prepare(mirror));
    }

    /// Drops vectors of other models from a memory, and marks the entries without one.
    pub fn prepare(&self, mirror: &mut Mirror) {
        match &self.embedder {
            // The name is short.
            Some(embedder) => {
                // The name in a saved game may be forged: no other vector would fit then.
                let dimensions = mirror.store.dimensions();
                if dimensions.is_some_and(|saved| saved != embedder.dimensions()) {
                    mirror.store.clear_vectors();
                }
                let name = format!("{:016x}", embedder.model_hash());
                drop(mirror.store.set_vector_model(&name));
            }
            None => mirror.store.clear_vectors(),
        }
        mirror.embed_missing(self.is_some());
    }

    pub fn is_some(&self) -> bool {
        self.embedder.is_some()
    }

    /// Requests the vector of a question. `None`: there will be none.
    ///
    /// # Errors
    /// The queue of the model is full, or the model is being loaded: try again later.
    pub fn of_question(&self, text: &str) -> Result<Option<Pending>, QueueFull> {
        if self.is_loading {
            return Err(QueueFull);
        }
        let Some(embedder) = &self.embedder else { return Ok(None) };
        match embedder.try_submit(vec![text.to_owned()], Purpose::Query) {
            Ok(pending) => Ok(Some(pending)),
            Err(TrySubmitError::Full(_)) => Err(QueueFull),
            Err(TrySubmitError::TooLarge(..) | TrySubmitError::Stopped(_)) => Ok(None),
        }
    }

    /// Requests the vectors of all entries of a memory that have none, if these are few.
    ///
    /// # Errors
    /// The queue of the model is full: try again later.
    pub fn request_fresh(
        &mut self,
        memory: MemoryKey,
        mirror: &mut Mirror,
        most: usize,
    ) -> Result<(), QueueFull> {
        if mirror.unembedded.len() > most {
            return Ok(());
        }
        self.request(memory, mirror, most, false)
    }

    /// Requests vectors of further entries, if nothing else is requested.
    pub fn request_background(&mut self, mirrors: &mut Mirrors) {
        if self.requests.iter().any(|request| request.is_background) {
            return;
        }
        let next = mirrors.iter_mut().find(|(_, mirror)| !mirror.unembedded.is_empty());
        if let Some((memory, mirror)) = next {
            // Otherwise later.
            let _ = self.request(*memory, mirror, BACKGROUND_TEXTS, true);
        }
    }

    fn request(
        &mut self,
        memory: MemoryKey,
        mirror: &mut Mirror,
        most: usize,
        is_background: bool,
    ) -> Result<(), QueueFull> {
        let Some(embedder) = &self.embedder else { return Ok(()) };
        let ids: Vec<EntryId> = mirror.unembedded.iter().copied().take(most).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let text = |id: &EntryId| mirror.store.get(*id).map(|entry| entry.text.to_string());
        let texts = ids.iter().map(|id| text(id).unwrap_or_default()).collect();
        match embedder.try_submit(texts, Purpose::Document) {
            Ok(pending) => {
                mirror.unembedded.retain(|id| !ids.contains(id));
                self.requests.push_back(Request { memory, ids, pending, is_background });
            }
            Err(TrySubmitError::Full(_)) => return Err(QueueFull),
            // Larger than the embedder's queue, or its thread has ended: words remain.
            Err(TrySubmitError::TooLarge(..) | TrySubmitError::Stopped(_)) => {
                mirror.unembedded.retain(|id| !ids.contains(id));
            }
        }
        Ok(())
    }

    /// Stores the vectors that have come. Returns whether there were any.
    pub fn store(&mut self, mirrors: &mut Mirrors, context: &mut Context<'_>) -> bool {
        let mut has_come = false;
        // Only the first: results come in the order of their submission.
        while let Some(request) = self.requests.front_mut()
            && let std::task::Poll::Ready(result) =
                Future::poll(std::pin::Pin::new(&mut request.pending), context)
        {
            has_come = true;
            let Some(Request { memory, ids, .. }) = self.requests.pop_front() else { break };
            let Some(mirror) = mirrors.get_mut(&memory) else { continue };
            match result {
                Ok(vectors) => store_all(mirror, &ids, &vectors),
                Err(error) => self.retry(memory, mirror, &ids, &error),
            }
        }
        has_come
    }

    /// One text of a request was refused: the others are requested again.
    fn retry(&self, memory: MemoryKey, mirror: &mut Mirror, ids: &[EntryId], error: &EmbedError) {
        let refused = match error {
            EmbedError::TooLong { text, .. }
            | EmbedError::Empty { text }
            | EmbedError::NotFinite { text } => Some(*text),
            _ => None,
        };
        tracing::warn!(target: "walla::memory", ?memory, %error, "entries have no vector");
        if let Some(refused) = refused.filter(|_| self.embedder.is_some()) {
            let others = ids.iter().enumerate().filter(|(at, _)| *at != refused);
            let known = others.map(|(_, id)| *id).filter(|id| mirror.store.get(*id).is_some());
            let known: Vec<EntryId> = known.collect();
            mirror.unembedded.extend(known);
        }
    }
}

fn store_all(mirror: &mut Mirror, ids: &[EntryId], vectors: &[Embedding]) {
    for (id, vector) in ids.iter().zip(vectors) {
        // The entry may have been removed since.
        if let Err(error) = mirror.store.set_vector(*id, &vector.vector) {
            tracing::debug!(target: "walla::memory", %id, %error, "a vector is not stored");
        }
    }
}
