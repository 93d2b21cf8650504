//! The description of a model, independent of its file: the input of the forward program.
//!
//! A [`ModelSpec`] is plain data. A builder (a file in `architecture/`)
//! converts metadata and tensor names to a spec. All later code (forward program, devices,
//! benchmarks) reads only the spec, so a new architecture needs only a new builder.

use walla_types::TensorType;

use crate::names::named;
pub use walla_types::{Activation, ExpertScore, PositionScale, RopePairs};

named! {
    /// The architectures that have a builder. The name is that in `general.architecture`, which is
    /// also the prefix of the architecture's keys.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Architecture {
        /// Llama 2, 3.x and derivatives.
        Llama = "llama",
        /// Qwen 2 and 2.5.
        Qwen2 = "qwen2",
        /// Qwen 3 (dense).
        Qwen3 = "qwen3",
        /// Gemma 3 (text).
        Gemma3 = "gemma3",
        /// SmolLM 3.
        SmolLm3 = "smollm3",
        /// Phi 3, 3.5 and 4 mini.
        Phi3 = "phi3",
        /// LFM 2 (dense): attention and short convolutions.
        Lfm2 = "lfm2",
        /// Granite 3.x (dense).
        Granite = "granite",
        /// Ministral 3.
        Mistral3 = "mistral3",
        /// Qwen 3 with mixtures of experts.
        Qwen3Moe = "qwen3moe",
        /// LFM 2 with mixtures of experts.
        Lfm2Moe = "lfm2moe",
        /// Qwen 3.5 (dense): gated DeltaNet and gated attention.
        Qwen35 = "qwen35",
        /// Qwen 3.5 with mixtures of experts.
        Qwen35Moe = "qwen35moe",
        /// Gemma 4 (text, dense).
        Gemma4 = "gemma4",
        /// BERT: an encoder, for embeddings only.
        Bert = "bert",
    }
}

impl Architecture {
    /// Whether models of this architecture are encoders: they compute vectors and generate no text.
    #[must_use]
    pub const fn is_encoder(self) -> bool {
        matches!(self, Self::Bert)
    }

    /// Whether the builder reads mixtures of experts.
    pub(crate) const fn has_experts(self) -> bool {
        matches!(self, Self::Qwen3Moe | Self::Lfm2Moe | Self::Qwen35Moe)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

/// Rows of a matrix in the file: `[rows, cols]`, row-major, one row per output element.
///
/// Fused tensors (for example `attn_qkv`) appear as several `Matrix` values over the same tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Index into [`Gguf::tensors`](crate::Gguf::tensors).
    pub tensor: usize,
    /// First row used.
    pub first_row: usize,
    /// Rows used: the output width.
    pub rows: usize,
    /// Elements in a row: the input width.
    pub cols: usize,
    /// Stored type.
    pub ty: TensorType,
    /// Which rows are used, if they are not adjacent.
    pub bands: Option<Bands>,
}

/// Bands of adjacent rows at equal distances. Row `i` of the matrix is row `first_row + i / rows *
/// stride + i % rows` of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bands {
    /// Rows of a band: at least 1, and a divisor of the matrix's rows.
    pub rows: usize,
    /// Rows from the start of a band to the start of the next one: at least `rows`.
    pub stride: usize,
}

/// Elements of a one-dimensional tensor in the file (norm weights, biases, convolution taps).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vector {
    /// Index into [`Gguf::tensors`](crate::Gguf::tensors).
    pub tensor: usize,
    /// First element used.
    pub first: usize,
    /// Number of elements used.
    pub len: usize,
    /// Stored type.
    pub ty: TensorType,
    /// Multiplies the elements when [they are loaded](crate::Gguf::vector), else 1.
    pub scale: f32,
}

/// `y = W x (+ bias)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// `[rows, cols]`.
    pub matrix: Matrix,
    /// `[rows]`, where the architecture has one.
    pub bias: Option<Vector>,
}

/// `y[i] = x[i] * w[i] * rsqrt(mean(x^2) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// `[width]`.
    pub weight: Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// Rotary position embedding of one kind of layer: dimension pair `i` of a token at position `p`
/// rotates by `p * frequencies[i]`, and its sine and cosine are multiplied by `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per token, one per pair; includes scaling and per-frequency factors.
    pub frequencies: Vec<f32>,
    /// Multiplies sine and cosine.
    pub magnitude: f32,
    /// How elements are paired; elements from `2 * frequencies.len()` on do not rotate.
    pub pairs: RopePairs,
}

/// Attention over the sequence's KV pages.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
    /// `[heads * head_dim, width]`.
    pub query: Linear,
    /// RMS norm of each query head before rotation.
    pub query_norm: Option<RmsNorm>,
    /// Source of the keys and values.
    pub keys: Keys,
    /// Index into [`ModelSpec::ropes`]; `None` for layers without position embedding.
    pub rope: Option<usize>,
    /// Number of tokens that a token attends to, including itself; `None`: no limit.
    pub window: Option<u32>,
    /// Multiplies the scores.
    pub scale: f32,
    /// Multiplies the scores too, by the position of the query; `None`: 1.
    pub position_scale: Option<PositionScale>,
    /// Multiplies the heads' results by its sigmoid: `[heads * head_dim, width]`.
    pub gate: Option<Linear>,
    /// `[width, heads * head_dim]`.
    pub output: Linear,
}

