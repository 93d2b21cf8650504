//! Qwen 3.5 with a mixture of experts and a shared expert in every layer.

use super::{SpecError, qwen35, transformer::Transformer};
use crate::spec::{Activation, ExpertScore, ModelSpec};

pub(super) fn build(
    model: &mut Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let shape = model.expert_shape()?;
    qwen35::build_with(model, context_tokens, &|layer| {
        layer.experts_and_shared(shape, ExpertScore::Softmax, Activation::Silu)
    })
}
