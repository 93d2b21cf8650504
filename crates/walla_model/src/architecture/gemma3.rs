//! Gemma 3 (text). Five of six layers use sliding-window attention and RoPE with a fixed base. The
//! sixth layer uses full attention and RoPE with the model's base, scaled. Norms on heads, before
//! and after each block.

use super::{
    SpecError,
    transformer::{LayerSource, Transformer},
};
use crate::{
    gguf::{Array, Value},
    spec::{Activation, Attention, Layer, Mixer, ModelSpec, RopePairs},
};

/// Index of the rope of layers with full attention.
const GLOBAL: usize = 0;
/// Index of the rope of layers with a window.
const LOCAL: usize = 1;
/// RoPE base of layers with a window, if the file has no such key.
const LOCAL_BASE: f64 = 10_000.0;

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let windows = windows(model)?;
    let scale = scale(model)?;
    let has_local = windows.iter().any(Option::is_some);
    let local_base = match has_local {
        true => model.source.positive_or("rope.freq_base_swa", LOCAL_BASE)?,
        false => LOCAL_BASE,
    };
    let ropes = vec![
        model.rope(RopePairs::Halves, context_tokens)?,
        model.plain_rope(RopePairs::Halves, local_base, model.rotated)?,
    ];
    let layers = model.layers(|layer| {
        let window = windows.get(layer.index).copied().flatten();
        let rope = if window.is_some() { LOCAL } else { GLOBAL };
        let attention = layer.with_head_norms(layer.attention(Some(rope))?)?;
        let mixer = Mixer::Attention(Attention { window, scale, ..attention });
        sandwich(layer, mixer)
    })?;
    let spec = model.finish(ropes, layers, "output_norm")?;
    let embedding_scale = (model.width as f64).sqrt() as f32;
    Ok(ModelSpec { embedding_scale, soft_cap: soft_cap(model)?, ..spec })
}

/// A layer with norms before and after mixer and feed-forward network.
pub(super) fn sandwich(layer: &LayerSource<'_>, mixer: Mixer) -> Result<Layer, SpecError> {
    let built = layer.pre_norm(mixer, layer.feed_forward(Activation::GeluTanh)?)?;
    Ok(Layer {
        mixer_post_norm: Some(layer.norm("post_attention_norm")?),
        feed_forward_post_norm: Some(layer.norm("post_ffw_norm")?),
        ..built
    })
}

/// The bound of the logits.
pub(super) fn soft_cap(model: &Transformer<'_, '_>) -> Result<Option<f32>, SpecError> {
    Ok(model.source.factor("final_logit_softcapping")?.map(|cap| cap as f32))
}

/// The window of each layer. `attention.sliding_window_pattern` is either a period, whose last
/// layer uses full attention (6 if the key is missing), or one boolean per layer.
pub(super) fn windows(model: &Transformer<'_, '_>) -> Result<Vec<Option<u32>>, SpecError> {
    let (source, layers) = (model.source, model.layer_count);
    let suffix = "attention.sliding_window_pattern";
    let Some(window @ 1..) = source.find::<u32>("attention.sliding_window")? else {
        return Ok(vec![None; layers]);
    };
    if let Some(Value::Array(_)) = source.gguf.get(&source.key(suffix)) {
        let pattern: Array<'_> = source.gguf.require(&source.key(suffix))?;
        if pattern.len() != layers || !pattern.iter().all(|v| matches!(v, Value::Bool(_))) {
            let found = Value::Array(pattern);
            return Err(source.wrong(suffix, found, format!("{layers} booleans")));
        }
        let local = pattern.iter().map(|v| (v == Value::Bool(true)).then_some(window));
        return Ok(local.collect());
    }
    let period = source.find::<u32>(suffix)?.unwrap_or(6) as usize;
    // The last layer of each period is global; with a period of 0 no layer is.
    let is_local =
        |layer: usize| layer.checked_rem(period).is_none_or(|at| at.saturating_add(1) < period);
    Ok((0..layers).map(|layer| is_local(layer).then_some(window)).collect())
}

/// `attention.scale`, or `1 / sqrt(head_dim)`. The 27B model (62 layers) uses `width / heads`
/// instead of `head_dim`.
fn scale(model: &Transformer<'_, '_>) -> Result<f32, SpecError> {
    let per_head = model.width.checked_div(model.heads()).unwrap_or(1);
    let divisor = if model.layer_count == 62 { per_head } else { model.head_dim };
    let default = 1.0 / (divisor.max(1) as f64).sqrt();
    Ok(model.source.positive_or("attention.scale", default)? as f32)
}
