//! Models of real shapes with random weights, for measurements and tests without the true weights.
//!
//! A synthetic file has the size, types, tensor names and metadata of a published model, so it has
//! the same cost in walla and llama.cpp; its output is meaningless. Its tokenizer contains the 256
//! bytes, words of letters up to the model's vocabulary size, and the control tokens of ChatML,
//! which its chat template uses.

mod blocks;
mod models;
mod rewrite;
mod tokenizer;
mod types;

use std::io::Write;

pub use models::{Convolutions, DeltaNets, Experts, Gemma4, Model};
pub use rewrite::{RewriteError, part_name, rewrite, split};
pub use types::Mixture;
use walla_model::gguf::{WriteError, Writer};
use walla_model::spec::Architecture;
use walla_types::TensorType;

use self::blocks::Fill;

/// Why a synthetic model cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// No file can describe this model: change the named parameter.
    #[error("this model is impossible: {0}")]
    Model(&'static str),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes a model block by block, so memory use does not depend on the model's size.
///
/// The same arguments give the same bytes.
///
/// # Errors
/// [`SynthError::Model`] if `model` is impossible: a size is 0, `head_dim` is odd, `kv_heads` does
/// not divide `heads`, the vocabulary is smaller than the 259 tokens of its tokenizer, the
/// architecture is not one of [`Model::ALL`], or it does not have these experts or convolutions.
/// Other errors are from `out`. Rows that are not whole blocks are not an error: they are stored in
/// a type whose blocks they fill.
///
/// # Examples
/// ```
/// use walla_doubles::synth;
/// use walla_model::{Gguf, ModelSpec};
/// let model = synth::Model { width: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, hidden: 96, vocab: 300,
///     ..synth::Model::QWEN3_0_6B };
/// let file = synth::write(&model, synth::Mixture::Q8_0, 1, Vec::new())?;
/// let spec = ModelSpec::from_gguf(&Gguf::from_bytes(file)?, 1024)?;
/// assert_eq!((spec.width, spec.layers.len()), (64, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write<W: Write>(
    model: &Model,
    mixture: Mixture,
    seed: u64,
    out: W,
) -> Result<W, SynthError> {
    write_dialect(model, mixture, seed, &Dialect::default(), out)
}

/// Chat format of a synthetic model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect<'a> {
    /// Chat template. Default: ChatML.
    pub template: &'a str,
    /// Special tokens, such as `<think>`, that replace the last words. Default: none.
    pub special: &'a [&'a str],
}

impl Default for Dialect<'_> {
    fn default() -> Self {
        Self { template: tokenizer::CHATML, special: &[] }
    }
}

/// As [`write()`], with another chat template and more special tokens.
///
/// # Errors
/// As [`write()`]; [`SynthError::Model`] also if the vocabulary is too small for the special
/// tokens.
pub fn write_dialect<W: Write>(
    model: &Model,
    mixture: Mixture,
    seed: u64,
    dialect: &Dialect<'_>,
    out: W,
) -> Result<W, SynthError> {
    check(model).map_err(SynthError::Model)?;
    if ((model.vocab - tokenizer::VOCAB_MIN) as usize) < dialect.special.len() {
        return Err(SynthError::Model("its vocabulary is too small for the special tokens"));
    }
    let tensors = tensors(model, mixture);
    let mut writer = Writer::new();
    hyperparameters(&mut writer, model);
    writer.u32("general.quantization_version", 2);
    writer.u32("general.file_type", mixture.file_type());
    tokenizer::describe(&mut writer, model, dialect);
    for tensor in &tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.dims);
    }
    let mut data = writer.begin(out)?;
    for (index, tensor) in tensors.iter().enumerate() {
        // Each tensor has a separate random stream: a change of one layer's shape does not change
        // the other layers.
        let stream = seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let elements = tensor.dims.iter().product();
        blocks::write(tensor.ty, elements, &tensor.fill, stream, &mut data)
            .map_err(WriteError::Io)?;
    }
    Ok(data.finish()?)
}

