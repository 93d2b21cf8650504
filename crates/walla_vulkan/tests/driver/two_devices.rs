use walla_device::KvType;
use walla_reference_test::vulkan_test;
use walla_types::TensorType;

use crate::gpu;
use crate::model::Shape;
use crate::rig::{Piece, Rig};

/// Logits of a prompt and of steps behind it.
struct Engine {
    rig: Rig,
    logits: Vec<Vec<f32>>,
}

impl Engine {
    fn new(ty: TensorType) -> Self {
        Self { rig: Rig::new(gpu(), &Shape::llama(ty), KvType::F16, 3), logits: Vec::new() }
    }

    fn step(&mut self) {
        let position = self.logits.len() as u32;
        let piece = Piece::new(0, position, &[1 + position.cast_signed()]);
        self.logits.extend(self.rig.step(&[piece], 0).logits);
    }
}

/// Two engines of a process on one GPU take turns, one ends first.
#[vulkan_test]
fn two_devices_of_one_gpu_compute_as_each_alone() {
    let types = [TensorType::Q4K, TensorType::F16];
    let alone = types.map(|ty| {
        let mut engine = Engine::new(ty);
        (0..6).for_each(|_| engine.step());
        engine.logits
    });
    let [mut one, mut other] = types.map(Engine::new);
    for _ in 0..4 {
        one.step();
        other.step();
    }
    assert_eq!(one.logits, alone[0][..4]);
    drop(one);
    other.step();
    other.step();
    assert_eq!(other.logits, alone[1]);
}
