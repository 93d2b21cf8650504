//! Punctuality of the control loop.

use std::time::Duration;

use walla_examples::{Times, print_table};

/// Times of all ticks, separately for a silent and a speaking agent.
#[derive(Default)]
pub struct Jitter {
    silent: TickTimes,
    speaking: TickTimes,
    /// Ticks that were skipped because the previous one took too long.
    pub overruns: u64,
}

#[derive(Default)]
struct TickTimes {
    late: Times,
    work: Times,
}

impl Jitter {
    /// Adds a tick: its delay and its duration.
    pub fn add(&mut self, late: Duration, work: Duration, speaking: bool) {
        let ticks = if speaking { &mut self.speaking } else { &mut self.silent };
        ticks.late.add(late);
        ticks.work.add(work);
    }

    /// Prints the table.
    pub fn print(&self) {
        let Self { silent, speaking, overruns } = self;
        println!("\np50 / p99 / longest of {} ticks:", silent.late.count() + speaking.late.count());
        print_table(
            &["", "agent silent", "agent at work"],
            &[
                ("ticks", vec![silent.late.count().to_string(), speaking.late.count().to_string()]),
                ("late by", vec![silent.late.micros(), speaking.late.micros()]),
                ("work", vec![silent.work.micros(), speaking.work.micros()]),
            ],
        );
        println!("{overruns} ticks of 10 ms were missed");
    }
}