impl Attention {
    /// The projections to keys and values, if the layer has its own.
    #[must_use]
    pub const fn own_keys(&self) -> Option<&KeyValue> {
        match &self.keys {
            Keys::Own(own) => Some(own),
            Keys::Of(_) => None,
        }
    }
}

/// Keys and values of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a model has one for each layer")]
pub enum Keys {
    /// Projections of the layer's input.
    Own(KeyValue),
    /// The keys and values of an earlier layer, given by its index. That layer has its own, and
    /// as many heads of the same size.
    Of(usize),
}

/// Projections to keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyValue {
    /// `[kv_heads * head_dim, width]`.
    pub key: Linear,
    /// RMS norm of each key head before rotation.
    pub key_norm: Option<RmsNorm>,
    /// `[kv_heads * head_dim, width]`; in some models the matrix of `key`.
    pub value: Linear,
    /// Epsilon of an RMS norm of each value head, without weights.
    pub value_norm_eps: Option<f32>,
}

/// The short convolution of LFM 2: `[b, c, x] = in x; y = c * conv(b * x); out y`, causal and per
/// channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConv {
    /// Channels.
    pub width: usize,
    /// Taps of the kernel; the state of a sequence is the last `taps - 1` values of `b * x`.
    pub taps: usize,
    /// `[width, width]` each: the parts of the fused input projection that compute b, c and x.
    pub input: [Linear; 3],
    /// `[width, taps]`: the last tap is applied to the current token.
    pub kernel: Vector,
    /// `[width, width]`.
    pub output: Linear,
}

/// Gated DeltaNet (Qwen 3.5): linear attention whose state is corrected by the delta rule.
///
/// With `c = silu(conv(input x))`, split into queries, keys and values, the state `M`
/// (`[head_dim, head_dim]` for each value head) and the current token's `q`, `k` and `v` of a head:
///
/// ```text
/// k = k / sqrt(sum k^2 + eps); q = q / sqrt(sum q^2 + eps) / sqrt(head_dim)
/// g = exp(decay * softplus(alpha x + step_bias)); b = sigmoid(beta x)
/// M = g M; M += k (b (v - M^T k))^T; o = M^T q
/// y = norm(o) * silu(gate x); output y
/// ```
///
/// Value head `j` uses key head `j mod key_heads`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// `[(2 * key_heads + value_heads) * head_dim, width]`: queries, keys and values.
    pub input: Linear,
    /// `[(2 * key_heads + value_heads) * head_dim, taps]`: the last tap is applied to the current
    /// token.
    pub kernel: Vector,
    /// `[value_heads, width]`: size of the time step.
    pub alpha: Linear,
    /// `[value_heads, width]`: strength of the correction.
    pub beta: Linear,
    /// `[value_heads]`: negative.
    pub decay: Vector,
    /// `[value_heads]`.
    pub step_bias: Vector,
    /// Added to the squares of queries and keys.
    pub eps: f32,
    /// `[head_dim]`: norm of each head's result.
    pub norm: RmsNorm,
    /// `[value_heads * head_dim, width]`.
    pub gate: Linear,
    /// `[width, value_heads * head_dim]`.
    pub output: Linear,
}

impl DeltaNet {
    /// Channels of the convolution.
    #[must_use]
    pub const fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }

    /// Elements of the state of one sequence.
    const fn state_numbers(&self) -> usize {
        let matrices = self.value_heads * self.head_dim * self.head_dim;
        matrices + self.channels() * (self.taps - 1)
    }
}

/// Token mixer of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention.
    Attention(Attention),
    /// A short convolution.
    ShortConv(ShortConv),
    /// Gated DeltaNet.
    DeltaNet(DeltaNet),
}

/// `down (activation(gate x) * up x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseFeedForward {
    /// `[hidden, width]`.
    pub gate: Linear,
    /// `[hidden, width]`.
    pub up: Linear,
    /// `[width, hidden]`.
    pub down: Linear,
    /// Applied to the gate.
    pub activation: Activation,
}

/// A mixture of experts: `sum_e weight[e] * down_e(activation(gate_e x) * up_e x)` over the chosen
/// experts. The matrices of all experts are one matrix each, expert after expert along its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts chosen for each row: 1 to `count`.
    pub used: usize,
    /// Width of one expert.
    pub hidden: usize,
    /// `[count, width]`, of a type that is not quantised.
    pub router: Matrix,
    /// `[count]`: added to the scores for the choice, not for the weights.
    pub selection_bias: Option<Vector>,
    /// How experts are chosen and weighted.
    pub score: ExpertScore,
    /// `[count * hidden, width]`.
    pub gate: Matrix,
    /// `[count * hidden, width]`.
    pub up: Matrix,
    /// `[count * width, hidden]`.
    pub down: Matrix,
    /// Applied to the gate.
    pub activation: Activation,
    /// A network that every row uses in addition.
    pub shared: Option<SharedExpert>,
}

