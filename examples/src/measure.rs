//! Times of a loop, and the table at the end.

use std::time::Duration;

use hdrhistogram::Histogram;

/// A collection of durations, three digits each, up to ten seconds.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Times {
    /// An empty collection. All memory is allocated here.
    ///
    /// # Panics
    /// Never: the bounds are valid.
    #[must_use]
    pub fn new() -> Self {
        Self(
            Histogram::new_with_bounds(1, 10_000_000_000, 3)
                .expect("1 ns to 10 s are valid bounds"),
        )
    }

    /// Adds a duration.
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The quantile `share`; `1.0` is the longest duration.
    #[must_use]
    pub fn at(&self, share: f64) -> Duration {
        if self.0.is_empty() {
            Duration::ZERO
        } else {
            Duration::from_nanos(self.0.value_at_quantile(share))
        }
    }

    /// Median, 99th percentile and maximum, in milliseconds.
    #[must_use]
    pub fn millis(&self) -> String {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| self.at(share).as_secs_f64() * 1e3);
        format!("{p50:.2} / {p99:.2} / {max:.2} ms")
    }

    /// Median, 99th percentile and maximum, in microseconds.
    #[must_use]
    pub fn micros(&self) -> String {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| self.at(share).as_secs_f64() * 1e6);
        format!("{p50:.1} / {p99:.1} / {max:.1} µs")
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

/// Prints rows of a label and its values, in columns.
pub fn print_table(head: &[&str], rows: &[(&str, Vec<String>)]) {
    let mut table = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    table.extend(rows.iter().map(|(label, values)| {
        std::iter::once((*label).to_owned()).chain(values.iter().cloned()).collect()
    }));
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        table
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &table {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// Work in place of the rest of a game: always the same amount, so that it takes longer when its
/// core is shared.
#[derive(Clone, Copy, Debug)]
pub struct HostLoad {
    rounds: u64,
}

impl HostLoad {
    /// Work that takes about this time on this machine when it is idle.
    #[must_use]
    pub fn lasting(time: Duration) -> Self {
        const PROBE_ROUNDS: u64 = 200_000;
        let once = |_| {
            let start = std::time::Instant::now();
            spin(PROBE_ROUNDS);
            start.elapsed()
        };
        let fastest = (0..20).map(once).min().unwrap_or(Duration::from_micros(1));
        let rounds_per_second = PROBE_ROUNDS as f64 / fastest.as_secs_f64().max(1e-9);
        Self { rounds: (time.as_secs_f64() * rounds_per_second) as u64 }
    }

    /// Executes the work.
    pub fn work(self) {
        spin(self.rounds);
    }
}

/// A chain of dependent steps that no compiler shortens.
fn spin(rounds: u64) {
    let mut state = std::hint::black_box(0x9e37_79b9_u64);
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    std::hint::black_box(state);
}
