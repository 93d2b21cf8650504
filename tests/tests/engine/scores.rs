//! Scores of texts are the sums of the log-probabilities in the logits, for every architecture.

use std::path::Path;

use walla_cpu::{CpuDevice, CpuOptions};
use walla_device::KvType;
use walla_model::Gguf;
use walla_runtime::{
    AgentSpec, AskOptions, Client, Command, Engine, EngineOptions, FinishReason, FrameBudget,
    Pacing, Prompt, ReplyEvent, Score, Tokenizer,
};
use walla_tests::{data, evaluator};
use walla_types::{SeqId, TokenId};

const TEXTS: [&str; 8] = [
    " the old smith",
    " a",
    ", and then it rained for three days.",
    "\n\n",
    " Ünïcödé",
    " the old smith went home",
    " 12345",
    ".",
];

fn prompt() -> Vec<TokenId> {
    (0..75_u32).map(|n| TokenId(4 + n * 37 % 200)).collect()
}

fn scored(model: &Path) -> Vec<Score> {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(3),
        context_tokens: 256,
        template: Some("chatml".into()),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::model(model.to_owned())
    };
    let engine = Engine::start(options).expect("options are valid");
    let client = engine.client(Pacing::FreeRunning).expect("a client");
    // Others speak meanwhile.
    for n in 0..2 {
        let agent = client.new_agent();
        let spec = Box::new(AgentSpec::new("You are a test."));
        client.try_send(Command::AddAgent { agent, spec }).expect("room");
        let reply_id = client.new_reply_id();
        let prompt = Prompt::Raw(format!("Once upon a time, {n}"));
        client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
    }
    scores(&client)
}

fn scores(client: &Client) -> Vec<Score> {
    let agent = client.new_agent();
    let spec = Box::new(AgentSpec::new(""));
    client.try_send(Command::AddAgent { agent, spec }).expect("room");
    let (reply_id, options) = (client.new_reply_id(), AskOptions::score(TEXTS));
    let prompt = Prompt::Tokens(prompt());
    client.try_send(Command::Ask { agent, reply_id, prompt, options }).expect("room");
    let mut scores = Vec::new();
    loop {
        let Some(event) = client.try_recv() else {
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        };
        if event.reply_id != reply_id {
            continue;
        }
        match event.what {
            ReplyEvent::Score(score) => scores.push(score),
            ReplyEvent::Finished { reason, .. } => {
                assert_eq!(reason, FinishReason::Scored);
                return scores;
            }
            ReplyEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

/// The sum of the log-probabilities of a text's tokens, from all logits.
fn of_logits(file: &Gguf, text: &[TokenId]) -> f64 {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let device = Box::new(CpuDevice::new(options).expect("a device"));
    let mut evaluator = evaluator(file, device, 1, 256, 64, KvType::F16);
    let (tokens, first) = ([&prompt()[..], text].concat(), prompt().len() - 1);
    let mut sum = 0.0;
    evaluator
        .append(&[(SeqId(0), &tokens)], &mut |_, place, row| {
            let Some(next) = tokens.get(place + 1).filter(|_| place >= first) else { return };
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let all: f64 = row.iter().map(|logit| f64::from(logit - most).exp()).sum();
            sum += f64::from(row[next.0 as usize] - most) - all.ln();
        })
        .expect("it is evaluated");
    sum
}

fn check(model: &Path) {
    let file = Gguf::open(model).expect("a model");
    let tokenizer = Tokenizer::from_gguf(&file).expect("a tokenizer");
    let scores = scored(model);
    assert_eq!(scores.len(), TEXTS.len());
    for (score, text) in scores.iter().zip(TEXTS) {
        let tokens = tokenizer.encode_continuation(text).expect("short");
        let expected = of_logits(&file, &tokens);
        let name = model.display();
        assert_eq!(score.tokens as usize, tokens.len(), "{name} {text:?}");
        let difference = (f64::from(score.log_probability) - expected).abs();
        assert!(difference < 1e-4, "{name} {text:?}: {score:?}, {expected} of the logits");
    }
}

#[test]
fn scores_are_sums_of_the_logits() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("model.gguf");
    let written = walla_doubles::synth::write(
        &walla_doubles::synth::Model::TINY,
        walla_doubles::synth::Mixture::Q8_0,
        5,
        Vec::new(),
    );
    std::fs::write(&path, written.expect("a vector takes everything"))
        .expect("the folder takes it");
    check(&path);
}

#[walla_reference_test::reference_test]
fn scores_of_every_architecture_are_sums_of_the_logits() {
    for name in [
        "gemma3-q8_0",
        "lfm2-q8_0",
        "llama32-q4_k",
        "phi3-longrope-q8_0",
        "qwen2-q8_0",
        "qwen3-q8_0",
    ] {
        check(&data(&format!("models/{name}.gguf")));
    }
}
