//! Devices that hang and replies that take too long, in virtual time.

use std::time::Duration;

use walla_device::{DeviceError, DeviceKind};
use walla_doubles::faulty::{Call, FaultPlan, FaultyBackend, VirtualClock};
use walla_doubles::hash::{HashBackend, HashOptions};

use super::*;
use crate::options::{Deadlines, EngineError};

const MAX_STEP: Duration = Duration::from_secs(5);

fn options_with(deadlines: Deadlines, budget: Option<Duration>) -> EngineOptions {
    EngineOptions { deadlines, budget: budget.into(), ..options() }
}

fn deadlines() -> Deadlines {
    Deadlines { step: Some(MAX_STEP), ..Deadlines::default() }
}

/// A device whose record number `hangs` never completes, and a spare one.
fn hanging(clock: &VirtualClock, hangs: Option<u64>) -> Registry {
    let hash = HashOptions { clock: clock.clone(), kind: DeviceKind::Cuda, ..Default::default() };
    let plan = FaultPlan::new(1).clock(clock);
    let plan = hangs.into_iter().fold(plan, FaultPlan::never_complete);
    let faulty = FaultyBackend::new(HashBackend::new(hash.clone()), plan).alias("gpu");
    let spare = HashOptions { name: "cpu", kind: DeviceKind::Cpu, ..hash };
    Registry::new().with(faulty).with(HashBackend::new(spare))
}

fn load(
    options: &EngineOptions,
    registry: &Registry,
    clock: &VirtualClock,
) -> Result<Core, EngineError> {
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    Core::load(options, registry, &Clock::Virtual(clock.clone()), go_on)
}

fn is_lost(error: &EngineError) -> bool {
    matches!(device_error(error), Some(DeviceError::Lost { .. }))
        && error.to_string().contains("hangs")
}

/// Events of three replies on a device that hangs in record number `hangs`.
fn replies(hangs: Option<u64>) -> (Vec<Heard>, Option<u64>) {
    let clock = VirtualClock::new();
    let (options, registry) = (options_with(deadlines(), None), hanging(&clock, hangs));
    let (source, file) = Source::open(&options).expect("the file is sound");
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let at = Clock::Virtual(clock.clone());
    let core = Core::load_from(&source, &file, &options, &registry, &at, go_on);
    let mut core = core.expect("it loads");
    core.add_client(HOST, Pacing::FreeRunning);
    let mut heard: HashMap<ReplyId, Heard> = HashMap::new();
    for n in 0..3 {
        let (agent, reply_id) = (AgentId(n), ReplyId(n));
        let spec = Box::new(speaker(n, 8));
        core.command(HOST, Command::AddAgent { agent, spec }, 0);
        let prompt = tokens("abc");
        core.command(HOST, Command::ask(agent, reply_id, prompt), 0);
        heard.insert(reply_id, Heard::default());
    }
    let mut given_up_micros = None;
    while heard.values().any(|reply| reply.ends.is_empty()) {
        let now_micros = clock.now_micros();
        assert!(now_micros < 60_000_000, "a reply never ends: {heard:?}");
        let mut emit = |_: ClientKey, event: Event| {
            hear(&mut heard, event);
            Ok(())
        };
        match core.advance(now_micros, &mut emit) {
            Ok(Advance::Again) => {}
            Ok(_) => clock.advance(10_000),
            Err(error) => {
                assert!(is_lost(&error) && error.is_of_device(), "{error}");
                given_up_micros = Some(now_micros);
                let go_on = &mut |_: f32| ControlFlow::Continue(());
                let spare = Core::load_fallback(&source, &options, &registry, &error, &at, go_on);
                let spare = spare.expect("there is one").expect("it loads");
                let lost = std::mem::replace(&mut core, spare);
                core.take_over(lost);
            }
        }
    }
    ((0..3).map(|n| heard[&ReplyId(n)].clone()).collect(), given_up_micros)
}

#[test]
fn a_hung_step_loses_the_device_at_its_deadline_and_no_text() {
    let (expected, never) = replies(None);
    assert_eq!(never, None);
    // Results are copied on this device: two records per step.
    for hangs in [1, 3, 6, 9] {
        let (heard, given_up_micros) = replies(Some(hangs));
        let waited = Duration::from_micros(given_up_micros.expect("it is given up"));
        assert!(waited > MAX_STEP && waited < 2 * MAX_STEP, "{waited:?}");
        for (heard, expected) in heard.iter().zip(&expected) {
            assert_eq!((&heard.text, &heard.ends), (&expected.text, &expected.ends), "{hangs}");
        }
    }
}

