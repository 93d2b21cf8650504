//! The device thread around the core.
//!
//! One OS thread, `walla-device`, owns the device from load to drop. It loops: admit new clients,
//! take frames and commands from mailboxes, [advance](crate::engine_core::EngineCore::advance) the
//! core, deliver events, wake the clients that received some, and park until there is more work, or
//! nap while a frame is due ([`cadence`]). Hosts access mailboxes and atomics only.
//!
//! # Field owners
//! | field | device thread | hosts |
//! |---|---|---|
//! | core, device | owns | no access |
//! | `Admission::joining` | receives | send ([`Engine::client`]) |
//! | `ClientChannels::commands` | receives | send |
//! | `ClientChannels::events` | sends | receive |
//! | `ClientChannels::flags`, `Shared::stop` | reads, takes a granted frame | set, then unpark |
//! | `Shared::controls` | takes | set, then unpark |
//! | `Shared::client_slots` | locks briefly, never during a call of the core or the device | no access |
//! | `Shared::heartbeats` | writes its own | no access |
//! | `Status` | writes | read |
//!
//! # Rules
//! 1. A host that sends, grants a frame, frees wanted slots, leaves or stops unparks the device
//!    thread *after* that action. The device thread parks only after it has checked everything; an
//!    unpark in between makes the park return at once.
//! 2. For each client, the thread keeps the replies that were asked and have not ended
//!    (`ClientSlot::open`). An ask is entered before the core sees it. A terminal event removes it
//!    when the event is in the client's queue. A reply that is not open gets no event. So
//!    there is one terminal event per reply, even if the core fails or panics.
//! 3. A client whose queue refused an event gets no event until the next round, so its events stay
//!    in order. Its commands wait, so the events that the core keeps for it are bounded. Other
//!    clients continue.
//! 4. Order at the end: the state changes; the core returns its last events and is dropped; the
//!    mailboxes for commands and clients close and are emptied; every open reply fails. Slow
//!    clients delay the end of the thread, but not the release of device memory. A command is
//!    either accepted before the close and answered, or returned to its sender.
//! 5. A device thread that hangs in a call is given up by the [watchdog thread](watchdog). From
//!    then on it owns neither client slots nor status, so that none of its later actions reaches a
//!    host.
//! 6. Dropping the last handle requests the thread to stop, waits `MAX_JOIN` at most, and then
//!    detaches the thread. Memory that a hung device may still write is leaked, never freed.

mod cadence;
mod channels;
mod client;
mod client_slots;
mod controls;
mod engine;
mod flags;
mod heartbeat;
mod memory;
mod shared;
mod shutdown;
mod start;
mod thread;
mod watchdog;

#[cfg(test)]
mod tests;

use crate::mailbox::sync;

pub use client::Client;
pub use engine::{Engine, drop_on_thread};
pub use memory::return_freed_memory;
