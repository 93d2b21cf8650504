//! Voices of Piper: VITS networks as ONNX, with a JSON file of their settings.
//!
//! A network has three stages, which are run separately:
//!
//! ```text
//! A: symbols ▶ frames of each symbol, mean and deviation of each frame
//! B: mean, deviation, noise ▶ (flow) ▶ latent frames
//! C: latent frames ▶ (decoder) ▶ samples, 256 for each frame
//! ```
//!
//! B and C are local: a result depends on some frames before and behind its own. With these as
//! context, a piece has the same bits as in the whole. The noise of A and B is an input here, so
//! that a seed determines it.

mod config;
mod decoder;
mod graph;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten::{NodeId, ValueOrView};
use walla_device::{philox4x32, unit_interval};

use crate::english::{Dialect, English};
use crate::error::VoiceError;
use crate::onnx::{self, Divided, Network, Values};
use crate::parts::{Lengths, Letters, Part, Parts};
use crate::synthesizer::{Phonemizer, SpeakOptions, SpeechSynthesizer, Step, Utterance, Variation};
use crate::timing::Timing;
use config::Config;
use decoder::{Decoder, Frames, Level, Sound};
use graph::Layout;

/// Frames of the longest part, about a minute: a damaged network can predict any number.
const MAX_PART_FRAMES: usize = 6000;
/// Stage A is divided at every eighth place: about 5 ms of work.
const PLACES: usize = 8;
/// Latent frames of the later pieces of stage B: about 25 ms of work.
const FLOW_FRAMES: usize = 128;
const LENGTHS: Lengths = Lengths { clause: 60, word: 250, max_word: 250 };

/// A voice of [Piper](https://github.com/OHF-Voice/piper1-gpl), or another VITS network that was
/// exported like one.
///
/// Many utterances can use one voice. The network runs on separate threads of low priority.
#[derive(Debug)]
pub struct Piper {
    network: Network,
    nodes: Nodes,
    /// Numbers of a latent frame.
    channels: usize,
    /// As [`Level::context`], of stage B.
    flow_context: Option<usize>,
    /// Places at which stage A is divided.
    places: Vec<Vec<NodeId>>,
    decoder: Decoder,
    config: Config,
    phonemizer: Arc<dyn Phonemizer>,
}

/// Settings of [`Piper::load`].
#[derive(Clone, Debug, Default)]
pub struct PiperOptions {
    /// The file of settings. Default `None`: the path of the network with `.json` appended.
    pub config: Option<PathBuf>,
    /// Turns texts into the voice's symbols. Default `None`: [`English`] for an English voice, the
    /// letters of the text for a voice that was trained on them, and an error for others.
    pub phonemizer: Option<Arc<dyn Phonemizer>>,
    /// Threads that compute. Default 0 and 1: one. The samples are the same with any number.
    pub threads: u32,
}

/// Values of the network.
#[derive(Debug)]
struct Nodes {
    input: NodeId,
    lengths: NodeId,
    scales: NodeId,
    speaker: Option<NodeId>,
    durations: NodeId,
    duration_noise: NodeId,
    latent_noise: NodeId,
    latent: NodeId,
}

impl Piper {
    /// Loads a voice. This takes about 0.2 s, and for the first English voice 0.3 s more.
    ///
    /// # Errors
    /// If a file cannot be read, is damaged or no Piper voice, or if the voice's language needs
    /// [`PiperOptions::phonemizer`].
    pub fn load(path: impl AsRef<Path>, options: PiperOptions) -> Result<Arc<Self>, VoiceError> {
        let path = path.as_ref();
        onnx::check_path(path)?;
        let config = options.config.unwrap_or_else(|| {
            let mut config = path.as_os_str().to_owned();
            config.push(".json");
            config.into()
        });
        let config = Config::read(&config)?;
        let wrong = |reason: String| VoiceError::model(path, reason);
        let phonemizer = match options.phonemizer {
            Some(phonemizer) => phonemizer,
            None => default_phonemizer(&config).map_err(wrong)?,
        };
        let bytes = onnx::read_network(path)?;
        let layout = Layout::find(&bytes).map_err(wrong)?;
        layout.check(&config).map_err(wrong)?;
        let names = &layout.names;
        let names = [
            "input",
            "input_lengths",
            "scales",
            &names.durations,
            &names.duration_noise,
            &names.latent_noise,
            &names.output,
        ];
        let (network, ids) =
            Network::load(bytes, onnx::pool(options.threads), names).map_err(wrong)?;
        let [input, lengths, scales, durations, duration_noise, latent_noise, output] = ids;
        let speaker = layout.has_speakers.then(|| network.id("sid")).flatten();
        let decoder = Decoder {
            levels: layout
                .levels
                .iter()
                .map(|level| of_network(level, &network))
                .collect::<Result<_, _>>()
                .map_err(wrong)?,
            output,
            hop: layout.hop,
            speaker,
        };
        let latent = decoder.levels.first().map_or(output, |level| level.input);
        let nodes = Nodes {
            input,
            lengths,
            scales,
            speaker,
            durations,
            duration_noise,
            latent_noise,
            latent,
        };
        let Layout { channels, flow_context, places, .. } = layout;
        let places = network.places(&places).into_iter().skip(PLACES).step_by(PLACES).collect();
        Ok(Arc::new(Self {
            network,
            nodes,
            channels,
            flow_context,
            places,
            decoder,
            config,
            phonemizer,
        }))
    }

