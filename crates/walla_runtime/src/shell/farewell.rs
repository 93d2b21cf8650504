//! The end of an engine: everybody hears how each reply ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use super::EngineCore;
use super::engine::Shared;

/// How often a client that does not take its last events is looked at, besides when it makes room.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Fails whatever is open, until every client knows or has gone (rule 4).
///
/// The state has been set before. The core goes at once, and with it the device's memory: what it
/// has still to say waits for slow clients without it. One that panicked is not asked.
pub(super) fn farewell<C: EngineCore>(
    shared: &Shared,
    number: u32,
    core: Option<C>,
    panicked: bool,
    reason: &str,
) {
    shared.joining.close();
    if let Some(mut owned) = shared.own(number) {
        owned.seats.admit(shared);
        owned.seats.wake_all();
    }
    if let Some(mut core) = core {
        let last_words = AssertUnwindSafe(|| core.last_words(reason));
        let said = if panicked { None } else { catch_unwind(last_words).ok() };
        // Clients that have room hear of the end now: freeing a GPU's memory takes a tenth of a
        // second.
        if let Some(mut owned) = shared.own(number) {
            owned.seats.keep(said.unwrap_or_default());
            owned.seats.end_all(reason);
        }
        // A drop that panics must not keep clients from their last events.
        let _dropped = catch_unwind(AssertUnwindSafe(|| drop(core)));
    }
    // Until all know, or until the drop above hung and the watchdog thread took this over.
    while let Some(mut owned) = shared.own(number) {
        let seats = &mut owned.seats;
        seats.end_all(reason);
        seats.admit(shared);
        if seats.is_done() && shared.joining.is_drained() {
            return;
        }
        drop(owned);
        shared.heartbeat.rest();
        thread::park_timeout(LOOK_AGAIN);
    }
}