/// The memory of a device that hangs may still be written: it is leaked, and no call reaches the
/// device.
#[test]
fn a_hung_device_is_leaked_and_not_called_again() {
    let clock = VirtualClock::new();
    let plan = FaultPlan::new(1).clock(&clock).never_complete(1);
    let hash = HashOptions { clock: clock.clone(), ..HashOptions::default() };
    let backend = FaultyBackend::new(HashBackend::new(hash), plan);
    let handle = backend.handle();
    let registry = Registry::new().with(backend);
    let options = options_with(deadlines(), None);
    let mut core = load(&options, &registry, &clock).expect("it loads");
    core.add_client(HOST, Pacing::FreeRunning);
    let (agent, reply_id) = (AgentId(1), ReplyId(1));
    core.command(HOST, Command::AddAgent { agent, spec: Box::new(speaker(1, 8)) }, 0);
    core.command(HOST, Command::ask(agent, reply_id, tokens("abc")), 0);
    let lost = loop {
        clock.advance(10_000);
        match core.advance(clock.now_micros(), &mut |_, _| Ok(())) {
            Ok(_) => assert!(clock.now_micros() < 60_000_000, "it is never given up"),
            Err(error) => break error,
        }
    };
    assert!(is_lost(&lost), "{lost}");
    let calls = handle.calls_total();
    let words = core.drain_events("gone");
    assert_eq!(words.iter().map(|(_, events)| events.len()).sum::<usize>(), 1, "it failed");
    drop(core);
    assert_eq!(handle.calls_total(), calls, "no call after it was given up");
    assert!(!handle.is_dropped(), "leaked");
}

#[test]
fn a_device_that_hangs_in_calibration_is_skipped_or_fails_the_load() {
    let clock = VirtualClock::new();
    let registry = hanging(&clock, Some(2));
    let budget = Some(Duration::from_millis(2));
    let core = load(&options_with(deadlines(), budget), &registry, &clock).expect("it loads");
    assert!(core.card().device_line().contains("hangs"), "{}", core.card().device_line());
    assert!(Duration::from_micros(clock.now_micros()) < 2 * MAX_STEP);
    let named = EngineOptions { device: "gpu:0".into(), ..options_with(deadlines(), budget) };
    let clock = VirtualClock::new();
    let error = load(&named, &hanging(&clock, Some(2)), &clock).expect_err("no other is allowed");
    assert!(is_lost(&error), "{error}");
}

#[test]
fn without_a_deadline_a_device_is_waited_for() {
    let clock = VirtualClock::new();
    let registry = hanging(&clock, Some(1));
    let never = Deadlines { step: None, ..Deadlines::default() };
    let mut core = load(&options_with(never, None), &registry, &clock).expect("it loads");
    core.add_client(HOST, Pacing::FreeRunning);
    let (agent, reply_id) = (AgentId(1), ReplyId(1));
    core.command(HOST, Command::AddAgent { agent, spec: Box::new(speaker(1, 8)) }, 0);
    core.command(HOST, Command::ask(agent, reply_id, tokens("abc")), 0);
    for _ in 0..1_000 {
        clock.advance(100_000);
        core.advance(clock.now_micros(), &mut |_, _| Ok(())).expect("it waits");
    }
}

#[test]
fn a_reply_beyond_its_deadline_keeps_its_text_and_the_next_one_starts() {
    let reply = Some(Duration::from_millis(20));
    let deadlines = Deadlines { reply, ..Deadlines::default() };
    let options = EngineOptions { deadlines, ..options() };
    let mut rig = Rig::new(&options, &inline_cpu(), Pacing::default());
    let slow = rig.agent(speaker(1, 100));
    let asks = [rig.ask(slow, tokens("abc")), rig.ask(slow, tokens("abd"))];
    for _ in 0..3 {
        rig.frame();
    }
    assert_eq!(rig.reply(asks[0]).ends, [Ok(FinishReason::TimedOut)]);
    assert!(rig.reply(asks[0]).tokens > 0, "it keeps what was said");
    assert!(rig.reply(asks[1]).ends.is_empty() && rig.reply(asks[1]).started == 1);
    // If a host grants no frames, its reply makes no progress: the core wakes at the reply's
    // deadline.
    assert!(matches!(rig.advance(), Advance::Pause(1..=20_000)));
    rig.now_micros += 20_000;
    rig.advance();
    assert_eq!(rig.reply(asks[1]).ends, [Ok(FinishReason::TimedOut)]);
    assert_eq!(rig.advance(), Advance::Idle);
}

#[test]
fn counted_calls_are_calls_of_the_wrapped_device() {
    let clock = VirtualClock::new();
    let backend = FaultyBackend::new(HashBackend::default(), FaultPlan::new(1));
    let handle = backend.handle();
    let core = load(&options(), &Registry::new().with(backend), &clock).expect("it loads");
    assert!(handle.calls(Call::LoadMatrix) > 0 && !handle.is_dropped());
    drop(core);
    assert!(handle.is_dropped());
}
