//! Stage C: from latent frames to samples, in pieces.
//!
//! The decoder has levels. A level makes more numbers for a frame than the one before. For some
//! frames of its result, it needs more frames of its input: the first level, which costs the least,
//! needs about ten before and behind, the costly ones need one. So the results of a level are kept
//! as long as the next one needs them, and hardly anything is computed twice.

use std::ops::Range;

use rten::{NodeId, ValueOrView};

use super::failed;
use crate::error::VoiceError;
use crate::onnx::{self, Network};

/// Frames that a level makes at least, as a multiple of the context that it needs.
const MIN_FRAMES: usize = 6;

/// The decoder of a voice.
#[derive(Debug)]
pub(super) struct Decoder {
    pub levels: Vec<Level<NodeId>>,
    pub output: NodeId,
    /// Samples of a frame.
    pub hop: usize,
    pub speaker: Option<NodeId>,
}

/// A part of the decoder.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Level<Node> {
    pub input: Node,
    /// Rows of its input, and the numbers that a row has for each frame.
    pub channels: usize,
    pub rate: usize,
    /// Frames of the input on both sides on which a frame of the result depends. `None`: all may.
    pub context: Option<usize>,
}

impl Decoder {
    fn context(&self, level: usize) -> Option<usize> {
        self.levels.get(level).and_then(|level| level.context)
    }

    /// Computes the level of these frames of its input.
    fn run(
        &self,
        network: &Network,
        index: usize,
        speaker: u32,
        frames: &Frames,
    ) -> Result<Frames, VoiceError> {
        let level = self.levels.get(index).ok_or_else(|| failed("no such level"))?;
        let (speaker, count) = ([speaker as i32], frames.count());
        let shape = [1, level.channels, level.rate * count];
        let mut inputs: Vec<(NodeId, ValueOrView<'_>)> =
            vec![(level.input, onnx::view(shape, &frames.numbers)?)];
        if let Some(node) = self.speaker {
            inputs.push((node, onnx::view([1], &speaker)?));
        }
        let next = self.levels.get(index + 1);
        let [result] = network.run(inputs, [next.map_or(self.output, |next| next.input)])?;
        let (channels, rate) = next.map_or((1, self.hop), |next| (next.channels, next.rate));
        let (shape, numbers) = onnx::floats(result)?;
        if numbers.len() != channels * rate * count {
            return Err(failed(format!("{shape:?} numbers for {count} frames")));
        }
        Ok(Frames { numbers, channels, begin: frames.begin, end: frames.end })
    }
}

/// Frames of a value: rows, one behind the other.
#[derive(Debug)]
pub(super) struct Frames {
    pub numbers: Vec<f32>,
    pub channels: usize,
    /// The first frame, and the one behind the last.
    pub begin: usize,
    pub end: usize,
}

impl Frames {
    fn count(&self) -> usize {
        self.end - self.begin
    }

    /// The part of each row that has these frames.
    fn rows(&self, part: Range<usize>) -> impl Iterator<Item = &[f32]> {
        let row = self.numbers.len() / self.channels.max(1);
        let rate = row / self.count().max(1);
        let part = (part.start - self.begin) * rate..(part.end - self.begin) * rate;
        let rows = self.numbers.chunks_exact(row.max(1));
        rows.map(move |row| row.get(part.clone()).unwrap_or_default())
    }

    /// These frames alone.
    pub(super) fn part(&self, part: Range<usize>) -> Self {
        let (channels, begin, end) = (self.channels, part.start, part.end);
        Self { numbers: self.rows(part).flatten().copied().collect(), channels, begin, end }
    }

    /// Appends frames, and forgets those before `first`.
    fn append(&mut self, new: &Self, first: usize) {
        if self.count() == 0 {
            *self = new.part(first..new.end);
            return;
        }
        let rows = self.rows(first..self.end).zip(new.rows(self.end..new.end));
        self.numbers = rows.flat_map(|(old, new)| [old, new]).flatten().copied().collect();
        (self.begin, self.end) = (first, new.end);
    }
}

/// The sound of a part in work.
#[derive(Debug)]
pub(super) struct Sound {
    /// Frames of the part.
    frames: usize,
    /// Inputs of the levels.
    inputs: Vec<Frames>,
    /// Frames whose samples were returned.
    made: usize,
}

impl Sound {
    pub(super) fn new(frames: usize, decoder: &Decoder) -> Self {
        let channels = decoder.levels.iter().map(|level| level.channels);
        let none = |channels| Frames { numbers: Vec::new(), channels, begin: 0, end: 0 };
        Self { frames, inputs: channels.map(none).collect(), made: 0 }
    }

    /// Latent frames that are there.
    pub(super) fn latent(&self) -> usize {
        self.inputs.first().map_or(0, |latent| latent.end)
    }

    /// Appends latent frames.
    pub(super) fn push_latent(&mut self, latent: &Frames, decoder: &Decoder) {
        self.store(0, decoder, latent);
    }

    /// Frames whose samples were returned.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// Whether all samples were returned.
    pub(super) fn has_ended(&self) -> bool {
        self.made >= self.frames
    }

    /// Computes one level, towards the samples of the frames before `end`. The last level's are
    /// appended to `out`. Returns the number of latent frames if they are needed first.
    pub(super) fn step(
        &mut self,
        network: &Network,
        decoder: &Decoder,
        speaker: u32,
        end: usize,
        out: &mut Vec<f32>,
    ) -> Result<Option<usize>, VoiceError> {
        let mut end = end.min(self.frames);
        // From the last level back to the first one that has its input.
        for index in (0..self.inputs.len()).rev() {
            let begin = self.end_of(index);
            let context = decoder.context(index);
            end = match context {
                None => self.frames,
                Some(context) if begin > 0 && index + 1 < self.inputs.len() => {
                    end.max(begin + MIN_FRAMES * context).min(self.frames)
                }
                Some(_) => end,
            };
            let context = context.unwrap_or(self.frames);
            let needed = begin.saturating_sub(context)..(end + context).min(self.frames);
            match self.inputs.get(index) {
                Some(input) if input.end >= needed.end => {
                    let input = input.part(needed);
                    let result = decoder.run(network, index, speaker, &input)?.part(begin..end);
                    if index + 1 < self.inputs.len() {
                        self.store(index + 1, decoder, &result);
                    } else if result.numbers.iter().all(|sample| sample.is_finite()) {
                        out.extend_from_slice(&result.numbers);
                        self.made = end;
                    } else {
                        return Err(failed("samples that are not finite"));
                    }
                    return Ok(None);
                }
                _ => end = needed.end,
            }
        }
        Ok(Some(end))
    }

    /// The frame behind the last one that a level has made.
    fn end_of(&self, level: usize) -> usize {
        self.inputs.get(level + 1).map_or(self.made, |next| next.end)
    }

    /// Stores the next frames of a level's input, and forgets the frames before its context.
    fn store(&mut self, level: usize, decoder: &Decoder, new: &Frames) {
        let context = decoder.context(level).unwrap_or(self.frames);
        let first = self.end_of(level).saturating_sub(context);
        if let Some(input) = self.inputs.get_mut(level) {
            input.append(new, first);
        }
    }
}
