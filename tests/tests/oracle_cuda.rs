//! Every reference model on a GPU: alone, batched, in chunks and token by token. Without a GPU
//! these tests are ignored.

use std::fmt::Write;

use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, KvType, OpenOptions};
use walla_reference_test::gpu_test;
use walla_tests::{Class, Differences, OracleModel, oracle_models};

/// The first GPU, or the GPU that `WALLA_TEST_DEVICE` names.
fn gpu() -> Box<dyn Device> {
    let name = std::env::var("WALLA_TEST_DEVICE").unwrap_or_else(|_| "cuda:0".to_owned());
    CudaBackend::from_env().open(&name, &OpenOptions::default()).expect("the GPU opens")
}

/// The models that the device runs.
fn models() -> impl Iterator<Item = OracleModel> {
    let gpu = gpu();
    oracle_models().into_iter().filter(move |model| model.runs_on(&*gpu))
}

/// Factors on the limits of a model's class, for its largest difference and for the rms: see
/// `benches/results/cuda-oracle.md`.
///
/// Weights of Q4_K and Q5_K are rounded three times: scale and minimum of a block of 32 (products
/// of an f16 and 6 bits), and the resulting weight. The error is 5e-4 of a product of random
/// numbers; rounding rows of x gives 2e-4, and so does rounding such a weight once. The factor of
/// the rms follows from these. The largest of about 100,000 differences depends on the most
/// sensitive row. A recurrent model also keeps the errors of earlier rows in its state.
fn times_the_limits(model: &OracleModel) -> (f64, f64) {
    let types = model.json["tensor_types"].as_object().expect("types are listed");
    let is_rounded = |name: &String| matches!(name.as_str(), "Q4_K" | "Q5_K");
    let is_recurrent = model.json["arch"].as_str().is_some_and(|its| its == "qwen35");
    match types.keys().any(is_rounded) {
        true if is_recurrent => (3.0, 1.5),
        true => (3.0, 1.3),
        false => (1.0, 1.0),
    }
}

/// Rows of x, dequantised weights, keys and values are rounded to f16, sums are f32: the class of
/// such an engine. Prints the differences of each model over all of its sequences.
#[gpu_test]
fn every_model_is_within_half_tolerance() {
    let (mut table, mut beyond) = (String::new(), Vec::new());
    for model in models() {
        let mut all = Differences::default();
        let times = times_the_limits(&model);
        for (context, sequences) in model.by_context() {
            let mut evaluator = model.evaluator(gpu(), 8, context, 64, KvType::F16);
            for (how, differences) in model.compare_all(&mut evaluator, &sequences) {
                beyond.extend(model.within(Class::Half, times, &differences, &how).err());
                all.add_all(&differences);
            }
        }
        let (max_abs, rms, max_regret) = model.tolerance(Class::Half);
        let _ = writeln!(
            table,
            "| {} | {:.4} of {max_abs} | {:.5} of {rms} | {:.5} of {max_regret} |",
            model.name,
            all.max_abs,
            all.rms(),
            all.max_regret,
        );
    }
    println!("| model | max | rms | regret |\n|---|---|---|---|\n{table}");
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
}

/// The batch composition and the split into steps do not change any bit: one token of each per
/// step, seven, or as many as fit; alone or together.
#[gpu_test]
fn steps_of_any_size_and_any_batch_give_the_same_bits() {
    for model in models() {
        for (context, sequences) in model.by_context() {
            let mut evaluator = model.evaluator(gpu(), 8, context, 64, KvType::F16);
            model.assert_same_bits_in_any_batch(&mut evaluator, &sequences, "");
        }
    }
}
