//! Absurd hyperparameters and tensors are errors that name them, before anything is built.

use crate::spec_common::{Spoilt, llama, reference, spoil};
use proptest::prelude::*;
use walla_doubles::synth::Model;
use walla_model::{
    Gguf, ModelSpec, Value,
    spec::{
        Architecture, Attention, ExpertScore, FeedForward, KeyValue, Keys, Layer, Mixer,
        PositionScale,
    },
};
use walla_types::TensorType;

#[test]
fn unmodified_models_are_valid() {
    for model in Model::ALL {
        assert_eq!(spoil(&model).spec().map(|s| s.width), Ok(64), "{}", model.name);
    }
}

#[test]
fn an_unknown_architecture_error_lists_the_supported_ones() {
    assert_eq!(
        llama().set("general.architecture", Value::String("mamba")).message(),
        "architecture \"mamba\" is not supported \
         (supported: llama, qwen2, qwen3, gemma3, smollm3, phi3, lfm2, granite, mistral3, \
         qwen3moe, lfm2moe, qwen35, qwen35moe, gemma4, bert)"
    );
    let message = llama().set("general.architecture", Value::String("granitehybrid")).message();
    assert!(message.contains("not supported: some of its layers are Mamba-2 (supp"), "{message}");
    let message = llama().remove("general.architecture").message();
    assert!(message.contains("\"general.architecture\" is missing"), "{message}");
}

/// llama.cpp's tool writes the keys as `u16`.
#[test]
fn parts_in_memory_are_refused_with_advice() {
    let first = llama().set("split.no", Value::U16(0)).set("split.count", Value::U16(2));
    let expected = "this is part 1 of 2 of a split model, without the others: open the first part \
                    by its path, or join the parts with `llama-gguf-split --merge FIRST_PART \
                    WHOLE_MODEL`";
    assert_eq!(first.message(), expected);
    let second = llama()
        .remove("general.architecture")
        .set("split.no", Value::U16(1))
        .set("split.count", Value::U16(2));
    assert!(second.message().starts_with("this is part 2 of 2"));
    let whole = llama().set("split.no", Value::U16(0)).set("split.count", Value::U16(1));
    assert!(whole.spec().is_ok());
}

/// One value per case, and the expected message.
#[test]
fn absurd_hyperparameters_are_named() {
    let u = Value::U32;
    let f = Value::F32;
    let cases = [
        ("block_count", u(0), "is 0, expected 1..=512"),
        ("block_count", u(513), "is 513, expected 1..=512"),
        ("block_count", u(u32::MAX), "expected 1..=512"),
        ("block_count", f(2.0), "holds FLOAT32 2, expected an integer"),
        ("block_count", Value::I32(-1), "holds INT32 -1, expected an integer in 0..="),
        ("embedding_length", u(0), "is 0, expected 1..=65536"),
        ("embedding_length", u(65_537), "is 65537, expected 1..=65536"),
        ("context_length", u(0), "is 0, expected 1..="),
        ("context_length", Value::String("long"), "holds a STRING, expected an integer"),
        ("feed_forward_length", u(0), "is 0, expected 1..="),
        ("feed_forward_length", u(u32::MAX), "expected 1..="),
        ("attention.head_count", u(0), "is 0, expected 1..=1024"),
        (
            "attention.head_count",
            u(3),
            "head_count_kv\" is 2, expected a divisor of the 3 query heads",
        ),
        ("attention.head_count", Value::U64(1 << 40), "expected an integer in 0..=4294967295"),
        (
            "attention.head_count_kv",
            u(0),
            "is 0, expected a divisor of the 4 query heads of layer 0",
        ),
        (
            "attention.head_count_kv",
            u(3),
            "is 3, expected a divisor of the 4 query heads of layer 0",
        ),
        (
            "attention.head_count_kv",
            u(8),
            "is 8, expected a divisor of the 4 query heads of layer 0",
        ),
        ("attention.key_length", u(0), "is 0, expected an even number in 2..=1024"),
        ("attention.key_length", u(15), "is 15, expected an even number"),
        ("attention.key_length", u(1026), "is 1026, expected an even number in 2..=1024"),
        ("attention.value_length", u(32), "is 32, expected 16, as attention.key_length"),
        ("rope.dimension_count", u(0), "is 0, expected 2..=16"),
        ("rope.dimension_count", u(18), "is 18, expected 2..=16"),
        ("rope.dimension_count", u(7), "is 7, expected an even number"),
        ("rope.freq_base", f(0.0), "is 0, expected a positive number"),
        ("rope.freq_base", f(1.0), "is 1, expected above 1"),
        ("rope.freq_base", f(f32::NAN), "is NaN, expected a positive number"),
        ("rope.freq_base", f(f32::INFINITY), "is inf, expected a positive number"),
        ("rope.scaling.factor", f(-2.0), "is -2, expected a positive number"),
        ("rope.scaling.factor", f(f32::NAN), "is NaN, expected a positive number"),
        ("rope.scale_linear", f(f32::INFINITY), "is inf, expected a positive number"),
        ("rope.scaling.attn_factor", f(0.0), "is 0, expected a positive number"),
        ("rope.scaling.type", Value::String("su"), "is su: this scaling is not supported"),
        ("attention.layer_norm_rms_epsilon", f(0.0), "is 0, expected between 0 and 1"),
        ("attention.layer_norm_rms_epsilon", f(-1e-5), "expected between 0 and 1"),
        ("attention.layer_norm_rms_epsilon", f(f32::NAN), "is NaN, expected between 0 and 1"),
        ("attention.layer_norm_rms_epsilon", f(f32::INFINITY), "is inf, expected between 0 and 1"),
        ("attention.layer_norm_rms_epsilon", u(0), "holds UINT32 0, expected a float"),
        ("expert_count", u(8), "is 8: mixtures of experts are not supported"),
        ("attention.causal", Value::Bool(false), "is false: looking ahead is not supported"),
    ];
    for (suffix, value, expected) in cases {
        let spec = llama().set(&format!("llama.{suffix}"), value).spec();
        let message = spec.expect_err(suffix).to_string();
        assert!(message.contains("\"llama."), "{message}");
        assert!(message.contains(expected), "{suffix}: {expected:?} is not in {message:?}");
    }
}

