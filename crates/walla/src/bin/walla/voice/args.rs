//! Arguments of the verbs of speech.

use std::path::PathBuf;

use clap::Args;

use crate::args::EngineArgs;

#[derive(Debug, Args)]
pub struct VoiceArgs {
    /// ONNX file of a Piper voice, next to its settings FILE.json; or of Kokoro, with --style
    #[arg(long = "voice", value_name = "FILE")]
    pub network: PathBuf,
    /// Style of a Kokoro voice, such as af_heart.bin
    #[arg(long, value_name = "FILE")]
    pub style: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Speak {
    /// The text; `-` reads standard input
    #[arg(allow_hyphen_values = true)]
    pub text: String,
    #[command(flatten)]
    pub voice: VoiceArgs,
    /// WAV file to write; `-` writes it to standard output while it is made
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Write the times of the mouth's shapes, words and phonemes to a file, in seconds as JSON;
    /// `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub visemes: Option<PathBuf>,
    /// Speed relative to the voice's own, from 0.25 to 4
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub speed: f32,
    /// Seed of the random numbers: another one speaks a little differently
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Speaker of a voice with several
    #[arg(long, default_value_t = 0)]
    pub speaker: u32,
}

#[derive(Debug, Args)]
pub struct Transcribe {
    /// WAV file; `-` is standard input
    pub file: PathBuf,
    /// Folder of a Whisper model, as tools/voice/whisper.py writes it
    #[arg(long, value_name = "FOLDER")]
    pub model: PathBuf,
    /// Language of the speech, as a code such as en or de [default: the model finds it]
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// One JSON object for each utterance, instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Talk {
    /// WAV file with the player's voice, which is heard in real time; `-` reads 16-bit samples
    /// (mono, little-endian) from standard input
    pub input: PathBuf,
    #[command(flatten)]
    pub voice: VoiceArgs,
    /// Folder of a Whisper model, as tools/voice/whisper.py writes it
    #[arg(long, value_name = "FOLDER")]
    pub hear: PathBuf,
    /// WAV file to write, as long as the conversation; `-` writes 16-bit samples to standard
    /// output, and texts to standard error
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// GGUF file [default: the demo model]
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Persona of the agent (system text)
    #[arg(long, default_value = "")]
    pub persona: String,
    /// Maximum tokens of a reply
    #[arg(short = 'n', default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Samples per second of standard input [default: 16000]
    #[arg(long, value_parser = rates())]
    pub rate: Option<u32>,
    /// Language of the player, as a code such as en or de [default: the model finds it]
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// Speed of the voice, relative to its own, from 0.25 to 4
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub speed: f32,
    /// After each answer, write the time from the player's last word to its first sound
    #[arg(long)]
    pub times: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Rates that the ear takes.
fn rates() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(4_000..=384_000)
}
