//! Arguments of the verbs of speech.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct Speak {
    /// The text; `-` reads standard input
    #[arg(allow_hyphen_values = true)]
    pub text: String,
    /// ONNX file of a Piper voice, next to its settings FILE.json
    #[arg(long, value_name = "FILE")]
    pub voice: PathBuf,
    /// WAV file to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Write the times of the mouth's shapes, words and phonemes to a file, in seconds as JSON
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
    /// WAV file
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
