//! Operations of a program.

use std::fmt;

use walla_types::{Activation, ExpertScore, PositionScale};

use crate::handles::{BufferId, CacheId, MatrixId, RopeId, VectorId};
use crate::step::StepLayout;

/// An activation of a program: `[rows, width]`, in a number format that the device chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// Shape of a [`Slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotDesc {
    /// Elements per row.
    pub width: u32,
}

/// `norm(x)[i] = x[i] * weight[i] * rsqrt(mean(x^2) + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// `[width]`.
    pub weight: VectorId,
    /// Added to the mean square.
    pub eps: f32,
}

/// `y = W x (+ bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// `[rows, cols]`.
    pub matrix: MatrixId,
    /// `[rows]`.
    pub bias: Option<VectorId>,
}

/// Projections of an attention layer to keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyValue {
    /// `[kv_heads * head_dim, width]`.
    pub key: Linear,
    /// Norm of each key head.
    pub key_norm: Option<Norm>,
    /// `[kv_heads * head_dim, width]`; may be the matrix of `key`.
    pub value: Linear,
    /// Norm of each value head.
    pub value_norm: Option<Norm>,
}

/// Heads of an attention layer. `heads` is a multiple of `kv_heads`; query head `h` reads KV head
/// `h * kv_heads / heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
}

/// Heads of a DeltaNet layer. `value_heads` is a multiple of `key_heads`; value head `j` uses key
/// head `j % key_heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values.
    pub value_heads: u32,
    /// Elements per head: a multiple of 16.
    pub head_dim: u32,
    /// Taps of the convolution.
    pub taps: u32,
}

impl DeltaShape {
    /// Channels of the convolution: queries, keys and values. `u32::MAX` on overflow.
    #[must_use]
    pub const fn channels(&self) -> u32 {
        let heads = self.key_heads.saturating_mul(2).saturating_add(self.value_heads);
        heads.saturating_mul(self.head_dim)
    }

    /// Elements of all heads' values. `u32::MAX` on overflow.
    #[must_use]
    pub const fn values(&self) -> u32 {
        self.value_heads.saturating_mul(self.head_dim)
    }
}

/// `x[r] = table[token(r)] * scale`. The token is the row's own, or the last sampled one of its
/// sequence if the row's token is negative. It is also written to the sequence's recent tokens
/// at the row's position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// `[vocab, width]`.
    pub table: MatrixId,
    /// Scale factor of the row.
    pub scale: f32,
    /// Result.
    pub x: Slot,
}

/// The inputs of each layer, from a table and from the hidden state:
///
/// ```text
/// p = P x[r]                              [layers * width]
/// e[r] = norm(p_l) + table_scale * table[token(r)]_l      for each part l of `width` numbers
/// ```
///
/// The width is that of the norm. The token is that of [`Embed`]. The table is
/// only gathered, and large: a device may keep it in host memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInputs {
    /// Hidden state: the result of [`Embed`](Self::Embed).
    pub x: Slot,
    /// `[vocab, layers * width]`.
    pub table: MatrixId,
    /// Factor of the table's row.
    pub table_scale: f32,
    /// `P`: `[layers * width, width of x]`.
    pub projection: Linear,
    /// Norm of each part of the product.
    pub norm: Norm,
    /// Result: `[rows, layers * width]`.
    pub e: Slot,
}

/// `h[r] = activation(W x[r]) * e[r][first .. first + width of h]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateInput {
    /// Hidden state. It is not normalised.
    pub x: Slot,
    /// `[width of h, width]`.
    pub linear: Linear,
    /// Activation.
    pub activation: Activation,
    /// Result of [`LayerInputs`](Self::LayerInputs).
    pub e: Slot,
    /// First column of `e` that is used.
    pub first: u32,
    /// Result.
    pub h: Slot,
}

