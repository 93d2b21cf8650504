//! The end of an engine: everybody hears how each reply ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use super::EngineCore;
use super::engine::Shared;
use super::seats::Seats;

/// How often a client that does not take its last events is looked at, besides when it makes room.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Fails whatever is open, until every client knows or has gone (rule 4).
///
/// The state has been set before. The core goes at once, and with it the device's memory: what it has still to say waits for slow
/// clients without it. One that panicked is not asked.
pub(super) fn farewell<C: EngineCore>(
    shared: &Shared,
    mut seats: Seats,
    core: Option<C>,
    panicked: bool,
    reason: &str,
) {
    shared.joining.close();
    seats.admit::<C>(shared, None);
    seats.wake_all();
    if let Some(mut core) = core {
        let last_words = AssertUnwindSafe(|| core.last_words(reason));
        let said = if panicked { None } else { catch_unwind(last_words).ok() };
        seats.keep(said.unwrap_or_default());
        // A drop that panics must not keep clients from their last events.
        let _dropped = catch_unwind(AssertUnwindSafe(|| drop(core)));
    }
    loop {
        seats.close();
        seats.fail_open(reason);
        seats.end_round();
        seats.admit::<C>(shared, None);
        if seats.is_done() && shared.joining.is_drained() {
            return;
        }
        thread::park_timeout(LOOK_AGAIN);
    }
}
