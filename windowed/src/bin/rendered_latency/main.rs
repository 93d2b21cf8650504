//! Cost of dialogue for a rendered frame: the frame times of a real Bevy scene with and without it,
//! on one GPU.
//!
//! The scene is rendered to a texture through Vulkan, without a window and without waiting for a
//! display. Three modes alternate in one process, with several rounds of each, so that all of them
//! run under the same conditions:
//!
//! | mode | work concurrent with the renderer |
//! |---|---|
//! | `off` | none: the model is loaded, no agent speaks |
//! | `on` | walla as a game uses it: all agents speak, within the frame budget |
//! | `free` | as many sequences of the same model, decoded as fast as the device allows, as on a background thread |
//!
//! ```text
//! cargo run --release --ignore-rust-version --features cuda --bin rendered_latency -- \
//!     --model llama-3.2-1b-q4_k_m.gguf --device cuda:0 --agents 64 --json out.json
//! ```

mod dialogue;
mod free;
mod meter;
mod report;
mod scene;
mod session;

use std::path::PathBuf;
use std::time::Duration;

use bevy::app::ScheduleRunnerPlugin;
use bevy::log::LogPlugin;
use bevy::prelude::*;
use bevy::render::RenderPlugin;
use bevy::render::settings::{Backends, RenderCreation, WgpuSettings};
use bevy::window::ExitCondition;
use bevy::winit::WinitPlugin;
use bevy_walla::engine::{Engine, EngineState, Pacing};
use bevy_walla::{EngineOptions, FrameBudget, WallaPlugin};
use clap::{Parser, ValueEnum};
use walla_examples::{ModelArgs, fail};

use free::FreeDecoder;

/// Frame times of a rendered scene, with and without dialogue.
#[derive(Parser, Clone)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Agents that speak.
    #[arg(long, default_value_t = 16)]
    agents: u32,
    /// Device time per frame that walla may use, in milliseconds; 0: no limit.
    #[arg(long, value_name = "MS", default_value_t = 4.166)]
    budget_ms: f64,
    /// Voice rate of each agent, in tokens per second.
    #[arg(long, value_name = "TOKENS", default_value_t = 10.0)]
    voice_rate: f32,
    /// Pixels of a frame.
    #[arg(long, value_name = "WxH", default_value = "1920x1080", value_parser = size)]
    size: (u32, u32),
    /// Cubes in the scene.
    #[arg(long, default_value_t = 4_000)]
    cubes: u32,
    /// Frames per second; 0: unlimited.
    #[arg(long, default_value_t = 0)]
    rate: u32,
    /// Work concurrent with the renderer.
    #[arg(long, value_delimiter = ',', default_value = "off,on,free")]
    modes: Vec<Mode>,
    /// Frames of each mode in each round.
    #[arg(long, default_value_t = 600)]
    frames: u32,
    /// Number of rounds of each mode.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Frames at the beginning of each turn that are not counted.
    #[arg(long, default_value_t = 60)]
    settle: u32,
    /// Writes the results to this file.
    #[arg(long, value_name = "FILE.json")]
    json: Option<PathBuf>,
    /// Saves the last frame.
    #[arg(long, value_name = "FILE.png")]
    picture: Option<PathBuf>,
}

/// Work concurrent with the renderer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Off,
    On,
    Free,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Free => "free",
        }
    }
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    parts
        .filter(|&(w, h)| (1..=8_192).contains(&w) && (1..=8_192).contains(&h))
        .ok_or_else(|| format!("{text:?}: expected something like 1920x1080"))
}

fn main() -> AppExit {
    let arguments = Arguments::parse();
    let budget = Some(arguments.budget_ms).filter(|ms| *ms > 0.0);
    let budget = budget.map(|ms| Duration::from_secs_f64(ms.min(1_000.0) / 1e3));
    let options = arguments.model.options(arguments.agents).unwrap_or_else(|error| fail(error));
    let engine = start(EngineOptions { budget: budget.into(), ..options.clone() });
    let free = arguments.modes.contains(&Mode::Free).then(|| {
        let budget = FrameBudget::Unlimited;
        let engine = start(EngineOptions { budget, launch_max: None, ..options });
        FreeDecoder::start(engine, arguments.agents).unwrap_or_else(|error| fail(error))
    });

    let mut app = App::new();
    app.add_plugins(
        DefaultPlugins
            .set(WindowPlugin {
                primary_window: None,
                exit_condition: ExitCondition::DontExit,
                ..default()
            })
            .set(RenderPlugin {
                render_creation: RenderCreation::Automatic(Box::new(WgpuSettings {
                    backends: Some(Backends::VULKAN),
                    ..default()
                })),
                synchronous_pipeline_compilation: true,
                ..default()
            })
            .set(LogPlugin { filter: "warn,wgpu_hal=off,walla::reply=error".into(), ..default() })
            .disable::<WinitPlugin>(),
    )
    .add_plugins((
        ScheduleRunnerPlugin::run_loop(session::period(arguments.rate).unwrap_or_default()),
        WallaPlugin::with_engine(engine),
        scene::ScenePlugin { size: arguments.size, cubes: arguments.cubes },
        meter::MeterPlugin,
        dialogue::DialoguePlugin { agents: arguments.agents, voice_rate: arguments.voice_rate },
        session::SessionPlugin { arguments },
    ));
    if let Some(free) = free {
        app.insert_resource(free);
    }
    app.run()
}

/// Starts an engine and waits until the model is loaded, before the measurements.
fn start(options: EngineOptions) -> Engine {
    let engine = Engine::start(options).unwrap_or_else(|error| fail(error));
    loop {
        match engine.state() {
            EngineState::Ready => return engine,
            EngineState::Loading { .. } => std::thread::sleep(Duration::from_millis(5)),
            EngineState::Failed(error) => fail(error),
            EngineState::Stopped => fail("the engine was stopped"),
        }
    }
}

/// Pacing of a decoder that is independent of frames.
const FREE: Pacing = Pacing::FreeRunning;

/// Tokens of a reply: long, so that most of the work is decode and not prefill of the next
/// question.
const REPLY_TOKENS: u32 = 256;
