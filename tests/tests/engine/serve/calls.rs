//! Calls of tools and their results on the wire.

use super::*;

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {
        "name": name, "description": "Hands an item over the counter.", "parameters": parameters,
    }})
}

fn give() -> Value {
    let item = json!({"type": "string", "enum": ["nails", "horseshoe"]});
    tool("give", json!({"type": "object", "properties": {"item": item}, "required": ["item"]}))
}

/// A request with this conversation.
fn body(messages: Value) -> Value {
    json!({"messages": messages, "tools": [give()], "temperature": 0, "max_tokens": 60})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// A message with calls of `give`: ids and arguments.
fn called(calls: &[(&str, Value)]) -> Value {
    let call = |(id, arguments): &(&str, Value)| json!({"id": id, "type": "function", "function": {"name": "give", "arguments": arguments}});
    let calls: Vec<_> = calls.iter().map(call).collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

fn nails() -> Value {
    r#"{"item": "nails"}"#.into()
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

fn message(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]
}

#[tokio::test]
async fn results_in_any_order_give_the_same_reply() {
    let (_local, port) = server(ServeOptions::default()).await;
    let horseshoe: Value = r#"{"item": "horseshoe"}"#.into();
    let calls = called(&[("a", horseshoe), ("b", nails())]);
    let results = [result("a", "3 silver"), result("b", "1 copper")];
    let mut answers = Vec::new();
    for [first, second] in [[0, 1], [1, 0]] {
        let (first, second) = (&results[first], &results[second]);
        let mut body = body(json!([user("What is the price?"), calls, first, second]));
        body["logprobs"] = true.into();
        body["tool_choice"] = "none".into();
        let (status, answer) = complete(port, &body).await;
        assert_eq!(status, 200, "{answer}");
        let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
        let tokens: Vec<_> = tokens.iter().map(|token| token["logprob"].clone()).collect();
        // Equal to the last digit, because the prompts are.
        answers.push((message(&answer).clone(), tokens, answer["usage"]["prompt_tokens"].clone()));
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn calls_without_results_and_results_without_calls_are_named() {
    let (_local, port) = server(ServeOptions::default()).await;
    let two = || called(&[("a", nails()), ("b", nails())]);
    let (a, b) = (|| result("a", "sold"), || result("b", "sold"));
    let without_id = || json!({"role": "tool", "content": "sold"});
    for (messages, param, named) in [
        // Without a result: at the end, and before each other message.
        (json!([user("Hi"), two(), a()]), "messages", "\"b\""),
        (json!([user("Hi"), two()]), "messages", "\"a\""),
        (json!([user("Hi"), two(), b(), user("And?")]), "messages[3]", "\"a\""),
        (json!([user("Hi"), two(), two()]), "messages[2]", "\"a\""),
        // Unknown or repeated.
        (json!([user("Hi"), two(), a(), result("c", "x")]), "messages[3].tool_call_id", "\"c\""),
        (json!([user("Hi"), result("a", "x")]), "messages[1].tool_call_id", "\"a\""),
        (json!([user("Hi"), two(), a(), a()]), "messages[3].tool_call_id", "\"a\""),
        (
            json!([user("Hi"), two(), a(), b(), user("So"), a()]),
            "messages[5].tool_call_id",
            "\"a\"",
        ),
        // Of two calls.
        (json!([user("Hi"), two(), without_id()]), "messages[2].tool_call_id", "2 calls"),
        (
            json!([user("Hi"), called(&[("a", nails()), ("a", nails())]), a()]),
            "messages[1].tool_calls[1].id",
            "\"a\"",
        ),
    ] {
        let (status, answer) = complete(port, &body(messages.clone())).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(param)),
            "{messages} {answer}"
        );
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains(named), "{named}: {text}");
    }
    // The only call without a result.
    for messages in [
        json!([user("Hi"), called(&[("a", nails())]), without_id()]),
        json!([user("Hi"), two(), b(), without_id(), user("Thanks")]),
        json!([
            user("Hi"),
            {"role": "assistant", "function_call": {"name": "give", "arguments": "{}"}},
            {"role": "function", "name": "give", "content": "sold"},
        ]),
    ] {
        let (status, answer) = complete(port, &body(messages)).await;
        assert_eq!(status, 200, "{answer}");
    }
}

/// Older servers began to count again in each reply.
#[tokio::test]
async fn ids_of_an_earlier_reply_belong_to_the_latest_one() {
    let (_local, port) = server(ServeOptions::default()).await;
    let round = |item: &str, text: &str| {
        let arguments = json!({"item": item}).to_string();
        [called(&[("call00000", arguments.into())]), result("call00000", text)]
    };
    let ([a, b], [c, d]) = (round("nails", "1 copper"), round("horseshoe", "3 silver"));
    let mut body = body(json!([user("What is the price?"), a, b, c, d]));
    body["tool_choice"] = "none".into();
    let (status, repeated) = complete(port, &body).await;
    assert_eq!(status, 200, "{repeated}");
    for at in [3, 4] {
        let text = body["messages"][at].to_string().replace("call00000", "call_x");
        body["messages"][at] = serde_json::from_str(&text).unwrap();
    }
    let (_, distinct) = complete(port, &body).await;
    assert_eq!(message(&repeated), message(&distinct));
    assert_eq!(repeated["usage"]["prompt_tokens"], distinct["usage"]["prompt_tokens"]);
}

#[tokio::test]
async fn ids_of_calls_do_not_repeat() {
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (_local, port) = server(ServeOptions::default()).await;
        let mut body = body(json!([user("A horseshoe, please.")]));
        body["tool_choice"] = "required".into();
        for _ in 0..2 {
            let (_, answer) = complete(port, &body).await;
            let id = message(&answer)["tool_calls"][0]["id"].as_str().unwrap().to_owned();
            assert!(id.starts_with("call_") && id.len() <= 40, "{id}");
            ids.push(id);
        }
        let events = stream(port, &body).await;
        let id = |event: &Value| {
            event["choices"][0]["delta"]["tool_calls"][0]["id"].as_str().map(str::to_owned)
        };
        ids.extend(events.iter().find_map(id));
    }
    assert_eq!(ids.len(), 6);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6, "{ids:?}");
}

