//! LFM 2 (dense): short convolutions, and attention with head norms in the layers that have KV
//! heads. The output norm is called `token_embd_norm`.

use super::{
    SpecError,
    transformer::{LayerSource, MAX_TAPS, Transformer},
};
use crate::spec::{Activation, Attention, FeedForward, Mixer, ModelSpec, RopePairs, ShortConv};

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    build_with(model, context_tokens, &|layer| layer.feed_forward(Activation::Silu))
}

/// The model with these feed-forward networks.
pub(super) fn build_with(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
    feed_forward: &dyn Fn(&LayerSource<'_>) -> Result<FeedForward, SpecError>,
) -> Result<ModelSpec, SpecError> {
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
        layer.pre_norm(mixer, feed_forward(layer)?)
    })?;
    model.finish(vec![rope], layers, "token_embd_norm")
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
