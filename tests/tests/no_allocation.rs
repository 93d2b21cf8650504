//! In the steady state nothing allocates: neither the host, nor the device thread, nor the CPU
//! device's threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use walla_cpu::{CpuBackend, CpuOptions};
use walla_device::Registry;
use walla_doubles::synth::{self, Dialect, Mixture, Model};
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_runtime::{
    AgentSpec, Command, Engine, EngineOptions, ModelSource, Pacing, Prompt, ReplyEvent,
};
use walla_types::{Sampling, TokenId};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[expect(unsafe_code, reason = "an allocator that counts")]
// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A model whose chat template opens a reasoning block.
fn model() -> &'static [u8] {
    let shape = Model { context_train: 1_024, ..Model::TINY };
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}<think>\n";
    let dialect = Dialect { template, special: &["<think>", "</think>"] };
    let file = synth::write_dialect(&shape, Mixture::Q8_0, 7, &dialect, Vec::new());
    Vec::leak(file.expect("a vector takes everything"))
}

/// Samples at random, but never an end of turn or of reasoning.
fn endless(file: &Gguf, seed: u64) -> Sampling {
    let tokenizer = Tokenizer::from_gguf(file).expect("synthetic models have a tokenizer");
    let markers =
        ["<think>", "</think>"].map(|text| tokenizer.special_token(text).expect("it is there"));
    let ends = tokenizer.end_of_generation_tokens().chain(markers);
    let builder = Sampling::builder().temperature(1.0).repetition_penalty(1.1).seed(seed);
    ends.fold(builder, |b, end| b.bias(end, f32::NEG_INFINITY)).build().expect("valid")
}

#[test]
fn no_thread_allocates_while_agents_generate() {
    let bytes = model();
    let file = Gguf::from_static(bytes).expect("valid");
    let options = EngineOptions {
        context_tokens: 1_024,
        max_agents: Some(8),
        ..EngineOptions::new(ModelSource::Static(bytes))
    };
    let cpu = CpuOptions { threads: Some(2), ..CpuOptions::default() };
    let registry = Registry::new().with(CpuBackend::new(cpu));
    let engine = Engine::start_with(options, registry).expect("options are valid");
    let client = engine.client(Pacing::default()).expect("there is room");
    for seed in 0..8 {
        let agent = client.new_agent();
        let spec = AgentSpec {
            sampling: endless(&file, seed),
            max_reply_tokens: 1_000,
            max_reasoning_tokens: 1_000,
            ..AgentSpec::new("")
        };
        client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).expect("there is room");
        let reply_id = client.new_reply_id();
        // Half of the agents only reason: the limit would leave half of the context to speech.
        let prompt = match seed % 2 {
            0 => Prompt::Tokens(vec![TokenId(65 + seed as u32)]),
            _ => Prompt::Chat("Hi".into()),
        };
        client.try_send(Command::ask(agent, reply_id, prompt)).expect("there is room");
    }
    let (mut spoken, mut reasoned) = (0, 0);
    let mut tokens = |until: u64| {
        let deadline = Instant::now() + Duration::from_secs(120);
        while engine.stats().tokens < until {
            client.frame();
            while let Some(event) = client.try_recv() {
                match event.what {
                    ReplyEvent::Delta { tokens, .. } => spoken += tokens,
                    ReplyEvent::Reasoning { tokens, .. } => reasoned += tokens,
                    ReplyEvent::Started { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            std::thread::sleep(Duration::from_micros(500));
            assert!(Instant::now() < deadline, "it speaks: {:?}", engine.stats());
        }
    };
    // Queues, scratch and texts reach their sizes. A helper thread creates its handle when it first
    // runs, on a busy machine after many steps.
    let mut allocations = Vec::new();
    for steps in (100..=900).step_by(50) {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        tokens(8 * steps);
        allocations.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
        if steps >= 500 && allocations.ends_with(&[0; 6]) {
            break;
        }
    }
    assert!(allocations.ends_with(&[0; 6]), "in each 50 steps of 8 agents: {allocations:?}");
    assert!(spoken > 1_500 && reasoned > 1_500, "{spoken} and {reasoned}");
}
