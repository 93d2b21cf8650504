//! LFM 2 with mixtures of experts, chosen by a sigmoid and a bias. The first layers are dense.

use super::{SpecError, lfm2, transformer::Transformer};
use crate::spec::{Activation, ExpertScore, ModelSpec};

/// `expert_gating_func`: the sigmoid.
const SIGMOID: usize = 2;

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let shape = model.expert_shape()?;
    let dense = model.source.size("leading_dense_block_count", 0..=model.layer_count)?;
    let gating = model.source.size("expert_gating_func", 0..=u32::MAX as usize)?;
    if gating != SIGMOID {
        let feature = "another score of experts than 2 (the sigmoid) is";
        return Err(model.source.unsupported("expert_gating_func", gating, feature));
    }
    lfm2::build_with(model, context_tokens, &|layer| {
        if layer.index < dense {
            layer.feed_forward(Activation::Silu)
        } else {
            layer.experts(shape, ExpertScore::Sigmoid, Activation::Silu)
        }
    })
}
