//! Calls that never return, processes that fork, wakers that panic.

use std::sync::mpsc;
use std::task::{Wake, Waker};

use walla_doubles::VirtualClock;

use super::own_thread::waits;
use super::*;

/// Deadlines in virtual time, which passes only when a test lets it.
fn deadlines() -> Deadlines {
    let short = Some(Duration::from_millis(300));
    Deadlines { load: short, step: short, reply: None }
}

/// Lets time pass, in small steps, until something has happened.
fn passing<T>(clock: &VirtualClock, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    eventually(what, || {
        clock.advance(5_000);
        look()
    })
}

/// Events until `count` replies have ended, while time passes.
fn passing_ends(clock: &VirtualClock, client: &Client, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.iter().filter(|event: &&Event| event.what.is_terminal()).count() < count {
        events.push(passing(clock, "an event", || client.try_recv()));
    }
    events
}

/// The first load waits for the test. The fallback, if there is one, loads at once, or when the
/// test no longer calls it slow.
struct Hanging {
    /// The end of the wait, and the script of the core that comes too late.
    wait: Option<(mpsc::Receiver<()>, Arc<Script>)>,
    script: Arc<Script>,
    has_fallback: bool,
    is_slow: Arc<AtomicBool>,
}

impl Loader<Fake> for Hanging {
    fn load(&mut self, progress: &mut Progress<'_>) -> Result<Fake, EngineError> {
        if let Some((wait, late)) = self.wait.take() {
            let _ = progress(0.5);
            let _ = wait.recv();
            return Ok(Fake::new(late));
        }
        while self.is_slow.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Fake::new(Arc::clone(&self.script)))
    }

    fn load_fallback(
        &mut self,
        _lost: &EngineError,
        _progress: &mut Progress<'_>,
    ) -> Option<Result<Fake, EngineError>> {
        None
    }

    fn successor(&self) -> Option<Self> {
        let script = Arc::clone(&self.script);
        let is_slow = Arc::clone(&self.is_slow);
        self.has_fallback.then_some(Self { wait: None, script, has_fallback: false, is_slow })
    }
}

/// An engine whose first load hangs.
struct HangingLoad {
    engine: Engine,
    client: Client,
    clock: VirtualClock,
    go: mpsc::Sender<()>,
    late: Arc<Script>,
    /// Of the fallback.
    is_slow: Arc<AtomicBool>,
}

fn hanging_load(has_fallback: bool, deadlines: Deadlines) -> HangingLoad {
    let ((go, wait), clock, late) = (mpsc::channel(), VirtualClock::new(), Arc::default());
    let wait = Some((wait, Arc::clone(&late)));
    let is_slow = Arc::<AtomicBool>::default();
    let of_loader = Arc::clone(&is_slow);
    let loader = Hanging { wait, script: Arc::default(), has_fallback, is_slow: of_loader };
    let of_engine = Clock::Virtual(clock.clone());
    let engine = Engine::launch((16, 64), of_engine, deadlines, loader).unwrap();
    let client = engine.client(Pacing::default()).unwrap();
    HangingLoad { engine, client, clock, go, late, is_slow }
}

/// Lets the call return, and waits for the end of its core.
fn return_late(go: mpsc::Sender<()>, late: &Script) {
    drop(go);
    eventually("it returns", || late.dropped.load(Ordering::SeqCst).then_some(()));
    assert_eq!(late.rounds(), 0, "it does no more work");
}

#[test]
fn a_hung_load_is_retried_with_the_fallback() {
    let HangingLoad { engine, client, clock, go, late, .. } = hanging_load(true, deadlines());
    let before = [asked(&client), asked(&client)];
    passing(&clock, "given up", || engine.shared().own(0).is_none().then_some(()));
    let events = ends(&client, 2);
    assert!(events.iter().all(|event| before.contains(&event.reply_id)));
    assert!(events.iter().all(|event| !is_gone(event)));
    assert!(engine.state().is_ready());
    return_late(go, &late);
    let later = asked(&client);
    assert!(ends(&client, 1).iter().all(|event| event.reply_id == later && !is_gone(event)));
    engine.stop();
    eventually("it ends", || engine.is_ended().then_some(()));
}

#[test]
fn a_hung_load_without_fallback_ends_each_reply_once() {
    let HangingLoad { engine, client, clock, go, late, .. } = hanging_load(false, deadlines());
    let asks = [asked(&client), asked(&client), asked(&client)];
    let events = passing_ends(&clock, &client, 3);
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| is_gone(event) && asks.contains(&event.reply_id)));
    let EngineState::Failed(error) = engine.state() else { panic!("{:?}", engine.state()) };
    assert!(error.to_string().contains("has not returned"), "{error}");
    eventually("it counts as ended", || engine.is_ended().then_some(()));
    return_late(go, &late);
    assert!(matches!(engine.state(), EngineState::Failed(_)), "the late return changes nothing");
    assert_eq!(client.try_recv(), None);
}

/// The next load has the deadline of loads, also after the thread that was given up has gone on to
/// its rounds.
#[test]
fn a_late_return_leaves_the_next_load_its_deadline() {
    let load = Some(Duration::from_secs(2));
    let hanging = hanging_load(true, Deadlines { load, ..deadlines() });
    let HangingLoad { engine, client, clock, go, late, is_slow } = hanging;
    is_slow.store(true, Ordering::SeqCst);
    let ask = asked(&client);
    passing(&clock, "given up", || engine.shared().own(0).is_none().then_some(()));
    return_late(go, &late);
    // Longer than a step may take. The watchdog thread looks every 75 ms.
    for _ in 0..20 {
        clock.advance(50_000);
        thread::sleep(Duration::from_millis(40));
    }
    assert!(matches!(engine.state(), EngineState::Loading { .. }), "{:?}", engine.state());
    is_slow.store(false, Ordering::SeqCst);
    assert!(ends(&client, 1).iter().all(|event| event.reply_id == ask && !is_gone(event)));
}

