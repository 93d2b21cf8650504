//! An evening at the Cracked Kettle: all guests talk at once, and the frame rate is not affected.
//!
//! A headless Bevy app at 60 frames a second. The guests of each table talk with each other, and a
//! visitor walks around, asks questions and buys things. A guest sells an item with an action,
//! which changes the owner of the item in the game. The program first runs for the same time
//! without walla, then with it, and prints the ledger of the sales and the difference of the frame
//! times.
//!
//! ```text
//! cargo run --release -p walla_examples --example tavern [-- --model FILE.gguf --agents 12 --seconds 20]
//! ```
//!
//! With a server of the chat completions protocol instead of a model here, such as `walla serve`:
//!
//! ```text
//! cargo run --release -p walla_examples --features remote --example tavern -- \
//!     --remote http://127.0.0.1:8080/v1 --model NAME --software walla
//! ```

mod dialogue;
mod frames;
mod printer;
mod report;
mod trade;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bevy_app::{ScheduleRunnerPlugin, prelude::*};
use bevy_ecs::prelude::*;
use bevy_walla::WallaPlugin;
use bevy_walla::engine::{Engine, EngineState};
use clap::Parser;
use frames::FramesPlugin;
use printer::Printer;
use report::Run;
use walla_examples::{HostLoad, ModelArgs, fail};

/// Frames per second, if the host load allows it.
const FRAME_RATE: u32 = 60;

/// A tavern full of agents, with a table of the cost per frame.
#[derive(Parser, Clone)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    #[cfg(feature = "remote")]
    #[command(flatten)]
    remote: walla_examples::RemoteArgs,
    /// Number of guests.
    #[arg(long, default_value_t = 12)]
    agents: usize,
    /// Duration of each run.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Number of frames, instead of seconds.
    #[arg(long)]
    frames: Option<u64>,
    /// Work of the rest of the game per frame, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 4.0)]
    host_load_ms: f64,
    /// Guests answer at once, instead of at the end of the other's speech.
    #[arg(long)]
    hurry: bool,
    /// Maximum tokens of one reply.
    #[arg(long, value_name = "N", default_value_t = 60)]
    reply_tokens: u32,
}

fn main() {
    let arguments = Arguments::parse();
    let plugin = plugin(&arguments).unwrap_or_else(|error| fail(error));
    let host_load = HostLoad::lasting(Duration::from_secs_f64(
        arguments.host_load_ms.clamp(0.0, 1_000.0) / 1e3,
    ));
    let frames =
        arguments.frames.unwrap_or(u64::from(arguments.seconds) * u64::from(FRAME_RATE)).max(1);

    let seconds = frames / u64::from(FRAME_RATE);
    println!("The tavern is still empty: {frames} frames without walla, {seconds} s.");
    let without = evening(frames, host_load, None).unwrap_or_else(|error| fail(error));
    println!("The guests arrive.");
    let with = evening(frames, host_load, Some((&arguments, plugin)));
    report::print(&without, &with.unwrap_or_else(|error| fail(error)));
}

/// The plugin with a server, or with a model that is loaded.
fn plugin(arguments: &Arguments) -> Result<WallaPlugin, String> {
    #[cfg(feature = "remote")]
    {
        let name = arguments.model.model.as_ref().map(|name| name.to_string_lossy());
        if let Some(options) = arguments.remote.options(name.as_deref()) {
            return Ok(WallaPlugin::new(options));
        }
    }
    load(arguments).map(WallaPlugin::new)
}

/// Loads the model before the measurements: a broken file is reported at once.
fn load(arguments: &Arguments) -> Result<Engine, String> {
    let agents = u32::try_from(arguments.agents).unwrap_or(u32::MAX);
    let engine =
        Engine::start(arguments.model.options(agents)?).map_err(|error| error.to_string())?;
    loop {
        match engine.state() {
            EngineState::Ready => return Ok(engine),
            EngineState::Loading { .. } => std::thread::sleep(Duration::from_millis(10)),
            EngineState::Failed(error) => return Err(error.to_string()),
            EngineState::Stopped => return Err("the engine was stopped".to_owned()),
        }
    }
}

/// Runs an app for this number of frames.
fn evening(
    frames: u64,
    host_load: HostLoad,
    guests: Option<(&Arguments, WallaPlugin)>,
) -> Result<Run, String> {
    let run = Arc::new(Mutex::new(Run::default()));
    let mut app = App::new();
    let frame = Duration::from_secs(1) / FRAME_RATE;
    app.add_plugins((
        ScheduleRunnerPlugin::run_loop(frame),
        FramesPlugin { frames, host_load, run: Arc::clone(&run) },
    ));
    let printer = Printer::start();
    if let Some((arguments, plugin)) = guests {
        app.insert_resource(printer.handle());
        app.add_plugins((plugin, dialogue::DialoguePlugin::new(arguments), trade::TradePlugin));
    }
    let exit = app.run();
    printer.finish();
    let mut run = run.lock().unwrap_or_else(PoisonError::into_inner);
    match (exit, run.failure.take()) {
        (AppExit::Success, None) => Ok(std::mem::take(&mut *run)),
        (_, failure) => Err(failure.unwrap_or_else(|| "the app ended early".to_owned())),
    }
}
