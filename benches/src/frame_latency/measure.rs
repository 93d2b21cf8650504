//! Distributions of durations.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Durations, three digits each, up to a minute.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Self(bounds.unwrap_or_else(|_| unreachable!("1 ns to 60 s are valid bounds")))
    }
}

impl Times {
    pub fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds all durations of another collection.
    pub fn add_all(&mut self, other: &Self) {
        // Both have the same bounds.
        let _added = self.0.add(&other.0);
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The quantile `share`; `1.0` is the longest duration. Zero without durations.
    pub fn at(&self, share: f64) -> Duration {
        let nanos = if self.0.is_empty() { 0 } else { self.0.value_at_quantile(share) };
        Duration::from_nanos(nanos)
    }

    pub fn millis(&self, share: f64) -> f64 {
        self.at(share).as_secs_f64() * 1e3
    }

    pub fn micros(&self, share: f64) -> f64 {
        self.at(share).as_secs_f64() * 1e6
    }

    /// p50, p95, p99, p99.9 and the longest, in milliseconds.
    pub fn to_json(&self) -> Value {
        json!({
            "count": self.count(),
            "p50": rounded(self.millis(0.5)),
            "p95": rounded(self.millis(0.95)),
            "p99": rounded(self.millis(0.99)),
            "p99_9": rounded(self.millis(0.999)),
            "max": rounded(self.millis(1.0)),
        })
    }

    /// Pairs of nanoseconds (to three digits) and count, for [`from_counts`](Self::from_counts).
    pub fn counts(&self) -> Vec<[u64; 2]> {
        self.0
            .iter_recorded()
            .map(|step| [step.value_iterated_to(), step.count_at_value()])
            .collect()
    }

    /// The distribution with these counts.
    pub fn from_counts(counts: &[[u64; 2]]) -> Self {
        let mut times = Self::default();
        for [nanos, count] in counts {
            times.0.saturating_record_n((*nanos).max(1), *count);
        }
        times
    }

    /// In the format of HdrHistogram's tools (`.hgrm`): value in milliseconds, quantile, cumulative
    /// count, 1 / (1 - quantile).
    pub fn to_hgrm(&self) -> String {
        let mut text = "       Value     Percentile TotalCount 1/(1-Percentile)\n\n".to_owned();
        let mut counted = 0;
        for step in self.0.iter_quantiles(5) {
            counted += step.count_since_last_iteration();
            let (value, share) =
                (step.value_iterated_to() as f64 / 1e6, step.quantile_iterated_to());
            let _ = write!(text, "{value:12.6} {share:14.12} {counted:10}");
            let _ = if share < 1.0 {
                writeln!(text, " {:14.2}", 1.0 / (1.0 - share))
            } else {
                writeln!(text, "            inf")
            };
        }
        let (mean, deviation) = (self.0.mean() / 1e6, self.0.stdev() / 1e6);
        let max = self.0.max() as f64 / 1e6;
        let _ = writeln!(text, "#[Mean    = {mean:12.6}, StdDeviation   = {deviation:12.6}]");
        let _ = writeln!(text, "#[Max     = {max:12.6}, Total count    = {:12}]", self.0.len());
        text
    }

    /// Points of a percentile curve: (nines, milliseconds), where 1 nine is 90 %, 2 are 99 %. Ends
    /// where less than one value remains.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let max_nines = (self.count().max(1) as f64).log10();
        let steps = (max_nines * 40.0).ceil() as usize;
        let nines = (0..=steps).map(|step| (step as f64 / 40.0).min(max_nines));
        nines.map(|nines| (nines, self.millis(1.0 - 10f64.powf(-nines)))).collect()
    }
}

/// Rounds to four decimals, which exceeds a clock's resolution in milliseconds.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hundred() -> Times {
        let mut times = Times::default();
        (1..=100).for_each(|ms| times.add(Duration::from_millis(ms)));
        times
    }

    #[test]
    fn percentiles_match_the_values() {
        let json = hundred().to_json();
        for (name, expected) in [("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("max", 100.0)] {
            let value = json[name].as_f64().unwrap();
            assert!((value - expected).abs() < 0.1, "{name}: {value}");
        }
        assert_eq!(Times::default().at(0.99), Duration::ZERO);
    }

    #[test]
    fn counts_give_the_same_distribution() {
        let again = Times::from_counts(&hundred().counts());
        assert_eq!(again.to_json(), hundred().to_json());
        assert_eq!(Times::from_counts(&[]).count(), 0);
    }

    #[test]
    fn a_curve_ends_at_the_largest_value() {
        let curve = hundred().curve();
        assert!(curve.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
        let last = curve.last().unwrap();
        assert!((last.0 - 2.0).abs() < 1e-9 && (last.1 - 99.0).abs() < 1.1, "{last:?}");
    }

    #[test]
    fn the_text_form_ends_with_all_values() {
        let text = hundred().to_hgrm();
        let last = text.lines().rfind(|line| line.ends_with("inf")).unwrap();
        assert_eq!(last.split_whitespace().nth(2), Some("100"));
    }
}
