//! Mixtures of experts: every variant against f64 and against the scalar variant.

use crate::support::{ExpertShape, Harness, Random, Row, SEQUENCES, Shape, VOCAB, greedy, whole};
use walla_cpu::{CpuOptions, Variant};
use walla_device::{DeviceError, KvType};
use walla_types::{Activation, ExpertScore, TensorType};

const SCORES: [ExpertScore; 2] = [ExpertScore::Softmax, ExpertScore::Sigmoid];

fn options(variant: Variant) -> CpuOptions {
    CpuOptions {
        variant: Some(variant),
        threads: Some(2),
        thread_cost_nanos: Some(0),
        ..CpuOptions::default()
    }
}

fn variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.iter().copied().filter(|variant| variant.score().is_some())
}

fn tokens(count: usize, seed: u32) -> Vec<i32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(VOCAB) as i32).collect()
}

/// The largest difference, relative to the root mean square of `wanted`.
fn error(got: &[Vec<f32>], wanted: &[Vec<f64>]) -> f64 {
    assert_eq!(got.len(), wanted.len());
    let pairs = got.iter().flatten().zip(wanted.iter().flatten());
    let worst = pairs.map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
    let squares: f64 = wanted.iter().flatten().map(|x| x * x).sum();
    worst / (squares / wanted.iter().flatten().count() as f64).sqrt()
}

fn check_against_f64(variant: Variant, shape: Shape) {
    let mut harness = Harness::new(options(variant), shape);
    let tokens = tokens(38, 5);
    let wanted = harness.reference(&tokens);
    let (got, _) = harness.run(&whole(2, &tokens), &greedy());
    let error = error(&got, &wanted);
    assert!(error < 1e-4, "{variant} {shape:?}: {error}");
}

fn exact(ty: TensorType, experts: ExpertShape) -> Shape {
    Shape { kv_type: KvType::F32, experts: Some(experts), ..Shape::small(ty) }
}

#[test]
fn every_choice_agrees_with_f64() {
    for variant in variants() {
        for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            // One expert, some, all; one in total.
            for (i, (count, used)) in
                [(5, 1), (7, 3), (4, 4), (1, 1), (33, 8)].into_iter().enumerate()
            {
                let activation = [Activation::Silu, Activation::GeluTanh][i % 2];
                let experts = ExpertShape::of(count, used, SCORES[i % 2]);
                check_against_f64(variant, Shape { activation, ..exact(ty, experts) });
                let experts = ExpertShape::of(count, used, SCORES[(i + 1) % 2]);
                check_against_f64(variant, exact(ty, experts));
            }
        }
    }
}

#[test]
fn a_selection_bias_agrees_with_f64() {
    const BIAS: [f32; 6] = [0.25, -0.5, 0.0, 0.125, 0.375, -0.25];
    for variant in variants() {
        for score in SCORES {
            let experts = ExpertShape { bias: Some(&BIAS), ..ExpertShape::of(6, 2, score) };
            check_against_f64(variant, exact(TensorType::F16, experts));
        }
    }
}

/// All scores are equal: every row uses the experts with the lowest numbers, with equal weights.
#[test]
fn of_equal_scores_the_lower_experts_are_used() {
    for variant in variants() {
        for score in SCORES {
            let experts = ExpertShape { router_scale: 0.0, ..ExpertShape::of(6, 3, score) };
            check_against_f64(variant, exact(TensorType::F32, experts));
        }
    }
}

/// Quantised types round activations. So that a rounding does not choose another expert, all
/// experts are used, or a bias chooses the same two for all rows.
#[test]
fn every_variant_agrees_with_the_scalar_one_for_every_type() {
    const BIAS: [f32; 5] = [-9.0, 20.0, -9.0, 10.0, -9.0];
    for (i, ty) in TensorType::ALL.into_iter().enumerate() {
        let all = ExpertShape::of(3, 3, SCORES[i % 2]);
        let two = ExpertShape {
            bias: Some(&BIAS),
            router_scale: 0.25,
            ..ExpertShape::of(5, 2, ExpertScore::Sigmoid)
        };
        for experts in [all, two] {
            let shape = Shape { seed: 20 + i as u32, experts: Some(experts), ..Shape::small(ty) };
            let tokens = tokens(30, 3);
            let run = |variant| {
                let mut harness = Harness::new(options(variant), shape);
                harness.run(&whole(1, &tokens), &greedy()).0
            };
            let wanted: Vec<Vec<f64>> = run(Variant::Scalar)
                .iter()
                .map(|row| row.iter().map(|x| f64::from(*x)).collect())
                .collect();
            let bound = if ty.is_quantized() { 0.2 } else { 2e-3 };
            for variant in variants() {
                let error = error(&run(variant), &wanted);
                println!("{variant} {ty} {}: {error}", experts.used);
                assert!(error < bound, "{variant} {ty} {experts:?}: {error}");
            }
        }
    }
}

/// One row per sequence, as in decoding: all sequences together and each alone.
#[test]
fn a_step_of_one_row_has_the_bits_of_a_full_one() {
    for variant in variants() {
        for ty in [TensorType::Q4K, TensorType::F16] {
            let experts = Some(ExpertShape::of(7, 2, ExpertScore::Softmax));
            let shape = Shape { experts, ..Shape::small(ty) };
            let mut harness = Harness::new(options(variant), shape);
            let rows: Vec<Row> =
                (0..SEQUENCES).map(|s| Row(s, 0, 3 + 5 * s as i32, true)).collect();
            let (together, _) = harness.run(&rows, &greedy());
            for (row, together) in rows.iter().zip(&together) {
                let (alone, _) = harness.run(std::slice::from_ref(row), &greedy());
                assert!(alone[0] == *together, "{variant} {ty} {row:?}");
            }
        }
    }
}

#[test]
fn impossible_mixtures_are_refused_by_name() {
    let refusal = |shape: Shape| Harness::try_new(CpuOptions::default(), shape).err().unwrap();
    let fine = exact(TensorType::F32, ExpertShape::of(4, 2, ExpertScore::Softmax));
    assert!(Harness::try_new(CpuOptions::default(), fine).is_ok());
    let odd = refusal(Shape { hidden: 40, ..fine });
    let what = "experts of 40 rows, which is no multiple of 16".to_owned();
    assert_eq!(odd, DeviceError::Unsupported { device: "cpu".to_owned(), what });
    let invalid =
        |experts: ExpertShape, words: &str| match refusal(Shape { experts: Some(experts), ..fine })
        {
            DeviceError::Invalid(text) => assert!(text.contains(words), "{text}"),
            other => panic!("{other} instead of {words}"),
        };
    invalid(ExpertShape::of(4, 5, ExpertScore::Softmax), "5 of 4 experts are chosen");
    invalid(ExpertShape::of(4, 0, ExpertScore::Softmax), "0 of 4 experts are chosen");
    let bias: &[f32] = &[0.0; 3];
    let short = ExpertShape { bias: Some(bias), ..ExpertShape::of(4, 2, ExpertScore::Sigmoid) };
    invalid(short, "selection bias: 3 where 4 were expected");
    let router_ty = TensorType::Q8_0;
    let rounded = ExpertShape { router_ty, ..ExpertShape::of(4, 2, ExpertScore::Softmax) };
    invalid(rounded, "the router is quantised");
}
