//! The CPU takes over from a lost device.

use std::sync::Arc;

use walla_device::Registry;

use super::{Core, Source};
use crate::clock::Clock;
use crate::engine_core::Progress;
use crate::options::{EngineError, EngineOptions};

/// Name of the fallback device.
const FALLBACK: &str = "cpu";

impl Core {
    /// Whether the options allow the CPU to take over from the engine's device.
    pub(crate) fn may_fall_back(options: &EngineOptions) -> bool {
        options.fallback && options.device != FALLBACK
    }

    /// Loads the model onto the CPU after another device was `lost`, from the file that was opened
    /// first. Returns `None` if the options or the registry exclude a fallback.
    ///
    /// # Errors
    /// [`EngineError::File`] if the file was changed in place, or as [`Core::load_from`].
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

    /// Takes over agents, clients and texts. Work in flight is discarded. The known tokens of each
    /// reply (its prompt and the tokens read so far) are recomputed, and the reply continues with
    /// the same next token, because draws depend only on seed and position.
    ///
    /// This requires the same model. If this core has another model, every reply fails, and the
    /// next call of `advance` returns [`EngineError::OtherModel`].
    pub(super) fn continue_from(&mut self, mut lost: Self) {
        lost.fail_transfers("the device was lost");
        let Self {
            model_text, prompts, constraints, mut agents, clients, stats, budget, kv, ..
        } = lost;
        let slots = self.agents.slots();
        let is_same = Arc::ptr_eq(&self.model_text, &model_text) && agents.slots() == slots;
        for agent in agents.iter_mut() {
            // Its pages were on the device that was lost.
            agent.sequence.forget_cache();
            agent.background.restart();
        }
        self.model_text = model_text;
        // Texts, grammars and clients do not depend on the device, so their work continues.
        self.prompts = prompts;
        self.constraints = constraints;
        self.agents = agents;
        self.clients = clients;
        self.budget.inherit(&budget);
        self.kv.inherit(&kv);
        self.stats = stats;
        self.kv.update_stats(&mut self.stats);
        if !is_same {
            self.refuse(slots);
        }
    }

    /// Ends every reply, and the engine at the next call of `advance`.
    fn refuse(&mut self, slots: usize) {
        let error = EngineError::OtherModel;
        self.fail_all(&error.to_string());
        // The other core may have had more slots.
        self.agents.resize(slots);
        self.prompts.restart();
        self.refused = Some(error);
    }
}
