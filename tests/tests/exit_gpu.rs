//! An engine ends on a real GPU with 64 agents in mid-reply: measures when hosts are notified and
//! when the memory is free again. Needs a GPU.
//!
//! `WALLA_TEST_EXIT_CYCLES` sets the number of engines (default 3), `WALLA_TEST_EXIT_LAYERS` the
//! layers of the model (default 4; 16 is the whole shape of Llama 3.2 1B).

use std::thread;
use std::time::{Duration, Instant};

use walla_cuda::CudaBackend;
use walla_device::{Backend, OpenOptions, Registry};
use walla_doubles::synth::{self, Mixture, Model};
use walla_reference_test::gpu_test;
use walla_runtime::{
    AgentSpec, Client, Command, Engine, EngineOptions, FrameBudget, ModelSource, Pacing, Prompt,
    ReplyEvent,
};
use walla_types::TokenId;

const AGENTS: u32 = 64;

/// Maximum time of dropping the last handle: 300 ms, and a margin for a busy machine.
const MAX_DROP: Duration = Duration::from_millis(400);

/// Maximum time until every reply has ended after a stop: the memory is freed later.
const MAX_TOLD: Duration = Duration::from_millis(40);

/// Maximum time until device and memory are released.
const MAX_FREED: Duration = Duration::from_secs(5);

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Free memory of the first GPU, in bytes, as another device on it sees it.
fn free_bytes() -> u64 {
    let backend = CudaBackend::from_env();
    let device = backend.open("cuda:0", &OpenOptions::default()).expect("it opens");
    device.info().memory_free_bytes.expect("an open device knows")
}

/// Starts an engine and waits until all agents are in mid-reply.
fn speaking(model: &'static [u8]) -> (Engine, Client) {
    let options = EngineOptions {
        max_agents: Some(AGENTS),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(model))
    };
    let registry = Registry::new().with(CudaBackend::from_env());
    let engine = Engine::start_with(options, registry).expect("it starts");
    let client = engine.client(Pacing::FreeRunning).expect("a place");
    for n in 0..AGENTS {
        let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
        let spec = Box::new(AgentSpec { max_reply_tokens: 900, ..AgentSpec::new("") });
        client.try_send(Command::AddAgent { agent, spec }).expect("room");
        let prompt = Prompt::Tokens((0..20).map(|token| TokenId(n + token)).collect());
        client.try_send(Command::ask(agent, reply_id, prompt)).expect("room");
    }
    let (mut started, begin) = (0, Instant::now());
    while started < AGENTS {
        match client.try_recv().map(|event| event.what) {
            Some(ReplyEvent::Started { .. }) => started += 1,
            Some(ReplyEvent::Failed(error)) => panic!("{error}"),
            _ => thread::sleep(Duration::from_micros(50)),
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", engine.state());
    }
    thread::sleep(Duration::from_millis(20));
    (engine, client)
}

#[gpu_test]
fn an_exit_with_64_agents_in_flight_is_bounded_and_frees_the_memory() {
    let shape = Model { layers: number("WALLA_TEST_EXIT_LAYERS", 4), ..Model::LLAMA_3_2_1B };
    let model = synth::write(&shape, Mixture::Q8_0, 7, Vec::new()).expect("a vector takes all");
    let model: &'static [u8] = model.leak();
    let before = free_bytes();
    for cycle in 0..number("WALLA_TEST_EXIT_CYCLES", 3) {
        let (engine, client) = speaking(model);
        // Stopped: every reply ends before the memory is free.
        engine.stop();
        let (begin, mut ends) = (Instant::now(), 0);
        while ends < AGENTS {
            match client.try_recv() {
                Some(event) => ends += u32::from(event.what.is_terminal()),
                None => thread::sleep(Duration::from_micros(50)),
            }
            assert!(begin.elapsed() < MAX_FREED, "{ends} replies have ended");
        }
        let told = begin.elapsed();
        assert!(told < MAX_TOLD, "{told:?}");
        while !engine.is_ended() {
            assert!(begin.elapsed() < MAX_FREED, "the memory is not free");
            thread::sleep(Duration::from_micros(200));
        }
        let freed = begin.elapsed();
        drop((client, engine));
        // Dropped within a reply, as at the end of an app.
        let (engine, client) = speaking(model);
        let begin = Instant::now();
        drop((client, engine));
        let dropped = begin.elapsed();
        let left = loop {
            let left = before.saturating_sub(free_bytes());
            if left < 64 << 20 || begin.elapsed() > MAX_FREED {
                break left;
            }
            thread::sleep(Duration::from_millis(20));
        };
        println!(
            "exit: cycle {cycle}: told after {told:.1?}, freed after {freed:.1?}; dropped in {dropped:.1?}, \
             {} MiB left after {:.1?}",
            left >> 20,
            begin.elapsed()
        );
        assert!(dropped < MAX_DROP, "{dropped:?}");
        assert!(left < 64 << 20, "{} MiB are not free", left >> 20);
    }
}
