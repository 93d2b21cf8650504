//! A remote engine with walla's own server, over a connection of this machine.

mod calls;
mod clients;
mod connections;
mod protocol;

use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_walla::prelude::{
    Agent, AgentSampling, Ask, Conversation, ReplyLimits, Speech, WallaPlugin,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use walla::remote::{ApiKey, Dialect, RemoteEngine, RemoteOptions};
use walla::serve::{ServeOptions, serve};
use walla::{
    ActionPolicy, ActionSet, ActionSpec, Actions, AgentSpec, Constraint, Engine, EngineError,
    EngineOptions, FinishReason, Finished, ReplyError, ReplyEvent, Sampling,
};
use walla_runtime::RemoteError;

/// Timeout, longer than any reply takes.
const TIMEOUT: Duration = Duration::from_secs(60);

const GRETA: &str = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.";

/// A local engine with the demo model, and the port of its server.
async fn server(options: ServeOptions) -> (Engine, u16) {
    let model = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(8),
        context_tokens: 512,
        ..EngineOptions::demo()
    };
    let engine = Engine::start(model).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve(listener, engine.clone(), options));
    (engine, port)
}

/// An engine that asks the server.
fn remote(port: u16, change: impl FnOnce(&mut RemoteOptions)) -> Result<Engine, EngineError> {
    let mut options = RemoteOptions::new(format!("http://127.0.0.1:{port}/v1"), "walla");
    options.dialect = Dialect::Walla;
    options.retries.max_retries = 0;
    change(&mut options);
    Engine::with_client(RemoteEngine::start(options).expect("the options are sound").client())
}

fn greedy(persona: &str) -> AgentSpec {
    AgentSpec { sampling: Sampling::greedy(), max_reply_tokens: 40, ..AgentSpec::new(persona) }
}

async fn end(reply: walla::Reply) -> Result<Finished, ReplyError> {
    tokio::time::timeout(TIMEOUT, reply.finish()).await.expect("an end")
}

#[tokio::test]
async fn remote_agents_speak_like_local_ones() {
    let (local, port) = server(ServeOptions::default()).await;
    let remote = remote(port, |_| {}).unwrap();
    assert!(remote.runtime().is_none() && remote.model().is_none());
    let agents = [&local, &remote].map(|engine| engine.agent_with(greedy(GRETA)));
    for question in ["What does a horseshoe cost?", "Who are you?", "Thank you, goodbye."] {
        let [here, there] = [&agents[0], &agents[1]].map(|agent| agent.ask(question));
        let (here, there) = (end(here).await.unwrap(), end(there).await.unwrap());
        assert_eq!(there.text, here.text, "{question}");
        assert_eq!(
            (there.reason, there.usage.reply_tokens),
            (here.reason, here.usage.reply_tokens)
        );
        assert_eq!(there.usage.prompt_tokens, here.usage.prompt_tokens);
        if question != "What does a horseshoe cost?" {
            let usage = there.usage;
            assert!(2 * usage.cached_tokens > usage.prompt_tokens, "nothing is cached: {usage:?}");
        }
    }
}

