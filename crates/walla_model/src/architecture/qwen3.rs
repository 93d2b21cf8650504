//! Qwen 3 (dense): pairs of halves rotate, after a norm on every query and key head.

use super::{
    SpecError,
    transformer::{LayerSource, Transformer},
};
use crate::spec::{Activation, Attention, FeedForward, Layer, Mixer, ModelSpec, RopePairs};

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
        Ok(Layer {
            mixer_norm: layer.norm("attn_norm")?,
            mixer: Mixer::Attention(Attention {
                head_norms: layer.head_norms()?,
                ..layer.attention(Some(0))?
            }),
            mixer_post_norm: None,
            feed_forward_norm: layer.norm("ffn_norm")?,
            feed_forward: feed_forward(layer)?,
            feed_forward_post_norm: None,
        })
    })?;
    model.finish(vec![rope], layers, "output_norm")
}
