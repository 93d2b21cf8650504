//! Code that all architectures share.

use super::{SpecError, rope, source::Source};
use crate::{
    gguf::Strings,
    spec::{
        Activation, Architecture, Attention, DenseFeedForward, ExpertScore, Experts, FeedForward,
        KeyValue, Keys, Layer, Linear, Mixer, ModelSpec, RmsNorm, Rope, RopePairs, SharedExpert,
    },
};

// Bounds on hyperparameters: several times the values of the largest published models, and small
// enough that no product of two of them overflows 64 bits.
pub(super) const MAX_LAYERS: usize = 512;
pub(super) const MAX_HEADS: usize = 1024;
pub(super) const MAX_HEAD_DIM: usize = 1024;
/// Taps of a convolution. Published models have 3 or 4.
pub(super) const MAX_TAPS: usize = 16;
pub(super) const MAX_WIDTH: usize = 65_536;
pub(super) const MAX_HIDDEN: usize = 1 << 20;
const MAX_EXPERTS: usize = 1024;
pub(super) const MAX_VOCAB: usize = 1 << 22;
const MAX_CONTEXT: usize = 1 << 26;

/// Hyperparameters that every architecture reads the same way.
pub(super) struct Transformer<'s, 'a> {
    pub source: &'s Source<'a>,
    pub width: usize,
    /// Number of layers that are built.
    pub layer_count: usize,
    pub head_dim: usize,
    context_train: usize,
    pub eps: f32,
    /// Elements of a head that rotate.
    pub rotated: usize,
    /// One per layer, as in the next two fields.
    heads: Vec<usize>,
    /// 0 for layers without attention.
    kv_heads: Vec<usize>,
    hidden: Vec<usize>,
}

impl<'s, 'a> Transformer<'s, 'a> {
    pub fn read(source: &'s Source<'a>) -> Result<Self, SpecError> {
        let blocks = source.size("block_count", 1..=MAX_LAYERS)?;
        let width = source.size("embedding_length", 1..=MAX_WIDTH)?;
        let context_train = source.size("context_length", 1..=MAX_CONTEXT)?;
        let has_experts = source.architecture.has_experts();
        if let Some(experts @ 1..) = source.find::<u32>("expert_count")?
            && !has_experts
        {
            return Err(source.unsupported("expert_count", experts, "mixtures of experts are"));
        }
        if source.find("attention.causal")? == Some(false) {
            return Err(source.unsupported("attention.causal", false, "looking ahead is"));
        }
        let needed = |suffix, max| match source.sizes(suffix, blocks, 1..=max)? {
            Some(sizes) => Ok(sizes),
            // The error names the missing key.
            None => Ok::<_, SpecError>(vec![source.size(suffix, 1..=max)?; blocks]),
        };
        let heads = needed("attention.head_count", MAX_HEADS)?;
        let hidden = match source.architecture {
            // No layer has a dense network, and files may omit its width.
            Architecture::Qwen3Moe | Architecture::Qwen35Moe => vec![0; blocks],
            _ => needed("feed_forward_length", MAX_HIDDEN)?,
        };
        let kv_heads = source.sizes("attention.head_count_kv", blocks, 0..=MAX_HEADS)?;
        let kv_heads = kv_heads.unwrap_or_else(|| heads.clone());
        let head_dim = head_dim(source, width, heads.first().copied().unwrap_or(1))?;
        let rotated = source.even_or("rope.dimension_count", head_dim)?;
        let eps = source.eps("attention.layer_norm_rms_epsilon")?;
        Ok(Self {
            source,
            width,
            layer_count: blocks,
            head_dim,
            context_train,
            eps,
            rotated,
            heads,
            kv_heads,
            hidden,
        })
    }

    /// Leaves out the last blocks, which predict further tokens (MTP) from the model's output.
    pub fn without_drafts(&mut self) -> Result<(), SpecError> {
        let last = self.layer_count.saturating_sub(1);
        let drafts = self.source.size_or("nextn_predict_layers", 0, 0..=last)?;
        let layers = self.layer_count.saturating_sub(drafts);
        (layers..self.layer_count).for_each(|block| self.source.skip_all(&format!("blk.{block}.")));
        self.layer_count = layers;
        Ok(())
    }

    /// Query heads of the first layer.
    pub fn heads(&self) -> usize {
        self.heads.first().copied().unwrap_or(1)
    }

    /// Key and value heads of a layer.
    pub fn kv_heads(&self, layer: usize) -> usize {
        self.kv_heads.get(layer).copied().unwrap_or_default()
    }

