//! A robot with dialogue: a control loop at 100 Hz, and a dialogue agent on the same frames.
//!
//! A simulated base with two driven wheels follows a path through a small house. People give it
//! orders in words. An agent calls typed actions, whose arguments are places and items of the
//! house. Each call is checked before the base begins its task, and at the end of the task the
//! agent speaks about the result. The loop's jitter is measured throughout, separately for the time
//! in which the agent thinks and speaks.
//!
//! ```text
//! cargo run --release -p walla_examples --example robot [-- --model FILE.gguf --seconds 30]
//! ```

mod action;
mod base;
mod house;
mod jitter;
mod talk;

use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_ecs::schedule::{Schedules, SingleThreadedExecutor};
use bevy_walla::prelude::*;
use clap::Parser;
use jitter::Jitter;
use walla_examples::{ModelArgs, fail};

/// Period of the control loop.
const TICK: Duration = Duration::from_millis(10);

/// A robot that follows its path and orders, with a table of its control loop's jitter.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Duration of the run.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

fn main() {
    let arguments = Arguments::parse();
    let mut options = arguments.model.options(1).unwrap_or_else(|error| fail(error));
    // The default budget is for frames at 60 Hz.
    options.budget = Duration::from_millis(2).into();
    let mut app = App::new();
    app.add_plugins((WallaPlugin::new(options), base::BasePlugin, talk::TalkPlugin));
    // A loop of a few small systems is more punctual on one thread than on several.
    for (_, schedule) in app.world_mut().resource_mut::<Schedules>().iter_mut() {
        schedule.set_executor(SingleThreadedExecutor::new());
    }
    app.finish();
    app.cleanup();
    wait_for_the_model(&mut app);
    let jitter = control_loop(&mut app, Duration::from_secs(arguments.seconds));
    jitter.print();
    talk::print_summary(app.world());
}

fn wait_for_the_model(app: &mut App) {
    loop {
        app.update();
        match app.world().resource::<Walla>().state() {
            WallaState::Ready => return,
            WallaState::Failed(error) => fail(error),
            WallaState::Loading { .. } => std::thread::sleep(TICK),
        }
    }
}

/// Runs the app at fixed times, not after fixed pauses: a late tick does not delay the following
/// ones.
fn control_loop(app: &mut App, time: Duration) -> Jitter {
    let mut jitter = Jitter::default();
    let start = Instant::now();
    let mut due = start;
    while due < start + time {
        due += TICK;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let woke = Instant::now();
        app.update();
        let speaking = talk::is_speaking(app.world_mut());
        jitter.add(woke.saturating_duration_since(due), woke.elapsed(), speaking);
        // Missed ticks are skipped, as on a real base.
        while due + TICK < Instant::now() {
            due += TICK;
            jitter.overruns += 1;
        }
    }
    jitter
}
