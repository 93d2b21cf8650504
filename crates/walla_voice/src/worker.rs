//! The thread: chooses the most urgent piece of work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use walla_cpu::budget::{Account, OwnFrames};

use crate::ear;
use crate::engine::{Command, Shared};
use crate::guard::{caught, discard};
use crate::mouth;

/// Time after which the thread looks again whether the playback has made room.
const ROOM_INTERVAL: Duration = Duration::from_millis(20);

/// Frames whose unused time is kept, so that the first sound of an answer does not wait for frames.
const SAVED_FRAMES: u32 = 15;

/// Ends the queue of commands when the thread ends, for any reason.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs until the last handle is dropped.
pub(crate) fn run(shared: &Arc<Shared>) {
    let _end = End(shared);
    let mut work = Work::default();
    let mut account = Account::with_savings(SAVED_FRAMES);
    let mut frames = OwnFrames::default();
    while !shared.stops() {
        work.take_commands(shared);
        let begin = Instant::now();
        if work.hear() {
            let time = begin.elapsed();
            shared.count(time);
            account.spend(1, time, &shared.grants);
        }
        each(&mut work.mouths, mouth::Job::store);
        if work.most_urgent().is_none() {
            let waits_for_room = work.mouths.iter().any(mouth::Job::waits_for_room);
            let max_time = waits_for_room.then_some(ROOM_INTERVAL);
            shared.sleep(max_time, || {
                work.take_commands(shared);
                work.ears.iter().any(ear::Job::can_hear) || work.most_urgent().is_some()
            });
            continue;
        }
        let next_frame = frames.grant(&shared.grants);
        if account.tokens(&shared.grants) == Some(0) {
            // New samples do not wait for a frame longer than this.
            let max_time = next_frame.unwrap_or(ROOM_INTERVAL).min(ROOM_INTERVAL);
            let has_time = || account.tokens(&shared.grants) != Some(0);
            shared.sleep_until_frame(Some(max_time), has_time);
            continue;
        }
        let begin = Instant::now();
        work.step();
        let time = begin.elapsed();
        shared.count(time);
        account.spend(1, time, &shared.grants);
    }
}

/// All mouths and ears. They call parts of the host's, so each operation on one of them, and its
/// drop, is guarded: if it panics, that one ends and the others go on.
#[derive(Default)]
struct Work {
    mouths: Vec<mouth::Job>,
    ears: Vec<ear::Job>,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.mouths.drain(..).for_each(discard);
        self.ears.drain(..).for_each(discard);
    }
}

/// The index of a job.
enum Job {
    Mouth(usize),
    Ear(usize),
}

/// Does some work with each job.
fn each<J>(jobs: &mut Vec<J>, mut work: impl FnMut(&mut J)) {
    remove(jobs, |job| caught(|| work(job)).is_none());
}

/// Removes jobs.
fn remove<J>(jobs: &mut Vec<J>, is_removed: impl FnMut(&mut J) -> bool) {
    jobs.extract_if(.., is_removed).for_each(discard);
}

/// Does some work with one job.
fn one<J>(jobs: &mut Vec<J>, index: usize, work: impl FnOnce(&mut J)) {
    let Some(job) = jobs.get_mut(index) else { return };
    if caught(|| work(job)).is_none() {
        discard(jobs.remove(index));
    }
}

impl Work {
    fn take_commands(&mut self, shared: &Shared) {
        while let Some(command) = shared.commands.pop() {
            match command {
                Command::Mouth(mouth) => self.mouths.push(*mouth),
                Command::Ear(ear) => self.ears.push(*ear),
            }
        }
        remove(&mut self.mouths, |mouth| mouth.is_abandoned());
        remove(&mut self.ears, |ear| ear.has_ended());
    }

    /// Whether a microphone has sent something.
    fn hear(&mut self) -> bool {
        let mut has_heard = false;
        each(&mut self.ears, |ear| has_heard |= ear.hear());
        has_heard
    }

    /// The piece of work whose result is needed first. Of equals, an ear's, then the first mouth's.
    fn most_urgent(&mut self) -> Option<Job> {
        let ears = self.ears.iter().enumerate();
        let ears = ears.filter_map(|(index, ear)| Some((ear.slack()?, Job::Ear(index))));
        let mouths = self.mouths.iter_mut().enumerate();
        let mouths = mouths.filter_map(|(index, mouth)| Some((mouth.slack()?, Job::Mouth(index))));
        ears.chain(mouths).min_by_key(|(slack, _)| *slack).map(|(_, job)| job)
    }

    /// Does the most urgent piece of work.
    fn step(&mut self) {
        match self.most_urgent() {
            Some(Job::Mouth(index)) => one(&mut self.mouths, index, mouth::Job::step),
            Some(Job::Ear(index)) => one(&mut self.ears, index, ear::Job::step),
            None => {}
        }
    }
}