/// `n = norm(x); q = rope(query_norm(Q n))`. With keys, it also appends `rope(key_norm(K n))`
/// and `value_norm(V n)` to the layer's pages at the row's position. The inner norms are norms
/// of each head.
///
/// Without keys, an earlier op of the program has appended the keys and values: several layers
/// of a model share one layer of the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Qkv {
    /// Hidden state.
    pub x: Slot,
    /// Norm before the projections.
    pub norm: Norm,
    /// `[heads * head_dim, width]`.
    pub query: Linear,
    /// Norm of each query head.
    pub query_norm: Option<Norm>,
    /// Projections to keys and values; `None`: nothing is appended.
    pub keys: Option<KeyValue>,
    /// Rotary embedding.
    pub rope: Option<RopeId>,
    /// Heads.
    pub shape: HeadShape,
    /// Layer of the cache.
    pub layer: u32,
    /// Result: `[rows, heads * head_dim]`.
    pub q: Slot,
}

/// `out[r] = softmax(scale * position_scale(p) * q[r] K^T) V` over the cells `max(0, p + 1 -
/// window) ..= p` of the row's sequence, where `p` is the row's position. Runs after every
/// row's append.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// `[rows, heads * head_dim]`.
    pub q: Slot,
    /// Heads.
    pub shape: HeadShape,
    /// Layer of the cache.
    pub layer: u32,
    /// Scale factor of the scores.
    pub scale: f32,
    /// Another factor, which depends on the row's position; `None`: 1.
    pub position_scale: Option<PositionScale>,
    /// Visible tokens, including the row's own; `None`: all.
    pub window: Option<u32>,
    /// Result: `[rows, heads * head_dim]`.
    pub out: Slot,
}

/// `x[r] = scale * (x[r] + post(W y[r]))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Project {
    /// Input.
    pub y: Slot,
    /// `[width, cols]`.
    pub linear: Linear,
    /// Norm of the product, before it is added.
    pub post_norm: Option<Norm>,
    /// Factor of the sum, else 1.
    pub scale: f32,
    /// Accumulator.
    pub x: Slot,
}

/// `n = norm(x); h = activation(G n) * (U n)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateUp {
    /// Hidden state.
    pub x: Slot,
    /// Norm before the projections.
    pub norm: Norm,
    /// `[hidden, width]`.
    pub gate: Linear,
    /// `[hidden, width]`.
    pub up: Linear,
    /// Activation of the gate.
    pub activation: Activation,
    /// Result: `[rows, hidden]`.
    pub h: Slot,
}

/// A mixture of experts, added to the hidden state:
///
/// ```text
/// n = norm(x); l = R n                                     [experts], in f32
/// chosen: the `used` experts with the largest score; of equal ones the lower
/// x[r] += sum_e weight[e] * D_e (activation(G_e n) * (U_e n))
/// ```
///
/// [`ExpertScore`] defines scores and weights. The sum over the chosen experts runs in
/// ascending order of `e`. `G`, `U` and `D` hold the experts' matrices along their rows, in the
/// order of `e`. Their rows per expert must be multiples of 16.
///
/// The choice stays on the device: the program is the same for every choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Hidden state.
    pub x: Slot,
    /// Norm before the projections.
    pub norm: Norm,
    /// `R`: `[experts, width]`, not quantised, and its products are not rounded.
    pub router: MatrixId,
    /// `[experts]`: added to the scores for the choice only.
    pub selection_bias: Option<VectorId>,
    /// Scores and weights.
    pub score: ExpertScore,
    /// Experts chosen for each row: 1 to `experts`.
    pub used: u32,
    /// `G`: `[experts * hidden, width]`.
    pub gate: MatrixId,
    /// `U`: `[experts * hidden, width]`.
    pub up: MatrixId,
    /// `D`: `[experts * width, hidden]`.
    pub down: MatrixId,
    /// Activation of the gate.
    pub activation: Activation,
}

/// Causal convolution per channel:
///
/// ```text
/// n = norm(x); [b, c, v] = W n; u = b * v
/// out[r] = c * sum_t kernel[:, t] * u(p - (taps - 1) + t)
/// ```
///
/// Earlier `u` are read from rows of this step (by
/// [`StepRow::previous`](crate::step::StepRow::previous)) or from the sequence's state; they
/// are zero before position 0. The last row of each sequence stores the new state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConv {
    /// Hidden state.
    pub x: Slot,
    /// Norm before the projections.
    pub norm: Norm,
    /// `[width, width]` each, for `b`, `c` and `v`.
    pub input: [Linear; 3],
    /// `[width, taps]`; the last tap applies to the current token.
    pub kernel: VectorId,
    /// Taps of the kernel.
    pub taps: u32,
    /// Layer of the cache.
    pub layer: u32,
    /// Result: `[rows, width]`.
    pub out: Slot,
}