    /// Number of speakers; 1 for most voices.
    #[must_use]
    pub fn speakers(&self) -> u32 {
        self.config.speakers
    }

    /// Language of the voice, as espeak names it (`en-us`); empty if the file names none.
    #[must_use]
    pub fn language(&self) -> &str {
        &self.config.language
    }
}

/// A level with the node of its input.
fn of_network(level: &Level<String>, network: &Network) -> Result<Level<NodeId>, String> {
    let Level { input, channels, rate, context } = level;
    let input = network.id(input).ok_or_else(|| format!("it has no value {input:?}"))?;
    Ok(Level { input, channels: *channels, rate: *rate, context: *context })
}

fn default_phonemizer(config: &Config) -> Result<Arc<dyn Phonemizer>, String> {
    if config.has_letters {
        return Ok(Arc::new(Letters));
    }
    match Dialect::of_language(&config.language) {
        Some(dialect) => Ok(English::shared(dialect)?),
        None => Err(format!(
            "its language is {:?}: set PiperOptions::phonemizer, only English has a built-in one",
            config.language
        )),
    }
}

impl SpeechSynthesizer for Piper {
    fn sample_rate(&self) -> u32 {
        self.config.sample_rate
    }

    fn begin(
        self: Arc<Self>,
        text: &str,
        options: &SpeakOptions,
    ) -> Result<Box<dyn Utterance>, VoiceError> {
        options.check()?;
        if options.speaker >= self.config.speakers {
            let (name, value) = ("speaker", options.speaker.to_string());
            let expected = match self.config.speakers {
                1 => "0, the only one".to_owned(),
                count => format!("0 to {}", count - 1),
            };
            return Err(VoiceError::Option { name, value, expected });
        }
        Ok(Box::new(PiperUtterance {
            voice: self,
            options: options.clone(),
            parts: Parts::new(text),
            index: 0,
            samples: 0,
            stage: Stage::Next,
        }))
    }
}

/// An utterance of a [`Piper`] voice.
#[derive(Debug)]
struct PiperUtterance {
    voice: Arc<Piper>,
    options: SpeakOptions,
    parts: Parts,
    /// Of the part in work: a part of the seed.
    index: u32,
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
    /// The durations of stage A.
    Durations(Part, Values),
    /// Stages B and C.
    Sound(Flow, Sound),
    Ended,
}

/// Inputs of stage B.
#[derive(Debug)]
struct Flow {
    /// Of stage A.
    values: Values,
    /// Frames of each symbol.
    durations: Vec<usize>,
    noise: Frames,
}

impl Utterance for PiperUtterance {
    fn step(&mut self, out: &mut Vec<f32>) -> Result<Step, VoiceError> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Ended => Ok(Step::Ended),
            Stage::Next => match self.next_part() {
                None if self.parts.has_text() => {
                    self.stage = Stage::Next;
                    Ok(Step::Working)
                }
                None => Ok(Step::Ended),
                Some(part) => {
                    self.stage = Stage::Encode(part, Divided::default());
                    Ok(Step::Working)
                }
            },
            Stage::Encode(part, mut divided) => {
                let values = self.voice.encode(&part, &mut divided, &self.options)?;
                self.stage = match values {
                    Some(values) => Stage::Durations(part, values),
                    None => Stage::Encode(part, divided),
                };
                Ok(Step::Working)
            }
            Stage::Durations(part, values) => self.plan(&part, values).map(Step::Planned),
            Stage::Sound(flow, mut sound) => {
                self.sound(&flow, &mut sound, out)?;
                self.stage = if sound.has_ended() {
                    self.index += 1;
                    Stage::Next
                } else {
                    Stage::Sound(flow, sound)
                };
                Ok(Step::Working)
            }
        }
    }
}

