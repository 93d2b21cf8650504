//! Gemma 4 (text, dense). Windows and norms as in Gemma 3, with these additions:
//!
//! - Layers with a window and layers with full attention differ in the size and the number of
//!   their heads. In full layers most dimensions do not rotate: their factors are huge.
//! - Values are normalised too, without weights. Full layers may have no projection to values: then
//!   these are the keys, before norm and rotation.
//! - The last layers read the keys and values of the last earlier layer of their kind.
//! - Each layer adds an embedding of the token (E2B and E4B), then multiplies the hidden state.
//! - Logits are capped, and some tokens are never generated.
//!
//! The embeddings of the layers are `e = (norm(P x / sqrt(d)) + sqrt(w) * table[token]) / sqrt(2)`,
//! with `d` the width of the hidden state and `w` that of a layer's part. Here the first root is in
//! the epsilon of the norm, times `d`, and the last one in the weights of the norm and the scale of
//! the table.

use super::{
    SpecError,
    gemma3::{sandwich, soft_cap, windows},
    source::{POSITIVE, POSITIVE_TEXT},
    transformer::{LayerSource, MAX_WIDTH, Transformer, head_size},
};
use crate::{
    gguf::Integers,
    spec::{
        Activation, Attention, KeyValue, Keys, Layer, LayerInput, LayerInputs, Mixer, ModelSpec,
        RmsNorm, Rope, RopePairs, Vector,
    },
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
    let source = model.source;
    let windows = windows(model)?;
    let suffixes = ["attention.key_length_swa", "attention.value_length_swa"];
    let local_dim = head_size(source, suffixes, || Ok(model.head_dim))?;
    let ropes = ropes(model, context_tokens, local_dim)?;
    let others = model.layer_count.saturating_sub(1);
    let shared = source.size_or("attention.shared_kv_layers", 0, 0..=others)?;
    let inputs = layer_inputs(model)?;
    let layers = model.layers(|layer| {
        let window = windows.get(layer.index).copied().flatten();
        let head_dim = if window.is_some() { local_dim } else { layer.head_dim };
        let layer = layer.with_heads_of(head_dim);
        let keys = if layer.index < model.layer_count.saturating_sub(shared) {
            Keys::Own(own_keys(&layer, window.is_none())?)
        } else {
            ["attn_k.weight", "attn_k_norm.weight", "attn_v.weight"]
                .iter()
                .for_each(|suffix| source.skip(&layer.name(suffix)));
            Keys::Of(owner(model, &windows, &layer, shared)?)
        };
        let (heads, _) = layer.grouped_heads()?;
        let query = layer.linear("attn_q", heads.saturating_mul(head_dim), layer.width)?;
        let rope = if window.is_some() { LOCAL } else { GLOBAL };
        let query_norm = Some(layer.head_norm("attn_q_norm")?);
        let attention = layer.attention_of(query, keys, Some(rope))?;
        let mixer = Mixer::Attention(Attention { query_norm, window, scale: 1.0, ..attention });
        let input = inputs.as_ref().map(|inputs| layer_input(&layer, inputs.width)).transpose()?;
        Ok(Layer { input, scale: layer_scale(&layer)?, ..sandwich(&layer, mixer)? })
    })?;
    let spec = model.finish(ropes, layers, "output_norm")?;
    Ok(ModelSpec {
        embedding_scale: (model.width as f64).sqrt() as f32,
        layer_inputs: inputs,
        soft_cap: soft_cap(model)?,
        suppressed: suppressed(model)?,
        ..spec
    })
}

/// The ropes of full layers and of layers with a window.
fn ropes(
    model: &Transformer<'_, '_>,
    context_tokens: u32,
    local_dim: usize,
) -> Result<Vec<Rope>, SpecError> {
    let source = model.source;
    // Without the factors every dimension of a full layer would rotate.
    source.vector("rope_freqs.weight", &[model.rotated / 2])?;
    let rotated = source.even_or("rope.dimension_count_swa", local_dim)?;
    let base = source.positive_or("rope.freq_base_swa", LOCAL_BASE)?;
    Ok(vec![
        model.rope(RopePairs::Halves, context_tokens)?,
        model.plain_rope(RopePairs::Halves, base, rotated)?,
    ])
}

