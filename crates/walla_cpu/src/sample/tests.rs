use super::*;

const GREEDY: OutputRow = OutputRow {
    row: 0,
    sequence: 0,
    position: 9,
    flags: OutputRow::SAMPLE,
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    penalty_window: 0,
    seed: [1, 2],
    candidates: 0,
    bias_first: 0,
    bias_count: 0,
    mask: 0,
    reserved: [0; 2],
};

fn draw(logits: &[f32], output: OutputRow, biases: &[BiasRow], recent: &[u32]) -> ResultRow {
    masked(logits, output, biases, recent, None)
}

fn masked(
    logits: &[f32],
    output: OutputRow,
    biases: &[BiasRow],
    recent: &[u32],
    mask: Mask<'_>,
) -> ResultRow {
    let draw = Draw { variant: Variant::Scalar, logits, output: &output, biases, mask, recent };
    draw.draw(&mut vec![0.0; logits.len()], &mut vec![0; logits.len()])
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let word = |i| philox4x32([i, 0, 0, 0], [seed, 7])[0];
    (0..count as u32).map(|i| unit_interval(word(i)) * 8.0 - 4.0).collect()
}

/// Literal implementation of the contract: sort everything, truncate, sample.
fn oracle(logits: &[f32], output: &OutputRow) -> u32 {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let s: Vec<f32> = logits.iter().map(|l| l / output.temperature).collect();
    ids.sort_by(|a, b| s[*b as usize].total_cmp(&s[*a as usize]).then(a.cmp(b)));
    if output.top_k > 0 {
        ids.truncate(output.top_k as usize);
    }
    let weight = |id: &u32| f64::from(s[*id as usize] - s[ids[0] as usize]).exp();
    let total: f64 = ids.iter().map(weight).sum();
    let mut kept = Vec::new();
    let mut sum = 0.0;
    for id in &ids {
        kept.push(*id);
        sum += weight(id) / total;
        if output.top_p < 1.0 && sum >= f64::from(output.top_p) {
            break;
        }
    }
    kept.retain(|id| weight(id) >= f64::from(output.min_p));
    let score = |id: u32| {
        let word = philox4x32([output.position + 1, id, 0, 0], output.seed)[0];
        s[id as usize] - (-unit_interval(word).ln()).ln()
    };
    kept.sort_unstable();
    let best = kept.iter().copied().reduce(|a, b| if score(b) > score(a) { b } else { a });
    best.unwrap()
}

#[test]
fn every_combination_of_filters_draws_as_specified() {
    for case in 0..400_u32 {
        let vocab = [1, 3, 64, 65, 300, 1000][case as usize % 6];
        let logits = numbers(vocab, case);
        let output = OutputRow {
            temperature: [0.3, 1.0, 2.5][case as usize % 3],
            top_k: [0, 1, 5, 40, 200, 2000][(case / 3) as usize % 6],
            top_p: [1.0, 0.9, 0.3, 0.999][(case / 5) as usize % 4],
            min_p: [0.0, 0.05, 0.5][(case / 7) as usize % 3],
            seed: [case, 3],
            ..GREEDY
        };
        let row = draw(&logits, output, &[], &[0; 256]);
        assert_eq!(row.token, oracle(&logits, &output), "{output:?}");
        assert_eq!(row.flags, ResultRow::SAMPLED);
    }
}

/// Whether a mask allows a token.
fn allows(mask: &[u32], token: usize) -> bool {
    mask[token / 32] >> (token % 32) & 1 == 1
}

#[test]
fn a_masked_draw_equals_a_draw_from_the_allowed_tokens() {
    for case in 0..300_u32 {
        let vocab = [3, 64, 65, 300, 1000][case as usize % 5];
        let logits = numbers(vocab, case);
        let output = OutputRow {
            temperature: [0.3, 1.0, 2.5][case as usize % 3],
            top_k: [0, 1, 5, 40, 200, 2000][(case / 3) as usize % 6],
            top_p: [1.0, 0.9, 0.3][(case / 5) as usize % 3],
            min_p: [0.0, 0.05, 0.5][(case / 7) as usize % 3],
            seed: [case, 3],
            candidates: 7,
            ..GREEDY
        };
        let mut mask: Vec<u32> = (0..vocab.div_ceil(32) as u32)
            .map(|i| philox4x32([i, 1, 0, 0], [case, 9])[0])
            .collect();
        mask[0] |= 2;
        let forbidden: Vec<f32> = (0..vocab)
            .map(|t| if allows(&mask, t) { logits[t] } else { f32::NEG_INFINITY })
            .collect();
        let row = masked(&logits, output, &[], &[0; 256], Some(&mask));
        assert!(allows(&mask, row.token as usize));
        assert_eq!(row.token, oracle(&forbidden, &output), "{output:?}");
        // The probability is the model's, without the mask.
        let all: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let exact = f64::from(logits[row.token as usize]) - all.ln();
        assert!((f64::from(row.log_probability) - exact).abs() < 1e-5);
        let mut out = [Candidate::default(); 7];
        candidates(Variant::Scalar, &logits, Some(&mask), &mut out);
        let mut ids: Vec<u32> = (0..vocab as u32).collect();
        ids.retain(|t| allows(&mask, *t as usize));
        ids.sort_by(|a, b| order(&logits, *a, *b));
        ids.truncate(7);
        assert_eq!(row.candidates as usize, ids.len());
        assert_eq!(out[..ids.len()].iter().map(|c| c.token).collect::<Vec<_>>(), ids);
    }
}

