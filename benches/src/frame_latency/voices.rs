//! Tokens as received by the frame: their arrival, and which of them are late for speech.

use std::time::{Duration, Instant};

use bevy_ecs::prelude::*;
use bevy_walla::reply::Usage;

use crate::first_token::Asks;
use crate::measure::Times;

/// Statistics of one agent.
#[derive(Clone, Copy, Debug, Default)]
struct Voice {
    asked: Option<Instant>,
    /// When the first token of this reply arrived.
    began: Option<Instant>,
    /// Time to this token, if it arrived since the measurement began.
    first_token: Option<Duration>,
    said: u32,
    /// Whether this or an earlier reply had a token.
    has_spoken: bool,
    /// Frame of the latest token.
    heard_frame: u64,
    /// Maximum and number of waits between tokens, in frames, while an event is watched.
    max_gap: u64,
    tokens_watched: u32,
}

/// Tokens of all agents. Token `k` of a reply (from 0) is due `k / rate` seconds after the first
/// one, when the speech reaches it.
#[derive(Resource, Debug)]
pub struct Voices {
    voices: Vec<Voice>,
    rate: f32,
    pub frame: u64,
    pub measured: Heard,
}

/// Sums since the measurement began.
#[derive(Clone, Debug)]
pub struct Heard {
    pub tokens: u64,
    pub tokens_late: u64,
    pub replies: u64,
    pub replies_failed: u64,
    /// Error of the first failed reply.
    pub error: Option<String>,
    pub first_token: Times,
    /// Asks whose first token and end were both measured. Only modes with walla have them.
    pub asks: Asks,
    /// Histogram of the frames between two tokens of one reply; the last entry counts all longer
    /// gaps.
    pub gaps: [u64; GAPS],
}

/// Entries of the histogram of gaps.
const GAPS: usize = 64;

impl Default for Heard {
    fn default() -> Self {
        Self {
            tokens: 0,
            tokens_late: 0,
            replies: 0,
            replies_failed: 0,
            error: None,
            first_token: Times::default(),
            asks: Asks::default(),
            gaps: [0; GAPS],
        }
    }
}

impl Heard {
    /// Adds the sums of another round.
    pub fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.tokens_late += other.tokens_late;
        self.replies += other.replies;
        self.replies_failed += other.replies_failed;
        if self.error.is_none() {
            self.error.clone_from(&other.error);
        }
        self.first_token.add_all(&other.first_token);
        self.asks.add_all(&other.asks);
        for (gap, more) in self.gaps.iter_mut().zip(other.gaps) {
            *gap += more;
        }
    }

    fn add_gap(&mut self, frames: u64) {
        self.gaps[(frames as usize).min(GAPS - 1)] += 1;
    }

    /// Median number of frames between two tokens.
    pub fn gap_median(&self) -> u64 {
        let total: u64 = self.gaps.iter().sum();
        let mut left = total / 2;
        for (frames, &count) in self.gaps.iter().enumerate() {
            if left < count {
                return frames as u64;
            }
            left -= count;
        }
        0
    }
}

impl Voices {
    pub fn new(agents: usize, rate: f32) -> Self {
        let measured = Heard::default();
        Self { voices: vec![Voice::default(); agents], rate, frame: 0, measured }
    }

    /// Begins the measurement.
    pub fn measure(&mut self) {
        self.measured = Heard::default();
        self.voices.iter_mut().for_each(|voice| voice.first_token = None);
    }

    pub fn asked(&mut self, agent: usize, now: Instant) {
        if let Some(voice) = self.voices.get_mut(agent) {
            *voice = Voice {
                asked: Some(now),
                has_spoken: voice.has_spoken,
                max_gap: voice.max_gap,
                tokens_watched: voice.tokens_watched,
                ..Voice::default()
            };
        }
    }

    /// Records tokens that arrived in this frame.
    pub fn heard(&mut self, agent: usize, tokens: u32, now: Instant) {
        let (rate, frame) = (self.rate, self.frame);
        let Some(voice) = self.voices.get_mut(agent) else { return };
        if tokens == 0 {
            return;
        }
        let began = match voice.began {
            Some(began) => {
                let gap = frame - voice.heard_frame;
                self.measured.add_gap(gap);
                voice.max_gap = voice.max_gap.max(gap);
                voice.tokens_watched += tokens;
                began
            }
            None => {
                voice.first_token = voice.asked.map(|asked| now.duration_since(asked));
                if let Some(time) = voice.first_token {
                    self.measured.first_token.add(time);
                }
                *voice.began.insert(now)
            }
        };
        for token in voice.said..voice.said + tokens {
            let due = began + Duration::from_secs_f32(token as f32 / rate.max(0.01));
            self.measured.tokens_late += u64::from(now > due);
        }
        self.measured.tokens += u64::from(tokens);
        voice.said += tokens;
        voice.has_spoken = true;
        voice.heard_frame = frame;
    }

    /// Number of agents that have not spoken since the beginning.
    pub fn silent(&self) -> usize {
        self.voices.iter().filter(|voice| !voice.has_spoken).count()
    }

    /// Records the usage of a reply that has finished.
    pub fn finished(&mut self, agent: usize, usage: &Usage) {
        if let Some(voice) = self.voices.get_mut(agent)
            && let Some(heard) = voice.first_token.take()
        {
            self.measured.asks.add(heard, usage);
        }
    }

    /// Records the end of a reply, with its error.
    pub fn ended(&mut self, agent: usize, error: Option<String>) {
        if agent < self.voices.len() {
            self.measured.replies += 1;
            self.measured.replies_failed += u64::from(error.is_some());
            self.measured.error = self.measured.error.take().or(error);
        }
    }