#[test]
fn heads_must_divide_the_width_unless_their_size_is_given() {
    let odd = || llama().set("llama.attention.head_count", Value::U32(6));
    let message = odd().remove("llama.attention.key_length").message();
    assert!(message.contains("is 6, expected a divisor of the embedding's length 64"), "{message}");
    // With an explicit size, the shapes disagree instead.
    let message = odd().message();
    assert_eq!(message, "tensor \"blk.0.attn_q.weight\" has shape [64, 64], expected [64, 96]");
}

#[test]
fn missing_hyperparameters_are_named() {
    for suffix in [
        "block_count",
        "embedding_length",
        "context_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ] {
        let key = format!("llama.{suffix}");
        let message = llama().remove(&key).message();
        assert!(message.starts_with(&format!("key {key:?} is missing")), "{message}");
    }
}

#[test]
fn missing_misshaped_and_unusable_tensors_are_named() {
    for name in
        ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"]
    {
        let message = llama().drop(name).message();
        assert!(
            message.starts_with(&format!("tensor {name:?} is missing, expected shape [")),
            "{message}"
        );
    }
    let message = llama().tensor("blk.1.ffn_down.weight", |t| t.2 = vec![96, 65]).message();
    assert_eq!(message, "tensor \"blk.1.ffn_down.weight\" has shape [96, 65], expected [96, 64]");
    let message = llama().tensor("blk.1.ffn_down.weight", |t| t.2.push(2)).message();
    assert!(message.contains("has shape [96, 64, 2]"), "{message}");
    let message = llama().tensor("output_norm.weight", |t| t.1 = TensorType::Q8_0).message();
    assert!(message.contains("\"output_norm.weight\" is of type Q8_0, expected F32"), "{message}");
    let message = llama().tensor("token_embd.weight", |t| t.2 = vec![64, 261]).message();
    assert!(message.contains("expected [64, 260]"), "the tokenizer counts: {message}");
    // An additional dimension of 1 changes nothing.
    assert!(llama().tensor("blk.1.ffn_down.weight", |t| t.2.push(1)).spec().is_ok());
}

#[test]
fn a_tensor_of_a_type_without_kernels_is_named() {
    let name = "blk.1.attn_q.weight";
    let mut file = llama().file();
    let place = file.windows(name.len()).position(|w| w == name.as_bytes()).unwrap();
    // The name is followed by the number of dimensions, two dimensions and the type: 16 is IQ2_XXS.
    let code = place + name.len() + 4 + 2 * 8;
    assert_eq!(file[code..code + 4], 1_u32.to_le_bytes());
    file[code] = 16;
    let error = ModelSpec::from_gguf(&Gguf::from_bytes(file).unwrap(), 1024).unwrap_err();
    let message = error.to_string();
    let expected = "tensor \"blk.1.attn_q.weight\": tensor type IQ2_XXS is not supported";
    assert!(message.starts_with(expected), "{message}");
}

#[test]
fn an_unused_tensor_is_an_error() {
    let message = llama().add("blk.0.attn_q.scale", &[1]).message();
    assert_eq!(message, "tensor \"blk.0.attn_q.scale\" is no part of a llama model");
    let message = llama().add("blk.2.attn_norm.weight", &[64]).message();
    assert_eq!(message, "tensor \"blk.2.attn_norm.weight\" is no part of a llama model");
}

