//! The device thread around the core.
//!
//! One OS thread, `walla-device`, owns the device from load to drop. It goes round: admit new
//! clients, take frames and commands from mailboxes, [advance](EngineCore::advance) the core,
//! deliver events, wake whoever got some, and park until there is a reason to go on, or nap while a
//! frame is due ([`cadence`]). Hosts touch mailboxes and atomics only.
//!
//! # Who may touch what
//! | what | device thread | hosts |
//! |---|---|---|
//! | core, device | all of it | never |
//! | `Shared::joining` | receives | send ([`Engine::client`]) |
//! | `Post::commands` | receives | send |
//! | `Post::events` | sends | receive |
//! | `Post::framed`, `Post::paused`, `Post::gone`, `Shared::stop` | reads (and takes back `framed`) | set, then unpark |
//! | `Shared::controls` | takes | set, then unpark |
//! | `Shared::seats` | locks for moments, never during a call of the core or the device | never |
//! | `Shared::heartbeat` | writes | never |
//! | `Status` | writes | read |
//!
//! # Rules
//! 1. A host that sends, grants a frame, makes wanted room, leaves or stops unparks the device
//!    thread *after* it did so. The device thread parks only after a look at everything; an unpark
//!    in between makes that park return at once.
//! 2. The thread keeps, for each client, the generations that were asked and have not ended
//!    (`Seat::open`). An ask enters before the core sees it; a terminal event leaves when it is in
//!    the client's queue. What is not open gets no event. So there is one terminal event for each,
//!    also when the core fails or panics.
//! 3. A client whose queue refused an event is refused until the next round (its events stay in
//!    order), and its commands wait (what the core keeps for it stays bounded). Others go on.
//! 4. At the end, in this order: the state changes, the core says its last words and is dropped,
//!    mailboxes for commands and clients close, all that is in them is taken, every open generation
//!    fails. Slow clients keep the thread, never the device's memory. A command either got in
//!    before the close and is answered, or its sender has it back.
//! 5. A device thread that hangs in a call is given up by the [watchdog thread](watchdog): from
//!    then on it owns neither seats nor status, so that nothing it does later reaches a host.
//! 6. The last handle to go asks the thread to stop, waits [`JOIN_MAX`] at most, and leaves the
//!    thread to itself. Memory that a hung device may still write is leaked, never freed.

mod cadence;
mod controls;
mod engine;
mod farewell;
mod heartbeat;
mod priority;
mod seats;
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
pub use engine::Engine;
pub(crate) use engine::Post;
pub(crate) use thread::Progress;

/// Clients that one engine serves.
pub(crate) const CLIENTS_MAX: usize = 16;

/// Device threads that an engine has at most: the first, and one that loads a fallback where the
/// first one's load hangs.
const INCARNATIONS_MAX: usize = 2;

/// How long the last handle waits for the device thread to end. Destroying a CUDA context takes 57
/// to 87 ms on an H100, and unmapping the cache of a 1B model up to 15 ms more
/// (`tests/tests/exit_gpu.rs`).
const JOIN_MAX: Duration = Duration::from_millis(300);

/// Names a client: below [`CLIENTS_MAX`], used again after [`EngineCore::remove_client`].
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

/// When to call [`EngineCore::advance`] next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// At once.
    Again,
    /// Soon: the device works.
    Poll,
    /// In so many microseconds, or when there is a command, a frame, or room that was wanted.
    Pause(u64),
    /// When there is a command, a frame, or room that was wanted.
    Idle,
}

/// Where events go. Gives an event back if the client's queue is full: the core keeps it, and all
/// later ones of that client, and tries again at the next call.
pub(crate) type Emit<'a> = dyn FnMut(ClientKey, Event) -> Result<(), Event> + 'a;

/// What the shell asks of the core.
pub(crate) trait EngineCore {
    /// A client arrives.
    fn add_client(&mut self, client: ClientKey, pacing: Pacing);

    /// A client has gone: its replies end without events, its agents go.
    fn remove_client(&mut self, client: ClientKey);

    /// A client says something.
    fn command(&mut self, client: ClientKey, command: Command, now_micros: u64);

    /// A client grants a frame's steps.
    fn frame(&mut self, client: ClientKey, now_micros: u64);

    /// A client begins or ends a pause.
    fn set_paused(&mut self, _client: ClientKey, _is_paused: bool) {}

    /// Whether all clients are paused. Frames then cause no work, so the thread parks instead of
    /// expecting them.
    fn is_paused(&self) -> bool {
        false
    }

    /// A host changes what all agents together may use.
    fn control(&mut self, control: Control);

    /// Does what can be done now without waiting.
    ///
    /// # Errors
    /// What ends the engine; the failure of one reply is an event.
    fn advance(&mut self, now_micros: u64, emit: &mut Emit<'_>) -> Result<Advance, EngineError>;

    /// Counters now.
    fn stats(&self) -> EngineStats;

    /// How far predictions of steps are off in each bucket, if that has changed since it was last
    /// asked for.
    fn changed_errors(&mut self) -> Option<[BucketError; BUCKETS.len()]> {
        None
    }

    /// What was loaded.
    fn card(&self) -> ModelCard;

    /// What makes tokens of text here, if anything does.
    fn tokenizer(&self) -> Option<Arc<Tokenizer>> {
        None
    }

    /// Goes on with the conversations of an engine whose device was lost. Called once, before
    /// anything else.
    fn take_over(&mut self, lost: Self);

    /// Fails every open generation and hands over what each client has not been sent, its events in
    /// order. Called last: the core is dropped then.
    fn last_words(&mut self, reason: &str) -> Vec<(ClientKey, VecDeque<Event>)>;
}
