//! Counts the driver calls of a step.

use walla_device::DeltaShape;
use walla_reference_test::vulkan_test;
use walla_types::TensorType;

use crate::in_flight::{Length, play};
use crate::model::{Experts, Shape};

/// Nothing is recorded, allocated or waited for in play: a step is one submission, and a second one
/// if its results are copied back.
#[vulkan_test]
fn ten_thousand_steps_record_allocate_and_wait_for_nothing() {
    let ty = TensorType::Q8_0;
    // Small: a driver in software takes milliseconds for each step.
    let llama = Shape { layers: 1, vocab: 64, ..Shape::llama(ty) };
    let delta = DeltaShape { key_heads: 2, value_heads: 4, head_dim: 32, taps: 4 };
    let recurrent = Shape { layers: 2, delta: Some(delta), gates: true, ..llama.clone() };
    let all = Shape { experts: Some(Experts::of(ty)), ..recurrent };
    let [llama, all] = [("llama", llama), ("DeltaNet and experts", all)];
    for (shape, is_mapped, steps) in
        [(&llama, true, 10_000), (&llama, false, 100), (&all, true, 100), (&all, false, 100)]
    {
        let length = Length { steps, awaited: 10 };
        play(shape, is_mapped, length, &[("graph launches", if is_mapped { 1 } else { 2 })]);
    }
}
