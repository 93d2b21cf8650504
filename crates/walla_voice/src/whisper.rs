//! Whisper: an encoder of sound and a decoder of text, as two ONNX files.
//!
//! `tools/voice/whisper.py` converts published weights. Inputs and outputs:
//!
//! ```text
//! encoder: mel [1, 80, frames] ▶ cross_k{layer} [1, heads, 64, frames / 2], cross_v{layer}
//! decoder: tokens [1, n], positions [1, n], mask [n, past + n], past_k{layer}, past_v{layer},
//!          cross_k{layer}, cross_v{layer} ▶ logits [1, 1, vocabulary], present_k{layer}, …
//! ```
//!
//! The encoder reads a window of 6.4 s for up to 5 s of sound, of 10 s for up to 9 s, and of 30 s
//! otherwise: the shorter ones cost a tenth and a fifth. Windows that end close behind the speech
//! make Whisper repeat its text.

mod mel;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rten::{NodeId, Value};
use rten_tensor::prelude::*;

use crate::error::VoiceError;
use crate::onnx::{self, Network};
use crate::recognizer::{
    HEARING_RATE, Recognition, RecognizeOptions, SpeechRecognizer, Transcript,
};
use mel::LogMel;
use tokens::Tokens;

/// Frames of 10 ms in the windows, and the seconds of sound for which each is used.
const WINDOWS: [(usize, usize); 3] = [(640, 5), (1000, 9), (3000, 30)];
/// Samples of a frame.
const HOP: usize = HEARING_RATE as usize / 100;
/// Tokens of the longest text: half of the decoder's context, as in the original.
const MAX_TOKENS: usize = 224;
/// The shortest run of tokens whose immediate repetition ends the text.
const MIN_REPEATED: usize = 4;
const MAX_LAYERS: usize = 64;

/// A Whisper model of any size, English or multilingual.
#[derive(Debug)]
pub struct Whisper {
    encoder: Network,
    mel: NodeId,
    /// Inputs of its layers, where it is divided; empty if it has no such names.
    hidden: Vec<NodeId>,
    /// Keys and values of each layer of the decoder, in order.
    encoded: Vec<NodeId>,
    decoder: Network,
    nodes: Decoder,
    tokens: Tokens,
    log_mel: LogMel,
}

/// Values of the decoder. Lists have keys and values of each layer, in order.
#[derive(Debug)]
struct Decoder {
    tokens: NodeId,
    positions: NodeId,
    mask: NodeId,
    past: Vec<NodeId>,
    cross: Vec<NodeId>,
    /// Logits, then the keys and values.
    outputs: Vec<NodeId>,
}

/// Settings of [`Whisper::load`].
#[derive(Clone, Debug, Default)]
pub struct WhisperOptions {
    /// Threads that compute. Default 0 and 1: one.
    pub threads: u32,
}