#[tokio::test]
async fn a_required_call_follows_a_result() {
    let (_local, port) = server(ServeOptions::default()).await;
    let messages = json!([user("Nails, please."), called(&[("a", nails())]), result("a", "sold")]);
    let named = json!({"type": "function", "function": {"name": "price"}});
    for (choice, name) in [(json!("required"), None), (named, Some("price"))] {
        let mut body = body(messages.clone());
        let amount = json!({"type": "object", "properties": {"amount": {"enum": [1, 3]}}});
        body["tools"] = json!([give(), tool("price", amount)]);
        body["tool_choice"] = choice;
        let (status, answer) = complete(port, &body).await;
        assert_eq!(status, 200, "{answer}");
        let calls = message(&answer)["tool_calls"].as_array();
        let calls = calls.unwrap_or_else(|| panic!("no call: {answer}"));
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
        if let Some(name) = name {
            assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!(name)));
        }
    }
}

#[tokio::test]
async fn a_required_call_that_is_impossible_is_refused() {
    let (_local, port) = server(ServeOptions::default()).await;
    let named = json!({"type": "function", "function": {"name": "give"}});
    for choice in [json!("required"), named] {
        let mut body = body(json!([user("Nails, please.")]));
        body["tool_choice"] = choice;
        let mut constrained = body.clone();
        constrained["response_format"] = json!({"type": "json_object"});
        body["tools"] = json!([]);
        for body in [constrained, body] {
            let (status, answer) = complete(port, &body).await;
            assert_eq!(status, 400, "{body} {answer}");
            assert_eq!(answer["error"]["param"], "tool_choice");
        }
    }
}

