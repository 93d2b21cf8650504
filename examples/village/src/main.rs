//! An evening at the well of Emberfall: six characters as files, who talk with each other and with
//! the player. This is the example to copy from for games with several characters.
//!
//! ```text
//! cargo run --release -p walla_village [-- --model FILE.gguf] ["Odo, what is new?" …]
//! ```
//!
//! The characters are in `assets/village`. An empty line loads the files again: edit one while the
//! program runs. A game uses Bevy's feature `file_watcher` for that.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use bevy_app::{ScheduleRunnerPlugin, TaskPoolPlugin, prelude::*};
use bevy_asset::{AssetPlugin, AssetServer};
use bevy_ecs::prelude::*;
use bevy_walla::actions::schemars::{self, JsonSchema};
use bevy_walla::characters::{CharacterHandle, WallaCharacterPlugin};
use bevy_walla::cues::ReplyCue;
use bevy_walla::groups::{Group, GroupLine, GroupSay, GroupSilent, MemberOf, WallaGroupPlugin};
use bevy_walla::memories::{AgentMemory, Memorizes};
use bevy_walla::prelude::*;
use clap::Parser;
use serde::Deserialize;
use tracing_subscriber::filter::LevelFilter;
use walla_examples::{ModelArgs, fail};

/// Names of the characters; their files are `NAME.character.ron`.
const CHARACTERS: [&str; 6] = ["Greta", "Odo", "Mirelle", "Voss", "Pip", "Hesper"];

/// An evening at the well: talk to six characters.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Your name.
    #[arg(long, default_value = "Alice")]
    name: String,
    /// Your lines, in order. Without any, they are read from the keyboard.
    lines: Vec<String>,
}

/// Hands an item to the customer.
#[derive(Deserialize, JsonSchema)]
struct HandOver {
    /// The item.
    item: String,
}

/// The player.
#[derive(Resource)]
struct Player {
    name: String,
    lines: VecDeque<String>,
    /// Lines of the keyboard or of a pipe, until its end.
    input: Option<Mutex<Receiver<String>>>,
    /// Lines do not wait until all are silent.
    interrupts: bool,
    is_silent: bool,
    /// A reply has failed: an exit code for scripts.
    has_failed: bool,
}

/// How they talk.
#[derive(Resource)]
struct Well(Group);

impl Well {
    /// The demo model is very small: it answers the latest line alone.
    fn of_demo_model() -> Self {
        let overheard_lines = Some(1);
        Self(Group { max_lines: 1, overheard_lines, begins_with_name: false, ..Group::default() })
    }
}

fn main() -> AppExit {
    let Arguments { model, name, lines } = Arguments::parse();
    let of_file = || Well(Group { max_lines: 2, ..Group::default() });
    let well = if model.model.is_some() { of_file() } else { Well::of_demo_model() };
    let plugin = model.plugin(CHARACTERS.len() as u32).unwrap_or_else(|error| fail(error));
    let input = lines.is_empty().then(read_input);
    let interrupts = input.is_some() && std::io::stdin().is_terminal();
    if interrupts {
        println!("At the well: {}. Speak! (Ctrl-D ends it.)\n", CHARACTERS.join(", "));
    }
    let player =
        Player { name, lines: lines.into(), input, interrupts, is_silent: true, has_failed: false };
    // Errors in files of characters.
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(std::io::stderr).init();
    village(plugin, well, player).run()
}

fn village(plugin: WallaPlugin, well: Well, player: Player) -> App {
    let assets = AssetPlugin {
        file_path: assets().to_string_lossy().into_owned(),
        ..AssetPlugin::default()
    };
    let mut app = App::new();
    app.add_plugins((TaskPoolPlugin::default(), assets))
        .add_plugins(ScheduleRunnerPlugin::run_loop(Duration::from_millis(16)))
        .add_plugins((plugin, WallaMemoryPlugin::default()))
        .add_plugins((WallaCharacterPlugin, WallaGroupPlugin))
        .add_action::<HandOver>()
        .insert_resource(well)
        .insert_resource(player)
        .add_systems(Startup, gather)
        .add_systems(Update, speak)
        .add_observer(said)
        .add_observer(gestured)
        .add_observer(hand_over)
        .add_observer(|_: On<GroupSilent>, mut player: ResMut<Player>| player.is_silent = true)
        .add_observer(failed)
        .add_observer(|failed: On<WallaFailed>| fail(&failed.error));
    app
}

