//! Loading, stopping, failing.

use std::sync::mpsc;
use std::task::{Wake, Waker};

use super::*;
use crate::mailbox::TrySendError;

fn never_loads(progress_first: f32) -> (Engine, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel();
    let load = move |progress: &mut Progress<'_>| {
        let _ = progress(progress_first);
        let _ = wait.recv();
        Err::<Fake, _>(EngineError::Thread("no file".into()))
    };
    (Engine::launch((4, 4), Clock::real(), Deadlines::default(), Some(load)).unwrap(), go)
}

fn seconds<T>(what: impl FnOnce() -> T) -> f32 {
    let start = Instant::now();
    drop(what());
    start.elapsed().as_secs_f32()
}

#[test]
fn start_returns_at_once_and_early_commands_run_after_the_load() {
    let (go, wait) = mpsc::channel();
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |progress: &mut Progress<'_>| {
        let _ = progress(0.5);
        wait.recv().unwrap();
        Ok(Fake::new(of_core))
    };
    let engine = Engine::launch((2, 64), Clock::real(), Deadlines::default(), Some(load)).unwrap();
    let client = engine.client(Pacing::default()).unwrap();
    eventually("half", || match engine.state() {
        EngineState::Loading { fraction } => (fraction == 0.5).then_some(()),
        other => panic!("{other:?}"),
    });
    assert!(engine.model().is_none());
    let reply_ids = [asked(&client), asked(&client)];
    // The queue is also bounded before the engine is ready.
    let (_, third) = ask(&client);
    assert_eq!(client.try_send(third.clone()), Err(TrySendError::Full(third)));
    assert_eq!(client.try_recv(), None);
    go.send(()).unwrap();
    let events = ends(&client, 2);
    assert_eq!(events.len(), 2 * reply().len());
    assert!(events.iter().all(|event| reply_ids.contains(&event.reply_id)));
    assert_eq!(engine.model().unwrap().name.as_deref(), Some("scripted"));
    assert!(eventually("stats", || Some(engine.stats().steps).filter(|steps| *steps > 0)) > 0);
}

#[test]
fn a_failed_load_fails_asks_and_returns_later_commands() {
    let (engine, go) = never_loads(0.1);
    let client = engine.client(Pacing::default()).unwrap();
    let reply_ids = [asked(&client), asked(&client)];
    go.send(()).unwrap();
    let events = [next(&client), next(&client)];
    assert_eq!(events.each_ref().map(|event| event.reply_id), reply_ids);
    assert!(events.iter().all(is_gone));
    let EngineState::Failed(error) = engine.state() else { panic!("{:?}", engine.state()) };
    assert!(error.to_string().contains("no file"));
    let (_, command) = ask(&client);
    assert_eq!(client.try_send(command.clone()), Err(TrySendError::Closed(command)));
    assert!(matches!(engine.client(Pacing::default()), Err(EngineError::Failed(_))));
    eventually("the thread ends", || engine.is_ended().then_some(()));
    assert_eq!(client.try_recv(), None);
}

#[test]
fn a_panic_is_a_failure_with_one_end_for_each_reply() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    script.set(|script| &script.hold);
    let reply_ids = [asked(&client), asked(&client), asked(&client)];
    eventually("a round", || (script.rounds() > 0).then_some(()));
    script.set(|script| &script.panic);
    client.frame();
    let events = ends(&client, 3);
    assert_eq!(events.iter().map(|event| event.reply_id).collect::<Vec<_>>(), reply_ids);
    assert!(events.iter().all(is_gone));
    let EngineState::Failed(error) = engine.state() else { panic!("{:?}", engine.state()) };
    assert!(error.to_string().contains("scripted panic"), "{error}");
    eventually("the thread ends", || engine.is_ended().then_some(()));
    assert!(script.dropped.load(Ordering::SeqCst));
    assert_eq!(client.try_recv(), None);
}

#[test]
fn a_panic_while_loading_is_a_failure() {
    let load = |_: &mut Progress<'_>| -> Result<Fake, EngineError> { panic!("bad file") };
    let engine = Engine::launch((4, 4), Clock::real(), Deadlines::default(), Some(load)).unwrap();
    let error = eventually("failed", || match engine.state() {
        EngineState::Failed(error) => Some(error),
        _ => None,
    });
    assert!(error.to_string().contains("bad file"), "{error}");
}

