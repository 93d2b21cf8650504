//! Replies in the shapes of other servers than OpenAI's.

use serde_json::{Value, json};
use walla_runtime::{
    Actions, AgentSpec, CallError, Constraint, FinishReason, RemoteError, ReplyEvent, UnmarkedCalls,
};

use crate::client::{Heard, add, ask, client, error, hear, options, recording};
use crate::mapping::actions;
use crate::server::{Part, STREAM, bytes, done, event, finish, response, text};

/// The reply that an agent with actions hears from a server with this response.
fn heard(parts: &[Part]) -> Heard {
    heard_by(AgentSpec { actions: Some(actions()), ..AgentSpec::new("") }, parts)
}

fn heard_by(spec: AgentSpec, parts: &[Part]) -> Heard {
    let parts = parts.to_vec();
    let (server, _) = recording(move |_| parts.clone());
    let client = client(options(&server));
    hear(&client, ask(&client, add(&client, spec), "?"))
}

/// A stream of these deltas.
fn streamed(deltas: &[Value]) -> Heard {
    heard(&stream(deltas))
}

fn stream(deltas: &[Value]) -> Vec<Part> {
    let events = deltas.iter().map(|delta| event(&json!({"index": 0, "delta": delta})));
    let stream = STREAM.to_owned() + &events.collect::<String>() + &finish("stop") + &done(5, 4);
    vec![bytes(stream), Part::Close]
}

/// One response with this message.
fn whole(choice: &Value) -> Heard {
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 4});
    let body = json!({"object": "chat.completion", "choices": [choice], "usage": usage});
    let json = "content-type: application/json; charset=utf-8\r\n";
    heard(&[response("200 OK", json, &body.to_string())])
}

/// Actions that were called, with their arguments.
fn calls(heard: &Heard) -> Vec<(String, Value)> {
    let call = |event: &ReplyEvent| match event {
        ReplyEvent::Call(call) => {
            Some((call.name.to_string(), Value::Object(call.arguments.clone())))
        }
        ReplyEvent::CallRefused(refused) => panic!("{refused:?}"),
        _ => None,
    };
    heard.others.iter().filter_map(call).collect()
}

fn reason(heard: &Heard) -> FinishReason {
    match &heard.end {
        Some(ReplyEvent::Finished { reason, .. }) => *reason,
        other => panic!("{other:?}"),
    }
}

/// Contents of one message, all of them "Yes, I am." after the reasoning "Hm. ".
fn contents() -> Vec<Value> {
    let text = |text: &str| json!({"type": "text", "text": text});
    vec![
        json!([{"type": "thinking", "thinking": [text("Hm"), text(". ")]}, text("Yes, I am.")]),
        json!([{"type": "thinking", "thinking": "Hm. "}, text("Yes, "), text("I am.")]),
        json!([{"type": "reasoning", "text": "Hm. "}, {"text": "Yes, "}, "I ", "am."]),
        json!([{"type": "reasoning", "reasoning": "Hm. "}, {"type": "output_text", "text": "Yes, I am."},
            {"type": "image_url", "image_url": {"url": "data:"}}, null, 7]),
        json!([text("<think>Hm. "), text("</think>Yes, I am.")]),
        json!([{"type": "thinking", "thinking": "Hm. "}, {"type": "refusal", "refusal": "Yes, I am."}]),
    ]
}

#[test]
fn a_content_may_be_a_list_of_parts() {
    for content in contents() {
        for heard in [
            streamed(&[json!({"role": "assistant", "content": content})]),
            whole(&json!({"index": 0, "message": {"content": content}, "finish_reason": "stop"})),
        ] {
            assert_eq!((&*heard.reasoning, &*heard.text), ("Hm. ", "Yes, I am."), "{content}");
            assert_eq!(reason(&heard), FinishReason::EndOfTurn);
        }
        // One part in each event.
        let Value::Array(parts) = &content else { panic!("{content}") };
        let deltas: Vec<_> = parts.iter().map(|part| json!({"content": [part]})).collect();
        let heard = streamed(&deltas);
        assert_eq!((&*heard.reasoning, &*heard.text), ("Hm. ", "Yes, I am."), "{content}");
    }
    for empty in [json!([]), json!(null), json!([{"type": "text", "text": ""}]), json!([null])] {
        let heard = streamed(&[json!({"content": empty}), json!({"content": "Yes."})]);
        assert_eq!(heard.text, "Yes.", "{empty}");
    }
    for wrong in [json!(7), json!(true)] {
        let heard = streamed(&[json!({"content": wrong})]);
        assert!(matches!(error(&heard), RemoteError::Protocol(_)), "{wrong}: {heard:?}");
    }
}

