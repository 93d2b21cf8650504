//! Mailboxes and pacing; no event is lost or duplicated.

use std::collections::HashMap;

use walla_doubles::VirtualClock;

use super::*;
use crate::engine_core::MAX_CLIENTS;
use crate::mailbox::TrySendError;

#[test]
fn names_are_unique_among_clients() {
    let (engine, _script) = engine();
    let clients = [(); 2].map(|()| engine.client(Pacing::default()).unwrap());
    let mut agents: Vec<_> = clients.iter().flat_map(|c| [c.new_agent(), c.new_agent()]).collect();
    agents.sort_unstable();
    agents.dedup();
    assert_eq!(agents.len(), 4);
    assert_ne!(clients[0].new_reply_id(), clients[1].new_reply_id());
}

#[test]
fn each_client_receives_its_own_replies_in_order() {
    let (engine, _script) = engine();
    let clients = [(); 2].map(|()| engine.client(Pacing::default()).unwrap());
    let reply_ids = clients.each_ref().map(|client| [asked(client), asked(client)]);
    for (client, reply_ids) in clients.iter().zip(reply_ids) {
        let events = ends(client, 2);
        for reply_id in reply_ids {
            let of_reply = events.iter().filter(|event| event.reply_id == reply_id);
            let said: Vec<_> = of_reply.map(|event| event.what.clone()).collect();
            assert_eq!(said, reply());
        }
        assert_eq!(client.try_recv(), None);
    }
}

#[test]
fn a_client_that_reads_no_events_pauses_alone_and_loses_nothing() {
    let (engine, _script) = engine_with_queues((16, 4));
    let [deaf, other] = [(); 2].map(|()| engine.client(Pacing::default()).unwrap());
    let reply_ids: Vec<_> = (0..8).map(|_| asked(&deaf)).collect();
    for _ in 0..4 {
        asked(&other);
        assert_eq!(ends(&other, 1).len(), reply().len());
    }
    // Its commands wait as well, so that the events kept for it are bounded.
    let refused = eventually("full", || {
        let (_, command) = ask(&deaf);
        deaf.try_send(command).err()
    });
    assert!(refused.is_full());
    let events = ends(&deaf, reply_ids.len());
    for reply_id in reply_ids {
        let of_reply = events.iter().filter(|event| event.reply_id == reply_id);
        assert_eq!(of_reply.map(|event| event.what.clone()).collect::<Vec<_>>(), reply());
    }
}

#[test]
fn granted_frames_do_not_accumulate() {
    let (engine, script) = engine();
    ready(&engine);
    let client = engine.client(Pacing::PerFrame { steps: 2 }).unwrap();
    let pacing =
        |script: &Script| script.clients.lock().unwrap().first().map(|(_, pacing)| *pacing);
    assert_eq!(eventually("seated", || pacing(&script)), Pacing::PerFrame { steps: 2 });
    // A round takes one frame and does not end.
    script.round_millis.store(ENDLESS_MILLIS, Ordering::SeqCst);
    client.frame();
    let frames = |count: u32| {
        let what = format!("frame {count}");
        eventually(&what, || (script.frames.load(Ordering::SeqCst) == count).then_some(()));
    };
    frames(1);
    (0..100).for_each(|_| client.frame());
    script.round_millis.store(0, Ordering::SeqCst);
    frames(2);
    // Each reply takes rounds, in which more frames would be taken.
    for _ in 0..5 {
        asked(&client);
        ends(&client, 1);
    }
    assert_eq!(script.frames.load(Ordering::SeqCst), 2, "100 frames of one moment are one");
}

#[test]
fn an_idle_engine_sleeps_and_a_busy_one_is_polled_with_pauses() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    asked(&client);
    ends(&client, 1);
    let rounds = eventually("it sleeps", || {
        let rounds = script.rounds();
        thread::sleep(Duration::from_millis(50));
        (script.rounds() == rounds).then_some(rounds)
    });
    script.set(|script| &script.working);
    let begun = Instant::now();
    client.frame();
    eventually("it is polled", || (script.rounds() >= rounds + 20).then_some(()));
    let (polled, micros) = (script.rounds() - rounds, begun.elapsed().as_micros());
    // Every 50 µs.
    assert!(u128::from(polled) <= micros / 50 + 10, "{polled} rounds in {micros} µs");
}

#[test]
fn a_paused_engine_sleeps_until_a_command_arrives() {
    let (engine, script) = engine();
    ready(&engine);
    let client = engine.client(Pacing::default()).unwrap();
    client.set_paused(true);
    let is_paused = |script: &Script| script.paused.load(Ordering::SeqCst);
    eventually("a pause", || is_paused(&script).then_some(()));
    // Regular frames, for which the thread would nap otherwise.
    let frames = |count: u32| {
        for _ in 0..count {
            client.frame();
            thread::sleep(Duration::from_millis(4));
        }
    };
    frames(10);
    let rounds = script.rounds();
    frames(25);
    let more = script.rounds() - rounds;
    assert!(more <= 2 * 25, "{more} rounds in 25 frames");
    client.set_paused(false);
    eventually("it goes on", || (!is_paused(&script)).then_some(()));
}

#[test]
fn client_slots_are_bounded_and_reused() {
    let (engine, script) = engine();
    ready(&engine);
    let mut clients: Vec<_> =
        (0..MAX_CLIENTS).map(|_| engine.client(Pacing::default()).unwrap()).collect();
    let refused = engine.client(Pacing::default());
    assert!(matches!(refused, Err(EngineError::TooManyClients { max_clients: 16 })));
    let seated = |count: usize| (script.clients.lock().unwrap().len() == count).then_some(());
    eventually("all seated", || seated(MAX_CLIENTS));
    drop(clients.pop());
    eventually("one removed", || seated(MAX_CLIENTS - 1));
    let late = eventually("a place", || engine.client(Pacing::FreeRunning).ok());
    asked(&late);
    assert_eq!(ends(&late, 1).len(), reply().len());
}

