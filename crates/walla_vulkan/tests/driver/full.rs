use walla_device::{CacheCommand, DeviceError, KvType};
use walla_reference_test::vulkan_test;
use walla_types::TensorType;

use crate::gpu;
use crate::model::Shape;
use crate::rig::Rig;

/// Works in flight: more are refused until some have ended, whether or not a step submits them.
#[vulkan_test]
fn more_works_than_fit_are_done_later() {
    let Rig { mut device, stream, cache, .. } =
        Rig::new(gpu(), &Shape::llama(TensorType::F16), KvType::F16, 2);
    let command = CacheCommand::ClearSequence { sequence: 1 };
    let [all, too_many] = [1024, 1025].map(|count| vec![command; count]);
    for _ in 0..2 {
        device.run_cache_ops(stream, cache, &all).unwrap();
        let refused = device.run_cache_ops(stream, cache, &all).unwrap_err();
        assert!(matches!(refused, DeviceError::HostInFlight { .. }), "{refused}");
        // The refusal submitted them.
        let event = device.create_event().unwrap();
        device.record(stream, event).unwrap();
        while !device.poll(event).unwrap() {
            std::thread::yield_now();
        }
    }
    let refused = device.run_cache_ops(stream, cache, &too_many).unwrap_err();
    assert!(matches!(refused, DeviceError::Invalid(_)), "{refused}");
}