#[test]
fn biases_and_a_separate_output_head_are_found() {
    let spec = llama()
        .add("blk.1.attn_output.bias", &[64])
        .add("blk.1.ffn_up.bias", &[96])
        .add("output.weight", &[64, 260])
        .spec()
        .unwrap();
    let Mixer::Attention(a) = &spec.layers[1].mixer else { panic!("no attention") };
    assert_eq!(a.output.bias.map(|b| b.len), Some(64));
    let up_bias = |layer: usize| match &spec.layers[layer].feed_forward {
        FeedForward::Dense(dense) => dense.up.bias,
        FeedForward::Experts(_) => panic!("layer {layer} has experts"),
    };
    assert_eq!(up_bias(1).map(|b| b.len), Some(96));
    assert!(up_bias(0).is_none() && !spec.is_tied());
    let message = llama().add("blk.1.ffn_up.bias", &[64]).message();
    assert!(message.contains("\"blk.1.ffn_up.bias\" has shape [64], expected [96]"), "{message}");
}

#[test]
fn mixtures_of_experts_are_read_with_or_without_a_bias() {
    let spec = spoil(&Model::LFM2_8B_A1B).spec().unwrap();
    assert_eq!(spec.experts().count(), 0, "both layers are dense");
    let spec = spoil(&Model::QWEN3_30B_A3B).remove("qwen3moe.feed_forward_length").spec();
    let found: Vec<_> = spec.as_ref().unwrap().experts().collect();
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].count, found[0].used, found[0].hidden), (6, 2, 32));
    assert_eq!((found[0].gate.rows, found[0].down.rows), (6 * 32, 6 * 64));
    assert_eq!((found[0].score, found[0].selection_bias), (ExpertScore::Softmax, None));
    let spec = spoil(&Model::QWEN3_30B_A3B).add("blk.0.exp_probs_b.bias", &[6]).spec().unwrap();
    let biases: Vec<_> = spec.experts().map(|e| e.selection_bias.map(|b| b.len)).collect();
    assert_eq!(biases, [Some(6), None]);
}

#[test]
fn absurd_mixtures_of_experts_are_named() {
    let u = Value::U32;
    let cases = [
        ("qwen3moe.expert_count", u(0), "is 0, expected 1..=1024"),
        ("qwen3moe.expert_count", u(1025), "is 1025, expected 1..=1024"),
        ("qwen3moe.expert_count", u(5), "\"blk.0.ffn_gate_inp.weight\" has shape [64, 6]"),
        ("qwen3moe.expert_used_count", u(0), "is 0, expected 1..=6"),
        ("qwen3moe.expert_used_count", u(7), "is 7, expected 1..=6"),
        ("qwen3moe.expert_feed_forward_length", u(0), "is 0, expected 1..="),
        (
            "qwen3moe.expert_feed_forward_length",
            u(16),
            "\"blk.0.ffn_gate_exps.weight\" has shape [64, 32, 6], expected [64, 16, 6]",
        ),
    ];
    for (key, value, expected) in cases {
        let message = spoil(&Model::QWEN3_30B_A3B).set(key, value).message();
        assert!(message.contains(expected), "{key}: {expected:?} is not in {message:?}");
    }
    for key in ["expert_count", "expert_used_count", "expert_feed_forward_length"] {
        let message = spoil(&Model::QWEN3_30B_A3B).remove(&format!("qwen3moe.{key}")).message();
        assert!(message.contains(&format!("\"qwen3moe.{key}\" is missing")), "{message}");
    }
    let quantized = spoil(&Model::QWEN3_30B_A3B)
        .tensor("blk.1.ffn_gate_inp.weight", |tensor| tensor.1 = TensorType::Q8_0);
    let expected =
        "tensor \"blk.1.ffn_gate_inp.weight\" is of type Q8_0, expected F32, F16 or BF16";
    assert_eq!(quantized.message(), expected);
    let lost = spoil(&Model::QWEN3_30B_A3B).drop("blk.1.ffn_down_exps.weight");
    let expected = "tensor \"blk.1.ffn_down_exps.weight\" is missing, expected shape [32, 64, 6]";
    assert_eq!(lost.message(), expected);
    let dense = spoil(&Model::LFM2_8B_A1B).set("lfm2moe.leading_dense_block_count", u(1)).message();
    assert!(dense.contains("blk.1.ffn_gate_inp.weight\" is missing"), "{dense}");
    let score = spoil(&Model::LFM2_8B_A1B).set("lfm2moe.expert_gating_func", u(1)).message();
    let expected = "key \"lfm2moe.expert_gating_func\" is 1: another score of experts than 2 (the \
                    sigmoid) is not supported";
    assert_eq!(score, expected);
}