impl PiperUtterance {
    fn next_part(&mut self) -> Option<Part> {
        let Piper { phonemizer, config, .. } = &*self.voice;
        self.parts.next(&**phonemizer, &config.symbols, LENGTHS)
    }

    fn plan(&mut self, part: &Part, values: Values) -> Result<Timing, VoiceError> {
        let Piper { decoder, config, channels, .. } = &*self.voice;
        let durations = self.voice.durations(&values, part, &self.options, self.index)?;
        let timing = part.timing(&durations, decoder.hop as u64, self.samples, config.sample_rate);
        self.samples = timing.samples.end;
        let frames = durations.iter().sum();
        let numbers = normal(self.options.seed, self.index, 1, channels * frames);
        let noise = Frames { numbers, channels: *channels, begin: 0, end: frames };
        self.stage = Stage::Sound(Flow { values, durations, noise }, Sound::new(frames, decoder));
        Ok(timing)
    }

    /// A piece of stage B or C.
    fn sound(&self, flow: &Flow, sound: &mut Sound, out: &mut Vec<f32>) -> Result<(), VoiceError> {
        let (options, Piper { network, decoder, .. }) = (&self.options, &*self.voice);
        let is_first = sound.made() == 0 && self.index == 0;
        let piece = if is_first { options.first_piece_frames } else { options.piece_frames };
        let end = sound.made().saturating_add(piece as usize);
        if let Some(needed) = sound.step(network, decoder, options.speaker, end, out)? {
            let begin = sound.latent();
            let least = if begin > 0 { begin + FLOW_FRAMES } else { 0 };
            let end = needed.max(least).min(flow.noise.end);
            let latent = self.voice.flow(flow, options, begin..end)?;
            sound.push_latent(&latent, decoder);
        }
        Ok(())
    }
}

impl Piper {
    /// A piece of stage A. The last one returns values for its durations and for stage B.
    fn encode(
        &self,
        part: &Part,
        divided: &mut Divided,
        options: &SpeakOptions,
    ) -> Result<Option<Values>, VoiceError> {
        let nodes = &self.nodes;
        let (count, lengths) = (part.ids.len(), [part.ids.len() as i32]);
        let scales = self.scales(options);
        let speaker = [options.speaker as i32];
        let inputs = || {
            let mut inputs = vec![
                (nodes.input, onnx::view([1, count], &part.ids)?),
                (nodes.lengths, onnx::view([1], &lengths)?),
                (nodes.scales, onnx::view([3], &scales)?),
            ];
            if let Some(node) = nodes.speaker {
                inputs.push((node, onnx::view([1], &speaker)?));
            }
            Ok(inputs)
        };
        if divided.advance(&self.network, &self.places, inputs)? {
            return Ok(None);
        }
        let inputs = divided.inputs(inputs()?);
        let mut values = self.network.run_partly(inputs, &[nodes.latent, nodes.durations])?;
        values.extend(divided.take_rest(&values));
        Ok(Some(values))
    }

    /// The durations of stage A: the frames of each symbol. They are checked before anything is
    /// made of them.
    fn durations(
        &self,
        values: &Values,
        part: &Part,
        options: &SpeakOptions,
        index: u32,
    ) -> Result<Vec<usize>, VoiceError> {
        let nodes = &self.nodes;
        let count = part.ids.len();
        let noise = normal(options.seed, index, 0, 2 * count);
        let scales = self.scales(options);
        let speaker = [options.speaker as i32];
        let mut inputs = self.inputs(values, &scales, &speaker)?;
        inputs.push((nodes.duration_noise, onnx::view([1, 2, count], &noise)?));
        let [durations] = self.network.run(inputs, [nodes.durations])?;
        let (shape, durations) = onnx::floats(durations)?;
        let frames: Vec<usize> = durations.iter().map(|frames| frames.max(0.0) as usize).collect();
        let sum = frames.iter().fold(0, |sum: usize, frames| sum.saturating_add(*frames));
        if shape != [1, 1, count] || sum == 0 || sum > MAX_PART_FRAMES {
            return Err(failed(format!("it predicts {sum} frames for {count} symbols")));
        }
        Ok(frames)
    }

