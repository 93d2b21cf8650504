//! SmolLM 3: a Llama in which every fourth layer has no position embedding.

use super::{SpecError, transformer::Transformer};
use crate::spec::{Activation, Mixer, ModelSpec, RopePairs};

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let rope = model.rope(RopePairs::Interleaved, context_tokens)?;
    let layers = model.layers(|layer| {
        let rotates = !layer.index.saturating_add(1).is_multiple_of(4);
        layer.pre_norm(
            Mixer::Attention(layer.attention(rotates.then_some(0))?),
            layer.feed_forward(Activation::Silu)?,
        )
    })?;
    model.finish(vec![rope], layers, "output_norm")
}
