//! The thread: chooses the most urgent piece of work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use walla_cpu::budget::{Account, OwnFrames};

use crate::ear;
use crate::engine::{Command, Shared};
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
            account.spend(1, begin.elapsed(), &shared.grants);
        }
        work.mouths.iter_mut().for_each(mouth::Job::store);
        if work.most_urgent().is_none() {
            let waits_for_room = work.mouths.iter().any(mouth::Job::waits_for_room);
            let max_time = waits_for_room.then_some(ROOM_INTERVAL);
            shared.sleep(max_time, || {
                work.take_commands(shared);
                work.hear() || work.most_urgent().is_some()
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
        match work.most_urgent() {
            Some(Job::Mouth(mouth)) => mouth.step(),
            Some(Job::Ear(ear)) => ear.step(),
            None => {}
        }
        let time = begin.elapsed();
        shared.count(time);
        account.spend(1, time, &shared.grants);
    }
}

/// All mouths and ears.
#[derive(Default)]
struct Work {
    mouths: Vec<mouth::Job>,
    ears: Vec<ear::Job>,
}

enum Job<'a> {
    Mouth(&'a mut mouth::Job),
    Ear(&'a mut ear::Job),
}

impl Work {
    fn take_commands(&mut self, shared: &Shared) {
        while let Some(command) = shared.commands.pop() {
            match command {
                Command::Mouth(mouth) => self.mouths.push(*mouth),
                Command::Ear(ear) => self.ears.push(*ear),
            }
        }
        self.mouths.retain(|mouth| !mouth.is_abandoned());
        self.ears.retain(|ear| !ear.has_ended());
    }

    /// Whether a microphone has sent something.
    fn hear(&mut self) -> bool {
        let mut has_heard = false;
        for ear in &mut self.ears {
            has_heard |= ear.hear();
        }
        has_heard
    }

    /// The piece of work whose result is needed first. Of equals, an ear's, then the first mouth's.
    fn most_urgent(&mut self) -> Option<Job<'_>> {
        let ears = self.ears.iter_mut();
        let ears = ears.filter_map(|ear| Some((ear.slack()?, Job::Ear(ear))));
        let mouths = self.mouths.iter_mut();
        let mouths = mouths.filter_map(|mouth| Some((mouth.slack()?, Job::Mouth(mouth))));
        ears.chain(mouths).min_by_key(|(slack, _)| *slack).map(|(_, job)| job)
    }
}