    /// The rope described by the `rope.*` keys and the frequency factors, if any.
    pub fn rope(&self, pairs: RopePairs, context_tokens: u32) -> Result<Rope, SpecError> {
        let factors = rope::factors(self.source, self.rotated, self.context_train, context_tokens)?;
        let base = self.source.positive_or("rope.freq_base", 10_000.0)?;
        let scaling = rope::Scaling::read(self.source, self.context_train)?;
        rope::rope(self.source, base, self.rotated, &scaling, factors.as_deref(), pairs)
    }

    /// The context before it was extended, in tokens.
    pub fn original_context(&self) -> Result<usize, SpecError> {
        rope::original_context(self.source, self.context_train)
    }

    /// A rope of `rotated` elements with another base and no scaling.
    pub fn plain_rope(
        &self,
        pairs: RopePairs,
        base: f64,
        rotated: usize,
    ) -> Result<Rope, SpecError> {
        rope::rope(self.source, base, rotated, &rope::Scaling::none(self.source)?, None, pairs)
    }

    /// Builds all layers, in order.
    pub fn layers(
        &self,
        build: impl Fn(&LayerSource<'_>) -> Result<Layer, SpecError>,
    ) -> Result<Vec<Layer>, SpecError> {
        let at = |of: &[usize], index: usize| of.get(index).copied().unwrap_or_default();
        let layer = |index| LayerSource {
            source: self.source,
            index,
            width: self.width,
            head_dim: self.head_dim,
            heads: at(&self.heads, index),
            kv_heads: at(&self.kv_heads, index),
            hidden: at(&self.hidden, index),
            eps: self.eps,
        };
        (0..self.layer_count).map(|index| build(&layer(index))).collect()
    }

    /// The keys that describe mixtures of experts.
    pub fn expert_shape(&self) -> Result<ExpertShape, SpecError> {
        let count = self.source.size("expert_count", 1..=MAX_EXPERTS)?;
        let used = self.source.size("expert_used_count", 1..=count)?;
        let hidden = self.source.size("expert_feed_forward_length", 1..=MAX_HIDDEN)?;
        Ok(ExpertShape { count, used, hidden })
    }

    /// Adds embedding, output norm and head, and checks that every tensor of the file is used.
    pub fn finish(
        &self,
        ropes: Vec<Rope>,
        layers: Vec<Layer>,
        output_norm: &str,
    ) -> Result<ModelSpec, SpecError> {
        let (source, width) = (self.source, self.width);
        let vocab = self.vocab()?;
        let embedding = source.matrix("token_embd.weight", vocab, width)?;
        let own = source.find_matrix("output.weight", vocab, width)?;
        let bias = source.find_vector("output.bias", &[vocab])?;
        let spec = ModelSpec {
            architecture: source.architecture,
            // For display only.
            name: source.gguf.find::<&str>("general.name").ok().flatten().map(str::to_owned),
            width,
            vocab,
            context_train: self.context_train as u32, // At most `MAX_CONTEXT`.
            embedding,
            embedding_scale: 1.0,
            layer_inputs: None,
            ropes,
            layers,
            output_norm: source.norm(output_norm, width, self.eps)?,
            head: Linear { matrix: own.unwrap_or(embedding), bias },
            soft_cap: None,
            suppressed: Vec::new(),
        };
        // Last, after every optional tensor was requested: another one would change the results.
        source.check_all_used()?;
        Ok(spec)
    }

    /// Rows of the embedding. The tokenizer (or, without one, `vocab_size`) must agree.
    pub fn vocab(&self) -> Result<usize, SpecError> {
        let source = self.source;
        let listed = source.gguf.find::<Strings<'_>>("tokenizer.ggml.tokens")?;
        let vocab = match listed {
            Some(tokens) => tokens.len(),
            None => match source.find::<u32>("vocab_size")? {
                Some(tokens) => tokens as usize,
                // Only the embedding has this number; its other dimension is checked when it is
                // used.
                None => source.shape("token_embd.weight").map_or(1, |s| s.padded()[1] as usize),
            },
        };
        source.within("vocab_size", vocab, &(1..=MAX_VOCAB))
    }
}

/// `key_length`, else `width / heads`.
fn head_dim(source: &Source<'_>, width: usize, heads: usize) -> Result<usize, SpecError> {
    let suffixes = ["attention.key_length", "attention.value_length"];
    head_size(source, suffixes, || {
        if heads > 0 && width.is_multiple_of(heads) {
            return Ok(width.checked_div(heads).unwrap_or(width));
        }
        let expected = format!("a divisor of the embedding's length {width}");
        Err(source.wrong("attention.head_count", heads, expected))
    })
}

/// Keys and values have heads of the same size: the value of `key`, or the default.
pub(super) fn head_size(
    source: &Source<'_>,
    [key, value]: [&str; 2],
    default: impl FnOnce() -> Result<usize, SpecError>,
) -> Result<usize, SpecError> {
    let keys = match source.find::<u32>(key)? {
        Some(dim) => dim as usize,
        None => default()?,
    };
    if !(2..=MAX_HEAD_DIM).contains(&keys) || !keys.is_multiple_of(2) {
        return Err(source.wrong(key, keys, format!("an even number in 2..={MAX_HEAD_DIM}")));
    }
    let values = source.find::<u32>(value)?.map_or(keys, |dim| dim as usize);
    if keys == values {
        return Ok(keys);
    }
    Err(source.wrong(value, values, format!("{keys}, as {key}")))
}

impl KeyValue {
    /// Without norms.
    const fn plain(key: Linear, value: Linear) -> Self {
        Self { key, key_norm: None, value, value_norm_eps: None }
    }
}

/// Sizes of the mixtures of experts, the same in every layer that has one.
#[derive(Clone, Copy)]
pub(super) struct ExpertShape {
    count: usize,
    used: usize,
    hidden: usize,
}

/// One layer's tensors, by llama.cpp's names.
#[derive(Clone, Copy)]
pub(super) struct LayerSource<'s> {
    pub source: &'s Source<'s>,
    pub index: usize,
    pub width: usize,
    pub head_dim: usize,
    pub kv_heads: usize,
    pub eps: f32,
    heads: usize,
    hidden: usize,
}

