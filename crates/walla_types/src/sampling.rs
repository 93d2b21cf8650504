use std::sync::Arc;

use crate::{TokenId, TokenMask};

/// Maximum penalty window, in most recent tokens.
///
/// Devices store this number of tokens for every sequence, so it bounds device memory.
pub const MAX_PENALTY_WINDOW: u32 = 256;

/// Maximum number of logit biases of one agent.
pub const MAX_LOGIT_BIASES: usize = 32;

/// Maximum number of candidates with probabilities that an agent can request per token.
pub const MAX_CANDIDATES: u32 = 16;

/// Adds `bias` to the logit of `token` before all other sampling stages.
///
/// Negative infinity forbids the token.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LogitBias {
    /// The token whose logit changes.
    pub token: TokenId,
    /// The value added: finite, or negative infinity.
    pub bias: f32,
}

/// Parameters for sampling the next token from the logits. Validated by the builder, so a value of
/// this type is always valid.
///
/// The order of the stages is fixed: logit biases, penalties, the mask of allowed tokens,
/// temperature, top-k, top-p, min-p, and the random draw. All three truncations use the
/// distribution after temperature. Top-k keeps the `k` most likely tokens (ties: the lower id
/// first). Top-p keeps the shortest prefix of those whose probability, normalised over the tokens
/// kept by top-k, reaches `p`. Min-p keeps tokens that are at least `min_p` times as likely as the
/// most likely one. At least one token always remains.
///
/// The random number of a token depends only on the agent's seed and the token's position. A reply
/// therefore does not depend on the rest of the batch.
///
/// # Examples
/// ```
/// use walla_types::Sampling;
/// let sampling = Sampling::builder().temperature(0.7).top_p(0.95).seed(7).build()?;
/// assert_eq!(sampling.temperature(), 0.7);
/// assert!(Sampling::builder().temperature(f32::NAN).build().is_err());
/// # Ok::<(), walla_types::InvalidSampling>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(remote = "Self"))]
pub struct Sampling {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    penalty_window: u32,
    seed: u64,
    candidates: u32,
    biases: Vec<LogitBias>,
    allowed_tokens: Option<Arc<TokenMask>>,
}

impl Default for Sampling {
    /// Temperature 0.7, top-k 40, top-p 0.95, min-p 0.05, no penalties, seed 0.
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            seed: 0,
            candidates: 0,
            biases: Vec::new(),
            allowed_tokens: None,
        }
    }
}

impl Sampling {
    /// Always the most likely token (among equals the lower id); no randomness, no penalties.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Starts from [`Sampling::default`].
    pub fn builder() -> SamplingBuilder {
        SamplingBuilder { draft: Self::default() }
    }

    /// Starts from this value.
    pub fn to_builder(&self) -> SamplingBuilder {
        SamplingBuilder { draft: self.clone() }
    }

    /// Divisor of the logits; 0 is greedy.
    #[must_use]
    pub fn temperature(&self) -> f32 {
        self.temperature
    }

    /// Number of tokens that top-k keeps; 0 keeps all.
    #[must_use]
    pub fn top_k(&self) -> u32 {
        self.top_k
    }

    /// Probability mass that top-p keeps; 1 keeps all.
    #[must_use]
    pub fn top_p(&self) -> f32 {
        self.top_p
    }

    /// Minimum probability relative to the most likely token; 0 keeps all.
    #[must_use]
    pub fn min_p(&self) -> f32 {
        self.min_p
    }

    /// Divisor of positive and factor of negative logits of tokens in the window; 1 is off.
    #[must_use]
    pub fn repetition_penalty(&self) -> f32 {
        self.repetition_penalty
    }

    /// Subtracted once from the logits of tokens in the window.
    #[must_use]
    pub fn presence_penalty(&self) -> f32 {
        self.presence_penalty
    }

    /// Subtracted from the logits of tokens in the window, times their count.
    #[must_use]
    pub fn frequency_penalty(&self) -> f32 {
        self.frequency_penalty
    }

    /// Number of most recent tokens of the sequence (prompt and reply) that the penalties count.
    #[must_use]
    pub fn penalty_window(&self) -> u32 {
        self.penalty_window
    }

    /// Seed of the agent's random numbers.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of candidates reported with each token, with probabilities.
    #[must_use]
    pub fn candidates(&self) -> u32 {
        self.candidates
    }

