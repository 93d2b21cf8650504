//! The cache releases and reallocates memory during replies, and their text does not change.

mod common;

use std::thread;

use common::eventually;
use walla_doubles::synth::{self, Mixture, Model};
use walla_runtime::{
    AgentSpec, Command, Engine, EngineOptions, EngineStats, FrameBudget, ModelSource, Pacing,
    Prompt, ReplyEvent,
};
use walla_types::{Sampling, TokenId};

/// Pages of several MiB per layer: large enough to be released in pieces.
const MODEL: Model = Model {
    width: 256,
    layers: 3,
    heads: 4,
    kv_heads: 4,
    head_dim: 64,
    context_train: 8_192,
    ..Model::TINY
};

const SPEAKERS: u64 = 6;

/// Texts of all replies, and the cache's bytes: before, with a small cache, and after growth.
struct ScenarioResult {
    texts: Vec<String>,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "for the test on GPUs"))]
    kv_bytes: [u64; 3],
}

fn scenario(device: &str, changes: bool, mut free_bytes: impl FnMut() -> u64) -> ScenarioResult {
    let file = synth::write(&MODEL, Mixture::Q8_0, 7, Vec::new()).unwrap();
    let options = EngineOptions {
        device: device.to_owned(),
        threads: Some(1),
        context_tokens: 4_096,
        max_agents: Some(16),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(file.leak()))
    };
    let engine = Engine::start(options).unwrap();
    let client = engine.client(Pacing::FreeRunning).unwrap();
    eventually("loaded", || engine.model());
    let stats = || engine.stats();
    let whole = eventually("counted", || Some(stats()).filter(|stats| stats.kv_bytes > 0));
    let free_before = free_bytes();
    let mut reply_ids = Vec::new();
    for seed in 0..SPEAKERS {
        let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
        let sampling = Sampling::builder().seed(seed).build().unwrap();
        let spec = AgentSpec { sampling, max_reply_tokens: 700, ..AgentSpec::new("") };
        client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).unwrap();
        let prompt = Prompt::Tokens((1..60 + seed as u32 * 9).map(TokenId).collect());
        client.try_send(Command::ask(agent, reply_id, prompt)).unwrap();
        reply_ids.push(reply_id);
    }
    let mut texts = vec![String::new(); reply_ids.len()];
    let mut ended = 0;
    let mut hear = |count: u64| {
        let target = stats().tokens + count;
        while ended < SPEAKERS && stats().tokens < target {
            while let Some(event) = client.try_recv() {
                let who = reply_ids.iter().position(|g| *g == event.reply_id).unwrap();
                match event.what {
                    ReplyEvent::Delta { text, .. } => texts[who].push_str(text.as_str()),
                    what => ended += u64::from(what.is_terminal()),
                }
            }
            thread::yield_now();
        }
    };
    hear(300);
    let mut kv_bytes = [whole.kv_bytes; 3];
    if changes {
        // Less than the agents hold, so some are preempted; then less again; then more.
        for (tokens, of_bytes) in [(2_048, 1), (1_024, 1), (4_096, 1), (u32::MAX, 2)] {
            engine.set_kv_tokens(tokens);
            hear(300);
            // All replies may have ended by now, so no event shows that the device thread has
            // applied the change.
            let pages = whole.pages.min(tokens / 16);
            let is_resized = |of: &EngineStats| {
                of.pages == pages && (pages < whole.pages || of.kv_bytes == whole.kv_bytes)
            };
            eventually("resized", || Some(stats()).filter(is_resized));
            kv_bytes[of_bytes] = stats().kv_bytes;
            if tokens == 1_024 {
                assert_eq!(stats().pages, 64);
                let gained = free_bytes().saturating_sub(free_before);
                let gave = whole.kv_bytes - stats().kv_bytes;
                println!("{device}: gave {gave} bytes back, {gained} are free");
                assert!(free_before == 0 || gained * 10 > gave * 9, "{gained} of {gave}");
                kv_bytes[1] = stats().kv_bytes;
            }
        }
        assert_eq!((stats().pages, stats().pages_refused), (whole.pages, 0));
    }
    while ended < SPEAKERS {
        let Some(event) = client.try_recv() else {
            thread::yield_now();
            continue;
        };
        let who = reply_ids.iter().position(|g| *g == event.reply_id).unwrap();
        match event.what {
            ReplyEvent::Delta { text, .. } => texts[who].push_str(text.as_str()),
            ReplyEvent::Failed(error) => panic!("{error}"),
            what => ended += u64::from(what.is_terminal()),
        }
    }
    ScenarioResult { texts, kv_bytes }
}

#[test]
fn kv_memory_changes_do_not_change_replies_on_the_cpu() {
    let still = scenario("cpu", false, || 0);
    let moved = scenario("cpu", true, || 0);
    assert_eq!(moved.texts, still.texts);
    assert!(still.texts.iter().all(|text| !text.is_empty()));
}

#[cfg(feature = "cuda")]
#[walla_reference_test::gpu_test]
fn kv_memory_changes_do_not_change_replies_on_a_gpu() {
    let registry = walla_runtime::default_registry();
    let free_bytes = || {
        let device = registry.open("cuda:0", &walla_device::OpenOptions::default()).unwrap();
        device.info().memory_free_bytes.unwrap()
    };
    let still = scenario("cuda:0", false, || 0);
    let moved = scenario("cuda:0", true, free_bytes);
    assert_eq!(moved.texts, still.texts);
    let [whole, small, again] = moved.kv_bytes;
    println!("cuda:0: {whole} bytes, {small} with 1,024 tokens, {again} with all again");
    assert!(small * 4 < whole, "{small} of {whole}");
    assert_eq!(again, whole);
}
