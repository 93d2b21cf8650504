//! Voices of Kokoro: a network with durations as ONNX, and a file for each speaker.
//!
//! A part of a text has three pieces of work:
//!
//! ```text
//! A: symbols, style ▶ features of each symbol            0.1 s
//! B: features, speed ▶ frames of each symbol             0.2 ms
//! C: features, frames ▶ samples, 600 for each frame      2.5 s
//! ```
//!
//! (Processor times for a sentence of 4.5 s, 8-bit network, on a slow server; half on a fast one.)
//! All layers of C normalize over the whole part, so the first samples come with the last ones, and
//! parts are short. A piece of work is a part of the network: about one convolution. The network
//! has no random numbers.

mod files;
mod graph;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten::{ModelOptions, NodeId, ShapeInferenceMode, Value, ValueOrView};

use crate::english::{Dialect, English};
use crate::error::VoiceError;
use crate::onnx::{self, Divided, Network, Values};
use crate::parts::{Lengths, Part, Parts, Symbols};
use crate::synthesizer::{Phonemizer, SpeakOptions, SpeechSynthesizer, Step, Utterance};
use crate::timing::Timing;

/// Samples per second.
const SAMPLE_RATE: u32 = 24_000;
/// Samples of a frame.
const HOP: usize = 600;
/// Frames of the longest part, a minute: a damaged network can predict any number.
const MAX_PART_FRAMES: usize = 2400;
/// The network takes 510 symbols.
const LENGTHS: Lengths = Lengths { clause: 40, word: 80, max_word: 100 };

/// A voice of [Kokoro](https://github.com/hexgrad/kokoro) with one speaker.
///
/// It takes more time than [`Piper`](crate::Piper): 0.3 to 0.6 s of one core for each second of
/// sound, with about 100 MB of memory for the 8-bit network, and 40 MB more for each second of a
/// part in work. A text is spoken in parts that end with a sentence or at a comma behind 40
/// symbols, or else at a word behind 80. Its first sound comes when all of it is computed: 1.3 to
/// 2.5 s of a core for a sentence of 70 symbols (4.5 s of sound), 1.7 to 3 s for the longest part.
///
/// The file of the network may be the 8-bit one. The same text gives the same samples with any
/// number of threads: [`seed`](SpeakOptions::seed), [`variation`](SpeakOptions::variation),
/// [`first_piece_frames`](SpeakOptions::first_piece_frames) and
/// [`piece_frames`](SpeakOptions::piece_frames) have no effect, and
/// [`speaker`](SpeakOptions::speaker) is 0.
#[derive(Debug)]
pub struct Kokoro {
    network: Network,
    nodes: Nodes,
    /// Values that are needed behind each place at which stages A and C are divided.
    places: [Vec<Vec<NodeId>>; 2],
    symbols: Symbols,
    /// Rows of numbers, one for each length of a part.
    style: Vec<f32>,
    phonemizer: Arc<dyn Phonemizer>,
}

/// Settings of [`Kokoro::load`].
#[derive(Clone, Debug)]
pub struct KokoroOptions {
    /// Ids of the symbols: a JSON file with a map of them, alone or as `vocab`. Default `None`:
    /// `vocab.json`, `config.json` or `tokenizer.json` next to the network.
    pub vocabulary: Option<PathBuf>,
    /// The speaker: 510 rows of 256 numbers of 32 bits, as a file of numpy (`.npy`), or without a
    /// header in little-endian order (`.bin`, as `onnx-community/Kokoro-82M-v1.0-ONNX` has them).
    ///
    /// From an archive (`.npz`) of several speakers, Python takes one out:
    ///
    /// ```text
    /// import numpy
    /// numpy.save("af_heart.npy", numpy.load("voices-v1.0.bin")["af_heart"])
    /// ```
    pub style: PathBuf,
    /// Turns texts into the voice's symbols: the symbols of misaki. Default `None`:
    /// [`English::with_misaki_symbols`], British if the name of the style begins with `b`, as in
    /// `bf_emma`, else American.
    pub phonemizer: Option<Arc<dyn Phonemizer>>,
    /// Threads that compute. Default 0 and 1: one. The samples are the same with any number.
    pub threads: u32,
}

impl KokoroOptions {
    /// The default settings with a speaker.
    #[must_use]
    pub fn new(style: impl Into<PathBuf>) -> Self {
        Self { vocabulary: None, style: style.into(), phonemizer: None, threads: 0 }
    }
}

/// Values of the network.
#[derive(Clone, Copy, Debug)]
struct Nodes {
    tokens: NodeId,
    style: NodeId,
    speed: NodeId,
    durations: NodeId,
    output: NodeId,
}

