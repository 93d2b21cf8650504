//! Random operations. A part consists of rounds: each starts engines, lets agents do random
//! operations while engines come and go, and ends all of them. The first round warms up: memory
//! after the last one is compared with memory after it.
//!
//! Promises:
//! 1. Each reply has exactly one end, within [`MAX_END`](crate::process::MAX_END).
//! 2. After the operations a new ask is answered.
//! 3. No thread panics, and no thread of walla outlives its engine.
//! 4. Memory without engines grows by at most [`MAX_GROWTH`].

mod dice;
mod game;
mod material;
mod tally;
mod tasks;

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Report;
use crate::process::{await_no_threads, resident_kib};
use dice::Dice;
use tally::Tally;

/// Largest growth of memory, as a fraction.
const MAX_GROWTH: f64 = 0.3;

/// Longest round. A shorter part has three rounds.
const MAX_ROUND: Duration = Duration::from_secs(20);

/// Panics in any thread.
static PANICS: AtomicU64 = AtomicU64::new(0);

type Round = fn(Dice, Duration) -> Result<Tally, Box<dyn Error>>;

/// Runs both parts.
pub fn soak(seed: u64, whole: Duration) -> Result<Report, Box<dyn Error>> {
    count_panics();
    let mut report = Report::default();
    for (name, round) in [("async", tasks::round as Round), ("bevy", game::round as Round)] {
        let part = Part::run(name, round, seed, whole)?;
        report.lines.push(part.line());
        report.broken.extend(part.broken());
        report.parts.insert(name.to_owned(), part.json());
    }
    Ok(report)
}

fn count_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        report(panic);
    }));
}

/// Results of a part.
struct Part {
    name: &'static str,
    tally: Tally,
    panics: u64,
    /// Resident memory in KiB after each round, without engines.
    resident_kib: Vec<u64>,
}

impl Part {
    fn run(
        name: &'static str,
        round: Round,
        seed: u64,
        whole: Duration,
    ) -> Result<Self, Box<dyn Error>> {
        let (start, panics) = (Instant::now(), PANICS.load(Ordering::Relaxed));
        let (mut tally, mut rounds_kib) = (Tally::default(), Vec::new());
        while rounds_kib.len() < 2 || start.elapsed() < whole {
            let dice = Dice::new(seed.wrapping_mul(1_000) + rounds_kib.len() as u64);
            tally.add(round(dice, MAX_ROUND.min(whole / 3))?);
            await_no_threads(name)?;
            rounds_kib.push(resident_kib());
        }
        let panics = PANICS.load(Ordering::Relaxed) - panics;
        Ok(Self { name, tally, panics, resident_kib: rounds_kib })
    }

    /// Memory after the first and after the last round.
    fn baseline_and_end_kib(&self) -> [u64; 2] {
        [self.resident_kib.first(), self.resident_kib.last()].map(|kib| kib.copied().unwrap_or(0))
    }

    fn growth(&self) -> f64 {
        let [baseline, end] = self.baseline_and_end_kib();
        end as f64 / baseline.max(1) as f64 - 1.0
    }

    fn broken(&self) -> Vec<String> {
        let mut broken = self.tally.broken.clone();
        if self.growth() > MAX_GROWTH {
            broken.push(format!("memory grew: {:?} KiB after each round", self.resident_kib));
        }
        if self.panics > 0 {
            broken.push(format!("{} panics", self.panics));
        }
        broken.iter().map(|promise| format!("{}: {promise}", self.name)).collect()
    }

    fn line(&self) -> String {
        let [baseline, end] = self.baseline_and_end_kib().map(|kib| kib as f64 / 1_024.0);
        let growth = 100.0 * self.growth();
        let rounds = self.resident_kib.len();
        let (name, tally) = (self.name, &self.tally);
        format!(
            "{name}: {rounds} rounds, {baseline:.1} MiB, then {end:.1} ({growth:+.1} %)\n{tally}"
        )
    }

    fn json(&self) -> Value {
        let [baseline, end] = self.baseline_and_end_kib();
        let mut all = self.tally.json();
        all["resident_kib_baseline"] = json!(baseline);
        all["resident_kib_end"] = json!(end);
        all["resident_kib_after_rounds"] = json!(self.resident_kib);
        all["panics"] = json!(self.panics);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ALONE;

    #[test]
    fn random_operations_break_no_promise() {
        let _alone = ALONE.lock();
        let report = soak(7, Duration::from_secs(3)).expect("it runs");
        // Three short rounds do not warm up the allocator.
        let broken = report.broken.iter().filter(|promise| !promise.contains("memory grew"));
        assert_eq!(broken.collect::<Vec<_>>(), Vec::<&String>::new());
        assert_eq!(report.parts.len(), 2);
    }

    #[test]
    fn growth_and_panics_are_errors() {
        let part = |end, panics| {
            let (name, tally, resident_kib) = ("test", Tally::default(), vec![1_000, 2_000, end]);
            Part { name, tally, panics, resident_kib }.broken().len()
        };
        assert_eq!([part(1_290, 0), part(1_310, 0), part(1_000, 1)], [0, 1, 1]);
    }
}
