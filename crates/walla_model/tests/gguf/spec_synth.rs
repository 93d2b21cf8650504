//! Synthetic models have the sizes of the published ones and give specifications.

use walla_doubles::synth::{self, DeltaNets, Experts, Gemma4, Mixture, Model, SynthError};
use walla_model::{
    Gguf, ModelSpec,
    gguf::{Integers, Strings},
    spec::{Architecture, Keys, Mixer},
    tokenizer::{EncodeOptions, Tokenizer},
};
use walla_types::{TensorType, TokenId};

/// Layers 3 and 7 have full attention; the last 4 share keys.
const SMALL_GEMMA: Gemma4 = Gemma4 {
    full_interval: 4,
    full_head_dim: 64,
    shared_layers: 4,
    shared_hidden: 768,
    input_width: 32,
};

/// The same structure in small: heads of 32, rows of 256 (or 288, for a model whose rows are not a
/// multiple of 256).
fn small(model: &Model) -> Model {
    let width = if model.width.is_multiple_of(256) { 256 } else { 288 };
    let (heads, kv_heads) = (4, 2);
    Model {
        width,
        layers: 8,
        heads,
        kv_heads,
        head_dim: 32,
        hidden: 512,
        vocab: 300,
        experts: model.experts.map(|e| Experts { count: 4, used: 2, hidden: 64, ..e }),
        delta_nets: model.delta_nets.map(|d| DeltaNets {
            key_heads: 2,
            value_heads: 4,
            head_dim: 64,
            ..d
        }),
        gemma4: model.gemma4.map(|_| SMALL_GEMMA),
        ..model.clone()
    }
}

fn file(model: &Model, mixture: Mixture) -> Gguf {
    Gguf::from_bytes(synth::write(model, mixture, 1, Vec::new()).unwrap()).unwrap()
}

#[test]
fn parameters_are_as_published() {
    let published = [
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("smollm2-135m", 134_515_008),
        ("gemma-3-1b", 999_885_952),
        ("qwen3-30b-a3b", 30_532_122_624),
        // The selection biases of 22 layers are buffers, which publishers do not count.
        ("lfm2-8b-a1b", 8_339_929_856 + 22 * 32),
        // The text part.
        ("qwen3.5-0.8b", 752_393_024),
        ("qwen3.5-2b", 1_881_825_088),
        ("qwen3.5-4b", 4_205_751_296),
        // The text part: 2.28 billion, and 2.35 billion in the table of the layers' inputs.
        ("gemma-4-e2b", 4_628_569_379),
        ("granite-4-350m", 352_379_904),
        // The text part.
        ("ministral-3-3b", 3_429_006_336),
    ];
    assert_eq!(published.len(), Model::ALL.len());
    for (name, parameters) in published {
        assert_eq!(Model::named(name).unwrap().parameters(), parameters, "{name}");
    }
}