fn own_keys(layer: &LayerSource<'_>, is_full: bool) -> Result<KeyValue, SpecError> {
    let (_, kv_heads) = layer.grouped_heads()?;
    let rows = kv_heads.saturating_mul(layer.head_dim);
    let key = layer.linear("attn_k", rows, layer.width)?;
    let has_values = layer.source.shape(&layer.name("attn_v.weight")).is_some();
    let value = match is_full && !has_values {
        true => key,
        false => layer.linear("attn_v", rows, layer.width)?,
    };
    let key_norm = Some(layer.head_norm("attn_k_norm")?);
    Ok(KeyValue { key, key_norm, value, value_norm_eps: Some(layer.eps) })
}

/// The layer whose keys and values `layer` reads.
fn owner(
    model: &Transformer<'_, '_>,
    windows: &[Option<u32>],
    layer: &LayerSource<'_>,
    shared: usize,
) -> Result<usize, SpecError> {
    let own = windows.get(..model.layer_count.saturating_sub(shared)).unwrap_or_default();
    let kind = windows.get(layer.index).copied().flatten();
    let Some(owner) = own.iter().rposition(|window| *window == kind) else {
        let kind = if kind.is_some() { "with a window" } else { "with full attention" };
        let expected = format!("fewer, so that an earlier layer {kind} has keys");
        return Err(model.source.wrong("attention.shared_kv_layers", shared, expected));
    };
    let (owned, needed) = (model.kv_heads(owner), layer.kv_heads);
    if owned != needed {
        let expected = format!("{owned} in layer {}, as in layer {owner}", layer.index);
        return Err(model.source.wrong("attention.head_count_kv", needed, expected));
    }
    Ok(owner)
}

fn layer_inputs(model: &Transformer<'_, '_>) -> Result<Option<LayerInputs>, SpecError> {
    let source = model.source;
    let part = source.size_or("embedding_length_per_layer_input", 0, 0..=MAX_WIDTH)?;
    if part == 0 {
        return Ok(None);
    }
    let (width, all) = (model.width, part.saturating_mul(model.layer_count));
    let norm = source.norm("per_layer_proj_norm", part, model.eps)?;
    let weight = Vector { scale: 0.5_f32.sqrt(), ..norm.weight };
    Ok(Some(LayerInputs {
        width: part,
        table: source.matrix("per_layer_token_embd.weight", model.vocab()?, all)?,
        table_scale: (part as f64 / 2.0).sqrt() as f32,
        projection: source.linear("per_layer_model_proj", all, width)?,
        norm: RmsNorm { weight, eps: norm.eps * width as f32 },
    }))
}

fn layer_input(layer: &LayerSource<'_>, part: usize) -> Result<LayerInput, SpecError> {
    Ok(LayerInput {
        gate: layer.linear("inp_gate", part, layer.width)?,
        activation: Activation::GeluTanh,
        output: layer.linear("proj", layer.width, part)?,
        post_norm: layer.norm("post_norm")?,
    })
}

/// The factor of the hidden state, 1 if the layer has none.
fn layer_scale(layer: &LayerSource<'_>) -> Result<f32, SpecError> {
    let tensor = layer.name("layer_output_scale.weight");
    let Some(vector) = layer.source.find_vector(&tensor, &[1])? else {
        return Ok(1.0);
    };
    let scale = layer.source.gguf.vector(&vector)?.first().copied().unwrap_or(1.0);
    if POSITIVE.contains(&scale) {
        return Ok(scale);
    }
    let found = scale.to_string();
    Err(SpecError::Number { tensor, index: 0, found, expected: POSITIVE_TEXT })
}

/// Tokens of images and sounds, which a text model must not generate. Numbers beyond the
/// vocabulary name no token.
fn suppressed(model: &Transformer<'_, '_>) -> Result<Vec<u32>, SpecError> {
    let vocab = model.vocab()?;
    let listed = model.source.gguf.find::<Integers<'_>>("tokenizer.ggml.suppress_tokens")?;
    let numbers = listed.into_iter().flat_map(Integers::iter);
    let tokens = numbers.filter_map(|number| u32::try_from(number).ok());
    let mut tokens: Vec<u32> = tokens.filter(|token| (*token as usize) < vocab).collect();
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}
