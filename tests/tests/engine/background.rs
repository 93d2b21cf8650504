//! Evaluating conversations before an ask changes no reply, on models of every architecture: layers
//! with windows, recurrent layers, every kind of RoPE.

use std::path::Path;
use std::time::{Duration, Instant};

use walla_runtime::{
    AgentSpec, Client, Command, Engine, EngineOptions, EngineState, FrameBudget, Pacing, Prompt,
    ReplyEvent, Usage,
};
use walla_tests::data;
use walla_types::Sampling;

/// Small reference models of every architecture, one of them recurrent.
const MODELS: [&str; 6] =
    ["gemma3-q8_0", "lfm2-q8_0", "llama32-q4_k", "phi3-longrope-q8_0", "qwen2-q8_0", "qwen3-f16"];

/// Timeout, longer than any reply takes: a defect must fail, not hang.
const HANGS_AFTER: Duration = Duration::from_secs(300);

/// Asks of one agent: more than its context holds.
const ASKS: usize = 12;

fn engine(model: &Path, background_prefill: bool) -> Engine {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(4),
        context_tokens: 256,
        template: Some("chatml".into()),
        budget: FrameBudget::Unlimited,
        background_prefill,
        ..EngineOptions::model(model.to_owned())
    };
    Engine::start(options).expect("options are valid")
}

/// Asks an agent and waits for the end of its reply, and until nothing has been evaluated for a
/// time.
fn ask(
    client: &Client,
    agent: walla_runtime::AgentId,
    question: &str,
    quiet: Duration,
) -> (String, Usage) {
    let reply_id = client.new_reply_id();
    let prompt = Prompt::Chat(question.into());
    client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
    let (mut said, mut end, start) = (String::new(), None, Instant::now());
    let mut quiet_since = Instant::now();
    let mut steps = 0;
    loop {
        assert!(start.elapsed() < HANGS_AFTER, "no end after {said:?}");
        let engine = client.engine();
        assert!(!matches!(engine.state(), EngineState::Failed(_)), "{:?}", engine.state());
        while let Some(event) = client.try_recv() {
            match event.what {
                ReplyEvent::Delta { text, .. } => said.push_str(&text),
                ReplyEvent::Finished { usage, .. } => end = Some(usage),
                ReplyEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        if engine.stats().steps != steps {
            steps = engine.stats().steps;
            quiet_since = Instant::now();
        }
        if let Some(usage) = end.filter(|_| quiet_since.elapsed() > quiet) {
            return (said, usage);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The replies of an agent, and the prompt tokens that each ask evaluated.
fn talk(model: &Path, background_prefill: bool, quiet: Duration) -> (Vec<String>, Vec<u32>) {
    let engine = engine(model, background_prefill);
    let client = engine.client(Pacing::FreeRunning).expect("there is room");
    let agent = client.new_agent();
    let spec = AgentSpec {
        sampling: Sampling::builder().temperature(1.0).seed(3).build().expect("valid"),
        max_reply_tokens: 12,
        ..AgentSpec::new("You are Greta, the smith of this town.")
    };
    client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).expect("room");
    let question = |day| format!("What happened on day {day}?");
    let replies = (0..ASKS).map(|day| ask(&client, agent, &question(day), quiet));
    let (said, usages): (Vec<_>, Vec<_>) = replies.unzip();
    (said, usages.iter().map(|usage| usage.prompt_tokens - usage.cached_tokens).collect())
}

#[test]
fn a_background_prefill_changes_no_reply_of_any_architecture() {
    for name in MODELS {
        let model = data(&format!("models/{name}.gguf"));
        let (expected, without) = talk(&model, false, Duration::ZERO);
        // The first ask may arrive before anything has been evaluated.
        let most = |evaluated: &[u32]| evaluated[1..].iter().max().copied().unwrap_or(0);
        // On a busy machine the background may begin late, so the waits grow.
        let is_prepared = |millis: u64| {
            let (said, evaluated) = talk(&model, true, Duration::from_millis(millis));
            assert_eq!(said, expected, "{name}");
            println!("{name}: {evaluated:?} with waits of {millis} ms");
            most(&evaluated) < 70
        };
        assert!([60, 600, 6_000].into_iter().any(is_prepared), "{name}");
        assert!(most(&without) > 100, "{name}: turns are dropped: {without:?}");
    }
}
