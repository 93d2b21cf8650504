//! A real GPU is lost while an engine generates, in a separate process. Needs a GPU; with Vulkan
//! any driver, also one in software.
//!
//! The model is a real one. Along its greedy replies the gap between the best two tokens is larger
//! than the rounding errors of GPU and CPU, so every reply is the same on both devices.

use std::fs;
use std::process::Command as Process;
use std::thread;
use std::time::{Duration, Instant};

use walla_cpu::{CpuBackend, CpuOptions, Variant};
use walla_cuda::CudaBackend;
use walla_device::Registry;
use walla_doubles::faulty::{Call, Fault};
use walla_doubles::{FaultPlan, FaultyBackend};
use walla_reference_test::gpu_test;
use walla_runtime::{
    AgentId, AgentSpec, Client, Command, Engine, EngineOptions, Event, FrameBudget, ModelSource,
    Pacing, Prompt, ReplyEvent, ReplyId,
};
use walla_tests::data;
use walla_types::{Sampling, TokenId};
use walla_vulkan::VulkanBackend;

/// Set in the process that breaks its GPU.
const CHILD: &str = "WALLA_TEST_LOST_GPU_CHILD";

const NAME: &str = "a_gpu_lost_during_a_conversation_loses_no_reply";

/// Step whose page tables point outside of all memory: both agents are speaking.
const BROKEN_STEP: u64 = 9;

const REPLY_TOKENS: u32 = 24;

#[gpu_test]
fn a_gpu_lost_during_a_conversation_loses_no_reply() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let exe = std::env::current_exe().expect("it runs");
    let arguments = ["--exact", NAME, "--nocapture", "--include-ignored"];
    let output = Process::new(exe).args(arguments).env(CHILD, "1").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    assert!(said.contains("lost: cpu (fallback after: device lost in"), "{said}");
    said.lines().filter(|line| line.starts_with("lost: ")).for_each(|line| println!("{line}"));
}

/// Prompts of the reference, and the beginning of its greedy replies.
fn prompts() -> Vec<(Vec<TokenId>, Vec<TokenId>)> {
    let json = fs::read(data("models/tinystories-260k.json")).expect("it is in the repository");
    let json: serde_json::Value = serde_json::from_slice(&json).expect("it is JSON");
    let ids = |value: &serde_json::Value| {
        let ids = value.as_array().expect("a list").iter();
        ids.map(|id| TokenId(id.as_u64().expect("a token") as u32)).collect::<Vec<_>>()
    };
    let cases = json["greedy"].as_array().expect("a list").iter().skip(1);
    let case = |case: &serde_json::Value| {
        let (prompt, all) = (ids(&case["prompt_ids"]), ids(&case["ids"]));
        let reply = all[prompt.len()..][..REPLY_TOKENS as usize].to_vec();
        (prompt, reply)
    };
    cases.map(case).collect()
}

fn start(registry: Registry) -> Engine {
    let options = EngineOptions {
        context_tokens: 128,
        max_agents: Some(4),
        max_rows: Some(32),
        max_prefill_tokens: Some(16),
        // Nothing is measured at load, so that all counted steps belong to replies.
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Path(data("models/tinystories-260k.gguf")))
    };
    Engine::start_with(options, registry).expect("an engine starts")
}

fn ask(client: &Client, agent: AgentId, prompt: Prompt) -> ReplyId {
    let reply_id = client.new_reply_id();
    client.try_send(Command::ask(agent, reply_id, prompt)).expect("there is room");
    reply_id
}

/// Events until this number of replies have ended.
fn hear(client: &Client, replies: usize) -> Vec<Event> {
    let start = Instant::now();
    let mut events: Vec<Event> = Vec::new();
    while events.iter().filter(|event| event.what.is_terminal()).count() < replies {
        match client.try_recv() {
            Some(event) => events.push(event),
            None => thread::sleep(Duration::from_micros(200)),
        }
        assert!(start.elapsed() < Duration::from_secs(30), "no end: {events:?}");
    }
    events
}