/// Gated DeltaNet without its output gate, which a [`Gate`](Op::Gate) applies:
///
/// ```text
/// n = norm(x); u = W n
/// c[r] = silu(sum_t kernel[:, t] * u(p - (taps - 1) + t)); [q, k, v] = c
/// k = k / sqrt(sum k^2 + eps); q = q / sqrt(sum q^2 + eps) / sqrt(head_dim)      per head
/// g = exp(decay * softplus(A n + step_bias)); b = sigmoid(B n)                   per value head
/// M = g M; M += k (b (v - M^T k))^T; o = M^T q                                   per value head
/// out[r] = head_norm(o)                                                          per value head
/// ```
///
/// `M`, `[head_dim, head_dim]` f32 for each value head, and the last `taps - 1` inputs `u` of
/// the convolution are the sequence's state. Both are zero before position 0; `u` is read as in
/// [`ShortConv`](Op::ShortConv). The last row of each sequence stores the new state. Every
/// row is computed as if it were alone, in the order of positions: the results do not depend on
/// how a prompt is divided into steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNet {
    /// Hidden state.
    pub x: Slot,
    /// Norm before the projections.
    pub norm: Norm,
    /// Heads and taps.
    pub shape: DeltaShape,
    /// `W`: `[channels, width]`.
    pub input: Linear,
    /// `[channels, taps]`; the last tap applies to the current token.
    pub kernel: VectorId,
    /// `A`: `[value_heads, width]`.
    pub alpha: Linear,
    /// `B`: `[value_heads, width]`.
    pub beta: Linear,
    /// `[value_heads]`, at most 0.
    pub decay: VectorId,
    /// `[value_heads]`.
    pub step_bias: VectorId,
    /// Added to the sums of squares.
    pub eps: f32,
    /// Norm of each head's result: `[head_dim]`.
    pub head_norm: Norm,
    /// Layer of the cache.
    pub layer: u32,
    /// Result: `[rows, value_heads * head_dim]`.
    pub out: Slot,
}

/// `y[r] *= activation(W norm(x[r]))`. A matrix of one row gives one factor for the whole row
/// of `y`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// Hidden state.
    pub x: Slot,
    /// Norm before the projection.
    pub norm: Norm,
    /// `[width of y, width]` or `[1, width]`.
    pub linear: Linear,
    /// Activation.
    pub activation: Activation,
    /// Factor and result.
    pub y: Slot,
}

/// `logits[o] = cap * tanh(W norm(x[row(o)]) / cap)`, f32, into the program's logits buffer.
/// Suppressed tokens get negative infinity. Both precede sampling and every log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Hidden state.
    pub x: Slot,
    /// Norm before the projection.
    pub norm: Norm,
    /// `[vocab, width]`.
    pub linear: Linear,
    /// Bound of the logits; `None`: no bound.
    pub soft_cap: Option<f32>,
    /// Tokens that the model never generates.
    pub suppressed: Vec<u32>,
}

/// `h[o] = norm(x[row(o)])`, f32, into the program's logits buffer: for programs that compute
/// vectors. Such a program has no [`Head`](Op::Head) and samples nothing, and its
/// [`vocab`](Program::vocab) is the width of `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hidden {
    /// Hidden state.
    pub x: Slot,
    /// Norm of the result.
    pub norm: Norm,
}

