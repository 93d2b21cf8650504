//! Engines that are started and dropped in every state, that fail to load, and whose weights are
//! noise: each reply ends once, and no thread and no memory remains.
//!
//! `WALLA_LIFECYCLE_CYCLES=1000` makes long runs. On a GPU, with one thread:
//! ```text
//! cargo test -p walla_runtime --features cuda --release --test reliability -- \
//!     --ignored --test-threads=1
//! ```

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{eventually, inline_cpu};
use walla_device::{OpenOptions, Registry};
use walla_doubles::synth::{self, Mixture, Model};
use walla_doubles::{FaultPlan, FaultyBackend};
use walla_model::Gguf;
use walla_runtime::{
    AgentSpec, Client, Command, Engine, EngineError, EngineOptions, EngineState, Event,
    FrameBudget, ModelSource, Pacing, Prompt, ReplyError, ReplyEvent, ReplyId, TrySendError,
    default_registry,
};
use walla_types::{Sampling, TokenId};

/// Bytes allocated now.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

struct Counting;

#[expect(unsafe_code, reason = "counts what the system's allocator is asked for")]
// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests of this file count threads and bytes of the process, so they run sequentially.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn model() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).unwrap())
}

fn cycles(usual: u64) -> u64 {
    let wanted = std::env::var("WALLA_LIFECYCLE_CYCLES").ok();
    wanted.map_or(usual, |text| text.parse().expect("WALLA_LIFECYCLE_CYCLES is a number"))
}

fn options() -> EngineOptions {
    EngineOptions {
        context_tokens: 128,
        max_agents: Some(8),
        max_rows: Some(32),
        max_prefill_tokens: Some(16),
        threads: Some(1),
        budget: FrameBudget::Unlimited,
        ..EngineOptions::new(ModelSource::Static(model()))
    }
}

fn ask(client: &Client, max_reply_tokens: u32) -> ReplyId {
    let (agent, reply_id) = (client.new_agent(), client.new_reply_id());
    let sampling = Sampling::builder().seed(agent.0).build().unwrap();
    let spec = AgentSpec { sampling, max_reply_tokens, ..AgentSpec::new("") };
    client.try_send(Command::AddAgent { agent, spec: Box::new(spec) }).unwrap();
    let prompt = Prompt::Tokens((1..40).map(TokenId).collect());
    client.try_send(Command::ask(agent, reply_id, prompt)).unwrap();
    reply_id
}

/// Events until `count` replies have ended.
fn ends(client: &Client, count: usize) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    while events.iter().filter(|event| event.what.is_terminal()).count() < count {
        events.push(eventually("an event", || client.try_recv()));
    }
    events
}

fn failure(engine: &Engine) -> String {
    eventually("failed", || match engine.state() {
        EngineState::Failed(error) => Some(error.to_string()),
        _ => None,
    })
}

/// Number of threads of this process that engines started.
fn threads() -> Option<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    Some(tasks.filter_map(name).filter(|name| name.starts_with("walla")).count())
}

/// Runs `cycle` repeatedly. Afterwards all threads have ended, and no more memory is allocated than
/// after the first cycles.
fn frees_everything(cycles: u64, mut cycle: impl FnMut(u64)) {
    let settled = |what: &str| {
        eventually(what, || (threads().unwrap_or(0) == 0).then_some(()));
        LIVE_BYTES.load(Ordering::Relaxed)
    };
    (0..cycles.div_ceil(4).max(8)).for_each(&mut cycle);
    let before = settled("the threads of the first cycles end");
    (0..cycles).for_each(&mut cycle);
    let after = settled("the threads of the last cycles end");
    // One engine of this model holds more than 200,000 bytes.
    assert!(after - before < 50_000, "{cycles} cycles hold {} bytes more", after - before);
}

/// States in which an engine is dropped.
const STATES: [&str; 8] = [
    "just launched",
    "ready",
    "a prompt being read",
    "speaking",
    "a full queue of events",
    "waiting for frames",
    "stopping",
    "hanging",
];

fn bring_into(state: &str, engine: &Engine) -> Client {
    let pacing =
        if state == "waiting for frames" { Pacing::default() } else { Pacing::FreeRunning };
    let client = engine.client(pacing).unwrap();
    if state == "just launched" {
        return client;
    }
    if state == "hanging" {
        ask(&client, 100);
        thread::sleep(Duration::from_millis(3));
        return client;
    }
    eventually("ready", || engine.state().is_ready().then_some(()));
    match state {
        "ready" => {}
        "a prompt being read" | "waiting for frames" => {
            ask(&client, 100);
            ask(&client, 9);
        }
        "a full queue of events" => {
            for _ in 0..8 {
                ask(&client, 80);
            }
            let events = || engine.stats().queue_full > 0;
            eventually("the queue is full", || events().then_some(()));
        }
        _ => {
            ask(&client, 100);
            let is_delta = |event: Event| matches!(event.what, ReplyEvent::Delta { .. });
            eventually("a delta", || client.try_recv().filter(|event| is_delta(event.clone())));
            if state == "stopping" {
                engine.stop();
            }
        }
    }
    client
}