#[test]
fn a_list_of_parts_counts_towards_the_limit_of_a_reply() {
    let part = json!({"type": "text", "text": "x".repeat(1 << 10)});
    let content = vec![part; 200];
    let heard = streamed(&[json!({"content": content}), json!({"content": content})]);
    assert_eq!(*error(&heard), RemoteError::TooLarge { limit: 256 << 10 });
}

#[test]
fn arguments_of_a_call_may_be_an_object() {
    let nails = json!({"item": "nails", "count": 2});
    let sword = json!({"item": "sword", "count": 1});
    let expected = [("give".to_owned(), nails.clone()), ("give".to_owned(), sword.clone())];
    let call = |index: Value, id: &str, arguments: &Value| {
        json!({"index": index, "id": id, "type": "function",
            "function": {"name": "give", "arguments": arguments}})
    };
    for indices in [[json!(0), json!(1)], [json!(0), json!(0)], [Value::Null, Value::Null]] {
        let [first, second] = indices;
        let both = [call(first, "a", &nails), call(second, "b", &sword)];
        let separate = streamed(&both.clone().map(|call| json!({"tool_calls": [call]})));
        assert_eq!(calls(&separate), expected);
        let message = json!({"content": null, "tool_calls": both});
        assert_eq!(calls(&streamed(std::slice::from_ref(&message))), expected);
        let whole = whole(&json!({"index": 0, "message": message, "finish_reason": "tool_calls"}));
        assert_eq!(calls(&whole), expected);
    }
    // An empty object in place of no text, before the fragments of a text.
    let fragment =
        |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
    let heard = streamed(&[
        json!({"tool_calls": [call(json!(0), "a", &json!({}))]}),
        fragment("{\"item\": \"nails\","),
        fragment(" \"count\": 2}"),
    ]);
    assert_eq!(calls(&heard), expected[..1]);
}

#[test]
fn arguments_that_are_no_object_are_refused() {
    for arguments in [json!([1]), json!(7), json!("7"), json!({"item": "horse", "count": 1})] {
        let function = json!({"name": "give", "arguments": arguments});
        let heard = streamed(&[json!({"tool_calls": [{"index": 0, "function": function}]})]);
        let refused = |event: &ReplyEvent| matches!(event, ReplyEvent::CallRefused(_));
        assert_eq!(heard.others.iter().filter(|event| refused(event)).count(), 1, "{heard:?}");
        assert_eq!(reason(&heard), FinishReason::EndOfTurn);
    }
}

#[test]
fn a_reply_without_a_finish_reason_ends_with_its_stream() {
    let done_without_counts = "data: [DONE]\n\n";
    for end in [done(5, 4), done_without_counts.to_owned()] {
        let heard = heard(&[bytes(format!("{STREAM}{}{end}", text("Yes."))), Part::Close]);
        assert_eq!((&*heard.text, reason(&heard)), ("Yes.", FinishReason::EndOfTurn));
    }
    // Counts without a choice are the last event: the server has written all of its reply.
    let counts = done(5, 4).replace(done_without_counts, "");
    let counted = heard(&[bytes(format!("{STREAM}{}{counts}", text("Yes."))), Part::Close]);
    assert_eq!((&*counted.text, reason(&counted)), ("Yes.", FinishReason::EndOfTurn));
    // A text that was held back, and a call.
    let call = json!({"index": 0, "function": {"name": "give",
        "arguments": {"item": "nails", "count": 2}}});
    let deltas = event(&json!({"delta": {"tool_calls": [call]}})) + &text("<thi");
    let held = heard(&[bytes(format!("{STREAM}{deltas}{done_without_counts}")), Part::Close]);
    assert_eq!((&*held.text, calls(&held).len()), ("<thi", 1));
    let silent = event(&json!({"index": 0, "delta": {"role": "assistant", "content": ""}}));
    let silent = heard(&[bytes(format!("{STREAM}{silent}{done_without_counts}")), Part::Close]);
    assert_eq!((&*silent.text, reason(&silent)), ("", FinishReason::EndOfTurn));
    let whole = whole(&json!({"message": {"content": "Yes."}}));
    assert_eq!((&*whole.text, reason(&whole)), ("Yes.", FinishReason::EndOfTurn));
}

