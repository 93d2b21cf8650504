//! An evening at the Cracked Kettle, in a window: click a guest and talk.
//!
//! Each guest is an agent of one model; neighbours talk with each other until the player
//! interrupts. Some sell their wares: an action of the agent, which takes silver from the player's
//! purse and sends the item to it. All shapes are drawn by code.
//!
//! ```text
//! cargo run --release --ignore-rust-version --bin tavern_window [-- --model FILE.gguf --guests 10]
//! ```
//!
//! | input | effect |
//! |---|---|
//! | click on a guest | talk to the guest |
//! | `1` to `4`, or a click on a question | ask the question |
//! | typing, then Enter | ask the typed text |
//! | Escape | end the conversation with the guest |
//! | F3 | show the overlay: cost and activity of walla |

mod brush;
mod bubble;
mod guest;
mod mood;
mod mouth;
mod player;
mod purse;
mod room;
mod script;
mod seats;
mod table_talk;
mod voices;
mod wares;

use std::path::PathBuf;

use bevy::camera::ScalingMode;
use bevy::log::LogPlugin;
use bevy::prelude::*;
use bevy::winit::WinitSettings;
use bevy_walla::overlay::{OverlayCorner, WallaOverlay, WallaOverlayPlugin};
use clap::Parser;
use walla_examples::{ModelArgs, fail};

use script::{Script, Step};

/// The room's size in world units, which are pixels until the window is resized.
const ROOM: Vec2 = Vec2::new(1_280.0, 720.0);

/// A tavern full of agents, in a window.
#[derive(Parser, Clone)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// Number of guests.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u8).range(1..=11))]
    guests: u8,
    /// Voice of the guests: the ONNX file of a Piper voice, with its settings next to it.
    #[arg(long, value_name = "FILE.onnx")]
    voice: Option<PathBuf>,
    /// Shows the overlay at the start.
    #[arg(long)]
    overlay: bool,
    /// Scripted input, as steps separated by `;`: `ready`, `wait FRAMES`, `click NAME`, `press
    /// KEY`, `type TEXT`, `sale`, `reply`, `screenshot FILE.png`, `quit`.
    #[arg(long, value_name = "STEPS")]
    script: Option<Script>,
    /// Saves a picture and quits; a shorthand for a script.
    #[arg(long, value_name = "FILE.png", conflicts_with = "script")]
    screenshot: Option<PathBuf>,
    /// Frames before that picture, counted from the end of the load.
    #[arg(long, value_name = "N", default_value_t = 600)]
    after_frames: u32,
    /// Writes questions and answers to this file, one per line.
    #[arg(long, value_name = "FILE")]
    transcript: Option<PathBuf>,
}

impl Arguments {
    fn script(&self) -> Option<Script> {
        let picture = |path: &PathBuf| {
            let wait = Step::Wait(self.after_frames);
            Script::from_iter([Step::Ready, wait, Step::Screenshot(path.clone()), Step::Quit])
        };
        self.script.clone().or_else(|| self.screenshot.as_ref().map(picture))
    }
}

fn main() -> AppExit {
    let arguments = Arguments::parse();
    let walla =
        arguments.model.plugin(u32::from(arguments.guests)).unwrap_or_else(|error| fail(error));
    let mut app = App::new();
    app.add_plugins(
        DefaultPlugins
            .set(WindowPlugin { primary_window: Some(window()), ..default() })
            // Drivers and displays log much that is irrelevant here.
            .set(LogPlugin {
                filter: "warn,wgpu_hal=off,winit=error,walla::reply=error".into(),
                ..default()
            }),
    )
    .add_plugins((walla, overlay(arguments.overlay)))
    .insert_resource(ClearColor(Color::BLACK))
    .add_systems(Startup, (camera, font))
    .add_plugins((
        room::plugin,
        guest::GuestPlugin {
            guests: usize::from(arguments.guests),
            is_demo_model: arguments.model.model.is_none(),
        },
        mood::plugin,
        mouth::plugin,
        bubble::plugin,
        table_talk::plugin,
        voices::VoicesPlugin { file: arguments.voice.clone() },
        player::plugin,
        wares::plugin,
        purse::plugin,
        script::ScriptPlugin { script: arguments.script(), transcript: arguments.transcript },
    ));
    // Frames, and thus the dialogue, continue while other windows have the focus.
    app.insert_resource(WinitSettings::continuous());
    app.run()
}

fn window() -> Window {
    Window {
        title: "The Cracked Kettle".to_owned(),
        resolution: (ROOM.x as u32, ROOM.y as u32).into(),
        ..default()
    }
}

fn overlay(visible: bool) -> WallaOverlayPlugin {
    let corner = OverlayCorner::TopLeft; // no guest sits below it
    WallaOverlayPlugin { overlay: Some(WallaOverlay { visible, corner, ..default() }) }
}

fn camera(mut commands: Commands) {
    commands.spawn((Camera2d, IsDefaultUiCamera, projection()));
}

/// The whole room, in a window of any size.
fn projection() -> Projection {
    Projection::Orthographic(OrthographicProjection {
        scaling_mode: ScalingMode::AutoMin { min_width: ROOM.x, min_height: ROOM.y },
        ..OrthographicProjection::default_2d()
    })
}

/// Makes a proportional font the default: speech in a monospaced font looks like a log.
fn font(mut fonts: ResMut<Assets<Font>>) {
    let ubuntu = Font::from_bytes(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    if let Err(error) = fonts.insert(AssetId::default(), ubuntu) {
        warn!("the default font stays: {error}");
    }
}
