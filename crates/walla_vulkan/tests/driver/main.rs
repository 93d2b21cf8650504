//! Uses of the driver: calls in play, memory, the file of compiled shaders. On the
//! first GPU that Vulkan finds; a driver in software (Mesa's lavapipe) is enough. Ignored without
//! one.

#![expect(dead_code, reason = "the tests of CUDA use more of the helpers")]

mod exit;
mod full;
#[path = "../../../walla_cuda/tests/gpu/in_file.rs"]
mod in_file;
#[path = "../../../walla_cuda/tests/gpu/in_flight.rs"]
mod in_flight;
mod memory;
#[path = "../../../walla_cuda/tests/gpu/model.rs"]
mod model;
mod pipelines;
mod play;
#[path = "../../../walla_cuda/tests/gpu/rig.rs"]
mod rig;
mod speed;
mod two_devices;

use walla_device::{Backend, Device, OpenOptions};
use walla_vulkan::VulkanBackend;

/// The first GPU.
fn gpu() -> Box<dyn Device> {
    let backend = VulkanBackend::default();
    backend.open("vulkan:0", &OpenOptions::default()).unwrap_or_else(|why| panic!("no GPU: {why}"))
}
