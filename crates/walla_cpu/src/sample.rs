//! Draws tokens as [`Op::Sample`](walla_device::Op::Sample) specifies. Pure: one output at a time, from a copy of its logits.

use std::cmp::Ordering;

use walla_device::step::{BiasRow, Candidate, OutputRow, ResultRow};
use walla_device::{philox4x32, unit_interval};
use walla_types::PENALTY_WINDOW_MAX;

use crate::kernels;
use crate::options::Variant;

/// Up to this many tokens, keeping them sorted while scanning is faster than selecting.
const INSERT_MAX: usize = 128;
/// Tokens that a cut by probability mass looks at first.
const PREFIX_FIRST: usize = 64;
/// More than the largest `-ln(-ln u)`: with `u <= 1 - 2^-24` that is `24 ln 2 = 16.64`.
const GUMBEL_MAX: f32 = 17.0;

/// Largest logit and logarithm of the sum of exponentials.
#[derive(Clone, Copy)]
struct Normaliser {
    max: f32,
    log_sum: f64,
}

impl Normaliser {
    /// `None` if some logit is NaN or positive infinity, or all are negative infinity.
    fn of(variant: Variant, logits: &[f32]) -> Option<Self> {
        let bad = logits.iter().fold(false, |bad, l| bad | l.is_nan() | (*l == f32::INFINITY));
        let max = kernels::max(variant, logits);
        if bad || max == f32::NEG_INFINITY {
            return None;
        }
        Some(Self { max, log_sum: kernels::sum_exp(variant, logits, max).ln() })
    }

    fn log_probability(self, logit: f32) -> f32 {
        (f64::from(logit - self.max) - self.log_sum) as f32
    }
}

/// Likeliest first, the lower id first of equals.
fn order(values: &[f32], a: u32, b: u32) -> Ordering {
    let (va, vb) = (values[a as usize], values[b as usize]);
    vb.partial_cmp(&va).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// The first `ids.len()` tokens in [`order`], which is at most all.
fn insert_top(values: &[f32], ids: &mut [u32]) {
    let (wanted, mut count) = (ids.len(), 0);
    if wanted == 0 {
        return;
    }
    for (chunk, block) in values.chunks(64).enumerate() {
        let threshold =
            if count < wanted { f32::NEG_INFINITY } else { values[ids[count - 1] as usize] };
        let any = block.iter().fold(false, |any, value| any | (*value > threshold));
        if count == wanted && !any {
            continue;
        }
        for (i, value) in block.iter().enumerate() {
            if count == wanted {
                if *value <= values[ids[count - 1] as usize] {
                    continue;
                }
                count -= 1;
            }
            // Equals stay in front: they have lower ids.
            let at = ids[..count].partition_point(|id| values[*id as usize] >= *value);
            ids.copy_within(at..count, at + 1);
            ids[at] = (chunk * 64 + i) as u32;
            count += 1;
        }
    }
}

/// The same of the tokens that a mask allows, of which there are `ids.len()` at least.
fn insert_top_of(values: &[f32], mask: &[u32], ids: &mut [u32]) {
    let (wanted, mut count) = (ids.len(), 0);
    for token in (0..values.len()).filter(|token| allows(mask, *token)) {
        let value = values[token];
        let at = ids[..count].partition_point(|id| values[*id as usize] >= value);
        if at < wanted {
            count = (count + 1).min(wanted);
            ids[at..count].rotate_right(1);
            ids[at] = token as u32;
        }
    }
}

/// Puts the first `count` tokens in [`order`] in front of `ids`, which holds every token once.
fn select_top(values: &[f32], ids: &mut [u32], count: usize) {
    if count < ids.len() {
        ids.select_nth_unstable_by(count, |a, b| order(values, *a, *b));
    }
    ids[..count].sort_unstable_by(|a, b| order(values, *a, *b));
}

/// Packed bits of the tokens that may be drawn; `None` allows all.
pub(crate) type Mask<'a> = Option<&'a [u32]>;

/// Whether a mask allows a token.
fn allows(mask: &[u32], token: usize) -> bool {
    mask[token / 32] >> (token % 32) & 1 == 1
}

/// Tokens of a vocabulary that a mask allows.
fn allowed(mask: Mask<'_>, vocab: usize) -> usize {
    mask.map_or(vocab, |mask| (0..vocab).filter(|token| allows(mask, *token)).count())
}

/// The likeliest allowed tokens under the model alone; zeros if the logits are not finite.
pub(crate) fn candidates(variant: Variant, logits: &[f32], mask: Mask<'_>, out: &mut [Candidate]) {
    out.fill(Candidate::default());
    if out.is_empty() {
        return;
    }
    let Some(normaliser) = Normaliser::of(variant, logits) else { return };
    let mut ids = [0; walla_types::CANDIDATES_MAX as usize];
    let count = out.len().min(ids.len()).min(allowed(mask, logits.len()));
    match mask {
        None => insert_top(logits, &mut ids[..count]),
        Some(mask) => insert_top_of(logits, mask, &mut ids[..count]),
    }
    for (out, id) in out.iter_mut().zip(&ids[..count]) {
        let log_probability = normaliser.log_probability(logits[*id as usize]);
        *out = Candidate { token: *id, log_probability };
    }
}

/// One output to draw for.
pub(crate) struct Draw<'a> {
    pub variant: Variant,
    pub logits: &'a [f32],
    pub output: &'a OutputRow,
    pub biases: &'a [BiasRow],
    pub mask: Mask<'a>,
    /// Recent tokens of the sequence, by position modulo their number.
    pub recent: &'a [u32],
}

