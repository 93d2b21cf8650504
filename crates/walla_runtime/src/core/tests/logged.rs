//! Details for recordings, and replies that are cancelled at a token.

use super::*;
use crate::api::{CacheTicket, CancelAfter, Logged, Speaker, Turn};

/// All events of a rig that asks with these options.
fn logged(is_logged: bool, options: AskOptions) -> (Rig, AgentId, Vec<Event>) {
    let mut rig = Rig::free();
    rig.core.set_logged(HOST, is_logged);
    rig.heard.insert(ReplyId::NONE, Heard { client: Some(HOST), ..Heard::default() });
    let agent = rig.agent(speaker(3, 40));
    rig.ask_with(agent, Prompt::Chat("Hello".into()), options);
    let events = run(&mut rig);
    (rig, agent, events)
}

fn run(rig: &mut Rig) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..100_000 {
        rig.now_micros += 10;
        let mut emit = |_: ClientKey, event: Event| {
            events.push(event);
            Ok(())
        };
        if rig.core.advance(rig.now_micros, &mut emit).expect("the device lives") == Advance::Idle {
            return events;
        }
    }
    panic!("the core does not come to rest");
}

fn tokens_of(events: &[Event]) -> Vec<TokenId> {
    let runs = events.iter().filter_map(|event| match &event.what {
        ReplyEvent::Logged(Logged::Tokens(run)) => Some(run.tokens().to_vec()),
        _ => None,
    });
    runs.flatten().collect()
}

fn text_of(events: &[Event]) -> String {
    let texts = events.iter().filter_map(|event| match &event.what {
        ReplyEvent::Delta { text, .. } => Some(text.to_string()),
        _ => None,
    });
    texts.collect()
}

fn turns(rig: &mut Rig, agent: AgentId) -> Vec<Turn> {
    rig.core.agents.of_client(HOST, agent).expect("it lives").history.turns().to_vec()
}

#[test]
fn the_order_of_work_and_all_tokens_are_logged() {
    let (mut rig, agent, events) = logged(true, AskOptions::default());
    let kinds: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.what {
            ReplyEvent::Logged(Logged::Applied) => Some("applied"),
            ReplyEvent::Logged(Logged::Begun) => Some("begun"),
            ReplyEvent::Started { .. } => Some("started"),
            ReplyEvent::Finished { .. } => Some("finished"),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, ["applied", "applied", "begun", "started", "finished"]);
    let known = rig.core.agents.of_client(HOST, agent).expect("it lives");
    let tokens = tokens_of(&events);
    assert!(tokens.len() > 20, "more than one run: {}", tokens.len());
    assert!(known.sequence.tokens().ends_with(&tokens), "as in the sequence");
    // Without a request nothing is logged, and the words are the same.
    let (_, _, silent) = logged(false, AskOptions::default());
    assert!(!silent.iter().any(|event| matches!(event.what, ReplyEvent::Logged(_))));
    assert_eq!(text_of(&silent), text_of(&events));
}

#[test]
fn a_reply_is_cancelled_at_its_token() {
    let (_, _, whole) = logged(true, AskOptions::default());
    let all = tokens_of(&whole);
    for (tokens, heard_bytes) in [(0, u32::MAX), (1, u32::MAX), (14, u32::MAX), (15, 3), (20, 0)] {
        let cancel_after = Some(Box::new(CancelAfter { tokens, heard_bytes }));
        let (mut rig, agent, events) =
            logged(true, AskOptions { cancel_after, ..AskOptions::default() });
        assert_eq!(tokens_of(&events), all[..tokens as usize]);
        let last = events.last().expect("an end");
        let is_cancelled =
            matches!(last.what, ReplyEvent::Finished { reason: FinishReason::Cancelled, .. });
        assert!(is_cancelled, "{last:?}");
        let text = text_of(&events);
        let kept = &text[..text.floor_char_boundary(heard_bytes as usize)];
        let turns = turns(&mut rig, agent);
        if kept.is_empty() {
            assert!(turns.is_empty(), "{turns:?}");
        } else {
            assert_eq!(turns[1], Turn::new(Speaker::Agent, kept.to_owned()));
        }
    }
}

/// A copy of a cache is no part of a recording: it must not take the place of another command.
#[test]
fn a_copy_of_a_cache_is_not_logged() {
    let (mut rig, agent, _) = logged(true, AskOptions::default());
    let (ticket, job) = CacheTicket::save_bytes();
    rig.command(Command::CopyCache { agent, ticket });
    rig.command(Command::AppendTurns { agent, turns: Vec::new() });
    let events = run(&mut rig);
    assert!(job.result().expect("it has ended").is_ok());
    let applied = |event: &&Event| matches!(event.what, ReplyEvent::Logged(Logged::Applied));
    assert_eq!(events.iter().filter(applied).count(), 1, "{events:?}");
}