impl LayerSource<'_> {
    /// The same layer with heads of another size.
    pub const fn with_heads_of(self, head_dim: usize) -> Self {
        Self { head_dim, ..self }
    }

    /// `attn_q` → `blk.3.attn_q`.
    pub fn name(&self, suffix: &str) -> String {
        format!("blk.{}.{suffix}", self.index)
    }

    pub fn linear(&self, suffix: &str, rows: usize, cols: usize) -> Result<Linear, SpecError> {
        self.source.linear(&self.name(suffix), rows, cols)
    }

    /// A norm over the hidden state.
    pub fn norm(&self, suffix: &str) -> Result<RmsNorm, SpecError> {
        self.source.norm(&self.name(suffix), self.width, self.eps)
    }

    /// A norm over a head.
    pub fn head_norm(&self, suffix: &str) -> Result<RmsNorm, SpecError> {
        self.source.norm(&self.name(suffix), self.head_dim, self.eps)
    }

    /// The same attention with norms of query and key heads.
    pub fn with_head_norms(&self, attention: Attention) -> Result<Attention, SpecError> {
        let query_norm = Some(self.head_norm("attn_q_norm")?);
        let keys = match attention.keys {
            Keys::Own(own) => {
                let key_norm = Some(self.head_norm("attn_k_norm")?);
                Keys::Own(KeyValue { key_norm, ..own })
            }
            shared @ Keys::Of(_) => shared,
        };
        Ok(Attention { query_norm, keys, ..attention })
    }

    /// Query heads, and key and value heads.
    pub fn grouped_heads(&self) -> Result<(usize, usize), SpecError> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads of layer {}", self.index);
            return Err(self.source.wrong("attention.head_count_kv", kv_heads, expected));
        }
        Ok((heads, kv_heads))
    }

    /// Full attention without head norms, scores scaled by `1 / sqrt(head_dim)`.
    pub fn attention(&self, rope: Option<usize>) -> Result<Attention, SpecError> {
        let (heads, kv_heads) = self.grouped_heads()?;
        let head_dim = self.head_dim;
        let (queries, keys) = (heads.saturating_mul(head_dim), kv_heads.saturating_mul(head_dim));
        let [query, key, value] =
            self.source.projections(self.index, self.width, [queries, keys])?;
        self.attention_of(query, Keys::Own(KeyValue::plain(key, value)), rope)
    }

    /// As [`attention`](Self::attention), with gates that follow the queries of each head in one
    /// matrix.
    pub fn gated_attention(&self, rope: Option<usize>) -> Result<Attention, SpecError> {
        let (heads, kv_heads) = self.grouped_heads()?;
        let (queries, keys) =
            (heads.saturating_mul(self.head_dim), kv_heads.saturating_mul(self.head_dim));
        let name = self.name("attn_q.weight");
        let matrix = self.source.matrix(&name, queries.saturating_mul(2), self.width)?;
        let both = Linear { matrix, bias: None };
        let [query, gate] = [0, 1].map(|half| both.half(half, self.head_dim));
        let linear = |suffix| self.linear(suffix, keys, self.width);
        let keys = Keys::Own(KeyValue::plain(linear("attn_k")?, linear("attn_v")?));
        Ok(Attention { gate: Some(gate), ..self.attention_of(query, keys, rope)? })
    }

    /// Full attention with these projections, scores scaled by `1 / sqrt(head_dim)`.
    pub fn attention_of(
        &self,
        query: Linear,
        keys: Keys,
        rope: Option<usize>,
    ) -> Result<Attention, SpecError> {
        let (heads, kv_heads) = self.grouped_heads()?;
        let head_dim = self.head_dim;
        Ok(Attention {
            heads,
            kv_heads,
            head_dim,
            query,
            query_norm: None,
            keys,
            rope,
            window: None,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            position_scale: None,
            gate: None,
            output: self.linear("attn_output", self.width, heads.saturating_mul(head_dim))?,
        })
    }

    /// A layer with one norm before the mixer and one before the feed-forward network.
    pub fn pre_norm(&self, mixer: Mixer, feed_forward: FeedForward) -> Result<Layer, SpecError> {
        self.pre_norm_called("ffn_norm", mixer, feed_forward)
    }

    /// As [`pre_norm`](Self::pre_norm), with the name of the second norm.
    pub fn pre_norm_called(
        &self,
        feed_forward_norm: &str,
        mixer: Mixer,
        feed_forward: FeedForward,
    ) -> Result<Layer, SpecError> {
        Ok(Layer {
            mixer_norm: self.norm("attn_norm")?,
            mixer,
            mixer_post_norm: None,
            feed_forward_norm: self.norm(feed_forward_norm)?,
            feed_forward,
            feed_forward_post_norm: None,
            input: None,
            scale: 1.0,
        })
    }

    /// Gate, up and down as three matrices.
    pub fn feed_forward(&self, activation: Activation) -> Result<FeedForward, SpecError> {
        self.dense("", self.hidden, activation).map(FeedForward::Dense)
    }

    fn dense(
        &self,
        ending: &str,
        hidden: usize,
        activation: Activation,
    ) -> Result<DenseFeedForward, SpecError> {
        let linear = |name: &str, rows, cols| self.linear(&format!("{name}{ending}"), rows, cols);
        Ok(DenseFeedForward {
            gate: linear("ffn_gate", hidden, self.width)?,
            up: linear("ffn_up", hidden, self.width)?,
            down: linear("ffn_down", self.width, hidden)?,
            activation,
        })
    }

    /// A router, and gate, up and down of all experts stacked in one tensor each.
    pub fn experts(&self, shape: ExpertShape, score: ExpertScore) -> Result<Experts, SpecError> {
        let ExpertShape { count, used, hidden } = shape;
        let router = self.name("ffn_gate_inp.weight");
        let stacked = |suffix: &str, rows, cols| {
            self.source.stacked(&self.name(&format!("{suffix}.weight")), count, rows, cols)
        };
        Ok(Experts {
            count,
            used,
            hidden,
            router: self.source.unquantized(&router, count, self.width)?,
            selection_bias: self.source.find_vector(&self.name("exp_probs_b.bias"), &[count])?,
            score,
            gate: stacked("ffn_gate_exps", hidden, self.width)?,
            up: stacked("ffn_up_exps", hidden, self.width)?,
            down: stacked("ffn_down_exps", self.width, hidden)?,
            activation: Activation::Silu,
            shared: None,
        })
    }

    /// As [`experts`](Self::experts), beside a network with a weight that every row uses.
    pub fn experts_and_shared(&self, shape: ExpertShape) -> Result<Experts, SpecError> {
        let suffix = "expert_shared_feed_forward_length";
        let hidden = self.source.size(suffix, 1..=MAX_HIDDEN)?;
        let experts = self.experts(shape, ExpertScore::Softmax)?;
        let network = self.dense("_shexp", hidden, Activation::Silu)?;
        let weight = Some(self.linear("ffn_gate_inp_shexp", 1, self.width)?);
        Ok(Experts { shared: Some(SharedExpert { network, weight }), ..experts })
    }

    /// Gate and up stacked in one matrix.
    pub fn fused_feed_forward(&self) -> Result<FeedForward, SpecError> {
        let fused = self.linear("ffn_up", self.hidden.saturating_mul(2), self.width)?;
        Ok(FeedForward::Dense(DenseFeedForward {
            gate: fused.part(0, self.hidden),
            up: fused.part(self.hidden, self.hidden),
            down: self.linear("ffn_down", self.width, self.hidden)?,
            activation: Activation::Silu,
        }))
    }
}
