//! The device thread's rounds.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use super::cadence::{Cadence, Rest};
use super::clock::Clock;
use super::engine::Shared;
use super::farewell::farewell;
use super::seats::Seats;
use super::{Advance, EngineCore};
use crate::options::EngineError;

/// Hears the share loaded, from 0 to 1; breaks if the load is to stop.
pub(crate) type Progress<'a> = dyn FnMut(f32) -> ControlFlow<()> + 'a;

/// Makes cores.
pub(crate) trait Loader<C> {
    /// The first one.
    ///
    /// # Errors
    /// What ends the engine.
    fn load(&mut self, progress: &mut Progress<'_>) -> Result<C, EngineError>;

    /// One that takes over after the first one's device was `lost`; `None` if there is none.
    ///
    /// # Errors
    /// Why it cannot.
    fn load_fallback(
        &mut self,
        lost: &EngineError,
        progress: &mut Progress<'_>,
    ) -> Option<Result<C, EngineError>>;
}

/// The life of the device thread.
pub(super) fn live<C: EngineCore>(shared: &Shared, clock: &Clock, loader: impl Loader<C>) {
    super::priority::yield_to_host();
    walla_trace::listen_nvtx();
    // To the end of the thread, or of another engine's that outlives it.
    let _trace = walla_trace::TraceFile::from_environment();
    let mut seats = Seats::default();
    let mut core = None;
    // Unwind safety: after a panic nothing is asked of the core but to be dropped; seats are used on, and none of their
    // methods leaves one half changed.
    let work = AssertUnwindSafe(|| serve(shared, clock, loader, &mut seats, &mut core));
    let ended = catch_unwind(work);
    let panicked = ended.is_err();
    let reason = match ended.unwrap_or_else(|panic| Err(EngineError::Panicked(message(&*panic)))) {
        Ok(()) | Err(EngineError::Stopped) => {
            shared.status.set_stopped();
            EngineError::Stopped.to_string()
        }
        Err(error) => {
            let reason = error.to_string();
            tracing::error!(%reason, "the engine has failed");
            shared.status.set_failed(error);
            reason
        }
    };
    farewell(shared, seats, core, panicked, &reason);
}

/// Loads and goes round until somebody stops the engine.
fn serve<C: EngineCore>(
    shared: &Shared,
    clock: &Clock,
    mut loader: impl Loader<C>,
    seats: &mut Seats,
    place: &mut Option<C>,
) -> Result<(), EngineError> {
    let go_on =
        || if shared.is_stopping() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let mut core = place.insert(loader.load(&mut |fraction| {
        shared.status.set_fraction(fraction);
        go_on()
    })?);
    say_ready(shared, core);
    let mut is_fallback = false;
    let mut cadence = Cadence::default();
    while !shared.is_stopping() {
        let (advance, micros) = match round(shared, clock, seats, core, &mut cadence) {
            Ok(next) => next,
            Err(error) if error.is_of_device() && !is_fallback => {
                is_fallback = true;
                // Hosts see a ready engine that is silent for a while: what they send waits.
                let loaded = loader.load_fallback(&error, &mut |_| go_on());
                let mut spare = match loaded {
                    None => return Err(error),
                    Some(Err(EngineError::Stopped)) => return Err(EngineError::Stopped),
                    Some(Err(of_fallback)) => {
                        tracing::error!(target: "walla::device", %of_fallback, "nothing takes over");
                        return Err(error);
                    }
                    Some(Ok(spare)) => spare,
                };
                if let Some(lost) = place.take() {
                    spare.take_over(lost);
                }
                core = place.insert(spare);
                say_ready(shared, core);
                continue;
            }
            Err(error) => return Err(error),
        };
        let at_most = match advance {
            Advance::Again => continue,
            Advance::Poll | Advance::Pause(_) => Some(Duration::from_micros(micros)),
            Advance::Idle => None,
        };
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

fn say_ready(shared: &Shared, core: &impl EngineCore) {
    let card = core.card();
    tracing::info!(model = card.name, device = %card.device_line(), "ready");
    shared.status.set_ready(card, core.tokenizer());
}

/// One round. Says when the next is due, and for [`Advance::Poll`] and [`Advance::Pause`] in how many microseconds.
fn round<C: EngineCore>(
    shared: &Shared,
    clock: &Clock,
    seats: &mut Seats,
    core: &mut C,
    cadence: &mut Cadence,
) -> Result<(Advance, u64), EngineError> {
    let now_micros = clock.now_micros();
    let mut more = seats.admit(shared, Some(core));
    shared.controls.take().for_each(|control| core.control(control));
    let collected = seats.collect(core, now_micros);
    if collected.framed {
        cadence.frame(Instant::now());
    }
    more |= collected.more;
    let advance = core.advance(now_micros, &mut |key, event| seats.deliver(key, event))?;
    let stats = core.stats();
    shared.status.set_stats(&stats);
    if let Some(errors) = core.changed_errors() {
        shared.status.set_errors(&errors);
    }
    more |= seats.end_round();
    let micros = match advance {
        Advance::Pause(micros) => micros,
        _ => poll_micros(stats.step),
    };
    Ok((if more { Advance::Again } else { advance }, micros))
}

/// How long to leave a working device alone: an eighth of a step, 50 to 200 µs.
///
/// Results are then seen at most 200 µs late, or 12 % of a step of 400 µs; the device does not stand still meanwhile, since the
/// next step is enqueued already. A look takes some microseconds, so that waiting costs 2 % to 8 % of one core. Below 50 µs the
/// system's own timers (50 µs of slack on Linux) would decide anyway.
fn poll_micros(step: Duration) -> u64 {
    let eighth = u64::try_from(step.as_micros() / 8).unwrap_or(u64::MAX);
    eighth.clamp(50, 200)
}

/// What a panic said.
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
