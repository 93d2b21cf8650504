//! Programs as graphs and op by op.

use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, DeviceCounters, KvType, OpenOptions};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::{Random, Shape};
use crate::parity::tokens;
use crate::rig::{Piece, Rig};
use crate::{bits, gpu, tested};

/// Tokens and logits (as bits) of a run of mixed steps, and the driver calls of the steps.
fn run(device: Box<dyn Device>) -> (Vec<(u32, Vec<u32>)>, DeviceCounters, Rig) {
    let shape = Shape::llama(TensorType::Q4K);
    let mut rig = Rig::new(device, &shape, KvType::F16, 5);
    let mut random = Random(11);
    let mut found = Vec::new();
    let mut positions = [0_u32; 4];
    let before = rig.device.counters();
    for _ in 0..40 {
        let mut pieces = Vec::new();
        for (sequence, position) in positions.iter_mut().enumerate() {
            let count = random.below(4) as usize;
            if count > 0 {
                let text = tokens(shape.vocab, count, random.bits());
                pieces.push(Piece::new(sequence as u32, *position, &text));
                *position += count as u32;
            }
        }
        if !pieces.is_empty() {
            let outcome = rig.step(&pieces, 0);
            for (row, logits) in outcome.rows.iter().zip(&outcome.logits) {
                found.push((row.token, bits(logits)));
            }
        }
    }
    let calls = rig.device.counters() - before;
    (found, calls, rig)
}

#[gpu_test]
fn eager_launches_give_the_same_tokens_and_are_counted() {
    let device = gpu();
    let (expected, calls, rig) = run(device);
    assert_eq!(rig.device.graph_fallbacks().total(), 0);
    // A step is one graph launch; the graph copies the step block itself.
    assert!(calls.graph_launches > 0, "{calls}");
    assert_eq!(calls.kernel_launches, 0, "{calls}");
    drop(rig);

    let backend = CudaBackend::eager("a test says so");
    let (found, calls, rig) = run(backend.open(&tested(), &OpenOptions::default()).unwrap());
    let fallbacks = rig.device.graph_fallbacks();
    assert_eq!(fallbacks.switched_off, rig.graphs.len() as u64 * 2, "{fallbacks}");
    assert_eq!(fallbacks.total(), fallbacks.switched_off);
    assert!(calls.graph_launches == 0 && calls.kernel_launches > 10 * 40, "{calls}");
    let facts = rig.device.info().gpu.clone().unwrap();
    assert_eq!(facts.graphs_off.as_deref(), Some("a test says so"));
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "graphs and single launches differ");
}
