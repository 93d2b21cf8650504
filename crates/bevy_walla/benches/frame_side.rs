//! CPU cost of the plugin per frame, without a model: agents reply from a script.
//!
//! ```text
//! cargo bench -p bevy_walla --bench frame_side [-- --frames 1000 --json FILE --parallel --cold MIB --row N]
//! ```
//!
//! Every agent speaks one word in every frame, all of it published as messages and events, with one
//! observer on each agent. In one row a quarter of the agents act: each of their replies is 8 to 23
//! words and the call of a typed action, and the result of the action leads to the next reply.
//! Columns: *systems* is the time inside the plugin's systems, as the
//! plugin itself measures it. *frame* is a whole `App::update` minus that of an app without the
//! plugin, so it includes Bevy's share (running schedules, applying commands, observers) and the
//! script's. Both are in microseconds. *allocations* are of the whole process, per frame. Schedules
//! run on one thread. With `--parallel` they run as in most games, on Bevy's task pools, with a
//! pause between frames in which the pools' threads go to sleep. `--cold MIB` writes this many MiB
//! between frames, as a game's own work would, so that most of the plugin's data is evicted from
//! the core's caches. `--row N` measures only this row, from 0. With `--rounds N` each row runs N
//! times, and the time of a frame is its least one: the script repeats itself, so other programs
//! only add time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::{Schedules, SingleThreadedExecutor};
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;
use hdrhistogram::Histogram;
use serde::Deserialize;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[expect(unsafe_code, reason = "an allocator that counts")]
// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Warm-up frames: buffers reach their final size, caches are filled.
const FRAMES_WARM_UP: usize = 300;

/// Including the warm-up, the words of this many frames fit in the 16 KiB that the plugin reserves
/// for a reply at most. A longer reply would grow its buffer.
const MAX_FRAMES: usize = 3_000;

/// Words of 5 bytes, 11 to a sentence.
const SPEECH: &str = "This word goes with that one, and then some more come. ";

#[derive(Resource, Default)]
struct Heard(u64);

/// Calls of actions.
#[derive(Resource, Default)]
struct Acted(u64);

/// Hands an item over.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
struct Give {
    item: String,
    count: u8,
}

/// Agents of a row, and how many of them act.
#[derive(Clone, Copy)]
struct Crowd {
    agents: usize,
    acting: usize,
    /// The engine is one of several.
    is_routed: bool,
}

/// The rows: only speech, speech and actions, many agents, only speech behind a router.
const CROWDS: [Crowd; 4] = [
    Crowd { agents: 64, acting: 0, is_routed: false },
    Crowd { agents: 64, acting: 16, is_routed: false },
    Crowd { agents: 1_024, acting: 0, is_routed: false },
    Crowd { agents: 64, acting: 0, is_routed: true },
];

struct Row {
    crowd: Crowd,
    calls: u64,
    /// Times of each frame: in the plugin's systems, and as a whole.
    systems: Vec<Duration>,
    frame: Vec<Duration>,
    allocations: f64,
}

