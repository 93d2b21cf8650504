//! Calls that never return, processes that fork, wakers that panic.

use std::sync::mpsc;
use std::task::{Wake, Waker};

use super::*;

/// Deadlines of tests: short, but long enough for a busy machine.
fn deadlines() -> Deadlines {
    let short = Some(Duration::from_millis(300));
    Deadlines { load: short, step: short, reply: None }
}

/// The first load waits for the test. The fallback, if there is one, loads at once.
struct Hanging {
    wait: Option<mpsc::Receiver<()>>,
    script: Arc<Script>,
    has_fallback: bool,
}

impl Loader<Fake> for Hanging {
    fn load(&mut self, progress: &mut Progress<'_>) -> Result<Fake, EngineError> {
        if let Some(wait) = self.wait.take() {
            let _ = progress(0.5);
            let _ = wait.recv();
            self.script.set(|script| &script.fail); // the hung core must do no more work
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
        self.has_fallback.then_some(Self { wait: None, script, has_fallback: false })
    }
}

fn hanging_load(has_fallback: bool) -> (Engine, Arc<Script>, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel();
    let script = Arc::new(Script::default());
    let loader = Hanging { wait: Some(wait), script: Arc::clone(&script), has_fallback };
    (Engine::launch((16, 64), Clock::real(), deadlines(), loader).unwrap(), script, go)
}

#[test]
fn a_hung_load_is_retried_with_the_fallback() {
    let (engine, script, go) = hanging_load(true);
    let client = engine.client(Pacing::default()).unwrap();
    let before = [asked(&client), asked(&client)];
    let events = ends(&client, 2);
    assert!(events.iter().all(|event| before.contains(&event.reply_id)));
    assert!(events.iter().all(|event| !is_gone(event)));
    assert!(engine.state().is_ready());
    // The call returns late: nothing changes, and its thread ends.
    script.fail.store(false, Ordering::SeqCst);
    drop(go);
    thread::sleep(Duration::from_millis(50));
    script.fail.store(false, Ordering::SeqCst);
    let later = asked(&client);
    assert!(ends(&client, 1).iter().all(|event| event.reply_id == later && !is_gone(event)));
    engine.stop();
    eventually("it ends", || engine.is_ended().then_some(()));
}

#[test]
fn a_hung_load_without_fallback_ends_each_reply_once() {
    let (engine, _script, go) = hanging_load(false);
    let client = engine.client(Pacing::default()).unwrap();
    let asks = [asked(&client), asked(&client), asked(&client)];
    let events = ends(&client, 3);
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| is_gone(event) && asks.contains(&event.reply_id)));
    let EngineState::Failed(error) = engine.state() else { panic!("{:?}", engine.state()) };
    assert!(error.to_string().contains("has not returned"), "{error}");
    eventually("it counts as ended", || engine.is_ended().then_some(()));
    drop(go);
    thread::sleep(Duration::from_millis(50));
    assert!(matches!(engine.state(), EngineState::Failed(_)), "the late return changes nothing");
    assert_eq!(client.try_recv(), None);
}

#[test]
fn a_hung_round_fails_the_engine_and_ends_each_reply_once() {
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |_: &mut Progress<'_>| Ok(Fake::new(of_core));
    let engine = Engine::launch((16, 64), Clock::real(), deadlines(), Some(load)).unwrap();
    let client = engine.client(Pacing::default()).unwrap();
    script.set(|script| &script.hold);
    let asks = [asked(&client), asked(&client)];
    eventually("a round", || (script.rounds() > 0).then_some(()));
    script.round_millis.store(1_500, Ordering::SeqCst);
    client.frame();
    eventually("it hangs", || script.hanging.load(Ordering::SeqCst).then_some(()));
    let third = asked(&client); // it waits in the mailbox
    let events = ends(&client, 3);
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
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |_: &mut Progress<'_>| Ok(Fake::new(of_core));
    let engine = Engine::launch((16, 64), Clock::real(), deadlines(), Some(load)).unwrap();
    let client = engine.client(Pacing::default()).unwrap();
    let _first = asked(&client);
    ends(&client, 1);
    thread::sleep(Duration::from_millis(700)); // idle for longer than the deadline
    script.round_millis.store(50, Ordering::SeqCst);
    for _ in 0..10 {
        let _slow = asked(&client);
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

fn speaking(drop_millis: u32, deadlines: Deadlines) -> (Engine, Client, Arc<Script>) {
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |_: &mut Progress<'_>| Ok(Fake::new(of_core));
    let engine = Engine::launch((16, 64), Clock::real(), deadlines, Some(load)).unwrap();
    let client = engine.client(Pacing::default()).unwrap();
    script.set(|script| &script.hold);
    let _asks = [asked(&client), asked(&client)];
    eventually("a round", || (script.rounds() > 0).then_some(()));
    script.drop_millis.store(drop_millis, Ordering::SeqCst);
    (engine, client, script)
}

/// Destroying a CUDA context takes a tenth of a second: terminal events must not wait for it.
#[test]
fn replies_end_before_the_device_is_freed() {
    let (engine, client, script) = speaking(1_500, Deadlines::default());
    engine.stop();
    let events = ends(&client, 2);
    assert!(events.iter().all(is_gone));
    assert!(!script.dropped.load(Ordering::SeqCst) && !engine.is_ended());
    eventually("it ends when the device is freed", || engine.is_ended().then_some(()));
    assert!(script.dropped.load(Ordering::SeqCst));
}

#[test]
fn a_device_that_cannot_be_freed_does_not_block_the_engine() {
    let (engine, client, script) = speaking(1_500, deadlines());
    engine.stop();
    assert!(ends(&client, 2).iter().all(is_gone));
    eventually("it ends", || engine.is_ended().then_some(()));
    assert!(!script.dropped.load(Ordering::SeqCst), "it was given up");
    let start = Instant::now();
    drop((client, engine));
    assert!(start.elapsed() < Duration::from_millis(250), "nothing is left to wait for");
}
