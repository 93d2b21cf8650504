//! Inputs of layers, shared keys and values, norms of values, scaled layers, and bounded logits:
//! every variant against f64; impossible ops are refused.

use crate::support::{DELTA, Harness, Random, SUPPRESSED, Shape, VOCAB, greedy, whole};
use walla_cpu::{CpuOptions, Variant};
use walla_device::{DeviceError, KvType, Op, Slot, op};
use walla_types::{RopePairs, TensorType};

fn variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.iter().copied().filter(|variant| variant.score().is_some())
}

fn tokens(count: usize, seed: u32) -> Vec<i32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(VOCAB) as i32).collect()
}

/// The largest difference, relative to the root mean square of `wanted`. Suppressed tokens are
/// equal.
fn error(got: &[Vec<f32>], wanted: &[Vec<f64>]) -> f64 {
    assert_eq!(got.len(), wanted.len());
    let (mut worst, mut squares, mut numbers) = (0.0_f64, 0.0, 0);
    for (got, wanted) in got.iter().zip(wanted) {
        for (token, (got, wanted)) in got.iter().zip(wanted).enumerate() {
            if SUPPRESSED.contains(&(token as u32)) {
                assert_eq!((*got, *wanted), (f32::NEG_INFINITY, f64::NEG_INFINITY));
                continue;
            }
            assert!(got.is_finite());
            worst = worst.max((f64::from(*got) - wanted).abs());
            squares += wanted * wanted;
            numbers += 1;
        }
    }
    worst / (squares / f64::from(numbers)).sqrt()
}

fn check(variant: Variant, shape: Shape, bound: f64) {
    let options = CpuOptions {
        variant: Some(variant),
        threads: Some(2),
        thread_cost_nanos: Some(0),
        ..CpuOptions::default()
    };
    let mut harness = Harness::new(options, shape);
    let tokens = tokens(38, 5);
    let wanted = harness.reference(&tokens);
    let (got, drawn) = harness.run(&whole(2, &tokens), &greedy());
    let error = error(&got, &wanted);
    assert!(error < bound, "{variant} {shape:?}: {error}");
    assert!(drawn.iter().all(|token| !SUPPRESSED.contains(token)));
}

/// Odd sizes, multiples of a register, and one number.
#[test]
fn every_variant_agrees_with_f64() {
    for variant in variants() {
        for (i, ty) in [TensorType::F32, TensorType::F16, TensorType::BF16].into_iter().enumerate()
        {
            for (part, head_dim, page_tokens) in [(9, 24, 5), (32, 64, 16), (1, 24, 5)] {
                let shape = Shape {
                    inputs: Some(part),
                    head_dim,
                    page_tokens,
                    pairs: [RopePairs::Halves, RopePairs::Interleaved][i % 2],
                    delta: (i == 2).then_some(DELTA),
                    ..Shape::small(ty)
                };
                check(variant, Shape { kv_type: KvType::F32, ..shape }, 1e-4);
                // The norm of one number is its sign, which a rounding can change.
                if part > 1 {
                    check(variant, shape, 0.02);
                }
            }
        }
    }
}

/// The refusal of a program whose op is changed.
fn refusal(change: impl Fn(&mut Op)) -> String {
    let shape = Shape { inputs: Some(32), ..Shape::small(TensorType::F32) };
    let harness = Harness::changed(CpuOptions::default(), shape, &change);
    let Err(DeviceError::Invalid(why)) = harness else { panic!("a program is not refused") };
    why
}

#[test]
fn impossible_ops_are_refused() {
    let inputs = |slot: u32, first: u32| {
        refusal(move |op| {
            if let Op::GateInput(op::GateInput { e, first: at, .. }) = op {
                (*e, *at) = (Slot(slot), *at + first);
            }
        })
    };
    assert!(inputs(6, 1).contains("32 inputs from 65 on, of 96"), "{}", inputs(6, 1));
    assert!(inputs(6, u32::MAX - 64).contains("of 96"));
    assert!(inputs(7, 0).contains("slot 7 is both read and written"), "{}", inputs(7, 0));
    let untabled = refusal(|op| {
        if let Op::LayerInputs(op::LayerInputs { table, projection, .. }) = op {
            *table = projection.matrix;
        }
    });
    assert!(untabled.contains("was not loaded to be looked up"), "{untabled}");
    let multiplied = refusal(|op| {
        if let Op::LayerInputs(op::LayerInputs { table, projection, .. }) = op {
            projection.matrix = *table;
        }
    });
    assert!(multiplied.contains("was not loaded to be multiplied"), "{multiplied}");
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let message = refusal(|op| {
            if let Op::Head(op::Head { soft_cap, .. }) = op {
                *soft_cap = Some(cap);
            }
        });
        assert!(message.contains("a cap of Some"), "{message}");
    }
    let beyond = refusal(|op| {
        if let Op::Head(op::Head { suppressed, .. }) = op {
            suppressed.push(VOCAB as u32);
        }
    });
    assert!(beyond.contains("a suppressed token beyond the vocabulary"), "{beyond}");
}
