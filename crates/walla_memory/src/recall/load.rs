//! The embedding model of a service: set by a host, or loaded when it is first needed.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use walla_embed::Embedder;

use super::{Message, Shared};

/// Loads a model; runs on a thread.
type Loader = Box<dyn FnOnce() -> Result<Embedder, String> + Send>;

/// State of the embedding model of a [`Recall`](crate::Recall).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EmbeddingState {
    /// Entries are found by their words: there is no model, or none was needed yet.
    #[default]
    None,
    /// The model is being loaded.
    Loading,
    /// Entries are found by words and meaning.
    Ready,
    /// The model cannot be loaded, and entries are found by their words. The reason.
    Failed(Arc<str>),
}

/// The embedding model.
#[derive(Default)]
pub(super) struct Slot {
    pub embedder: Option<Embedder>,
    pub state: EmbeddingState,
    loader: Option<Loader>,
    /// Counts changes by hosts: a load that began before the latest one has no effect.
    changes: u64,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_embedder(self: &Arc<Self>, embedder: Option<Embedder>) {
        let mut slot = self.slot();
        slot.changes += 1;
        slot.loader = None;
        self.fill(&mut slot, embedder);
    }

    /// `replaces`: an earlier choice.
    pub(super) fn set_loader<E: Display>(
        self: &Arc<Self>,
        load: impl FnOnce() -> Result<Embedder, E> + Send + 'static,
        replaces: bool,
    ) {
        let mut slot = self.slot();
        if slot.changes > 0 && !replaces {
            return;
        }
        slot.changes += 1;
        slot.loader = Some(Box::new(|| load().map_err(|error| error.to_string())));
        // Before `is_started` is read, as the thread reads them in the other order.
        self.has_loader.store(true, Ordering::SeqCst);
        if self.is_started.load(Ordering::SeqCst) {
            self.send(Message::Load);
        }
    }

    /// Stores the model and sends it to the thread, in the same order for all.
    fn fill(self: &Arc<Self>, slot: &mut Slot, embedder: Option<Embedder>) {
        slot.state = EmbeddingState::None;
        if let Some(embedder) = &embedder {
            embedder.set_budget(self.options.embed_budget);
            embedder.set_frame_time(self.options.frame_time);
            slot.state = EmbeddingState::Ready;
        }
        slot.embedder.clone_from(&embedder);
        self.send(Message::Embedder(embedder));
    }

    /// Begins to load a model that is needed now. Returns whether a thread does it; the model
    /// comes as a message then, or none if it cannot be loaded.
    pub(super) fn begin_load(self: &Arc<Self>) -> bool {
        if !self.has_loader.swap(false, Ordering::SeqCst) {
            return false;
        }
        let (loader, change) = {
            let mut slot = self.slot();
            let Some(loader) = slot.loader.take() else { return false };
            slot.state = EmbeddingState::Loading;
            (loader, slot.changes)
        };
        let shared = Arc::clone(self);
        let load = move || {
            // Otherwise each search would wait for the model.
            let panicked = |_| Err("its thread panicked".to_owned());
            let loaded = catch_unwind(AssertUnwindSafe(loader)).unwrap_or_else(panicked);
            shared.loaded(change, loaded);
        };
        let thread = std::thread::Builder::new().name("walla-embed-load".to_owned());
        if let Err(error) = thread.spawn(load) {
            self.loaded(change, Err(error.to_string()));
        }
        true
    }

    fn loaded(self: &Arc<Self>, change: u64, loaded: Result<Embedder, String>) {
        let mut slot = self.slot();
        if slot.changes != change {
            return;
        }
        match loaded {
            Ok(embedder) => self.fill(&mut slot, Some(embedder)),
            Err(reason) => {
                tracing::error!(
                    target: "walla::memory", %reason,
                    "no embedding model: memories are found by their words"
                );
                self.fill(&mut slot, None);
                slot.state = EmbeddingState::Failed(reason.into());
            }
        }
    }
}
