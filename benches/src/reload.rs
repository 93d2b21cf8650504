//! The frames of a game whose characters change while they talk: 64 agents of one file, which is
//! written and loaded again, as hot reloading does.
//!
//! ```text
//! cargo run --release -p walla_benches --features assets --bin reload
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bevy_app::{TaskPoolPlugin, prelude::*};
use bevy_asset::{AssetPlugin, AssetServer};
use bevy_ecs::prelude::*;
use bevy_walla::characters::{CharacterApplied, CharacterHandle, WallaCharacterPlugin};
use bevy_walla::prelude::*;
use bevy_walla::reply::FinishReason;
use clap::Parser;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use walla_benches::{machine, output};

/// Measures the frames of a game while the file of its characters changes.
#[derive(Debug, Parser)]
struct Args {
    /// Agents, which talk all the time.
    #[arg(long, default_value_t = 64)]
    agents: usize,
    /// Length of each measurement in frames.
    #[arg(long, default_value_t = 1_800)]
    frames: usize,
    /// Frames between two changes of the file.
    #[arg(long, default_value_t = 60)]
    interval: usize,
    /// Threads of the engine.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// A GGUF file instead of the demo model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

const FRAME: Duration = Duration::from_nanos(16_666_667);

const FILE: &str = "greta.character.ron";

/// Counts of the replies and of the changes.
#[derive(Resource, Default, Clone, Copy)]
struct Counts {
    finished: u64,
    cancelled: u64,
    failed: u64,
    applied: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, args.model.as_slice())?;
    }
    println!(
        "| changes | update of the app p50, p99, max, µs | walla's systems, mean µs | frames over \
         budget | replies finished, cancelled, failed |\n|---|---|---|---|---|"
    );
    let rows = [measure(&args, false)?, measure(&args, true)?];
    if let Some(path) = &args.output {
        let report = json!({"machine": machine::facts(args.commit.as_deref()), "rows": rows});
        output::replace(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

fn write(folder: &Path, number: usize) -> std::io::Result<()> {
    let persona =
        format!("You are Greta, the smith of Emberfall. A horseshoe costs {number} silver.");
    let text = format!("(persona: {persona:?}, seed: {number}, max_tokens: 40)");
    std::fs::write(folder.join(FILE), text)
}

fn measure(args: &Args, changes: bool) -> Result<Value, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    write(folder.path(), 3)?;
    let mut app = app(args, folder.path());
    let handle = app.world().resource::<AssetServer>().load(FILE);
    for number in 0..args.agents {
        let seed = AgentSeed(number as u64);
        let agent = app.world_mut().spawn((CharacterHandle(handle.clone()), seed)).id();
        app.world_mut().trigger(Ask::new(agent, "What is new?"));
    }
    // Until all of them have spoken.
    while app.world().resource::<Counts>().finished < args.agents as u64 {
        app.update();
        std::thread::sleep(Duration::from_millis(1));
    }
    let before =
        (*app.world().resource::<Counts>(), app.world().resource::<Walla>().stats().budget);
    let (mut update, mut host) = (Histogram::<u64>::new(3)?, Duration::ZERO);
    let mut next = Instant::now();
    for frame in 0..args.frames {
        if changes && frame % args.interval == 0 {
            write(folder.path(), 3 + frame)?;
            app.world().resource::<AssetServer>().reload(FILE);
        }
        let begun = Instant::now();
        app.update();
        update.record(begun.elapsed().as_nanos() as u64)?;
        host += app.world().resource::<Walla>().host_times().total();
        next += FRAME;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let (after, budget) =
        (*app.world().resource::<Counts>(), app.world().resource::<Walla>().stats().budget);
    let micros = |at: f64| update.value_at_quantile(at) as f64 / 1e3;
    let applied = after.applied - before.0.applied;
    let (finished, cancelled) =
        (after.finished - before.0.finished, after.cancelled - before.0.cancelled);
    let failed = after.failed - before.0.failed;
    let frames_over = budget.frames_over - before.1.frames_over;
    let frames_overdrawn = budget.frames_overdrawn - before.1.frames_overdrawn;
    let mean = host.as_secs_f64() * 1e6 / args.frames as f64;
    println!(
        "| {applied} | {:.0}, {:.0}, {:.0} | {mean:.0} | {frames_over} of {} ({frames_overdrawn} \
         planned) | {finished}, {cancelled}, {failed} |",
        micros(0.5),
        micros(0.99),
        micros(1.0),
        args.frames,
    );
    Ok(json!({
        "applied": applied, "frames": args.frames, "agents": args.agents,
        "update_micros": {"p50": micros(0.5), "p99": micros(0.99), "max": micros(1.0)},
        "host_mean_micros": mean, "frames_over": frames_over, "frames_overdrawn": frames_overdrawn,
        "replies": {"finished": finished, "cancelled": cancelled, "failed": failed},
    }))
}

fn app(args: &Args, folder: &Path) -> App {
    let options = match &args.model {
        Some(path) => EngineOptions::model(path),
        None => EngineOptions::demo(),
    };
    let options = EngineOptions {
        threads: Some(args.threads),
        max_agents: Some(args.agents as u32),
        context_tokens: 512,
        ..options
    };
    let assets = AssetPlugin {
        file_path: folder.to_string_lossy().into_owned(),
        watch_for_changes_override: Some(false),
        ..AssetPlugin::default()
    };
    let mut app = App::new();
    app.add_plugins((TaskPoolPlugin::default(), assets))
        .add_plugins((WallaPlugin::new(options), WallaCharacterPlugin))
        .init_resource::<Counts>()
        .add_observer(|_: On<CharacterApplied>, mut counts: ResMut<Counts>| counts.applied += 1)
        .add_observer(|_: On<ReplyFailed>, mut counts: ResMut<Counts>| counts.failed += 1)
        .add_observer(
            |finished: On<ReplyFinished>, mut counts: ResMut<Counts>, mut commands: Commands| {
                counts.finished += 1;
                counts.cancelled += u64::from(finished.reason == FinishReason::Cancelled);
                commands.ask(finished.agent, "And what else is new?");
            },
        );
    app
}
