//! Settings, constraints, actions and reasoning on the wire.

use std::sync::Arc;

use serde_json::{Value, json};
use walla_remote::{Dialect, PriorityField};
use walla_runtime::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentSpec, AskOptions, Call, Command, Constraint,
    ConstraintKind, EngineClient, FinishReason, Prompt, ReplyError, ReplyEvent, Speaker, Turn,
    Unsupported,
};
use walla_types::{LogitBias, Sampling, TokenId};

use crate::client::{add, ask, ask_with, client, hear, options, recording};
use crate::server::{Part, STREAM, bytes, done, event, finish, reply, text};

/// The body of the request of an ask.
fn body(dialect: Dialect, spec: AgentSpec, ask: AskOptions) -> Value {
    let (server, requests) = recording(|_| reply("Yes."));
    let mut options = options(&server);
    options.dialect = dialect;
    let client = client(options);
    let agent = add(&client, spec);
    let reply_id = ask_with(&client, agent, Prompt::Chat("?".into()), ask);
    let heard = hear(&client, reply_id);
    assert_eq!(heard.text, "Yes.", "{heard:?}");
    requests.lock().unwrap()[0].body.clone()
}

fn end_of(dialect: Dialect, spec: AgentSpec, prompt: Prompt, ask: AskOptions) -> ReplyEvent {
    let (server, requests) = recording(|_| reply("Yes."));
    let mut options = options(&server);
    options.dialect = dialect;
    let client = client(options);
    let agent = add(&client, spec);
    let end = hear(&client, ask_with(&client, agent, prompt, ask)).end.unwrap();
    assert!(requests.lock().unwrap().is_empty() || matches!(end, ReplyEvent::Finished { .. }));
    end
}

fn sampling() -> Sampling {
    let builder =
        Sampling::builder().temperature(0.7).top_k(40).top_p(0.9).min_p(0.05).seed(u64::MAX);
    builder.repetition_penalty(1.1).presence_penalty(0.5).build().unwrap()
}

#[test]
fn settings_have_the_names_of_each_server() {
    let spec = || AgentSpec {
        sampling: sampling(),
        max_reply_tokens: 33,
        max_reasoning_tokens: 100,
        priority: 3,
        stop_strings: ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec(),
        ..AgentSpec::new("You are Greta.")
    };
    let of = |dialect| body(dialect, spec(), AskOptions::default());
    let open_ai = of(Dialect::OpenAi);
    for (name, value) in [
        ("model", json!("m")),
        ("stream", json!(true)),
        ("stream_options", json!({"include_usage": true})),
        ("temperature", json!(0.7)),
        ("top_p", json!(0.9)),
        ("seed", json!(i64::MAX)),
        ("max_completion_tokens", json!(33)),
        ("presence_penalty", json!(0.5)),
        ("stop", json!(["a", "b", "c", "d"])),
    ] {
        assert_eq!(open_ai[name], value, "{name}");
    }
    for name in [
        "top_k",
        "min_p",
        "frequency_penalty",
        "priority",
        "logprobs",
        "tools",
        "chat_template_kwargs",
    ] {
        assert_eq!(open_ai[name], Value::Null, "{name}");
    }
    assert!(open_ai["prompt_cache_key"].as_str().unwrap().starts_with("walla-"));
    let vllm = of(Dialect::Vllm);
    assert_eq!((&vllm["priority"], &vllm["max_tokens"]), (&json!(-3), &json!(33)));
    assert_eq!((&vllm["top_k"], &vllm["min_p"]), (&json!(40), &json!(0.05)));
    assert_eq!(vllm["repetition_penalty"], json!(1.1));
    assert_eq!(vllm["stop"].as_array().unwrap().len(), 5);
    assert_eq!(vllm["chat_template_kwargs"], json!({"enable_thinking": false}));
    assert_eq!(of(Dialect::Dynamo)["nvext"], json!({"agent_hints": {"priority": 3}}));
    assert_eq!(of(Dialect::Sglang)["priority"], json!(3));
    let llama = of(Dialect::LlamaServer);
    assert_eq!((&llama["repeat_penalty"], &llama["cache_prompt"]), (&json!(1.1), &json!(true)));
    let thinking = AgentSpec { thinking: true, ..spec() };
    let thinking = body(Dialect::Walla, thinking, AskOptions::default());
    assert_eq!(thinking["max_tokens"], json!(133));
    assert_eq!(thinking["chat_template_kwargs"], json!({"enable_thinking": true}));
}

