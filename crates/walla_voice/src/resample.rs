//! Changes the rate of a stream of samples: windowed sinc, as a table of phases.

use std::f64::consts::PI;

/// Zero crossings of the sinc on each side.
const CROSSINGS: f64 = 16.0;
/// Part of the band that passes.
const PASSED: f64 = 0.95;
/// Samples per second of microphones and voices. A ring of another rate may be too large.
pub(crate) const RATES: std::ops::RangeInclusive<u32> = 4_000..=384_000;

/// Most phases: a ratio of larger numbers uses the nearest one.
const MAX_PHASES: u64 = 1024;

/// A stream at another rate. Blocks may have any length; the samples do not depend on it.
#[derive(Clone, Debug)]
pub struct Resampler {
    rates: [u32; 2],
    phases: u64,
    /// Weights of each phase, `taps` each.
    weights: Vec<f32>,
    taps: usize,
    /// Input samples that are needed, from the first tap of the next output on.
    input: Vec<f32>,
    /// Outputs so far; input samples that were dropped.
    outputs: u64,
    dropped: u64,
}

impl Resampler {
    /// From one rate to another, in samples per second; at least 1.
    #[must_use]
    pub fn new(from: u32, to: u32) -> Self {
        let [from, to] = [from.max(1), to.max(1)];
        let divisor = gcd(from, to);
        let phases = u64::from(to / divisor).min(MAX_PHASES);
        let cut = (f64::from(to) / f64::from(from)).min(1.0) * PASSED;
        let half = (CROSSINGS / cut).ceil() as usize;
        let taps = 2 * half;
        let weight = |phase: u64, tap: usize| {
            let distance = tap as f64 - (half as f64 - 1.0) - phase as f64 / phases as f64;
            let at = PI * distance * cut;
            let sinc = if at.abs() < 1e-9 { 1.0 } else { at.sin() / at };
            let window = 0.5 + 0.5 * (PI * distance / half as f64).cos();
            let inside = distance.abs() <= half as f64;
            if inside { (sinc * window * cut) as f32 } else { 0.0 }
        };
        let all = (0..phases).flat_map(|phase| (0..taps).map(move |tap| weight(phase, tap)));
        Self {
            rates: [from, to],
            phases,
            weights: if from == to { Vec::new() } else { all.collect() },
            taps,
            input: vec![0.0; half - 1],
            outputs: 0,
            dropped: 0,
        }
    }

    /// Forgets the stream: the next sample is the first one of another.
    pub(crate) fn reset(&mut self) {
        self.input.clear();
        self.input.resize(self.taps / 2 - 1, 0.0);
        (self.outputs, self.dropped) = (0, 0);
    }

    /// Appends the next samples at the new rate to `out`.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let [from, to] = self.rates.map(u64::from);
        if from == to {
            out.extend_from_slice(samples);
            return;
        }
        self.input.extend_from_slice(samples);
        loop {
            let position = self.outputs * from;
            let first = (position / to - self.dropped) as usize;
            let Some(input) = self.input.get(first..first + self.taps) else { break };
            let phase = (position % to) * self.phases / to;
            let weights = phase as usize * self.taps;
            let weights = self.weights.get(weights..weights + self.taps).unwrap_or_default();
            out.push(input.iter().zip(weights).map(|(sample, weight)| sample * weight).sum());
            self.outputs += 1;
        }
        let used = (self.outputs * from / to - self.dropped) as usize;
        let used = used.min(self.input.len());
        self.input.drain(..used);
        self.dropped += used as u64;
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, hertz: f64, samples: usize) -> Vec<f32> {
        (0..samples)
            .map(|at| (2.0 * PI * hertz * at as f64 / f64::from(rate)).sin() as f32)
            .collect()
    }

    #[test]
    fn tones_keep_their_frequency_and_level() {
        for from in [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 96_000, 44_117] {
            let mut out = Vec::new();
            Resampler::new(from, 16_000).push(&tone(from, 440.0, from as usize), &mut out);
            let expected = tone(16_000, 440.0, out.len());
            assert!(out.len() > 15_900 && out.len() <= 16_000, "{from}: {}", out.len());
            let pairs = out.iter().zip(&expected).skip(200);
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 0.02, "{from}: {worst}");
        }
    }

    #[test]
    fn what_the_new_rate_cannot_have_is_removed() {
        let mut out = Vec::new();
        Resampler::new(48_000, 16_000).push(&tone(48_000, 12_000.0, 48_000), &mut out);
        let worst = out.iter().skip(200).fold(0.0, |worst: f32, sample| worst.max(sample.abs()));
        assert!(worst < 0.01, "{worst}");
    }

    #[test]
    fn a_reset_stream_is_as_a_new_one() {
        let samples = tone(22_050, 300.0, 5000);
        let mut resampler = Resampler::new(22_050, 16_000);
        let streams = [(); 2].map(|()| {
            let mut out = Vec::new();
            resampler.reset();
            resampler.push(&samples, &mut out);
            out
        });
        let [first, second] = streams;
        assert!(first == second && first.len() > 3000);
    }

    #[test]
    fn blocks_of_any_length_have_the_same_samples() {
        for from in [16_000, 22_050, 48_000] {
            let samples = tone(from, 300.0, 9000);
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            Resampler::new(from, 16_000).push(&samples, &mut whole);
            let mut resampler = Resampler::new(from, 16_000);
            let mut rest = &samples[..];
            for length in (0..).map(|index| index * 7 % 501) {
                let (block, after) = rest.split_at(length.min(rest.len()));
                resampler.push(block, &mut parts);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            assert_eq!(whole, parts);
        }
    }
}
