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
/// The state has been set before. The core goes as soon as it has nothing to say, so that its memory does not wait for a
/// slow client; one that panicked is not asked.
pub(super) fn farewell<C: EngineCore>(
    shared: &Shared,
    mut seats: Seats,
    core: Option<C>,
    panicked: bool,
    reason: &str,
) {
    let mut core = core;
    shared.joining.close();
    seats.admit::<C>(shared, None);
    seats.wake_all();
    loop {
        seats.close();
        let told = match core.as_mut() {
            Some(core) if !panicked => catch_unwind(AssertUnwindSafe(|| {
                core.fail_all(reason, &mut |key, event| seats.deliver(key, event))
            }))
            .unwrap_or(true),
            _ => true,
        };
        seats.fail_open(reason);
        seats.end_round();
        if told {
            let last = core.take();
            // A drop that panics must not keep clients from their last events.
            let _dropped = catch_unwind(AssertUnwindSafe(|| drop(last)));
        }
        seats.admit::<C>(shared, None);
        if seats.is_done() && shared.joining.is_drained() {
            return;
        }
        thread::park_timeout(LOOK_AGAIN);
    }
}
