//! Times of phonemes, visemes and words in the sound of a sentence.

use std::ops::Range;
use std::time::Duration;

use crate::viseme::Viseme;

/// A value with its place in the sound: samples from the first one of the utterance.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Timed<T> {
    /// The value.
    pub value: T,
    /// First sample.
    pub start: u64,
    /// First sample behind it.
    pub end: u64,
}

/// Times of a part of an utterance, in order. A long text has several parts, each known before its
/// first sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Samples of the part.
    pub samples: Range<u64>,
    /// Symbols of the International Phonetic Alphabet, or of the voice's own set.
    pub phonemes: Vec<Timed<char>>,
    /// Shapes of the mouth. They cover the part without a gap.
    pub visemes: Vec<Timed<Viseme>>,
    /// Words, as byte ranges of the text.
    pub words: Vec<Timed<Range<usize>>>,
}

impl Timing {
    /// Appends the times of the next part.
    pub fn append(&mut self, part: Self) {
        if self.samples.is_empty() {
            self.samples.start = part.samples.start;
        }
        self.samples.end = part.samples.end;
        self.phonemes.extend(part.phonemes);
        self.visemes.extend(part.visemes);
        self.words.extend(part.words);
    }

    /// The shape of the mouth at a sample; [`Viseme::Silence`] outside of the part.
    #[must_use]
    pub fn viseme_at(&self, sample: u64) -> Viseme {
        find(&self.visemes, sample).map_or(Viseme::Silence, |viseme| viseme.value)
    }

    /// The byte range of the word at a sample.
    #[must_use]
    pub fn word_at(&self, sample: u64) -> Option<Range<usize>> {
        find(&self.words, sample).map(|word| word.value.clone())
    }

    /// Length of the text, in bytes, that was heard when `samples` were played: it ends behind the
    /// last word that was played at least to its half.
    #[must_use]
    pub fn heard_bytes(&self, samples: u64) -> usize {
        let heard = self.words.partition_point(|word| word.start + word.end <= 2 * samples);
        let last = heard.checked_sub(1).and_then(|last| self.words.get(last));
        last.map_or(0, |word| word.value.end)
    }
}

/// The entry at a sample, of entries in order.
fn find<T>(entries: &[Timed<T>], sample: u64) -> Option<&Timed<T>> {
    let after = entries.partition_point(|entry| entry.start <= sample);
    entries.get(after.checked_sub(1)?).filter(|entry| sample < entry.end)
}

/// The time of `samples` at a rate in samples per second.
#[must_use]
pub fn duration(samples: u64, sample_rate: u32) -> Duration {
    let nanos = u128::from(samples) * 1_000_000_000 / u128::from(sample_rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing() -> Timing {
        let word = |value, start, end| Timed { value, start, end };
        Timing {
            samples: 0..300,
            words: vec![word(0..3, 10, 100), word(4..9, 120, 300)],
            visemes: vec![
                Timed { value: Viseme::Silence, start: 0, end: 10 },
                Timed { value: Viseme::Aa, start: 10, end: 300 },
            ],
            phonemes: Vec::new(),
        }
    }

    #[test]
    fn entries_are_found_by_their_samples() {
        let timing = timing();
        let at = [0, 9, 10, 299, 300].map(|sample| timing.viseme_at(sample));
        let [silence, open] = [Viseme::Silence, Viseme::Aa];
        assert_eq!(at, [silence, silence, open, open, silence]);
        assert_eq!(
            [0, 10, 110, 120].map(|sample| timing.word_at(sample)),
            [None, Some(0..3), None, Some(4..9)]
        );
    }

    #[test]
    fn a_word_is_heard_when_half_of_it_was_played() {
        let timing = timing();
        let heard = [0, 54, 55, 100, 209, 210, u64::MAX / 2].map(|at| timing.heard_bytes(at));
        assert_eq!(heard, [0, 0, 3, 3, 3, 9, 9]);
    }

    #[test]
    fn times_of_long_sounds_do_not_overflow() {
        assert_eq!(duration(22_050, 22_050), Duration::from_secs(1));
        assert_eq!(duration(u64::MAX, 1), Duration::from_nanos(u64::MAX));
        assert_eq!(duration(5, 0), Duration::from_secs(5));
    }
}
