//! Counts the driver calls of a step.

use walla_device::{CompletionFlag, DeltaShape, DeviceError, KvType, StreamPriority};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::gpu;
use crate::in_flight::{BUCKET, Length, RING, Slot, collect, play, submit};
use crate::model::{Experts, Shape};
use crate::rig::Rig;

/// Models with each op.
fn shapes() -> [(&'static str, Shape); 4] {
    let ty = TensorType::Q8_0;
    let llama = Shape::llama(ty);
    let delta = DeltaShape { key_heads: 2, value_heads: 4, head_dim: 32, taps: 4 };
    let recurrent = Shape { delta: Some(delta), gates: true, ..llama.clone() };
    [
        ("llama", llama.clone()),
        ("DeltaNet and experts", Shape { experts: Some(Experts::of(ty)), ..recurrent }),
        ("convolutions", Shape { taps: Some(3), ..llama }),
        ("layer inputs", crate::layer_inputs::gemma4(ty)),
    ]
}

#[gpu_test]
fn ten_thousand_steps_make_no_capture_allocation_or_wait() {
    let length = Length { steps: 10_000, awaited: 1_000 };
    shapes().iter().for_each(|shape| check_both_modes(shape, length));
}

#[gpu_test]
fn steps_make_no_capture_allocation_or_wait() {
    let length = Length { steps: 8, awaited: 2 };
    // The others take the emulator a minute.
    shapes()[..2].iter().for_each(|shape| check_both_modes(shape, length));
}

fn check_both_modes(shape: &(&str, Shape), length: Length) {
    // Calls per step: the graph copies the posted step block itself.
    let told = [("graph launches", 1)];
    play(shape, true, length, &told);
    let copied = [("copies", 1), ("event records", 2), ("event waits", 1)];
    play(shape, false, length, &[told.as_slice(), &copied].concat());
}

/// Result blocks that a step must not write: one outside of the memory, and one whose last launch
/// is not known to have ended.
#[gpu_test]
fn a_result_block_that_is_not_free_is_refused() {
    let device = gpu();
    let shape = Shape::llama(TensorType::Q8_0);
    let mut rig = Rig::with_results(device, &shape, KvType::F16, 1, true);
    let slot = Slot::create(&mut *rig.device);
    let copy = rig.device.create_stream(StreamPriority::High).unwrap();
    submit(&mut rig, &slot, copy, 0);
    let (stream, graph, results) = (rig.stream, rig.graphs[BUCKET][1], rig.mapped.unwrap());
    let of_block = |ring_slot| CompletionFlag { event: slot.copied, results, ring_slot, step: 1 };
    let d = &mut *rig.device;
    let mut refuses = |watch: CompletionFlag| {
        let refused = d.launch_with_flag(stream, graph, &watch).unwrap_err();
        assert!(matches!(refused, DeviceError::Invalid(_)), "{refused}");
    };
    refuses(of_block(0));
    refuses(of_block(RING as u32));
    refuses(CompletionFlag { results: slot.results, ..of_block(1) });
    // A stream cannot wait for an event that a completion flag completes.
    let refused = d.wait(copy, slot.copied).unwrap_err();
    assert!(matches!(refused, DeviceError::Invalid(_)), "{refused}");
    collect(&mut rig, &slot, 0);
    submit(&mut rig, &slot, copy, RING as u64);
    collect(&mut rig, &slot, RING as u64);
}
