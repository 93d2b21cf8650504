//! LFM 2: short convolutions, and attention with head norms in the layers that have KV heads. The
//! output norm is called `token_embd_norm`.
//!
//! In the variant with mixtures of experts, which are chosen by a sigmoid and a bias, the first
//! layers are dense.

use super::{
    SpecError,
    transformer::{ExpertShape, LayerSource, MAX_TAPS, Transformer},
};
use crate::spec::{
    Activation, Architecture, Attention, ExpertScore, FeedForward, Mixer, ModelSpec, RopePairs,
    ShortConv,
};

/// `expert_gating_func`: the sigmoid.
const SIGMOID: usize = 2;

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let experts = match model.source.architecture {
        Architecture::Lfm2Moe => Some(experts(model)?),
        _ => None,
    };
    let taps = model.source.size("shortconv.l_cache", 2..=MAX_TAPS)?;
    let window = model.source.find::<u32>("attention.sliding_window")?.filter(|&window| window > 0);
    let rope = model.rope(RopePairs::Halves, context_tokens)?;
    let layers = model.layers(|layer| {
        let mixer = if layer.kv_heads == 0 {
            Mixer::ShortConv(short_conv(layer, taps)?)
        } else {
            let attention = layer.with_head_norms(layer.attention(Some(0))?)?;
            Mixer::Attention(Attention { window, ..attention })
        };
        let feed_forward = match experts {
            Some((shape, dense)) if layer.index >= dense => {
                FeedForward::Experts(layer.experts(shape, ExpertScore::Sigmoid)?)
            }
            _ => layer.feed_forward(Activation::Silu)?,
        };
        layer.pre_norm(mixer, feed_forward)
    })?;
    model.finish(vec![rope], layers, "token_embd_norm")
}

/// The experts of the layers behind the dense ones, whose number is the second value.
fn experts(model: &Transformer<'_, '_>) -> Result<(ExpertShape, usize), SpecError> {
    let shape = model.expert_shape()?;
    let dense = model.source.size("leading_dense_block_count", 0..=model.layer_count)?;
    let gating = model.source.size("expert_gating_func", 0..=u32::MAX as usize)?;
    if gating != SIGMOID {
        let feature = "another score of experts than 2 (the sigmoid) is";
        return Err(model.source.unsupported("expert_gating_func", gating, feature));
    }
    Ok((shape, dense))
}

fn short_conv(layer: &LayerSource<'_>, taps: usize) -> Result<ShortConv, SpecError> {
    let width = layer.width;
    let fused = layer.linear("shortconv.in_proj", width.saturating_mul(3), width)?;
    Ok(ShortConv {
        width,
        taps,
        input: [0, 1, 2].map(|part| fused.part(width.saturating_mul(part), width)),
        kernel: layer.source.vector(&layer.name("shortconv.conv.weight"), &[taps, width])?,
        output: layer.linear("shortconv.out_proj", width, width)?,
    })
}
