//! The shortest dialogue: one agent, one question.
//!
//! ```text
//! cargo run --release -p walla_examples --example hello_agent [-- --model FILE.gguf]
//! ```

use std::time::Duration;

use bevy_app::{ScheduleRunnerPlugin, prelude::*};
use bevy_ecs::prelude::*;
use bevy_walla::prelude::*;
use clap::Parser;
use walla_examples::{ModelArgs, fail};

/// One agent answers one question.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// The question.
    #[arg(default_value = "What does a horseshoe cost?")]
    question: String,
}

fn main() -> AppExit {
    let Arguments { model, question } = Arguments::parse();
    let plugin = model.plugin(1).unwrap_or_else(|error| fail(error));
    App::new()
        .add_plugins((ScheduleRunnerPlugin::run_loop(Duration::from_millis(16)), plugin))
        .add_systems(Startup, move |mut commands: Commands| {
            println!("You: {question}");
            commands
                .spawn(Agent::persona(
                    "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.",
                ))
                .observe(|sentence: On<ReplySentence>| println!("Greta: {}", sentence.text))
                .observe(|_: On<ReplyFinished>, mut exit: MessageWriter<AppExit>| {
                    exit.write(AppExit::Success);
                })
                .observe(|failed: On<ReplyFailed>, mut exit: MessageWriter<AppExit>| {
                    eprintln!("error: {}", failed.error);
                    exit.write(AppExit::error());
                })
                .ask(question.clone());
        })
        .run()
}
