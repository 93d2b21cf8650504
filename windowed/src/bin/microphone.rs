//! Talk with a character: a microphone in, a loudspeaker out, without a window.
//!
//! ```text
//! cargo run --release --ignore-rust-version --features sound --bin microphone -- \
//!     --voice FILE.onnx --hear WHISPER_FOLDER [--model FILE.gguf]
//! ```

use std::time::Duration;

use bevy::app::ScheduleRunnerPlugin;
use bevy::audio::AudioPlugin;
use bevy::prelude::*;
use bevy_walla::prelude::*;
use bevy_walla::voice::{
    Heard, HearingFailed, HearingPartial, ListenerEar, Microphone, SpeechEnded, SpeechStarted,
    Voice, VoiceListener, WallaVoicePlaybackPlugin, WallaVoicePlugin,
};
use clap::Parser;
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{SampleFormat, Stream};
use walla_examples::{ModelArgs, fail};

/// Talk with a character.
#[derive(Parser, Resource, Clone)]
struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// ONNX file of a Piper voice, with its settings next to it.
    #[arg(long, value_name = "FILE.onnx")]
    voice: String,
    /// Folder of a Whisper model.
    #[arg(long, value_name = "FOLDER")]
    hear: String,
    /// The character.
    #[arg(long, default_value = "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.")]
    persona: String,
    /// The loudspeakers are near the microphone: nothing is heard while the character speaks.
    #[arg(long)]
    loudspeakers: bool,
}

fn main() -> AppExit {
    let arguments = Arguments::parse();
    let walla = arguments.model.plugin(1).unwrap_or_else(|error| fail(error));
    let frame = Duration::from_secs_f64(1.0 / 60.0);
    App::new()
        .add_plugins((
            MinimalPlugins.set(ScheduleRunnerPlugin::run_loop(frame)),
            TransformPlugin,
            AssetPlugin::default(),
            AudioPlugin::default(),
        ))
        .add_plugins((walla, WallaVoicePlugin::default(), WallaVoicePlaybackPlugin))
        .insert_resource(arguments)
        .add_systems(Startup, begin)
        .add_systems(Update, connect)
        .add_observer(|text: On<HearingPartial>| println!("  … {}", text.text))
        .add_observer(|text: On<Heard>| println!("> {}", text.text))
        .add_observer(|failed: On<HearingFailed>| eprintln!("{}", failed.reason))
        .add_observer(|started: On<SpeechStarted>| println!("{}", started.text))
        .add_observer(|end: On<SpeechEnded>| println!("  ({:?})", end.reason))
        .run()
}

fn begin(arguments: Res<Arguments>, mut commands: Commands) {
    let voice = Voice::file(arguments.voice.as_str());
    let agent = commands.spawn((Agent::persona(&arguments.persona), voice)).id();
    let listener = VoiceListener::new(arguments.hear.as_str()).asks(agent);
    commands.spawn(VoiceListener { is_deaf_to_agent: arguments.loudspeakers, ..listener });
}

/// The stream of the sound card, which ends with the program.
struct Recording(#[expect(dead_code, reason = "it records until it is dropped")] Stream);

/// Gives the sound card the microphone of the listener, once that is there.
fn connect(world: &mut World) {
    let mut ears = world.query::<&mut ListenerEar>();
    let microphone = ears.iter_mut(world).find_map(|mut ear| ear.take_microphone());
    if let Some(microphone) = microphone {
        match record(microphone) {
            Ok(stream) => world.insert_non_send(Recording(stream)),
            Err(error) => {
                eprintln!("no microphone: {error}");
                world.write_message(AppExit::error());
            }
        }
    }
}

fn record(mut microphone: Microphone) -> Result<Stream, Box<dyn std::error::Error>> {
    let device = cpal::default_host().default_input_device().ok_or("the system has none")?;
    let supported = device.default_input_config()?;
    let (format, config) = (supported.sample_format(), supported.config());
    let (channels, rate) = (usize::from(config.channels).max(1), config.sample_rate);
    let mut mono = Vec::new();
    // The mean of all channels.
    let mut push = move |samples: &mut dyn Iterator<Item = f32>| {
        mono.clear();
        while let Some(first) = samples.next() {
            let others: f32 = samples.take(channels - 1).sum();
            mono.push((first + others) / channels as f32);
        }
        microphone.push(&mono, rate);
    };
    let failed = |error| eprintln!("the microphone: {error}");
    let stream = match format {
        SampleFormat::F32 => device.build_input_stream(
            &config,
            move |samples: &[f32], _: &_| push(&mut samples.iter().copied()),
            failed,
            None,
        )?,
        SampleFormat::I16 => device.build_input_stream(
            &config,
            move |samples: &[i16], _: &_| {
                push(&mut samples.iter().map(|sample| f32::from(*sample) / 32_768.0));
            },
            failed,
            None,
        )?,
        format => return Err(format!("samples of type {format}").into()),
    };
    stream.play()?;
    Ok(stream)
}