fn check(model: &Model) -> Result<(), &'static str> {
    let Model { width, layers, heads, kv_heads, head_dim, hidden, context_train, .. } = *model;
    let sizes = [width, layers, heads, kv_heads, head_dim, hidden, context_train];
    if !Model::ALL.iter().any(|known| known.architecture == model.architecture) {
        Err("its architecture cannot be synthesised")
    } else if sizes.contains(&0) {
        Err("a size is 0")
    } else if model.experts.is_some() != has_experts(model.architecture) {
        Err("its architecture and its experts contradict each other")
    } else if model.experts.is_some_and(|e| e.count == 0 || e.hidden == 0) {
        Err("a size of its experts is 0")
    } else if model.experts.is_some_and(|e| !(1..=e.count).contains(&e.used)) {
        Err("it uses no expert, or more than it has")
    } else if model.convolutions.is_some() != (model.architecture == Architecture::Lfm2Moe)
        || model.convolutions.is_some_and(|conv| conv.taps < 2)
    {
        Err("its architecture and its convolutions contradict each other")
    } else if model.delta_nets.is_some() != (model.architecture == Architecture::Qwen35) {
        Err("its architecture and its DeltaNet layers contradict each other")
    } else if model.delta_nets.is_some_and(|delta| !is_possible(&delta)) {
        Err("a size of its DeltaNet layers is 0, or key_heads does not divide value_heads")
    } else if model.gemma4.is_some() != (model.architecture == Architecture::Gemma4) {
        Err("its architecture and its parts of Gemma 4 contradict each other")
    } else if model.gemma4.is_some_and(|gemma| !has_all_kinds(model, &gemma)) {
        Err("a size of its parts of Gemma 4 is 0 or odd, or no layer of a kind has keys")
    } else if !heads.is_multiple_of(kv_heads) {
        Err("kv_heads does not divide heads")
    } else if !head_dim.is_multiple_of(2) {
        Err("head_dim is odd")
    } else if model.vocab < tokenizer::VOCAB_MIN {
        Err("its vocabulary has fewer than 259 tokens")
    } else {
        Ok(())
    }
}

const fn has_experts(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Qwen3Moe | Architecture::Lfm2Moe)
}

fn is_possible(delta: &DeltaNets) -> bool {
    let DeltaNets { key_heads, value_heads, head_dim, taps, attention_interval } = *delta;
    let sizes = [key_heads, value_heads, head_dim, attention_interval];
    !sizes.contains(&0) && taps > 1 && value_heads.is_multiple_of(key_heads)
}

/// Whether layers with a window and layers with full attention both have their own keys.
fn has_all_kinds(model: &Model, gemma: &Gemma4) -> bool {
    let Gemma4 { full_interval, full_head_dim, shared_layers, shared_hidden, .. } = *gemma;
    let own = model.layers.checked_sub(shared_layers);
    let has_kinds = full_interval > 1 && own.is_some_and(|own| own >= full_interval);
    let has_sizes = full_head_dim > 0 && full_head_dim.is_multiple_of(8) && shared_hidden > 0;
    has_kinds && has_sizes && model.window.is_some()
}

/// Bytes of the tensors' data without padding: close to the length of the file, and equal to the
/// bytes that a step of one sequence reads, if the model has no mixtures of experts.
#[must_use]
pub fn weight_bytes(model: &Model, mixture: Mixture) -> u64 {
    let bytes = |t: Tensor| {
        t.dims.iter().product::<u64>() / t.ty.block_elements() as u64 * t.ty.block_bytes() as u64
    };
    tensors(model, mixture).into_iter().map(bytes).sum()
}

impl Model {
    /// Number of weights of the model; a tied head is counted once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        // Divisors of frequencies are no weights.
        let is_weight = |t: &Tensor| t.name != "rope_freqs.weight";
        let weights = tensors(self, Mixture::F16).into_iter().filter(is_weight);
        weights.map(|t| t.dims.iter().product::<u64>()).sum()
    }
}

struct Tensor {
    name: String,
    ty: TensorType,
    /// The innermost first.
    dims: Vec<u64>,
    fill: Fill,
}

