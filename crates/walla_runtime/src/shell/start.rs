use std::sync::Arc;

use walla_device::Registry;

use super::Engine;
use super::clock::Clock;
use super::thread::{Loader, Progress};
use crate::core::{Core, Source};
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
    /// Returns at once: the model loads on the device thread, [`Engine::state`] tells how far it is, and clients can already
    /// send commands.
    ///
    /// # Errors
    /// [`EngineError::Option`] or [`EngineError::Thread`]. All else turns up in [`Engine::state`].
    pub fn start_with(options: EngineOptions, registry: Registry) -> Result<Self, EngineError> {
        options.check()?;
        let queues = (options.command_queue, options.event_queue);
        Self::launch(queues, Clock::real(), OfRegistry { options, registry, source: None })
    }
}

/// Loads onto the devices of a registry.
struct OfRegistry {
    options: EngineOptions,
    registry: Registry,
    /// Kept for a fallback.
    source: Option<Arc<Source>>,
}

impl Loader<Core> for OfRegistry {
    fn load(&mut self, progress: &mut Progress<'_>) -> Result<Core, EngineError> {
        let Self { options, registry, .. } = self;
        let (source, file) = Source::open(options)?;
        let core = Core::load_from(&source, &file, options, registry, progress)?;
        self.source = Some(source).filter(|_| Core::may_fall_back(options));
        Ok(core)
    }

    fn load_fallback(
        &mut self,
        lost: &EngineError,
        progress: &mut Progress<'_>,
    ) -> Option<Result<Core, EngineError>> {
        let source = self.source.take()?;
        Core::load_fallback(&source, &self.options, &self.registry, lost, progress)
    }
}
