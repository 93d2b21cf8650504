//! A real GPU is lost under an engine in mid-conversation, in a separate process. Needs a GPU:
//! without one it reports that it is skipped.

use std::process::Command as Process;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use walla_cpu::{CpuBackend, CpuOptions};
use walla_cuda::CudaBackend;
use walla_device::{Backend, FaultPlan, FaultyBackend, Registry};
use walla_model::synth::{self, Mixture, Model};
use walla_runtime::{
    AgentId, AgentSpec, Client, Command, Engine, EngineOptions, Event, GenerationId, ModelSource,
    Pacing, Prompt, ReplyEvent,
};
use walla_tests::say_skipped;
use walla_types::{Sampling, TokenId};

/// Set in the process that breaks its GPU.
const CHILD: &str = "WALLA_TEST_LOST_GPU_CHILD";

const NAME: &str = "a_gpu_lost_in_mid_conversation_costs_no_reply";

/// Step whose page tables point outside of all memory: both agents are speaking.
const BROKEN_STEP: u64 = 9;

const REPLY_TOKENS: u32 = 24;

#[test]
fn a_gpu_lost_in_mid_conversation_costs_no_reply() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    if let Err(reason) = CudaBackend::from_env().devices() {
        say_skipped(reason);
        return;
    }
    let exe = std::env::current_exe().expect("it runs");
    let arguments = ["--exact", NAME, "--nocapture"];
    let output = Process::new(exe).args(arguments).env(CHILD, "1").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    assert!(said.contains("lost: cpu (fallback after: device lost in"), "{said}");
    said.lines().filter(|line| line.starts_with("lost: ")).for_each(|line| println!("{line}"));
}

fn model() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).expect("a vector takes everything")
    })
}

fn start(registry: Registry) -> Engine {
    let options = EngineOptions {
        context_tokens: 128,
        agents_max: 4,
        rows_max: 32,
        prefill_tokens_max: 16,
        // Nothing is measured at load, so that all counted steps belong to replies.
        budget: None,
        ..EngineOptions::new(ModelSource::Static(model()))
    };
    Engine::start_with(options, registry).expect("an engine starts")
}

fn ask(client: &Client, agent: AgentId, prompt: Prompt) -> GenerationId {
    let generation = client.new_generation();
    client.try_send(Command::Ask { agent, generation, prompt }).expect("there is room");
    generation
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
    let asks: Vec<_> = (0..2_u32)
        .flat_map(|seed| {
            let agent = client.new_agent();
            let sampling = Sampling::builder().temperature(0.0).seed(seed.into()).build();
            let spec = AgentSpec {
                sampling: sampling.expect("valid"),
                reply_tokens_max: REPLY_TOKENS,
                ..AgentSpec::new("")
            };
            let command = Command::AddAgent { agent, spec: Box::new(spec) };
            client.try_send(command).expect("there is room");
            let prompt = |first: u32| Prompt::Tokens((first..first + 12).map(TokenId).collect());
            [40 + seed, 70 + seed].map(|first| ask(&client, agent, prompt(first)))
        })
        .collect();
    let events = hear(&client, asks.len());
    asks.iter()
        .map(|ask| {
            let of_reply = || events.iter().filter(|event| event.generation == *ask);
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
    let cpu = || CpuBackend::new(CpuOptions::default());
    let undisturbed = conversation(&start(Registry::new().with(CudaBackend::from_env())));
    let plan = FaultPlan::new(0).misdirect_from(BROKEN_STEP);
    let faulty = FaultyBackend::new(CudaBackend::from_env(), plan);
    let engine = start(Registry::new().with(faulty).with(cpu()));
    let begun = Instant::now();
    let heard = conversation(&engine);
    let card = engine.model().expect("it is loaded");
    println!("lost: {}", card.device_line());
    println!(
        "lost: four replies ended once each, {:.1} s after the asks",
        begun.elapsed().as_secs_f64()
    );
    let same = heard.iter().zip(&undisturbed).filter(|(a, b)| a == b).count();
    println!("lost: {same} of {} replies are what the GPU alone says", heard.len());
    // The CPU rounds differently, so the text may differ after the switch to the CPU, but not
    // before. Only the first byte is compared.
    for (heard, undisturbed) in heard.iter().zip(&undisturbed) {
        assert!(!heard.is_empty());
        assert_eq!(heard.as_bytes().first(), undisturbed.as_bytes().first());
    }
}
