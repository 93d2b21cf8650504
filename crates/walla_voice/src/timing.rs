//! Times of phonemes, visemes and words in the sound of a sentence.

use std::ops::Range;
use std::time::Duration;

use crate::error::VoiceError;
use crate::viseme::Viseme;

/// Bound of the times of a voice: more than a hundred years of sound.
const MAX_SAMPLES: u64 = 1 << 48;
/// Speed of speech, for sounds without times.
const CHARS_PER_SECOND: u128 = 14;

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
        let middle = |word: &Timed<_>| word.start.midpoint(word.end);
        let is_heard = |word: &Timed<Range<usize>>| {
            // The midpoint is rounded down.
            let is_odd = (word.start ^ word.end) & 1 == 1;
            middle(word) < samples || (middle(word) == samples && !is_odd)
        };
        let heard = self.words.partition_point(is_heard);
        let last = heard.checked_sub(1).and_then(|last| self.words.get(last));
        last.map_or(0, |word| word.value.end)
    }

    /// Length of `text`, in bytes, that was heard when `played` samples of its sound were played:
    /// 0 before the first one; all of it if the sound has `samples` in all and all were played;
    /// otherwise by the times of the words, as [`heard_bytes`](Self::heard_bytes). Of a voice that
    /// reports no times, it is an estimate: the played share of the characters if `samples` is
    /// known, otherwise 14 characters per second. The estimate ends behind a whole word.
    #[must_use]
    pub fn heard_bytes_of(
        &self,
        text: &str,
        samples: Option<u64>,
        played: u64,
        sample_rate: u32,
    ) -> usize {
        if played == 0 {
            return 0;
        }
        if samples.is_some_and(|samples| played >= samples) {
            return text.len();
        }
        if !self.words.is_empty() {
            return text.floor_char_boundary(self.heard_bytes(played));
        }
        let (factor, divisor) = match samples {
            Some(samples) => (text.chars().count() as u128, u128::from(samples)),
            None => (CHARS_PER_SECOND, u128::from(sample_rate)),
        };
        let heard = u128::from(played) * factor / divisor.max(1);
        let heard = usize::try_from(heard).unwrap_or(usize::MAX);
        let next = text.chars().skip(1).map(Some).chain([None]);
        let chars = text.char_indices().zip(next).take(heard);
        let ends = chars.filter(|((_, before), after)| is_word_end(*before, *after));
        ends.last().map_or(0, |((at, before), _)| at + before.len_utf8())
    }
}

/// Ends of the last entries of a sentence, for the order of the next part: of the samples, the
/// phonemes, the visemes and the words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends([(u64, u64); 4]);

impl Timing {
    /// Checks the times of a part that a voice has planned, behind others.
    ///
    /// # Errors
    /// If they are not in order, too large, or a word is not in the text.
    pub(crate) fn check(&self, text: &str, ends: &mut Ends) -> Result<(), VoiceError> {
        let wrong = |what| Err(VoiceError::Failed(format!("the times of the {what} are wrong")));
        let [samples, phonemes, visemes, words] = &mut ends.0;
        let Range { start, end } = self.samples;
        if !follows(samples, start, end) {
            return wrong("samples");
        }
        // The next part begins behind this one.
        *samples = (end, end);
        if !self.phonemes.iter().all(|entry| follows(phonemes, entry.start, entry.end)) {
            return wrong("phonemes");
        }
        if !self.visemes.iter().all(|entry| follows(visemes, entry.start, entry.end)) {
            return wrong("visemes");
        }
        if !self.words.iter().all(|entry| follows(words, entry.start, entry.end)) {
            return wrong("words");
        }
        match self.words.iter().find(|word| text.get(word.value.clone()).is_none()) {
            Some(Timed { value, .. }) => {
                let reason = format!("the bytes {value:?} are no word of the text");
                Err(VoiceError::Failed(reason))
            }
            None => Ok(()),
        }
    }
}

/// Whether an entry is in order behind the last one, which it becomes.
fn follows(last: &mut (u64, u64), start: u64, end: u64) -> bool {
    let is_in_order = last.0 <= start && last.1 <= end && start <= end && end < MAX_SAMPLES;
    *last = (start, end);
    is_in_order
}