fn hyperparameters(writer: &mut Writer, model: &Model) {
    let architecture = model.architecture.name();
    writer.str("general.architecture", architecture);
    writer.str("general.name", &format!("synthetic {}", model.name));
    let key = |suffix: &str| format!("{architecture}.{suffix}");
    let full_dim = model.gemma4.map_or(model.head_dim, |gemma| gemma.full_head_dim);
    let sizes = [
        ("block_count", model.layers),
        ("context_length", model.context_train),
        ("embedding_length", model.width),
        ("attention.head_count", model.heads),
        ("attention.key_length", full_dim),
        ("attention.value_length", full_dim),
        ("rope.dimension_count", full_dim / if model.delta_nets.is_some() { 4 } else { 1 }),
        ("vocab_size", model.vocab),
    ];
    for (suffix, size) in sizes {
        writer.u32(&key(suffix), size);
    }
    match model.gemma4 {
        Some(gemma) => of_gemma4(writer, model, gemma),
        None => _ = writer.u32(&key("feed_forward_length"), model.hidden),
    }
    if model.convolutions.is_some() {
        let kv_heads = |layer| if model.attends(layer) { model.kv_heads as i32 } else { 0 };
        let kv_heads: Vec<i32> = (0..model.layers).map(kv_heads).collect();
        writer.i32s(&key("attention.head_count_kv"), &kv_heads);
    } else {
        writer.u32(&key("attention.head_count_kv"), model.kv_heads);
    }
    if let Some(convolutions) = model.convolutions {
        writer.u32(&key("shortconv.l_cache"), convolutions.taps);
    }
    if let Some(delta) = model.delta_nets {
        let sizes = [
            ("ssm.conv_kernel", delta.taps),
            ("ssm.state_size", delta.head_dim),
            ("ssm.group_count", delta.key_heads),
            ("ssm.time_step_rank", delta.value_heads),
            ("ssm.inner_size", delta.value_heads * delta.head_dim),
            ("full_attention_interval", delta.attention_interval),
        ];
        for (suffix, size) in sizes {
            writer.u32(&key(suffix), size);
        }
        // Pairs that rotate with each coordinate of a position, which are equal for text. llama.cpp
        // needs them.
        let pairs = (model.head_dim / 8) as i32;
        let sections = [pairs - 2 * (pairs / 3), pairs / 3, pairs / 3, 0];
        writer.i32s(&key("rope.dimension_sections"), &sections);
    }
    if let Some(experts) = model.experts {
        writer.u32(&key("expert_count"), experts.count);
        writer.u32(&key("expert_used_count"), experts.used);
        writer.u32(&key("expert_feed_forward_length"), experts.hidden);
    }
    if let (Architecture::Lfm2Moe, Some(experts)) = (model.architecture, model.experts) {
        const SIGMOID: u32 = 2;
        writer.u32(&key("leading_dense_block_count"), experts.dense_layers);
        writer.u32(&key("expert_gating_func"), SIGMOID);
    }
    match model.architecture {
        Architecture::Granite => of_granite(writer),
        Architecture::Mistral3 => of_ministral(writer),
        _ => {}
    }
    if let Some(window) = model.window {
        writer.u32(&key("attention.sliding_window"), window);
    }
    writer.f32(&key("attention.layer_norm_rms_epsilon"), model.eps);
    writer.f32(&key("rope.freq_base"), model.rope_base);
}

/// Granite's factors of the embedding and of what blocks add. The others are as in a Llama: scores
/// and logits of random weights are then as large as with other shapes.
const GRANITE_EMBEDDING: f32 = 12.0;
const GRANITE_RESIDUAL: f32 = 0.246;

/// Keys that only Granite has.
fn of_granite(writer: &mut Writer) {
    writer.f32("granite.embedding_scale", GRANITE_EMBEDDING);
    writer.f32("granite.residual_scale", GRANITE_RESIDUAL);
}

/// Keys that only Ministral 3 has: YaRN from 16,384 tokens on, and growing scores.
fn of_ministral(writer: &mut Writer) {
    let key = |suffix: &str| format!("mistral3.{suffix}");
    writer.str(&key("rope.scaling.type"), "yarn");
    writer.u32(&key("rope.scaling.original_context_length"), 16_384);
    let numbers = [
        ("rope.scaling.factor", 16.0),
        ("rope.scaling.yarn_beta_fast", 32.0),
        ("rope.scaling.yarn_beta_slow", 1.0),
        ("rope.scaling.yarn_log_multiplier", 1.0),
        ("attention.temperature_scale", 0.1),
    ];
    for (suffix, number) in numbers {
        writer.f32(&key(suffix), number);
    }
}