/// A network beside the experts of a mixture: `sigmoid(weight x) * network x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpert {
    /// The network.
    pub network: DenseFeedForward,
    /// `[1, width]`; `None`: the factor is 1.
    pub weight: Option<Linear>,
}

/// Feed-forward network of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a model has one for each layer")]
pub enum FeedForward {
    /// One network for every row.
    Dense(DenseFeedForward),
    /// A mixture of experts.
    Experts(Experts),
}

/// Embeddings that each layer adds to the hidden state (Gemma 4).
///
/// With the part `e_l` of layer `l`, in which `x` is the scaled embedding of the token:
///
/// ```text
/// e = norm(projection x) + table_scale * table[token]        the norm is of each part
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInputs {
    /// Elements of the part of one layer.
    pub width: usize,
    /// `[vocab, layers * width]`: only looked up.
    pub table: Matrix,
    /// Multiplies the table's rows.
    pub table_scale: f32,
    /// `[layers * width, width of x]`.
    pub projection: Linear,
    /// `[width]`.
    pub norm: RmsNorm,
}

/// The use of a layer's part of [`LayerInputs`]: `x += norm(output(activation(gate x) * e_l))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInput {
    /// `[width of e_l, width]`.
    pub gate: Linear,
    /// Applied to the gate.
    pub activation: Activation,
    /// `[width, width of e_l]`.
    pub output: Linear,
    /// Applied to the output, before it is added.
    pub post_norm: RmsNorm,
}

/// `x += post(mixer(norm x)); x += post(feed_forward(norm x))`, then the layer's input and scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Applied before the mixer.
    pub mixer_norm: RmsNorm,
    /// Attention or convolution.
    pub mixer: Mixer,
    /// Applied to the mixer's output, before it is added (Gemma).
    pub mixer_post_norm: Option<RmsNorm>,
    /// Applied before the feed-forward network.
    pub feed_forward_norm: RmsNorm,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
    /// Applied to the network's output, before it is added (Gemma).
    pub feed_forward_post_norm: Option<RmsNorm>,
    /// The layer's part of [`ModelSpec::layer_inputs`], if the model has them.
    pub input: Option<LayerInput>,
    /// Multiplies the hidden state at the end of the layer, else 1.
    pub scale: f32,
}

/// All information about a model that the forward pass requires.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The architecture of the builder.
    pub architecture: Architecture,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Width of the hidden state.
    pub width: usize,
    /// Number of tokens in the vocabulary: rows of the embedding.
    pub vocab: usize,
    /// Context that the model was trained for, in tokens.
    pub context_train: u32,
    /// `[vocab, width]`.
    pub embedding: Matrix,
    /// Multiplies the embedding (Gemma: the square root of the width; Granite), else 1.
    pub embedding_scale: f32,
    /// Embeddings of each layer (Gemma 4).
    pub layer_inputs: Option<LayerInputs>,
    /// The ropes that layers refer to.
    pub ropes: Vec<Rope>,
    /// In order.
    pub layers: Vec<Layer>,
    /// Applied before the head.
    pub output_norm: RmsNorm,
    /// `[vocab, width]`; the embedding's matrix if the model ties them.
    pub head: Linear,
    /// Bound `c` of the logits: a product `z` gives the logit `c * tanh(z / c)`.
    pub soft_cap: Option<f32>,
    /// Tokens that the model never generates, in ascending order: their logits are negative
    /// infinity.
    pub suppressed: Vec<u32>,
}

impl ModelSpec {
    /// Elements of the keys and values of one token in all layers that have their own (not bytes).
    #[must_use]
    pub fn kv_numbers_per_token(&self) -> usize {
        let attention = self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(a) => a.own_keys().map(|_| 2 * a.kv_heads * a.head_dim),
            Mixer::ShortConv(_) | Mixer::DeltaNet(_) => None,
        });
        attention.sum()
    }

    /// Elements of the recurrent state of one sequence in all layers.
    #[must_use]
    pub fn state_numbers_per_sequence(&self) -> usize {
        let states = self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::ShortConv(c) => Some(c.width * (c.taps - 1)),
            Mixer::DeltaNet(delta) => Some(delta.state_numbers()),
            Mixer::Attention(_) => None,
        });
        states.sum()
    }

    /// Whether a layer keeps state that cannot be rolled back to an earlier position.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.state_numbers_per_sequence() > 0
    }

    /// The mixtures of experts, in the order of their layers.
    pub fn experts(&self) -> impl Iterator<Item = &Experts> {
        self.layers.iter().filter_map(|layer| match &layer.feed_forward {
            FeedForward::Experts(experts) => Some(experts),
            FeedForward::Dense(_) => None,
        })
    }

    /// Whether the head is the embedding's matrix.
    #[must_use]
    pub fn is_tied(&self) -> bool {
        self.head.matrix == self.embedding
    }
}