#[test]
fn absurd_delta_net_layers_are_named() {
    let model = || spoil(&Model::QWEN3_5_0_8B);
    for decay in [1.0, f32::NAN, f32::NEG_INFINITY] {
        let message = Spoilt { decay, ..model() }.message();
        let expected = "\"blk.0.ssm_a\": number 0 is";
        assert!(
            message.contains(expected) && message.contains("or a negative number"),
            "{message}"
        );
    }
    let u = Value::U32;
    let cases = [
        ("qwen35.ssm.conv_kernel", u(1), "is 1, expected 2..=16"),
        ("qwen35.ssm.conv_kernel", u(3), "\"blk.0.ssm_conv1d.weight\" has shape [4, 128]"),
        ("qwen35.ssm.group_count", u(0), "is 0, expected 1..=1024"),
        ("qwen35.ssm.group_count", u(4), "is 2, expected a multiple of the 4 key heads"),
        (
            "qwen35.ssm.time_step_rank",
            u(3),
            "\"qwen35.ssm.inner_size\" is 64, expected 3 heads of 32",
        ),
        ("qwen35.ssm.state_size", u(4096), "is 4096, expected 1..=1024"),
        ("qwen35.ssm.inner_size", u(u32::MAX), "is 4294967295, expected 2 heads of 32"),
        ("qwen35.full_attention_interval", u(0), "is 0, expected 1..=2"),
        ("qwen35.full_attention_interval", u(1), "\"blk.0.attn_q.weight\" is missing"),
        ("qwen35.nextn_predict_layers", u(2), "is 2, expected 0..=1"),
    ];
    for (key, value, expected) in cases {
        let message = model().set(key, value).message();
        assert!(message.contains(expected), "{key}: {expected:?} is not in {message:?}");
    }
    for key in ["conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size"] {
        let message = model().remove(&format!("qwen35.ssm.{key}")).message();
        assert!(message.contains(&format!("\"qwen35.ssm.{key}\" is missing")), "{message}");
    }
    let narrow = model().tensor("blk.1.attn_q.weight", |tensor| tensor.2[1] /= 2).message();
    assert!(narrow.contains("\"blk.1.attn_q.weight\" has shape [64, 64]"), "{narrow}");
}

#[test]
fn draft_blocks_are_left_out() {
    let model = || spoil(&Model::QWEN3_5_0_8B).set("qwen35.full_attention_interval", Value::U32(2));
    assert_eq!(model().spec().unwrap().layers.len(), 2);
    // The last block becomes a draft: its tensors may be anything.
    let drafted = || {
        let name = "blk.1.ffn_up.weight";
        model().tensor(name, |tensor| tensor.2[1] = 1).add("blk.1.nextn.anything", &[3])
    };
    let spec = drafted().set("qwen35.nextn_predict_layers", Value::U32(1)).spec().unwrap();
    assert_eq!(spec.layers.len(), 1);
    assert!(drafted().spec().is_err());
}

#[test]
fn fused_projections_with_biases_are_split() {
    let mut model = llama();
    for layer in 0..2 {
        let fused = format!("blk.{layer}.attn_qkv");
        for part in ["q", "k", "v"] {
            model = model.drop(&format!("blk.{layer}.attn_{part}.weight"));
        }
        model =
            model.add(&format!("{fused}.weight"), &[64, 128]).add(&format!("{fused}.bias"), &[128]);
    }
    let spec = model.spec().unwrap();
    let Mixer::Attention(a) = &spec.layers[1].mixer else { panic!("no attention") };
    let Keys::Own(KeyValue { key, value, .. }) = a.keys else { panic!("no keys") };
    let parts = [a.query, key, value].map(|l| {
        let bias = l.bias.unwrap();
        (l.matrix.first_row, l.matrix.rows, bias.first, bias.len)
    });
    assert_eq!(parts, [(0, 64, 0, 64), (64, 32, 64, 32), (96, 32, 96, 32)]);
}

#[test]
fn linear_scaling_divides_every_frequency() {
    let factor = |key: &str| llama().set(key, Value::F32(4.0)).spec().unwrap().ropes[0].clone();
    let plain = llama().spec().unwrap().ropes[0].clone();
    for key in ["llama.rope.scaling.factor", "llama.rope.scale_linear"] {
        let scaled = factor(key);
        for (scaled, plain) in scaled.frequencies.iter().zip(&plain.frequencies) {
            assert!((scaled * 4.0 / plain - 1.0).abs() < 1e-6);
        }
        assert_eq!(scaled.magnitude, 1.0);
    }
    let none = llama()
        .set("llama.rope.scaling.type", Value::String("none"))
        .set("llama.rope.scaling.factor", Value::F32(4.0));
    assert_eq!(none.spec().unwrap().ropes[0], plain);
}

