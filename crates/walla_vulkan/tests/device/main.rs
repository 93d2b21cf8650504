//! The device against the scalar kernels of `walla_cpu`, on the first GPU that Vulkan finds; a
//! driver in software (Mesa's lavapipe) is enough. Ignored without one.

mod model;

use model::{Shape, Step, run};
use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_device::{Backend, Device, KvType, OpenOptions, philox4x32};
use walla_reference_test::vulkan_test;
use walla_types::{Activation, ExpertScore, RopePairs, TensorType};
use walla_vulkan::VulkanBackend;

const TYPES: [TensorType; 16] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q2K,
    TensorType::Q3K,
    TensorType::Q4K,
    TensorType::Q5K,
    TensorType::Q6K,
    TensorType::Iq4Nl,
    TensorType::Iq4Xs,
    TensorType::Mxfp4,
];

fn oracle() -> Box<dyn Device> {
    let options = CpuOptions { variant: Some(Variant::Scalar), ..CpuOptions::default() };
    Box::new(CpuDevice::new(options).unwrap())
}

fn best_cpu() -> Box<dyn Device> {
    Box::new(CpuDevice::new(CpuOptions::default()).unwrap())
}

fn gpu() -> Box<dyn Device> {
    VulkanBackend::default().open("vulkan:0", &OpenOptions::default()).unwrap()
}

/// The differences of rows relative to their numbers (root of mean squares), the largest of them.
fn difference(one: &[Vec<f32>], other: &[Vec<f32>]) -> f32 {
    assert_eq!(one.len(), other.len());
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|n| n * n).sum::<f32>();
    let rows = one.iter().zip(other).map(|(one, other)| {
        let apart = squares(&mut one.iter().zip(other).map(|(a, b)| a - b));
        (apart / squares(&mut other.iter().copied())).sqrt()
    });
    // `max` would drop a NaN.
    rows.fold(0.0, |most, row| if row > most || row.is_nan() { row } else { most })
}

#[vulkan_test]
fn all_types_give_the_results_of_the_oracle() {
    for ty in TYPES {
        // The kernels for integers round activations to 8 bits, as the shaders do. Without layers,
        // both round the same numbers.
        let shape = Shape { layers: 0, ..Shape::of(ty) };
        let steps = [Step::prompt(0, 0, 21), Step::rows(&[(0, 21), (1, 0)])];
        let mut cpu = if ty.is_quantized() { best_cpu() } else { oracle() };
        let apart = difference(&run(&mut *gpu(), &shape, &steps), &run(&mut *cpu, &shape, &steps));
        println!("{ty}: {apart}");
        // Scales and minimums of some types are rounded to f16, and numbers of Q2_K to 8 bits.
        // Their rows of the table differ then, and some activations round to other integers.
        let limit = match ty {
            TensorType::Q2K => 0.02,
            ty if ty.block_elements() == 256 => 5e-3,
            _ => 1e-6,
        };
        assert!(apart < limit, "{ty}: {apart}");
    }
}

#[vulkan_test]
fn heads_pages_and_windows_give_the_results_of_the_oracle() {
    let base = Shape::of(TensorType::F32);
    let steps = [Step::prompt(0, 0, 40), Step::rows(&[(0, 40), (1, 0), (2, 0)])];
    for shape in [
        Shape { kv_type: KvType::F32, ..base },
        Shape { kv_type: KvType::Q8, ..base },
        Shape { window: Some(7), ..base },
        Shape { heads: 20, kv_heads: 1, head_dim: 16, ..base },
        Shape { head_dim: 256, pairs: RopePairs::Interleaved, ..base },
        Shape { head_dim: 24, activation: Activation::GeluTanh, has_head_norms: true, ..base },
        Shape { has_post_norms: true, has_biases: true, ..base },
    ] {
        let wanted = run(&mut *oracle(), &shape, &steps);
        let found = run(&mut *gpu(), &shape, &steps);
        let apart = difference(&found, &wanted);
        println!("{shape:?}: {apart}");
        let limit = if shape.kv_type == KvType::Q8 { 0.02 } else { 2e-3 };
        assert!(apart < limit, "{shape:?}: {apart}");
    }
}

#[vulkan_test]
fn mixtures_of_experts_give_the_results_of_the_oracle() {
    let steps = [Step::prompt(0, 0, 11), Step::rows(&[(0, 11), (1, 0)])];
    for experts in [(6, 2, ExpertScore::Softmax), (140, 8, ExpertScore::Sigmoid)] {
        let base =
            Shape { layers: 1, hidden: 64, experts: Some(experts), ..Shape::of(TensorType::F16) };
        for ty in [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4_0] {
            let shape = Shape { ty, ..base };
            let mut cpu = if ty.is_quantized() { best_cpu() } else { oracle() };
            let wanted = run(&mut *cpu, &shape, &steps);
            let apart = difference(&run(&mut *gpu(), &shape, &steps), &wanted);
            println!("{ty}, {experts:?}: {apart}");
            assert!(apart < if ty.is_quantized() { 0.02 } else { 1e-3 }, "{ty}: {apart}");
        }
    }
}

