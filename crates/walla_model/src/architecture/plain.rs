//! Llama and its descendants with attention in every layer:
//!
//! | architecture | differences from Llama |
//! |---|---|
//! | Llama 2, 3.x and derivatives | – (neighbouring pairs rotate; Llama 3 divides the frequencies by `rope_freqs`) |
//! | SmolLM 3 | every fourth layer has no position embedding |
//! | Ministral 3 | the context is extended by YaRN (see `rope.rs`), scores grow with the position |
//! | Qwen 2, 2.5 | pairs of halves rotate; query, key and value have biases |
//! | Qwen 3 | pairs of halves rotate, after a norm on every query and key head |
//! | Qwen 3 MoE | a Qwen 3 with a mixture of experts: the softmax of the chosen ones sums to 1 |
//! | Phi 3, 3.5, 4 mini | pairs of halves rotate; fused projections; two sets of factors for long and short contexts |
//!
//! `attention.sliding_window` of Phi is ignored, as in llama.cpp: files have values that do not
//! match the models' training.

use super::{SpecError, transformer::Transformer};
use crate::spec::{
    Activation, Architecture, Attention, ExpertScore, FeedForward, Mixer, ModelSpec, PositionScale,
    RopePairs,
};

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let architecture = model.source.architecture;
    let experts = match architecture {
        Architecture::Qwen3Moe => Some(model.expert_shape()?),
        _ => None,
    };
    let pairs = match architecture {
        Architecture::Llama | Architecture::SmolLm3 | Architecture::Mistral3 => {
            RopePairs::Interleaved
        }
        _ => RopePairs::Halves,
    };
    let rope = model.rope(pairs, context_tokens)?;
    let position_scale = match architecture {
        Architecture::Mistral3 => position_scale(model)?,
        _ => None,
    };
    let layers = model.layers(|layer| {
        let is_fourth = layer.index.saturating_add(1).is_multiple_of(4);
        let rotates = architecture != Architecture::SmolLm3 || !is_fourth;
        let mut attention = layer.attention(rotates.then_some(0))?;
        if matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe) {
            attention = layer.with_head_norms(attention)?;
        }
        let feed_forward = match experts {
            Some(shape) => FeedForward::Experts(layer.experts(shape, ExpertScore::Softmax)?),
            None if architecture == Architecture::Phi3 => layer.fused_feed_forward()?,
            None => layer.feed_forward(Activation::Silu)?,
        };
        layer.pre_norm(Mixer::Attention(Attention { position_scale, ..attention }), feed_forward)
    })?;
    model.finish(vec![rope], layers, "output_norm")
}

/// A query of Ministral at position `p` is multiplied by `1 + t ln(1 + floor(p / c))`, with `t` =
/// `attention.temperature_scale` (0 and a missing key: no growth) and `c` =
/// `rope.scaling.original_context_length`.
fn position_scale(model: &Transformer<'_, '_>) -> Result<Option<PositionScale>, SpecError> {
    let Some(slope) = model.source.factor("attention.temperature_scale")? else { return Ok(None) };
    let period_tokens = model.original_context()? as u32; // At most `u32::MAX`.
    Ok(Some(PositionScale { slope: slope as f32, period_tokens }))
}