#[test]
fn yarn_keeps_fast_frequencies_and_divides_slow_ones() {
    let spec = llama()
        .set("llama.rope.scaling.type", Value::String("yarn"))
        .set("llama.rope.scaling.factor", Value::F32(4.0))
        .set("llama.rope.scaling.original_context_length", Value::U32(4096))
        .spec();
    let (scaled, plain) = (&spec.unwrap().ropes[0], &llama().spec().unwrap().ropes[0]);
    let ratio: Vec<f32> =
        plain.frequencies.iter().zip(&scaled.frequencies).map(|(p, s)| p / s).collect();
    // Of 8 pairs with base 500000, pair 1 rotates 126 times in 4096 tokens and pair 4 less than
    // once.
    assert!((ratio[0] - 1.0).abs() < 1e-6 && (ratio[1] - 1.0).abs() < 1e-6, "{ratio:?}");
    assert!(ratio[2] > 1.0 && ratio[2] < 4.0, "{ratio:?}");
    assert!(ratio[4..].iter().all(|r| (r - 4.0).abs() < 1e-5), "{ratio:?}");
    assert!((scaled.magnitude - (1.0 + 0.1 * 4.0_f32.ln())).abs() < 1e-6);
}

#[test]
fn bad_frequency_factors_are_named() {
    let message = llama().tensor("rope_freqs.weight", |t| t.2 = vec![9]).message();
    assert!(message.contains("\"rope_freqs.weight\" has shape [9], expected [8]"), "{message}");
    // As F16, the bytes of 1.0 are 0 and 1.875.
    let message = llama().tensor("rope_freqs.weight", |t| t.1 = TensorType::F16).message();
    assert_eq!(
        message,
        "tensor \"rope_freqs.weight\": number 0 is 0, expected a positive number (1e-9 to 1e36)"
    );
    let one_sided = llama().drop("rope_freqs.weight").add("rope_factors_long.weight", &[8]);
    let message = one_sided.message();
    assert!(message.contains("\"rope_factors_short.weight\" is missing"), "{message}");
}

#[test]
fn keys_of_gemma_are_checked() {
    let gemma = || spoil(&Model::GEMMA_3_1B);
    let cap = |cap| gemma().set("gemma3.final_logit_softcapping", Value::F32(cap));
    assert_eq!(cap(30.0).spec().unwrap().soft_cap, Some(30.0));
    assert_eq!(cap(0.0).spec().unwrap().soft_cap, None);
    let message = cap(f32::NAN).message();
    assert!(message.contains("is NaN, expected a positive number"), "{message}");
    let windows = |spec: ModelSpec| -> Vec<_> {
        let window = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(a) => (a.window, a.rope),
            other => panic!("no attention: {other:?}"),
        };
        spec.layers.iter().map(window).collect()
    };
    let pattern = "gemma3.attention.sliding_window_pattern";
    let (local, global) = ((Some(512), Some(1)), (None, Some(0)));
    assert_eq!(windows(gemma().spec().unwrap()), [local, local]);
    assert_eq!(windows(gemma().set(pattern, Value::U32(2)).spec().unwrap()), [local, global]);
    assert_eq!(windows(gemma().set(pattern, Value::U32(1)).spec().unwrap()), [global, global]);
    let no_window = gemma().set("gemma3.attention.sliding_window", Value::U32(0));
    assert_eq!(windows(no_window.spec().unwrap()), [global, global]);
    let scale = gemma().set("gemma3.attention.scale", Value::F32(0.5)).spec().unwrap();
    let Mixer::Attention(a) = &scale.layers[0].mixer else { panic!("no attention") };
    assert_eq!(a.scale, 0.5);
    let message = gemma().drop("blk.0.post_ffw_norm.weight").message();
    assert!(message.contains("\"blk.0.post_ffw_norm.weight\" is missing"), "{message}");
}

fn gemma4() -> Spoilt {
    spoil(&Model::GEMMA_4_E2B)
}

fn attentions(spec: &ModelSpec) -> Vec<Attention> {
    let attention = |layer: &Layer| match &layer.mixer {
        Mixer::Attention(attention) => attention.clone(),
        other => panic!("no attention: {other:?}"),
    };
    spec.layers.iter().map(attention).collect()
}

#[test]
fn layers_of_gemma_4_share_the_keys_of_their_kind() {
    let keys = |spec: &ModelSpec| -> Vec<Option<usize>> {
        let owner = |a: Attention| match a.keys {
            Keys::Own(_) => None,
            Keys::Of(owner) => Some(owner),
        };
        attentions(spec).into_iter().map(owner).collect()
    };
    let spec = gemma4().spec().unwrap();
    assert_eq!(keys(&spec), [None, None, Some(0), Some(1)]);
    let sizes: Vec<_> =
        attentions(&spec).iter().map(|a| (a.head_dim, a.window, a.rope, a.scale)).collect();
    let (local, full) = ((16, Some(512), Some(1), 1.0), (32, None, Some(0), 1.0));
    assert_eq!(sizes, [local, full, local, full]);
    assert_eq!(spec.kv_numbers_per_token(), 2 * 2 * (16 + 32));
    // The last owner need not be the last layer with keys.
    let shared = |count| gemma4().set("gemma4.attention.shared_kv_layers", Value::U32(count));
    let longer = shared(1)
        .add("blk.2.attn_k.weight", &[64, 32])
        .add("blk.2.attn_v.weight", &[64, 32])
        .add("blk.2.attn_k_norm.weight", &[16]);
    assert_eq!(keys(&longer.spec().unwrap()), [None, None, None, Some(1)]);
    let message = shared(3).message();
    let expected = "is 3, expected fewer, so that an earlier layer with full attention has keys";
    assert!(message.contains(expected), "{message}");
    assert!(shared(4).message().contains("is 4, expected 0..=3"));
    // Some files hold keys of layers that share them.
    let keys = gemma4().add("blk.2.attn_k.weight", &[64, 32]).add("blk.3.attn_v.weight", &[3]);
    assert_eq!(keys.spec().unwrap(), spec);
}