/// Drops engines in every state. Their memory is free, and each state has a fast exit: on a busy
/// machine any exit may be late.
fn exits_in_every_state(start: impl Fn(&str, u64) -> Engine, cycles: u64) {
    let mut shortest = STATES.map(|state| (state, Duration::MAX));
    frees_everything(cycles, |cycle| {
        for (state, shortest) in &mut shortest {
            let engine = start(state, cycle);
            let client = bring_into(state, &engine);
            let begun = Instant::now();
            // The last handle waits, whether it is an engine or a client.
            if cycle.is_multiple_of(2) {
                drop((engine, client));
            } else {
                drop((client, engine));
            }
            *shortest = begun.elapsed().min(*shortest);
        }
    });
    println!("{cycles} cycles, exits: {shortest:?}");
    // The promised limit is 100 ms; the margin is for busy machines.
    let is_fast = |(_, exit): &(_, Duration)| *exit < Duration::from_millis(400);
    assert!(shortest.iter().all(is_fast), "{shortest:?}");
}

#[test]
fn engines_end_in_every_state_and_free_everything() {
    let _alone = alone();
    let start = |state: &str, cycle| {
        let plan = FaultPlan::new(cycle);
        let plan = if state == "hanging" { plan.never_complete(1) } else { plan };
        let options = match state {
            "a full queue of events" => EngineOptions { event_queue: 8, ..options() },
            _ => options(),
        };
        let registry = Registry::new().with(FaultyBackend::new(inline_cpu(), plan));
        Engine::start_with(options, registry).unwrap()
    };
    exits_in_every_state(start, cycles(12));
}

#[test]
#[ignore = "needs a GPU: see the top of this file for the command"]
fn engines_on_a_gpu_end_in_every_state_and_free_everything() {
    let _alone = alone();
    let free_bytes = || {
        let device = default_registry().open("cuda:0", &OpenOptions::default()).unwrap();
        device.info().memory_free_bytes.unwrap()
    };
    let start = |state: &str, _| {
        let event_queue = if state == "a full queue of events" { 8 } else { options().event_queue };
        let device = "cuda:0".to_owned();
        Engine::start(EngineOptions { device, event_queue, ..options() }).unwrap()
    };
    // The first engine allocates the driver's memory.
    exits_in_every_state(start, 1);
    let before = free_bytes();
    exits_in_every_state(start, cycles(20));
    let after = free_bytes();
    println!("free: {before} bytes before, {after} bytes after");
    assert!(before.saturating_sub(after) < 1 << 20, "{before} bytes were free, now {after}");
}

#[test]
fn a_failed_load_frees_everything_and_the_next_one_works() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, &model()[..model().len() / 2]).unwrap();
    let truncated = || ModelSource::Path(broken.clone());
    let missing = || ModelSource::Path(folder.path().join("missing.gguf"));
    frees_everything(cycles(8), |cycle| {
        let failing: [Box<dyn Fn() -> Result<Engine, EngineError>>; 4] = [
            Box::new(|| Engine::start(EngineOptions::new(truncated()))),
            Box::new(|| Engine::start(EngineOptions::new(missing()))),
            Box::new(|| Engine::start(EngineOptions { device: "cuda:9".into(), ..options() })),
            Box::new(move || {
                let plan = FaultPlan::new(cycle).max_memory_bytes(10_000 + 20_000 * cycle);
                let backend = FaultyBackend::new(inline_cpu(), plan);
                Engine::start_with(options(), Registry::new().with(backend))
            }),
        ];
        for start in failing {
            let Ok(engine) = start() else { continue };
            if let Ok(client) = engine.client(Pacing::FreeRunning) {
                let agent = client.new_agent();
                let spec = Box::new(AgentSpec::new(""));
                let _refused = client.try_send(Command::AddAgent { agent, spec });
            }
            assert!(!failure(&engine).is_empty());
        }
        let engine = Engine::start_with(options(), Registry::new().with(inline_cpu())).unwrap();
        let client = engine.client(Pacing::FreeRunning).unwrap();
        let reply_id = ask(&client, 6);
        let events = ends(&client, 1);
        assert!(events.iter().all(|event| event.reply_id == reply_id));
        let finished = |event: &Event| matches!(event.what, ReplyEvent::Finished { .. });
        assert!(events.iter().any(finished), "{events:?}");
    });
}