/// Two agents with two asks each: returns the text of each reply, in order, after checks that hold
/// for any reply.
fn conversation(engine: &Engine) -> Vec<String> {
    let client = engine.client(Pacing::FreeRunning).expect("a seat");
    let prompts = prompts();
    let asks: Vec<_> = (0..2_u32)
        .flat_map(|seed| {
            let agent = client.new_agent();
            let sampling = Sampling::builder().temperature(0.0).seed(seed.into()).build();
            let spec = AgentSpec {
                sampling: sampling.expect("valid"),
                max_reply_tokens: REPLY_TOKENS,
                ..AgentSpec::new("")
            };
            let command = Command::AddAgent { agent, spec: Box::new(spec) };
            client.try_send(command).expect("there is room");
            let prompt = |index: u32| Prompt::Tokens(prompts[index as usize].0.clone());
            [seed, 2 + seed].map(|index| ask(&client, agent, prompt(index)))
        })
        .collect();
    let events = hear(&client, asks.len());
    asks.iter()
        .map(|ask| {
            let of_reply = || events.iter().filter(|event| event.reply_id == *ask);
            let count = |is: fn(&ReplyEvent) -> bool| of_reply().filter(|e| is(&e.what)).count();
            assert_eq!(count(|what| matches!(what, ReplyEvent::Started { .. })), 1);
            assert_eq!(count(ReplyEvent::is_terminal), 1);
            assert_eq!(count(|what| matches!(what, ReplyEvent::Finished { .. })), 1, "{events:?}");
            let text = of_reply().filter_map(|event| match &event.what {
                ReplyEvent::Delta { text, .. } => Some(text.as_str()),
                _ => None,
            });
            text.collect()
        })
        .collect()
}

fn child() {
    let plan = FaultPlan::new(0).misdirect_from(BROKEN_STEP);
    let faulty = FaultyBackend::new(CudaBackend::from_env(), plan);
    lose(Registry::new().with(CudaBackend::from_env()), Registry::new().with(faulty));
}

/// The loss is only reported: a driver in software would end the process with a real fault. The
/// device still has steps in flight when it is dropped.
#[walla_reference_test::vulkan_test]
fn a_vulkan_device_lost_during_a_conversation_loses_no_reply() {
    let vulkan = |plan| {
        // Chosen also if the driver is in software.
        let backend = FaultyBackend::new(VulkanBackend::default(), plan).alias("gpu");
        Registry::new().with(backend)
    };
    let plan = FaultPlan::new(0).fail_call(Call::Launch, BROKEN_STEP, Fault::Lost);
    lose(vulkan(FaultPlan::new(0)), vulkan(plan));
}

/// A conversation on a device, and on one that is lost.
fn lose(device: Registry, lost: Registry) {
    let undisturbed = conversation(&start(device));
    let engine = start(lost.with(scalar()));
    let begun = Instant::now();
    let heard = conversation(&engine);
    let card = engine.model().expect("it is loaded");
    println!("lost: {}", card.device_line());
    assert!(card.device_line().starts_with("cpu (fallback after: device lost in"));
    println!(
        "lost: four replies ended once each, {:.1} s after the asks",
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(heard, undisturbed, "each whole reply is what the GPU alone generates");
    assert_reference(&engine, &heard);
}

/// The replies of [`conversation`] equal the reference.
fn assert_reference(engine: &Engine, heard: &[String]) {
    let tokenizer = engine.tokenizer().expect("it is loaded");
    for (index, heard) in [0, 2, 1, 3].into_iter().zip(heard) {
        let expected = tokenizer.decode(&prompts()[index].1).expect("they are tokens");
        // A decoded text has no leading space in this vocabulary.
        assert_eq!(heard.strip_prefix(' ').unwrap_or(heard), expected);
    }
}

#[test]
fn the_cpu_alone_generates_the_reference() {
    let engine = start(Registry::new().with(scalar()));
    assert_reference(&engine, &conversation(&engine));
}

/// A CPU whose kernels round only keys and values, as the GPU does.
fn scalar() -> CpuBackend {
    CpuBackend::new(CpuOptions { variant: Some(Variant::Scalar), ..CpuOptions::default() })
}
