//! The CUDA device: implements walla's device contract with the CUDA driver API.
//!
//! Building this crate, or starting a program that links it, needs no NVIDIA software. The driver
//! library is loaded on the first call of a [`CudaBackend`]; its absence is reported, not a
//! failure. Kernels are CUDA C++ in the project's `kernels/`, compiled ahead of time to PTX and
//! machine code that ship inside the crate.

mod backend;
mod cache;
mod cache_image;
mod completion_flag;
mod device;
#[expect(unsafe_code, reason = "the driver API is a C interface; this module is its only caller")]
mod driver;
mod enqueue;
mod fetch;
mod images;
#[cfg(test)]
#[path = "tests/kernel_source.rs"]
mod kernel_source;
mod kernels;
mod loading;
mod lower;
mod measure;
mod params;
mod parts;
mod repack;
mod resources;
mod step_ring;
#[cfg(feature = "cupti")]
pub mod timing;

pub use backend::CudaBackend;
pub use device::CudaDevice;
pub use driver::{GraphicsQueue, SharedContext};
