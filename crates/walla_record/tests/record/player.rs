//! A player in the place of an engine.

use std::time::{Duration, Instant};

use walla_record::{End, Entry, Pace, Player, Record, Recording};
use walla_runtime::{
    AgentId, AgentSpec, Command, EngineClient, Event, FinishReason, Prompt, ReplyError, ReplyEvent,
    ReplyId,
};

use crate::kit::{Host, ended, options, recorder, speaker};
use crate::own_thread::processor_time;

/// Two agents with two questions each; the first one's second reply is cancelled.
fn session() -> (Recording, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let client = recorder(&path, options());
    let mut host = Host::new(&client, 1);
    let agents = [1, 2].map(|seed| host.add(speaker(seed)));
    let mut replies = Vec::new();
    for question in ["Hello!", "And now?"] {
        replies.extend(agents.map(|agent| host.chat(agent, question)));
        host.finish();
    }
    let last = host.chat(agents[0], "Once more.");
    host.frame();
    host.send(Command::Cancel { agent: agents[0], reply_id: last });
    host.finish();
    let texts = replies.iter().map(|reply| host.heard.get(reply).cloned().unwrap_or_default());
    let texts = texts.collect();
    drop(host);
    drop(client);
    (ended(&path), texts)
}

#[test]
fn the_same_asks_get_the_recorded_replies() {
    let (recording, texts) = session();
    for pace in [Pace::Frames, Pace::Time, Pace::Immediate] {
        let client = Player::new(recording.clone()).pace(pace).client();
        let mut host = Host::new(&client, 1);
        // In another order.
        let second = host.add(speaker(2));
        let first = host.add(speaker(1));
        let mut replies = Vec::new();
        for question in ["Hello!", "And now?"] {
            replies.extend([first, second].map(|agent| host.chat(agent, question)));
            host.finish();
        }
        let played: Vec<_> = replies
            .iter()
            .map(|reply| host.heard.get(reply).cloned().unwrap_or_default())
            .collect();
        assert_eq!(played, texts, "{pace:?}");
        let last = host.chat(first, "Once more.");
        host.finish();
        let end = host.events.iter().rfind(|event| event.reply_id == last).expect("an end");
        let is_cancelled =
            matches!(end.what, ReplyEvent::Finished { reason: FinishReason::Cancelled, .. });
        assert!(is_cancelled, "{end:?}");
    }
}

fn failed(events: &[Event], reply_id: ReplyId) -> ReplyError {
    let of_reply = events.iter().filter(|event| event.reply_id == reply_id);
    let mut failed = of_reply.filter_map(|event| match &event.what {
        ReplyEvent::Failed(error) => Some(error.clone()),
        _ => None,
    });
    failed.next_back().expect("a failure")
}

#[test]
fn another_ask_fails_with_both_texts() {
    let (recording, _) = session();
    let client = Player::new(recording).client();
    let mut host = Host::new(&client, 1);
    let agent = host.add(speaker(1));
    let other = host.chat(agent, "Goodbye!");
    host.finish();
    let error = failed(&host.events, other);
    let expected = Some("Hello!".to_owned());
    assert_eq!(error, ReplyError::NotRecorded { expected, asked: "Goodbye!".into() });
    assert!(error.to_string().contains("\"Hello!\"") && error.to_string().contains("\"Goodbye!\""));
    // The right one is still there.
    let right = host.chat(agent, "Hello!");
    host.finish();
    assert!(!host.heard[&right].is_empty());
    // A second agent with this persona is not in the recording.
    let surplus = host.add(speaker(1));
    let none = host.chat(surplus, "Hello!");
    host.finish();
    let error = failed(&host.events, none);
    assert_eq!(error, ReplyError::NotRecorded { expected: None, asked: "Hello!".into() });
    let unknown = host.chat(AgentId::unique(), "Hello!");
    host.finish();
    assert_eq!(failed(&host.events, unknown), ReplyError::UnknownAgent);
}

