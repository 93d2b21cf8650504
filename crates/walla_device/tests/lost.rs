//! Calls of an abandoned device.

use walla_device::{
    CacheId, CachePart, CompletionFlag, Device, DeviceError, EventId, GraphId, HostId, StreamId,
    abandon,
};
use walla_doubles::hash::{HashDevice, HashOptions};

#[test]
fn calls_with_a_default_are_lost_too() {
    let mut device: Box<dyn Device> = Box::new(HashDevice::new(HashOptions::default()));
    abandon(&mut device, "it hangs");
    let (event, results) = (EventId(0), HostId(0));
    let flag = CompletionFlag { event, results, ring_slot: 0, step: 0 };
    let part = CachePart::Recent { sequence: 0 };
    let calls = [
        device.launch_with_flag(StreamId(0), GraphId(0), &flag).err(),
        device.create_mapped("results", 64).err(),
        device.read_bytes_per_second().err(),
        device.resize_cache(CacheId(0), 1).err(),
        device.read_cache(StreamId(0), CacheId(0), &part, (results, 0)).err(),
        device.write_cache(StreamId(0), CacheId(0), &part, (results, 0)).err(),
        device.synchronize_event(event).err(),
    ];
    for error in calls {
        assert!(matches!(error, Some(DeviceError::Lost { reason, .. }) if reason == "it hangs"));
    }
}
