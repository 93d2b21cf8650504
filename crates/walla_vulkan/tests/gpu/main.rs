//! The tests of the CUDA device that hold for any GPU, on Vulkan.
//!
//! They are ignored without an NVIDIA GPU; any Vulkan driver runs them with `--include-ignored`,
//! also one in software.

#![expect(dead_code, reason = "the tests of CUDA use more of the helpers")]

#[path = "../../../walla_cuda/tests/gpu/cache.rs"]
mod cache;
#[path = "../../../walla_cuda/tests/gpu/cache_image.rs"]
mod cache_image;
#[path = "../../../walla_cuda/tests/gpu/in_file.rs"]
mod in_file;
#[path = "../../../walla_cuda/tests/gpu/model.rs"]
mod model;
#[path = "../../../walla_cuda/tests/gpu/recurrent.rs"]
mod recurrent;
#[path = "../../../walla_cuda/tests/gpu/rig.rs"]
mod rig;
#[path = "../../../walla_cuda/tests/gpu/sampling.rs"]
mod sampling;
#[path = "../../../walla_cuda/tests/gpu/steps.rs"]
mod steps;

mod determinism {
    use walla_reference_test::gpu_test;
    use walla_types::TensorType;

    use crate::model::Shape;
    pub use crate::steps::compare;

    #[gpu_test]
    fn a_row_does_not_depend_on_its_batch_or_bucket() {
        for ty in [TensorType::Q4K, TensorType::Q8_0, TensorType::F16, TensorType::Q6K] {
            let shape = Shape { taps: Some(3), layers: 3, ..Shape::llama(ty) };
            compare(ty.name(), &shape, 6);
        }
    }
}

/// Helpers of the tests, where they are in the tests of CUDA.
mod parity {
    pub use crate::steps::*;

    pub const EXACT: f64 = 2e-4;
    // A difference in the last bits rounds some inputs to other integers of 8 bits.
    pub const HALF: f64 = 0.1;
}

use walla_cpu::{CpuBackend, CpuOptions};
use walla_device::{Backend, Device, OpenOptions};
use walla_vulkan::VulkanBackend;

/// The first GPU.
fn gpu() -> Box<dyn Device> {
    let backend = VulkanBackend::default();
    backend.open("vulkan:0", &OpenOptions::default()).unwrap_or_else(|why| panic!("no GPU: {why}"))
}

/// Kinds of devices whose results have the same bits.
const DEVICES: [fn() -> Box<dyn Device>; 1] = [gpu];

/// A row of logits for exact comparison.
fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// The oracle: it rounds the inputs of integer products to 8 bits, as the shaders do.
fn oracle() -> Box<dyn Device> {
    let options = CpuOptions { inline: true, ..CpuOptions::default() };
    CpuBackend::new(options).open("cpu", &OpenOptions::default()).unwrap()
}
