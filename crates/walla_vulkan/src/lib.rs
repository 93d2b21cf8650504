//! The Vulkan device: implements walla's device contract on GPUs of any vendor.
//!
//! Building this crate, or starting a program that links it, needs no Vulkan software. The loader
//! is opened on the first call of a backend; its absence is reported, not a failure. Shaders are
//! in the project's `kernels/vulkan/`, compiled ahead of time to SPIR-V that ships inside the
//! crate.

mod backend;
mod cache;
mod device;
#[expect(unsafe_code, reason = "Vulkan is a C interface; this module is its only caller")]
mod driver;
mod loading;
mod lower;
mod params;
mod repack;
mod resources;
mod ring;
mod shaders;

pub use backend::VulkanBackend;
pub use device::{ShaderTime, VulkanDevice};
