//! The device thread around the core.
//!
//! One OS thread, `walla-device`, owns the device from load to drop. It loops: admit new clients,
//! take frames and commands from mailboxes, [advance](EngineCore::advance) the core, deliver
//! events, wake the clients that received some, and park until there is more work, or nap while a
//! frame is due ([`cadence`]). Hosts access mailboxes and atomics only.
//!
//! # Field owners
//! | field | device thread | hosts |
//! |---|---|---|
//! | core, device | owns | no access |
//! | `Shared::joining` | receives | send ([`Engine::client`]) |
//! | `ClientChannels::commands` | receives | send |
//! | `ClientChannels::events` | sends | receive |
//! | `ClientChannels::framed` | takes | set, then unpark |
//! | `ClientChannels::paused`, `ClientChannels::gone`, `Shared::stop` | reads | set, then unpark |
//! | `Shared::controls` | takes | set, then unpark |
//! | `Shared::client_slots` | locks briefly, never during a call of the core or the device | no access |
//! | `Shared::heartbeat` | writes | no access |
//! | `Status` | writes | read |
//!
//! # Rules
//! 1. A host that sends, grants a frame, frees wanted slots, leaves or stops unparks the device
//!    thread *after* that action. The device thread parks only after it has checked everything; an
//!    unpark in between makes the park return at once.
//! 2. For each client, the thread keeps the generations that were asked and have not ended
//!    (`ClientSlot::open`). An ask is entered before the core sees it. A terminal event removes it
//!    when the event is in the client's queue. A generation that is not open gets no event. So
//!    there is one terminal event per generation, even if the core fails or panics.
//! 3. A client whose queue refused an event gets no event until the next round, so its events stay
//!    in order. Its commands wait, so the events that the core keeps for it are bounded. Other
//!    clients continue.
//! 4. Order at the end: the state changes; the core returns its last events and is dropped; the
//!    mailboxes for commands and clients close and are emptied; every open generation fails. Slow
//!    clients delay the end of the thread, but not the release of device memory. A command is
//!    either accepted before the close and answered, or returned to its sender.
//! 5. A device thread that hangs in a call is given up by the [watchdog thread](watchdog). From
//!    then on it owns neither client slots nor status, so that none of its later actions reaches a
//!    host.
//! 6. Dropping the last handle requests the thread to stop, waits [`JOIN_MAX`] at most, and then
//!    detaches the thread. Memory that a hung device may still write is leaked, never freed.

mod cadence;
mod client_slots;
mod controls;
mod engine;
mod heartbeat;
mod priority;
mod shutdown;
mod start;
mod thread;
mod watchdog;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use walla_model::tokenizer::Tokenizer;
use walla_plan::BUCKETS;
use walla_plan::governor::BucketError;

use self::engine::Shared;
use self::thread::{Loader, live};
use crate::api::{Command, EngineStats, Event, Pacing};
use crate::clock::Clock;
use crate::options::EngineError;
use crate::state::ModelCard;

pub(crate) use controls::Control;
pub(crate) use engine::ClientChannels;
pub use engine::Engine;
pub(crate) use thread::Progress;

/// Maximum number of clients of one engine.
pub(crate) const CLIENTS_MAX: usize = 16;

/// Maximum number of device threads of an engine: the first, and one that loads a fallback if the
/// first one's load hangs.
const INCARNATIONS_MAX: usize = 2;

/// Maximum time that the last handle waits for the device thread to end. Destroying a CUDA context
/// takes 57 to 87 ms on an H100, and unmapping the cache of a 1B model up to 15 ms more
/// (`tests/tests/exit_gpu.rs`).
const JOIN_MAX: Duration = Duration::from_millis(300);

/// Index of a client, below [`CLIENTS_MAX`]. Reused after [`EngineCore::remove_client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(pub u32);

/// Starts device thread number `number` of an engine.
fn spawn_device_thread<C: EngineCore + 'static>(
    shared: &Arc<Shared>,
    clock: Clock,
    loader: impl Loader<C> + Send + 'static,
    number: u32,
) -> std::io::Result<JoinHandle<()>> {
    let of_thread = Arc::clone(shared);
    let thread = std::thread::Builder::new()
        .name("walla-device".into())
        .spawn(move || live(&of_thread, number, &clock, loader))?;
    shared.set_device_thread(number, thread.thread().clone());
    Ok(thread)
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

    /// Fails every open generation and returns the undelivered events of each client, in order.
    /// Called last: the core is dropped afterwards.
    fn drain_events(&mut self, reason: &str) -> Vec<(ClientKey, VecDeque<Event>)>;
}
