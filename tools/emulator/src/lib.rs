//! A replacement for NVIDIA's driver library: the driver API as walla calls it, and a machine that
//! runs PTX kernels on the CPU.
//!
//! Built as a shared library and loaded as `libcuda.so`, it runs walla's GPU tests without a GPU:
//! the shipped PTX and the host code around it, against the oracle (`cargo xtask emulate`). It
//! shows what kernels compute, not how fast.
//!
//! All device memory is host memory, and a device pointer is its address. All work is done inside
//! the call that enqueues it, by the calling thread.

// Reserved addresses are pages of the operating system.
#![cfg(unix)]

#[expect(
    unsafe_code,
    reason = "the driver API is a C interface, and device memory is reached by its address"
)]
mod driver;
pub mod machine;
pub mod memory;
pub mod ptx;
