//! Qwen 3 (dense): pairs of halves rotate, after a norm on every query and key head.

use super::{
    SpecError,
    transformer::{LayerSource, Transformer},
};
use crate::spec::{Activation, FeedForward, Mixer, ModelSpec, RopePairs};

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
    let rope = model.rope(RopePairs::Halves, context_tokens)?;
    let layers = model.layers(|layer| {
        layer.pre_norm(
            Mixer::Attention(layer.with_head_norms(layer.attention(Some(0))?)?),
            feed_forward(layer)?,
        )
    })?;
    model.finish(vec![rope], layers, "output_norm")
}
