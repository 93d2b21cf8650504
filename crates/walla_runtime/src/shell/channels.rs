//! Channels between a client and the device thread, and the admission of new clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use atomic_waker::AtomicWaker;

use super::flags::Flags;
use crate::api::{Command, Event, Pacing};
use crate::engine_core::MAX_CLIENTS;
use crate::mailbox::Mailbox;

/// Minimum of a client's limit on open replies: eight asks of each of 8,192 agents. With a
/// lower limit, a cancel would wait behind asks.
const MAX_OPEN: usize = 1 << 16;

/// Mailboxes and flags of a client.
#[derive(Debug)]
pub(super) struct ClientChannels {
    pub(super) commands: Mailbox<Command>,
    pub(super) events: Mailbox<Event>,
    pub(super) waker: AtomicWaker,
    pub(super) flags: Flags,
    pub(super) pacing: Pacing,
    /// Maximum number of open replies. At the limit, further commands wait in their mailbox,
    /// including cancels.
    pub(super) max_open: usize,
}

impl ClientChannels {
    pub(super) fn new(command_queue: usize, event_queue: usize, pacing: Pacing) -> Self {
        Self {
            commands: Mailbox::new(command_queue),
            events: Mailbox::new(event_queue),
            waker: AtomicWaker::new(),
            flags: Flags::new(),
            pacing,
            max_open: event_queue.max(MAX_OPEN),
        }
    }
}

/// Clients that join, and the number of all clients.
#[derive(Debug)]
pub(super) struct Admission {
    /// Clients that the device thread has not admitted yet.
    pub(super) joining: Mailbox<Arc<ClientChannels>>,
    /// Number of clients: joining, admitted, or dropped but not yet removed.
    clients: AtomicU32,
}

impl Admission {
    pub(super) fn new() -> Self {
        Self { joining: Mailbox::new(MAX_CLIENTS), clients: AtomicU32::new(0) }
    }

    /// Counts one more client. Returns `false` if there are [`MAX_CLIENTS`].
    pub(super) fn reserve(&self) -> bool {
        // Counted apart from the mailbox, which is empty again when the device thread has read it.
        let one_more = |clients: u32| (clients < MAX_CLIENTS as u32).then_some(clients + 1);
        self.clients.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    /// Ends the count of one client.
    pub(super) fn release(&self) {
        self.clients.fetch_sub(1, Ordering::AcqRel);
    }

    /// Adds a client that has reserved its place. Returns `false` if the engine has ended: the
    /// mailbox has a place for each one reserved.
    pub(super) fn join(&self, channels: Arc<ClientChannels>) -> bool {
        let joined = self.joining.try_send(channels).is_ok();
        if !joined {
            self.release();
        }
        joined
    }
}