impl Row {
    /// The least time of each frame of two runs.
    fn least(mut self, other: Self) -> Self {
        for (times, others) in [(&mut self.systems, other.systems), (&mut self.frame, other.frame)]
        {
            times.iter_mut().zip(others).for_each(|(time, other)| *time = other.min(*time));
        }
        self
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after =
        |flag: &str| arguments.iter().position(|a| a == flag).and_then(|i| arguments.get(i + 1));
    let frames =
        after("--frames").and_then(|n| n.parse().ok()).unwrap_or(MAX_FRAMES).min(MAX_FRAMES);
    let kind =
        if arguments.iter().any(|a| a == "--parallel") { Kind::Parallel } else { Kind::OneThread };
    let cold = after("--cold").and_then(|n| n.parse().ok()).unwrap_or(0_usize);
    let mut between = Between { kind, evicted: vec![0; cold << 20] };
    let bare = bare_frame(frames, &mut between);
    let row = after("--row").and_then(|n| n.parse::<usize>().ok());
    let crowds = CROWDS.into_iter().enumerate().filter(|(n, _)| row.is_none_or(|row| row == *n));
    let rounds = after("--rounds").and_then(|n| n.parse().ok()).unwrap_or(1_usize).max(1);
    let measured = |(_, crowd)| {
        let first = measure(crowd, frames, bare, &mut between);
        (1..rounds).fold(first, |row, _| row.least(measure(crowd, frames, bare, &mut between)))
    };
    let rows: Vec<Row> = crowds.map(measured).collect();
    print_table(&rows, frames, bare);
    let json = to_json(&rows, frames, bare);
    println!("{json}");
    if let Some(path) = after("--json")
        && let Err(error) = std::fs::write(path, json)
    {
        eprintln!("{path}: {error}");
        std::process::exit(1);
    }
}

/// Median duration of a frame without the plugin.
fn bare_frame(frames: usize, between: &mut Between) -> Duration {
    let mut app = App::new();
    app.init_resource::<Heard>();
    between.kind.prepare(&mut app);
    let mut times = histogram();
    for _ in 0..frames {
        between.pass();
        let start = Instant::now();
        app.update();
        record(&mut times, start.elapsed());
    }
    Duration::from_nanos(times.value_at_quantile(0.5))
}

/// Agents that act have their number as persona, which determines the length of their replies. So
/// their calls are spread over the frames.
fn engine() -> ScriptedEngine {
    let text = |number| SPEECH.split_inclusive(' ').cycle().take(8 + number).collect();
    let texts: [String; 16] = std::array::from_fn(text);
    let script = move |persona: &str| match persona.parse::<usize>() {
        Ok(number) => texts[number % texts.len()].clone(),
        Err(_) => SPEECH.to_owned(),
    };
    let call = || ("give".to_owned(), r#"{"item": "horseshoe", "count": 3}"#.to_owned());
    let engine = ScriptedEngine::new(move |persona, _| script(persona)).endless();
    engine.acting(move |_, _| vec![call()])
}

fn act(call: On<ActionCall<Give>>, mut acted: ResMut<Acted>, mut commands: Commands) {
    acted.0 += u64::from(call.count > 0 && !call.item.is_empty());
    commands.entity(call.agent).action_result(call.id, "The horseshoes are sold.");
}

fn measure(crowd: Crowd, frames: usize, bare: Duration, between: &mut Between) -> Row {
    let mut app = App::new();
    let engine = engine();
    let plugin = if crowd.is_routed {
        WallaPlugin::engines(bevy_walla::engines::EngineSet::new("default", &engine))
    } else {
        WallaPlugin::new(&engine)
    };
    app.add_plugins(plugin)
        .init_resource::<Heard>()
        .init_resource::<Acted>()
        .add_action::<Give>()
        .add_observer(act);
    between.kind.prepare(&mut app);
    for i in 0..crowd.agents {
        let acts = i < crowd.acting;
        let persona = if acts { i.to_string() } else { "A".to_owned() };
        // The memory of a reply is reserved when it is asked.
        let max_tokens = if acts { 64 } else { u32::MAX };
        let parts = (Agent::persona(persona), AgentSeed(i as u64), ReplyLimits::tokens(max_tokens));
        let mut agent = app.world_mut().spawn(parts);
        if acts {
            agent.insert(
                AgentActions::new().allow::<Give>().choices::<Give>("item", ["horseshoe", "nails"]),
            );
        }
        let agent =
            agent.observe(|_: On<ReplySentence>, mut heard: ResMut<Heard>| heard.0 += 1).id();
        app.world_mut().trigger(Ask::new(agent, "Talk."));
    }
    (0..FRAMES_WARM_UP).for_each(|_| app.update());
    let (mut systems, mut frame) = (Vec::with_capacity(frames), Vec::with_capacity(frames));
    let calls_before = app.world().resource::<Acted>().0;
    let allocations_before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..frames {
        between.pass();
        let start = Instant::now();
        app.update();
        frame.push(start.elapsed().saturating_sub(bare));
        systems.push(app.world().resource::<Walla>().host_times().total());
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations_before;
    assert!(app.world().resource::<Heard>().0 > 0, "agents spoke");
    let calls = app.world().resource::<Acted>().0 - calls_before;
    assert_eq!(calls > 0, crowd.acting > 0, "agents act");
    Row { crowd, calls, systems, frame, allocations: allocations as f64 / frames as f64 }
}

/// How schedules run.
#[derive(Clone, Copy)]
enum Kind {
    /// Bevy's parallel executor allocates a task for each system and passes it to another thread.
    /// This mode measures without it.
    OneThread,
    Parallel,
}

impl Kind {
    fn prepare(self, app: &mut App) {
        if let Self::Parallel = self {
            return;
        }
        for (_, schedule) in app.world_mut().resource_mut::<Schedules>().iter_mut() {
            schedule.set_executor(SingleThreadedExecutor::new());
        }
    }
}

/// Work between frames.
struct Between {
    kind: Kind,
    /// Memory that is written to evict the caches.
    evicted: Vec<u8>,
}

impl Between {
    fn pass(&mut self) {
        const LINE: usize = 64;
        if let Kind::Parallel = self.kind {
            std::thread::sleep(Duration::from_millis(1));
        }
        for byte in self.evicted.iter_mut().step_by(LINE) {
            *byte = byte.wrapping_add(1);
        }
        std::hint::black_box(&self.evicted);
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("bounds of 1 ns and 1 s are valid")
}

fn record(times: &mut Histogram<u64>, time: Duration) {
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
}

fn micros(of_frames: &[Duration], quantile: f64) -> f64 {
    let mut times = histogram();
    of_frames.iter().for_each(|time| record(&mut times, *time));
    times.value_at_quantile(quantile) as f64 / 1e3
}

fn print_table(rows: &[Row], frames: usize, bare: Duration) {
    println!(
        "{frames} frames; a frame without the plugin takes {:.1} µs",
        bare.as_nanos() as f64 / 1e3
    );
    println!(
        "| agents | of them act | systems p50 | p99 | frame p50 | p99 | calls | allocations/frame |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for Row { crowd: Crowd { agents, acting, is_routed }, calls, systems, frame, allocations } in
        rows
    {
        println!(
            "| {agents}{} | {acting} | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} µs | {calls} | \
             {allocations:.2} |",
            if *is_routed { ", behind a router" } else { "" },
            micros(systems, 0.5),
            micros(systems, 0.99),
            micros(frame, 0.5),
            micros(frame, 0.99),
        );
    }
}

fn to_json(rows: &[Row], frames: usize, bare: Duration) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "agents": row.crowd.agents,
                "acting": row.crowd.acting,
                "routed": row.crowd.is_routed,
                "calls": row.calls,
                "systems_micros": { "p50": micros(&row.systems, 0.5), "p99": micros(&row.systems, 0.99) },
                "frame_micros": { "p50": micros(&row.frame, 0.5), "p99": micros(&row.frame, 0.99) },
                "allocations_per_frame": row.allocations,
            })
        })
        .collect();
    let bare_micros = bare.as_nanos() as f64 / 1e3;
    serde_json::json!({ "frames": frames, "bare_frame_micros": bare_micros, "rows": rows })
        .to_string()
}