#[test]
fn a_mask_overrides_biases_and_an_empty_mask_draws_nothing() {
    let bias = BiasRow { token: 0, bias: 50.0 };
    let row = masked(&[1.0, 3.0, 2.0], GREEDY, &[bias], &[0; 256], Some(&[0b100]));
    assert_eq!((row.token, row.flags), (2, ResultRow::SAMPLED));
    let row = masked(&[1.0, 3.0, 2.0], GREEDY, &[], &[0; 256], Some(&[0b1000]));
    assert_eq!((row.token, row.flags), (0, ResultRow::NOT_FINITE));
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0, 1.0, 2.0];
    let mut counts = [0_u32; 3];
    for position in 0..20_000 {
        let output = OutputRow { temperature: 1.0, position, ..GREEDY };
        counts[draw(&logits, output, &[], &[0; 256]).token as usize] += 1;
    }
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    for (count, logit) in counts.iter().zip(logits) {
        let expected = f64::from(logit).exp() / total * 20_000.0;
        assert!((f64::from(*count) - expected).abs() < 4.0 * expected.sqrt(), "{counts:?}");
    }
}

#[test]
fn greedy_takes_the_lower_id_of_equal_logits() {
    let row = draw(&[1.0, 3.0, 3.0], GREEDY, &[], &[0; 256]);
    assert_eq!(row.token, 1);
    let exact = 3.0 - (1_f64.exp() + 2.0 * 3_f64.exp()).ln();
    assert!((f64::from(row.log_probability) - exact).abs() < 1e-6);
}

#[test]
fn biases_and_penalties_affect_the_draw_and_not_the_log_probability() {
    let logits = [1.0, 3.0, 2.9];
    let plain = draw(&logits, GREEDY, &[], &[0; 256]);
    let bias = BiasRow { token: 1, bias: f32::NEG_INFINITY };
    assert_eq!(draw(&logits, GREEDY, &[bias], &[0; 256]).token, 2);
    let mut recent = [0; 256];
    recent[8] = 1;
    let penalized = OutputRow { presence_penalty: 0.2, penalty_window: 2, ..GREEDY };
    assert_eq!(draw(&logits, penalized, &[], &recent).token, 2);
    let short = OutputRow { penalty_window: 1, ..penalized };
    assert_eq!(draw(&logits, short, &[], &recent), plain);
}

#[test]
fn penalties_depend_on_occurrences_and_the_sign_of_the_logit() {
    let output = OutputRow {
        repetition_penalty: 2.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        penalty_window: 3,
        position: 2,
        ..GREEDY
    };
    let mut values = [4.0, -4.0, 1.0];
    let mut recent = [9; 256];
    recent[..3].copy_from_slice(&[0, 1, 0]);
    Draw {
        variant: Variant::Scalar,
        logits: &[],
        output: &output,
        biases: &[],
        mask: None,
        recent: &recent,
    }
    .adjust(&mut values);
    assert_eq!(values, [4.0 / 2.0 - 0.25 - 1.0, -4.0 * 2.0 - 0.25 - 0.5, 1.0]);
}

#[test]
fn non_finite_logits_are_flagged() {
    for bad in [f32::NAN, f32::INFINITY] {
        let row = draw(&[0.0, bad, 1.0], GREEDY, &[], &[0; 256]);
        assert_eq!((row.flags, row.token), (ResultRow::NOT_FINITE, 0));
    }
    let nothing = [f32::NEG_INFINITY; 2];
    assert_eq!(draw(&nothing, GREEDY, &[], &[0; 256]).flags, ResultRow::NOT_FINITE);
    let row = draw(&[f32::NEG_INFINITY, 1.0], GREEDY, &[], &[0; 256]);
    assert_eq!((row.flags, row.token), (ResultRow::SAMPLED, 1));
}

/// Such an output samples nothing: no arbitrary token, and no panic in sorting.
#[test]
fn non_finite_logits_after_biases_or_penalties_draw_nothing() {
    let logits = numbers(700, 1);
    for (top_k, top_p) in [(0, 1.0), (0, 0.9), (5, 1.0), (300, 0.9)] {
        let output = OutputRow { temperature: 1.0, top_k, top_p, penalty_window: 1, ..GREEDY };
        for temperature in [0.0, 1.0] {
            let output = OutputRow { temperature, ..output };
            let bias = [BiasRow { token: 3, bias: f32::NAN }];
            let row = draw(&logits, output, &bias, &[600; 256]);
            assert_eq!((row.flags, row.token), (ResultRow::NOT_FINITE, 0), "{output:?}");
            let output = OutputRow { repetition_penalty: 0.0, ..output };
            let bias = [BiasRow { token: 3, bias: f32::NEG_INFINITY }];
            let row = draw(&logits, output, &bias, &[3; 256]);
            assert_eq!((row.flags, row.token), (ResultRow::NOT_FINITE, 0), "{output:?}");
        }
    }
}

#[test]
fn candidates_are_sorted_and_their_probabilities_add_up() {
    let logits = [0.5, 2.0, 2.0, -1.0, f32::NEG_INFINITY];
    let mut out = [Candidate::default(); 5];
    candidates(Variant::Scalar, &logits, None, &mut out);
    assert_eq!(out.map(|c| c.token), [1, 2, 0, 3, 4]);
    let sum: f32 = out.iter().map(|c| c.log_probability.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6);
}