#[test]
fn engine_settings_apply_before_and_after_the_load() {
    let (go, wait) = mpsc::channel();
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |_: &mut Progress<'_>| {
        wait.recv().unwrap();
        Ok(Fake::new(of_core))
    };
    let engine = Engine::launch((4, 64), Clock::real(), Deadlines::default(), Some(load)).unwrap();
    engine.set_budget(None);
    engine.set_budget(Some(Duration::from_millis(2)));
    go.send(()).unwrap();
    let budget = Control::Budget(Duration::from_millis(2).into());
    let heard = || script.controls.lock().unwrap().clone();
    eventually("set before it was ready", || (heard() == [budget]).then_some(()));
    let client = engine.client(Pacing::default()).unwrap();
    client.set_kv_tokens(640);
    eventually("set", || (heard() == [budget, Control::KvTokens(640)]).then_some(()));
    // Reservations of clients add up, and end with them.
    let other = engine.client(Pacing::default()).unwrap();
    let is_reserved = |millis| {
        let wanted = Control::Reserved(Duration::from_millis(millis));
        eventually("reserved", || (heard().last() == Some(&wanted)).then_some(()));
    };
    for (of, millis, sum) in [(&client, 2, 2), (&other, 3, 5), (&client, 1, 4)] {
        of.set_reserved(Duration::from_millis(millis));
        is_reserved(sum);
    }
    drop(other);
    is_reserved(1);
}

#[test]
fn stopping_fails_open_replies_once_and_ends_the_thread() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    script.set(|script| &script.hold);
    let reply_id = asked(&client);
    engine.stop();
    let event = next(&client);
    assert!(event.reply_id == reply_id && is_gone(&event));
    assert!(matches!(engine.state(), EngineState::Stopped));
    assert!(matches!(engine.client(Pacing::default()), Err(EngineError::Stopped)));
    eventually("the thread ends", || engine.is_ended().then_some(()));
    assert_eq!(client.try_recv(), None);
}

#[test]
fn the_last_handle_stops_the_engine_and_its_thread_drops_the_core() {
    let (engine, script) = engine();
    ready(&engine);
    let client = engine.client(Pacing::default()).unwrap();
    drop(engine);
    assert!(client.engine().state().is_ready(), "a client is a handle too");
    drop(client);
    eventually("dropped", || script.dropped.load(Ordering::SeqCst).then_some(()));
}

#[test]
fn dropping_during_a_load_has_a_bounded_wait() {
    let (engine, _go) = never_loads(0.1);
    // The load ends after the test.
    assert!(seconds(|| drop(engine)) < 60.0);
}

#[test]
fn dropping_during_a_hung_step_has_a_bounded_wait() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    ready(&engine);
    script.round_millis.store(ENDLESS_MILLIS, Ordering::SeqCst);
    asked(&client);
    eventually("a round that hangs", || script.hanging.load(Ordering::SeqCst).then_some(()));
    drop(engine);
    assert!(seconds(|| drop(client)) < 60.0);
    assert!(!script.dropped.load(Ordering::SeqCst), "the thread still has the core");
    script.round_millis.store(0, Ordering::SeqCst);
}

#[test]
fn a_stop_cancels_a_load_through_its_progress() {
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |progress: &mut Progress<'_>| {
        while progress(0.3).is_continue() {
            thread::sleep(Duration::from_millis(1));
        }
        drop(of_core);
        Err::<Fake, _>(EngineError::Stopped)
    };
    let engine = Engine::launch((4, 4), Clock::real(), Deadlines::default(), Some(load)).unwrap();
    engine.stop();
    eventually("stopped", || matches!(engine.state(), EngineState::Stopped).then_some(()));
    assert_eq!(Arc::strong_count(&script), 1);
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn tasks_are_woken_for_events_and_for_a_new_state() {
    let (go, wait) = mpsc::channel();
    let script = Arc::new(Script::default());
    let of_core = Arc::clone(&script);
    let load = move |_: &mut Progress<'_>| {
        wait.recv().unwrap();
        Ok(Fake::new(of_core))
    };
    let engine = Engine::launch((4, 64), Clock::real(), Deadlines::default(), Some(load)).unwrap();
    let client = engine.client(Pacing::default()).unwrap();
    let woken = Arc::new(Flag(AtomicBool::new(false)));
    let register = || {
        woken.0.store(false, Ordering::SeqCst);
        client.register_waker(&Waker::from(Arc::clone(&woken)));
    };
    let wait = || eventually("woken", || woken.0.load(Ordering::SeqCst).then_some(()));
    register();
    go.send(()).unwrap();
    wait();
    ready(&engine);
    register();
    asked(&client);
    wait();
    ends(&client, 1);
    // The end of the round may wake the task once more: let the round end first.
    client.frame();
    eventually("a frame", || (script.frames.load(Ordering::SeqCst) > 0).then_some(()));
    register();
    engine.stop();
    wait();
}

#[test]
fn a_task_may_drop_the_last_handle_when_it_is_woken() {
    struct DropsIt(Mutex<Option<Client>>);
    impl Wake for DropsIt {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    ready(&engine);
    drop(engine);
    let task = Arc::new(DropsIt(Mutex::new(None)));
    client.register_waker(&Waker::from(Arc::clone(&task)));
    *task.0.lock().unwrap() = Some(client);
    // The client's event wakes the task on the device thread.
    asked(task.0.lock().unwrap().as_ref().unwrap());
    eventually("dropped", || script.dropped.load(Ordering::SeqCst).then_some(()));
}
