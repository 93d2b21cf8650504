//! The reference models give the specifications in their descriptions.

use std::collections::HashSet;
use std::f64::consts::PI;
use std::fs;

use walla_reference_test::{has_reference_data, reference_test};

use crate::reference_data::{data, models};
use walla_model::{
    Gguf, ModelSpec, SpecError,
    spec::{
        Activation, Architecture, Attention, DenseFeedForward, ExpertScore, Experts, FeedForward,
        Keys, Matrix, Mixer, PositionScale, RopePairs, ShortConv, Vector,
    },
};

/// The specification of a reference model.
fn spec(name: &str, context_tokens: u32) -> (Gguf, ModelSpec) {
    spec_of(&format!("models/{name}.gguf"), context_tokens)
}

fn spec_of(path: &str, context_tokens: u32) -> (Gguf, ModelSpec) {
    let gguf = Gguf::open(data(path)).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, context_tokens).unwrap();
    (gguf, spec)
}

fn attention(spec: &ModelSpec, layer: usize) -> &Attention {
    match &spec.layers[layer].mixer {
        Mixer::Attention(attention) => attention,
        other => panic!("layer {layer} has no attention: {other:?}"),
    }
}

fn convolution(spec: &ModelSpec, layer: usize) -> &ShortConv {
    match &spec.layers[layer].mixer {
        Mixer::ShortConv(convolution) => convolution,
        other => panic!("layer {layer} has no convolution: {other:?}"),
    }
}

fn dense(spec: &ModelSpec, layer: usize) -> &DenseFeedForward {
    match &spec.layers[layer].feed_forward {
        FeedForward::Dense(dense) => dense,
        FeedForward::Experts(_) => panic!("layer {layer} has experts"),
    }
}

fn experts(spec: &ModelSpec, layer: usize) -> &Experts {
    match &spec.layers[layer].feed_forward {
        FeedForward::Experts(experts) => experts,
        FeedForward::Dense(_) => panic!("layer {layer} is dense"),
    }
}

fn close(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-6 * b.abs()
}

