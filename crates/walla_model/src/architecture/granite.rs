//! Granite 3.x (dense): a Llama with four numbers.
//!
//! | key | formula | here |
//! |---|---|---|
//! | `embedding_scale` e | `x = e * embedding` | [`ModelSpec::embedding_scale`] `e / r` |
//! | `attention.scale` | replaces `1 / sqrt(head_dim)` | [`Attention::scale`] |
//! | `residual_scale` r | `x += r * f(norm(x))` | `eps / r^2` in every norm of `x` |
//! | `logit_scale` s | `logits = W norm(x) / s` | scale `1 / s` of the output norm's weights |
//!
//! The residual scale needs no separate op, because the program keeps `y = x / r`:
//!
//! ```text
//! x + r f(norm(x)) = r (y + f(norm(r y)))
//! norm(r y)[i] = r y[i] w[i] / sqrt(r^2 mean(y^2) + eps) = y[i] w[i] / sqrt(mean(y^2) + eps / r^2)
//! ```

use core::ops::RangeInclusive;

use super::{SpecError, transformer::Transformer};
use crate::spec::{
    Activation, Attention, Layer, Linear, Mixer, ModelSpec, RmsNorm, RopePairs, Vector,
};

/// Range of the residual scale: its square keeps an epsilon within the range of an `f32`.
const RESIDUAL: RangeInclusive<f64> = 1e-3..=1e3;

/// Layers of Granite's other architectures, by a tensor of each.
const OTHER_LAYERS: [(&str, &str); 3] = [
    ("ssm_in.weight", "a Mamba-2 layer"),
    ("ffn_gate_inp.weight", "a mixture of experts"),
    ("ffn_gate_exps.weight", "a mixture of experts"),
];

pub(super) fn build(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
) -> Result<ModelSpec, SpecError> {
    let source = model.source;
    let residual = source.factor("residual_scale")?.unwrap_or(1.0);
    if !RESIDUAL.contains(&residual) {
        return Err(source.wrong("residual_scale", residual as f32, "between 0.001 and 1000"));
    }
    let embedding = source.factor("embedding_scale")?.unwrap_or(1.0);
    let attention = source.factor("attention.scale")?;
    let logits = source.positive_or("logit_scale", 1.0)?;
    let rotates = source.find("rope.scaling.finetuned")? != Some(false);
    let ropes = if rotates {
        vec![model.rope(RopePairs::Interleaved, context_tokens)?]
    } else {
        source.skip("rope_freqs.weight");
        Vec::new()
    };
    // A norm of `y = x / residual`.
    let norm = |norm: RmsNorm| RmsNorm {
        eps: (f64::from(norm.eps) / (residual * residual)) as f32,
        ..norm
    };
    let layers = model.layers(|layer| {
        for (suffix, kind) in OTHER_LAYERS {
            let tensor = layer.name(suffix);
            if source.shape(&tensor).is_some() {
                let architecture = source.architecture;
                return Err(SpecError::LayerKind { tensor, kind, architecture });
            }
        }
        let own = layer.attention(rotates.then_some(0))?;
        let scale = attention.map_or(own.scale, |scale| scale as f32);
        let mixer = Mixer::Attention(Attention { scale, ..own });
        let built = layer.pre_norm(mixer, layer.feed_forward(Activation::Silu)?)?;
        let (mixer_norm, feed_forward_norm) =
            (norm(built.mixer_norm), norm(built.feed_forward_norm));
        Ok(Layer { mixer_norm, feed_forward_norm, ..built })
    })?;
    let spec = model.finish(ropes, layers, "output_norm")?;
    let divided = |vector: Vector| Vector { scale: (1.0 / logits) as f32, ..vector };
    let RmsNorm { weight, eps } = norm(spec.output_norm);
    Ok(ModelSpec {
        embedding_scale: (embedding / residual) as f32,
        output_norm: RmsNorm { weight: divided(weight), eps },
        head: Linear { bias: spec.head.bias.map(divided), ..spec.head },
        ..spec
    })
}