#[test]
fn files_are_as_large_as_the_published_ones() {
    // llama.cpp's Llama-3.2-1B-Instruct-Q4_K_M.gguf has 807 694 464 bytes, including 7.8 MB of
    // metadata (mainly merges).
    let bytes = synth::weight_bytes(&Model::LLAMA_3_2_1B, Mixture::Q4KM);
    assert!((799_000_000..801_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn every_shape_in_every_mixture_becomes_a_specification() {
    for model in Model::ALL {
        let model = small(&model);
        for mixture in Mixture::ALL {
            let gguf = file(&model, mixture);
            let spec = ModelSpec::from_gguf(&gguf, 1024)
                .unwrap_or_else(|e| panic!("{} {}: {e}", model.name, mixture.name()));
            assert_eq!(spec.architecture, model.architecture);
            assert_eq!(spec.width, model.width as usize);
            assert_eq!(spec.vocab, model.vocab as usize);
            assert_eq!(spec.layers.len(), model.layers as usize);
            assert_eq!(spec.is_tied(), model.tied);
            assert_eq!(spec.context_train, model.context_train);
            let dense = model.experts.map_or(model.layers, |experts| experts.dense_layers);
            assert_eq!(spec.experts().count(), (model.layers - dense) as usize);
            for (index, layer) in spec.layers.iter().enumerate() {
                if let (Mixer::DeltaNet(d), Some(sizes)) = (&layer.mixer, model.delta_nets) {
                    assert!(!(index as u32 + 1).is_multiple_of(sizes.attention_interval));
                    assert_eq!((d.key_heads, d.value_heads, d.head_dim), (2, 4, 64));
                    let decays = gguf.vector(&d.decay).unwrap();
                    assert!(decays.iter().all(|decay| (-16.1..=-0.06).contains(decay)));
                    continue;
                }
                let Mixer::Attention(a) = &layer.mixer else {
                    let conv = model.convolutions.expect("all layers have attention");
                    assert!(!conv.attention_layers.contains(&(index as u32)));
                    continue;
                };
                let is_full = model.gemma4.is_some() && index % 4 == 3;
                let head_dim = if is_full { 64 } else { 32 };
                assert_eq!((a.heads, a.kv_heads, a.head_dim), (4, 2, head_dim));
                let is_shared = model.gemma4.is_some() && index >= 4;
                let owner = if is_full { 3 } else { 2 };
                assert_eq!(a.keys == Keys::Of(owner), is_shared);
                assert_eq!(layer.input.is_some(), model.gemma4.is_some());
            }
            let bytes = gguf.file_bytes();
            let weights = synth::weight_bytes(&model, mixture);
            assert!(bytes > weights && bytes < weights + 32_000, "{bytes} for {weights}");
        }
    }
}

#[test]
fn tensor_types_follow_the_mixture() {
    let gguf = file(&small(&Model::LLAMA_3_1_8B), Mixture::Q4KM);
    let ty = |name| gguf.tensor(gguf.find_tensor(name).unwrap()).unwrap().ty.unwrap();
    assert_eq!(ty("token_embd.weight"), TensorType::Q4K);
    assert_eq!(ty("output.weight"), TensorType::Q6K);
    assert_eq!(ty("blk.0.attn_v.weight"), TensorType::Q6K);
    assert_eq!(ty("blk.1.attn_v.weight"), TensorType::Q4K);
    assert_eq!(ty("blk.7.ffn_down.weight"), TensorType::Q6K);
    assert_eq!(ty("blk.0.attn_q.weight"), TensorType::Q4K);
    assert_eq!(ty("blk.0.attn_norm.weight"), TensorType::F32);
}

#[test]
fn llama_3_stretches_only_slow_rotations() {
    let spec = ModelSpec::from_gguf(&file(&small(&Model::LLAMA_3_2_1B), Mixture::Q8_0), 1).unwrap();
    let own = |i: usize| 500_000_f32.powf(-(2.0 * i as f32) / 32.0);
    let ratio: Vec<f32> =
        spec.ropes[0].frequencies.iter().enumerate().map(|(i, f)| own(i) / f).collect();
    assert!((ratio[0] - 1.0).abs() < 1e-5, "{ratio:?}");
    assert!((ratio[15] - 32.0).abs() < 1e-3, "{ratio:?}");
    assert!(ratio.windows(2).all(|pair| pair[0] <= pair[1] + 1e-5), "{ratio:?}");
}

#[test]
fn the_same_seed_gives_the_same_file() {
    let model = small(&Model::SMOLLM2_135M);
    let write = |seed| synth::write(&model, Mixture::Q4KM, seed, Vec::new()).unwrap();
    assert_eq!(write(3), write(3));
    assert_ne!(write(3), write(4));
}

#[test]
fn the_vocabulary_ends_in_control_tokens() {
    let gguf = file(&small(&Model::QWEN3_0_6B), Mixture::Q8_0);
    let tokens: Strings<'_> = gguf.require("tokenizer.ggml.tokens").unwrap();
    let kinds: Integers<'_> = gguf.require("tokenizer.ggml.token_type").unwrap();
    assert_eq!((tokens.len(), kinds.len()), (300, 300));
    assert_eq!((tokens.get(299), kinds.get(299)), (Some("<|im_end|>"), Some(3)));
    assert_eq!((tokens.get(256), kinds.get(256)), (Some("Ġa"), Some(1)));
    assert_eq!(gguf.require::<u32>("tokenizer.ggml.eos_token_id"), Ok(299));
}

/// A conversation is encoded again for every reply. Earlier speech must be encoded to the same
/// tokens, otherwise it is evaluated again.
#[test]
fn decoded_words_are_encoded_to_the_same_tokens() {
    for shape in [Model::QWEN3_0_6B, Model::LLAMA_3_2_1B] {
        let model = Model { vocab: 20_000, ..small(&shape) };
        let tokenizer = Tokenizer::from_gguf(&file(&model, Mixture::Q8_0)).unwrap();
        let words: Vec<TokenId> = (256..model.vocab - 3).map(TokenId).collect();
        let said = tokenizer.decode(&words).unwrap();
        assert_eq!(tokenizer.encode(&said, EncodeOptions::default()).unwrap(), words);
    }
}

#[test]
fn impossible_models_are_refused() {
    let refusal = |model: Model| {
        let error = synth::write(&model, Mixture::F16, 1, Vec::new()).unwrap_err();
        assert!(matches!(error, SynthError::Model(_)), "{error}");
        error.to_string()
    };
    let fine = small(&Model::LLAMA_3_2_1B);
    let phi = Model { architecture: Architecture::Phi3, ..fine.clone() };
    assert_eq!(refusal(phi), "this model is impossible: its architecture cannot be synthesised");
    refusal(Model { vocab: 258, ..fine.clone() });
    refusal(Model { kv_heads: 3, ..fine.clone() });
    refusal(Model { layers: 0, ..fine.clone() });
    refusal(Model { head_dim: 15, ..fine.clone() });
    let experts = Some(Experts { count: 4, used: 2, hidden: 64, dense_layers: 0 });
    refusal(Model { experts, ..fine.clone() });
    let moe = small(&Model::QWEN3_30B_A3B);
    refusal(Model { experts: None, ..moe.clone() });
    refusal(Model { convolutions: Model::LFM2_8B_A1B.convolutions, ..moe.clone() });
    let experts = experts.map(|e| Experts { used: 5, ..e });
    refusal(Model { experts, ..moe });
    let delta = small(&Model::QWEN3_5_0_8B);
    refusal(Model { delta_nets: None, ..delta.clone() });
    let delta_nets = delta.delta_nets.map(|d| DeltaNets { key_heads: 3, ..d });
    refusal(Model { delta_nets, ..delta });
    let gemma = small(&Model::GEMMA_4_E2B);
    refusal(Model { gemma4: None, ..gemma.clone() });
    refusal(Model { window: None, ..gemma.clone() });
    for bad in [
        Gemma4 { full_interval: 0, ..SMALL_GEMMA },
        Gemma4 { full_interval: 1, ..SMALL_GEMMA },
        Gemma4 { shared_layers: 5, ..SMALL_GEMMA },
        Gemma4 { shared_layers: 9, ..SMALL_GEMMA },
        Gemma4 { shared_hidden: 0, ..SMALL_GEMMA },
        Gemma4 { full_head_dim: 0, ..SMALL_GEMMA },
    ] {
        refusal(Model { gemma4: Some(bad), ..gemma.clone() });
    }
    // Rows that are not whole blocks are stored in a type that accepts them; the minimum vocabulary
    // is complete.
    let odd = Model { width: 48, vocab: 259, ..fine };
    assert_eq!(ModelSpec::from_gguf(&file(&odd, Mixture::Q4KM), 1).map(|s| s.width), Ok(48));
}
