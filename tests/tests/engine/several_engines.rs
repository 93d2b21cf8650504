//! Several engines behind the async API: openings of replies, takeover, continuation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use walla::remote::{Dialect, RemoteEngine, RemoteOptions};
use walla::router::{Router, RouterOptions};
use walla::{
    AfterFailure, AgentSpec, AskOptions, Engine, EngineClient, EngineOptions, Finished, Prompt,
    ReplyError, Route, Sampling, Unsupported,
};
use walla_runtime::Pacing;

/// Timeout, longer than any reply takes.
const TIMEOUT: Duration = Duration::from_secs(60);

const GRETA: &str = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.";

const QUESTION: &str = "What does a horseshoe cost?";

async fn demo() -> Engine {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(8),
        context_tokens: 512,
        ..EngineOptions::demo()
    };
    Engine::start(options).await.unwrap()
}

fn greedy() -> AgentSpec {
    AgentSpec { sampling: Sampling::greedy(), max_reply_tokens: 40, ..AgentSpec::new(GRETA) }
}

async fn end(reply: walla::Reply) -> Result<Finished, ReplyError> {
    tokio::time::timeout(TIMEOUT, reply.finish()).await.expect("an end")
}

fn client(engine: &Engine) -> Box<dyn EngineClient> {
    let runtime = engine.runtime().expect("a local engine");
    Box::new(runtime.client(Pacing::FreeRunning).unwrap())
}

/// A server that sends some text and then closes the connection.
async fn cutting_server(said: &'static str) -> RemoteOptions {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 65_536];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                content-length: 100000\r\n\r\n";
            let delta = json!({"choices": [{"index": 0, "delta": {"content": said}}]});
            let answer = format!("{head}data: {delta}\n\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut options = RemoteOptions::new(format!("http://127.0.0.1:{port}/v1"), "m");
    options.dialect = Dialect::Walla;
    options.retries.max_retries = 0;
    options
}

#[tokio::test]
async fn a_reply_continues_its_opening() {
    let engine = demo().await;
    let agent = engine.agent_with(greedy());
    let whole = end(agent.ask(QUESTION)).await.unwrap().text;
    let spaces: Vec<_> = whole.match_indices(' ').map(|(at, _)| at).collect();
    assert!(spaces.len() > 3, "{whole:?}");
    for at in [spaces[0], spaces[spaces.len() / 2], *spaces.last().unwrap()] {
        let agent = engine.agent_with(greedy());
        let opening = Some(Arc::new(whole[..at].to_owned()));
        let options = AskOptions { opening, ..AskOptions::default() };
        let rest = end(agent.ask_with(QUESTION, options)).await.unwrap();
        assert_eq!(format!("{}{}", &whole[..at], rest.text), whole);
    }
    // A player's text in an opening yields no control tokens.
    let agent = engine.agent_with(greedy());
    let opening = Some(Arc::new("<|im_end|>".to_owned()));
    let options = AskOptions { opening, ..AskOptions::default() };
    let end = end(agent.ask_with(QUESTION, options)).await.unwrap();
    assert!(end.usage.prompt_tokens > 0);
    // A server cannot continue a text.
    let options = cutting_server("x").await;
    let remote = Engine::with_client(RemoteEngine::start(options).unwrap().client()).unwrap();
    let opening = Some(Arc::new("It".to_owned()));
    let options = AskOptions { opening, ..AskOptions::default() };
    let agent = remote.agent_with(greedy());
    let refused = agent.ask_with(Prompt::Continue, options);
    let refused = tokio::time::timeout(TIMEOUT, refused.finish()).await.unwrap();
    let error = refused.map(|end| end.text);
    assert_eq!(error, Err(ReplyError::Unsupported(Unsupported::Openings)));
}

#[tokio::test]
async fn a_local_engine_takes_over_from_a_silent_server() {
    let local = demo().await;
    let agent = local.agent_with(greedy());
    let expected = end(agent.ask(QUESTION)).await.unwrap().text;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let options = RemoteOptions::new(format!("http://127.0.0.1:{port}/v1"), "m");
    let router = Router::new(RouterOptions::new("cloud"));
    let engines = router.engines().clone();
    engines.add("cloud", Box::new(RemoteEngine::start(options).unwrap().client())).unwrap();
    engines.add("local", client(&local)).unwrap();
    let engine = Engine::with_client(router).unwrap();
    let mut spec = greedy();
    spec.route = Route::default().or("local", Duration::from_millis(100));
    let agent = engine.agent_with(spec);
    let begin = Instant::now();
    let reply = end(agent.ask(QUESTION)).await.unwrap();
    assert_eq!(reply.text, expected);
    // Nothing but the router's own time wakes the host.
    assert!(
        begin.elapsed() >= Duration::from_millis(100) && reply.usage.first_token_micros > 100_000
    );
    assert_eq!(engines.get("cloud").unwrap().moved, 1);
}

#[tokio::test]
async fn a_local_engine_continues_a_reply_that_was_cut() {
    let local = demo().await;
    let opening = "Three silver";
    let options = AskOptions { opening: Some(Arc::new(opening.into())), ..AskOptions::default() };
    let agent = local.agent_with(greedy());
    let asked = agent.ask_with(QUESTION, options);
    let rest = end(asked).await.unwrap().text;
    for (continues, expected) in [(true, format!("{opening}{rest}")), (false, String::new())] {
        let router = Router::new(RouterOptions::new("cloud"));
        let options = cutting_server("Three silver").await;
        let cloud = Box::new(RemoteEngine::start(options).unwrap().client());
        router.engines().add("cloud", cloud).unwrap();
        router.engines().add("local", client(&local)).unwrap();
        let engine = Engine::with_client(router).unwrap();
        let mut spec = greedy();
        spec.route = Route::default().or("local", None);
        if continues {
            spec.route.after_failure = AfterFailure::Continue;
        }
        let agent = engine.agent_with(spec);
        match end(agent.ask(QUESTION)).await {
            Ok(reply) => assert_eq!(reply.text, expected),
            Err(error) => {
                assert!(!continues && matches!(error, ReplyError::Remote { .. }), "{error:?}");
            }
        }
    }
}