impl Whisper {
    /// Loads a folder with the files `encoder.onnx`, `decoder.onnx` and `tokenizer.json`; files
    /// `encoder.int8.onnx` and `decoder.int8.onnx` are preferred.
    ///
    /// # Errors
    /// If a file cannot be read, is damaged or another network.
    pub fn load(
        folder: impl AsRef<Path>,
        options: WhisperOptions,
    ) -> Result<Arc<Self>, VoiceError> {
        let folder = folder.as_ref();
        onnx::check_path(folder)?;
        let tokens = Tokens::read(&folder.join("tokenizer.json"))?;
        let pool = onnx::pool(options.threads);
        let path = network_file(folder, "encoder");
        let wrong = |reason: String| VoiceError::model(&path, reason);
        let bytes = onnx::read_network(&path)?;
        let (encoder, [mel]) = Network::load(bytes, Arc::clone(&pool), ["mel"]).map_err(wrong)?;
        let hidden = (0..MAX_LAYERS).map_while(|layer| encoder.id(&format!("hidden{layer}")));
        let hidden = hidden.collect();
        let encoded = of_layers(&encoder, "cross").map_err(wrong)?;
        let path = network_file(folder, "decoder");
        let wrong = |reason: String| VoiceError::model(&path, reason);
        let bytes = onnx::read_network(&path)?;
        let names = ["tokens", "positions", "mask", "logits"];
        let (decoder, ids) = Network::load(bytes, pool, names).map_err(wrong)?;
        let [tokens_node, positions, mask, logits] = ids;
        let past = of_layers(&decoder, "past").map_err(wrong)?;
        let cross = of_layers(&decoder, "cross").map_err(wrong)?;
        let present = of_layers(&decoder, "present").map_err(wrong)?;
        if cross.len() != encoded.len() || past.len() != cross.len() || present.len() != past.len()
        {
            return Err(wrong("encoder and decoder have different numbers of layers".to_owned()));
        }
        let outputs = std::iter::once(logits).chain(present).collect();
        let nodes = Decoder { tokens: tokens_node, positions, mask, past, cross, outputs };
        let log_mel = LogMel::new();
        Ok(Arc::new(Self { encoder, mel, hidden, encoded, decoder, nodes, tokens, log_mel }))
    }

    /// Codes of the languages that the model knows; empty for an English one.
    pub fn languages(&self) -> impl Iterator<Item = &str> {
        self.tokens.languages.iter().map(|(code, _)| code.as_str())
    }
}

/// The file of a network: the smaller one if there is one.
fn network_file(folder: &Path, name: &str) -> PathBuf {
    let small = folder.join(format!("{name}.int8.onnx"));
    if small.exists() { small } else { folder.join(format!("{name}.onnx")) }
}

/// Keys and values of all layers.
fn of_layers(network: &Network, name: &str) -> Result<Vec<NodeId>, String> {
    let mut nodes = Vec::new();
    for layer in 0..MAX_LAYERS {
        let [keys, values] = ["k", "v"].map(|kind| network.id(&format!("{name}_{kind}{layer}")));
        let (Some(keys), Some(values)) = (keys, values) else { break };
        nodes.extend([keys, values]);
    }
    if nodes.is_empty() {
        return Err(format!("it has no value \"{name}_k0\": was it converted for walla?"));
    }
    Ok(nodes)
}

impl SpeechRecognizer for Whisper {
    fn max_samples(&self) -> usize {
        WINDOWS[2].0 * HOP
    }

    fn begin(
        self: Arc<Self>,
        samples: &[f32],
        options: &RecognizeOptions,
    ) -> Result<Box<dyn Recognition>, VoiceError> {
        let max = self.max_samples();
        if samples.len() > max {
            let seconds = |samples: usize| format!("{} s", samples / HEARING_RATE as usize);
            let (length, max) = (seconds(samples.len()), seconds(max));
            return Err(VoiceError::TooLong { what: "the recording is", length, max });
        }
        let language = match &options.language {
            Some(code) if !self.tokens.languages.is_empty() => {
                let is_code = |(known, _): &&(String, i32)| known.eq_ignore_ascii_case(code);
                let token = self.tokens.languages.iter().find(is_code);
                let wrong = || VoiceError::Option {
                    name: "language",
                    value: code.clone(),
                    expected: "a code that the model knows".to_owned(),
                };
                Some(token.ok_or_else(wrong)?.1)
            }
            _ => None,
        };
        let stage = Stage::Listen(samples.to_vec(), language);
        Ok(Box::new(Reading { whisper: self, stage }))
    }
}

#[derive(Debug)]
struct Reading {
    whisper: Arc<Whisper>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The samples, and the token of the language.
    Listen(Vec<f32>, Option<i32>),
    /// The number of the encoder's next part, and its input.
    Encode(usize, Value, Option<i32>),
    /// The language is not known.
    FindLanguage(Vec<Value>),
    Decode(Text),
    Ended,
}