#[test]
fn rounds_use_the_time_of_the_clock() {
    let clock = VirtualClock::new();
    clock.advance(1_234);
    let (engine, script) = engine_with((4, 4), Clock::Virtual(clock.clone()));
    let now_micros = || script.now_micros.load(Ordering::SeqCst);
    eventually("a round", || (now_micros() == 1_234).then_some(()));
    clock.advance(1);
    engine.client(Pacing::default()).unwrap().frame();
    eventually("a round", || (now_micros() == 1_235).then_some(()));
}

#[test]
fn commands_arrive_in_order() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    let sent: Vec<_> = (0..200).map(|i| Command::RemoveAgent { agent: AgentId(i) }).collect();
    for command in &sent {
        let mut kept = command.clone();
        while let Err(TrySendError::Full(back)) = client.try_send(kept) {
            kept = back;
            thread::yield_now();
        }
    }
    eventually("all", || (script.commands.lock().unwrap().len() == sent.len()).then_some(()));
    assert_eq!(*script.commands.lock().unwrap(), sent);
}

#[test]
fn an_ask_with_a_used_id_is_dropped() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    script.set(|script| &script.hold);
    let (reply_id, command) = ask(&client);
    client.try_send(command.clone()).unwrap();
    client.try_send(command).unwrap();
    engine.stop();
    assert_eq!(next(&client).reply_id, reply_id);
    eventually("the thread ends", || engine.is_ended().then_some(()));
    assert_eq!(client.try_recv(), None);
}

#[test]
fn a_slow_client_receives_every_end_after_a_failure() {
    let (engine, script) = engine_with_queues((16, 2));
    let client = engine.client(Pacing::default()).unwrap();
    let reply_ids: Vec<_> = (0..6).map(|_| asked(&client)).collect();
    eventually("a round", || (script.rounds() > 0).then_some(()));
    script.set(|script| &script.fail);
    client.frame();
    eventually("failed", || engine.state().is_over().then_some(()));
    // Neither the core nor the device's memory waits for the client.
    eventually("dropped", || script.dropped.load(Ordering::SeqCst).then_some(()));
    assert!(!engine.is_ended(), "there is something left to say");
    let mut ended: HashMap<_, u32> = HashMap::new();
    for event in ends(&client, reply_ids.len()) {
        if event.what.is_terminal() {
            *ended.entry(event.reply_id).or_default() += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert!(reply_ids.iter().all(|reply_id| ended.get(reply_id) == Some(&1)), "{ended:?}");
    eventually("the thread ends", || engine.is_ended().then_some(()));
    assert_eq!(client.try_recv(), None);
}

#[test]
fn every_ask_ends_once_whenever_the_engine_fails() {
    for delay_micros in (0..2_000).step_by(100) {
        let (engine, script) = engine_with_queues((8, 8));
        let hosts: Vec<_> = (0..3)
            .map(|host| {
                let client = engine.client(Pacing::FreeRunning).unwrap();
                thread::spawn(move || host_until_closed(&client, host))
            })
            .collect();
        thread::sleep(Duration::from_micros(delay_micros));
        let how = if delay_micros % 200 == 0 { &script.fail } else { &script.panic };
        how.store(true, Ordering::SeqCst);
        hosts.into_iter().for_each(|host| host.join().unwrap());
    }
}

/// Asks as fast as it can, receives occasionally, and checks that every ask ended exactly once.
fn host_until_closed(client: &Client, host: usize) {
    let mut ended: HashMap<ReplyId, u32> = HashMap::new();
    let listen = |ended: &mut HashMap<ReplyId, u32>| {
        while let Some(event) = client.try_recv() {
            if event.what.is_terminal() {
                *ended.get_mut(&event.reply_id).expect("it was asked") += 1;
            }
        }
    };
    loop {
        let (reply_id, command) = ask(client);
        ended.insert(reply_id, 0);
        match client.try_send(command) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                ended.remove(&reply_id);
                thread::sleep(Duration::from_micros(20 * host as u64));
                client.frame();
            }
            Err(TrySendError::Closed(_)) => {
                ended.remove(&reply_id);
                break;
            }
        }
        if ended.len().is_multiple_of(host + 1) {
            listen(&mut ended);
        }
    }
    eventually("all ended", || {
        listen(&mut ended);
        ended.values().all(|count| *count > 0).then_some(())
    });
    eventually("the thread ends", || client.engine().is_ended().then_some(()));
    listen(&mut ended);
    assert!(ended.values().all(|count| *count == 1));
}

/// A setting holds for the commands that the host sends after it, also if the device thread is
/// taking commands at this moment.
#[test]
fn settings_precede_the_commands_that_follow_them() {
    let (engine, script) = engine();
    let client = engine.client(Pacing::default()).unwrap();
    ready(&engine);
    let command = || {
        let remove = Command::RemoveAgent { agent: client.new_agent() };
        client.try_send(remove).unwrap();
    };
    script.set(|script| &script.hold_command);
    command();
    eventually("a command is applied", || script.hanging.load(Ordering::SeqCst).then_some(()));
    script.calls.lock().unwrap().clear();
    client.set_logged(true);
    client.set_kv_tokens(7);
    command();
    script.hold_command.store(false, Ordering::SeqCst);
    eventually("both", || (script.commands.lock().unwrap().len() == 2).then_some(()));
    eventually("a round", || script.calls.lock().unwrap().contains(&"advance").then_some(()));
    let calls = script.calls.lock().unwrap().clone();
    assert_eq!(calls[..4], ["logged", "command", "control", "advance"]);
}
