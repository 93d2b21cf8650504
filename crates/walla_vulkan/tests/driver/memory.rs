use walla_device::{Backend, Device, DeviceError, OpenOptions};
use walla_reference_test::vulkan_test;
use walla_vulkan::VulkanBackend;

const MIB: u64 = 1 << 20;

fn open(max_memory_bytes: Option<u64>) -> Box<dyn Device> {
    let options = OpenOptions { max_memory_bytes, ..OpenOptions::default() };
    VulkanBackend::default().open("vulkan:0", &options).unwrap()
}

/// Wanted and free bytes of a refusal.
fn refused(device: &mut dyn Device, bytes: u64) -> (u64, u64) {
    match device.create_buffer("too much", bytes as usize) {
        Err(DeviceError::OutOfMemory { wanted_bytes, free_bytes, .. }) => {
            (wanted_bytes, free_bytes)
        }
        other => panic!("{other:?}"),
    }
}

#[vulkan_test]
fn a_declared_ceiling_is_kept() {
    let mut device = open(Some(64 * MIB));
    let (wanted, free) = refused(&mut *device, 80 * MIB);
    assert_eq!(wanted, 80 * MIB);
    assert!(free <= 64 * MIB, "{free}");
    device.create_buffer("a part", 25 * MIB as usize).unwrap();
    let (_, free) = refused(&mut *device, 40 * MIB);
    assert!(free < 40 * MIB, "{free}");
}

/// Drivers of GPUs report their budget (`VK_EXT_memory_budget`), lavapipe does since Mesa 23.1. The
/// others refuse more than they have.
#[vulkan_test]
fn without_a_ceiling_the_budget_of_the_driver_is_kept() {
    let listed = VulkanBackend::default().devices().unwrap().remove(0);
    let mut device = open(None);
    let total = listed.memory_total_bytes.unwrap();
    for info in [&listed, device.info()] {
        println!("{:?} of {total} bytes are free", info.memory_free_bytes);
        assert!(info.memory_free_bytes.is_none_or(|free| free > 0 && free <= total));
    }
    let (wanted, free) = refused(&mut *device, 16 * total);
    assert_eq!(wanted, 16 * total);
    assert_eq!(free > 0, listed.memory_free_bytes.is_some(), "{free} of {total} bytes");
    device.create_buffer("a part", MIB as usize).unwrap();
}
