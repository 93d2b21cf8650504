//! Rotation frequencies, computed in `f64`.

use core::f64::consts::PI;

use super::{SpecError, source::Source};
use crate::spec::{Rope, RopePairs};

/// Context extension: scaling of positions beyond the model's training.
pub(super) struct Scaling {
    /// Divides the frequencies (with YaRN, only the low ones).
    factor: f64,
    yarn: Option<Yarn>,
    magnitude: f64,
}

/// High-frequency dimensions keep their frequency, low-frequency ones are divided by the factor,
/// with a linear ramp in between (Peng et al., <https://arxiv.org/abs/2309.00071>).
struct Yarn {
    context_original: f64,
    /// Rotations within the original context from which on a dimension counts as high-frequency.
    beta_fast: f64,
    /// Rotations up to which a dimension counts as low-frequency.
    beta_slow: f64,
}

impl Scaling {
    /// The file's `rope.scaling.*` keys.
    pub fn read(source: &Source<'_>, context_train: usize) -> Result<Self, SpecError> {
        let plain = Self::none(source)?;
        match source.find("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(plain),
            "linear" | "longrope" => Ok(Self { factor: factor(source)?, ..plain }),
            "yarn" => {
                let factor = factor(source)?;
                let original = original_context(source, context_train)?;
                let yarn = Yarn {
                    context_original: original as f64,
                    beta_fast: source.positive_or("rope.scaling.yarn_beta_fast", 32.0)?,
                    beta_slow: source.positive_or("rope.scaling.yarn_beta_slow", 1.0)?,
                };
                // Keeps the temperature of the scores (equation 22 of the paper), unless the model
                // was trained with its own: then both cancel out.
                let own = source.factor("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
                let growth = |multiplier: f64| 1.0 + 0.1 * multiplier * libm::log(factor.max(1.0));
                let magnitude = plain.magnitude * growth(1.0) / growth(own);
                Ok(Self { factor, yarn: Some(yarn), magnitude })
            }
            other => Err(source.unsupported("rope.scaling.type", other, "this scaling is")),
        }
    }

    /// No scaling; the magnitude still applies.
    pub fn none(source: &Source<'_>) -> Result<Self, SpecError> {
        let magnitude = source.positive_or("rope.scaling.attn_factor", 1.0)?;
        Ok(Self { factor: 1.0, yarn: None, magnitude })
    }
}

/// The older key is `rope.scale_linear`; 0 means no scaling in both.
fn factor(source: &Source<'_>) -> Result<f64, SpecError> {
    let is_new = source.find::<f32>("rope.scaling.factor")?.is_some();
    let suffix = if is_new { "rope.scaling.factor" } else { "rope.scale_linear" };
    Ok(source.factor(suffix)?.unwrap_or(1.0))
}

/// `frequency[i] = base^(-2i / rotated) / factors[i]`, scaled.
pub(super) fn rope(
    source: &Source<'_>,
    base: f64,
    rotated: usize,
    scaling: &Scaling,
    factors: Option<&[f32]>,
    pairs: RopePairs,
) -> Result<Rope, SpecError> {
    if base <= 1.0 {
        return Err(source.wrong("rope.freq_base", base, "above 1"));
    }
    let frequency = |i: usize| {
        let own = libm::pow(base, -(i.saturating_mul(2) as f64) / rotated as f64);
        let factor = factors.and_then(|f| f.get(i)).map_or(1.0, |&f| f64::from(f));
        let fast = own / factor;
        let keep = scaling.yarn.as_ref().map_or(0.0, |yarn| yarn.keep(i, base, rotated));
        (fast * keep + fast / scaling.factor * (1.0 - keep)) as f32
    };
    let frequencies = (0..rotated / 2).map(frequency).collect();
    Ok(Rope { frequencies, magnitude: scaling.magnitude as f32, pairs })
}

impl Yarn {
    /// Weight of the unscaled frequency of pair `i`: 1 for high frequencies, 0 for low ones.
    fn keep(&self, i: usize, base: f64, rotated: usize) -> f64 {
        // The pair that rotates `turns` times within the original context.
        let pair = |turns: f64| {
            rotated as f64 * libm::log(self.context_original / (turns * 2.0 * PI))
                / (2.0 * libm::log(base))
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(rotated as f64 - 1.0);
        let ramp = (i as f64 - low) / (high - low).max(0.001);
        1.0 - ramp.clamp(0.0, 1.0)
    }
}

/// Range of the factors. Gemma 4 has factors of 1e30 for dimensions that do not rotate.
const FACTORS: core::ops::RangeInclusive<f32> = 1e-9..=1e36;
const FACTORS_TEXT: &str = "a positive number (1e-9 to 1e36)";

/// The factors that divide the frequencies, if the file has any: `rope_freqs.weight` (Llama 3), or
/// one of two sets (longrope), selected by the context of each sequence.
pub(super) fn factors(
    source: &Source<'_>,
    rotated: usize,
    context_train: usize,
    context_tokens: u32,
) -> Result<Option<Vec<f32>>, SpecError> {
    let [short, long] = ["rope_factors_short.weight", "rope_factors_long.weight"];
    let has_sets = source.shape(short).is_some() || source.shape(long).is_some();
    if let Some(fixed) = read_factors(source, "rope_freqs.weight", rotated)? {
        source.skip(short);
        source.skip(long);
        return Ok(Some(fixed));
    }
    if !has_sets {
        return Ok(None);
    }
    let is_long = context_tokens as usize > original_context(source, context_train)?;
    let (chosen, other) = if is_long { (long, short) } else { (short, long) };
    source.skip(other);
    match read_factors(source, chosen, rotated)? {
        Some(factors) => Ok(Some(factors)),
        None => {
            let expected = vec![rotated as u64 / 2];
            Err(SpecError::Missing { tensor: chosen.to_owned(), expected })
        }
    }
}

fn read_factors(
    source: &Source<'_>,
    name: &str,
    rotated: usize,
) -> Result<Option<Vec<f32>>, SpecError> {
    let Some(vector) = source.find_vector(name, &[rotated / 2])? else {
        return Ok(None);
    };
    let factors = source.gguf.vector(&vector)?;
    match factors.iter().enumerate().find(|(_, f)| !FACTORS.contains(*f)) {
        Some((index, found)) => {
            let (tensor, found) = (name.to_owned(), found.to_string());
            Err(SpecError::Number { tensor, index, found, expected: FACTORS_TEXT })
        }
        None => Ok(Some(factors)),
    }
}

/// The context before extension.
pub(super) fn original_context(
    source: &Source<'_>,
    context_train: usize,
) -> Result<usize, SpecError> {
    source.size_or("rope.scaling.original_context_length", context_train, 1..=u32::MAX as usize)
}