impl Draw<'_> {
    /// Draws. `adjusted` and `ids` are scratch of a vocabulary's length.
    pub(crate) fn draw(&self, adjusted: &mut [f32], ids: &mut [u32]) -> ResultRow {
        let not_finite = ResultRow { flags: ResultRow::NOT_FINITE, ..ResultRow::default() };
        let Some(normaliser) = Normaliser::of(self.variant, self.logits) else { return not_finite };
        let vocab = self.logits.len();
        let (values, ids) = (&mut adjusted[..vocab], &mut ids[..vocab]);
        values.copy_from_slice(self.logits);
        self.adjust(values);
        let first = largest(values);
        if values[first as usize] == f32::NEG_INFINITY {
            return not_finite;
        }
        let temperature = self.output.temperature;
        let tempered = values[first as usize] / temperature;
        let token = if temperature > 0.0 && tempered.is_finite() {
            values.iter_mut().for_each(|value| *value /= temperature);
            self.pick(values, ids, first)
        } else {
            first
        };
        ResultRow {
            token,
            flags: ResultRow::SAMPLED,
            log_probability: normaliser.log_probability(self.logits[token as usize]),
            candidates: self.output.candidates.min(allowed(self.mask, vocab) as u32),
        }
    }

    /// Biases, then penalties, then the mask.
    fn adjust(&self, values: &mut [f32]) {
        for bias in self.biases {
            if let Some(value) = values.get_mut(bias.token as usize) {
                *value += bias.bias;
            }
        }
        let output = self.output;
        let mut tokens = [0; PENALTY_WINDOW_MAX as usize];
        let window = output.penalty_window.min(PENALTY_WINDOW_MAX).min(output.position + 1);
        let tokens = &mut tokens[..window as usize];
        for (back, token) in tokens.iter_mut().enumerate() {
            *token = self.recent[(output.position as usize - back) % self.recent.len()];
        }
        tokens.sort_unstable();
        for same in tokens.chunk_by(|a, b| a == b) {
            let Some(value) = values.get_mut(same[0] as usize) else { continue };
            let repetition = output.repetition_penalty;
            *value = if *value > 0.0 { *value / repetition } else { *value * repetition };
            *value -= output.presence_penalty + same.len() as f32 * output.frequency_penalty;
        }
        let Some(mask) = self.mask else { return };
        for (values, word) in values.chunks_mut(32).zip(mask) {
            if *word != u32::MAX {
                let forbidden =
                    values.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                forbidden.for_each(|(_, value)| *value = f32::NEG_INFINITY);
            }
        }
    }

    /// Cuts and draws; `first` is the likeliest token.
    fn pick(&self, values: &[f32], ids: &mut [u32], first: u32) -> u32 {
        let output = self.output;
        let top = values[first as usize];
        let likely = |value: f32| (value - top).exp() >= output.min_p;
        let cuts_none = output.top_k == 0 || output.top_k as usize >= values.len();
        if cuts_none && output.top_p >= 1.0 {
            let all = (0..values.len() as u32)
                .filter(|id| output.min_p <= 0.0 || likely(values[*id as usize]));
            return self.gumbel(values, first, all);
        }
        let kept = self.prefix(values, ids, top);
        let likely_end = ids[..kept].partition_point(|id| likely(values[*id as usize]));
        self.gumbel(values, first, ids[..likely_end].iter().copied())
    }

    /// Sorts what top-k and top-p keep to the front of `ids` and returns its length, at least 1.
    fn prefix(&self, values: &[f32], ids: &mut [u32], top: f32) -> usize {
        let weight = |id: u32| f64::from((values[id as usize] - top).exp());
        let k = match self.output.top_k as usize {
            0 => values.len(),
            k => k.min(values.len()),
        };
        if k <= INSERT_MAX {
            insert_top(values, &mut ids[..k]);
        } else {
            ids.iter_mut().zip(0..).for_each(|(id, i)| *id = i);
            if k < values.len() {
                select_top(values, ids, k);
            }
        }
        if self.output.top_p >= 1.0 {
            return k;
        }
        let total: f64 = ids[..k].iter().map(|id| weight(*id)).sum();
        let wanted = f64::from(self.output.top_p) * total;
        let mut sorted = if k < values.len() || k <= INSERT_MAX { k } else { 0 };
        let (mut sum, mut end) = (0.0, 0);
        while end < k {
            if end == sorted {
                // Everything in front of `sorted` is in order already; extend it, eightfold each time.
                let next = (sorted * 8).max(PREFIX_FIRST).min(k);
                select_top(values, &mut ids[sorted..], next - sorted);
                sorted = next;
            }
            sum += weight(ids[end]);
            end += 1;
            if sum >= wanted {
                break;
            }
        }
        end
    }

    /// The kept token with the largest `s - ln(-ln u)`, the lower id of equals.
    fn gumbel(&self, values: &[f32], first: u32, kept: impl Iterator<Item = u32>) -> u32 {
        let score = |id: u32| {
            let counter = [self.output.position.wrapping_add(1), id, 0, 0];
            let u = unit_interval(philox4x32(counter, self.output.seed)[0]);
            values[id as usize] - (-u.ln()).ln()
        };
        let mut best = (first, score(first));
        for id in kept.filter(|id| *id != first) {
            // Too unlikely for any random number to lift it over the best.
            if values[id as usize] + GUMBEL_MAX < best.1 {
                continue;
            }
            let score = score(id);
            if score > best.1 || (score == best.1 && id < best.0) {
                best = (id, score);
            }
        }
        best.0
    }
}