#[test]
fn every_reference_model_matches_its_description() {
    let mut architectures = HashSet::new();
    for path in models("gguf") {
        let text = fs::read_to_string(path.with_extension("json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let number = |key: &str| json[key].as_u64().unwrap() as usize;
        let gguf = Gguf::open(&path).unwrap();
        match Architecture::from_name(json["arch"].as_str().unwrap()) {
            Some(architecture) => architectures.insert(architecture),
            None => {
                let error = ModelSpec::from_gguf(&gguf, 1024).unwrap_err();
                assert!(matches!(error, SpecError::Architecture { .. }), "{path:?}: {error}");
                continue;
            }
        };
        let spec = ModelSpec::from_gguf(&gguf, 1024).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert_eq!(spec.architecture.name(), json["arch"], "{path:?}");
        assert_eq!(spec.vocab, number("n_vocab"), "{path:?}");
        assert_eq!(spec.width, number("n_embd"), "{path:?}");
        assert_eq!(spec.layers.len(), number("n_layer"), "{path:?}");
        assert_eq!(spec.is_tied(), gguf.find_tensor("output.weight").is_none(), "{path:?}");
        let kv_heads = json["n_head_kv"].as_array().unwrap();
        for (index, (layer, kv_heads)) in spec.layers.iter().zip(kv_heads).enumerate() {
            let kv_heads = kv_heads.as_u64().unwrap() as usize;
            match &layer.mixer {
                Mixer::ShortConv(_) | Mixer::DeltaNet(_) => assert_eq!(kv_heads, 0, "{path:?}"),
                Mixer::Attention(a) => {
                    assert_eq!(a.kv_heads, kv_heads, "{path:?}");
                    assert_eq!(a.heads, number("n_head"), "{path:?}");
                    let head_dim = json["head_dims"][index].as_u64();
                    let head_dim = head_dim.map_or(number("head_dim"), |dim| dim as usize);
                    assert_eq!(a.head_dim, head_dim, "{path:?}");
                    assert_eq!(a.query.matrix.rows, a.heads * a.head_dim, "{path:?}");
                    assert_eq!(a.query.matrix.cols, spec.width, "{path:?}");
                    let scale = match spec.architecture {
                        Architecture::Granite => 0.2,
                        Architecture::Gemma4 => 1.0,
                        _ => (a.head_dim as f32).powf(-0.5),
                    };
                    assert!(close(a.scale, scale), "{path:?}");
                    let grows = spec.architecture == Architecture::Mistral3;
                    assert_eq!(a.position_scale.is_some(), grows, "{path:?}");
                }
            }
            let rows = match &layer.feed_forward {
                FeedForward::Dense(dense) => dense.down.matrix,
                FeedForward::Experts(experts) => {
                    assert_eq!(experts.count, number("n_expert"), "{path:?}");
                    assert_eq!(experts.used, number("n_expert_used"), "{path:?}");
                    assert_eq!(experts.down.rows, experts.count * spec.width, "{path:?}");
                    experts.down
                }
            };
            assert_eq!(gguf.matrix_bytes(&rows).unwrap().len(), {
                rows.rows * rows.ty.row_bytes(rows.cols).unwrap()
            });
            let norm = gguf.vector(&layer.mixer_norm.weight).unwrap();
            assert_eq!(norm.len(), spec.width, "{path:?}");
            assert!(norm.iter().all(|x| x.is_finite()), "{path:?}");
        }
    }
    // SmolLM 3, Qwen 3.5, Gemma 4 and the mixtures of experts are not in this repository. Encoders
    // have other tests (`embedding.rs`).
    let decoders = Architecture::ALL.iter().filter(|architecture| !architecture.is_encoder());
    let known = decoders.count() - if has_reference_data!() { 0 } else { 6 };
    assert_eq!(architectures.len(), known, "{architectures:?}");
}

#[test]
fn llama_3_scales_its_rope_frequencies() {
    let (gguf, spec) = spec("llama32-q4_0", 1024);
    let index = gguf.find_tensor("rope_freqs.weight").unwrap();
    let raw = gguf.tensor_bytes(index).unwrap();
    let [rope] = &spec.ropes[..] else { panic!("{} ropes", spec.ropes.len()) };
    assert_eq!(
        (rope.pairs, rope.magnitude, rope.frequencies.len()),
        (RopePairs::Interleaved, 1.0, 32)
    );
    let mut divided = false;
    for (i, (found, factor)) in rope.frequencies.iter().zip(raw.as_chunks().0).enumerate() {
        let factor = f32::from_le_bytes(*factor);
        divided |= factor != 1.0;
        let expected = 500_000_f64.powf(-(2.0 * i as f64) / 64.0) / f64::from(factor);
        assert!(close(*found, expected as f32), "{i}: {found} is not {expected}");
    }
    assert!(divided);
    assert_eq!((attention(&spec, 0).head_dim, attention(&spec, 0).heads), (64, 4));
}

#[reference_test]
fn llama_2_does_not_scale_rope_frequencies() {
    let (_, spec) = spec("llama2-f16", 1024);
    assert_eq!(spec.architecture, Architecture::Llama);
    assert_eq!(spec.ropes[0].frequencies[0], 1.0);
    assert!(close(spec.ropes[0].frequencies[16], 10_000_f32.powf(-0.5)));
    assert_eq!((spec.embedding_scale, spec.context_train), (1.0, 2048));
    assert_eq!(dense(&spec, 0).activation, Activation::Silu);
    assert_eq!(spec.name.as_deref(), Some("fixture 101"));
    assert_eq!(spec.kv_numbers_per_token(), 2 * 2 * 2 * 64);
}

#[test]
fn qwen_2_has_biases_and_qwen_3_head_norms() {
    let (_, two) = spec("qwen2-q8_0", 1024);
    let (_, three) = spec("qwen3-f16", 1024);
    // The heads together are wider than the model.
    assert_eq!(attention(&three, 0).head_dim * attention(&three, 0).heads, 4 * three.width);
    let (two, three) = (attention(&two, 1), attention(&three, 1));
    let keys = two.own_keys().unwrap();
    assert!(two.query.bias.is_some() && keys.key.bias.is_some() && keys.value.bias.is_some());
    assert!(two.output.bias.is_none() && two.query_norm.is_none() && keys.key_norm.is_none());
    assert!(three.query.bias.is_none());
    let (query, key) = (three.query_norm.unwrap(), three.own_keys().unwrap().key_norm.unwrap());
    assert_eq!((query.weight.len, key.weight.len), (64, 64));
    assert_ne!(query.weight.tensor, key.weight.tensor);
}

#[test]
fn gemma_3_alternates_windows_and_bases() {
    let (_, spec) = spec("gemma3-q8_0", 1024);
    assert!(close(spec.embedding_scale, 8.0));
    for layer in 0..6 {
        let a = attention(&spec, layer);
        let rope = &spec.ropes[a.rope.unwrap()];
        let (window, second) = if layer == 5 {
            (None, 1e6_f64.powf(-2.0 / 256.0) / 8.0)
        } else {
            (Some(24), 1e4_f64.powf(-2.0 / 256.0))
        };
        assert_eq!(a.window, window);
        assert!(close(rope.frequencies[1], second as f32), "layer {layer}");
        assert_eq!(rope.pairs, RopePairs::Halves);
        assert!(a.query_norm.is_some() && a.own_keys().unwrap().key_norm.is_some());
        assert!(spec.layers[layer].mixer_post_norm.is_some());
        assert!(spec.layers[layer].feed_forward_post_norm.is_some());
        assert_eq!(dense(&spec, layer).activation, Activation::GeluTanh);
    }
}

#[reference_test]
fn smollm_3_has_no_positions_in_every_fourth_layer() {
    let (_, spec) = spec("smollm3-f16", 1024);
    let ropes: Vec<_> = (0..5).map(|layer| attention(&spec, layer).rope).collect();
    assert_eq!(ropes, [Some(0), Some(0), Some(0), None, Some(0)]);
    assert_eq!(spec.ropes[0].pairs, RopePairs::Interleaved);
}

#[reference_test]
fn phi_3_splits_fused_matrices_by_rows() {
    let (gguf, spec) = spec("phi3-f16", 1024);
    let a = attention(&spec, 1);
    let own = a.own_keys().unwrap();
    let rows = [&a.query, &own.key, &own.value].map(|l| (l.matrix.first_row, l.matrix.rows));
    assert_eq!(rows, [(0, 192), (192, 192), (384, 192)]);
    assert_eq!(a.query.matrix.tensor, own.value.matrix.tensor);
    let f = dense(&spec, 1);
    assert_eq!((f.gate.matrix.first_row, f.gate.matrix.rows), (0, 64));
    assert_eq!((f.up.matrix.first_row, f.up.matrix.rows), (64, 64));
    assert_eq!(f.gate.matrix.tensor, f.up.matrix.tensor);
    assert_eq!(a.window, None);
    let all = gguf.tensor_bytes(own.key.matrix.tensor).unwrap();
    assert_eq!(gguf.matrix_bytes(&own.key.matrix).unwrap(), &all[192 * 384..2 * 192 * 384]);
}

#[test]
fn longrope_chooses_by_the_configured_context() {
    let (gguf, long) = spec("phi3-longrope-q8_0", 1024);
    let (_, short) = spec("phi3-longrope-q8_0", 512);
    for (spec, tensor) in
        [(&long, "rope_factors_long.weight"), (&short, "rope_factors_short.weight")]
    {
        let raw = gguf.tensor_bytes(gguf.find_tensor(tensor).unwrap()).unwrap();
        let rope = &spec.ropes[0];
        assert_eq!(rope.frequencies.len(), 24);
        assert!(close(rope.magnitude, 1.105_541_6));
        for (i, (found, factor)) in rope.frequencies.iter().zip(raw.as_chunks().0).enumerate() {
            let factor = f64::from(f32::from_le_bytes(*factor));
            let expected = 10_000_f64.powf(-(2.0 * i as f64) / 48.0) / factor;
            assert!(close(*found, expected as f32), "{tensor} {i}: {found} is not {expected}");
        }
    }
    assert_ne!(long.ropes, short.ropes);
}

#[test]
fn lfm_2_mixes_convolutions_and_attention() {
    let (gguf, spec) = spec("lfm2-q8_0", 1024);
    let c = convolution(&spec, 0);
    assert_eq!((c.width, c.taps, c.kernel.len), (128, 3, 384));
    assert_eq!(
        c.input.map(|l| (l.matrix.first_row, l.matrix.rows)),
        [(0, 128), (128, 128), (256, 128)]
    );
    assert!(attention(&spec, 1).query_norm.is_some());
    assert!(spec.is_recurrent());
    assert_eq!(spec.state_numbers_per_sequence(), 2 * 128 * 2);
    assert_eq!(spec.kv_numbers_per_token(), 2 * 64);
    assert_eq!(gguf.tensor(spec.output_norm.weight.tensor).unwrap().name, "token_embd_norm.weight");
}

/// The formulas of the builder, with the numbers of the file: e 12, r 0.22, s 2, eps 1e-4.
#[test]
fn granite_scales_embedding_scores_residuals_and_logits() {
    let (gguf, spec) = spec("granite-q8_0", 1024);
    assert!(close(spec.embedding_scale, 12.0 / 0.22));
    assert_eq!((attention(&spec, 0).scale, attention(&spec, 0).rope), (0.2, Some(0)));
    assert_eq!(spec.ropes[0].pairs, RopePairs::Interleaved);
    let layers = spec.layers.iter();
    let norms = layers.flat_map(|layer| [layer.mixer_norm, layer.feed_forward_norm]);
    for norm in norms.chain([spec.output_norm]) {
        assert!(close(norm.eps, 1e-4 / (0.22 * 0.22)), "{}", norm.eps);
    }
    let whole = Vector { scale: 1.0, ..spec.output_norm.weight };
    assert_eq!((spec.output_norm.weight.scale, spec.layers[0].mixer_norm.weight.scale), (0.5, 1.0));
    let [half, whole] = [&spec.output_norm.weight, &whole].map(|v| gguf.vector(v).unwrap());
    assert_eq!(half, whole.iter().map(|x| x / 2.0).collect::<Vec<_>>());
}

/// YaRN with the file's numbers: 64 dimensions, base 1e6, factor 16, context 48. Dimension 0 turns
/// 32 times in a context of 201 tokens, so the ramp begins at 0; dimension 4 turns once.
#[test]
fn mistral_3_extends_its_context() {
    let (_, spec) = spec("mistral3-q8_0", 1024);
    let [rope] = &spec.ropes[..] else { panic!("{} ropes", spec.ropes.len()) };
    assert_eq!((rope.pairs, rope.frequencies.len()), (RopePairs::Interleaved, 32));
    // `1 + 0.1 ln 16` of YaRN and of the model cancel out.
    assert_eq!(rope.magnitude, 1.0);
    let turns = |turns: f64| 64.0 * (48.0 / (2.0 * PI * turns)).ln() / (2.0 * 1e6_f64.ln());
    let (low, high) = (turns(32.0).floor().max(0.0), turns(1.0).ceil());
    assert_eq!((low, high), (0.0, 5.0));
    for (i, &found) in rope.frequencies.iter().enumerate() {
        let own = 1e6_f64.powf(-(2.0 * i as f64) / 64.0);
        let ramp = (i as f64 / 5.0).min(1.0);
        let expected = own * (1.0 - ramp) + own / 16.0 * ramp;
        assert!(close(found, expected as f32), "{i}: {found} is not {expected}");
    }
    let a = attention(&spec, 2);
    assert_eq!((a.heads * a.head_dim, spec.width), (256, 128));
    let growth = PositionScale { slope: 0.25, period_tokens: 48 };
    assert_eq!(a.position_scale, Some(growth));
}

#[reference_test]
fn qwen_3_moe_has_experts_in_every_layer() {
    let (gguf, spec) = spec_of("models_2026/qwen3moe-q8_0.gguf", 512);
    assert_eq!((spec.architecture, spec.layers.len()), (Architecture::Qwen3Moe, 3));
    assert_eq!(spec.experts().count(), 3);
    assert!(attention(&spec, 0).query_norm.is_some());
    let e = experts(&spec, 2);
    assert_eq!((e.count, e.used, e.score), (8, 3, ExpertScore::Softmax));
    assert_eq!((e.activation, e.selection_bias), (Activation::Silu, None));
    let sides = |m: &Matrix| (m.first_row, m.rows, m.cols);
    assert_eq!(sides(&e.router), (0, 8, 128));
    assert!(!e.router.ty.is_quantized());
    assert_eq!(sides(&e.gate), (0, 8 * e.hidden, 128));
    assert_eq!(sides(&e.up), (0, 8 * e.hidden, 128));
    assert_eq!(sides(&e.down), (0, 8 * 128, e.hidden));
    for matrix in [&e.router, &e.gate, &e.up, &e.down] {
        let bytes = matrix.rows * matrix.ty.row_bytes(matrix.cols).unwrap();
        assert_eq!(gguf.matrix_bytes(matrix).unwrap().len(), bytes);
    }
    assert!(!spec.is_tied());
}

#[reference_test]
fn lfm_2_moe_begins_with_dense_layers() {
    let (gguf, spec) = spec_of("models_2026/lfm2moe-f16.gguf", 512);
    assert_eq!(spec.architecture, Architecture::Lfm2Moe);
    for layer in 0..6 {
        assert_eq!(matches!(spec.layers[layer].mixer, Mixer::Attention(_)), layer % 3 == 2);
        let is_dense = matches!(spec.layers[layer].feed_forward, FeedForward::Dense(_));
        assert_eq!(is_dense, layer < 2);
    }
    let e = experts(&spec, 2);
    assert_eq!((e.count, e.used, e.score), (8, 2, ExpertScore::Sigmoid));
    assert_ne!(dense(&spec, 1).gate.matrix.rows, e.hidden);
    let bias = gguf.vector(&e.selection_bias.unwrap()).unwrap();
    assert!(bias.len() == 8 && bias.iter().any(|b| *b != 0.0));
    assert!(spec.is_tied() && spec.is_recurrent());
}

#[reference_test]
fn qwen_3_5_has_delta_net_and_gated_attention() {
    let (gguf, spec) = spec_of("models_2026/qwen35-mtp-q8_0.gguf", 512);
    assert_eq!((spec.architecture, spec.layers.len()), (Architecture::Qwen35, 4));
    for layer in &spec.layers[..3] {
        let Mixer::DeltaNet(delta) = &layer.mixer else { panic!("no DeltaNet") };
        assert_eq!(
            (delta.key_heads, delta.value_heads, delta.head_dim, delta.taps),
            (1, 2, 128, 4)
        );
        assert_eq!((delta.channels(), delta.input.matrix.rows), (512, 512));
        let decays = gguf.vector(&delta.decay).unwrap();
        assert!(decays.len() == 2 && decays.iter().all(|decay| *decay < 0.0));
        assert_eq!((delta.kernel.len, delta.norm.weight.len), (4 * 512, 128));
    }
    assert_eq!(spec.state_numbers_per_sequence(), 3 * (2 * 128 * 128 + 3 * 512));
    assert!(spec.is_recurrent());
    // Of each head, the first rows are queries and the others gates.
    let a = attention(&spec, 3);
    let gate = a.gate.unwrap().matrix;
    let query = a.query.matrix;
    assert_eq!((query.first_row, query.rows, gate.first_row, gate.rows), (0, 128, 64, 128));
    assert_eq!(query.bands, gate.bands);
    let all = gguf.tensor_bytes(query.tensor).unwrap();
    let row = query.ty.row_bytes(query.cols).unwrap();
    let [queries, gates] = [query, gate].map(|half| gguf.matrix_bytes(&half).unwrap().into_owned());
    let [first, second] = [&all[..128 * row], &all[128 * row..]];
    assert_eq!(queries, [&first[..64 * row], &second[..64 * row]].concat());
    assert_eq!(gates, [&first[64 * row..], &second[64 * row..]].concat());
    // Pieces that cross a band.
    let data = gguf.matrix_data(&gate).unwrap();
    let mut buffer = Vec::new();
    let range = 63 * row + 5..65 * row - 3;
    assert_eq!(data.read(range.clone(), &mut buffer).unwrap(), &gates[range]);
    assert!(data.read(0..gates.len() + 1, &mut buffer).is_err());
    assert_eq!(spec.ropes[0].frequencies.len(), 8);
}

#[reference_test]
fn gemma_4_e2b_shares_keys_and_has_inputs_of_layers() {
    let (gguf, spec) = spec_of("models_2026/gemma4-e2b-q8_0.gguf", 512);
    assert_eq!((spec.architecture, spec.layers.len()), (Architecture::Gemma4, 9));
    let owner = |layer| match attention(&spec, layer).keys {
        Keys::Own(_) => None,
        Keys::Of(owner) => Some(owner),
    };
    let owners: Vec<_> = (0..9).map(owner).collect();
    assert_eq!(owners[..6], [None; 6]);
    assert_eq!(owners[6..], [Some(4), Some(4), Some(5)]);
    assert_eq!(spec.kv_numbers_per_token(), 2 * (4 * 64 + 2 * 128));
    let hidden: Vec<_> = (0..9).map(|layer| dense(&spec, layer).gate.matrix.rows).collect();
    assert_eq!(hidden, [64, 64, 64, 64, 64, 64, 128, 128, 128]);
    let [full, local] = &spec.ropes[..] else { panic!("{} ropes", spec.ropes.len()) };
    assert_eq!((full.frequencies.len(), local.frequencies.len()), (64, 32));
    assert!(close(full.frequencies[15], 1e6_f64.powf(-30.0 / 128.0) as f32));
    assert!(full.frequencies[16..].iter().all(|frequency| *frequency < 1e-29));
    assert!(close(local.frequencies[31], 1e4_f64.powf(-62.0 / 64.0) as f32));
    for layer in 0..9 {
        let a = attention(&spec, layer);
        let is_full = layer % 3 == 2;
        assert_eq!(a.window, (!is_full).then_some(32));
        assert_eq!((a.rope, a.scale), (Some(usize::from(!is_full)), 1.0));
        let own = a.own_keys();
        assert!(own.is_none_or(|own| own.value_norm_eps == Some(spec.output_norm.eps)));
        assert!(own.is_none_or(|own| own.key != own.value && own.key_norm.is_some()));
        let scale = spec.layers[layer].scale;
        assert!(scale > 0.0 && scale != 1.0);
        let input = spec.layers[layer].input.unwrap();
        assert_eq!((input.gate.matrix.rows, input.output.matrix.cols), (32, 32));
    }
    let inputs = spec.layer_inputs.unwrap();
    assert_eq!((inputs.width, inputs.table.rows, inputs.table.cols), (32, 352, 9 * 32));
    assert_eq!((inputs.projection.matrix.rows, inputs.table_scale), (9 * 32, 4.0));
    assert!(close(inputs.norm.eps, 128.0 * spec.output_norm.eps));
    assert!(close(inputs.norm.weight.scale, 0.5_f32.sqrt()));
    assert_eq!(gguf.vector(&inputs.norm.weight).unwrap().len(), 32);
    assert!(close(spec.embedding_scale, 128_f32.sqrt()));
    assert_eq!((spec.soft_cap, spec.suppressed.len()), (Some(10.0), 0));
    assert!(spec.is_tied());
}

#[reference_test]
fn gemma_4_12b_uses_keys_as_values_in_full_layers() {
    let (_, spec) = spec_of("models_2026/gemma4-12b-q8_0.gguf", 512);
    assert!(spec.layer_inputs.is_none() && spec.layers.iter().all(|l| l.input.is_none()));
    let own: Vec<_> = (0..6).map(|layer| *attention(&spec, layer).own_keys().unwrap()).collect();
    assert!(own[..5].iter().all(|own| own.key != own.value));
    assert_eq!(own[5].key, own[5].value);
    let heads: Vec<_> = (0..6).map(|layer| attention(&spec, layer).kv_heads).collect();
    assert_eq!(heads, [2, 2, 2, 2, 2, 1]);
    assert_eq!(spec.kv_numbers_per_token(), 2 * (5 * 2 * 64 + 128));
}

#[reference_test]
fn qwen_3_5_moe_has_a_shared_expert() {
    let (_, spec) = spec_of("models_2026/qwen35moe-q8_0.gguf", 512);
    assert_eq!(spec.experts().count(), 4);
    let e = experts(&spec, 0);
    let shared = e.shared.unwrap();
    assert_eq!((e.count, e.used, e.hidden, shared.network.gate.matrix.rows), (8, 2, 32, 64));
    assert_eq!(shared.weight.unwrap().matrix.rows, 1);
}
