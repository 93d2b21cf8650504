use walla_cpu::CpuBackend;
use walla_device::{Backend, OpenOptions, Registry, StepTimes};
use walla_reference_test::vulkan_test;
use walla_vulkan::VulkanBackend;

use crate::gpu;

/// A comparison, as `auto` makes it for an integrated GPU.
#[vulkan_test]
fn both_devices_of_a_comparison_run_its_steps() {
    let cpu = CpuBackend::default().open("cpu", &OpenOptions::default()).unwrap();
    for mut device in [cpu, gpu()] {
        // A driver in software takes too long for the larger step, or does not.
        match StepTimes::measure(&mut *device) {
            Ok(times) => {
                println!("{}: {times:?}", device.info().description);
                assert!(!times.one_row.is_zero() && !times.many_rows.is_zero());
            }
            Err(error) => {
                println!("{}: {error}", device.info().description);
                assert!(error.to_string().contains("took more than"), "{error}");
            }
        }
    }
}

#[vulkan_test]
fn a_driver_in_software_is_chosen_by_name_only() {
    let registry = Registry::new().with(VulkanBackend::default()).with(CpuBackend::default());
    let gpus = VulkanBackend::default().devices().unwrap();
    for gpu in gpus.iter().filter(|gpu| gpu.description.starts_with("llvmpipe")) {
        assert_eq!(registry.candidates(&gpu.name).len(), 1);
        assert!(registry.candidates("auto").iter().all(|info| info.name != gpu.name));
        let score = |(info, score): &(_, i32)| (info == gpu).then_some(*score);
        assert_eq!(registry.devices().iter().find_map(score), Some(-1));
    }
}

#[vulkan_test]
fn the_bandwidth_is_measured() {
    let rate = gpu().read_bytes_per_second().unwrap().unwrap();
    println!("{:.1} GB/s", rate / 1e9);
    assert!(rate > 1e6, "{rate}");
}