#[test]
fn events_come_at_their_frames() {
    let (recording, _) = session();
    let client = Player::new(recording.clone()).client();
    let agent = AgentId::unique();
    let spec = Box::new(AgentSpec { ..speaker(1) });
    client.try_send(Command::AddAgent { agent, spec }).expect("room");
    let session = walla_record::Session::new(&recording);
    let ask = &session.asks[session.agents[0].asks[0]];
    let frames: Vec<u64> = ask.events.iter().map(|at| recording.entries[*at].frame).collect();
    let last = frames.last().expect("an end") - ask.frame;
    assert!(last > 3, "the reply takes some frames");
    client
        .try_send(Command::ask(agent, ReplyId::unique(), Prompt::Chat("Hello!".into())))
        .expect("room");
    for frame in 1..=last {
        client.frame();
        let mut is_over = false;
        while let Some(event) = client.try_recv() {
            is_over |= event.what.is_terminal();
        }
        assert_eq!(is_over, frame == last, "frame {frame} of {last}");
    }
}

#[test]
fn a_pause_stops_the_time_of_a_player() {
    let (recording, _) = session();
    let client = Player::new(recording).pace(Pace::Time).client();
    let agent = AgentId::unique();
    client.try_send(Command::AddAgent { agent, spec: Box::new(speaker(1)) }).expect("room");
    client.set_paused(true);
    client
        .try_send(Command::ask(agent, ReplyId::unique(), Prompt::Chat("Hello!".into())))
        .expect("room");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((client.try_recv(), client.max_wait()), (None, None));
    client.set_paused(false);
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < crate::kit::TIMEOUT);
        match client.try_recv() {
            Some(event) if event.what.is_terminal() => return,
            Some(_) => {}
            None => std::thread::sleep(client.max_wait().expect("an event is due")),
        }
    }
}

#[test]
fn a_stopped_player_ends_its_replies() {
    let (recording, _) = session();
    let client = Player::new(recording).client();
    let mut host = Host::new(&client, 1);
    let agent = host.add(speaker(1));
    let reply = host.chat(agent, "Hello!");
    client.stop();
    assert!(client.try_send(Command::RemoveAgent { agent }).is_err());
    host.finish();
    assert!(matches!(failed(&host.events, reply), ReplyError::EngineGone(_)));
}

/// Many replies at once take no long frame: one pass over them per event.
#[test]
fn many_replies_are_played_in_linear_time() {
    let [few, many] = [100, 1_600].map(time_to_play);
    // 16 times, or 256 times in quadratic time.
    assert!(many < few * 64, "{few:?} for 100 replies, {many:?} for 1,600");
}

/// The least processor time for this number of replies.
fn time_to_play(count: u64) -> Duration {
    (0..3).map(|_| play(count)).min().expect("three")
}

fn play(count: u64) -> Duration {
    let ids = (0..count).map(|at| (AgentId(at), ReplyId(at + 1)));
    let adds = ids.clone().map(|(agent, _)| {
        let spec = Box::new(AgentSpec::new(format!("agent {}", agent.0)));
        Record::Command(Box::new(Command::AddAgent { agent, spec }))
    });
    let ask = |(agent, reply_id)| Command::ask(agent, reply_id, Prompt::Chat("Hello!".to_owned()));
    let asks = ids.clone().map(|ids| Record::Command(Box::new(ask(ids))));
    let events = (0..20).flat_map(|at| {
        let what = match at {
            19 => ReplyEvent::Failed(ReplyError::NoReply),
            _ => ReplyEvent::Started { prompt_tokens: at },
        };
        let event = move |(agent, reply_id)| Event { agent, reply_id, what: what.clone() };
        ids.clone().map(event).map(Record::Event)
    });
    let records = adds.chain(asks).chain(events);
    let entries: Vec<_> = records.map(|record| Entry { frame: 0, micros: 0, record }).collect();
    let recording = Recording { entries, end: End::Complete, micros: 0 };
    let client = Player::new(recording).pace(Pace::Immediate).client();
    for (agent, reply_id) in ids {
        let spec = Box::new(AgentSpec::new(format!("agent {}", agent.0)));
        client.try_send(Command::AddAgent { agent, spec }).expect("room");
        client.try_send(ask((agent, reply_id))).expect("room");
    }
    let begun = processor_time();
    let mut events = Vec::new();
    while client.try_recv_many(1_024, &mut events) > 0 {}
    let took = processor_time() - begun;
    assert_eq!(events.len() as u64, count * 20);
    took
}
