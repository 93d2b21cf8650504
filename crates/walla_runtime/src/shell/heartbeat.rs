//! The heartbeat of a device thread, read by the watchdog thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// Activity of the device thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// First load. There are no agents yet, so another thread can start again.
    FirstLoad,
    /// Running rounds.
    Play,
    /// Loading the fallback of a lost device.
    FallbackLoad,
}

const PHASES: [Phase; 3] = [Phase::FirstLoad, Phase::Play, Phase::FallbackLoad];

/// Written by one device thread. It begins as a first load that works.
///
/// One word, so that a reader never takes the beat of one phase for the other's: the deadlines of
/// loads and steps differ.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// Number of beats, then two bits of the phase's number, then one that is set while the thread
    /// rests.
    word: AtomicU64,
}

const RESTING: u64 = 1;
const PHASE: u64 = 0b110;
const BEAT: u64 = 0b1000;

impl Heartbeat {
    /// Records that the thread is alive and works.
    pub fn work(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((word & !RESTING) + BEAT, Ordering::Release);
    }

    /// Records that the thread is about to park or has ended.
    pub fn rest(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) | RESTING, Ordering::Release);
    }

    pub fn enter(&self, phase: Phase) {
        let word = self.word.load(Ordering::Relaxed) & !(RESTING | PHASE);
        self.word.store((word | (phase as u64) << 1) + BEAT, Ordering::Release);
    }

    /// The phase, and a number for the current beat, or `None` while the thread rests.
    pub fn look(&self) -> (Phase, Option<u64>) {
        let word = self.word.load(Ordering::Acquire);
        let phase = PHASES[((word & PHASE) >> 1) as usize];
        (phase, (word & RESTING == 0).then_some(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_beat_is_distinct_and_idle_has_none() {
        let beat = Heartbeat::default();
        let mut beats = Vec::new();
        for phase in PHASES {
            beat.enter(phase);
            beats.push(beat.look());
            beat.work();
            beats.push(beat.look());
            beat.rest();
            assert_eq!(beat.look(), (phase, None));
        }
        assert!(beats.iter().map(|(phase, _)| *phase).eq(PHASES.into_iter().flat_map(|p| [p; 2])));
        assert!(beats.is_sorted_by(|(_, one), (_, next)| one.is_some() && one < next));
    }
}
