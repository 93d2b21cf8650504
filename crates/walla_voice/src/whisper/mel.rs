//! Whisper's log-mel spectrum: windows of 25 ms each 10 ms, 80 bands of Slaney's mel scale.
//!
//! Source: Radford and others, "Robust speech recognition via large-scale weak supervision" (2022),
//! section 2.2, and `whisper/audio.py` of its publication for the padding and the scale.

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};

use crate::recognizer::HEARING_RATE;

/// Bands of the spectrum.
pub(super) const BANDS: usize = 80;
const WINDOW: usize = 400;
const HOP: usize = 160;
/// Frequencies of a window.
const BINS: usize = WINDOW / 2 + 1;

/// Tables of the spectrum.
pub(super) struct LogMel {
    window: Vec<f32>,
    /// First frequency and weights of each band.
    bands: Vec<(usize, Vec<f32>)>,
    fft: Arc<dyn Fft<f32>>,
}

impl fmt::Debug for LogMel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogMel").field("bands", &self.bands.len()).finish_non_exhaustive()
    }
}

impl LogMel {
    pub(super) fn new() -> Self {
        let hann = |at: usize| (0.5 - 0.5 * (2.0 * PI * at as f64 / WINDOW as f64).cos()) as f32;
        Self {
            window: (0..WINDOW).map(hann).collect(),
            bands: bands(),
            fft: FftPlanner::new().plan_fft_forward(WINDOW),
        }
    }

    /// The spectrum of samples that are padded with silence to `frames` frames: `BANDS` rows of
    /// `frames` numbers. Samples that are not finite are silence.
    pub(super) fn of(&self, samples: &[f32], frames: usize) -> Vec<f32> {
        let samples = samples.get(..samples.len().min(frames * HOP)).unwrap_or_default();
        // Half a window before the first sample is its mirror image.
        let at = |index: usize| {
            samples
                .get(index.abs_diff(WINDOW / 2))
                .copied()
                .filter(|sample| sample.is_finite())
                .unwrap_or(0.0)
        };
        let mut mel = vec![0.0; BANDS * frames];
        let mut spectrum = vec![Complex::default(); WINDOW];
        let mut scratch = vec![Complex::default(); self.fft.get_inplace_scratch_len()];
        let mut power = [0.0; BINS];
        // Frames behind the end of the sound are all alike.
        let with_sound = (samples.len() + WINDOW / 2).div_ceil(HOP).min(frames);
        mel.fill(-10.0);
        for frame in 0..with_sound {
            for (index, (number, weight)) in spectrum.iter_mut().zip(&self.window).enumerate() {
                *number = Complex::new(at(frame * HOP + index) * weight, 0.0);
            }
            self.fft.process_with_scratch(&mut spectrum, &mut scratch);
            for (power, number) in power.iter_mut().zip(&spectrum) {
                *power = number.norm_sqr();
            }
            for (band, (first, weights)) in self.bands.iter().enumerate() {
                let power = power.get(*first..).unwrap_or_default();
                let sum: f32 =
                    weights.iter().zip(power).map(|(weight, power)| weight * power).sum();
                if let Some(number) = mel.get_mut(band * frames + frame) {
                    *number = sum.max(1e-10).log10();
                }
            }
        }
        let floor = mel.iter().copied().fold(f32::MIN, f32::max) - 8.0;
        for number in &mut mel {
            *number = (number.max(floor) + 4.0) / 4.0;
        }
        mel
    }
}

/// Triangles of equal area that are equally wide on the mel scale.
fn bands() -> Vec<(usize, Vec<f32>)> {
    let step = 6.4_f64.ln() / 27.0;
    let mel = |hertz: f64| {
        if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + (hertz / 1000.0).ln() / step }
    };
    let hertz = |mel: f64| {
        if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * step).exp() }
    };
    let nyquist = f64::from(HEARING_RATE) / 2.0;
    let edge = |index: usize| hertz(mel(nyquist) * index as f64 / (BANDS + 1) as f64);
    let band = |index: usize| {
        let [low, middle, high] = [edge(index), edge(index + 1), edge(index + 2)];
        let weight = |bin: usize| {
            let at = bin as f64 * nyquist / (BINS - 1) as f64;
            let height = ((at - low) / (middle - low)).min((high - at) / (high - middle));
            (height.max(0.0) * 2.0 / (high - low)) as f32
        };
        let weights: Vec<f32> = (0..BINS).map(weight).collect();
        let first = weights.iter().position(|weight| *weight > 0.0).unwrap_or(0);
        let last = weights.iter().rposition(|weight| *weight > 0.0).map_or(first, |last| last + 1);
        (first, weights.get(first..last).unwrap_or_default().to_vec())
    };
    (0..BANDS).map(band).collect()
}
