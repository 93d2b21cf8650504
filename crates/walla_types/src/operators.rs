/// Which elements of a head form a pair in a rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// `(2i, 2i + 1)`: llama, smollm3.
    Interleaved,
    /// `(i, i + rotated / 2)`: all others ("NeoX").
    Halves,
}

/// The activation function of a gated feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form: `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
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