/// One fused operation. Row indices `r` run over the rows of the step block, output indices `o`
/// over its output rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// See [`Embed`](struct@Embed).
    Embed(Embed),
    /// See [`LayerInputs`](struct@LayerInputs).
    LayerInputs(LayerInputs),
    /// See [`GateInput`](struct@GateInput).
    GateInput(GateInput),
    /// See [`Qkv`](struct@Qkv).
    Qkv(Qkv),
    /// See [`Attention`](struct@Attention).
    Attention(Attention),
    /// See [`Project`](struct@Project).
    Project(Project),
    /// See [`GateUp`](struct@GateUp).
    GateUp(GateUp),
    /// See [`Experts`](struct@Experts).
    Experts(Experts),
    /// See [`ShortConv`](struct@ShortConv).
    ShortConv(ShortConv),
    /// See [`DeltaNet`](struct@DeltaNet).
    DeltaNet(DeltaNet),
    /// See [`Gate`](struct@Gate).
    Gate(Gate),
    /// See [`Head`](struct@Head).
    Head(Head),
    /// See [`Hidden`](struct@Hidden).
    Hidden(Hidden),
    /// Samples a token for every output with [`SAMPLE`](crate::step::OutputRow::SAMPLE), from a
    /// copy of its logits `l` (the logits buffer is not changed):
    ///
    /// 1. `l[t] += bias` for each of its biases.
    /// 2. For each token `t` that occurs `n > 0` times among the recent tokens in the window:
    ///    `l[t]` is divided by the repetition penalty if positive, otherwise multiplied; then
    ///    `presence + n * frequency` is subtracted.
    /// 3. Tokens whose bit in the output's mask is 0 get negative infinity.
    /// 4. Temperature 0: the largest `l`; among equals the lower id. Otherwise `s[t] = l[t] /
    ///    temperature`.
    /// 5. Top-k keeps the k largest `s` (among equals the lower id first). With `P = softmax(s)`
    ///    over the kept tokens, top-p keeps the shortest prefix in that order whose sum reaches p.
    ///    Min-p keeps tokens with `P[t] >= min_p * P[first]`.
    /// 6. The sampled token is the kept one with the largest `s[t] - ln(-ln u[t])`, where `u[t] =
    ///    unit_interval(philox4x32([position + 1, t, 0, 0], seed)[0])` (Gumbel-max: the same
    ///    distribution as softmax, and independent of rounding of the sum over the vocabulary, so
    ///    that devices agree). The lower id wins ties.
    ///
    /// The token is stored as the sequence's last sampled one. It is reported in the result block
    /// with its log-probability under the model alone. Tokens forbidden by the mask are not
    /// reported as candidates. A mask that forbids all tokens, and logits that are not finite
    /// (other than some negative infinities), give
    /// [`NOT_FINITE`](crate::step::ResultRow::NOT_FINITE) and token 0 for that output only.
    Sample,
}

/// Kinds of ops, and parts of ops, that a device may lack: see
/// [`Device::runs`](crate::Device::runs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// [`Op::Experts`].
    Experts,
    /// [`Op::DeltaNet`].
    DeltaNet,
    /// [`Op::Gate`].
    Gate,
    /// [`Op::LayerInputs`] and [`Op::GateInput`].
    LayerInputs,
    /// [`Op::Qkv`] without keys.
    SharedKeys,
    /// [`Op::Qkv`] with a norm of values.
    ValueNorm,
    /// [`Op::Project`] with a scale other than 1.
    ScaledSum,
    /// [`Op::Head`] with a cap or with suppressed tokens.
    BoundedLogits,
    /// [`Op::Hidden`].
    Hidden,
}

impl OpKind {
    /// The kinds that an op belongs to.
    pub fn of(op: &Op) -> impl Iterator<Item = Self> + use<> {
        let keys = if let Op::Qkv(Qkv { keys, .. }) = op { Some(keys) } else { None };
        let head = if let Op::Head(head) = op { Some(head) } else { None };
        let is_bounded = |head: &Head| head.soft_cap.is_some() || !head.suppressed.is_empty();
        let kinds = [
            (matches!(op, Op::Experts(_)), Self::Experts),
            (matches!(op, Op::DeltaNet(_)), Self::DeltaNet),
            (matches!(op, Op::Gate(_)), Self::Gate),
            (matches!(op, Op::LayerInputs(_) | Op::GateInput(_)), Self::LayerInputs),
            (keys.is_some_and(Option::is_none), Self::SharedKeys),
            (
                keys.is_some_and(|keys| keys.is_some_and(|its| its.value_norm.is_some())),
                Self::ValueNorm,
            ),
            (matches!(op, Op::Project(Project { scale, .. }) if *scale != 1.0), Self::ScaledSum),
            (head.is_some_and(is_bounded), Self::BoundedLogits),
            (matches!(op, Op::Hidden(_)), Self::Hidden),
        ];
        kinds.into_iter().filter_map(|(is, kind)| is.then_some(kind))
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Experts => "mixtures of experts",
            Self::DeltaNet => "gated DeltaNet",
            Self::Gate => "gates after a mixer",
            Self::LayerInputs => "embeddings of each layer",
            Self::SharedKeys => "layers that share keys and values",
            Self::ValueNorm => "norms of values",
            Self::ScaledSum => "scaled layers",
            Self::BoundedLogits => "soft-capped logits or suppressed tokens",
            Self::Hidden => "hidden states as results (embeddings)",
        })
    }
}

