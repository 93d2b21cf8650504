//! Qwen 3.5: gated DeltaNet, and gated attention in every fourth layer. The norm before the
//! feed-forward network is called `post_attention_norm`. Blocks that draft further tokens (MTP) are
//! left out. In the variant with mixtures of experts, every layer has one and a shared expert.

use walla_types::RopePairs;

use super::{
    SpecError,
    source::POSITIVE,
    transformer::{LayerSource, MAX_HEAD_DIM, MAX_HEADS, MAX_TAPS, Transformer},
};
use crate::{
    gguf::Flags,
    spec::{Activation, Architecture, DeltaNet, FeedForward, Mixer, ModelSpec, RmsNorm, Vector},
};

const NORM: &str = "post_attention_norm";
/// The interval of a file without key.
const ATTENTION_INTERVAL: usize = 4;

pub(super) fn build(
    model: &mut Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let experts = match model.source.architecture {
        Architecture::Qwen35Moe => Some(model.expert_shape()?),
        _ => None,
    };
    let recurrent = recurrent_layers(model)?;
    model.without_drafts()?;
    let shape = Shape::read(model)?;
    // Positions of images have several coordinates, which are equal for text.
    let rope = model.rope(RopePairs::Halves, context_tokens)?;
    let layers = model.layers(|layer| {
        let mixer = if recurrent.get(layer.index) == Some(&true) {
            Mixer::DeltaNet(delta_net(layer, shape)?)
        } else {
            Mixer::Attention(layer.with_head_norms(layer.gated_attention(Some(0))?)?)
        };
        let feed_forward = match experts {
            Some(shape) => FeedForward::Experts(layer.experts_and_shared(shape)?),
            None => layer.feed_forward(Activation::Silu)?,
        };
        layer.pre_norm_called(NORM, mixer, feed_forward)
    })?;
    model.finish(vec![rope], layers, "output_norm")
}

/// Which blocks have DeltaNet, drafts included.
fn recurrent_layers(model: &Transformer<'_, '_>) -> Result<Vec<bool>, SpecError> {
    let (source, blocks) = (model.source, model.layer_count);
    let suffix = "attention.recurrent_layers";
    if let Some(flags) = source.find::<Flags<'_>>(suffix)? {
        if flags.len() != blocks {
            let expected = format!("{blocks} values, as many as blocks");
            return Err(source.wrong(suffix, format!("{} values", flags.len()), expected));
        }
        return Ok(flags.iter().collect());
    }
    let interval = source.size_or("full_attention_interval", ATTENTION_INTERVAL, 1..=blocks)?;
    let attends = |block: usize| block.saturating_add(1).is_multiple_of(interval);
    Ok((0..blocks).map(|block| !attends(block)).collect())
}

/// Sizes of all DeltaNet layers.
#[derive(Clone, Copy)]
struct Shape {
    key_heads: usize,
    value_heads: usize,
    head_dim: usize,
    taps: usize,
}

impl Shape {
    fn read(model: &Transformer<'_, '_>) -> Result<Self, SpecError> {
        let source = model.source;
        let key_heads = source.size("ssm.group_count", 1..=MAX_HEADS)?;
        let value_heads = source.size("ssm.time_step_rank", 1..=MAX_HEADS)?;
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a multiple of the {key_heads} key heads");
            return Err(source.wrong("ssm.time_step_rank", value_heads, expected));
        }
        let head_dim = source.size("ssm.state_size", 1..=MAX_HEAD_DIM)?;
        let inner = source.size("ssm.inner_size", 1..=usize::MAX)?;
        if inner != value_heads.saturating_mul(head_dim) {
            let expected = format!("{value_heads} heads of {head_dim}");
            return Err(source.wrong("ssm.inner_size", inner, expected));
        }
        let taps = source.size("ssm.conv_kernel", 2..=MAX_TAPS)?;
        Ok(Self { key_heads, value_heads, head_dim, taps })
    }
}

fn delta_net(layer: &LayerSource<'_>, shape: Shape) -> Result<DeltaNet, SpecError> {
    let Shape { key_heads, value_heads, head_dim, taps } = shape;
    let values = value_heads.saturating_mul(head_dim);
    let channels = key_heads.saturating_mul(head_dim).saturating_mul(2).saturating_add(values);
    let vector = |suffix, dims: &[usize]| layer.source.vector(&layer.name(suffix), dims);
    let norm = RmsNorm { weight: vector("ssm_norm.weight", &[head_dim])?, eps: layer.eps };
    Ok(DeltaNet {
        key_heads,
        value_heads,
        head_dim,
        taps,
        input: layer.linear("attn_qkv", channels, layer.width)?,
        kernel: vector("ssm_conv1d.weight", &[taps, channels])?,
        alpha: layer.linear("ssm_alpha", value_heads, layer.width)?,
        beta: layer.linear("ssm_beta", value_heads, layer.width)?,
        decay: decays(layer, value_heads)?,
        step_bias: vector("ssm_dt.bias", &[value_heads])?,
        eps: layer.eps,
        norm,
        gate: layer.linear("attn_gate", values, layer.width)?,
        output: layer.linear("ssm_out", layer.width, values)?,
    })
}

/// Negative numbers: a state that grows has no bound.
fn decays(layer: &LayerSource<'_>, heads: usize) -> Result<Vector, SpecError> {
    let tensor = layer.name("ssm_a");
    let vector = layer.source.vector(&tensor, &[heads])?;
    let numbers = layer.source.gguf.vector(&vector)?;
    let falls = |number: &f32| POSITIVE.contains(&-number) || *number == 0.0;
    match numbers.iter().enumerate().find(|(_, number)| !falls(number)) {
        Some((index, found)) => {
            let (found, expected) = (found.to_string(), "0, or a negative number above -1e15");
            Err(SpecError::Number { tensor, index, found, expected })
        }
        None => Ok(vector),
    }
}
