//! The loop of the device thread.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use walla_cpu::priority::{FineClock, ThreadClass};

use super::cadence::{Cadence, Rest};
use super::client_slots::{COMMANDS_PER_ROUND, ClientChange, Collected};
use super::heartbeat::Phase;
use super::shared::{Owned, Shared};
use super::shutdown::shut_down;
use crate::clock::Clock;
use crate::engine_core::{Advance, ClientKey, EngineCore, Loader, MAX_CLIENTS};
use crate::options::EngineError;

/// Starts device thread number `number` of an engine.
pub(super) fn spawn_device_thread<C: EngineCore + 'static>(
    shared: &Arc<Shared>,
    clock: Clock,
    loader: impl Loader<C> + Send + 'static,
    number: u32,
) -> std::io::Result<JoinHandle<()>> {
    let of_thread = Arc::clone(shared);
    let thread = thread::Builder::new()
        .name("walla-device".into())
        .spawn(move || run_device_thread(&of_thread, number, &clock, loader))?;
    shared.set_device_thread(number, thread.thread().clone());
    Ok(thread)
}

/// Main function of device thread number `number`.
fn run_device_thread<C: EngineCore>(
    shared: &Shared,
    number: u32,
    clock: &Clock,
    loader: impl Loader<C>,
) {
    if !ThreadClass::Engine.enter() {
        tracing::debug!("the device thread keeps its scheduling policy or its time slice");
    }
    walla_trace::listen_nvtx();
    // Until this thread ends, or the thread of another engine that outlives it.
    let trace = walla_trace::TraceFile::from_environment();
    let mut core = None;
    // Unwind safety: after a panic the core is only dropped. ClientSlots are still used; no method
    // of `ClientSlots` leaves it inconsistent.
    let work = AssertUnwindSafe(|| serve(shared, number, clock, loader, &mut core));
    let ended = catch_unwind(work);
    let panicked = ended.is_err();
    let Some(owned) = shared.own(number) else {
        // The watchdog thread gave this thread up while it hung, and ended all replies.
        tracing::warn!(target: "walla::device", "a call that had been given up has returned");
        let _dropped = catch_unwind(AssertUnwindSafe(|| drop(core)));
        return;
    };
    let reason = match ended.unwrap_or_else(|panic| Err(EngineError::Panicked(message(&*panic)))) {
        Ok(()) | Err(EngineError::Stopped) => {
            owned.status.set_stopped();
            EngineError::Stopped.to_string()
        }
        Err(error) => {
            let reason = error.to_string();
            tracing::error!(%reason, "the engine has failed");
            owned.status.set_failed(error);
            reason
        }
    };
    drop(owned);
    shared.heartbeat(number).work();
    shut_down(shared, number, core, panicked, &reason);
    // Before the end is reported: the memory is released then.
    super::memory::return_freed_memory();
    // Also before, because the program may exit then.
    drop(trace);
    if shared.own(number).is_some() {
        shared.set_ended();
    }
}

/// The engine as seen by its device thread.
struct Device<'a> {
    shared: &'a Shared,
    number: u32,
    clock: &'a Clock,
}

impl Device<'_> {
    /// # Errors
    /// [`EngineError::Stopped`] if the thread has been disowned.
    fn own(&self) -> Result<Owned<'_>, EngineError> {
        self.shared.own(self.number).ok_or(EngineError::Stopped)
    }

    /// Whether a load may continue. Also records that the thread is alive.
    fn report_progress(&self, fraction: Option<f32>) -> ControlFlow<()> {
        self.shared.heartbeat(self.number).work();
        match self.shared.own(self.number) {
            Some(owned) if !self.shared.is_stopping() => {
                if let Some(fraction) = fraction {
                    owned.status.set_fraction(fraction);
                }
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        }
    }

    fn publish_ready(&self, core: &impl EngineCore) -> Result<(), EngineError> {
        let card = core.card();
        tracing::info!(model = card.name, device = %card.device_line(), "ready");
        self.own()?.status.set_ready(card, core.tokenizer());
        Ok(())
    }
}