    /// Stage B for some of the latent frames. Symbols whose frames are not needed get none.
    fn flow(
        &self,
        flow: &Flow,
        options: &SpeakOptions,
        part: Range<usize>,
    ) -> Result<Frames, VoiceError> {
        let nodes = &self.nodes;
        let context = self.flow_context.unwrap_or(flow.noise.end);
        let window = part.start.saturating_sub(context)..(part.end + context).min(flow.noise.end);
        let ends = flow.durations.iter().scan(0, |at, count| {
            *at += count;
            Some((*at - count, *at))
        });
        let inside = |at: usize| at.clamp(window.start, window.end);
        let durations: Vec<f32> =
            ends.map(|(begin, end)| (inside(end) - inside(begin)) as f32).collect();
        let noise = flow.noise.part(window.clone());
        let scales = self.scales(options);
        let speaker = [options.speaker as i32];
        let mut inputs = self.inputs(&flow.values, &scales, &speaker)?;
        let shape = [1, self.channels, window.len()];
        inputs.push((nodes.durations, onnx::view([1, 1, durations.len()], &durations)?));
        inputs.push((nodes.latent_noise, onnx::view(shape, &noise.numbers)?));
        let [latent] = self.network.run(inputs, [nodes.latent])?;
        let (got, numbers) = onnx::floats(latent)?;
        if got != shape {
            return Err(failed(format!("latent frames of shape {got:?}")));
        }
        let (begin, end) = (window.start, window.end);
        Ok(Frames { numbers, channels: self.channels, begin, end }.part(part))
    }

    /// Values of earlier stages, and the inputs that all stages have.
    fn inputs<'a>(
        &self,
        values: &'a Values,
        scales: &'a [f32; 3],
        speaker: &'a [i32; 1],
    ) -> Result<Vec<(NodeId, ValueOrView<'a>)>, VoiceError> {
        let Nodes { scales: scales_node, speaker: speaker_node, .. } = self.nodes;
        let is_value = |node: NodeId| node != scales_node && Some(node) != speaker_node;
        let values = values.iter().filter(|(node, _)| is_value(*node));
        let mut inputs: Vec<_> = values.map(|(node, value)| (*node, value.into())).collect();
        inputs.push((scales_node, onnx::view([3], scales)?));
        if let Some(node) = speaker_node {
            inputs.push((node, onnx::view([1], speaker)?));
        }
        Ok(inputs)
    }

    /// Variation of the sound, factor of the durations, variation of the durations.
    fn scales(&self, options: &SpeakOptions) -> [f32; 3] {
        let Variation { sound, durations } = options.variation.unwrap_or(self.config.variation);
        [sound, self.config.length / options.speed, durations]
    }
}

fn failed(reason: impl Into<String>) -> VoiceError {
    VoiceError::Failed(reason.into())
}

/// Random numbers of a normal distribution (Box and Muller), from a counter: a number depends on
/// the seed, the part, the stage and its index alone. The logarithm and the cosine of `libm`
/// have the same bits on all platforms.
fn normal(seed: u64, part: u32, stage: u32, count: usize) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let mut numbers = Vec::with_capacity(count + 1);
    for pair in 0..count.div_ceil(2) {
        let [first, second, ..] = philox4x32([pair as u32, part, stage, 0], key);
        let radius = libm::sqrtf(-2.0 * libm::logf(unit_interval(first)));
        let angle = std::f32::consts::TAU * unit_interval(second);
        numbers.extend([radius * libm::cosf(angle), radius * libm::sinf(angle)]);
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_normal_and_depends_on_seed_part_and_stage() {
        let noise = normal(7, 0, 0, 10_001);
        assert_eq!(noise.len(), 10_001);
        let mean = noise.iter().sum::<f32>() / 10_001.0;
        let deviation = noise.iter().map(|number| number * number).sum::<f32>() / 10_001.0;
        assert!(mean.abs() < 0.03 && (deviation - 1.0).abs() < 0.05, "{mean}, {deviation}");
        assert_eq!(noise[..100], normal(7, 0, 0, 100));
        for other in [normal(8, 0, 0, 100), normal(7, 1, 0, 100), normal(7, 0, 1, 100)] {
            assert_ne!(noise[..100], other);
        }
        assert_ne!(normal(1 << 32, 0, 0, 4), normal(0, 0, 0, 4));
    }
}
