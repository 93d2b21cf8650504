//! The CUDA device: the driver API behind walla's device contract.
//!
//! Nothing of NVIDIA's is needed to build or to start a program that links this crate: the driver
//! library is loaded when a [`CudaBackend`] is first asked, and its absence is an answer, not a
//! failure. Kernels are CUDA C++ in the project's `kernels/`, compiled ahead of time to PTX that
//! ships inside the crate.

mod backend;
mod cache;
mod device;
#[expect(unsafe_code, reason = "the driver API is a C interface; this module is its only caller")]
mod driver;
mod fetch;
mod images;
mod kernels;
mod loading;
mod lower;
mod measure;
mod params;
mod parts;
mod posts;
mod repack;
mod resources;
#[cfg(feature = "cupti")]
pub mod timing;
mod watch;

pub use backend::CudaBackend;
pub use device::CudaDevice;
pub use driver::{GraphicsQueue, SharedContext};
