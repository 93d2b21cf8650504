use walla_device::{philox4x32, unit_interval};

use crate::matrix::tests::int_dot::fused;
use crate::operands::{Scores, Values};
use crate::options::Variant;

fn random(len: usize, seed: u32) -> Vec<f32> {
    (0..len as u32).map(|i| unit_interval(philox4x32([i, 0, 0, 0], [seed, 6])[0]) - 0.5).collect()
}

fn halves(numbers: &[f32]) -> Vec<u16> {
    numbers.iter().map(|number| half::f16::from_f32(*number).to_bits()).collect()
}

fn float(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// Shapes of pages: dimensions, cells and queries. Blocks of one, two and four registers, and all
/// numbers of queries of a block and beyond.
fn shapes() -> impl Iterator<Item = (Variant, usize, usize, usize)> {
    let runs = |variant: &Variant| variant.has_vectors() && variant.score().is_some();
    let variants = Variant::ALL.iter().copied().filter(runs);
    let sizes = [(16, 16), (48, 32), (64, 48), (80, 16)];
    let all = variants.flat_map(move |variant| sizes.map(|(dim, cells)| (variant, dim, cells)));
    all.flat_map(|(variant, dim, cells)| (1..=9).map(move |count| (variant, dim, cells, count)))
}

/// Each score is one chain over the dimensions, for every variant and number of queries.
#[test]
fn scores_have_the_bits_of_plain_rust() {
    for (variant, dim, cells, count) in shapes() {
        let (stride, width) = (cells + 16, cells + 3);
        let queries = random(count * dim, 1);
        let keys = halves(&random(dim * stride, 2));
        let mut out = vec![f32::NAN; count * width];
        let page =
            Scores { queries: &queries, dim, keys: &keys, stride, next: &keys, cells, width };
        page.compute(variant, &mut out);
        for (q, c) in (0..count).flat_map(|q| (0..cells).map(move |c| (q, c))) {
            let chain = |sum, d| fused(float(keys[d * stride + c]), queries[q * dim + d], sum);
            let wanted = (0..dim).fold(0.0, chain);
            assert_eq!(out[q * width + c], wanted, "{variant} {dim} {cells} {count}: {q} {c}");
        }
        assert!(out[cells..].chunks(width).all(|rest| rest[..3].iter().all(|x| x.is_nan())));
    }
}

/// Each output number is one chain over the cells, of any number, from the number before.
#[test]
fn values_have_the_bits_of_plain_rust() {
    for (variant, dim, cells, count) in shapes() {
        let (cells, width) = (cells - 5, cells);
        let weights = random(count * width, 3);
        let values = halves(&random(cells * dim, 4));
        let before = random(count * dim, 5);
        let mut out = before.clone();
        let page = Values { weights: &weights, width, cells, values: &values, next: &values, dim };
        page.add(variant, &mut out);
        for (q, d) in (0..count).flat_map(|q| (0..dim).map(move |d| (q, d))) {
            let chain = |sum, c| fused(float(values[c * dim + d]), weights[q * width + c], sum);
            let wanted = (0..cells).fold(before[q * dim + d], chain);
            assert_eq!(out[q * dim + d], wanted, "{variant} {dim} {cells} {count}: {q} {d}");
        }
    }
}
