//! Calls that a model writes without the markers of its format.

use walla_grammar::{CallError, UnmarkedCalls};

use super::actions::{MARKERS, actor, chat, is_valid, model, rig};
use super::*;
use crate::api::{ActionPolicy, Actions};

/// The reply of an agent that begins to speak with `text`.
fn reply(special: &[&str], text: &str, change: impl FnOnce(&mut Actions)) -> Heard {
    let mut rig = rig(&model(special));
    let spec = actor(&rig, 5, |actions| {
        actions.max_calls = 1;
        change(actions);
    });
    let agent = rig.agent(AgentSpec { max_reply_tokens: 300, ..spec });
    let ask = rig.ask(agent, chat("Nails, please."));
    rig.begin_with(agent, text);
    rig.run();
    rig.assert_all_ended();
    rig.reply(ask).clone()
}

/// From the name on, the arguments are constrained.
#[test]
fn a_call_without_markers_is_completed_with_valid_arguments() {
    for special in [&MARKERS[..], &[]] {
        for text in [
            r#"{"name": "give""#,
            r#"{"name":"give""#,
            "{\n  \"name\": \"give\"",
            "```json\n{\"name\": \"give\"",
            "Well.\n{\"name\": \"give\"",
        ] {
            let heard = reply(special, text, |_| {});
            assert!(heard.refused.is_empty(), "{text:?}: {heard:?}");
            let [call] = &heard.calls[..] else { panic!("{text:?}: {heard:?}") };
            assert!(is_valid(&call.name, &call.arguments.clone().into()), "{heard:?}");
            assert_eq!(call.name, "give");
            assert_eq!(heard.text.trim(), if text.starts_with('W') { "Well." } else { "" });
            assert_eq!(heard.ends, [Ok(FinishReason::CallLimit)]);
        }
    }
}

#[test]
fn a_whole_call_without_markers_is_a_call() {
    for text in [
        r#"{"arguments": {"item": "nails", "count": 3}, "name": "give"}"#,
        r#"give(item="nails", count=3)"#,
        r#"[give(item='nails', count='3')]"#,
        r#"<|tool_call>call:give{item:<|"|>nails<|"|>,count:3}"#,
        "<function=give>\n<parameter=item>\nnails\n</parameter>\n<parameter=count>\n3\n\
         </parameter>\n</function>",
    ] {
        let heard = reply(&MARKERS, text, |_| {});
        let [call] = &heard.calls[..] else { panic!("{text:?}: {heard:?}") };
        assert_eq!((&*call.name, &call.arguments["count"]), ("give", &3.into()), "{text:?}");
        assert!(heard.text.is_empty() && heard.refused.is_empty(), "{heard:?}");
    }
}

/// A call that may not be made, or not in this way, is refused with an event, and never spoken.
#[test]
fn a_call_without_markers_is_refused_by_the_setting() {
    let whole = r#"{"name": "wave", "arguments": {}}"#;
    let refused = |text: &str, change: fn(&mut Actions)| {
        let heard = reply(&MARKERS, text, change);
        assert!(heard.calls.is_empty(), "{heard:?}");
        assert!(!heard.text.contains("wave") && !heard.text.contains("name"), "{heard:?}");
        heard.refused[0].call.error.clone()
    };
    let error = refused(whole, |actions| actions.unmarked = UnmarkedCalls::Refuse);
    assert_eq!(error, CallError::Unmarked);
    let error = refused(whole, |actions| actions.policy = ActionPolicy::Off);
    assert_eq!(error, CallError::NotAllowed { name: "wave".into() });
    let error = refused(r#"{"name": "fly", "arguments": {"to": "the moon"}}"#, |_| {});
    assert_eq!(error, CallError::UnknownAction { name: "fly".into() });
    let error = refused(r#"wave(how="gladly")"#, |_| {});
    assert!(matches!(error, CallError::InvalidArgument { .. }), "{error:?}");
}

/// Text that is held back counts as spoken, so that a limit is exact.
#[test]
fn a_limit_of_tokens_holds_for_text_that_may_be_a_call() {
    for (text, is_call) in [
        (r#"{"name": "Anna", "age": 30, "town": "Emberfall", "trade": "smith"}"#, true),
        (r#"{"mood": "glad", "age": 30, "town": "Emberfall", "trade": "smith"}"#, false),
    ] {
        let mut rig = rig(&model(&MARKERS));
        let spec = AgentSpec { max_reply_tokens: 20, ..actor(&rig, 5, |_| {}) };
        let agent = rig.agent(spec);
        let ask = rig.ask(agent, chat("Who are you?"));
        rig.begin_with(agent, text);
        rig.run();
        let heard = rig.reply(ask);
        assert_eq!(heard.ends, [Ok(FinishReason::Length)], "{heard:?}");
        let Usage { reply_tokens, call_tokens, .. } = heard.usage;
        assert_eq!((reply_tokens + call_tokens, call_tokens > 0), (20, is_call), "{heard:?}");
        assert_eq!(heard.text.is_empty(), is_call, "{heard:?}");
        assert_eq!(heard.refused.len(), usize::from(is_call), "{heard:?}");
    }
}

/// A reply of data is data, also behind a reply with calls.
#[test]
fn a_constrained_reply_has_no_calls_without_markers() {
    let text = r#"{"name": "wave", "arguments": {}}"#;
    let mut rig = rig(&model(&MARKERS));
    let agent = rig.agent(AgentSpec { max_reply_tokens: 300, ..actor(&rig, 5, |_| {}) });
    let before = rig.ask(agent, chat("Nails, please."));
    rig.begin_with(agent, text);
    rig.run();
    assert!(rig.reply(before).usage.call_tokens > 0);
    let constraint = Some(walla_grammar::Constraint::choice([text]));
    let options = AskOptions { constraint, ..AskOptions::default() };
    let ask = rig.ask_with(agent, chat("Write a call."), options);
    rig.run();
    let heard = rig.reply(ask);
    assert_eq!((&*heard.text, heard.calls.len()), (text, 0), "{heard:?}");
    assert_eq!(heard.usage.call_tokens, 0, "{heard:?}");
}

/// A list in one block has no more calls than the reply may make.
#[test]
fn calls_of_a_list_count_for_the_limit() {
    let one = r#"{"name": "wave", "arguments": {}}"#;
    let list = format!("[{one}, {one}, {one}]");
    for text in [&*list, "[wave(), wave(), wave()]"] {
        for max_calls in [1, 2] {
            let heard = reply(&MARKERS, text, |actions| actions.max_calls = max_calls);
            assert_eq!(heard.calls.len() as u32, max_calls, "{text} {heard:?}");
            let of_limit = |call: &&RefusedCall| {
                call.call.error == CallError::NotAllowed { name: "wave".to_owned() }
            };
            let refused = heard.refused.iter().filter(of_limit).count() as u32;
            assert_eq!(refused, 3 - max_calls, "{text} {heard:?}");
            assert_eq!(heard.ends, [Ok(FinishReason::CallLimit)]);
        }
    }
}
