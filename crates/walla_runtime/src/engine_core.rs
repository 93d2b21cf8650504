//! Interface between the core and the shell around it. `advance` receives the time. The core's
//! threads encode prompts, compute masks, and read and write saved caches; loading uses a clock.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use walla_model::tokenizer::Tokenizer;
use walla_plan::BUCKETS;
use walla_plan::governor::BucketError;

use crate::api::{Command, EngineStats, Event, Pacing};
use crate::options::{EngineError, FrameBudget};
use crate::status::ModelCard;

/// Maximum number of clients of one engine.
pub(crate) const MAX_CLIENTS: usize = 16;

/// Index of a client, below [`MAX_CLIENTS`]. Reused after [`EngineCore::remove_client`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(pub u32);

/// A setting made by a host. The latest value applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Device time of a frame.
    Budget(FrameBudget),
    /// Time of each frame that other work on the processor has reserved.
    Reserved(Duration),
    /// Tokens that the KV pool may hold.
    KvTokens(u32),
}

/// Time of the next call of [`EngineCore::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// Immediately.
    Again,
    /// Soon, because the device works.
    Poll,
    /// After this many microseconds, or on a command, a frame, or a freed slot in a full event
    /// queue.
    Pause(u64),
    /// On a command, a frame, or a freed slot in a full event queue.
    Idle,
}

/// Delivers an event. Returns the event if the client's queue is full: the core keeps it and all
/// later events of that client, and tries again at the next call.
pub(crate) type Emit<'a> = dyn FnMut(ClientKey, Event) -> Result<(), Event> + 'a;

/// Interface of the core to the shell.
pub(crate) trait EngineCore {
    /// A client has joined.
    fn add_client(&mut self, client: ClientKey, pacing: Pacing);

    /// A client has left: its replies end without events, its agents are removed.
    fn remove_client(&mut self, client: ClientKey);

    /// Handles a command of a client.
    fn command(&mut self, client: ClientKey, command: Command, now_micros: u64);

    /// A client grants the steps of a frame.
    fn frame(&mut self, client: ClientKey, now_micros: u64);

    /// A client begins or ends a pause.
    fn set_paused(&mut self, _client: ClientKey, _is_paused: bool) {}

    /// A client requests details for a recording, or needs them no more.
    fn set_logged(&mut self, _client: ClientKey, _is_logged: bool) {}

    /// Whether all clients are paused. Frames then cause no work, so the thread parks without
    /// napping for frames.
    fn is_paused(&self) -> bool {
        false
    }

    /// A host changes a setting that applies to all agents together.
    fn control(&mut self, control: Control);

    /// Does all work that is possible now without waiting.
    ///
    /// # Errors
    /// An error that ends the engine. The failure of one reply is an event.
    fn advance(&mut self, now_micros: u64, emit: &mut Emit<'_>) -> Result<Advance, EngineError>;

    /// Current counters.
    fn stats(&self) -> EngineStats;

    /// Prediction errors of the step cost in each bucket, if they have changed since the last call.
    fn changed_errors(&mut self) -> Option<[BucketError; BUCKETS.len()]> {
        None
    }

    /// The loaded model and device.
    fn card(&self) -> ModelCard;

    /// The model's tokenizer, if the core has one.
    fn tokenizer(&self) -> Option<Arc<Tokenizer>> {
        None
    }

    /// Continues the conversations of an engine whose device was lost. Called once, before all
    /// other methods.
    fn take_over(&mut self, lost: Self);

    /// Fails every open reply and returns the undelivered events of each client, in order.
    /// Called last: the core is dropped afterwards.
    fn drain_events(&mut self, reason: &str) -> Vec<(ClientKey, VecDeque<Event>)>;
}

/// Receives the loaded share, from 0 to 1. Breaks if the load must stop.
pub(crate) type Progress<'a> = dyn FnMut(f32) -> ControlFlow<()> + 'a;

/// Loads cores.
pub(crate) trait Loader<C> {
    /// Loads the first core.
    ///
    /// # Errors
    /// An error that ends the engine.
    fn load(&mut self, progress: &mut Progress<'_>) -> Result<C, EngineError>;

    /// Loads a core that takes over after the first one's device was `lost`. Returns `None` if
    /// there is no fallback.
    ///
    /// # Errors
    /// The reason why the fallback cannot load.
    fn load_fallback(
        &mut self,
        lost: &EngineError,
        progress: &mut Progress<'_>,
    ) -> Option<Result<C, EngineError>>;

    /// A loader for another device thread, in case this one's first load hangs.
    fn successor(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}
