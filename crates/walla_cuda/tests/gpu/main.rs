//! The CUDA device against the CPU's scalar variant, on random models with sizes that do not divide tiles.
//!
//! Needs a GPU: without one every test says that it skips. `cargo xtask emulate` runs them on an emulated one.

mod attention;
mod cache;
mod determinism;
mod fault;
mod graphs;
mod images;
mod memory;
mod model;
mod parity;
mod play;
mod posts;
mod rig;
mod sampling;
mod sharing;

use walla_cpu::{CpuBackend, CpuOptions, Variant};
use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, OpenOptions};

/// The first GPU, or `None` (and a line that says so) where there is none.
fn gpu() -> Option<Box<dyn Device>> {
    gpu_of(CudaBackend::from_env())
}

/// The same, of a backend.
fn gpu_of(backend: CudaBackend) -> Option<Box<dyn Device>> {
    match backend.devices() {
        Ok(_) => Some(backend.open("cuda:0", &OpenOptions::default()).unwrap()),
        Err(reason) => {
            println!("SKIPPED: {reason}");
            None
        }
    }
}

/// The oracle.
fn oracle() -> Box<dyn Device> {
    let options =
        CpuOptions { variant: Some(Variant::Scalar), inline: true, ..CpuOptions::default() };
    CpuBackend::new(options).open("cpu", &OpenOptions::default()).unwrap()
}