#[tokio::test]
async fn without_parallel_calls_a_reply_ends_with_its_first_call() {
    let (_local, port) = server(ServeOptions::default()).await;
    let mut body = body(json!([user("A horseshoe and nails, please.")]));
    body["tool_choice"] = "required".into();
    // It cannot end its turn.
    body["logit_bias"] = json!({"2": -100});
    let (_, parallel) = complete(port, &body).await;
    assert_eq!(parallel["choices"][0]["finish_reason"], "length", "{parallel}");
    body["parallel_tool_calls"] = false.into();
    let (_, answer) = complete(port, &body).await;
    assert_eq!(message(&answer)["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(message(&answer)["content"], Value::Null);
}

#[tokio::test]
async fn the_limit_of_tokens_includes_calls() {
    let (_local, port) = server(ServeOptions::default()).await;
    for (choice, limit) in [("required", "max_tokens"), ("auto", "max_completion_tokens")] {
        let mut body = body(json!([user("Please give me a horseshoe and nails.")]));
        body.as_object_mut().unwrap().remove("max_tokens");
        body[limit] = 12.into();
        body["tool_choice"] = choice.into();
        body["stream_options"] = json!({"include_usage": true});
        let (_, answer) = complete(port, &body).await;
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
        assert!((8..=12).contains(&tokens), "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        // The beginning of the call, which was cut.
        assert!(message(&answer)["tool_calls"].is_null());
        let text = message(&answer)["content"].as_str().unwrap();
        assert!(text.contains("give"), "{text}");
        let events = stream(port, &body).await;
        let texts = events.iter().filter_map(|it| it["choices"][0]["delta"]["content"].as_str());
        assert_eq!(texts.collect::<String>(), text);
        assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], tokens);
    }
}

#[tokio::test]
async fn empty_and_damaged_arguments_do_not_lock_a_conversation() {
    let (_local, port) = server(ServeOptions::default()).await;
    let mut replies = Vec::new();
    for arguments in [
        json!("{}"),
        json!(""),
        json!(" \n"),
        json!("null"),
        Value::Null,
        json!({}),
        json!("{\"item\": \"nai"),
        json!("[1, 2]"),
        json!([1, 2]),
        json!("nails"),
    ] {
        let mut calls = called(&[("a", arguments), ("b", nails())]);
        calls["content"] = "Here.".into();
        let messages = json!([
            user("Nails, please."),
            calls,
            result("a", "failed"),
            result("b", "sold"),
            user("Thanks"),
        ]);
        let (status, answer) = complete(port, &body(messages)).await;
        assert_eq!(status, 200, "{answer}");
        replies.push((answer["usage"]["prompt_tokens"].clone(), message(&answer).clone()));
    }
    // Empty ones are the same as no arguments; the text of damaged ones is in the prompt.
    assert!(replies[..6].iter().all(|reply| *reply == replies[0]), "{replies:?}");
    assert_ne!(replies[6].0, replies[0].0);
    // The result of a damaged call may be absent.
    let cut = called(&[("a", "{\"item\": ".into())]);
    let (status, answer) = complete(port, &body(json!([user("Hi"), cut, user("So?")]))).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn tools_without_parameters_and_with_any_name_of_the_protocol_are_called() {
    let (_local, port) = server(ServeOptions::default()).await;
    for (name, parameters) in [
        ("2nd_door", json!({})),
        ("7", Value::Null),
        ("-wave-", json!({"type": "object"})),
        ("open", json!({"type": "object", "properties": {}})),
    ] {
        let mut body = body(json!([user("Open the door.")]));
        body["tools"] = json!([tool(name, parameters)]);
        body["tool_choice"] = "required".into();
        let (status, answer) = complete(port, &body).await;
        assert_eq!(status, 200, "{answer}");
        let call = message(&answer)["tool_calls"][0].clone();
        assert_eq!(call["function"], json!({"name": name, "arguments": "{}"}));
        // The call and its result in the next request.
        let id = call["id"].as_str().unwrap();
        body["messages"] =
            json!([user("Open the door."), message(&answer), result(id, "It is open.")]);
        body["tool_choice"] = "auto".into();
        let (status, answer) = complete(port, &body).await;
        assert_eq!(status, 200, "{answer}");
    }
}

#[tokio::test]
async fn a_bad_tool_is_named_and_does_not_matter_if_another_one_is_chosen() {
    let (_local, port) = server(ServeOptions::default()).await;
    let bad = tool("search", json!({"type": "object", "patternProperties": {"a": {}}}));
    let mut body = body(json!([user("A horseshoe, please.")]));
    body["tools"] = json!([give(), bad]);
    let (status, answer) = complete(port, &body).await;
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("tools[1].function")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("search"), "{answer}");
    body["tool_choice"] = json!({"type": "function", "function": {"name": "give"}});
    let (status, answer) = complete(port, &body).await;
    assert_eq!(status, 200, "{answer}");
}
