//! Compares the CUDA device with the CPU's scalar variant, on random models with sizes that are not
//! multiples of tiles.
//!
//! Needs a GPU: without one, every test is ignored. `cargo xtask emulate` runs the tests on an
//! emulated GPU; `WALLA_TEST_DEVICE=cuda:1` selects the second GPU.

mod attention;
mod cache;
mod cache_image;
mod deinit;
mod determinism;
mod experts;
mod fault;
mod graphs;
mod images;
mod in_file;
mod in_flight;
mod layer_inputs;
mod loading;
mod memory;
mod model;
mod parity;
mod play;
mod recurrent;
mod rig;
mod sampling;
mod sharing;
mod step_ring;
mod steps;
mod two_gpus;

use std::process::Command;

use walla_cpu::{CpuBackend, CpuOptions, Variant};
use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, OpenOptions};

/// The tested GPU: the first, or the named one (`cuda:1`).
fn tested() -> String {
    std::env::var("WALLA_TEST_DEVICE").unwrap_or_else(|_| "cuda:0".to_owned())
}

/// That GPU.
fn gpu() -> Box<dyn Device> {
    gpu_of(CudaBackend::from_env())
}

/// The same for a backend.
fn gpu_of(backend: CudaBackend) -> Box<dyn Device> {
    backend.open(&tested(), &OpenOptions::default()).unwrap_or_else(|why| panic!("no GPU: {why}"))
}

/// Kinds of devices whose results have the same bits: with all kernels, and without WGMMA kernels.
const DEVICES: [fn() -> Box<dyn Device>; 2] =
    [gpu, || gpu_of(CudaBackend::from_env().without_warpgroups())];

/// Whether the tests run on the emulated driver.
fn is_emulated(device: &dyn Device) -> bool {
    device.info().description.starts_with("emulated")
}

/// A row of logits for exact comparison.
fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Runs one test in a child process, which a variable marks as the child. Returns its output.
fn in_a_child(test: &str, (variable, value): (&str, &str)) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture", "--include-ignored"]).env(variable, value);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    assert!(said.contains("1 passed"), "the child found no test {test}:\n{said}");
    said
}

/// The oracle.
fn oracle() -> Box<dyn Device> {
    let options =
        CpuOptions { variant: Some(Variant::Scalar), inline: true, ..CpuOptions::default() };
    CpuBackend::new(options).open("cpu", &OpenOptions::default()).unwrap()
}
