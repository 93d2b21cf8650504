//! Divides a stream of frames into utterances.

use std::time::Duration;

use crate::recognizer::HEARING_RATE;

/// When an utterance begins and ends.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentOptions {
    /// Probability from which on a frame is speech. Default 0.5.
    pub begin_probability: f32,
    /// Probability below which it is not, in an utterance. Default 0.35.
    pub end_probability: f32,
    /// Sound from before the begin that belongs to the utterance. Default 300 ms; it, `end_silence`
    /// and `min_speech` are at most half of `max_length`.
    pub pre_roll: Duration,
    /// Silence that ends an utterance. Default 500 ms: shorter answers sooner, and divides slow
    /// speech.
    pub end_silence: Duration,
    /// Shortest utterance; a shorter one is dropped. Default 150 ms of speech, as short as "Hi."
    pub min_speech: Duration,
    /// Longest utterance; a longer one is divided. Default 28 s; from 1 s to the longest recording
    /// of the recogniser.
    pub max_length: Duration,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self {
            begin_probability: 0.5,
            end_probability: 0.35,
            pre_roll: Duration::from_millis(300),
            end_silence: Duration::from_millis(500),
            min_speech: Duration::from_millis(150),
            max_length: Duration::from_secs(28),
        }
    }
}

/// A change by a frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// An utterance began.
    Begun,
    /// It ended. With its samples.
    Ended(Vec<f32>),
    /// It ended and was too short.
    Dropped,
}

/// Finds utterances.
#[derive(Debug)]
pub(crate) struct Segments {
    options: SegmentOptions,
    /// Samples of the utterance, or those kept for the next one.
    samples: Vec<f32>,
    is_speech: bool,
    /// Which of the last four frames were speech.
    votes: u8,
    /// Samples since the last speech, and of speech.
    silence: usize,
    speech: usize,
    /// Samples of the stream so far.
    at: u64,
}

impl Segments {
    pub(crate) fn new(options: SegmentOptions) -> Self {
        let samples = Vec::new();
        Self { options, samples, is_speech: false, votes: 0, silence: 0, speech: 0, at: 0 }
    }

    /// Whether an utterance has begun.
    pub(crate) fn is_speech(&self) -> bool {
        self.is_speech
    }

    /// Samples of the utterance so far.
    pub(crate) fn samples(&self) -> &[f32] {
        if self.is_speech { &self.samples } else { &[] }
    }

    /// First sample of the utterance in the stream.
    pub(crate) fn start(&self) -> u64 {
        self.at - self.samples.len() as u64
    }

    /// Whether the last frame was speech.
    pub(crate) fn is_voiced(&self) -> bool {
        self.is_speech && self.silence == 0
    }

    /// Samples of silence since the last speech of the utterance.
    pub(crate) fn silence(&self) -> usize {
        self.silence
    }

    /// Appends a frame.
    pub(crate) fn push(&mut self, frame: &[f32], probability: f32) -> Option<Change> {
        // An utterance ends before the frame that would make it too long.
        let max_samples = samples(self.options.max_length).saturating_sub(frame.len());
        self.at += frame.len() as u64;
        self.samples.extend_from_slice(frame);
        let begins = probability >= self.options.begin_probability;
        self.votes = (self.votes << 1 | u8::from(begins)) & 0b1111;
        if !self.is_speech {
            let kept = (samples(self.options.pre_roll) + 4 * frame.len()).min(max_samples);
            let surplus = self.samples.len().saturating_sub(kept);
            self.samples.drain(..surplus);
            // Three of four: single frames of noise are no speech.
            if self.votes.count_ones() < 3 {
                return None;
            }
            (self.is_speech, self.silence) = (true, 0);
            self.speech = 3 * frame.len();
            return Some(Change::Begun);
        }
        if probability >= self.options.end_probability {
            self.silence = 0;
            self.speech += frame.len();
        } else {
            self.silence += frame.len();
        }
        let is_long = self.samples.len() > max_samples;
        (self.silence >= samples(self.options.end_silence) || is_long).then(|| self.end())
    }

    /// Ends the utterance, also because the stream has ended.
    pub(crate) fn end(&mut self) -> Change {
        let samples = std::mem::take(&mut self.samples);
        let is_long_enough = self.speech >= self::samples(self.options.min_speech);
        let has_ended = std::mem::take(&mut self.is_speech) && is_long_enough;
        (self.votes, self.speech) = (0, 0);
        if has_ended { Change::Ended(samples) } else { Change::Dropped }
    }
}

