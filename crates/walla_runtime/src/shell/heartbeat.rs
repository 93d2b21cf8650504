//! The heartbeat of the device thread, read by the watchdog thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

/// Written by the device thread.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// Twice the number of beats, plus 1 while the thread rests.
    word: AtomicU64,
    phase: AtomicU32,
}

const RESTING: u64 = 1;

impl Heartbeat {
    /// Records that the thread is alive and works.
    pub fn work(&self) {
        // Only one thread at a time writes.
        let beats = self.word.load(Ordering::Relaxed) & !RESTING;
        self.word.store(beats + 2, Ordering::Release);
    }

    /// Records that the thread is about to park or has ended.
    pub fn rest(&self) {
        self.word.store(self.word.load(Ordering::Relaxed) | RESTING, Ordering::Release);
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Release);
        self.work();
    }

    pub fn phase(&self) -> Phase {
        let phases = [Phase::FirstLoad, Phase::Play, Phase::FallbackLoad];
        let phase = self.phase.load(Ordering::Acquire);
        phases.into_iter().find(|known| *known as u32 == phase).unwrap_or(Phase::Play)
    }

    /// Value of the current beat, or `None` while the thread rests.
    pub fn working(&self) -> Option<u64> {
        let word = self.word.load(Ordering::Acquire);
        (word & RESTING == 0).then_some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_beat_is_distinct_and_idle_has_none() {
        let beat = Heartbeat::default();
        beat.enter(Phase::FirstLoad);
        let first = beat.working();
        beat.work();
        assert!(first.is_some() && beat.working() > first);
        beat.rest();
        assert_eq!(beat.working(), None);
        beat.enter(Phase::FallbackLoad);
        assert_eq!(beat.phase(), Phase::FallbackLoad);
        assert!(beat.working() > first);
    }
}
