/// Which elements of a head form a pair in a rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// `(2i, 2i + 1)`: llama, smollm3, granite, mistral3.
    Interleaved,
    /// `(i, i + rotated / 2)`: all others ("NeoX").
    Halves,
}

/// The activation function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form: `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
}

/// How the router of a mixture of experts chooses and weights the experts of a row. `l[e]` is the
/// router's product for expert `e`; of equal values the lower expert is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertScore {
    /// The largest `l + bias` are chosen; their weights are the softmax of `l` over the chosen
    /// experts, which is the softmax over all experts divided by its sum over the chosen ones.
    Softmax,
    /// `s = 1 / (1 + e^-l)`: the largest `s + bias` are chosen; their weights are `s / max(sum of
    /// s, 6e-5)`, with the sum over the chosen experts.
    Sigmoid,
}

/// Growth of attention scores with the position of the query, for contexts that are longer than in
/// the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// Multiplies the logarithm.
    pub slope: f32,
    /// Tokens of a step of the scale; scores of the first `period_tokens` positions are unchanged.
    pub period_tokens: u32,
}

impl PositionScale {
    /// The factor on the scores of a query at `position` (from 0):
    /// `1 + slope * ln(1 + floor(position / period_tokens))`.
    #[must_use]
    pub fn at(self, position: u32) -> f32 {
        let periods = position.checked_div(self.period_tokens).unwrap_or(0);
        (1.0 + f64::from(self.slope) * libm::log1p(f64::from(periods))) as f32
    }

    /// Whether every factor within a context of `tokens` tokens is 1.
    #[must_use]
    pub fn is_one_within(self, tokens: u32) -> bool {
        tokens <= self.period_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_scales_grow_in_steps() {
        let scale = PositionScale { slope: 0.1, period_tokens: 16_384 };
        assert_eq!([0, 1, 16_383].map(|position| scale.at(position)), [1.0; 3]);
        let second = (1.0 + f64::from(0.1_f32) * std::f64::consts::LN_2) as f32;
        assert_eq!([16_384, 32_767].map(|position| scale.at(position)), [second; 2]);
        assert!(scale.at(u32::MAX).is_finite() && scale.at(u32::MAX) > 2.2);
        assert!(scale.is_one_within(16_384) && !scale.is_one_within(16_385));
        assert_eq!(PositionScale { period_tokens: 0, ..scale }.at(9), 1.0);
    }
}