    /// Biases, at most one per token.
    #[must_use]
    pub fn biases(&self) -> &[LogitBias] {
        &self.biases
    }

    /// The only tokens that may be sampled or reported as candidates; `None` allows all.
    #[must_use]
    pub fn allowed_tokens(&self) -> Option<&Arc<TokenMask>> {
        self.allowed_tokens.as_ref()
    }

    /// Whether any penalty changes a logit.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

/// Builder of [`Sampling`]; [`SamplingBuilder::build`] validates all parameters.
#[derive(Clone, Debug)]
#[must_use]
pub struct SamplingBuilder {
    draft: Sampling,
}

impl SamplingBuilder {
    /// Temperature in `0..=100`; 0 is greedy.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.draft.temperature = temperature;
        self
    }

    /// Number of tokens kept; 0 keeps all.
    pub fn top_k(mut self, top_k: u32) -> Self {
        self.draft.top_k = top_k;
        self
    }

    /// Probability mass kept, in `(0, 1]`.
    pub fn top_p(mut self, top_p: f32) -> Self {
        self.draft.top_p = top_p;
        self
    }

    /// Minimum relative probability, in `0..=1`.
    pub fn min_p(mut self, min_p: f32) -> Self {
        self.draft.min_p = min_p;
        self
    }

    /// Repetition penalty in `(0, 100]`; 1 is off.
    pub fn repetition_penalty(mut self, penalty: f32) -> Self {
        self.draft.repetition_penalty = penalty;
        self
    }

    /// Presence penalty in `-100..=100`; 0 is off.
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.draft.presence_penalty = penalty;
        self
    }

    /// Frequency penalty in `-100..=100`; 0 is off.
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.draft.frequency_penalty = penalty;
        self
    }

    /// Number of recent tokens that penalties count, at most [`MAX_PENALTY_WINDOW`].
    pub fn penalty_window(mut self, tokens: u32) -> Self {
        self.draft.penalty_window = tokens;
        self
    }

    /// Seed of the random numbers.
    pub fn seed(mut self, seed: u64) -> Self {
        self.draft.seed = seed;
        self
    }

    /// Number of candidates reported with each token, at most [`MAX_CANDIDATES`].
    pub fn candidates(mut self, candidates: u32) -> Self {
        self.draft.candidates = candidates;
        self
    }

    /// Adds a bias; a later bias on the same token replaces the earlier one. More than
    /// [`MAX_LOGIT_BIASES`] tokens are refused by [`build`](Self::build).
    pub fn bias(mut self, token: TokenId, bias: f32) -> Self {
        // The result is an error already: a hostile list must not take long.
        if self.draft.biases.len() > MAX_LOGIT_BIASES {
            return self;
        }
        self.draft.biases.retain(|b| b.token != token);
        self.draft.biases.push(LogitBias { token, bias });
        self
    }

    /// Excludes all other tokens from sampling and from candidates; `None` allows all tokens. If
    /// the mask allows no end-of-generation token, a reply ends only at its length limit or when it
    /// is cancelled. Agents that share one mask share its device memory.
    pub fn allowed_tokens(mut self, mask: impl Into<Option<Arc<TokenMask>>>) -> Self {
        self.draft.allowed_tokens = mask.into();
        self
    }

    /// Validates every parameter.
    ///
    /// # Errors
    /// [`InvalidSampling`] names the first parameter that is out of range or NaN.
    pub fn build(self) -> Result<Sampling, InvalidSampling> {
        let s = self.draft;
        let check = |name, value: f32, ok: bool, range| {
            if ok { Ok(()) } else { Err(InvalidSampling::OutOfRange { name, value, range }) }
        };
        let within = |value: f32, low: f32, high: f32| (low..=high).contains(&value);
        check("temperature", s.temperature, within(s.temperature, 0.0, 100.0), "0..=100")?;
        check("top_p", s.top_p, s.top_p > 0.0 && s.top_p <= 1.0, "(0, 1]")?;
        check("min_p", s.min_p, within(s.min_p, 0.0, 1.0), "0..=1")?;
        let repetition = s.repetition_penalty;
        let repetition_ok = repetition > 0.0 && repetition <= 100.0;
        check("repetition_penalty", repetition, repetition_ok, "(0, 100]")?;
        let (presence, frequency) = (s.presence_penalty, s.frequency_penalty);
        check("presence_penalty", presence, within(presence, -100.0, 100.0), "-100..=100")?;
        check("frequency_penalty", frequency, within(frequency, -100.0, 100.0), "-100..=100")?;
        if s.penalty_window > MAX_PENALTY_WINDOW {
            return Err(InvalidSampling::PenaltyWindow(s.penalty_window));
        }
        if s.candidates > MAX_CANDIDATES {
            return Err(InvalidSampling::Candidates(s.candidates));
        }
        if s.biases.len() > MAX_LOGIT_BIASES {
            return Err(InvalidSampling::TooManyBiases(s.biases.len()));
        }
        let bad = |b: &&LogitBias| !(b.bias.is_finite() || b.bias == f32::NEG_INFINITY);
        if let Some(b) = s.biases.iter().find(bad) {
            return Err(InvalidSampling::Bias { token: b.token, bias: b.bias });
        }
        Ok(s)
    }
}

