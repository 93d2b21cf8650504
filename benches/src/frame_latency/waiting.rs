//! The opposite of walla's design, for comparison: a client that blocks the frame until the device
//! has finished the frame's step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bevy_walla::diagnostics::EngineStats;
use bevy_walla::engine::{
    Capabilities, Client, Command, EngineClient, EngineState, Event, TrySendError,
};

/// Timeout of a step's start: no step runs while prompts are being encoded.
const MAX_BEGIN: Duration = Duration::from_millis(1);

/// Timeout of its end.
const MAX_END: Duration = Duration::from_secs(2);

/// A client that blocks.
#[derive(Clone)]
pub struct Waiting(Arc<Client>);

impl Waiting {
    pub fn new(client: Client) -> Self {
        Self(Arc::new(client))
    }

    /// Polls every few microseconds; sleeping would add the system's timer slack to the step.
    fn wait_for_step(&self) {
        let before = self.0.engine().stats().steps;
        self.0.frame();
        let start = Instant::now();
        loop {
            let stats = self.0.engine().stats();
            let (begun, done) = (stats.steps > before, stats.steps_done >= stats.steps);
            let limit = if begun { MAX_END } else { MAX_BEGIN };
            if begun && done || start.elapsed() > limit {
                break;
            }
            std::thread::yield_now();
        }
    }
}

impl EngineClient for Waiting {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        self.0.try_send(command)
    }

    fn try_recv(&self) -> Option<Event> {
        self.0.try_recv()
    }

    fn frame(&self) {
        self.wait_for_step();
    }

    fn stop(&self) {
        self.0.engine().stop();
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::LOCAL
    }

    fn state(&self) -> EngineState {
        EngineClient::state(&*self.0)
    }

    fn stats(&self) -> EngineStats {
        self.0.engine().stats()
    }
}