#[test]
fn priorities_and_further_members_are_configurable() {
    let (server, requests) = recording(|_| reply("Yes."));
    let mut options = options(&server);
    options.priority = Some(PriorityField::higher_first("/a/b"));
    options.extra.insert("temperature".into(), json!(0.25));
    options.extra.insert("cache_salt".into(), json!("save 7"));
    options.headers.push(("x-game".into(), "emberfall".into()));
    let client = client(options);
    let agent = add(&client, AgentSpec { priority: -2, ..AgentSpec::new("") });
    hear(&client, ask(&client, agent, "?"));
    let request = requests.lock().unwrap()[0].clone();
    assert_eq!(request.body["a"]["b"], json!(-2));
    assert_eq!(
        (&request.body["temperature"], &request.body["cache_salt"]),
        (&json!(0.25), &json!("save 7"))
    );
    assert_eq!(request.header("x-game"), Some("emberfall"));
}

#[test]
fn constraints_are_mapped_or_refused() {
    let schema = Constraint::json_schema(r#"{"type": "object"}"#);
    let of = |dialect, constraint: &Constraint| {
        body(dialect, AgentSpec::new(""), AskOptions::constraint(constraint.clone()))
    };
    let expected = json!({
        "type": "json_schema",
        "json_schema": {"name": "reply", "strict": true, "schema": {"type": "object"}},
    });
    for dialect in Dialect::ALL {
        assert_eq!(of(dialect, &schema)["response_format"], expected, "{dialect:?}");
    }
    let regex = Constraint::regex("[0-9]+");
    assert_eq!(of(Dialect::Vllm, &regex)["structured_outputs"], json!({"regex": "[0-9]+"}));
    assert_eq!(of(Dialect::Sglang, &regex)["regex"], json!("[0-9]+"));
    let choice = Constraint::choice(["a \"b\"", "c+d"]);
    assert_eq!(
        of(Dialect::Walla, &choice)["structured_outputs"],
        json!({"choice": ["a \"b\"", "c+d"]})
    );
    assert_eq!(of(Dialect::Sglang, &choice)["regex"], json!(r#"(a \"b\"|c\+d)"#));
    assert_eq!(
        of(Dialect::LlamaServer, &choice)["grammar"],
        json!(r#"root ::= "a \"b\"" | "c+d""#)
    );
    let lark = Constraint::lark("start: \"a\"");
    assert_eq!(of(Dialect::Vllm, &lark)["structured_outputs"], json!({"grammar": "start: \"a\""}));
    for (dialect, constraint, kind) in [
        (Dialect::OpenAi, &regex, ConstraintKind::Regex),
        (Dialect::OpenAi, &choice, ConstraintKind::Choice),
        (Dialect::LlamaServer, &regex, ConstraintKind::Regex),
        (Dialect::Sglang, &lark, ConstraintKind::Lark),
    ] {
        let spec = AgentSpec { constraint: Some(constraint.clone()), ..AgentSpec::new("") };
        let end = end_of(dialect, spec, Prompt::Continue, AskOptions::default());
        let unsupported = ReplyError::Unsupported(Unsupported::Constraint(kind));
        assert_eq!(end, ReplyEvent::Failed(unsupported), "{dialect:?}");
    }
    let bad = AskOptions::constraint(Constraint::json_schema("{"));
    let end = end_of(Dialect::Vllm, AgentSpec::new(""), Prompt::Continue, bad);
    assert!(matches!(end, ReplyEvent::Failed(ReplyError::Constraint(_))), "{end:?}");
}

#[test]
fn what_a_server_cannot_do_fails_the_ask() {
    let unsupported = |spec: AgentSpec, prompt: Prompt| match end_of(
        Dialect::OpenAi,
        spec,
        prompt,
        AskOptions::default(),
    ) {
        ReplyEvent::Failed(ReplyError::Unsupported(what)) => what,
        other => panic!("{other:?}"),
    };
    let plain = || AgentSpec::new("");
    let sampling = |builder: walla_types::SamplingBuilder| {
        let sampling = builder.build().unwrap();
        AgentSpec { sampling, ..plain() }
    };
    let chat = || Prompt::Chat("?".into());
    assert_eq!(unsupported(plain(), Prompt::Raw("x".into())), Unsupported::RawPrompts);
    assert_eq!(unsupported(plain(), Prompt::RawTrusted("x".into())), Unsupported::RawPrompts);
    assert_eq!(unsupported(plain(), Prompt::Tokens(vec![TokenId(1)])), Unsupported::TokenPrompts);
    let LogitBias { token, bias } = LogitBias { token: TokenId(1), bias: 1.0 };
    let biased = sampling(Sampling::builder().bias(token, bias));
    assert_eq!(unsupported(biased, chat()), Unsupported::Biases);
    let stops = AgentSpec { stop_tokens: vec![TokenId(1)], ..plain() };
    assert_eq!(unsupported(stops, chat()), Unsupported::StopTokens);
    let candidates = sampling(Sampling::builder().candidates(2));
    assert_eq!(unsupported(candidates, chat()), Unsupported::LogProbabilities);
}

#[test]
fn log_probabilities_have_token_ids() {
    let tokens = json!([
        {"token": "token_id:7", "logprob": -0.5, "top_logprobs": [
            {"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:9", "logprob": -1.5}]},
        {"token": "Well", "id": 8, "logprob": -0.25, "top_logprobs": []},
        {"token": "without an id", "logprob": -0.25},
    ]);
    let choice = json!({"index": 0, "delta": {"content": "Well"}, "logprobs": {"content": tokens}});
    let stream = format!("{STREAM}{}{}{}", event(&choice), finish("length"), done(1, 2));
    let (server, requests) = recording(move |_| vec![bytes(stream.clone()), Part::Close]);
    let mut options = options(&server);
    options.dialect = Dialect::Vllm;
    let client = client(options);
    let sampling = Sampling::builder().candidates(2).build().unwrap();
    let agent = add(&client, AgentSpec { sampling, ..AgentSpec::new("") });
    let heard = hear(&client, ask(&client, agent, "?"));
    let drawn = heard.others.iter().filter_map(|event| match event {
        ReplyEvent::Token(token) => {
            Some((token.token.0, token.log_probability, token.candidates.len()))
        }
        _ => None,
    });
    assert_eq!(drawn.collect::<Vec<_>>(), [(7, -0.5, 2), (8, -0.25, 0)]);
    assert!(matches!(heard.end, Some(ReplyEvent::Finished { reason: FinishReason::Length, .. })));
    let body = &requests.lock().unwrap()[0].body;
    assert_eq!((&body["logprobs"], &body["top_logprobs"]), (&json!(true), &json!(2)));
    assert_eq!(body["return_tokens_as_token_ids"], json!(true));
}

#[test]
fn stop_strings_are_named_if_the_server_names_them() {
    let stopped = |choice: Value| {
        let stream = format!("{STREAM}{}{}{}", text("Well"), event(&choice), done(1, 2));
        let (server, _) = recording(move |_| vec![bytes(stream.clone()), Part::Close]);
        let client = client(options(&server));
        let stop_strings = vec!["\n".to_owned(), "END".to_owned()];
        let agent = add(&client, AgentSpec { stop_strings, ..AgentSpec::new("") });
        match hear(&client, ask(&client, agent, "?")).end {
            Some(ReplyEvent::Finished { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let choice = |stop: Value| json!({"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": stop});
    assert_eq!(stopped(choice(json!("END"))), FinishReason::Stop { index: 1 });
    assert_eq!(stopped(choice(json!(128_009))), FinishReason::EndOfTurn);
    assert_eq!(stopped(choice(Value::Null)), FinishReason::EndOfTurn);
}

#[test]
fn reasoning_is_separate_in_every_spelling() {
    let spoken = |deltas: &[Value]| {
        let events: String =
            deltas.iter().map(|delta| event(&json!({"index": 0, "delta": delta}))).collect();
        let stream = format!("{STREAM}{events}{}data: [DONE]\n\n", finish("stop"));
        let (server, _) = recording(move |_| vec![bytes(stream.clone()), Part::Close]);
        let client = client(options(&server));
        let agent = add(&client, AgentSpec::new(""));
        let heard = hear(&client, ask(&client, agent, "?"));
        let Some(ReplyEvent::Finished { usage, .. }) = heard.end else { panic!("{heard:?}") };
        (heard.reasoning, heard.text, usage.reasoning_tokens > 0)
    };
    let expected = ("I think.".to_owned(), "Yes. <think>No.".to_owned(), true);
    let of = |name: &str| {
        spoken(&[
            json!({"role": "assistant", "content": null}),
            json!({name: "I "}),
            json!({name: "think."}),
            json!({"content": "Yes. <think>"}),
            json!({"content": "No."}),
        ])
    };
    assert_eq!(of("reasoning_content"), expected);
    assert_eq!(of("reasoning"), expected);
    let inline = "\n<think>I think.</think>\n\nYes. <think>No.";
    for size in 1..inline.len() {
        let pieces = inline.as_bytes().chunks(size);
        let deltas: Vec<_> =
            pieces.map(|piece| json!({"content": std::str::from_utf8(piece).unwrap()})).collect();
        let (reasoning, text, reasoned) = spoken(&deltas);
        assert_eq!(
            (&*reasoning, &*text, reasoned),
            ("I think.", "Yes. <think>No.", true),
            "{size}"
        );
    }
    assert_eq!(spoken(&[json!({"content": "<think"})]), (String::new(), "<think".into(), false));
    assert_eq!(spoken(&[json!({"content": "<think>abc"})]).0, "abc");
}

pub fn actions() -> Actions {
    let schema = json!({
        "type": "object",
        "properties": {"item": {"enum": ["nails", "sword"]}, "count": {"type": "integer"}},
        "required": ["item", "count"],
        "additionalProperties": false,
    });
    let give = ActionSpec::new("give", "Hands an item over.", &schema).unwrap();
    Actions::new(ActionSet::new([give]).unwrap())
}

fn call_delta(index: u32, name: &str, arguments: &str) -> Value {
    let function = if name.is_empty() {
        json!({"arguments": arguments})
    } else {
        json!({"name": name, "arguments": arguments})
    };
    json!({"index": 0, "delta": {"tool_calls": [{"index": index, "id": "x", "function": function}]}})
}

#[test]
fn calls_are_checked_delivered_and_answered() {
    let (server, requests) = recording(|request| {
        if request.body["messages"].as_array().unwrap().len() > 2 {
            return reply("Here you are.");
        }
        let mut stream = format!("{STREAM}{}", text("Sure. "));
        for delta in [
            call_delta(0, "give", ""),
            call_delta(0, "", "{\"item\": \"na"),
            call_delta(0, "", "ils\", \"count\": \"2\"}"),
            call_delta(1, "give", "{\"item\": \"horse\", \"count\": 1}"),
            call_delta(2, "attack", "{}"),
            call_delta(3, "give", "{\"item\":"),
        ] {
            stream.push_str(&event(&delta));
        }
        stream.push_str(&finish("tool_calls"));
        stream.push_str(&done(1, 2));
        vec![bytes(stream), Part::Close]
    });
    let client = client(options(&server));
    let spec =
        AgentSpec { actions: Some(Actions { max_calls: 9, ..actions() }), ..AgentSpec::new("") };
    let greta = add(&client, spec);
    let heard = hear(&client, ask(&client, greta, "Two nails!"));
    assert_eq!(heard.text, "Sure. ");
    let calls: Vec<&Call> = heard
        .others
        .iter()
        .filter_map(|event| match event {
            ReplyEvent::Call(call) => Some(&**call),
            _ => None,
        })
        .collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].text(), r#"{"name": "give", "arguments": {"item": "nails", "count": 2}}"#);
    let refused: Vec<String> = heard
        .others
        .iter()
        .filter_map(|event| match event {
            ReplyEvent::CallRefused(refused) => Some(refused.call.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(refused.len(), 3);
    assert!(refused[0].contains("item") && refused[1].contains("attack"), "{refused:?}");
    assert!(refused[2].contains("not JSON"), "{refused:?}");
    let turns = vec![Turn::new(Speaker::ActionResult, "Sold.")];
    client.try_send(Command::AppendTurns { agent: greta, turns }).unwrap();
    let reply_id = ask_with(&client, greta, Prompt::Continue, AskOptions::default());
    assert_eq!(hear(&client, reply_id).text, "Here you are.");
    let requests = requests.lock().unwrap();
    let tools = requests[0].body["tools"].as_array().unwrap();
    assert_eq!(
        (&tools[0]["type"], &tools[0]["function"]["name"]),
        (&json!("function"), &json!("give"))
    );
    assert_eq!(requests[0].body["tool_choice"], json!("auto"));
    let messages = requests[1].body["messages"].as_array().unwrap();
    let call = &messages[1]["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], json!(r#"{"item":"nails","count":2}"#));
    assert_eq!(
        messages[2],
        json!({"role": "tool", "content": "Sold.", "tool_call_id": call["id"]})
    );
}

/// A server has no grammar but its tools.
#[test]
fn a_server_gets_unlisted_choices() {
    let give = actions().set.actions()[0].with_unlisted_choices("item", ["axe"]).unwrap();
    assert!(!give.listed().parameters().to_string().contains("axe"));
    let actions = Some(Actions::new(ActionSet::new([give]).unwrap()));
    let spec = AgentSpec { actions, ..AgentSpec::new("") };
    let body = body(Dialect::OpenAi, spec, AskOptions::default());
    let parameters = &body["tools"][0]["function"]["parameters"];
    assert_eq!(parameters["properties"]["item"]["enum"], json!(["axe"]));
}

/// Fragments of calls may alternate, and some servers count calls by id only.
#[test]
fn fragments_belong_to_their_calls() {
    let delta = |index: Value, id: &str, name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"index": index, "id": id, "function": function});
        event(&json!({"index": 0, "delta": {"tool_calls": [call]}}))
    };
    let (nails, sword) =
        ("{\"item\": \"nails\", \"count\": 2}", "{\"item\": \"sword\", \"count\": 1}");
    let streams: Vec<Vec<String>> = vec![
        vec![
            delta(json!(0), "a", "give", ""),
            delta(json!(1), "b", "give", &sword[..9]),
            delta(json!(0), "", "", &nails[..12]),
            delta(json!(1), "", "", &sword[9..]),
            delta(json!(0), "", "", &nails[12..]),
        ],
        vec![
            delta(json!(0), "a", "give", nails),
            delta(json!(0), "b", "give", &sword[..9]),
            delta(json!(0), "b", "give", &sword[9..]),
        ],
        vec![
            delta(Value::Null, "a", "give", nails),
            delta(Value::Null, "", "give", &sword[..9]),
            delta(Value::Null, "", "", &sword[9..]),
        ],
        // A new id for each fragment.
        vec![
            delta(json!(0), "a", "give", &nails[..9]),
            delta(json!(0), "b", "", &nails[9..]),
            delta(json!(1.0), "c", "give", sword),
        ],
    ];
    for deltas in streams {
        let stream = STREAM.to_owned() + &deltas.concat() + &finish("tool_calls") + &done(1, 2);
        let (server, _) = recording(move |_| vec![bytes(&*stream), Part::Close]);
        let client = client(options(&server));
        let spec = AgentSpec { actions: Some(actions()), ..AgentSpec::new("") };
        let heard = hear(&client, ask(&client, add(&client, spec), "?"));
        let items: Vec<Value> = heard
            .others
            .iter()
            .filter_map(|event| match event {
                ReplyEvent::Call(call) => Some(call.arguments["item"].clone()),
                ReplyEvent::CallRefused(refused) => panic!("{refused:?} of {deltas:?}"),
                _ => None,
            })
            .collect();
        assert_eq!(items, [json!("nails"), json!("sword")], "{deltas:?}");
    }
}

/// A server cannot open calls without end.
#[test]
fn open_calls_are_bounded() {
    let mut stream = STREAM.to_owned();
    for index in 0..500 {
        stream.push_str(&event(&call_delta(index, "give", "{")));
    }
    stream.push_str(&finish("tool_calls"));
    stream.push_str(&done(1, 2));
    let (server, _) = recording(move |_| vec![bytes(&*stream), Part::Close]);
    let client = client(options(&server));
    let actions = Actions { max_calls: 100, ..actions() };
    let agent = add(&client, AgentSpec { actions: Some(actions), ..AgentSpec::new("") });
    let heard = hear(&client, ask(&client, agent, "?"));
    let refused = heard.others.iter().filter(|event| matches!(event, ReplyEvent::CallRefused(_)));
    assert_eq!(refused.count(), 100);
    assert!(
        matches!(heard.end, Some(ReplyEvent::Finished { reason: FinishReason::CallLimit, .. })),
        "{heard:?}"
    );
}

#[test]
fn calls_are_limited() {
    let stream: Arc<str> = {
        let mut stream = STREAM.to_owned();
        for index in 0..3 {
            let arguments = "{\"item\": \"nails\", \"count\": 1}";
            stream.push_str(&event(&call_delta(index, "give", arguments)));
        }
        stream.push_str(&finish("tool_calls"));
        stream.push_str(&done(1, 2));
        stream.into()
    };
    let of = |actions: Actions| {
        let stream = Arc::clone(&stream);
        let (server, _) = recording(move |_| vec![bytes(&*stream), Part::Close]);
        let client = client(options(&server));
        let agent = add(&client, AgentSpec { actions: Some(actions), ..AgentSpec::new("") });
        let heard = hear(&client, ask(&client, agent, "?"));
        let Some(ReplyEvent::Finished { reason, .. }) = heard.end else { panic!("{heard:?}") };
        let calls =
            heard.others.iter().filter(|event| matches!(event, ReplyEvent::Call(_))).count();
        let refused =
            heard.others.iter().filter(|event| matches!(event, ReplyEvent::CallRefused(_)));
        (reason, calls, refused.count())
    };
    assert_eq!(of(actions()), (FinishReason::EndOfTurn, 3, 0));
    let two = Actions { max_calls: 2, ..actions() };
    assert_eq!(of(two), (FinishReason::CallLimit, 2, 0));
    let short = Actions { max_call_bytes: 20, ..actions() };
    assert_eq!(of(short), (FinishReason::EndOfTurn, 0, 3));
    let off = Actions { policy: ActionPolicy::Off, ..actions() };
    assert_eq!(of(off), (FinishReason::EndOfTurn, 0, 3));
}