impl Kokoro {
    /// Loads a voice. This takes about 0.3 s, and for the first English voice 0.3 s more.
    ///
    /// # Errors
    /// If a file cannot be read, is damaged or not of a Kokoro voice.
    pub fn load(path: impl AsRef<Path>, options: KokoroOptions) -> Result<Arc<Self>, VoiceError> {
        let path = path.as_ref();
        onnx::check_path(path)?;
        let wrong = |reason: String| VoiceError::model(path, reason);
        let symbols = files::vocabulary(options.vocabulary.as_deref(), path)?;
        let style = files::style(&options.style)?;
        let bytes = onnx::read_network(path)?;
        let (bytes, names) = graph::prepare(bytes).map_err(wrong)?;
        let places = names.places;
        let names = [&names.tokens, "style", "speed", &names.durations, &names.output];
        let pool = onnx::pool(options.threads);
        let mut model_options = ModelOptions::with_all_ops();
        // The inference reads the weights of `DynamicQuantizeLSTM` in another order than the
        // operator. With its wrong shapes, values of stage A would be refused as inputs of stage C.
        model_options.shape_inference(ShapeInferenceMode::Off);
        let (network, ids) =
            Network::load_with(&model_options, bytes, pool, names).map_err(wrong)?;
        let [tokens, style_node, speed, durations, output] = ids;
        let phonemizer = match options.phonemizer {
            Some(phonemizer) => phonemizer,
            None => {
                let english = English::new(dialect(&options.style)).map_err(wrong)?;
                Arc::new(english.with_misaki_symbols())
            }
        };
        let nodes = Nodes { tokens, style: style_node, speed, durations, output };
        let places = places.map(|places| network.places(&places));
        Ok(Arc::new(Self { network, nodes, places, symbols, style, phonemizer }))
    }
}

/// The dialect of a style by its name: its first letter is the language, the second the gender.
fn dialect(style: &Path) -> Dialect {
    let name = style.file_name().unwrap_or_default().to_string_lossy();
    let is_british = ["bf_", "bm_"].iter().any(|prefix| name.starts_with(prefix));
    if is_british { Dialect::British } else { Dialect::American }
}

impl SpeechSynthesizer for Kokoro {
    fn sample_rate(&self) -> u32 {
        SAMPLE_RATE
    }

    fn begin(
        self: Arc<Self>,
        text: &str,
        options: &SpeakOptions,
    ) -> Result<Box<dyn Utterance>, VoiceError> {
        options.check()?;
        if options.speaker != 0 {
            let (name, value) = ("speaker", options.speaker.to_string());
            return Err(VoiceError::Option { name, value, expected: "0, the only one".to_owned() });
        }
        let parts = Parts::new(text);
        let speed = options.speed;
        Ok(Box::new(KokoroUtterance { voice: self, speed, parts, samples: 0, stage: Stage::Next }))
    }
}

/// An utterance of a [`Kokoro`] voice.
#[derive(Debug)]
struct KokoroUtterance {
    voice: Arc<Kokoro>,
    speed: f32,
    parts: Parts,
    /// Samples of all parts whose times are known.
    samples: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Symbols of the next part.
    Next,
    /// Stage A.
    Encode(Part, Divided),
    /// Stage B.
    Durations(Part, Values),
    /// Stage C.
    Sound(Sound),
    Ended,
}

/// The sound of a part in work.
#[derive(Debug)]
struct Sound {
    /// Values of the other stages.
    values: Values,
    /// Frames of the part.
    frames: usize,
    divided: Divided,
}

impl Utterance for KokoroUtterance {
    fn step(&mut self, out: &mut Vec<f32>) -> Result<Step, VoiceError> {
        let voice = &self.voice;
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Ended => Ok(Step::Ended),
            Stage::Next => {
                let part = self.parts.next(&*voice.phonemizer, &voice.symbols, LENGTHS);
                self.stage = match part {
                    Some(part) => Stage::Encode(part, Divided::default()),
                    None if self.parts.has_text() => Stage::Next,
                    None => return Ok(Step::Ended),
                };
                Ok(Step::Working)
            }
            Stage::Encode(part, mut divided) => {
                self.stage = match voice.encode(&part, &mut divided)? {
                    Some(values) => Stage::Durations(part, values),
                    None => Stage::Encode(part, divided),
                };
                Ok(Step::Working)
            }
            Stage::Durations(part, values) => self.plan(&part, values).map(Step::Planned),
            Stage::Sound(mut sound) => {
                let has_ended = voice.sound(&mut sound, self.speed, out)?;
                self.stage = if has_ended { Stage::Next } else { Stage::Sound(sound) };
                Ok(Step::Working)
            }
        }
    }
}

