//! Promise 2: no allocation per frame in the steady state, on the frame side.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::{Schedules, SingleThreadedExecutor};
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::ask::Cancel;
use bevy_walla::engines::EngineSet;
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;
use serde::Deserialize;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Allocations of threads that are counted separately.
static OF_THREAD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    if IS_COUNTED.get() {
        OF_THREAD.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "an allocator that counts")]
// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Typical uses of replies in a game: reads messages, observes agents.
#[derive(Resource, Default)]
struct Heard {
    deltas: usize,
    sentences: usize,
    bubble_bytes: usize,
}

fn read(
    mut deltas: MessageReader<ReplyDelta>,
    mut heard: ResMut<Heard>,
    bubbles: Query<&Speech, Changed<Speech>>,
) {
    heard.deltas += deltas.read().count();
    heard.bubble_bytes = bubbles.iter().map(|speech| speech.text().len()).sum();
}

fn app(engine: &ScriptedEngine) -> App {
    app_with(WallaPlugin::new(engine), WallaDiagnosticsPlugin)
}

fn app_with(plugin: WallaPlugin, more: impl Plugin) -> App {
    let mut app = App::new();
    app.add_plugins((plugin, more))
        .init_resource::<Heard>()
        .add_systems(Update, read)
        .add_action::<Give>();
    // Bevy's parallel executor allocates a task for each system it runs, which must not be counted.
    for (_, schedule) in app.world_mut().resource_mut::<Schedules>().iter_mut() {
        schedule.set_executor(SingleThreadedExecutor::new());
    }
    app
}

/// 64 agents that repeat the same text, each with an observer.
fn crowd(text: &'static str, max_tokens: u32) -> App {
    let app = app(&ScriptedEngine::new(|_, _| text.to_owned()).endless());
    crowd_of(app, max_tokens)
}

fn crowd_of(mut app: App, max_tokens: u32) -> App {
    for i in 0..64 {
        let parts = (Agent::persona("A"), AgentSeed(i), ReplyLimits::tokens(max_tokens));
        let agent = app
            .world_mut()
            .spawn(parts)
            .observe(|_: On<ReplySentence>, mut heard: ResMut<Heard>| heard.sentences += 1)
            .id();
        app.world_mut().trigger(Ask::new(agent, "Talk."));
    }
    app
}

/// Hands an item over.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
struct Give {
    item: String,
}

/// One test in this file: the allocator counts for the whole process.
#[test]
fn no_frame_allocates() {
    sixty_four_generating_agents_allocate_nothing_per_frame();
    agents_behind_a_router_allocate_nothing_per_frame();
    agents_with_cues_allocate_nothing_per_frame();
    idle_agents_with_actions_allocate_nothing_per_frame();
    a_recorder_allocates_nothing_on_the_frame_side();
}