/// An invalid sampling parameter.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidSampling {
    /// A number outside its range, or NaN.
    #[error("{name} is {value}, expected {range}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// The given value.
        value: f32,
        /// The allowed range.
        range: &'static str,
    },
    /// A penalty window longer than [`MAX_PENALTY_WINDOW`].
    #[error("penalty_window is {0} tokens, at most {MAX_PENALTY_WINDOW}")]
    PenaltyWindow(u32),
    /// More candidates than [`MAX_CANDIDATES`].
    #[error("{0} candidates, at most {MAX_CANDIDATES}")]
    Candidates(u32),
    /// More biases than [`MAX_LOGIT_BIASES`].
    #[error("{0} logit biases, at most {MAX_LOGIT_BIASES}")]
    TooManyBiases(usize),
    /// A bias that is NaN or positive infinity.
    #[error("bias {bias} on token {token} is neither finite nor negative infinity")]
    Bias {
        /// The token.
        token: TokenId,
        /// The given bias.
        bias: f32,
    },
}

#[cfg(feature = "serde")]
impl serde::Serialize for Sampling {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// Checked as by [`SamplingBuilder::build`].
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Sampling {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut draft = Self::deserialize(deserializer)?;
        let biases = std::mem::take(&mut draft.biases);
        let builder = SamplingBuilder { draft };
        let builder = biases.iter().fold(builder, |builder, b| builder.bias(b.token, b.bias));
        builder.build().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_refuses_nan() {
        let nan = f32::NAN;
        let all = [
            Sampling::builder().temperature(nan),
            Sampling::builder().top_p(nan),
            Sampling::builder().min_p(nan),
            Sampling::builder().repetition_penalty(nan),
            Sampling::builder().presence_penalty(nan),
            Sampling::builder().frequency_penalty(nan),
            Sampling::builder().bias(TokenId(1), nan),
        ];
        for builder in all {
            assert!(builder.build().is_err());
        }
    }

    #[test]
    fn limits_hold() {
        assert!(Sampling::builder().top_p(0.0).build().is_err());
        assert!(Sampling::builder().temperature(-0.1).build().is_err());
        assert!(Sampling::builder().penalty_window(257).build().is_err());
        assert!(Sampling::builder().candidates(17).build().is_err());
        let many = (0..33).fold(Sampling::builder(), |b, i| b.bias(TokenId(i), 1.0));
        assert_eq!(many.build(), Err(InvalidSampling::TooManyBiases(33)));
        assert!(Sampling::builder().bias(TokenId(1), f32::NEG_INFINITY).build().is_ok());
    }

    #[test]
    fn a_long_list_of_biases_is_refused_in_linear_time() {
        let begin = std::time::Instant::now();
        let biases = 0..2_000_000;
        let builder = biases.fold(Sampling::builder(), |b, token| b.bias(TokenId(token), 1.0));
        assert!(matches!(builder.build(), Err(InvalidSampling::TooManyBiases(_))));
        assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    }

    #[test]
    fn a_later_bias_replaces_an_earlier_one() {
        let s = Sampling::builder().bias(TokenId(3), 1.0).bias(TokenId(3), 2.0).build().unwrap();
        assert_eq!(s.biases(), [LogitBias { token: TokenId(3), bias: 2.0 }]);
    }
}