#[tokio::test]
async fn settings_constraints_and_candidates_reach_the_engine() {
    let (local, port) = server(ServeOptions::default()).await;
    let remote = remote(port, |_| {}).unwrap();
    for constraint in [
        Constraint::choice(["seven horses", "no horse"]),
        Constraint::regex("[0-9]{3}-[a-c]{2}"),
        Constraint::json_schema(
            r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": false}"#,
        ),
        Constraint::lark("start: \"x\" /[0-9]{2}/ \"y\""),
    ] {
        let spec = || AgentSpec { constraint: Some(constraint.clone()), ..greedy(GRETA) };
        let [here, there] = [&local, &remote].map(|engine| {
            let agent = engine.agent_with(spec());
            (agent.ask("How many?"), agent)
        });
        let (here, there) = (end(here.0).await.unwrap(), end(there.0).await.unwrap());
        assert_eq!(
            (&there.text, there.reason),
            (&here.text, FinishReason::EndOfTurn),
            "{constraint:?}"
        );
    }
    let sampling = Sampling::builder().temperature(0.9).seed(7).candidates(3).build().unwrap();
    let spec = || AgentSpec {
        sampling: sampling.clone(),
        stop_strings: vec!["silver".into()],
        ..greedy(GRETA)
    };
    let mut tokens = Vec::new();
    for engine in [&local, &remote] {
        let agent = engine.agent_with(spec());
        let mut reply = agent.ask("What does a horseshoe cost?");
        let mut of_reply = Vec::new();
        while let Some(event) = reply.next_event().await {
            match event {
                ReplyEvent::Token(token) => {
                    of_reply.push((
                        token.token,
                        token.candidates.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
                    ));
                }
                ReplyEvent::Finished { reason, .. } => of_reply.push((
                    walla::TokenId(u32::MAX),
                    vec![walla::TokenId(u32::from(reason == FinishReason::Stop { index: 0 }))],
                )),
                _ => {}
            }
        }
        assert!(of_reply.len() > 3, "{of_reply:?}");
        tokens.push(of_reply);
    }
    assert_eq!(tokens[0].last(), tokens[1].last());
    // The last token has no text, and no separate event on the wire.
    let common = tokens[0].len().min(tokens[1].len()) - 1;
    assert_eq!(tokens[0][..common], tokens[1][..common]);
}

#[tokio::test]
async fn actions_are_called_and_answered() {
    let (_local, port) = server(ServeOptions::default()).await;
    let remote = remote(port, |_| {}).unwrap();
    let schema = json!({
        "type": "object",
        "properties": {"item": {"type": "string", "enum": ["nails", "horseshoe"]}},
        "required": ["item"],
        "additionalProperties": false,
    });
    let give = ActionSpec::new("give", "Hands an item over the counter.", &schema).unwrap();
    let set = ActionSet::new([give]).unwrap();
    let actions = Actions { policy: ActionPolicy::Required, max_calls: 1, ..Actions::new(set) };
    let agent = remote.agent_with(AgentSpec { actions: Some(actions), ..greedy(GRETA) });
    let called = end(agent.ask("I'll take a horseshoe.")).await.unwrap();
    assert_eq!(called.calls.len(), 1, "{called:?}");
    assert_eq!(called.calls[0].name, "give");
    let item = called.calls[0].arguments["item"].as_str();
    assert!(matches!(item, Some("nails" | "horseshoe")), "{called:?}");
    let answer =
        end(agent.answer_calls([(called.calls[0].id, "The horseshoe is sold.")])).await.unwrap();
    assert!(answer.calls.len() <= 1 && answer.refused.is_empty(), "{answer:?}");
}

/// A request over a new connection: status and body.
async fn request(port: u16, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let length = body.len();
    let text = format!(
        "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    // A server that refuses the request may not read all of it.
    let _sent = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    let _read = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status.unwrap_or(0), body.to_owned())
}