/// The thread that writes allocates, so only the frame's thread counts while agents speak.
fn a_recorder_allocates_nothing_on_the_frame_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("session.walla");
    let engine = ScriptedEngine::new(|_, _| "Well met. ".to_owned()).endless();
    let plugin = WallaPlugin::new(&engine).record_to(&path);
    let mut app = crowd_of(app_with(plugin, WallaDiagnosticsPlugin), 2_000);
    for _ in 0..300 {
        app.update();
    }
    IS_COUNTED.set(true);
    let of_frames = (0..20).map(|_| {
        let before = OF_THREAD.load(Ordering::Relaxed);
        for _ in 0..50 {
            app.update();
        }
        OF_THREAD.load(Ordering::Relaxed) - before
    });
    let allocations: Vec<u64> = of_frames.collect();
    IS_COUNTED.set(false);
    let heard = app.world().resource::<Heard>();
    assert!(heard.deltas > 64 * 1_200, "{} deltas", heard.deltas);
    // A new buffer is allocated only if the thread that returns them is late, as on a busy machine.
    assert!(allocations.contains(&0), "each 50 frames of 64 recorded agents: {allocations:?}");
    assert!(allocations.iter().sum::<u64>() <= 256, "buffers alone: {allocations:?}");
    // While all agents are silent no thread allocates, when the recorder has written everything.
    let agents: Vec<Entity> =
        app.world_mut().query_filtered::<Entity, With<Agent>>().iter(app.world()).collect();
    for agent in agents {
        app.world_mut().trigger(Cancel::new(agent));
    }
    let begun = std::time::Instant::now();
    loop {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..1_000 {
            app.update();
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        if allocations == 0 {
            break;
        }
        let in_vain = "in 1,000 frames of 64 recorded agents that are silent";
        assert!(begun.elapsed().as_secs() < 120, "{allocations} {in_vain}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(app.world().resource::<bevy_walla::WallaRecorder>().is_recording());
    drop(app);
    let recording = bevy_walla::record::Recording::open(&path).expect("a recording");
    assert!(recording.is_complete() && recording.events().count() > 64 * 1_200);
}

/// Without the diagnostics, which list the engines.
fn agents_behind_a_router_allocate_nothing_per_frame() {
    let engine = ScriptedEngine::new(|_, _| "Well met. ".to_owned()).endless();
    let plugin = WallaPlugin::engines(EngineSet::new("default", &engine));
    let mut app = crowd_of(app_with(plugin, |_: &mut App| {}), 2_000);
    for _ in 0..300 {
        app.update();
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1_000 {
        app.update();
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let heard = app.world().resource::<Heard>();
    assert!(heard.deltas > 64 * 1_200, "{} deltas", heard.deltas);
    assert_eq!(allocations, 0, "in 1,000 frames of 64 speaking agents behind a router");
}

/// A reply that is no longer than the one before it.
fn agents_with_cues_allocate_nothing_per_frame() {
    let mut app = crowd("Well *smiles* met. ", 2_000);
    #[derive(Resource, Default)]
    struct Cued(usize);
    app.init_resource::<Cued>()
        .add_observer(|_: On<bevy_walla::cues::ReplyCue>, mut cued: ResMut<Cued>| cued.0 += 1);
    let agents: Vec<Entity> =
        app.world_mut().query_filtered::<Entity, With<Agent>>().iter(app.world()).collect();
    for &agent in &agents {
        let cues = bevy_walla::cues::Cues::new().with_cue("smile", ["smiles"]);
        app.world_mut().entity_mut(agent).insert(bevy_walla::cues::AgentCues(cues));
    }
    for frames in [500, 100] {
        for &agent in &agents {
            app.world_mut().trigger(Cancel::new(agent));
            app.world_mut().trigger(Ask::new(agent, "Talk."));
        }
        for _ in 0..frames {
            app.update();
        }
    }
    let before = (ALLOCATIONS.load(Ordering::Relaxed), app.world().resource::<Cued>().0);
    for _ in 0..300 {
        app.update();
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before.0;
    let cued = app.world().resource::<Cued>().0 - before.1;
    assert!(cued > 64 * 70, "{cued} cues");
    assert_eq!(allocations, 0, "in 300 frames of 64 agents with cues");
}

/// Agents that have acted and are not asked again.
fn idle_agents_with_actions_allocate_nothing_per_frame() {
    let call = || ("give".to_owned(), r#"{"item": "nails"}"#.to_owned());
    let script = ScriptedEngine::new(|_, _| "Here you are.".to_owned());
    let mut app = app(&script.acting(move |_, _| vec![call()]));
    #[derive(Resource, Default)]
    struct Given(usize);
    app.init_resource::<Given>().add_observer(
        |call: On<ActionCall<Give>>, mut given: ResMut<Given>| {
            given.0 += usize::from(call.item == "nails");
        },
    );
    for i in 0..64 {
        let actions =
            AgentActions::new().allow::<Give>().choices::<Give>("item", ["nails", "sword"]);
        let agent = app.world_mut().spawn((Agent::persona("A"), AgentSeed(i), actions)).id();
        app.world_mut().trigger(Ask::new(agent, "Nails, please."));
    }
    for _ in 0..100 {
        app.update();
    }
    assert_eq!(app.world().resource::<Given>().0, 64, "all have acted");
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1_000 {
        app.update();
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(allocations, 0, "in 1,000 frames of 64 idle agents with actions");
}

fn sixty_four_generating_agents_allocate_nothing_per_frame() {
    // 1,500 frames of at most 9 bytes each fit into 2,000 tokens of 8 bytes.
    let mut app = crowd("Well met. ", 2_000);
    for _ in 0..300 {
        app.update();
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1_200 {
        app.update();
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let heard = app.world().resource::<Heard>();
    assert!(heard.deltas > 64 * 1_400, "{} deltas: everybody spoke in every frame", heard.deltas);
    assert!(heard.sentences > 64 * 400, "{} sentences", heard.sentences);
    assert!(heard.bubble_bytes > 64 * 4_000, "{} bytes shown", heard.bubble_bytes);
    assert_eq!(allocations, 0, "in 1,200 frames of 64 speaking agents");

    // The end of a reply does not allocate either: both turns use reserved memory. The first round
    // lets Bevy's message buffers grow to 64 ends in one frame.
    let agents: Vec<Entity> =
        app.world_mut().query_filtered::<Entity, With<Agent>>().iter(app.world()).collect();
    for round in 0..2 {
        for &agent in &agents {
            app.world_mut().trigger(Cancel::new(agent));
        }
        app.update(); // sends the cancels; the events arrive in later frames
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        app.update();
        app.update();
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert!(round == 0 || allocations == 0, "{allocations} when 64 replies end");
        for &agent in &agents {
            app.world_mut().trigger(Ask::new(agent, "Go on."));
        }
        for _ in 0..100 {
            app.update();
        }
    }
    for agent in agents {
        let talk = app.world().get::<Conversation>(agent).expect("an agent has a conversation");
        assert_eq!(talk.turns().len(), 4);
        assert!(talk.turns()[1].text.len() > 4_000);
    }
}
