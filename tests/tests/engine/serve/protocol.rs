//! The words of the protocol: errors, models, keys, members, origins of web pages, vectors.

use walla::{Embedder, EmbedderOptions, LongTexts, Purpose};

use super::*;

/// The answer to a request with these lines in its head.
async fn with_head(port: u16, method: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    let text = format!(
        "{method} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}content-length: {length}\r\n\r\n{body}"
    );
    answer(send(port, &text).await).await.to_lowercase()
}

#[tokio::test]
async fn errors_have_the_form_of_the_protocol() {
    let mut options = ServeOptions::default();
    options.max_request_bytes = 10_000;
    let (_local, port) = server(options).await;
    let completions = "POST /v1/chat/completions";
    let large = json!({"messages": [{"role": "user", "content": "a".repeat(20_000)}]}).to_string();
    for (head, body, status, param) in [
        (completions, "{", 400, None),
        (completions, "", 400, None),
        (completions, "[]", 400, None),
        (completions, r#"{"messages": "Hi"}"#, 400, Some("messages")),
        (completions, r#"{"messages": [{"content": "Hi"}]}"#, 400, Some("messages[0]")),
        (
            completions,
            r#"{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": "x"}"#,
            400,
            Some("max_tokens"),
        ),
        (
            completions,
            r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "king"}]}"#,
            400,
            Some("messages[1].role"),
        ),
        (completions, &large, 413, None),
        ("GET /v1/chat/completions", "", 405, None),
        ("DELETE /v1/models", "", 405, None),
        ("POST /v1/embeddings", r#"{"input": "Hi"}"#, 404, Some("model")),
        ("GET /v1/models/other", "", 404, Some("model")),
        ("GET /v1/nothing", "", 404, None),
        ("POST /", "", 404, None),
    ] {
        let (found, answer) = request(port, head, body).await;
        assert_eq!(found, status, "{head} {answer}");
        let error: Value = serde_json::from_str(&answer).unwrap_or_default();
        let error = error["error"].as_object().unwrap_or_else(|| panic!("{head}: {answer}"));
        let members: Vec<_> = error.keys().collect();
        assert_eq!(members.len(), 4, "{members:?}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
        assert_eq!(error["type"], "invalid_request_error", "{answer}");
        assert_eq!(error["param"].as_str(), param, "{answer}");
        assert!(error["code"].is_null() || error["code"].is_string(), "{answer}");
    }
}

#[tokio::test]
async fn models_have_a_time_and_are_found_by_name() {
    let mut options = ServeOptions::default();
    options.model = "org/greta".into();
    let (_local, port) = server(options).await;
    let get = |path: &'static str| async move {
        let (status, answer) = request(port, &format!("GET {path}"), "").await;
        (status, serde_json::from_str::<Value>(&answer).unwrap_or_default())
    };
    let (_, list) = get("/v1/models").await;
    let model = &list["data"][0];
    // Later than 2020, in seconds.
    assert!(model["created"].as_u64().is_some_and(|at| at > 1_577_836_800), "{list}");
    for path in ["/v1/models/org/greta", "/v1/models/org%2Fgreta"] {
        assert_eq!(&get(path).await, &(200, model.clone()));
    }
}

#[tokio::test]
async fn the_scheme_of_a_key_has_no_case() {
    let mut options = ServeOptions::default();
    options.key = Some("sk-Emberfall".into());
    let (_local, port) = server(options).await;
    for (given, status) in [
        ("authorization: Bearer sk-Emberfall\r\n", "200"),
        ("authorization: bearer sk-Emberfall\r\n", "200"),
        ("Authorization: BEARER  sk-Emberfall \r\n", "200"),
        ("authorization: bearer sk-emberfall\r\n", "401"),
        ("authorization: Basic sk-Emberfall\r\n", "401"),
        ("authorization: sk-Emberfall\r\n", "401"),
        ("", "401"),
    ] {
        let answer = with_head(port, "GET /v1/models", given, "").await;
        assert!(answer.starts_with(&format!("http/1.1 {status}")), "{given}: {answer}");
        assert_eq!(answer.contains("invalid_api_key"), status == "401");
    }
}

#[tokio::test]
async fn members_that_would_change_the_reply_are_refused() {
    let (_local, port) = server(ServeOptions::default()).await;
    for (name, value) in [
        ("functions", json!([{"name": "a"}])),
        ("function_call", json!({"name": "a"})),
        ("audio", json!({"voice": "a"})),
        ("modalities", json!(["text", "audio"])),
        ("grammar", json!("root ::= \"a\"")),
        ("guided_json", json!({})),
        ("guided_regex", json!("a")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("a")),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        let head = "POST /v1/chat/completions";
        for (value, status) in [(value, 400), (Value::Null, 200)] {
            body[name] = value;
            let (found, answer) = request(port, head, &body.to_string()).await;
            assert_eq!(found, status, "{name}: {answer}");
            assert!(status == 200 || answer.contains(&format!("\"param\":\"{name}\"")), "{answer}");
        }
    }
}