/// The answer to a request for a reply: status and object.
async fn complete(port: u16, body: &Value) -> (u16, Value) {
    let (status, answer) = request(port, "POST /v1/chat/completions", &body.to_string()).await;
    (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
}

/// The events of a streamed reply.
async fn stream(port: u16, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let (_, answer) = request(port, "POST /v1/chat/completions", &body.to_string()).await;
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: {"));
    events.map(|event| serde_json::from_str(&format!("{{{event}")).unwrap()).collect()
}

#[tokio::test]
async fn whole_answers_models_and_health() {
    let (_local, port) = server(ServeOptions::default()).await;
    assert_eq!(request(port, "GET /health", "").await, (200, r#"{"status":"ok"}"#.into()));
    let (status, models) = request(port, "GET /v1/models", "").await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!((status, &models["data"][0]["id"]), (200, &json!("walla")));
    let body = json!({
        "model": "any", "temperature": 0, "max_tokens": 30,
        "messages": [
            {"role": "system", "content": GRETA},
            {"role": "user", "content": [{"type": "text", "text": "What does a horseshoe cost?"}]},
        ],
    });
    let (status, answer) = request(port, "POST /v1/chat/completions", &body.to_string()).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["object"]), (200, &json!("chat.completion")), "{answer}");
    let message = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(message.contains("3 silver"), "{message}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 3);
}

#[tokio::test]
async fn bad_requests_are_refused_with_their_reason() {
    let mut options = ServeOptions::default();
    options.max_request_bytes = 20_000;
    let (_local, port) = server(options).await;
    let user = json!([{"role": "user", "content": "Hi"}]);
    for (body, expected, reason) in [
        (json!({}), 400, "messages"),
        (json!({"messages": []}), 400, "no message"),
        (json!({"messages": [{"role": "king", "content": "Hi"}]}), 400, "king"),
        (json!({"messages": user, "n": 2}), 400, "choice"),
        (json!({"messages": user, "temperature": -1}), 400, "temperature"),
        (json!({"messages": user, "response_format": {"type": "xml"}}), 400, "xml"),
        (
            json!({"messages": user, "structured_outputs": {"regex": "("}}),
            400,
            "regular expression",
        ),
        (json!({"messages": user, "tools": [{"type": "web"}]}), 400, "web"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            400,
            "image_url",
        ),
        (json!({"messages": [{"role": "user", "content": "word ".repeat(3_000)}]}), 400, "context"),
        (json!({"messages": [{"role": "user", "content": "word ".repeat(9_000)}]}), 413, ""),
    ] {
        let (status, answer) = request(port, "POST /v1/chat/completions", &body.to_string()).await;
        assert_eq!(status, expected, "{body} {answer}");
        assert!(answer.contains(reason), "{reason}: {answer}");
        let error: Value = serde_json::from_str(&answer).unwrap_or_default();
        assert!(error["error"]["message"].is_string(), "{answer}");
    }
    assert_eq!(request(port, "POST /v1/chat/completions", "{").await.0, 400);
    assert_eq!(request(port, "GET /v1/nothing", "").await.0, 404);
}

#[tokio::test]
async fn keys_and_limits_hold() {
    let mut options = ServeOptions::default();
    options.key = Some("sk-emberfall".into());
    options.max_requests = 1;
    let (local, port) = server(options).await;
    let with_key = |key: &str| {
        let key = key.to_owned();
        remote(port, move |options| options.key = Some(ApiKey::from_fn(move || Ok(key.clone()))))
            .unwrap()
    };
    let refused = |finished: Result<Finished, ReplyError>| match finished {
        Err(ReplyError::Remote { error, .. }) => error,
        other => panic!("{other:?}"),
    };
    for engine in [remote(port, |_| {}).unwrap(), with_key("sk-emberfal"), with_key("sk-emberfalx")]
    {
        let error = refused(end(engine.agent_with(greedy(GRETA)).ask("Hi")).await);
        assert!(matches!(error, RemoteError::Unauthorized { status: 401, .. }), "{error:?}");
    }
    let engine = with_key("sk-emberfall");
    let agent = engine.agent_with(greedy(GRETA));
    let error = refused(end(agent.ask("word ".repeat(3_000))).await);
    assert!(matches!(error, RemoteError::ContextExceeded { status: 400, .. }), "{error:?}");
    // Without an end of the turn, until it is cancelled.
    let endless = AgentSpec {
        constraint: Some(Constraint::regex("(a|b|c| )*")),
        max_reply_tokens: 400,
        ..greedy(GRETA)
    };
    let agent = engine.agent_with(endless);
    let mut long = agent.ask("Sing!");
    assert!(long.next().await.is_some_and(|delta| delta.is_ok()));
    let other = engine.agent_with(greedy(GRETA));
    let busy = refused(end(other.ask("Hi")).await);
    assert!(matches!(busy, RemoteError::Busy { status: 429, .. }), "{busy:?}");
    drop((long, agent));
    // The closed connection ends the reply in the server.
    wait_for_silence(&local).await;
    assert!(end(other.ask("Hi")).await.is_ok());
}

/// Waits until the server's engine is silent.
async fn wait_for_silence(local: &Engine) {
    let start = Instant::now();
    while local.stats().agents_active > 0 {
        assert!(start.elapsed() < TIMEOUT, "the reply goes on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn send(port: u16, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

fn head(length: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    )
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await;
    let _length = read.expect("the connection is closed");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Bytes of a next request do not hide that the client has left.
#[tokio::test]
async fn a_closed_connection_with_unread_bytes_cancels_its_reply() {
    let (local, port) = server(ServeOptions::default()).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Sing!"}], "max_tokens": 400,
        "structured_outputs": {"regex": "(a|b|c| )*"},
    });
    let body = body.to_string();
    for is_streamed in [false, true] {
        let body = body.replace("400,", if is_streamed { "400,\"stream\":true," } else { "400," });
        // On a busy machine a whole reply may be generated before the server sees the end of its
        // connection: then again.
        let mut was_cancelled = false;
        for _ in 0..20 {
            let before = local.stats().tokens;
            let stream = send(port, &(head(body.len()) + &body + "POST /v1/chat")).await;
            let start = Instant::now();
            while local.stats().agents_active == 0 && local.stats().tokens == before {
                assert!(start.elapsed() < TIMEOUT, "no reply");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(stream);
            wait_for_silence(&local).await;
            was_cancelled = local.stats().tokens - before < 400;
            if was_cancelled {
                break;
            }
        }
        assert!(was_cancelled, "every reply was generated to its end");
    }
}

/// Clients that begin and do not go on keep neither memory nor connections.
#[tokio::test]
async fn unfinished_requests_are_bounded() {
    let mut options = ServeOptions::default();
    options.max_connections = 4;
    options.max_received_bytes = 1 << 20;
    options.request_time = Duration::from_millis(300);
    let (_local, port) = server(options).await;
    // No head, half a body, too many bytes of bodies.
    let silent = send(port, "").await;
    let half = send(port, &(head(1_000) + "{\"messages\":")).await;
    let large = send(port, &(head(1_000_000) + &" ".repeat(900_000))).await;
    let larger = send(port, &(head(1_000_000) + &" ".repeat(900_000))).await;
    // A fifth connection waits for the others.
    let health = request(port, "GET /health", "");
    let health = tokio::time::timeout(TIMEOUT, health).await.expect("a connection becomes free");
    assert_eq!(health.0, 200);
    assert!(answer(half).await.starts_with("HTTP/1.1 408"));
    // Both are refused: the later one for its bytes, the first one for its time.
    let answers = [answer(large).await, answer(larger).await];
    let count = |status| answers.iter().filter(|answer| answer.contains(status)).count();
    assert_eq!((count(" 408 "), count(" 429 ")), (1, 1), "{answers:?}");
    assert_eq!(answer(silent).await, "");
}

#[tokio::test]
async fn agents_of_an_app_speak_through_a_server() {
    let (local, port) = server(ServeOptions::default()).await;
    let mut options = RemoteOptions::new(format!("http://127.0.0.1:{port}/v1"), "walla");
    options.dialect = Dialect::Walla;
    let mut app = App::new();
    app.add_plugins(WallaPlugin::new(options));
    let agent = (Agent::persona(GRETA), AgentSampling::greedy(), ReplyLimits::tokens(40));
    let agent = app.world_mut().spawn(agent).id();
    let question = "What does a horseshoe cost?";
    app.world_mut().trigger(Ask::new(agent, question));
    let start = Instant::now();
    loop {
        app.update();
        if app.world().get::<Speech>(agent).is_some_and(Speech::is_silent) {
            break;
        }
        assert!(start.elapsed() < TIMEOUT, "no end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let expected = end(local.agent_with(greedy(GRETA)).ask(question)).await.unwrap().text;
    let talk = app.world().get::<Conversation>(agent).unwrap();
    assert_eq!(talk.last_reply(), Some(&*expected));
}
