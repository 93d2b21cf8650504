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
