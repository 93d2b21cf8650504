//! Sessions on an engine, and their replays.

use std::time::{Duration, Instant};

use walla_record::{Differing, Record, RecordedAsk, Recording, Replay, ReplayError, Session};
use walla_runtime::{
    AgentSpec, AskOptions, CacheTicket, Command, ConversationEdit, EngineOptions, FinishReason,
    ModelSource, Pacing, Prompt,
};

use crate::kit::{
    Host, TIMEOUT, client, ended, model, options, other_options, record, recorded, recorder,
    speaker,
};

fn equal(recording: &Recording, options: EngineOptions, pacing: Pacing) {
    let report = Replay::new(recording).run(&client(options, pacing)).expect("an engine");
    if let Some(difference) = report.first {
        panic!("{difference}");
    }
    assert!(report.has_ids && report.tokens > 0, "{report:?}");
}

/// Seeds of sessions. `WALLA_RECORD_SEEDS=FIRST..END` selects others.
fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("WALLA_RECORD_SEEDS") else { return 1..4 };
    let bounds = range.split_once("..").expect("FIRST..END");
    let [first, end] = [bounds.0, bounds.1].map(|bound| bound.parse().expect("a number"));
    first..end
}

#[test]
fn sessions_replay_with_other_threads_buckets_slots_and_pacing() {
    let pacings = [
        Pacing::PerFrame { steps: 1 },
        Pacing::PerFrame { steps: 5 },
        Pacing::PerFrame { steps: 2 },
    ];
    for (seed, pacing) in seeds().zip(pacings.into_iter().cycle()) {
        let recording = recorded(seed, 300);
        let session = Session::new(&recording);
        let ended = |reason| {
            let is_it = |ask: &&RecordedAsk| {
                let end = ask.reply.end.as_ref().and_then(|end| end.as_ref().ok());
                end.is_some_and(|(found, _)| *found == reason)
            };
            session.asks.iter().filter(is_it).count()
        };
        assert!(ended(FinishReason::Cancelled) > 3, "the session has cancels");
        assert!(session.tokens() > 300, "{}", session.tokens());
        equal(&recording, other_options(), pacing);
    }
}

#[test]
fn a_recording_is_the_same_after_it_was_written_again() {
    let recording = recorded(11, 60);
    let mut bytes = Vec::new();
    recording.write(&mut bytes).expect("a vector takes everything");
    let again = Recording::read(&*bytes, Default::default()).expect("a recording");
    assert_eq!(again, recording);
    equal(&again, options(), Pacing::PerFrame { steps: 4 });
}

/// A short session of two agents with known seeds.
fn short() -> Recording {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let client = recorder(&path, options());
    let mut host = Host::new(&client, 1);
    for seed in [1, 2] {
        let agent = host.add(speaker(seed));
        host.chat(agent, "Hello!");
        host.chat(agent, "And now?");
    }
    host.finish();
    drop(host);
    drop(client);
    ended(&path)
}

#[test]
fn a_changed_token_is_found_at_its_place() {
    let recording = short();
    let session = Session::new(&recording);
    // The second reply of the first agent: only its seed changes.
    let changed = session.agents[0].asks[1];
    let ask = &session.asks[changed];
    let mut other = recording.clone();
    for entry in &mut other.entries {
        if let Record::Command(command) = &mut entry.record
            && let Command::Ask { reply_id, options, .. } = &mut **command
            && *reply_id == ask.reply_id
        {
            options.seed = Some(77);
        }
    }
    let alone = |recording: &Recording| {
        let report = Replay::new(recording).run(&client(options(), Pacing::PerFrame { steps: 1 }));
        report.expect("an engine")
    };
    let report = alone(&other);
    assert_eq!(report.different, 1, "{report:?}");
    let found = report.first.expect("a difference");
    assert_eq!((found.agent, found.reply_id), (ask.agent, ask.reply_id));
    // The recorded token at this index, and another one; all tokens before are equal.
    let Differing::Token(Some(expected)) = found.expected else { panic!("{found}") };
    assert_eq!(ask.reply.tokens.get(found.token as usize), Some(&expected));
    assert_ne!(found.got, Differing::Token(Some(expected)));
    assert!(found.to_string().contains("And now?"), "{found}");
    assert!(alone(&recording).is_equal());
}

#[test]
fn another_model_or_setting_is_refused() {
    let recording = short();
    let replay = Replay::new(&recording);
    let other = EngineOptions { model: ModelSource::Static(model(8)), ..options() };
    let refused = replay.run(&client(other, Pacing::default()));
    assert!(matches!(refused, Err(ReplayError::OtherModel { .. })), "{refused:?}");
    let other = EngineOptions { context_tokens: 128, ..options() };
    let refused = replay.run(&client(other, Pacing::default()));
    let Err(ReplayError::OtherSetting { setting, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(setting, "context_tokens");
}

#[test]
fn a_recording_without_its_end_is_compared_to_its_last_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    record(&path, 21, 80);
    let recording = ended(&path);
    for cut in [3, 2] {
        let mut part = recording.clone();
        part.entries.truncate(recording.entries.len() * (cut - 1) / cut);
        let session = Session::new(&part);
        assert!(session.asks.iter().any(|ask| ask.reply.end.is_some()));
        equal(&part, other_options(), Pacing::PerFrame { steps: 1 });
    }
}

#[test]
fn an_ask_that_never_began_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let client_of_host = recorder(&path, options());
    let mut host = Host::new(&client_of_host, 1);
    let agent = host.add(AgentSpec { max_reply_tokens: 200, ..speaker(3) });
    host.chat(agent, "first");
    let waiting = host.chat(agent, "second");
    host.send(Command::Cancel { agent, reply_id: waiting });
    // Beyond the queue of the engine.
    for n in 0..12 {
        host.ask(agent, Prompt::Chat(format!("more {n}")), AskOptions::seed(n));
    }
    host.finish();
    drop(host);
    drop(client_of_host);
    let recording = ended(&path);
    let report = Replay::new(&recording)
        .run(&client(other_options(), Pacing::PerFrame { steps: 3 }))
        .expect("an engine");
    assert!(report.is_equal(), "{:?}", report.first);
    assert!(report.left_out >= 4, "{report:?}");
}

/// A host that is slow to receive: a reply ends between a copy of a cache and an edit, and the
/// recording must not take the copy for the edit.
#[test]
fn a_copy_of_a_cache_moves_no_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let client_of_host = recorder(&path, options());
    let mut host = Host::new(&client_of_host, 1);
    let agent = host.add(speaker(3));
    host.chat(agent, "Hello!");
    host.finish();
    for _ in 0..3 {
        let reply = host.chat(agent, "And now?");
        (0..3).for_each(|_| host.frame());
        assert!(host.open.contains_key(&reply), "it speaks");
        let (ticket, job) = CacheTicket::save_bytes();
        host.send(Command::CopyCache { agent, ticket });
        let begun = Instant::now();
        while job.result().is_none() || host.client.stats().agents_active > 0 {
            assert!(begun.elapsed() < TIMEOUT, "{job:?}");
            host.client.frame();
            std::thread::sleep(Duration::from_micros(300));
        }
        assert!(job.result().is_some_and(|result| result.is_ok()), "{job:?}");
        let edit = ConversationEdit::Rewind { turns: 1 };
        host.send(Command::EditConversation { agent, edit });
        host.chat(agent, "More.");
        host.finish();
    }
    drop(host);
    drop(client_of_host);
    equal(&ended(&path), other_options(), Pacing::PerFrame { steps: 2 });
}
