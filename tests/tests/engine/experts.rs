//! Synthetic models with mixtures of experts or with layers of several kinds, from file to logits.
//! The models of the reference data are in `oracle_cpu.rs`.

use std::fmt::Display;
use std::ops::ControlFlow;

use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, KvType, OpenOptions};
use walla_doubles::synth::{self, Experts, Gemma4, Mixture, Model};
use walla_exec::{Evaluator, ExecError, ExecOptions, Executor};
use walla_model::{Gguf, ModelSpec};
use walla_reference_test::gpu_test;
use walla_tests::bits;
use walla_types::{MAX_PENALTY_WINDOW, SeqId, TokenId};

const SEQUENCES: u32 = 3;
const VOCAB: u32 = 300;

/// The layers and the choice of experts of a published model, in small. Of Gemma 4, every second
/// layer has full attention, and the last two layers share keys.
fn small(model: &Model) -> Model {
    let experts = Experts { count: 8, used: 3, hidden: 64, dense_layers: 1 };
    let dense_layers = model.experts.map_or(0, |experts| experts.dense_layers.min(1));
    Model {
        width: 64,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        hidden: 96,
        vocab: VOCAB,
        experts: model.experts.map(|_| Experts { dense_layers, ..experts }),
        gemma4: model.gemma4.map(|_| Gemma4 {
            full_interval: 2,
            full_head_dim: 64,
            shared_layers: 2,
            shared_hidden: 192,
            input_width: 32,
        }),
        ..model.clone()
    }
}

fn cpu(variant: Variant) -> Box<dyn Device> {
    let options = CpuOptions { variant: Some(variant), threads: Some(2), ..CpuOptions::default() };
    Box::new(CpuDevice::new(options).expect("the variant is supported"))
}

fn load(device: Box<dyn Device>, model: &Model, mixture: Mixture) -> Result<Executor, ExecError> {
    let file = synth::write(model, mixture, 1, Vec::new()).expect("the model is possible");
    let file = Gguf::from_bytes(file).expect("the file is valid");
    let spec = ModelSpec::from_gguf(&file, 64).expect("the model is supported");
    let options = ExecOptions {
        max_sequences: SEQUENCES,
        context_tokens: 64,
        max_rows: 32,
        max_outputs: 32,
        max_logits_rows: 32,
        kv_type: KvType::F16,
        ..ExecOptions::default()
    };
    let go_on = &mut |_| ControlFlow::Continue(());
    Executor::load(device, &file, &spec, options.with_full_pages(), go_on)
}

fn tokens(sequence: u32) -> Vec<TokenId> {
    (0..20 + sequence).map(|i| TokenId((i * 37 + sequence * 101) % VOCAB)).collect()
}

/// Logits of sequences that are evaluated together, `step` tokens of each at once.
fn logits(evaluator: &mut Evaluator, sequences: &[u32], step: usize) -> Vec<Vec<f32>> {
    let all: Vec<Vec<TokenId>> = sequences.iter().map(|s| tokens(*s)).collect();
    let mut logits = vec![Vec::new(); all.len()];
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    for start in (0..longest).step_by(step) {
        let part = |(place, tokens): (usize, &'_ Vec<TokenId>)| {
            let end = tokens.len().min(start + step);
            (start < end).then_some((place, start..end))
        };
        let parts: Vec<_> = all.iter().enumerate().filter_map(part).collect();
        let inputs: Vec<_> = parts
            .iter()
            .map(|(place, range)| (SeqId(*place as u32), &all[*place][range.clone()]))
            .collect();
        let mut rows = vec![Vec::new(); inputs.len()];
        let sink = &mut |input: usize, token: usize, row: &[f32]| {
            rows[input].push((token, row.to_vec()));
        };
        evaluator.append(&inputs, sink).expect("the batch is valid");
        for ((place, _), mut rows) in parts.into_iter().zip(rows) {
            rows.sort_by_key(|(token, _)| *token);
            logits[place].extend(rows.into_iter().flat_map(|(_, row)| row));
        }
    }
    for place in 0..all.len() as u32 {
        evaluator.sequences().remove(SeqId(place)).expect("a sequence can be forgotten");
    }
    logits
}

