//! Trials: programs whose predicted cost keeps them from running are tried again.
//!
//! A prediction is corrected by running steps only, so without trials a program that was once
//! predicted as too expensive would never run again. Counted are first steps of frames that got
//! less than was wanted: each one is a vote for the program with the next more rows. After enough
//! votes it is tried once; its cost is measured then. If it is still too expensive, the next trial
//! takes twice as many votes.

use super::correction::{PROGRAMS, program};
use crate::frame::{BUCKETS, StepWork};

/// Maximum of the votes for a trial, relative to those for the first one.
const MAX_DOUBLINGS: u32 = 5;

/// Steps with more rows than one, and fewer than wanted, before a step with one row is measured
/// again.
const STEPS_BETWEEN_SMALLEST: u32 = 64;

/// Votes for the programs that did not run.
#[derive(Clone, Debug)]
pub(super) struct Trials {
    votes: [u32; PROGRAMS],
    /// Trials of a program since it last ran without one.
    failed: [u32; PROGRAMS],
    /// The program of the next trial.
    next: Option<usize>,
    /// Whether the step that is being planned is that trial.
    is_trial: bool,
    /// Rows that the requests want of the step that is being planned, if it is the first one of its
    /// frame.
    wanted: Option<StepWork>,
    /// Steps with more rows than one, and fewer than wanted, since the last step with one row.
    since_smallest: u32,
}

impl Trials {
    pub const fn new() -> Self {
        Self {
            votes: [0; PROGRAMS],
            failed: [0; PROGRAMS],
            next: None,
            is_trial: false,
            wanted: None,
            since_smallest: 0,
        }
    }

    /// Begins to plan a step. Returns the program to try with it.
    pub fn begin(&mut self, wanted: StepWork, is_first_of_frame: bool) -> Option<usize> {
        self.wanted = is_first_of_frame.then_some(wanted);
        let next = self.next.filter(|&next| is_first_of_frame && next <= program(wanted));
        self.is_trial = next.is_some();
        next
    }

    /// Whether the step should have one row: the time of such a step limits that of others, and was
    /// not measured for long.
    pub fn needs_smallest(&self) -> bool {
        self.since_smallest >= STEPS_BETWEEN_SMALLEST
    }

    /// Counts a submitted step. `votes_wanted`: votes for a first trial. Returns whether the step
    /// is a trial.
    pub fn submitted(&mut self, work: StepWork, votes_wanted: u32) -> bool {
        let ran = program(work);
        let is_trial = std::mem::take(&mut self.is_trial);
        self.votes[ran] = 0;
        if !is_trial {
            self.failed[ran] = 0;
        } else if let Some(tried) = self.next.take() {
            self.votes[tried] = 0;
            self.failed[tried] = (self.failed[tried] + 1).min(MAX_DOUBLINGS);
        }
        let wanted = self.wanted.take();
        if let Some(blocked) = wanted.and_then(|wanted| larger(work, wanted)) {
            self.since_smallest += 1;
            self.votes[blocked] += 1;
            if self.votes[blocked] >= votes_wanted.max(1) << self.failed[blocked] {
                self.next = Some(blocked);
            }
        }
        if work.rows() == 1 {
            self.since_smallest = 0;
        }
        is_trial
    }
}

/// The program with the next more rows that a step could have run, if it ran less than was wanted.
fn larger(work: StepWork, wanted: StepWork) -> Option<usize> {
    let lacks_prompt = work.prefill_tokens < wanted.prefill_tokens;
    if work.decode_rows == wanted.decode_rows && work.prefill_tokens == 0 && lacks_prompt {
        return Some(program(StepWork { prefill_tokens: 1, ..work }));
    }
    let next = program(work) + 1;
    let has_next = !next.is_multiple_of(BUCKETS.len());
    (has_next && (lacks_prompt || work.decode_rows < wanted.decode_rows)).then_some(next)
}