#[tokio::test]
async fn members_at_the_ends_of_their_ranges_are_taken() {
    let (_local, port) = server(ServeOptions::default()).await;
    let body = |more: Value| {
        let user = json!([{"role": "user", "content": "Tell me about the road."}]);
        let mut body = json!({"messages": user, "max_tokens": 12, "temperature": 1.5, "seed": 5});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (_, greedy) = complete(port, &body(json!({"temperature": 0}))).await;
    let (status, nucleus) = complete(port, &body(json!({"top_p": 0}))).await;
    assert_eq!(status, 200, "{nucleus}");
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    assert_eq!(text(&nucleus), text(&greedy));
    assert_ne!(text(&complete(port, &body(json!({}))).await.1), text(&greedy));
    for (top, listed) in [(json!(null), 0), (json!(0), 0), (json!(2), 2), (json!(20), 16)] {
        let (status, answer) =
            complete(port, &body(json!({"logprobs": true, "top_logprobs": top}))).await;
        assert_eq!(status, 200, "{answer}");
        let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert!(!tokens.is_empty());
        let counts = tokens.iter().map(|token| token["top_logprobs"].as_array().unwrap().len());
        assert!(counts.into_iter().all(|count| count == listed), "{top}: {answer}");
    }
    let (status, answer) =
        complete(port, &body(json!({"logprobs": true, "top_logprobs": 21}))).await;
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("top_logprobs")));
    // Without a question the agent speaks first.
    let first = json!([{"role": "system", "content": GRETA}]);
    let (status, answer) = complete(port, &body(json!({"messages": first}))).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn scripts_of_allowed_origins_may_ask() {
    let question = "origin: http://a.example\r\naccess-control-request-method: POST\r\n\
                    access-control-request-headers: authorization,content-type\r\n";
    for (allowed, is_allowed) in [
        (vec![], false),
        (vec!["http://b.example"], false),
        (vec!["http://a.example"], true),
        (vec!["*"], true),
    ] {
        let mut options = ServeOptions::default();
        options.key = Some("sk-emberfall".into());
        options.cors_origins = allowed.iter().map(|&origin| origin.to_owned()).collect();
        let (_local, port) = server(options).await;
        let asked = with_head(port, "OPTIONS /v1/chat/completions", question, "").await;
        assert_eq!(asked.starts_with("http/1.1 204"), is_allowed, "{asked}");
        let permission = "access-control-allow-headers: authorization,content-type";
        assert_eq!(asked.contains(permission), is_allowed, "{asked}");
        // Errors can be read too.
        for path in ["GET /v1/models", "GET /v1/nothing", "GET /health"] {
            let lines = "origin: http://a.example\r\n";
            let answer = with_head(port, path, lines, "").await;
            let origin = "access-control-allow-origin: http://a.example";
            assert_eq!(answer.contains(origin), is_allowed, "{answer}");
        }
        let elsewhere = with_head(port, "GET /health", "", "").await;
        assert!(!elsewhere.contains("access-control"), "{elsewhere}");
    }
}

/// A small embedding model.
pub(super) fn embedder() -> Embedder {
    let file = "../crates/walla_embed/tests/data/bert-mean-f32.gguf";
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let options = EmbedderOptions { long_texts: LongTexts::Refuse, ..EmbedderOptions::default() };
    Embedder::load(file, options).unwrap()
}

#[tokio::test]
async fn texts_become_vectors() {
    let embedder = embedder();
    let mut options = ServeOptions::default();
    options.embedder = Some(embedder.clone());
    options.embedding_model = "bert".into();
    let (_local, port) = server(options).await;
    let texts = ["The smith sells horseshoes.", "It rained all night."].map(str::to_owned);
    let expected = embedder.embed(texts.to_vec(), Purpose::Plain).await.unwrap();
    let post = |body: Value| async move {
        let (status, answer) = request(port, "POST /v1/embeddings", &body.to_string()).await;
        (status, serde_json::from_str::<Value>(&answer).unwrap())
    };
    let numbers = |value: &Value| -> Vec<f32> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    };
    let (status, list) = post(json!({"input": texts, "model": "bert"})).await;
    assert_eq!((status, &list["object"], &list["model"]), (200, &json!("list"), &json!("bert")));
    for (at, its) in expected.iter().enumerate() {
        let object = &list["data"][at];
        assert_eq!((&object["index"], &object["object"]), (&json!(at), &json!("embedding")));
        assert_eq!(numbers(&object["embedding"]), its.vector);
    }
    let tokens = expected[0].tokens + expected[1].tokens;
    assert_eq!(list["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
    // One text, and the first half of its vector.
    let half = embedder.dimensions() / 2;
    let (_, one) = post(json!({"input": texts[0], "dimensions": half})).await;
    let vector = numbers(&one["data"][0]["embedding"]);
    let length: f32 = vector.iter().map(|x| x * x).sum();
    assert!(vector.len() == half && (length - 1.0).abs() < 1e-5, "{vector:?}");
    let ratio = |at: usize| vector[at] / expected[0].vector[at];
    assert!((ratio(0) - ratio(1)).abs() < 1e-3 * ratio(0).abs());
    let (_, text) = post(json!({"input": texts, "encoding_format": "base64"})).await;
    let text = text["data"][1]["embedding"].as_str().unwrap();
    assert_eq!(text.trim_end_matches('=').len(), (expected[1].vector.len() * 32).div_ceil(6));
    let models = request(port, "GET /v1/models/bert", "").await;
    assert_eq!(models.0, 200);
    for (body, param) in [
        (json!({"input": []}), "input"),
        (json!({"input": [1, 2]}), "input"),
        (json!({"input": [[1, 2]]}), "input"),
        (json!({"input": ["a", "word ".repeat(3_000)]}), "input[1]"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 100_000}), "dimensions"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
    ] {
        let (status, answer) = post(body).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}