/// Whether a word ends between two characters: at a space, and between two of a script without
/// spaces.
fn is_word_end(before: char, after: Option<char>) -> bool {
    let has_no_spaces = |letter| {
        let scripts = ['\u{2e80}'..='\u{9fff}', '\u{f900}'..='\u{faff}', '\u{20000}'..='\u{3ffff}'];
        scripts.iter().any(|script| script.contains(&letter))
    };
    !before.is_whitespace()
        && after.is_none_or(|after| {
            after.is_whitespace() || (has_no_spaces(before) && has_no_spaces(after))
        })
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
    fn heard_bytes_of_any_numbers_do_not_overflow() {
        let words = |start, end| vec![Timed { value: 0..3, start, end }];
        for (start, end, samples, heard) in [
            (u64::MAX, u64::MAX, u64::MAX, 3),
            (u64::MAX - 1, u64::MAX, u64::MAX - 1, 0),
            (u64::MAX, 0, u64::MAX, 3),
            (3, 4, 3, 0),
            (3, 4, 4, 3),
            (2, 4, 3, 3),
            (0, 0, 0, 3),
        ] {
            let timing = Timing { words: words(start, end), ..Timing::default() };
            assert_eq!(timing.heard_bytes(samples), heard, "{start} {end} {samples}");
        }
    }

    #[test]
    fn text_that_was_heard_is_known_or_estimated() {
        let (times, none) = (timing(), Timing::default());
        let text = "One, zwölf";
        let of =
            |timing: &Timing, samples, played| timing.heard_bytes_of(text, samples, played, 10);
        // By the words.
        assert_eq!([0, 54, 55, 210].map(|played| of(&times, None, played)), [0, 0, 3, 9]);
        assert_eq!(of(&times, Some(300), 299), 9, "the voice's own words");
        assert_eq!([300, u64::MAX].map(|played| of(&times, Some(300), played)), [11; 2]);
        let beyond = Timing {
            words: vec![Timed { value: 0..usize::MAX, start: 0, end: 1 }],
            ..Timing::default()
        };
        assert_eq!(of(&beyond, None, 5), 11);
        // By the share of the ten characters.
        let heard = [0, 30, 39, 40, 99, 100].map(|played| of(&none, Some(100), played));
        assert_eq!(heard, [0, 0, 0, 4, 4, 11]);
        assert_eq!(of(&none, Some(0), 1), 11);
        // 14 characters a second, of ten samples.
        assert_eq!([1, 2, 3, 7, 8].map(|played| of(&none, None, played)), [0, 0, 4, 4, 11]);
        assert_eq!(none.heard_bytes_of(text, None, u64::MAX, 0), 11);
        assert_eq!(none.heard_bytes_of("", None, 1, 10), 0);
        // Of a script without spaces: half of the four characters.
        assert_eq!(none.heard_bytes_of("你好世界", Some(10), 5, 10), 6);
    }

    #[test]
    fn wrong_times_of_a_voice_are_found() {
        let entry = |start, end| Timed { value: 'a', start, end };
        let phonemes = |phonemes| Timing { phonemes, ..Timing::default() };
        let word =
            |value| Timing { words: vec![Timed { value, start: 0, end: 1 }], ..Timing::default() };
        let samples = |samples| Timing { samples, ..Timing::default() };
        let text = "zwölf";
        let check = |timing: &Timing| timing.check(text, &mut Ends::default());
        let right = [
            Timing::default(),
            phonemes(vec![entry(1, 1), entry(1, 5), entry(4, 5)]),
            word(0..6),
            word(6..6),
            samples(5..5),
        ];
        for timing in right {
            assert!(check(&timing).is_ok(), "{timing:?}");
        }
        let wrong = [
            phonemes(vec![entry(2, 1)]),
            phonemes(vec![entry(2, 3), entry(1, 3)]),
            phonemes(vec![entry(0, 9), entry(1, 3)]),
            phonemes(vec![entry(0, MAX_SAMPLES)]),
            phonemes(vec![entry(u64::MAX, u64::MAX)]),
            word(0..7),
            word(0..3),
            word(3..4),
            word(Range { start: 2, end: 1 }),
            word(0..usize::MAX),
            samples(Range { start: 2, end: 1 }),
            samples(0..u64::MAX),
        ];
        for timing in wrong {
            assert!(check(&timing).is_err(), "{timing:?}");
        }
        // Parts are in order too.
        let mut ends = Ends::default();
        let part = |at| Timing { samples: at..at + 10, ..phonemes(vec![entry(at, at + 10)]) };
        let results = [0, 10, 5].map(|at| part(at).check(text, &mut ends).is_ok());
        assert_eq!(results, [true, true, false]);
    }

    #[test]
    fn times_of_long_sounds_do_not_overflow() {
        assert_eq!(duration(22_050, 22_050), Duration::from_secs(1));
        assert_eq!(duration(u64::MAX, 1), Duration::from_nanos(u64::MAX));
        assert_eq!(duration(5, 0), Duration::from_secs(5));
    }
}
