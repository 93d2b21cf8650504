//! Measuring steps at load does not change any state of a model's layers: replies are the same with
//! and without a budget.

use std::path::Path;
use std::time::{Duration, Instant};

use walla_runtime::{
    AgentSpec, Command, Engine, EngineOptions, EngineState, Pacing, Prompt, ReplyEvent,
};
use walla_tests::data;
use walla_types::{Sampling, TokenId};

/// Small reference models of every architecture, one of them recurrent.
const MODELS: [&str; 6] =
    ["gemma3-q8_0", "lfm2-q8_0", "llama32-q4_k", "phi3-longrope-q8_0", "qwen2-q8_0", "qwen3-f16"];

/// Timeout, longer than any reply takes: a defect must fail, not hang.
const HANGS_AFTER: Duration = Duration::from_secs(300);

fn reply(model: &Path, budget: Option<Duration>) -> String {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(4),
        context_tokens: 128,
        budget: budget.into(),
        ..EngineOptions::model(model.to_owned())
    };
    let engine = Engine::start(options).expect("options are valid");
    let client = engine.client(Pacing::default()).expect("there is room");
    let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
    let spec =
        AgentSpec { sampling: Sampling::greedy(), max_reply_tokens: 12, ..AgentSpec::new("") };
    client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).expect("room");
    let prompt = Prompt::Tokens((3..40).map(TokenId).collect());
    client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
    let (mut said, start) = (String::new(), Instant::now());
    loop {
        assert!(start.elapsed() < HANGS_AFTER, "{}: no end after {said:?}", model.display());
        assert!(!matches!(engine.state(), EngineState::Failed(_)), "{:?}", engine.state());
        client.frame();
        std::thread::sleep(Duration::from_millis(1));
        while let Some(event) = client.try_recv() {
            match event.what {
                ReplyEvent::Delta { text, .. } => said.push_str(&text),
                ReplyEvent::Finished { .. } => return said,
                ReplyEvent::Failed(error) => panic!("{}: {error}", model.display()),
                _ => {}
            }
        }
    }
}

#[test]
fn a_budget_does_not_change_replies_of_any_architecture() {
    for name in MODELS {
        let model = data(&format!("models/{name}.gguf"));
        let expected = reply(&model, None);
        for millis in [1, 50] {
            let said = reply(&model, Some(Duration::from_millis(millis)));
            assert_eq!(said, expected, "{}, {millis} ms", model.display());
        }
    }
}