/// Loads the core and runs rounds until the engine is stopped.
fn serve<C: EngineCore>(
    shared: &Shared,
    number: u32,
    clock: &Clock,
    mut loader: impl Loader<C>,
    place: &mut Option<C>,
) -> Result<(), EngineError> {
    let device = Device { shared, number, clock };
    shared.heartbeat(number).enter(Phase::FirstLoad);
    let loaded = loader.load(&mut |fraction| device.report_progress(Some(fraction)))?;
    let mut core = place.insert(loaded);
    shared.heartbeat(number).enter(Phase::Play);
    device.publish_ready(core)?;
    let mut is_fallback = false;
    let mut cadence = Cadence::default();
    let _fine_clock = FineClock::new();
    while !shared.is_stopping() {
        shared.heartbeat(number).work();
        let (advance, micros) = match device.round(core, &mut cadence) {
            Ok(next) => next,
            Err(error) if error.is_of_device() && !is_fallback => {
                is_fallback = true;
                shared.heartbeat(number).enter(Phase::FallbackLoad);
                // Hosts see a ready engine that is silent during the load; their commands wait.
                let loaded = loader.load_fallback(&error, &mut |_| device.report_progress(None));
                let mut spare = match loaded {
                    None => return Err(error),
                    Some(Err(EngineError::Stopped)) => return Err(EngineError::Stopped),
                    Some(Err(of_fallback)) => {
                        tracing::error!(target: "walla::device", %of_fallback, "nothing takes over");
                        let (lost, reason) = (Box::new(error), Box::new(of_fallback));
                        return Err(EngineError::NotReplaced { lost, reason });
                    }
                    Some(Ok(spare)) => spare,
                };
                if let Some(lost) = place.take() {
                    spare.take_over(lost);
                }
                core = place.insert(spare);
                shared.heartbeat(number).enter(Phase::Play);
                device.publish_ready(core)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let at_most = match advance {
            Advance::Again => continue,
            Advance::Poll | Advance::Pause(_) => Some(Duration::from_micros(micros)),
            Advance::Idle => None,
        };
        shared.heartbeat(number).rest();
        let rest = match at_most {
            None if core.is_paused() => Rest::Park(None),
            _ => cadence.rest(Instant::now(), at_most),
        };
        match rest {
            Rest::Nap(nap) => thread::sleep(nap),
            Rest::Park(Some(at_most)) => thread::park_timeout(at_most),
            Rest::Park(None) => thread::park(),
        }
    }
    Ok(())
}

impl Device<'_> {
    /// Runs one round. Returns when the next round is due, and the delay in microseconds for
    /// [`Advance::Poll`] and [`Advance::Pause`].
    fn round(
        &self,
        core: &mut impl EngineCore,
        cadence: &mut Cadence,
    ) -> Result<(Advance, u64), EngineError> {
        let shared = self.shared;
        let now_micros = self.clock.now_micros();
        let mut more = self.admit(core)?;
        shared.controls.take().for_each(|control| core.control(control));
        // Behind the settings: commands that a host sent after a setting see it.
        let collected = self.collect(core, now_micros)?;
        // Again, because commands that follow a setting may have arrived with it meanwhile.
        shared.controls.take().for_each(|control| core.control(control));
        if collected.framed {
            cadence.frame(Instant::now());
        }
        more |= collected.more;
        let emit = &mut |key, event| match shared.own(self.number) {
            Some(mut owned) => owned.client_slots.deliver(key, event),
            // The reply has ended already.
            None => Ok(()),
        };
        let advance = core.advance(now_micros, emit)?;
        let stats = core.stats();
        let errors = core.changed_errors();
        let mut owned = self.own()?;
        shared.status.set_stats(&stats);
        if let Some(errors) = errors {
            shared.status.set_errors(&errors);
        }
        more |= owned.client_slots.end_round();
        let micros = match advance {
            Advance::Pause(micros) => micros,
            _ => poll_micros(stats.step),
        };
        Ok((if more { Advance::Again } else { advance }, micros))
    }

    /// Admits and removes clients. Returns `true` if there may be more work.
    fn admit(&self, core: &mut impl EngineCore) -> Result<bool, EngineError> {
        let changes = self.own()?.client_slots.admit(&self.shared.admission);
        let mut freed = false;
        // Without the lock, because adding or removing a client may call the device.
        for (key, change) in (0..).map(ClientKey).zip(changes) {
            match change {
                Some(ClientChange::Joined(pacing)) => core.add_client(key, pacing),
                Some(ClientChange::Left) => {
                    freed = true;
                    core.remove_client(key);
                }
                None => {}
            }
        }
        Ok(freed)
    }

    /// Passes frames and commands to the core.
    fn collect(
        &self,
        core: &mut impl EngineCore,
        now_micros: u64,
    ) -> Result<Collected, EngineError> {
        let mut collected = Collected::default();
        for key in (0..MAX_CLIENTS as u32).map(ClientKey) {
            let Some(flags) = self.own()?.client_slots.flags(key) else { continue };
            let [framed, is_paused, is_logged] = flags;
            if framed {
                core.frame(key, now_micros);
                collected.framed = true;
            }
            core.set_paused(key, is_paused);
            core.set_logged(key, is_logged);
            let mut left = COMMANDS_PER_ROUND;
            while left > 0 {
                let Some((command, is_logged)) = self.own()?.client_slots.command(key) else {
                    break;
                };
                core.set_logged(key, is_logged);
                core.command(key, command, now_micros);
                left -= 1;
            }
            collected.more |= left == 0;
            self.own()?.client_slots.end_commands(key);
        }
        Ok(collected)
    }
}

/// Polling interval of a working device: an eighth of a step, 50 to 200 µs.
///
/// Results are seen at most 200 µs late, or 12 % of a step of 400 µs. The device does not idle
/// meanwhile, because the next step is already enqueued. A poll takes some microseconds, so that
/// waiting costs 2 % to 8 % of one core. Below 50 µs the system's timers (50 µs of slack on Linux)
/// would determine the interval.
fn poll_micros(step: Duration) -> u64 {
    let eighth = u64::try_from(step.as_micros() / 8).unwrap_or(u64::MAX);
    eighth.clamp(50, 200)
}

/// Message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_polled_in_proportion_to_its_steps() {
        let polls =
            [0, 400, 800, 1_600, 50_000].map(|micros| poll_micros(Duration::from_micros(micros)));
        assert_eq!(polls, [50, 50, 100, 200, 200]);
        assert_eq!(poll_micros(Duration::MAX), 200);
    }
}