#[test]
fn a_stream_without_any_reply_is_an_error() {
    for stream in ["data: [DONE]\n\n".to_owned(), done(5, 0)] {
        let heard = heard(&[bytes(format!("{STREAM}{stream}")), Part::Close]);
        assert!(matches!(error(&heard), RemoteError::Protocol(_)), "{stream}: {heard:?}");
    }
    let json = "content-type: application/json\r\n";
    let failed =
        heard(&[response("200 OK", json, "{\"error\": {\"message\": \"m\", \"code\": 503}}")]);
    assert_eq!(*error(&failed), RemoteError::Failed { status: 503, message: "m".into() });
    for body in ["{}", "[]", "", "{\"choices\": ["] {
        let heard = heard(&[response("200 OK", json, body)]);
        assert!(matches!(error(&heard), RemoteError::Protocol(_)), "{body}: {heard:?}");
    }
}

#[test]
fn a_whole_response_is_a_reply_with_its_counts_and_end() {
    let heard = whole(&json!({"index": 0, "finish_reason": "length",
        "message": {"role": "assistant", "content": "Yes, but", "reasoning_content": "Hm."}}));
    assert_eq!((&*heard.reasoning, &*heard.text), ("Hm.", "Yes, but"));
    assert_eq!(reason(&heard), FinishReason::Length);
    let Some(ReplyEvent::Finished { usage, .. }) = heard.end else { panic!("{heard:?}") };
    assert_eq!(usage.prompt_tokens, 5);
}

#[test]
fn a_whole_response_is_bounded() {
    let (server, _) = recording(|_| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
        vec![bytes(head), Part::Endless(vec![b' '; 1 << 16])]
    });
    let client = client(options(&server));
    let heard = hear(&client, ask(&client, add(&client, AgentSpec::new("")), "?"));
    assert_eq!(*error(&heard), RemoteError::TooLarge { limit: 16 << 20 });
}

/// A server without a parser of calls sends them as text.
#[test]
fn a_call_in_the_text_is_a_call() {
    let nails = json!({"item": "nails", "count": 2});
    let expected = [("give".to_owned(), nails.clone())];
    let call = json!({"name": "give", "arguments": nails}).to_string();
    let deltas = |text: &str, size: usize| -> Vec<Value> {
        let pieces = text.as_bytes().chunks(size).map(|piece| String::from_utf8_lossy(piece));
        pieces.map(|piece| json!({"content": piece})).collect()
    };
    for (text, speech) in [
        (call.clone(), ""),
        (format!("```json\n{call}\n```"), ""),
        (format!("Here.\n<tool_call>\n{call}\n</tool_call>"), "Here.\n"),
        (format!("<think>Hm.</think>{call}"), ""),
        ("give(item='nails', count=2)".to_owned(), ""),
    ] {
        for size in [1, 7, 1_000] {
            let heard = streamed(&deltas(&text, size));
            assert_eq!((calls(&heard), &*heard.text), (expected.to_vec(), speech), "{text}");
            assert_eq!(reason(&heard), FinishReason::EndOfTurn);
        }
    }
    let refused = |heard: &Heard| {
        let error = heard.others.iter().find_map(|event| match event {
            ReplyEvent::CallRefused(refused) => Some(refused.call.error.clone()),
            _ => None,
        });
        assert!(heard.text.is_empty(), "{heard:?}");
        error
    };
    let unmarked = Actions { unmarked: UnmarkedCalls::Refuse, ..actions() };
    let spec = AgentSpec { actions: Some(unmarked), ..AgentSpec::new("") };
    let heard = heard_by(spec, &stream(&deltas(&call, 7)));
    assert_eq!(refused(&heard), Some(CallError::Unmarked));
    let heard = streamed(&deltas(call.trim_end_matches('}'), 7));
    assert_eq!(refused(&heard), Some(CallError::Unfinished));
    // A reply of data is data.
    let constraint = Some(Constraint::json_schema_value(&json!({"type": "object"})));
    let spec = AgentSpec { actions: Some(actions()), constraint, ..AgentSpec::new("") };
    assert_eq!(heard_by(spec, &stream(&deltas(&call, 7))).text, call);
}
