//! An engine that ends returns its memory to the system: a process that loads and unloads models
//! does not hold more from load to load.
//!
//! With another model, with the memory of each load:
//!
//! ```text
//! WALLA_UNLOAD_MODEL=model.gguf cargo test -p walla_runtime --test unload_memory -- --nocapture
//! ```
#![cfg(target_os = "linux")]

mod common;

use common::eventually;
use walla_doubles::synth::{self, Mixture, Model};
use walla_runtime::{
    AgentSpec, Command, Engine, EngineOptions, FrameBudget, ModelSource, Pacing, Prompt, ReplyEvent,
};

const LOADS: usize = 8;

/// Tensors of some megabytes, which an allocator would take from a heap after the first load.
const MODEL: Model = Model {
    width: 512,
    layers: 12,
    heads: 8,
    kv_heads: 4,
    head_dim: 64,
    hidden: 2_048,
    context_train: 2_048,
    ..Model::TINY
};

fn source() -> ModelSource {
    match std::env::var_os("WALLA_UNLOAD_MODEL") {
        Some(path) => ModelSource::Path(path.into()),
        None => {
            let bytes = synth::write(&MODEL, Mixture::Q8_0, 7, Vec::new()).expect("a vector");
            ModelSource::Static(bytes.leak())
        }
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: u64 = pages.split(' ').nth(1).expect("two fields").parse().expect("a number");
    pages * 4_096
}

/// Number of threads of engines.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("walla")).count()
}

/// Loads, speaks and unloads. Returns the memory of the loaded engine and what remains of it.
fn load(source: &ModelSource, before: u64) -> (u64, u64) {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(2),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(source.clone())
    };
    let engine = Engine::start(options).expect("valid options");
    let client = engine.client(Pacing::FreeRunning).expect("the first client");
    let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
    let spec = Box::new(AgentSpec { max_reply_tokens: 8, ..AgentSpec::new("") });
    client.try_send(Command::AddAgent { agent, spec }).expect("room");
    let prompt = Prompt::Raw("Once upon a time".into());
    client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
    eventually("a reply", || match client.try_recv()?.what {
        ReplyEvent::Finished { .. } => Some(()),
        ReplyEvent::Failed(error) => panic!("{error}"),
        _ => None,
    });
    let loaded = resident().saturating_sub(before);
    drop((client, engine));
    eventually("its threads end", || (threads() == 0).then_some(()));
    (loaded, resident().saturating_sub(before))
}

#[test]
fn unloaded_engines_return_their_memory() {
    let source = source();
    let before = resident();
    let loads: Vec<(u64, u64)> = (0..LOADS).map(|_| load(&source, before)).collect();
    let mb = |bytes: u64| bytes as f64 / 1e6;
    for (loaded, left) in &loads {
        println!("loaded {:6.1} MB, left {:6.1} MB", mb(*loaded), mb(*left));
    }
    // Heaps of the allocator and the tables of texts, once; not more from load to load.
    let (loaded, left) = (loads[0].0, loads[LOADS - 1].1);
    assert!(left * 5 < loaded, "{:.1} MB of {:.1} MB are left", mb(left), mb(loaded));
    let grown = left.saturating_sub(loads[1].1);
    assert!(grown * 20 < loaded, "{:.1} MB of {:.1} MB more", mb(grown), mb(loaded));
}
