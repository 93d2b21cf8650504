//! Another device takes over where one was lost.

use std::sync::Arc;

use walla_device::Registry;

use super::{Core, Source};
use crate::api::EngineStats;
use crate::clock::Clock;
use crate::options::{EngineError, EngineOptions};
use crate::shell::Progress;

/// The device of last resort.
const FALLBACK: &str = "cpu";

impl Core {
    /// Whether the options allow the CPU to take over from the engine's device.
    pub(crate) fn may_fall_back(options: &EngineOptions) -> bool {
        options.fallback && options.device != FALLBACK
    }

    /// Loads the model onto the CPU after another device was `lost`, from the file that was opened
    /// first. `None` if options or registry do not want that.
    ///
    /// # Errors
    /// [`EngineError::File`] if the file was changed in place since, or as [`Core::load_from`].
    pub(crate) fn load_fallback(
        source: &Source,
        options: &EngineOptions,
        registry: &Registry,
        lost: &EngineError,
        clock: &Clock,
        progress: &mut Progress<'_>,
    ) -> Option<Result<Self, EngineError>> {
        let is_there = || registry.devices().iter().any(|(info, _)| info.name == FALLBACK);
        if !Self::may_fall_back(options) || !is_there() {
            return None;
        }
        let options = EngineOptions { device: FALLBACK.to_owned(), ..options.clone() };
        let loaded = source.reopen().map_err(EngineError::from).and_then(|file| {
            tracing::warn!(target: "walla::device", %lost, "the CPU takes over");
            source.load_onto(FALLBACK, &file, &options, registry, clock, progress)
        });
        let loaded = loaded.map_err(|error| error.in_file(&options.model));
        Some(loaded.map(|mut core| {
            core.card.fallback_after = Some(lost.to_string());
            core
        }))
    }

    /// Takes over agents, clients and texts. Nothing that was in flight counts: what the host knows
    /// of each reply (its prompt and the tokens that have come back) is read again, and the reply
    /// goes on with the next token, which is the one that it would have been, since draws depend on
    /// seed and position alone.
    ///
    /// That holds for the same model only. If this core has another one, every reply fails, and the
    /// next call of `advance` returns [`EngineError::OtherModel`].
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
            sequences,
            ..
        } = lost;
        let agents_max = self.agents.len();
        let is_same = Arc::ptr_eq(&self.text, &text) && agents.len() == agents_max;
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
        let pages = sequences.ledger.usable_pages();
        self.sequences.ledger.limit_pages(pages);
        let pages = self.sequences.ledger.usable_pages();
        let kv_bytes = self.sequences.executor.device().memory().cache_bytes;
        self.stats = EngineStats { pages, pages_used: 0, kv_bytes, ..stats };
        if !is_same {
            self.refuse(agents_max);
        }
    }

    /// Ends every reply, and the engine with the next call of `advance`.
    fn refuse(&mut self, agents_max: usize) {
        let error = EngineError::OtherModel;
        self.fail_all(&error.to_string());
        // The other core may have had more slots.
        self.agents = (0..agents_max).map(|_| None).collect();
        self.slots.clear();
        self.first_to_ask = 0;
        self.refused = Some(error);
    }
}