#[test]
fn keys_and_tensors_of_gemma_4_are_checked() {
    let (u, f) = (Value::U32, Value::F32);
    let cases = [
        ("expert_count", u(128), "is 128: mixtures of experts are not supported"),
        ("attention.key_length_swa", u(15), "is 15, expected an even number in 2..=1024"),
        ("attention.key_length_swa", u(2048), "is 2048, expected an even number in 2..=1024"),
        ("attention.value_length_swa", u(8), "is 8, expected 16, as attention.key_length_swa"),
        ("attention.key_length_swa", u(32), "_swa\" is 16, expected 32, as attention.key_length_"),
        ("attention.key_length", u(16), "value_length\" is 32, expected 16, as attention.key_len"),
        ("rope.dimension_count_swa", u(18), "is 18, expected 2..=16"),
        ("rope.dimension_count_swa", u(7), "is 7, expected an even number"),
        ("rope.freq_base_swa", f(0.5), "freq_base\" is 0.5, expected above 1"),
        ("rope.freq_base_swa", f(f32::NAN), "is NaN, expected a positive number"),
        ("final_logit_softcapping", f(-30.0), "is -30, expected a positive number"),
        ("final_logit_softcapping", f(f32::INFINITY), "is inf, expected a positive number"),
        ("embedding_length_per_layer_input", u(65_537), "is 65537, expected 0..=65536"),
        (
            "embedding_length_per_layer_input",
            u(16),
            "\"per_layer_proj_norm.weight\" has shape [8], expected [16]",
        ),
        ("embedding_length_per_layer_input", u(0), "is no part of a gemma4 model"),
        ("attention.head_count_kv", u(3), "is 3, expected a divisor of the 4 query heads"),
        ("attention.head_count_kv", u(0), "is 0, expected a divisor of the 4 query heads"),
    ];
    for (suffix, value, expected) in cases {
        let message = gemma4().set(&format!("gemma4.{suffix}"), value).message();
        assert!(message.contains(expected), "{suffix}: {expected:?} is not in {message:?}");
    }
    for name in [
        "rope_freqs.weight",
        "per_layer_token_embd.weight",
        "per_layer_model_proj.weight",
        "per_layer_proj_norm.weight",
        "blk.3.inp_gate.weight",
        "blk.3.proj.weight",
        "blk.3.post_norm.weight",
        "blk.3.post_ffw_norm.weight",
        "blk.0.attn_v.weight",
        "blk.1.attn_k.weight",
        "blk.1.attn_k_norm.weight",
        "blk.2.attn_q_norm.weight",
    ] {
        let message = gemma4().drop(name).message();
        assert!(message.starts_with(&format!("tensor {name:?} is missing")), "{name}: {message}");
    }
    let narrow = gemma4().tensor("per_layer_token_embd.weight", |t| t.2[0] = 24).message();
    assert!(narrow.contains("has shape [24, 260], expected [32, 260]"), "{narrow}");
    for layer_scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let message = Spoilt { layer_scale, ..gemma4() }.message();
        let expected = "\"blk.0.layer_output_scale.weight\": number 0 is";
        assert!(message.contains(expected), "{message}");
    }
    let experts = gemma4().add("blk.0.ffn_gate_inp.weight", &[64, 4]).message();
    assert!(experts.contains("\"blk.0.ffn_gate_inp.weight\" is no part"), "{experts}");
}

#[test]
fn full_layers_of_gemma_4_may_use_keys_as_values() {
    let spec = gemma4().drop("blk.1.attn_v.weight").spec().unwrap();
    let own: Vec<_> = attentions(&spec).iter().filter_map(|a| a.own_keys().copied()).collect();
    assert_ne!(own[0].key, own[0].value);
    assert_eq!(own[1].key, own[1].value);
    assert!(own.iter().all(|own| own.value_norm_eps == Some(1e-6)));
    let scales = Spoilt { layer_scale: 0.5, ..gemma4() }.spec().unwrap();
    assert!(scales.layers.iter().all(|layer| layer.scale == 0.5));
    let mut unscaled = gemma4();
    unscaled.tensors.retain(|(name, ..)| !name.ends_with("layer_output_scale.weight"));
    assert!(unscaled.spec().unwrap().layers.iter().all(|layer| layer.scale == 1.0));
}

