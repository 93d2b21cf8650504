//! The search against a scan of all vectors.

use proptest::prelude::*;

use super::*;

/// The definition: all similarities in f32, sorted.
fn brute_force(rows: &[(u32, Vec<f32>)], query: &[f32], most: usize, least: f32) -> Vec<Similar> {
    let similar = rows.iter().map(|(slot, row)| Similar { slot: *slot, cosine: dot(query, row) });
    let mut found: Vec<Similar> = similar.filter(|of| of.cosine >= least).collect();
    found.sort_by(|a, b| b.cosine.total_cmp(&a.cosine).then(a.slot.cmp(&b.slot)));
    found.truncate(most);
    found
}

fn table(rows: &[(u32, Vec<f32>)]) -> Vectors {
    let mut vectors = Vectors::default();
    for (slot, row) in rows {
        vectors.set(*slot, row);
    }
    vectors
}

fn check(rows: &[(u32, Vec<f32>)], query: &[f32], most: usize, least: f32) {
    let found = table(rows).search(query, most, least, |_| true, |slot| slot);
    assert_eq!(found, brute_force(rows, query, most, least));
}

/// Numbers from a linear congruential generator, -1 to 1.
fn random(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn unit(mut number: impl FnMut() -> f32, dimensions: usize) -> Vec<f32> {
    normalized(&std::iter::repeat_with(&mut number).take(dimensions).collect::<Vec<_>>()).unwrap()
}

#[test]
fn random_vectors() {
    let mut number = random(7);
    let rows: Vec<_> = (0..3_000).map(|slot| (slot, unit(&mut number, 384))).collect();
    for most in [1, 10, 100, 5_000] {
        check(&rows, &unit(&mut number, 384), most, -1.0);
    }
    check(&rows, &unit(&mut number, 384), 10, 0.1);
}

#[test]
fn few_candidates_are_left_of_random_vectors() {
    let mut number = random(8);
    let rows: Vec<_> = (0..3_000).map(|slot| (slot, unit(&mut number, 384))).collect();
    let candidates = table(&rows).candidates(&unit(&mut number, 384), 10, -1.0, |_| true);
    assert!(candidates.len() < 100, "{}", candidates.len());
}

#[test]
fn near_ties_and_equal_vectors() {
    // Clusters whose members differ less than the codes can express, and exact copies.
    let mut number = random(9);
    let center = unit(&mut number, 64);
    let near = |number: &mut dyn FnMut() -> f32, by: f32| {
        normalized(&center.iter().map(|of| of + by * number()).collect::<Vec<_>>()).unwrap()
    };
    let mut rows = Vec::new();
    for slot in 0..1_500 {
        let row = match slot % 3 {
            0 => center.clone(),
            1 => near(&mut number, 1e-6),
            _ => near(&mut number, 1e-3),
        };
        rows.push((slot, row));
    }
    for most in [1, 7, 501, 2_000] {
        check(&rows, &near(&mut number, 1e-4), most, -1.0);
        check(&rows, &center, most, -1.0);
    }
}

#[test]
fn vectors_that_codes_represent_badly() {
    // One large component takes the range of the codes; the small ones decide.
    let mut number = random(10);
    let row = |number: &mut dyn FnMut() -> f32| {
        let mut row: Vec<f32> = (0..200).map(|_| 2e-3 * number()).collect();
        row[0] = 1.0;
        normalized(&row).unwrap()
    };
    let rows: Vec<_> = (0..2_000).map(|slot| (slot, row(&mut number))).collect();
    let mut query: Vec<f32> = (0..200).map(|_| number()).collect();
    query[0] = 0.0;
    for most in [1, 10, 300] {
        check(&rows, &normalized(&query).unwrap(), most, -1.0);
        check(&rows, &row(&mut number), most, -1.0);
    }
}

#[test]
fn filter_and_threshold() {
    let mut number = random(11);
    let rows: Vec<_> = (0..500).map(|slot| (slot, unit(&mut number, 32))).collect();
    let query = unit(&mut number, 32);
    let permitted: Vec<_> = rows.iter().filter(|(slot, _)| slot % 7 == 0).cloned().collect();
    let found = table(&rows).search(&query, 20, 0.0, |slot| slot % 7 == 0, |slot| slot);
    assert_eq!(found, brute_force(&permitted, &query, 20, 0.0));
    assert!(found.iter().all(|of| of.cosine >= 0.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Components of few values give many ties, also between different vectors.
    #[test]
    fn ties_and_any_history(
        steps in prop::collection::vec((0_u32..30, prop::collection::vec(-2_i8..3, 5)), 1..60),
        query in prop::collection::vec(-2_i8..3, 5),
        most in 0_usize..12,
    ) {
        let unit = |of: &[i8]| normalized(&of.iter().map(|&n| f32::from(n)).collect::<Vec<_>>());
        let mut vectors = Vectors::default();
        let mut rows: std::collections::BTreeMap<u32, Vec<f32>> = Default::default();
        for (slot, components) in &steps {
            match unit(components) {
                Ok(row) => {
                    vectors.set(*slot, &row);
                    rows.insert(*slot, row);
                }
                Err(error) => {
                    prop_assert_eq!(error, VectorError::Zero);
                    vectors.remove(*slot);
                    rows.remove(slot);
                }
            }
        }
        prop_assert_eq!(vectors.len(), rows.len());
        for slot in 0..30 {
            prop_assert_eq!(vectors.get(slot), rows.get(&slot).map(Vec::as_slice));
        }
        let rows: Vec<_> = rows.into_iter().collect();
        if let Ok(query) = unit(&query) {
            let found = vectors.search(&query, most, -1.0, |_| true, |slot| slot);
            prop_assert_eq!(found, brute_force(&rows, &query, most, -1.0));
        }
    }
}