    /// Begins to watch an event: the maximum wait of every speaking agent is measured from now on.
    pub fn watch(&mut self) {
        for voice in &mut self.voices {
            (voice.max_gap, voice.tokens_watched) = (0, 0);
        }
    }

    /// The longest wait for a token, in frames, of every agent that spoke since [`Voices::watch`]
    /// or waits for the next token of a reply. A wait that is not over counts with its duration so
    /// far.
    pub fn gaps_watched(&self, since_frame: u64) -> Vec<u64> {
        let speaks = |voice: &&Voice| voice.began.is_some() || voice.tokens_watched > 0;
        let gap = |voice: &Voice| {
            let waits_since = voice.began.map(|_| voice.heard_frame.max(since_frame));
            let open = waits_since.map_or(0, |since| self.frame.saturating_sub(since));
            voice.max_gap.max(open)
        };
        self.voices.iter().filter(speaks).map(gap).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::first_token::tests::usage;

    #[test]
    fn a_token_after_its_due_time_is_late() {
        let mut voices = Voices::new(1, 10.0);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        voices.asked(0, start);
        for (frame, ms, tokens) in [(1, 50, 1), (2, 150, 1), (3, 240, 2), (9, 500, 1)] {
            voices.frame = frame;
            voices.heard(0, tokens, at(ms));
        }
        // Due at 50, 150, 250, 350 and 450 ms.
        assert_eq!((voices.measured.tokens, voices.measured.tokens_late), (5, 1));
        assert_eq!(voices.measured.first_token.at(0.5).as_millis(), 50);
        assert_eq!((voices.measured.gaps[1], voices.measured.gaps[6]), (2, 1));
        assert_eq!(voices.measured.gap_median(), 1);
    }

    #[test]
    fn a_new_reply_restarts_the_token_count() {
        let mut voices = Voices::new(2, 1.0);
        let start = Instant::now();
        for reply in 0..3 {
            voices.frame = reply * 100;
            voices.asked(1, start);
            voices.heard(1, 1, start);
            voices.ended(1, None);
        }
        assert_eq!((voices.measured.tokens, voices.measured.replies), (3, 3));
        assert_eq!(voices.measured.gaps.iter().sum::<u64>(), 0, "no gap between replies");
    }

    #[test]
    fn an_ask_counts_if_its_first_token_was_measured() {
        let usage = usage([1, 1, 2, 3], 4, 8);
        let mut voices = Voices::new(1, 1.0);
        let start = Instant::now();
        let later = start + Duration::from_millis(20);
        voices.asked(0, start);
        voices.heard(0, 1, later);
        voices.measure();
        voices.finished(0, &usage);
        assert!(voices.measured.asks.slowest().is_none(), "its first token was before");
        voices.asked(0, start);
        voices.heard(0, 1, later);
        voices.heard(0, 1, later + Duration::from_millis(5));
        voices.finished(0, &usage);
        voices.asked(0, start);
        voices.finished(0, &usage); // without a token
        let slowest = voices.measured.asks.slowest().unwrap();
        assert_eq!((slowest.asks, slowest.first_token_ms), (1, 20.0));
        assert_eq!(slowest.parts_ms, [1.0, 1.0, 2.0, 3.0, 13.0]);
    }

    #[test]
    fn gaps_around_an_event_are_measured_separately() {
        let mut voices = Voices::new(2, 1.0);
        let now = Instant::now();
        for frame in [0, 1, 9, 10, 11, 14] {
            voices.frame = frame;
            if frame == 10 {
                voices.watch();
            }
            voices.heard(0, 1, now);
        }
        assert_eq!(voices.gaps_watched(10), [3], "the wait of 8 frames was before");
    }

    /// Result of [`Voices::gaps_watched`] in frame 80 for one agent that speaks since frame 9, was
    /// watched from frame 10 on and received a token in each of `frames`.
    fn watched(frames: &[u64], asked_again: Option<u64>) -> Vec<u64> {
        let mut voices = Voices::new(1, 1.0);
        let now = Instant::now();
        for frame in 9..=80 {
            voices.frame = frame;
            if frame == 10 {
                voices.watch();
            }
            if frame == 9 || frames.contains(&frame) {
                voices.heard(0, 1, now);
            }
            if asked_again == Some(frame) {
                voices.ended(0, None);
                voices.asked(0, now);
            }
        }
        voices.gaps_watched(10)
    }

    #[test]
    fn an_unfinished_wait_counts() {
        assert_eq!(watched(&[11], None), [69], "since its token in frame 11");
        assert_eq!(watched(&[], None), [70], "since the event");
        assert_eq!(watched(&[70, 79], None), [61], "a longer wait before");
    }

    #[test]
    fn a_reply_that_ended_meanwhile_counts() {
        assert_eq!(watched(&[10, 70], Some(70)), [60], "and the wait for the next reply does not");
        assert!(watched(&[], Some(12)).is_empty(), "who got no token and waits for none");
    }

    #[test]
    fn the_first_error_and_silent_agents_are_counted() {
        let mut voices = Voices::new(3, 1.0);
        voices.ended(0, None);
        voices.ended(0, Some("no slot".into()));
        voices.ended(1, Some("too late".into()));
        voices.heard(2, 1, Instant::now());
        assert_eq!(voices.silent(), 2);
        let heard = &voices.measured;
        assert_eq!((heard.replies, heard.replies_failed), (3, 2));
        assert_eq!(heard.error.as_deref(), Some("no slot"));
        let mut all = Heard::default();
        all.add(heard);
        all.add(&Heard { error: Some("another round's".into()), ..Heard::default() });
        assert_eq!(all.error.as_deref(), Some("no slot"));
    }
}
