//! Phi 3, 3.5 and 4 mini: fused projections; pairs of halves rotate; two sets of factors for long
//! and short contexts.
//!
//! `attention.sliding_window` is ignored, as in llama.cpp: files have values that do not match the
//! models' training.

use super::{SpecError, transformer::Transformer};
use crate::spec::{Activation, Mixer, ModelSpec, RopePairs};

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let rope = model.rope(RopePairs::Halves, context_tokens)?;
    let layers = model.layers(|layer| {
        layer.pre_norm(
            Mixer::Attention(layer.attention(Some(0))?),
            layer.fused_feed_forward(Activation::Silu)?,
        )
    })?;
    model.finish(vec![rope], layers, "output_norm")
}
