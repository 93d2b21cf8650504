//! Measuring steps at load leaves no trace, whatever a model's layers keep: replies under a budget are those without one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use walla_runtime::{
    AgentSpec, Command, Engine, EngineOptions, EngineState, ModelSource, Pacing, Prompt, ReplyEvent,
};
use walla_types::{Sampling, TokenId};

/// Small reference models of every architecture; empty where the folder is absent.
fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/models");
    let names = ["gemma3-f16", "lfm2-f16", "llama2-f16", "llama32-q4_k_m", "phi3-f16", "qwen3-f16"];
    let paths = names.iter().map(|name| folder.join(format!("{name}.gguf")));
    let found: Vec<_> = paths.filter(|path| path.exists()).collect();
    if found.is_empty() {
        println!("skipped: no reference models in {}", folder.display());
    }
    found
}

fn reply(model: &Path, budget: Option<Duration>) -> String {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        agents_max: 4,
        context_tokens: 128,
        budget,
        ..EngineOptions::new(ModelSource::Path(model.to_owned()))
    };
    let engine = Engine::start(options).expect("options are valid");
    let client = engine.client(Pacing::default()).expect("there is room");
    let (agent, generation) = (client.new_agent(), client.new_generation());
    let spec =
        AgentSpec { sampling: Sampling::greedy(), reply_tokens_max: 12, ..AgentSpec::new("") };
    client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).expect("room");
    let prompt = Prompt::Tokens((3..40).map(TokenId).collect());
    client.try_send(Command::Ask { agent, generation, prompt }).expect("room");
    let mut said = String::new();
    loop {
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
fn a_budget_changes_no_word_of_any_architecture() {
    for model in models() {
        let expected = reply(&model, None);
        for millis in [1, 50] {
            let said = reply(&model, Some(Duration::from_millis(millis)));
            assert_eq!(said, expected, "{}, {millis} ms", model.display());
        }
    }
}