#[test]
fn suppressed_tokens_are_sorted_and_those_beyond_the_vocabulary_are_dropped() {
    assert!(gemma4().spec().unwrap().suppressed.is_empty());
    let mut writer = walla_model::gguf::Writer::new();
    let key = "tokenizer.ggml.suppress_tokens";
    writer.i32s(key, &[258, 3, -1, 260, i32::MAX, 3]);
    let lists = Gguf::from_bytes(writer.begin(Vec::new()).unwrap().finish().unwrap()).unwrap();
    let lists: &'static Gguf = Box::leak(Box::new(lists));
    let spec = gemma4().set(key, lists.get(key).unwrap()).spec().unwrap();
    assert_eq!(spec.suppressed, [3, 258]);
    let message = gemma4().set(key, Value::String("3")).message();
    assert!(message.contains("\"tokenizer.ggml.suppress_tokens\" holds"), "{message}");
}

#[test]
fn keys_of_lfm_are_checked() {
    let lfm = || reference("lfm2-q8_0.gguf");
    let sound = lfm();
    let arrays = sound.gguf.get("lfm2.attention.head_count_kv").unwrap();
    assert_eq!(arrays.to_string(), "[3 INT32]");
    assert!(sound.spec().is_ok());
    for taps in [0, 1, 17, u32::MAX] {
        let message = lfm().set("lfm2.shortconv.l_cache", Value::U32(taps)).message();
        assert!(message.contains("\"lfm2.shortconv.l_cache\" is"), "{message}");
        assert!(message.contains("expected 2..=16"), "{message}");
    }
    let message = lfm().set("lfm2.shortconv.l_cache", Value::U32(4)).message();
    assert!(message.contains("conv.weight\" has shape [3, 128], expected [4, 128]"), "{message}");
    let message = lfm().set("lfm2.block_count", Value::U32(2)).message();
    assert!(message.contains("is 3 values, expected one value or 2"), "{message}");
    // All layers have one head each: then attention tensors are missing in the convolution layers.
    let message = lfm().set("lfm2.attention.head_count_kv", Value::U32(1)).message();
    assert!(message.contains("\"blk.0.attn_q.weight\" is missing"), "{message}");
}

fn granite() -> Spoilt {
    llama().named("granite")
}

#[test]
fn keys_of_granite_are_checked() {
    let plain = granite().spec().unwrap();
    let own = llama().spec().unwrap();
    // Without the keys it is a Llama.
    assert_eq!(ModelSpec { architecture: Architecture::Llama, ..plain.clone() }, own);
    let zeros = ["embedding_scale", "residual_scale", "attention.scale"];
    let zeros = zeros
        .iter()
        .fold(granite(), |model, suffix| model.set(&format!("granite.{suffix}"), Value::F32(0.0)));
    assert_eq!(zeros.spec().unwrap(), plain, "0 is no factor, as in llama.cpp");
    for (suffix, value, expected) in [
        ("residual_scale", 1e-4, "is 0.0001, expected between 0.001 and 1000"),
        ("residual_scale", 2e3, "expected between 0.001 and 1000"),
        ("residual_scale", -0.2, "is -0.2, expected a positive number"),
        ("residual_scale", f32::NAN, "is NaN, expected a positive number"),
        ("embedding_scale", f32::INFINITY, "is inf, expected a positive number"),
        ("attention.scale", -1.0, "is -1, expected a positive number"),
        ("logit_scale", 0.0, "is 0, expected a positive number"),
    ] {
        let message = granite().set(&format!("granite.{suffix}"), Value::F32(value)).message();
        assert!(message.contains(expected), "{suffix}: {message}");
    }
}

#[test]
fn granite_without_rotations_has_no_ropes() {
    let finetuned = |yes| granite().set("granite.rope.scaling.finetuned", Value::Bool(yes));
    let ropes = |spec: ModelSpec| match &spec.layers[0].mixer {
        Mixer::Attention(a) => (spec.ropes.len(), a.rope),
        other => panic!("no attention: {other:?}"),
    };
    assert_eq!(ropes(finetuned(true).spec().unwrap()), (1, Some(0)));
    assert_eq!(ropes(finetuned(false).spec().unwrap()), (0, None));
}

#[test]
fn logits_of_granite_are_divided_with_their_bias() {
    let model = granite().add("output.bias", &[260]).set("granite.logit_scale", Value::F32(8.0));
    let gguf = Gguf::from_bytes(model.file()).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, 1024).unwrap();
    for vector in [spec.output_norm.weight, spec.head.bias.unwrap()] {
        assert!(gguf.vector(&vector).unwrap().iter().all(|&x| x == 0.125));
    }
    assert!(gguf.vector(&spec.layers[0].mixer_norm.weight).unwrap().iter().all(|&x| x == 1.0));
}