/// A text in work.
#[derive(Debug)]
struct Text {
    cross: Vec<Value>,
    past: Vec<Value>,
    /// Tokens that the decoder has not seen.
    next: Vec<i32>,
    position: usize,
    written: Vec<i32>,
    log_probability: f64,
    language: Option<i32>,
}

impl Recognition for Reading {
    fn step(&mut self) -> Result<Option<Transcript>, VoiceError> {
        let whisper = Arc::clone(&self.whisper);
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Ended => return Ok(Some(Transcript::default())),
            Stage::Listen(samples, language) => {
                self.stage = Stage::Encode(0, whisper.spectrum(&samples)?, language);
            }
            Stage::Encode(part, input, language) => {
                let mut outputs = whisper.encode(part, input)?;
                let is_unknown = language.is_none() && !whisper.tokens.languages.is_empty();
                self.stage = if part < whisper.hidden.len()
                    && let Some(hidden) = outputs.pop()
                {
                    Stage::Encode(part + 1, hidden, language)
                } else if is_unknown {
                    Stage::FindLanguage(outputs)
                } else {
                    Stage::Decode(whisper.text(outputs, language)?)
                };
            }
            Stage::FindLanguage(cross) => {
                let mut text = whisper.text(cross, None)?;
                text.next = vec![whisper.tokens.start];
                let logits = whisper.decode(&mut text)?;
                let logit = |token: i32| logits.get(token as usize).copied().unwrap_or(f32::MIN);
                let languages = whisper.tokens.languages.iter().map(|(_, token)| *token);
                let language = languages.max_by(|a, b| logit(*a).total_cmp(&logit(*b)));
                self.stage = Stage::Decode(whisper.text(text.cross, language)?);
            }
            Stage::Decode(mut text) => {
                if whisper.write(&mut text)? {
                    return Ok(Some(whisper.transcript(&text)));
                }
                self.stage = Stage::Decode(text);
            }
        }
        Ok(None)
    }
}

impl Whisper {
    /// The input of the encoder.
    fn spectrum(&self, samples: &[f32]) -> Result<Value, VoiceError> {
        let seconds = samples.len().div_ceil(HEARING_RATE as usize);
        let [.., long] = WINDOWS;
        let (frames, _) = *WINDOWS.iter().find(|(_, most)| seconds <= *most).unwrap_or(&long);
        onnx::value([1, mel::BANDS, frames], self.log_mel.of(samples, frames))
    }

    /// Runs a part of the encoder. The last one returns keys and values for the decoder.
    fn encode(&self, part: usize, input: Value) -> Result<Vec<Value>, VoiceError> {
        let node = part.checked_sub(1).and_then(|before| self.hidden.get(before));
        let inputs = vec![(*node.unwrap_or(&self.mel), input.into())];
        match self.hidden.get(part) {
            Some(to) => self.encoder.run_all(inputs, &[*to]),
            None => self.encoder.run_all(inputs, &self.encoded),
        }
    }

    /// A text without a token.
    fn text(&self, cross: Vec<Value>, language: Option<i32>) -> Result<Text, VoiceError> {
        let mut past = Vec::with_capacity(cross.len());
        for (index, value) in cross.iter().enumerate() {
            // Keys [1, heads, width, time], values [1, heads, time, width].
            let shape = value.shape();
            let &[_, heads, rows, columns] = &shape[..] else {
                return Err(VoiceError::Failed(format!("keys of shape {shape:?}")));
            };
            let shape = if index % 2 == 0 { [1, heads, rows, 0] } else { [1, heads, 0, columns] };
            let empty = Value::from_shape(shape, Vec::<f32>::new());
            past.push(empty.map_err(|error| VoiceError::Failed(error.to_string()))?);
        }
        Ok(Text {
            cross,
            past,
            next: self.tokens.prompt(language),
            position: 0,
            written: Vec::new(),
            log_probability: 0.0,
            language,
        })
    }