/// The folder of the assets: next to the sources, or, in a package, next to the program.
fn assets() -> PathBuf {
    let sources = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/assets"));
    if sources.is_dir() { sources } else { PathBuf::from("assets") }
}

fn read_input() -> Mutex<Receiver<String>> {
    let (sender, lines) = sync_channel(16);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut line = Vec::new();
        // A longer line is several lines. The receiver is gone when the program ends.
        while input.by_ref().take(4096).read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0)
            && sender.send(String::from_utf8_lossy(&line).trim().to_owned()).is_ok()
        {
            line.clear();
        }
    });
    Mutex::new(lines)
}

fn file(name: &str) -> String {
    format!("village/{}.character.ron", name.to_lowercase())
}

/// All characters come to the well.
fn gather(mut commands: Commands, server: Res<AssetServer>, well: Res<Well>) {
    let well = commands.spawn(well.0).id();
    for name in CHARACTERS {
        commands.spawn((
            Name::new(name),
            CharacterHandle(server.load(file(name))),
            MemberOf(well),
            AgentMemory::default(),
            Memorizes::default(),
        ));
    }
}

/// The player's next line.
fn speak(
    mut player: ResMut<Player>,
    well: Single<Entity, With<Group>>,
    server: Res<AssetServer>,
    mut commands: Commands,
    mut exit: MessageWriter<AppExit>,
) {
    if !player.is_silent && !player.interrupts {
        return;
    }
    let line = match &mut player.input {
        None => player.lines.pop_front().ok_or(TryRecvError::Disconnected),
        Some(input) => input.get_mut().map_or(Err(TryRecvError::Disconnected), |i| i.try_recv()),
    };
    match line {
        Ok(line) if line.trim().is_empty() => {
            CHARACTERS.iter().for_each(|c| server.reload(file(c)));
        }
        Ok(line) => {
            player.is_silent = false;
            commands.trigger(GroupSay::new(*well, player.name.as_str(), line));
        }
        Err(TryRecvError::Disconnected) if player.is_silent => {
            exit.write(if player.has_failed { AppExit::error() } else { AppExit::Success });
        }
        Err(_) => {}
    }
}

/// Prints a line. Without a reader, as behind `head`, the program ends.
fn say(line: std::fmt::Arguments<'_>) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(0);
    }
}

fn failed(reply: On<ReplyFailed>, names: Query<&Name>, mut player: ResMut<Player>) {
    let name = names.get(reply.agent).map_or("?", Name::as_str);
    eprintln!("error: {name}: {}", reply.error);
    player.has_failed = true;
}

/// A whole line; for speech synthesis there are `ReplySentence`s.
fn said(line: On<GroupLine>, player: Res<Player>) {
    let is_typed = line.speaker.is_none() && player.interrupts;
    if !is_typed {
        say(format_args!("{}: {}", line.name, line.text));
    }
}

fn gestured(cue: On<ReplyCue>, names: Query<&Name>) {
    if let Ok(name) = names.get(cue.agent) {
        say(format_args!("[{name}: {}]", cue.name));
    }
}

/// Here a game would move the item; the character speaks about the result.
fn hand_over(call: On<ActionCall<HandOver>>, names: Query<&Name>, mut commands: Commands) {
    let Ok(name) = names.get(call.agent) else { return };
    say(format_args!("[{name} hands over: {}]", call.item));
    let result = format!("The {} is sold.", call.item);
    commands.entity(call.agent).action_result(call.id, result);
}
