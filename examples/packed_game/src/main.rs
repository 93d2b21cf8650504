//! A game as players get it: a talk with a smith in a terminal, one line a question.
//!
//! The model is a file in `assets/` next to the program, which may be started from any folder.
//! `cargo xtask pack` makes the folder (docs/shipping.md).

use std::io::BufRead;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use bevy_app::{ScheduleRunnerPlugin, prelude::*};
use bevy_ecs::prelude::*;
use bevy_walla::prelude::*;
use bevy_walla::{WallaFailed, WallaReady};

const PERSONA: &str = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver. An axe \
                       costs 9 silver. A sword costs 40 silver.";

/// Lines of the player, from a thread that waits for them.
#[derive(Resource)]
struct Lines(Mutex<Receiver<String>>);

fn main() -> AppExit {
    App::new()
        .add_plugins((
            ScheduleRunnerPlugin::run_loop(Duration::from_millis(16)),
            // In the folder `assets`: next to the program, or of this package during development.
            WallaPlugin::model("greta.gguf"),
        ))
        .insert_resource(Lines(Mutex::new(lines())))
        .add_observer(|_: On<WallaReady>| println!("Greta looks up. What do you say?"))
        .add_observer(|failed: On<WallaFailed>, mut exit: MessageWriter<AppExit>| {
            eprintln!("Greta cannot talk today: {}", failed.error);
            exit.write(AppExit::error());
        })
        .add_systems(Startup, |mut commands: Commands| {
            commands
                .spawn(Agent::persona(PERSONA))
                .observe(|sentence: On<ReplySentence>| println!("Greta: {}", sentence.text))
                .observe(|failed: On<ReplyFailed>| eprintln!("Greta is silent: {}", failed.error));
        })
        .add_systems(PostUpdate, speak.after(WallaSystems::Collect).run_if(walla_ready))
        .run()
}

/// Gives Greta the player's next line when she is silent; the end of the input ends the game.
fn speak(
    lines: Res<Lines>,
    greta: Single<(Entity, &Speech)>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) {
    let (greta, speech) = *greta;
    if !speech.is_silent() {
        return;
    }
    let Ok(lines) = lines.0.lock() else { return };
    match lines.try_recv() {
        Ok(line) if line.trim().is_empty() => {}
        Ok(line) => {
            commands.ask(greta, line);
        }
        Err(TryRecvError::Empty) => {}
        Err(TryRecvError::Disconnected) => {
            exit.write(AppExit::Success);
        }
    }
}

/// Reads standard input on a thread, so that a frame never waits for it.
fn lines() -> Receiver<String> {
    let (sender, lines) = sync_channel(16);
    std::thread::spawn(move || {
        let read = std::io::stdin().lock().lines().map_while(Result::ok);
        read.map_while(|line| sender.send(line).ok()).for_each(drop);
    });
    lines
}