    /// Runs the decoder over the next tokens. Returns the logits behind the last one.
    fn decode(&self, text: &mut Text) -> Result<Vec<f32>, VoiceError> {
        let nodes = &self.nodes;
        let (count, past) = (text.next.len(), text.position);
        let positions: Vec<i32> = (past..past + count).map(|at| at as i32).collect();
        let rows = (0..count).flat_map(|row| (0..past + count).map(move |at| (row, at)));
        let mask: Vec<f32> =
            rows.map(|(row, at)| if at > past + row { -1e9 } else { 0.0 }).collect();
        let tokens = std::mem::take(&mut text.next);
        let mut inputs = vec![
            (nodes.tokens, onnx::view([1, count], &tokens)?),
            (nodes.positions, onnx::view([1, count], &positions)?),
            (nodes.mask, onnx::view([count, past + count], &mask)?),
        ];
        let past = std::mem::take(&mut text.past);
        for (node, value) in nodes.past.iter().zip(past) {
            inputs.push((*node, value.into()));
        }
        for (node, value) in nodes.cross.iter().zip(&text.cross) {
            inputs.push((*node, value.into()));
        }
        let mut outputs = self.decoder.run_all(inputs, &nodes.outputs)?;
        text.past = outputs.split_off(1);
        text.position += count;
        let logits = outputs.pop().map(onnx::floats).transpose()?;
        let (_, logits) = logits.unwrap_or_default();
        if logits.is_empty() || logits.iter().any(|logit| logit.is_nan()) {
            return Err(VoiceError::Failed("logits that are not finite".to_owned()));
        }
        if !self.tokens.is_vocabulary_of(logits.len()) {
            let reason = "tokenizer.json is of another model: its vocabulary has another size";
            return Err(VoiceError::Failed(reason.to_owned()));
        }
        Ok(logits)
    }

    /// Writes the next token. Returns whether the text has ended.
    fn write(&self, text: &mut Text) -> Result<bool, VoiceError> {
        let logits = self.decode(text)?;
        let best = self.tokens.best(&logits, text.written.is_empty());
        let (best, token) = best.ok_or_else(|| VoiceError::Failed("no logits".to_owned()))?;
        let sum: f32 = logits.iter().map(|logit| (logit - best).exp()).sum();
        text.log_probability -= f64::from(sum.ln());
        if token == self.tokens.end {
            return Ok(true);
        }
        text.written.push(token);
        if let Some(length) = repeated(&text.written) {
            text.written.truncate(text.written.len() - length);
            return Ok(true);
        }
        text.next = vec![token];
        Ok(text.written.len() >= MAX_TOKENS)
    }

    fn transcript(&self, text: &Text) -> Transcript {
        let language = text.language.and_then(|token| {
            let found = self.tokens.languages.iter().find(|(_, known)| *known == token);
            found.map(|(code, _)| code.clone())
        });
        let count = text.written.len() + 1; // With the end.
        Transcript {
            text: self.tokens.text(&text.written),
            log_probability: (text.log_probability / count as f64) as f32,
            language,
        }
    }
}

/// Length of the run at the end that repeats the tokens before it.
fn repeated(tokens: &[i32]) -> Option<usize> {
    let count = tokens.len();
    (MIN_REPEATED..=count / 2).find(|length| {
        tokens.get(count - length..) == tokens.get(count - 2 * length..count - length)
    })
}

#[cfg(test)]
mod tests {
    use super::repeated;

    #[test]
    fn an_immediate_repetition_is_found() {
        assert_eq!(repeated(&[1, 2, 3, 4, 1, 2, 3, 4]), Some(4));
        assert_eq!(repeated(&[9, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5]), Some(5));
        assert_eq!(repeated(&[1, 2, 3, 1, 2, 3]), None, "three words may be said twice");
        assert_eq!(repeated(&[1, 2, 3, 4, 9, 1, 2, 3, 4]), None);
        assert_eq!(repeated(&[]), None);
    }
}