/// Handles of an engine that was replaced: errors return the payload, and no event of another
/// engine arrives.
#[test]
fn a_reload_drains_the_old_engine_and_its_handles_are_stale() {
    let _alone = alone();
    frees_everything(cycles(10), |_| {
        let start = || Engine::start_with(options(), Registry::new().with(inline_cpu())).unwrap();
        let old = start();
        let stale = old.client(Pacing::FreeRunning).unwrap();
        let asked = [ask(&stale, 100), ask(&stale, 100)];
        eventually("it speaks", || (old.stats().tokens > 0).then_some(()));
        let new = start();
        let fresh = new.client(Pacing::FreeRunning).unwrap();
        let reply_id = ask(&fresh, 8);
        old.stop();
        let of_old = ends(&stale, 2);
        for asked in asked {
            let of_reply = of_old.iter().filter(|event| event.reply_id == asked);
            let terminal: Vec<_> = of_reply.filter(|event| event.what.is_terminal()).collect();
            assert_eq!(terminal.len(), 1);
            let is_gone = matches!(terminal[0].what, ReplyEvent::Failed(ReplyError::EngineGone(_)));
            let is_done = matches!(terminal[0].what, ReplyEvent::Finished { .. });
            assert!(is_gone || is_done, "{terminal:?}");
        }
        eventually("the thread ends", || old.is_ended().then_some(()));
        let late = Command::RemoveAgent { agent: stale.new_agent() };
        assert_eq!(stale.try_send(late.clone()), Err(TrySendError::Closed(late)));
        assert!(matches!(old.client(Pacing::FreeRunning), Err(EngineError::Stopped)));
        stale.frame();
        old.set_budget(None);
        old.set_kv_tokens(1);
        assert_eq!(stale.try_recv(), None);
        drop(old);
        assert!(ends(&fresh, 1).iter().all(|event| event.reply_id == reply_id));
        assert!(new.state().is_ready());
    });
}

/// A forgotten handle leaks only host memory: the engine owns every buffer that a step may still
/// write.
#[test]
fn leaked_handles_block_no_step_and_no_exit() {
    let _alone = alone();
    for _ in 0..4 {
        let engine = Engine::start_with(options(), Registry::new().with(inline_cpu())).unwrap();
        let [forgotten, other] = [(); 2].map(|()| engine.client(Pacing::FreeRunning).unwrap());
        ask(&forgotten, 100);
        eventually("it speaks", || (engine.stats().tokens > 0).then_some(()));
        std::mem::forget(forgotten);
        let reply_id = ask(&other, 20);
        assert!(ends(&other, 1).iter().all(|event| event.reply_id == reply_id));
        // The forgotten client's handle keeps the engine alive; a stop ends it anyway.
        engine.stop();
        eventually("the thread ends", || engine.is_ended().then_some(()));
    }
    eventually("all threads end", || (threads().unwrap_or(0) == 0).then_some(()));
}

/// Positions of the weights in the file, without tables that the specification checks.
fn weights(bytes: &'static [u8]) -> Vec<std::ops::Range<usize>> {
    let file = Gguf::from_static(bytes).unwrap();
    let names: Vec<String> = file.tensors().map(|tensor| tensor.name.to_owned()).collect();
    let weights = names.iter().enumerate().filter(|(_, name)| !name.starts_with("rope_freqs"));
    weights
        .map(|(index, _)| {
            let data = file.tensor_bytes(index).unwrap();
            let start = data.as_ptr().addr() - bytes.as_ptr().addr();
            start..start + data.len()
        })
        .collect()
}

/// A file with a valid header and random bytes as weights: its replies are meaningless or fail.
#[test]
fn random_weights_end_each_reply_once() {
    let _alone = alone();
    for seed in 0..6_u64 {
        let mut bytes = model().to_vec();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for range in weights(model()) {
            for byte in &mut bytes[range] {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // All byte values, mostly zeros, or bytes that form NaN and infinity in 16 and 32
                // bits.
                *byte = match seed % 3 {
                    0 => (random >> 56) as u8,
                    1 => ((random >> 56) as u8) & u8::from(random >> 40 & 7 == 0).wrapping_neg(),
                    _ => [0xff, 0x7f, 0x7c, 0x80][(random >> 60) as usize % 4],
                };
            }
        }
        let source = ModelSource::Static(bytes.leak());
        let noisy = EngineOptions { model: source, ..options() };
        let engine = Engine::start_with(noisy, Registry::new().with(inline_cpu())).unwrap();
        let client = engine.client(Pacing::FreeRunning).unwrap();
        let asked: Vec<_> = (0..4).map(|_| ask(&client, 12)).collect();
        let events = ends(&client, asked.len());
        for reply_id in asked {
            let of_reply = events.iter().filter(|event| event.reply_id == reply_id);
            assert_eq!(of_reply.filter(|event| event.what.is_terminal()).count(), 1);
        }
        assert!(engine.state().is_ready(), "{:?}", engine.state());
    }
}