impl KokoroUtterance {
    fn plan(&mut self, part: &Part, mut values: Values) -> Result<Timing, VoiceError> {
        let (durations, frames) = self.voice.durations(&values, part, self.speed)?;
        let timing = part.timing(&frames, HOP as u64, self.samples, SAMPLE_RATE);
        self.samples = timing.samples.end;
        values.push((self.voice.nodes.durations, durations));
        let frames = frames.iter().sum();
        self.stage = Stage::Sound(Sound { values, frames, divided: Divided::default() });
        Ok(timing)
    }
}

impl Kokoro {
    /// A piece of stage A: what depends on the symbols and the style alone. Returns the values for
    /// the other stages when it is the last one.
    fn encode(&self, part: &Part, divided: &mut Divided) -> Result<Option<Values>, VoiceError> {
        let Nodes { tokens, style, durations, output, .. } = self.nodes;
        let count = part.ids.len();
        // The row is that of the symbols without begin and end.
        let mut rows = self.style.chunks_exact(files::STYLE_WIDTH);
        let row = rows.nth(count.saturating_sub(2));
        let row = row.ok_or_else(|| failed(format!("{count} symbols")))?;
        let inputs = || {
            Ok(vec![
                (tokens, onnx::view([1, count], &part.ids)?),
                (style, onnx::view([1, files::STYLE_WIDTH], row)?),
            ])
        };
        let [places, _] = &self.places;
        if divided.advance(&self.network, places, inputs)? {
            return Ok(None);
        }
        let inputs = divided.inputs(inputs()?);
        let mut values = self.network.run_partly(inputs, &[durations, output])?;
        values.extend(divided.take_rest(&values));
        Ok(Some(values))
    }

    /// Stage B: the frames of each symbol. They are checked before anything is made of them.
    fn durations(
        &self,
        values: &Values,
        part: &Part,
        speed: f32,
    ) -> Result<(Value, Vec<usize>), VoiceError> {
        let speed = [speed];
        let inputs = self.inputs(values, &speed)?;
        let [durations] = self.network.run(inputs, [self.nodes.durations])?;
        let (shape, durations) = onnx::floats(durations)?;
        let frames: Vec<usize> = durations.iter().map(|frames| frames.max(0.0) as usize).collect();
        let sum = frames.iter().fold(0, |sum: usize, frames| sum.saturating_add(*frames));
        let count = part.ids.len();
        if frames.len() != count || shape.len() > 2 || sum == 0 || sum > MAX_PART_FRAMES {
            return Err(failed(format!("it predicts {sum} frames for {count} symbols")));
        }
        let durations = match shape.len() {
            1 => onnx::value([count], durations)?,
            _ => onnx::value([1, count], durations)?,
        };
        Ok((durations, frames))
    }

    /// A piece of stage C. Returns whether it was the last one.
    fn sound(&self, sound: &mut Sound, speed: f32, out: &mut Vec<f32>) -> Result<bool, VoiceError> {
        let speed = [speed];
        let Sound { values, frames, divided } = sound;
        let inputs = || self.inputs(values, &speed);
        let [_, places] = &self.places;
        if divided.advance(&self.network, places, inputs)? {
            return Ok(false);
        }
        let inputs = divided.inputs(inputs()?);
        let [samples] = self.network.run(inputs, [self.nodes.output])?;
        let (_, samples) = onnx::floats(samples)?;
        let frames = *frames;
        if samples.len() != frames * HOP {
            return Err(failed(format!("{} samples for {frames} frames", samples.len())));
        }
        if !samples.iter().all(|sample| sample.is_finite()) {
            return Err(failed("samples that are not finite"));
        }
        out.extend_from_slice(&samples);
        Ok(true)
    }

    /// Values of earlier stages, and the speed.
    fn inputs<'a>(
        &self,
        values: &'a Values,
        speed: &'a [f32; 1],
    ) -> Result<Vec<(NodeId, ValueOrView<'a>)>, VoiceError> {
        let values = values.iter().filter(|(node, _)| *node != self.nodes.speed);
        let mut inputs: Vec<_> = values.map(|(node, value)| (*node, value.into())).collect();
        inputs.push((self.nodes.speed, onnx::view([1], speed)?));
        Ok(inputs)
    }
}

fn failed(reason: impl Into<String>) -> VoiceError {
    VoiceError::Failed(reason.into())
}