#[test]
fn keys_of_mistral_3_are_checked() {
    let mistral = || llama().named("mistral3");
    let set = |suffix: &str, value| mistral().set(&format!("mistral3.{suffix}"), value);
    let scale = |model: Spoilt| match &model.spec().unwrap().layers[1].mixer {
        Mixer::Attention(a) => a.position_scale,
        other => panic!("no attention: {other:?}"),
    };
    assert_eq!(scale(mistral()), None);
    assert_eq!(scale(set("attention.temperature_scale", Value::F32(0.0))), None);
    // Without another key the period is the whole context.
    let grows = || set("attention.temperature_scale", Value::F32(0.1));
    let period = |period_tokens| Some(PositionScale { slope: 0.1, period_tokens });
    assert_eq!(scale(grows()), period(131_072));
    let original = "mistral3.rope.scaling.original_context_length";
    assert_eq!(scale(grows().set(original, Value::U32(16_384))), period(16_384));
    let message = grows().set(original, Value::U32(0)).message();
    assert!(message.contains("original_context_length\" is 0, expected 1..="), "{message}");
    for value in [-0.1, f32::NAN, f32::INFINITY] {
        let message = set("attention.temperature_scale", Value::F32(value)).message();
        assert!(message.contains("expected a positive number"), "{message}");
    }
    let yarn = |multiplier: f32| {
        let model = set("rope.scaling.yarn_log_multiplier", Value::F32(multiplier));
        model
            .set("mistral3.rope.scaling.type", Value::String("yarn"))
            .set("mistral3.rope.scaling.factor", Value::F32(16.0))
    };
    let magnitude = |multiplier| yarn(multiplier).spec().unwrap().ropes[0].magnitude;
    let growth = |m: f32| 1.0 + 0.1 * m * 16.0_f32.ln();
    for multiplier in [0.0, 0.5, 1.0, 2.0] {
        let expected = growth(1.0) / growth(multiplier);
        assert!((magnitude(multiplier) - expected).abs() < 1e-6, "{multiplier}");
    }
    assert!(yarn(-1.0).message().contains("yarn_log_multiplier\" is -1, expected a positive"));
}

#[test]
fn other_layers_of_granite_are_named() {
    let message = granite().add("blk.1.ssm_in.weight", &[64, 96]).message();
    assert_eq!(
        message,
        "tensor \"blk.1.ssm_in.weight\": the layer is a Mamba-2 layer, which is not supported in \
         granite"
    );
    let message = granite().drop("blk.0.ffn_gate.weight").add("blk.0.ffn_gate_exps.weight", &[64]);
    assert!(message.message().contains("the layer is a mixture of experts"));
    let message = granite().set("granite.expert_count", Value::U32(8)).message();
    assert!(message.contains("mixtures of experts are not supported"), "{message}");
}

proptest! {
    /// Any number under any key gives an error or a specification, without delay.
    #[test]
    fn no_hyperparameters_panic(
        (model, architecture) in prop::sample::select(vec![
            (Model::LLAMA_3_2_1B, "llama"),
            (Model::QWEN3_0_6B, "qwen3"),
            (Model::GEMMA_3_1B, "gemma3"),
            (Model::LLAMA_3_2_1B, "granite"),
            (Model::LLAMA_3_2_1B, "mistral3"),
        ]),
        changes in prop::collection::vec((prop::sample::select(KEYS.to_vec()), number()), 1..4),
    ) {
        let mut spoilt = spoil(&model).named(architecture);
        for (suffix, value) in changes {
            spoilt.values.retain(|(key, _)| !key.ends_with(suffix));
            spoilt = spoilt.set(&format!("{architecture}.{suffix}"), value);
        }
        if let Ok(spec) = spoilt.spec() {
            prop_assert_eq!((spec.width, spec.vocab), (64, 260));
            prop_assert!(spec.embedding_scale.is_finite() && spec.output_norm.eps > 0.0);
            prop_assert!(spec.layers.iter().all(|layer| layer.mixer_norm.eps.is_finite()));
            prop_assert!(spec.ropes.iter().all(|r| r.frequencies.iter().all(|f| f.is_finite())));
        }
    }
}

/// Keys of all architectures in the property above.
const KEYS: [&str; 23] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "attention.temperature_scale",
    "rope.scaling.yarn_log_multiplier",
];

fn number() -> impl Strategy<Value = Value<'static>> {
    prop_oneof![
        (0..70_u32).prop_map(Value::U32),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<f32>().prop_map(Value::F32),
        (0.0..100.0_f32).prop_map(Value::F32),
    ]
}
