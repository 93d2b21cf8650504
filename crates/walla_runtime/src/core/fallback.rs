//! Another device takes over where one was lost.

use walla_device::Registry;

use super::Core;
use crate::api::EngineStats;
use crate::options::{EngineError, EngineOptions};
use crate::shell::Progress;

/// The device of last resort.
const FALLBACK: &str = "cpu";

impl Core {
    /// Loads the model onto the CPU after another device was `lost`. `None` if options or registry do not want that.
    ///
    /// # Errors
    /// As [`Core::load`].
    pub(crate) fn load_fallback(
        options: &EngineOptions,
        registry: &Registry,
        lost: &EngineError,
        progress: &mut Progress<'_>,
    ) -> Option<Result<Self, EngineError>> {
        let is_there = || registry.devices().iter().any(|(info, _)| info.name == FALLBACK);
        if !options.fallback || options.device == FALLBACK || !is_there() {
            return None;
        }
        tracing::warn!(target: "walla::device", %lost, "the CPU takes over");
        let options = EngineOptions { device: FALLBACK.to_owned(), ..options.clone() };
        let loaded = Self::load(&options, registry, progress).map(|mut core| {
            core.card.fallback_after = Some(lost.to_string());
            core
        });
        Some(loaded)
    }

    /// Takes over agents, clients and texts. Nothing that was in flight counts: what the host knows of each reply (its prompt and the
    /// tokens that have come back) is read again, and the reply goes on with the next token, which is the one that it would have been,
    /// since draws depend on seed and position alone.
    pub(super) fn continue_from(&mut self, lost: Self) {
        let Self {
            text,
            worker,
            worker_is_full,
            first_to_ask,
            mut agents,
            slots,
            parked,
            clients,
            stats,
            budget,
            ..
        } = lost;
        for agent in agents.iter_mut().flatten() {
            agent.forget_cache();
        }
        self.text = text;
        self.worker = worker;
        self.worker_is_full = worker_is_full;
        self.first_to_ask = first_to_ask;
        self.agents = agents;
        self.slots = slots;
        self.parked = parked;
        self.clients = clients;
        self.budget.inherit(&budget);
        let pages = lost.sequences.ledger.usable_pages();
        self.sequences.ledger.limit_pages(pages);
        let pages = self.sequences.ledger.usable_pages();
        let kv_bytes = self.sequences.executor.device().memory().cache_bytes;
        self.stats = EngineStats { pages, pages_used: 0, kv_bytes, ..stats };
    }
}
