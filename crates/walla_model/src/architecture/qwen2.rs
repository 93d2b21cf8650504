//! Qwen 2 and 2.5: pairs of halves rotate; query, key and value have biases.

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
            layer.feed_forward(Activation::Silu)?,
        )
    })?;
    model.finish(vec![rope], layers, "output_norm")
}
