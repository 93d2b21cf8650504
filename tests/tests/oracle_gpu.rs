//! Every reference model on a GPU: alone, batched, in chunks and token by token. Without a GPU
//! these tests are ignored.

use std::fmt::Write;

use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, KvType, OpenOptions};
use walla_reference_test::gpu_test;
use walla_tests::{Class, Differences, OracleModel, oracle_models};
use walla_vulkan::VulkanBackend;

/// The first GPU of a family, or the GPU that `WALLA_TEST_DEVICE` names.
type Open = fn() -> Box<dyn Device>;

fn open(backend: &dyn Backend, first: &str) -> Box<dyn Device> {
    let name = std::env::var("WALLA_TEST_DEVICE").unwrap_or_else(|_| first.to_owned());
    backend.open(&name, &OpenOptions::default()).expect("the GPU opens")
}

fn cuda() -> Box<dyn Device> {
    open(&CudaBackend::from_env(), "cuda:0")
}

fn vulkan() -> Box<dyn Device> {
    open(&VulkanBackend::from_env(), "vulkan:0")
}

/// The models that the device runs.
fn models(gpu: Open) -> impl Iterator<Item = OracleModel> {
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
    let is_recurrent = model.json["arch"].as_str().is_some_and(|its| its == "qwen35");
    match model.has_types(|name| matches!(name, "Q4_K" | "Q5_K")) {
        true if is_recurrent => (3.0, 1.5),
        true => (3.0, 1.3),
        false => (1.0, 1.0),
    }
}

/// The class of a device for a model, and factors on its limits.
type ClassOf = fn(&OracleModel) -> (Class, (f64, f64));

/// The best two logits of one row of these models are so close that rounding to 8 bits exchanges
/// them: up to 2.2 times the rms of all errors, which is below half of its limit. The CPU's kernels
/// with 8-bit products exchange the logits of two of the models (`engine/oracle_cpu.rs`).
const NEAR_TIES: [(&str, f64); 3] =
    [("mistral3-q8_0", 0.082), ("qwen35-q8_0", 0.0934), ("qwen3moe-q4_k_m", 0.14)];

/// Rows of x, dequantised weights, keys and values are rounded to f16, sums are f32.
fn class_on_cuda(model: &OracleModel) -> (Class, (f64, f64)) {
    (Class::Half, times_the_limits(model))
}

/// Rows of x are rounded to 8 bits for products with quantised weights, as in llama.cpp, and the
/// factors of these weights to f16; keys and values are rounded to f16.
fn class_on_vulkan(model: &OracleModel) -> (Class, (f64, f64)) {
    (model.class_of_rounding(), (1.0, 1.0))
}

/// Prints the differences of each model over all of its sequences.
fn assert_all_within(gpu: Open, class_of: ClassOf) {
    let (mut table, mut beyond) = (String::new(), Vec::new());
    for model in models(gpu) {
        let mut all = Differences::default();
        let (class, times) = class_of(&model);
        for (context, sequences) in model.by_context() {
            let mut evaluator = model.evaluator(gpu(), 8, context, 64, KvType::F16);
            for (how, mut differences) in model.compare_all(&mut evaluator, &sequences) {
                if class == Class::Rounded {
                    differences.accept_near_tie(&model, &NEAR_TIES);
                }
                beyond.extend(model.within(class, times, &differences, &how).err());
                all.add_all(&differences);
            }
        }
        let (max_abs, rms, max_regret) = model.tolerance(class);
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
fn assert_same_bits_in_any_batch(gpu: Open) {
    for model in models(gpu) {
        for (context, sequences) in model.by_context() {
            let mut evaluator = model.evaluator(gpu(), 8, context, 64, KvType::F16);
            model.assert_same_bits_in_any_batch(&mut evaluator, &sequences, "");
        }
    }
}

#[gpu_test]
fn every_model_is_within_half_tolerance() {
    assert_all_within(cuda, class_on_cuda);
}

#[gpu_test]
fn steps_of_any_size_and_any_batch_give_the_same_bits() {
    assert_same_bits_in_any_batch(cuda);
}

#[test]
#[ignore = "needs a Vulkan driver, see CONTRIBUTING.md"]
fn every_model_is_within_its_tolerance_on_vulkan() {
    assert_all_within(vulkan, class_on_vulkan);
}

#[test]
#[ignore = "needs a Vulkan driver, see CONTRIBUTING.md"]
fn steps_of_any_size_and_any_batch_give_the_same_bits_on_vulkan() {
    assert_same_bits_in_any_batch(vulkan);
}
