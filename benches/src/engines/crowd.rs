//! Frame times of an app whose agents speak again and again.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::EngineOptions;
use bevy_walla::agent::AgentEngine;
use bevy_walla::engines::{EngineSet, EngineSetup, WallaEngines};
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use bevy_walla::scripted::ScriptedEngine;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Agents of one engine.
pub struct Group {
    engine: String,
    agents: usize,
}

impl Group {
    pub fn new(engine: impl Into<String>, agents: usize) -> Self {
        Self { engine: engine.into(), agents }
    }
}

/// One measurement.
pub struct Plan {
    /// The demo model is the default engine; otherwise there is no usable default.
    pub has_default: bool,
    pub engines: Vec<(String, EngineSetup)>,
    pub groups: Vec<Group>,
    /// Mean time between the end of a reply and the next ask of its agent.
    pub pause_seconds: f64,
    pub frame_rate: u32,
    pub seconds: u32,
}

/// A local engine on a device.
pub fn local(model: Option<&PathBuf>, device: &str) -> EngineSetup {
    let source = model.map_or_else(ModelSource::demo, |path| ModelSource::Path(path.clone()));
    let mut options = EngineOptions::new(source);
    options.device = device.to_owned();
    options.into()
}

/// Time before the measurement.
const WARM_UP: Duration = Duration::from_secs(5);

/// Asks that are due, and counts of the ends.
#[derive(Resource, Default)]
struct Talk {
    due: Vec<(Instant, Entity)>,
    pause_seconds: f64,
    random: u64,
    asked: u64,
    finished: u64,
    failed: HashMap<String, u64>,
    tokens: u64,
    first_token_millis: Vec<f64>,
}

impl Talk {
    /// An exponentially distributed pause.
    fn pause(&mut self) -> Duration {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let uniform = ((self.random >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        Duration::from_secs_f64(-self.pause_seconds * uniform.ln())
    }

    fn later(&mut self, agent: Entity) {
        let pause = self.pause();
        self.due.push((Instant::now() + pause, agent));
    }
}

fn ask(mut talk: ResMut<Talk>, mut commands: Commands) {
    let now = Instant::now();
    let talk = &mut *talk;
    let asked = &mut talk.asked;
    talk.due.retain(|&(due, agent)| {
        if due <= now {
            *asked += 1;
            commands.trigger(Ask::new(agent, "What news?"));
        }
        due > now
    });
}

fn hear(
    mut finished: MessageReader<ReplyFinished>,
    mut failed: MessageReader<ReplyFailed>,
    mut talk: ResMut<Talk>,
) {
    for end in finished.read() {
        talk.finished += 1;
        talk.tokens += u64::from(end.usage.reply_tokens);
        talk.first_token_millis.push(end.usage.first_token_micros as f64 / 1e3);
        talk.later(end.agent);
    }
    for end in failed.read() {
        *talk.failed.entry(end.error.to_string()).or_default() += 1;
        talk.later(end.agent);
    }
}

pub fn measure(plan: Plan) -> Result<Value, Box<dyn Error>> {
    let default = if plan.has_default {
        EngineSetup::default()
    } else {
        EngineSetup::from(&ScriptedEngine::new(|_, _| String::new()))
    };
    let set = EngineSet::new("default", default);
    let engines = plan.engines.into_iter().fold(set, |set, (name, setup)| set.with(name, setup));
    let mut app = App::new();
    app.add_plugins(WallaPlugin::engines(engines))
        .insert_resource(Talk { pause_seconds: plan.pause_seconds, random: 1, ..Talk::default() })
        .add_systems(Update, (hear, ask).chain());
    let begin = Instant::now();
    while app
        .world()
        .resource::<WallaEngines>()
        .list()
        .iter()
        .any(|engine| matches!(engine.state, bevy_walla::engine::EngineState::Loading { .. }))
    {
        if begin.elapsed() > Duration::from_secs(300) {
            return Err("an engine does not load".into());
        }
        app.update();
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut agents = 0;
    for Group { engine, agents: count } in &plan.groups {
        for at in 0..*count {
            let persona = format!("You are guest {at} of the tavern.");
            let parts = (
                Agent::persona(persona),
                AgentEngine::named(engine.as_str()),
                AgentSeed(at as u64 + 1),
                ReplyLimits::tokens(32),
            );
            let agent = app.world_mut().spawn(parts).id();
            app.world_mut().resource_mut::<Talk>().later(agent);
            agents += 1;
        }
    }
    let frame = Duration::from_secs(1) / plan.frame_rate.max(1);
    let frames = |time: Duration| (time.as_secs_f64() / frame.as_secs_f64()) as u32;
    run(&mut app, frame, frames(WARM_UP), &mut |_, _| {});
    *app.world_mut().resource_mut::<Talk>() = {
        let talk = app.world_mut().resource_mut::<Talk>();
        Talk {
            due: talk.due.clone(),
            pause_seconds: talk.pause_seconds,
            random: talk.random,
            ..Talk::default()
        }
    };
    let mut updates = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut systems = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let (mut memory, mut threads) = (0, 0);
    let begin = Instant::now();
    run(&mut app, frame, frames(Duration::from_secs(plan.seconds.into())), &mut |app, time| {
        updates.saturating_record(time.as_nanos() as u64);
        let of_plugin = app.world().resource::<Walla>().host_times().total();
        systems.saturating_record(of_plugin.as_nanos() as u64);
        let (threads_now, memory_now) = use_of_process();
        (memory, threads) = (memory.max(memory_now), threads.max(threads_now));
    });
    let seconds = begin.elapsed().as_secs_f64();
    let micros = |histogram: &Histogram<u64>| {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        json!({
            "p50": at(0.5),
            "p99": at(0.99),
            "p999": at(0.999),
            "max": histogram.max() as f64 / 1e3,
        })
    };
    let talk = app.world().resource::<Talk>();
    let mut first = talk.first_token_millis.clone();
    first.sort_by(f64::total_cmp);
    let quantile = |q: f64| first.get((first.len() as f64 * q) as usize).copied();
    let engines: Vec<_> = app
        .world()
        .resource::<WallaEngines>()
        .list()
        .iter()
        .map(|engine| json!({"name": &*engine.name, "tokens": engine.stats.tokens}))
        .collect();
    let groups: Vec<_> =
        plan.groups.iter().map(|group| json!({group.engine.as_str(): group.agents})).collect();
    Ok(json!({
        "groups": groups,
        "agents": agents,
        "frames": updates.len(),
        "update_micros": micros(&updates),
        "plugin_micros": micros(&systems),
        "asked": talk.asked,
        "finished": talk.finished,
        "failed": talk.failed,
        "tokens_per_second": talk.tokens as f64 / seconds,
        "first_token_millis": {"p50": quantile(0.5), "p99": quantile(0.99)},
        "resident_mib_max": memory / 1024 / 1024,
        "threads_max": threads,
        "engines": engines,
    }))
}

/// Runs frames at a fixed rate. `each` gets the duration of each update.
fn run(app: &mut App, frame: Duration, frames: u32, each: &mut dyn FnMut(&App, Duration)) {
    let mut next = Instant::now();
    for _ in 0..frames {
        let begin = Instant::now();
        app.update();
        each(app, begin.elapsed());
        next += frame;
        let rest = next.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            next = Instant::now(); // a late frame does not shorten the following ones
        }
        std::thread::sleep(rest);
    }
}

/// Threads of this process, and its resident memory in bytes. Zero on systems without `/proc`.
pub fn use_of_process() -> (usize, u64) {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    (threads, pages.unwrap_or(0) * 4_096)
}
