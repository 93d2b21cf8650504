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
//! Several limits of `--launch-ms` are several modes `on`. With `--prompt-tokens` the load of `on`
//! is prefill instead of decode.
//!
//! ```text
//! cargo run --release --ignore-rust-version --features cuda --bin rendered_latency -- \
//!     --model llama-3.2-1b-q4_k_m.gguf --device cuda:0 --agents 64 --json out.json
//! cargo run --release --ignore-rust-version --features cuda --bin rendered_latency -- \
//!     --model llama-3.2-1b-q4_k_m.gguf --device cuda:0 --agents 32 --prompt-tokens 512 \
//!     --modes off,on --launch-ms 2,3,0
//! ```

mod dialogue;
mod free;
mod games;
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
use bevy_walla::EngineOptions;
use bevy_walla::engine::{Engine, EngineState, Pacing};
use bevy_walla::options::FrameBudget;
use clap::{Parser, ValueEnum};
use walla_examples::{ModelArgs, fail};

use dialogue::{DialoguePlugin, PROMPT_REPLY_TOKENS};
use free::FreeDecoder;
use games::Games;

/// Frame times of a rendered scene, with and without dialogue.
#[derive(Parser, Clone)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Agents that speak.
    #[arg(long, default_value_t = 16)]
    agents: u32,
    /// Device time per frame that walla may use, in milliseconds; 0: no limit.
    #[arg(long, value_name = "MS", default_value_t = 4.166, value_parser = millis)]
    budget_ms: f64,
    /// Maximum predicted device time of one step on a GPU, in milliseconds; 0: no limit. Several
    /// limits are compared: each is a mode `on` with a separate engine [default: the engine's]
    #[arg(long, value_name = "MS", value_delimiter = ',', value_parser = millis)]
    launch_ms: Vec<f64>,
    /// Tokens of each prompt of mode `on`: all prompts differ, and replies have two tokens. 0:
    /// short questions with long replies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    prompt_tokens: u32,
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

/// A row of the report: a mode, and the launch limit of `on`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    mode: Mode,
    /// Index of the limit in [`Arguments::launch_ms`]; 0 for the other modes.
    limit: usize,
}

impl Arguments {
    /// The rows of the report.
    fn loads(&self) -> Vec<Load> {
        let limits = |mode| if mode == Mode::On { self.launch_ms.len() } else { 1 };
        let each = |&mode| (0..limits(mode)).map(move |limit| Load { mode, limit });
        self.modes.iter().flat_map(each).collect()
    }

    /// The launch limit of a row in milliseconds, 0: no limit; `None` if the mode has none.
    fn launch_ms(&self, load: Load) -> Option<f64> {
        self.launch_ms.get(load.limit).copied().filter(|_| load.mode == Mode::On)
    }

    /// Name of a row.
    fn label(&self, load: Load) -> String {
        let name = load.mode.name();
        match self.launch_ms(load).filter(|_| self.launch_ms.len() > 1) {
            None => name.to_owned(),
            Some(0.0) => format!("{name}, no limit"),
            Some(ms) => format!("{name}, {ms} ms"),
        }
    }

    /// # Errors
    /// One line, if the context is too short for a prompt and its reply.
    fn check(&self) -> Result<(), String> {
        let Self { prompt_tokens, model, .. } = self;
        // The last word of a prompt may exceed its length.
        let tokens = prompt_tokens.saturating_add(PROMPT_REPLY_TOKENS + 16);
        if *prompt_tokens == 0 || tokens <= model.context {
            return Ok(());
        }
        Err(format!("--prompt-tokens {prompt_tokens}: needs --context {tokens}"))
    }
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

fn millis(text: &str) -> Result<f64, String> {
    let ms = text.parse().ok().filter(|ms| (0.0..=1_000.0).contains(ms));
    ms.ok_or_else(|| format!("{text:?}: expected 0 to 1000"))
}

/// A time limit; 0 milliseconds: none.
fn limit(ms: f64) -> Option<Duration> {
    (ms > 0.0).then(|| Duration::from_secs_f64(ms / 1e3))
}

fn main() -> AppExit {
    let mut arguments = Arguments::parse();
    arguments.check().unwrap_or_else(|error| fail(error));
    let options = arguments.model.options(arguments.agents).unwrap_or_else(|error| fail(error));
    if arguments.launch_ms.is_empty() {
        let default_ms = options.max_launch.map_or(0.0, |limit| limit.as_secs_f64() * 1e3);
        arguments.launch_ms.push(default_ms);
    }
    let budget = limit(arguments.budget_ms).into();
    let mut games = Games::default();
    for &ms in &arguments.launch_ms {
        let engine = start(EngineOptions { budget, max_launch: limit(ms), ..options.clone() });
        let dialogue = DialoguePlugin {
            agents: arguments.agents,
            voice_rate: arguments.voice_rate,
            prompt_tokens: Some(arguments.prompt_tokens).filter(|tokens| *tokens > 0),
        };
        games.add(engine, dialogue);
    }
    let free = arguments.modes.contains(&Mode::Free).then(|| {
        let budget = FrameBudget::Unlimited;
        let engine = start(EngineOptions { budget, max_launch: None, ..options });
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
        scene::ScenePlugin { size: arguments.size, cubes: arguments.cubes },
        meter::MeterPlugin,
        session::SessionPlugin { arguments },
    ))
    .insert_non_send(games);
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