/// Keys that only Gemma 4 has.
fn of_gemma4(writer: &mut Writer, model: &Model, gemma: Gemma4) {
    let key = |suffix: &str| format!("{}.{suffix}", model.architecture.name());
    let hidden: Vec<i32> = (0..model.layers).map(|layer| model.hidden_of(layer) as i32).collect();
    writer.i32s(&key("feed_forward_length"), &hidden);
    let slides: Vec<bool> = (0..model.layers).map(|layer| !model.is_full(layer)).collect();
    writer.bools(&key("attention.sliding_window_pattern"), &slides);
    let sizes = [
        ("attention.key_length_swa", model.head_dim),
        ("attention.value_length_swa", model.head_dim),
        ("rope.dimension_count_swa", model.head_dim),
        ("attention.shared_kv_layers", gemma.shared_layers),
        ("embedding_length_per_layer_input", gemma.input_width),
    ];
    for (suffix, size) in sizes {
        writer.u32(&key(suffix), size);
    }
    writer.f32(&key("rope.freq_base_swa"), 10_000.0);
    writer.f32(&key("final_logit_softcapping"), 30.0);
}

/// Decays of DeltaNet heads, `-e^x` with `x` from 1/16 to 16 as at the start of a training, spread
/// evenly in the logarithm.
fn decays(heads: u64) -> Vec<f32> {
    let step = libm::logf(256.0) / heads.saturating_sub(1).max(1) as f32;
    (0..heads).map(|head| -libm::expf(head as f32 * step) / 16.0).collect()
}

