//! A game as players get it: a talk with a smith in a terminal, one line a question.
//!
//! The model is a file in `assets/` next to the program, which may be started from any folder.
//! `cargo xtask pack` makes the folder (docs/shipping.md).

use std::io::{BufRead, Read, Write};
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
        .add_observer(|_: On<WallaReady>| say("Greta looks up. What do you say?"))
        .add_observer(|failed: On<WallaFailed>, mut exit: MessageWriter<AppExit>| {
            eprintln!("Greta cannot talk today: {}", failed.error);
            exit.write(AppExit::error());
        })
        .add_systems(Startup, |mut commands: Commands| {
            commands
                .spawn(Agent::persona(PERSONA))
                .observe(|sentence: On<ReplySentence>| say(&format!("Greta: {}", sentence.text)))
                .observe(|failed: On<ReplyFailed>| eprintln!("Greta is silent: {}", failed.error));
        })
        .add_systems(PostUpdate, speak.after(WallaSystems::Collect).run_if(walla_ready))
        .run()
}

/// Prints a line. A closed standard output is no error.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
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
    let read = move || {
        let mut input = std::io::stdin().lock();
        while let Some(line) = next_line(&mut input) {
            if sender.send(line).is_err() {
                return;
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("lines".into()).spawn(read) {
        eprintln!("Greta cannot hear you: {error}");
    }
    lines
}

/// The next line, or the end of a line that is longer than a question. Anything that is no UTF-8
/// becomes a replacement character.
fn next_line(input: &mut impl BufRead) -> Option<String> {
    const MAX_BYTES: u64 = 1_000;
    let (mut line, mut is_long) = (Vec::new(), false);
    loop {
        line.clear();
        let read = input.by_ref().take(MAX_BYTES).read_until(b'\n', &mut line).ok()?;
        if read == 0 {
            return None;
        }
        if read < MAX_BYTES as usize || line.ends_with(b"\n") {
            return Some(String::from_utf8_lossy(&line).trim().to_owned());
        }
        if !std::mem::replace(&mut is_long, true) {
            eprintln!("Greta does not listen that long: only the end of the line counts");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::next_line;

    #[test]
    fn any_input_is_read_in_lines_of_bounded_length() {
        let long = "x".repeat(5_000_300) + "end";
        let all = [b"\n caf\xe9? \r\n", long.as_bytes(), b"\nlast"].concat();
        let mut input = &all[..];
        let lines: Vec<_> = std::iter::from_fn(|| next_line(&mut input)).collect();
        assert_eq!(lines[..2], ["", "caf\u{fffd}?"]);
        assert!(lines[2].ends_with("xend") && lines[2].len() <= 1_000, "{}", lines[2].len());
        assert_eq!(lines[3..], ["last"]);
    }
}
