use std::sync::Arc;

use walla_device::{DeviceError, Registry};

use super::Engine;
use crate::clock::Clock;
use crate::core::{Core, Source};
use crate::engine_core::{Loader, Progress};
use crate::options::{EngineError, EngineOptions};

impl Engine {
    /// Starts an engine on a device of this build: [`start_with`](Self::start_with) the
    /// [`default_registry`](crate::default_registry()).
    ///
    /// # Errors
    /// As [`start_with`](Self::start_with).
    pub fn start(options: EngineOptions) -> Result<Self, EngineError> {
        Self::start_with(options, crate::default_registry())
    }

    /// Starts an engine on a device of `registry`.
    ///
    /// Returns at once: the model loads on the device thread, [`Engine::state`] reports the
    /// progress, and clients can already send commands.
    ///
    /// # Errors
    /// [`EngineError::Option`] or [`EngineError::Thread`]. [`Engine::state`] reports all other
    /// errors.
    pub fn start_with(options: EngineOptions, registry: Registry) -> Result<Self, EngineError> {
        options.check()?;
        let queues = (options.command_queue, options.event_queue);
        let clock = Clock::real();
        let (deadlines, budget) = (options.deadlines, options.budget);
        let registry = Arc::new(registry);
        let clock_of_loader = clock.clone();
        let loader =
            OfRegistry { options, registry, clock: clock_of_loader, hung: false, source: None };
        let engine = Self::launch(queues, clock, deadlines, loader)?;
        engine.begin_with_budget(budget);
        Ok(engine)
    }
}

/// Loads a core onto a device of a registry.
struct OfRegistry {
    options: EngineOptions,
    registry: Arc<Registry>,
    clock: Clock,
    /// The load of another device thread hung, so only the fallback is tried.
    hung: bool,
    /// Kept for a fallback.
    source: Option<Arc<Source>>,
}

impl Loader<Core> for OfRegistry {
    fn load(&mut self, progress: &mut Progress<'_>) -> Result<Core, EngineError> {
        let Self { options, registry, clock, .. } = self;
        let (source, file) = Source::open(options)?;
        if self.hung {
            let reason = "the load hung".to_owned();
            let hung = EngineError::from(DeviceError::Lost { call: "load", reason });
            let loaded = Core::load_fallback(&source, options, registry, &hung, clock, progress);
            return loaded.unwrap_or(Err(hung));
        }
        let core = Core::load_from(&source, &file, options, registry, clock, progress)?;
        self.source = Some(source).filter(|_| Core::may_fall_back(options));
        Ok(core)
    }

    fn load_fallback(
        &mut self,
        lost: &EngineError,
        progress: &mut Progress<'_>,
    ) -> Option<Result<Core, EngineError>> {
        let source = self.source.take()?;
        Core::load_fallback(&source, &self.options, &self.registry, lost, &self.clock, progress)
    }

    fn successor(&self) -> Option<Self> {
        let (options, clock) = (self.options.clone(), self.clock.clone());
        let registry = Arc::clone(&self.registry);
        Some(Self { options, registry, clock, hung: true, source: None })
    }
}