/// All tensors, in the order of llama.cpp's converter.
///
/// Standard deviations: the input of a block is normalised, so gains of 1 keep queries, keys,
/// values, gates and ups near 1. The head's `2 / sqrt(width)` gives logits a deviation of 2, sharp
/// enough for meaningful sampling and arg max. A block adds three times the embedding to the hidden
/// state; otherwise a tied head would only repeat the last token.
fn tensors(model: &Model, mixture: Mixture) -> Vec<Tensor> {
    let [width, vocab] = [model.width, model.vocab].map(u64::from);
    let input = u64::from(model.gemma4.map_or(0, |gemma| gemma.input_width));
    let inputs = input * u64::from(model.layers);
    let embedding_std = 2.0 / (width as f32).sqrt();
    let mut all = Vec::new();
    let mut add = |name: String, ty, dims: &[u64], fill| {
        all.push(Tensor { name, ty, dims: dims.to_vec(), fill });
    };

    let ty = mixture.embedding(width, model.tied);
    let normal = |std| Fill::Random { std };
    add("token_embd.weight".into(), ty, &[width, vocab], normal(embedding_std));
    if let Some(factors) = model.rope_factors() {
        let dims = [factors.len() as u64];
        add("rope_freqs.weight".into(), TensorType::F32, &dims, Fill::These(factors));
    }
    if input > 0 {
        // Tables and projections contribute equally to the inputs.
        let std = 1.0 / (input as f32).sqrt();
        let ty = mixture.output(inputs);
        add("per_layer_token_embd.weight".into(), ty, &[inputs, vocab], normal(std));
        let dims = [width, inputs];
        add("per_layer_model_proj.weight".into(), TensorType::F16, &dims, normal(embedding_std));
        add("per_layer_proj_norm.weight".into(), TensorType::F32, &[input], Fill::All(1.0));
    }
    for layer in 0..model.layers {
        let name = |suffix: &str| format!("blk.{layer}.{suffix}.weight");
        let head_dim = u64::from(model.head_dim_of(layer));
        let query = u64::from(model.heads) * head_dim;
        let outputs = query;
        let key = u64::from(model.kv_heads) * head_dim;
        let hidden = u64::from(model.hidden_of(layer));
        let has_keys = !model.is_shared(layer);
        let attends = model.attends(layer);
        let mut all_of = |suffix, len, number| {
            add(name(suffix), TensorType::F32, &[len], Fill::All(number));
        };
        // The scores of Gemma 4 are not scaled.
        let query_norm = model.gemma4.map_or(1.0, |_| 1.0 / (head_dim as f32).sqrt());
        if model.has_head_norms() && attends {
            all_of("attn_q_norm", head_dim, query_norm);
        }
        let mut norm = |suffix, len| all_of(suffix, len, 1.0);
        norm("attn_norm", width);
        norm(if model.delta_nets.is_some() { "post_attention_norm" } else { "ffn_norm" }, width);
        if model.has_head_norms() && attends && has_keys {
            norm("attn_k_norm", head_dim);
        }
        if matches!(model.architecture, Architecture::Gemma3 | Architecture::Gemma4) {
            norm("post_attention_norm", width);
            norm("post_ffw_norm", width);
        }
        if input > 0 {
            norm("post_norm", width);
        }
        if model.gemma4.is_some() {
            // Blocks add numbers near 1: the factor keeps their sum there.
            let scale = Fill::These(vec![0.75]);
            add(name("layer_output_scale"), TensorType::F32, &[1], scale);
        }
        if let (false, Some(convolutions)) = (attends, model.convolutions) {
            let dims = [convolutions.taps.into(), width];
            add(name("shortconv.conv"), TensorType::F32, &dims, normal(0.5));
        }
        let delta = model.delta_nets.filter(|_| !attends);
        if let Some(delta) = delta {
            let heads = u64::from(delta.value_heads);
            let name = |suffix: &str| format!("blk.{layer}.{suffix}");
            let mut numbers = |name, dims: &[u64], fill| add(name, TensorType::F32, dims, fill);
            numbers(name("ssm_a"), &[heads], Fill::These(decays(heads)));
            numbers(name("ssm_dt.bias"), &[heads], Fill::Random { std: 0.5 });
            numbers(name("ssm_norm.weight"), &[delta.head_dim.into()], Fill::All(1.0));
            let dims = [delta.taps.into(), delta.channels()];
            numbers(name("ssm_conv1d.weight"), &dims, Fill::Random { std: 0.5 });
        }
        let experts = model.experts_of(layer);
        if let Some(experts) = experts {
            let dims = [width, experts.count.into()];
            add(name("ffn_gate_inp"), TensorType::F32, &dims, normal(2.0 / (width as f32).sqrt()));
            if model.architecture == Architecture::Lfm2Moe {
                let bias = format!("blk.{layer}.exp_probs_b.bias");
                add(bias, TensorType::F32, &[experts.count.into()], normal(0.1));
            }
        }
        let mut matrix = |suffix: &str, cols: u64, rows, gain: f32, stacked: Option<u32>| {
            let ty = mixture.layer(suffix, layer, model.layers, cols);
            let mut dims = vec![cols, rows];
            dims.extend(stacked.map(u64::from));
            add(name(suffix), ty, &dims, normal(gain / (cols as f32).sqrt()));
        };
        let output_gain = match model.architecture {
            Architecture::Granite => 3.0 * embedding_std * GRANITE_EMBEDDING / GRANITE_RESIDUAL,
            _ => 3.0 * embedding_std,
        };
        if let Some(delta) = delta {
            let heads = delta.value_heads.into();
            matrix("attn_qkv", width, delta.channels(), 1.0, None);
            matrix("attn_gate", width, delta.values(), 1.0, None);
            matrix("ssm_alpha", width, heads, 1.0, None);
            matrix("ssm_beta", width, heads, 1.0, None);
            matrix("ssm_out", delta.values(), width, output_gain, None);
        } else if attends {
            let query = if model.delta_nets.is_some() { 2 * query } else { query };
            matrix("attn_q", width, query, 1.0, None);
            if has_keys {
                matrix("attn_k", width, key, 1.0, None);
                matrix("attn_v", width, key, 1.0, None);
            }
            matrix("attn_output", outputs, width, output_gain, None);
        } else {
            matrix("shortconv.in_proj", width, 3 * width, 1.0, None);
            matrix("shortconv.out_proj", width, width, output_gain, None);
        }
        if input > 0 {
            matrix("inp_gate", width, input, 1.0, None);
            matrix("proj", input, width, output_gain, None);
        }
        if let Some(experts) = experts {
            let (count, hidden) = (Some(experts.count), experts.hidden.into());
            matrix("ffn_gate_exps", width, hidden, 1.0, count);
            matrix("ffn_up_exps", width, hidden, 1.0, count);
            matrix("ffn_down_exps", hidden, width, output_gain, count);
        } else {
            matrix("ffn_gate", width, hidden, 1.0, None);
            matrix("ffn_up", width, hidden, 1.0, None);
            matrix("ffn_down", hidden, width, output_gain, None);
        }
    }
    let output_norm = match model.architecture {
        Architecture::Lfm2Moe => "token_embd_norm.weight",
        _ => "output_norm.weight",
    };
    add(output_norm.into(), TensorType::F32, &[width], Fill::All(1.0));
    if !model.tied {
        let ty = mixture.output(width);
        add("output.weight".into(), ty, &[width, vocab], normal(embedding_std));
    }
    all
}