/// Index of the largest value, the first of equals.
fn largest(values: &[f32]) -> u32 {
    let mut id = [0];
    insert_top(values, &mut id);
    id[0]
}

#[cfg(test)]
mod tests {
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

    /// Straight from the text of the contract: sort everything, cut, draw.
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
    fn every_mix_of_cuts_draws_what_the_contract_says() {
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

    #[test]
    fn a_masked_draw_is_the_draw_from_the_allowed_tokens_alone() {
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
            // The probability is the model's, which knows no mask.
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
    fn a_mask_beats_a_bias_and_one_without_bits_draws_nothing() {
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
    fn greedy_takes_the_lower_id_of_equals() {
        let row = draw(&[1.0, 3.0, 3.0], GREEDY, &[], &[0; 256]);
        assert_eq!(row.token, 1);
        let exact = 3.0 - (1_f64.exp() + 2.0 * 3_f64.exp()).ln();
        assert!((f64::from(row.log_probability) - exact).abs() < 1e-6);
    }

    #[test]
    fn biases_and_penalties_come_before_the_draw_and_not_into_the_log_probability() {
        let logits = [1.0, 3.0, 2.9];
        let plain = draw(&logits, GREEDY, &[], &[0; 256]);
        let bias = BiasRow { token: 1, bias: f32::NEG_INFINITY };
        assert_eq!(draw(&logits, GREEDY, &[bias], &[0; 256]).token, 2);
        let mut recent = [0; 256];
        recent[8] = 1;
        let penalised = OutputRow { presence_penalty: 0.2, penalty_window: 2, ..GREEDY };
        assert_eq!(draw(&logits, penalised, &[], &recent).token, 2);
        let short = OutputRow { penalty_window: 1, ..penalised };
        assert_eq!(draw(&logits, short, &[], &recent), plain);
    }

    #[test]
    fn penalties_count_occurrences_and_know_the_sign() {
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
    fn logits_that_are_not_finite_are_told() {
        for bad in [f32::NAN, f32::INFINITY] {
            let row = draw(&[0.0, bad, 1.0], GREEDY, &[], &[0; 256]);
            assert_eq!((row.flags, row.token), (ResultRow::NOT_FINITE, 0));
        }
        let nothing = [f32::NEG_INFINITY; 2];
        assert_eq!(draw(&nothing, GREEDY, &[], &[0; 256]).flags, ResultRow::NOT_FINITE);
        let row = draw(&[f32::NEG_INFINITY, 1.0], GREEDY, &[], &[0; 256]);
        assert_eq!((row.flags, row.token), (ResultRow::SAMPLED, 1));
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
}
