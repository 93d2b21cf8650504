//! Ministral 3: a Llama with its context extended by YaRN (see `rope.rs`), and scores that grow
//! with the position of the query.
//!
//! A query at position `p` is multiplied by `1 + t ln(1 + floor(p / c))`, with `t` =
//! `attention.temperature_scale` (0 and a missing key: no growth) and `c` =
//! `rope.scaling.original_context_length`.

use super::{SpecError, transformer::Transformer};
use crate::spec::{Activation, Attention, Mixer, ModelSpec, PositionScale, RopePairs};

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let rope = model.rope(RopePairs::Interleaved, context_tokens)?;
    let position_scale = position_scale(model)?;
    let layers = model.layers(|layer| {
        layer.pre_norm(
            Mixer::Attention(Attention { position_scale, ..layer.attention(Some(0))? }),
            layer.feed_forward(Activation::Silu)?,
        )
    })?;
    model.finish(vec![rope], layers, "output_norm")
}

fn position_scale(model: &Transformer<'_, '_>) -> Result<Option<PositionScale>, SpecError> {
    let suffix = "attention.temperature_scale";
    let Some(slope) = model.source.find::<f32>(suffix)?.filter(|&slope| slope != 0.0) else {
        return Ok(None);
    };
    let slope = model.source.positive(suffix, slope)? as f32;
    let period_tokens = model.original_context()? as u32; // At most `u32::MAX`.
    Ok(Some(PositionScale { slope, period_tokens }))
}