fn variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.iter().copied().filter(|variant| variant.score().is_some())
}

const SHAPES: [Model; 3] = [Model::QWEN3_30B_A3B, Model::LFM2_8B_A1B, Model::GEMMA_4_E2B];

/// With f16 weights no activation is rounded, so that no variant chooses another expert.
#[test]
fn every_variant_agrees_with_the_scalar_one() {
    for shape in SHAPES {
        let run = |variant| {
            let executor = load(cpu(variant), &small(&shape), Mixture::F16).expect("it loads");
            let mut evaluator = Evaluator::new(executor).expect("capacities make a ledger");
            logits(&mut evaluator, &[0, 1, 2], 7)
        };
        let wanted = run(Variant::Scalar);
        for variant in variants() {
            for (got, wanted) in run(variant).iter().flatten().zip(wanted.iter().flatten()) {
                assert!((got - wanted).abs() < 0.02, "{} {variant}: {got} {wanted}", shape.name);
            }
        }
    }
}

/// `on` names the device in messages.
fn assert_same_bits_in_any_batch(
    device: Box<dyn Device>,
    shape: &Model,
    mixture: Mixture,
    on: impl Display,
) {
    let executor = load(device, &small(shape), mixture).expect("it loads");
    let mut evaluator = Evaluator::new(executor).expect("capacities make a ledger");
    let alone: Vec<_> =
        (0..SEQUENCES).map(|s| bits(&logits(&mut evaluator, &[s], 64)[0])).collect();
    for step in [1, 5, 64] {
        let together = logits(&mut evaluator, &[0, 1, 2], step);
        for (alone, together) in alone.iter().zip(&together) {
            let how = format!("{} {} {on}: {step} tokens at once", shape.name, mixture.name());
            assert!(*alone == bits(together), "{how}");
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_in_any_batch() {
    for shape in SHAPES {
        let mixtures = [Mixture::F16, Mixture::Q8_0, Mixture::Mxfp4];
        for (variant, mixture) in variants().flat_map(|v| mixtures.map(|mixture| (v, mixture))) {
            assert_same_bits_in_any_batch(cpu(variant), &shape, mixture, variant);
        }
    }
}

/// Layers that share keys have no pages.
#[test]
fn shared_keys_take_no_memory() {
    let bytes = |gemma4: Gemma4| {
        let model = Model { gemma4: Some(gemma4), ..small(&Model::GEMMA_4_E2B) };
        let executor = load(cpu(Variant::Scalar), &model, Mixture::F16).expect("it loads");
        executor.device().memory().cache_bytes
    };
    let gemma = small(&Model::GEMMA_4_E2B).gemma4.expect("it has them");
    let [two, four] = [2, 0].map(|shared_layers| bytes(Gemma4 { shared_layers, ..gemma }));
    // The other bytes are the sequences' tokens.
    let tokens = u64::from(SEQUENCES) * 4 * u64::from(1 + MAX_PENALTY_WINDOW);
    assert_eq!(four - tokens, 2 * (two - tokens));
}

/// The first GPU, or the GPU that `WALLA_TEST_DEVICE` names.
fn gpu() -> Box<dyn Device> {
    let name = std::env::var("WALLA_TEST_DEVICE").unwrap_or_else(|_| "cuda:0".to_owned());
    CudaBackend::from_env().open(&name, &OpenOptions::default()).expect("it opens")
}

/// The types that a GPU has kernels for, and two in the layout of another.
#[gpu_test]
fn a_gpu_gives_the_same_bits_in_any_batch() {
    for shape in SHAPES {
        for mixture in [Mixture::F16, Mixture::Q8_0, Mixture::Q4KM, Mixture::Mxfp4] {
            assert_same_bits_in_any_batch(gpu(), &shape, mixture, "GPU");
        }
    }
}