/// An engine with deadlines in virtual time.
fn timed() -> (Engine, Arc<Script>, VirtualClock) {
    let (script, clock) = (Arc::new(Script::default()), VirtualClock::new());
    let of_core = Arc::clone(&script);
    let load = move |_: &mut Progress<'_>| Ok(Fake::new(of_core));
    let of_engine = Clock::Virtual(clock.clone());
    (Engine::launch((16, 64), of_engine, deadlines(), Some(load)).unwrap(), script, clock)
}

#[test]
fn a_hung_round_fails_the_engine_and_ends_each_reply_once() {
    let (engine, script, clock) = timed();
    let client = engine.client(Pacing::default()).unwrap();
    script.set(|script| &script.hold);
    let asks = [asked(&client), asked(&client)];
    eventually("a round", || (script.rounds() > 0).then_some(()));
    script.round_millis.store(ENDLESS_MILLIS, Ordering::SeqCst);
    client.frame();
    eventually("it hangs", || script.hanging.load(Ordering::SeqCst).then_some(()));
    let third = asked(&client); // it waits in the mailbox
    let events = passing_ends(&clock, &client, 3);
    assert!(script.hanging.load(Ordering::SeqCst), "all were told while the call hung");
    assert!(events.iter().all(is_gone));
    assert!(asks.iter().chain([&third]).all(|ask| events.iter().any(|e| e.reply_id == *ask)));
    assert!(matches!(engine.state(), EngineState::Failed(_)));
    assert!(matches!(engine.client(Pacing::default()), Err(EngineError::Failed(_))));
    eventually("it ends", || engine.is_ended().then_some(()));
    script.round_millis.store(0, Ordering::SeqCst);
    eventually("the core is dropped at last", || {
        script.dropped.load(Ordering::SeqCst).then_some(())
    });
    assert_eq!(client.try_recv(), None, "nothing is said twice");
}

#[test]
fn an_idle_or_timely_device_thread_is_not_abandoned() {
    let (engine, script, clock) = timed();
    let client = engine.client(Pacing::default()).unwrap();
    let _first = asked(&client);
    ends(&client, 1);
    // Idle for longer than the deadline. The watchdog thread looks every 75 ms.
    for _ in 0..20 {
        clock.advance(50_000);
        thread::sleep(Duration::from_millis(40));
    }
    for _ in 0..10 {
        script.round_millis.store(ENDLESS_MILLIS, Ordering::SeqCst);
        let _slow = asked(&client);
        eventually("a round", || script.hanging.load(Ordering::SeqCst).then_some(()));
        clock.advance(100_000);
        thread::sleep(Duration::from_millis(80));
        script.round_millis.store(0, Ordering::SeqCst);
        ends(&client, 1);
    }
    assert!(engine.state().is_ready());
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the host");
    }
}

#[test]
fn a_panicking_waker_does_not_affect_the_engine() {
    let (engine, _script) = engine();
    let (client, other) = (engine.client(Pacing::default()), engine.client(Pacing::default()));
    let (client, other) = (client.unwrap(), other.unwrap());
    for _ in 0..3 {
        client.register_waker(&Waker::from(Arc::new(Panics)));
        let (_of_client, _of_other) = (asked(&client), asked(&other));
        assert!(ends(&client, 1).iter().chain(&ends(&other, 1)).all(|event| !is_gone(event)));
    }
    assert!(engine.state().is_ready());
    client.register_waker(&Waker::from(Arc::new(Panics)));
    engine.stop();
    eventually("it ends", || engine.is_ended().then_some(()));
}

fn speaking((engine, script): (Engine, Arc<Script>)) -> (Engine, Client, Arc<Script>) {
    let client = engine.client(Pacing::default()).unwrap();
    script.set(|script| &script.hold);
    let _asks = [asked(&client), asked(&client)];
    eventually("a round", || (script.rounds() > 0).then_some(()));
    script.drop_millis.store(ENDLESS_MILLIS, Ordering::SeqCst);
    (engine, client, script)
}

/// Destroying a CUDA context takes a tenth of a second: terminal events must not wait for it.
#[test]
fn replies_end_before_the_device_is_freed() {
    let (engine, client, script) = speaking(engine());
    engine.stop();
    let events = ends(&client, 2);
    assert!(events.iter().all(is_gone));
    assert!(!script.dropped.load(Ordering::SeqCst) && !engine.is_ended());
    script.drop_millis.store(0, Ordering::SeqCst);
    eventually("it ends when the device is freed", || engine.is_ended().then_some(()));
    assert!(script.dropped.load(Ordering::SeqCst));
}

#[test]
fn a_device_that_cannot_be_freed_does_not_block_the_engine() {
    let (engine, script, clock) = timed();
    let (engine, client, script) = speaking((engine, script));
    engine.stop();
    assert!(ends(&client, 2).iter().all(is_gone));
    passing(&clock, "it ends", || engine.is_ended().then_some(()));
    assert!(!script.dropped.load(Ordering::SeqCst), "it was given up");
    let before = waits();
    drop((client, engine));
    // The drop of a running engine looks for its end hundreds of times.
    assert!(waits() - before < 20, "nothing is left to wait for");
    script.drop_millis.store(0, Ordering::SeqCst);
}
