//! Qwen 3 with a mixture of experts in every layer: the softmax of the chosen experts sums to 1.

use super::{SpecError, qwen3, transformer::Transformer};
use crate::spec::{Activation, ExpertScore, ModelSpec};

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let shape = model.expert_shape()?;
    qwen3::build_with(model, context_tokens, &|layer| {
        layer.experts(shape, ExpertScore::Softmax, Activation::Silu)
    })
}