#[vulkan_test]
fn long_contexts_have_several_spans() {
    let shape = Shape { context: 2048, ..Shape::of(TensorType::F32) };
    let steps: Vec<_> = (0..30).map(|part| Step::prompt(0, part * 40, 40)).collect();
    let apart = difference(&run(&mut *gpu(), &shape, &steps), &run(&mut *oracle(), &shape, &steps));
    assert!(apart < 2e-3, "{apart}");
}

#[vulkan_test]
fn rows_do_not_depend_on_their_neighbours() {
    for ty in [TensorType::Q4K, TensorType::Q6K, TensorType::Q8_0, TensorType::F16] {
        let shape = Shape::of(ty);
        // The same sequences alone, and together in other numbers of rows.
        let alone = [Step::prompt(0, 0, 5), Step::rows(&[(0, 5)]), Step::rows(&[(0, 6)])];
        let mixed = [
            Step::rows(&[(1, 0), (0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]),
            Step::rows(&[(2, 0), (0, 5)]),
            Step::rows(&[(1, 1), (2, 1), (3, 0), (0, 6), (4, 0)]),
        ];
        let mut device = gpu();
        let alone = run(&mut *device, &shape, &alone);
        let mixed = run(&mut *gpu(), &shape, &mixed);
        let of_mixed = [1, 2, 3, 4, 5, 7, 11].map(|row| mixed[row].clone());
        assert!(alone[..] == of_mixed[..], "{ty}");
    }
}

#[vulkan_test]
fn prompts_in_any_pieces_have_the_same_bits() {
    // Matrices that are large enough for all shaders of products; and rows that are no multiple of
    // a workgroup's, with segments that are not full.
    let large = |ty| Shape { layers: 1, hidden: 2048, heads: 48, kv_heads: 8, ..Shape::of(ty) };
    let uneven = |ty| Shape { width: 224, hidden: 544, ..Shape::of(ty) };
    for shape in [
        large(TensorType::Q4K),
        large(TensorType::Q5K),
        large(TensorType::Q6K),
        Shape { width: 224, ..large(TensorType::Q8_0) },
        uneven(TensorType::Q4_0),
        uneven(TensorType::Q5_1),
        uneven(TensorType::Q8_0),
        uneven(TensorType::F16),
    ] {
        let shape = Shape { has_biases: true, ..shape };
        let whole = run(&mut *gpu(), &shape, &[Step::prompt(0, 0, 139)]);
        for sizes in [&[1, 2, 4, 3, 8, 19, 33, 69][..], &[70, 69], &[5, 134]] {
            let starts = sizes.iter().scan(0, |end, size| {
                *end += size;
                Some(Step::prompt(0, *end - size, *size))
            });
            let pieces = run(&mut *gpu(), &shape, &starts.collect::<Vec<_>>());
            assert!(whole == pieces, "{shape:?} in pieces of {sizes:?}");
        }
    }
}

/// Steps of random sequences, each with a random number of its next tokens, in random order. A
/// sequence begins again when it has ended.
fn mixes(count: usize, sequences: u32, length: u32) -> Vec<Vec<(u32, u32)>> {
    let mut number = 0;
    let mut below = |end: u32| {
        number += 1;
        philox4x32([number, 0, 0, 0], [61, 0])[0] % end
    };
    let mut next = vec![0; sequences as usize];
    let mut all = Vec::new();
    while all.len() < count {
        let mut rows = Vec::new();
        for sequence in 0..sequences {
            let tokens = below(12).saturating_sub(3);
            let position = &mut next[sequence as usize];
            let tokens = tokens.min(length - *position);
            let its = (*position..*position + tokens).map(|position| (sequence, position));
            let place = if below(2) == 0 { 0 } else { rows.len() };
            rows.splice(place..place, its);
            *position = (*position + tokens) % length;
        }
        if !rows.is_empty() {
            all.push(rows);
        }
    }
    all
}

#[vulkan_test]
fn rows_of_200_random_mixes_have_the_bits_of_rows_alone() {
    let base = Shape { has_biases: true, has_head_norms: true, ..Shape::of(TensorType::Q4K) };
    for (count, shape) in [
        (80, base),
        (60, Shape { kv_type: KvType::Q8, ty: TensorType::Q6K, ..base }),
        (60, Shape { window: Some(9), ty: TensorType::Q8_0, has_post_norms: true, ..base }),
    ] {
        let (sequences, length) = (6, 24);
        let rows = (0..sequences * length).map(|row| (row / length, row % length));
        let alone: Vec<_> = rows.map(|row| Step::rows(&[row])).collect();
        let alone = run(&mut *gpu(), &shape, &alone);
        let mixes = mixes(count, sequences, length);
        let steps: Vec<_> = mixes.iter().map(|rows| Step::rows(rows)).collect();
        let mixed = run(&mut *gpu(), &shape, &steps);
        for (row, (sequence, position)) in mixed.iter().zip(mixes.concat()) {
            let wanted = &alone[(sequence * length + position) as usize];
            let bits = |row: &[f32]| row.iter().map(|n| n.to_bits()).collect::<Vec<_>>();
            assert!(
                bits(row) == bits(wanted),
                "{:?}: sequence {sequence}, position {position}",
                shape.ty
            );
        }
    }
}
