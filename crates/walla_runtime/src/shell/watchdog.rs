//! The thread `walla-watchdog`, which gives up a device thread that hangs in a call.
//!
//! The core detects a step that never completes, because it polls. A driver call that never returns
//! blocks the device thread, so another thread has to act. The watchdog thread only reads the
//! [`Heartbeat`](super::heartbeat::Heartbeat) of the device thread, several times per second.
//!
//! At a deadline the device thread is *disowned*: the engine's incarnation changes, and if the call
//! returns later, no action of that thread reaches a host. Its device is not accessed, so it cannot
//! be freed while in use. If the first load hangs, a new device thread loads the fallback, and
//! hosts see no other effect. After the first load the conversations are inaccessible: the engine
//! fails, and this thread ends every open reply.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use walla_device::DeviceError;

use super::heartbeat::Phase;
use super::shared::Shared;
use super::shutdown::shut_down;
use super::thread::spawn_device_thread;
use crate::clock::{Clock, WaitMeter};
use crate::engine_core::{EngineCore, Loader};
use crate::options::{Deadlines, EngineError};

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Watches the device thread until it has ended.
pub(super) fn watch<C: EngineCore + 'static>(
    shared: &Arc<Shared>,
    clock: &Clock,
    deadlines: Deadlines,
    successor: Option<impl Loader<C> + Send + 'static>,
) {
    let mut successor = successor;
    let mut meter = WaitMeter::new(2 * POLL_INTERVAL);
    let limits = [deadlines.load, deadlines.step].into_iter().flatten();
    let interval = limits.min().map_or(POLL_INTERVAL, |least| (least / 4).min(POLL_INTERVAL));
    while !shared.is_ended() {
        thread::park_timeout(interval);
        let (phase, beat) = shared.current_heartbeat().look();
        let waited = Duration::from_micros(meter.look(beat, clock.now_micros()));
        let limit = match phase {
            Phase::FirstLoad | Phase::FallbackLoad => deadlines.load,
            Phase::Play => deadlines.step,
        };
        if limit.is_none_or(|limit| waited <= limit) {
            continue;
        }
        let call = if phase == Phase::Play { "step" } else { "load" };
        let reason = format!("a call has not returned after {:.1} s", waited.as_secs_f32());
        tracing::error!(target: "walla::device", call, %reason, "the device thread is given up");
        let error = EngineError::from(DeviceError::Lost { call, reason });
        let may_start = phase == Phase::FirstLoad && !shared.is_stopping();
        let loader = successor.take().filter(|_| may_start);
        if !loader.is_some_and(|loader| start_again(shared, clock, loader)) {
            return give_up::<C>(shared, error);
        }
        meter = WaitMeter::new(2 * POLL_INTERVAL);
    }
}

/// Starts another device thread. Returns `false` if the system could not start it.
fn start_again<C: EngineCore + 'static>(
    shared: &Arc<Shared>,
    clock: &Clock,
    loader: impl Loader<C> + Send + 'static,
) -> bool {
    let number = shared.disown();
    spawn_device_thread(shared, clock.clone(), loader, number).is_ok()
}

/// Fails the engine in place of its device thread.
fn give_up<C: EngineCore>(shared: &Shared, error: EngineError) {
    let reason = error.to_string();
    let number = shared.disown();
    if let Some(owned) = shared.own(number) {
        owned.status.set_failed(error);
    }
    shut_down::<C>(shared, number, None, false, &reason);
    shared.set_ended();
}