/// The number of samples in a time.
pub(crate) fn samples(time: Duration) -> usize {
    (time.as_secs_f64() * f64::from(HEARING_RATE)).min(1e9) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: [f32; 256] = [0.0; 256];

    /// Changes with the frames at which they come.
    fn changes(segments: &mut Segments, frames: &[f32]) -> Vec<(usize, Change)> {
        let push = |(index, probability): (usize, &f32)| {
            segments.push(&FRAME, *probability).map(|change| (index, change))
        };
        frames.iter().enumerate().filter_map(push).collect()
    }

    fn frames(parts: &[(usize, f32)]) -> Vec<f32> {
        parts.iter().flat_map(|(count, probability)| vec![*probability; *count]).collect()
    }

    #[test]
    fn an_utterance_has_pre_roll_and_ends_with_silence() {
        let mut segments = Segments::new(SegmentOptions::default());
        // 1 s silence, 1 s speech with a short pause, silence.
        let stream = frames(&[(62, 0.0), (30, 0.9), (10, 0.1), (30, 0.4), (50, 0.1)]);
        let found = changes(&mut segments, &stream[..132]);
        assert_eq!(found, [(64, Change::Begun)]);
        assert!(segments.is_speech() && segments.is_voiced());
        let start = segments.start();
        assert!((62 * 256 - 4800 - 1024..62 * 256).contains(&(start as usize)), "{start}");
        let found = changes(&mut segments, &stream[132..]);
        // 500 ms are 31.25 frames.
        let [(31, Change::Ended(samples))] = &found[..] else { panic!("{}", found.len()) };
        assert_eq!(samples.len(), (132 + 32) * 256 - start as usize);
        assert!(segments.samples().is_empty());
    }

    #[test]
    fn single_frames_and_short_sounds_are_no_speech() {
        let mut segments = Segments::new(SegmentOptions::default());
        let clicks: Vec<f32> = (0..200).map(|at| if at % 3 == 0 { 0.9 } else { 0.0 }).collect();
        assert_eq!(changes(&mut segments, &clicks), []);
        let found = changes(&mut segments, &frames(&[(5, 0.9), (60, 0.0)]));
        assert!(matches!(found[..], [(_, Change::Begun), (_, Change::Dropped)]), "{found:?}");
        let silence = changes(&mut segments, &frames(&[(10_000, 0.0)]));
        assert_eq!(silence, []);
        assert!(segments.samples.len() <= 4800 + 1024 + 256, "memory is bounded");
    }

    #[test]
    fn long_speech_is_divided_without_a_gap() {
        let options =
            SegmentOptions { max_length: Duration::from_secs(2), ..SegmentOptions::default() };
        let mut segments = Segments::new(options);
        let (mut total, mut ended) = (0, 0);
        for _ in 0..1000 {
            if let Some(Change::Ended(samples)) = segments.push(&FRAME, 0.9) {
                ended += 1;
                total += samples.len();
                assert!((31_744..=32_000).contains(&samples.len()), "{}", samples.len());
            }
        }
        assert!(ended >= 7, "{ended}");
        assert_eq!(total + segments.samples.len(), 1000 * 256);
    }

    #[test]
    fn no_utterance_is_longer_than_the_longest() {
        for frame in [16, 160, 256, 512, 1_999, 2_000] {
            for pre_roll in [Duration::ZERO, Duration::from_millis(500)] {
                let max_length = Duration::from_secs(1);
                let options = SegmentOptions { pre_roll, max_length, ..Default::default() };
                let mut segments = Segments::new(options);
                let mut longest = 0;
                for at in 0..64_000 / frame {
                    // Silence first, so that there is sound from before the begin.
                    let probability = if at * frame > 16_000 { 0.9 } else { 0.0 };
                    if let Some(Change::Ended(samples)) =
                        segments.push(&vec![0.0; frame], probability)
                    {
                        longest = longest.max(samples.len());
                    }
                    assert!(segments.samples.len() <= 16_000);
                }
                assert!((16_000 - frame..=16_000).contains(&longest), "{frame}: {longest}");
            }
        }
    }
}