/// Purpose of a program: a hint that does not change results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Mostly one row per sequence.
    Decode,
    /// Mostly long runs of one sequence.
    Prefill,
}

/// A forward pass of at most `max_rows` rows, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Name for logs and traces.
    pub name: String,
    /// Purpose of the program.
    pub phase: Phase,
    /// Guarantees that in every step of this program each row belongs to a different sequence, as
    /// in plain decoding. A device may use it (for example, to append keys and values in the same
    /// launch as attention) or ignore it: results are the same.
    pub pure_decode: bool,
    /// Rows of the bucket; a step may use fewer.
    pub max_rows: u32,
    /// Output rows of the bucket, at most `max_rows`; a step may use fewer.
    pub max_outputs: u32,
    /// Longest context of any row, in tokens: an exclusive bound on positions.
    pub max_context: u32,
    /// Elements per row of logits, or of the results of [`Op::Hidden`].
    pub vocab: u32,
    /// Activations.
    pub slots: Vec<SlotDesc>,
    /// Cache of attention, convolutions and the sampler.
    pub cache: CacheId,
    /// The step block.
    pub step: BufferId,
    /// Layout of the step block and of the result block.
    pub layout: StepLayout,
    /// A ring of result blocks; [`StepHeader::ring_slot`](crate::step::StepHeader::ring_slot)
    /// selects one.
    pub results: BufferId,
    /// `[max_outputs, vocab]` f32.
    pub logits: BufferId,
    /// The mask block: `[masks, mask_words(vocab)]` u32, see
    /// [`mask_words`](crate::step::mask_words); its size limits the number of masks. `None`: no
    /// step has masks.
    pub masks: Option<BufferId>,
    /// The operations, in order.
    pub ops: Vec<Op>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_parts_that_devices_may_lack() {
        let norm = Norm { weight: VectorId(0), eps: 1e-5 };
        let linear = Linear { matrix: MatrixId(0), bias: None };
        let shape = HeadShape { heads: 1, kv_heads: 1, head_dim: 8 };
        let (x, y) = (Slot(0), Slot(1));
        let qkv = |keys| {
            Op::Qkv(Qkv {
                x,
                norm,
                query: linear,
                query_norm: None,
                keys,
                rope: None,
                shape,
                layer: 0,
                q: y,
            })
        };
        let keys = KeyValue { key: linear, key_norm: None, value: linear, value_norm: None };
        let normed = KeyValue { value_norm: Some(norm), ..keys };
        let project = |scale| Op::Project(Project { y, linear, post_norm: None, scale, x });
        let head = |soft_cap, suppressed| Op::Head(Head { x, norm, linear, soft_cap, suppressed });
        let activation = Activation::GeluTanh;
        let input = Op::GateInput(GateInput { x, linear, activation, e: y, first: 0, h: Slot(2) });
        let cases = [
            (qkv(Some(keys)), None),
            (qkv(Some(normed)), Some(OpKind::ValueNorm)),
            (qkv(None), Some(OpKind::SharedKeys)),
            (project(1.0), None),
            (project(0.5), Some(OpKind::ScaledSum)),
            (head(None, vec![]), None),
            (head(Some(30.0), vec![]), Some(OpKind::BoundedLogits)),
            (head(None, vec![3]), Some(OpKind::BoundedLogits)),
            (input, Some(OpKind::LayerInputs)),
            (Op::Hidden(Hidden { x, norm }), Some(OpKind::Hidden)),
            (Op::Sample, None),
        ];
        for (op, kind) in cases {
            assert_eq!(OpKind::of(&op).collect::<Vec<_>>(), Vec::from_iter(kind), "{op:?}");
        }
    }
}
