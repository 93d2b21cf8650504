//! Shutdown of an engine: every client receives the end of each reply.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use super::shared::Shared;
use crate::engine_core::EngineCore;

/// Polling interval for a client that does not take its last events. It is also checked when it
/// frees slots.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Fails all open replies and waits until every client has received its events or has left
/// (rule 4).
///
/// The state has been set before. The core is dropped first, and with it the device's memory: its
/// last events wait for slow clients without it. A core that panicked is not called.
pub(super) fn shut_down<C: EngineCore>(
    shared: &Shared,
    number: u32,
    core: Option<C>,
    panicked: bool,
    reason: &str,
) {
    shared.admission.joining.close();
    if let Some(mut owned) = shared.own(number) {
        owned.client_slots.admit(&shared.admission);
        owned.client_slots.wake_all();
    }
    if let Some(mut core) = core {
        let drain = AssertUnwindSafe(|| core.drain_events(reason));
        let events = if panicked { None } else { catch_unwind(drain).ok() };
        // Clients with free queue slots receive the end now, because freeing a GPU's memory takes a
        // tenth of a second.
        if let Some(mut owned) = shared.own(number) {
            owned.client_slots.keep(events.unwrap_or_default());
            owned.client_slots.end_all(reason);
        }
        // A panicking drop must not keep clients from their last events.
        let _dropped = catch_unwind(AssertUnwindSafe(|| drop(core)));
    }
    // Until all clients are done, or until the drop above hung and the watchdog thread has taken
    // over.
    while let Some(mut owned) = shared.own(number) {
        let client_slots = &mut owned.client_slots;
        client_slots.end_all(reason);
        client_slots.admit(&shared.admission);
        if client_slots.is_done() && shared.admission.joining.is_drained() {
            return;
        }
        drop(owned);
        shared.heartbeat(number).rest();
        thread::park_timeout(POLL_INTERVAL);
    }
}
