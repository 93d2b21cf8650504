//! Calls of the frame's thread while the device thread is inside a driver call. They are
//! try-operations and never wait.

use super::own_thread::waits;
use super::*;
use crate::mailbox::TrySendError;

/// The device thread spends nearly all its time inside rounds of 20 ms. The frame makes all calls
/// that a host can make.
#[test]
fn no_frame_call_waits_for_a_driver_call() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    ready(&engine);
    script.round_millis.store(20, Ordering::SeqCst);
    client.frame();
    eventually("a long round", || script.hanging.load(Ordering::SeqCst).then_some(()));
    let mut calls: Vec<(u64, &str)> = Vec::new();
    let mut counted = |what: &'static str, call: &mut dyn FnMut()| {
        let before = waits();
        call();
        calls.push((waits() - before, what));
    };
    let mut events = Vec::with_capacity(64);
    let mut refused = 0;
    for round in 0..200 {
        counted("new_agent", &mut || _ = client.new_agent());
        counted("new_reply_id", &mut || _ = client.new_reply_id());
        for _ in 0..4 {
            counted("try_send", &mut || {
                let (_, command) = ask(&client);
                let refusal = client.try_send(command).err();
                refused += u32::from(matches!(refusal, Some(TrySendError::Full(_))));
            });
        }
        counted("try_recv", &mut || drop(client.try_recv()));
        counted("try_recv_many", &mut || {
            client.try_recv_many(8, &mut events);
        });
        counted("frame", &mut || client.frame());
        counted("state", &mut || drop(engine.state()));
        counted("stats", &mut || _ = engine.stats());
        counted("model", &mut || _ = engine.model().is_some());
        counted("prediction_errors", &mut || drop(engine.prediction_errors()));
        counted("set_budget", &mut || engine.set_budget(Some(Duration::from_micros(round))));
        counted("set_kv_tokens", &mut || engine.set_kv_tokens(64));
        counted("client", &mut || drop(engine.client(Pacing::default())));
        counted("clone", &mut || drop(engine.clone()));
        events.clear();
        thread::sleep(Duration::from_micros(500));
    }
    assert!(refused > 0, "the queue of 64 was full while the device thread was away");
    let total = calls.len();
    calls.retain(|(waits, _)| *waits > 0);
    println!("frame side: {} of {total} calls waited", calls.len());
    // Nearly every call that waits for the device thread would wait. A lock that another thread
    // holds for a moment is possible.
    assert!(calls.len() * 100 <= total, "{calls:?} of {total} calls");
    script.round_millis.store(0, Ordering::SeqCst);
}

/// A panic of the device thread ends only its engine: the process can start others.
#[test]
fn another_engine_starts_after_one_panicked() {
    for _ in 0..5 {
        let (broken, script) = engine();
        let client = broken.client(Pacing::default()).unwrap();
        ready(&broken);
        script.set(|script| &script.panic);
        client.frame();
        eventually("the thread ends", || broken.is_ended().then_some(()));
        assert!(matches!(broken.state(), EngineState::Failed(_)));
        let (next_engine, _script) = engine();
        let client = next_engine.client(Pacing::default()).unwrap();
        asked(&client);
        assert_eq!(ends(&client, 1).len(), reply().len());
    }
}
