//! Samples tokens as [`Op::Sample`](walla_device::Op::Sample) specifies. Pure: one output at a
//! time, on a copy of its logits.

use std::cmp::Ordering;

use walla_device::step::{BiasRow, Candidate, OutputRow, ResultRow};
use walla_device::{philox4x32, unit_interval};
use walla_types::MAX_PENALTY_WINDOW;

use crate::kernels;
use crate::options::Variant;

/// Up to this number of tokens, insertion into a sorted list is faster than selection.
const MAX_INSERT: usize = 128;
/// Number of tokens that a top-p cut sorts first.
const PREFIX_FIRST: usize = 64;
/// More than the rounding errors of a logarithm and an exponential.
const FAR: f32 = 1e-3;
/// More than the largest `-ln(-ln u)`: with `u <= 1 - 2^-24` that is `24 ln 2 = 16.64`.
const MAX_GUMBEL: f32 = 17.0;

/// Largest logit, and logarithm of the sum of exponentials.
#[derive(Clone, Copy)]
struct Normalizer {
    max: f32,
    log_sum: f64,
}

impl Normalizer {
    /// `None` if some logit is NaN or positive infinity, or all are negative infinity.
    fn of(variant: Variant, logits: &[f32]) -> Option<Self> {
        let bad = logits.iter().fold(false, |bad, l| bad | l.is_nan() | (*l == f32::INFINITY));
        let max = kernels::max(variant, logits);
        if bad || max == f32::NEG_INFINITY {
            return None;
        }
        Some(Self { max, log_sum: libm::log(kernels::sum_exp(variant, logits, max)) })
    }

    fn log_probability(self, logit: f32) -> f32 {
        (f64::from(logit - self.max) - self.log_sum) as f32
    }
}

/// Order of likelihood, then of ids.
fn order(values: &[f32], a: u32, b: u32) -> Ordering {
    let (va, vb) = (values[a as usize], values[b as usize]);
    vb.partial_cmp(&va).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// The first `ids.len()` tokens in [`order`]; `ids` is not longer than `values`.
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
            // Equal values stay in front: they have lower ids.
            let at = ids[..count].partition_point(|id| values[*id as usize] >= *value);
            ids.copy_within(at..count, at + 1);
            ids[at] = (chunk * 64 + i) as u32;
            count += 1;
        }
    }
}

/// As [`insert_top`] for the tokens that a mask allows, which number at least `ids.len()`.
fn insert_top_of(values: &[f32], mask: &[u32], ids: &mut [u32]) {
    let (wanted, mut count) = (ids.len(), 0);
    for (first, mut word) in words(mask, values.len()) {
        while word != 0 {
            let token = first + word.trailing_zeros() as usize;
            word &= word - 1;
            let value = values[token];
            let at = ids[..count].partition_point(|id| values[*id as usize] >= value);
            if at < wanted {
                count = (count + 1).min(wanted);
                ids[at..count].rotate_right(1);
                ids[at] = token as u32;
            }
        }
    }
}

/// Moves the first `count` tokens in [`order`] to the front of `ids`, which holds every token once.
fn select_top(values: &[f32], ids: &mut [u32], count: usize) {
    if count < ids.len() {
        ids.select_nth_unstable_by(count, |a, b| order(values, *a, *b));
    }
    ids[..count].sort_unstable_by(|a, b| order(values, *a, *b));
}

/// Packed bits of the allowed tokens; `None` allows all.
pub(crate) type Mask<'a> = Option<&'a [u32]>;

/// First token and bits of each word of a mask. Bits beyond the vocabulary have no meaning and are
/// cleared.
fn words(mask: &[u32], vocab: usize) -> impl Iterator<Item = (usize, u32)> {
    let cut = move |first: usize| match vocab - first {
        32.. => u32::MAX,
        left => (1 << left) - 1,
    };
    (0..vocab).step_by(32).zip(mask).map(move |(first, word)| (first, word & cut(first)))
}

/// Number of tokens in a vocabulary that a mask allows.
fn allowed(mask: Mask<'_>, vocab: usize) -> usize {
    mask.map_or(vocab, |mask| words(mask, vocab).map(|(_, word)| word.count_ones() as usize).sum())
}

/// The likeliest allowed tokens by the model's probabilities; zeros if the logits are not finite.
pub(crate) fn candidates(variant: Variant, logits: &[f32], mask: Mask<'_>, out: &mut [Candidate]) {
    out.fill(Candidate::default());
    if out.is_empty() {
        return;
    }
    let Some(normalizer) = Normalizer::of(variant, logits) else { return };
    let mut ids = [0; walla_types::MAX_CANDIDATES as usize];
    let count = out.len().min(ids.len()).min(allowed(mask, logits.len()));
    match mask {
        None => insert_top(logits, &mut ids[..count]),
        Some(mask) => insert_top_of(logits, mask, &mut ids[..count]),
    }
    for (out, id) in out.iter_mut().zip(&ids[..count]) {
        let log_probability = normalizer.log_probability(logits[*id as usize]);
        *out = Candidate { token: *id, log_probability };
    }
}

/// One output to sample.
pub(crate) struct Draw<'a> {
    pub variant: Variant,
    pub logits: &'a [f32],
    pub output: &'a OutputRow,
    pub biases: &'a [BiasRow],
    pub mask: Mask<'a>,
    /// Recent tokens of the sequence, indexed by position modulo their number.
    pub recent: &'a [u32],
}

impl Draw<'_> {
    /// Samples a token. `adjusted` and `ids` are scratch of a vocabulary's length.
    pub(crate) fn draw(&self, adjusted: &mut [f32], ids: &mut [u32]) -> ResultRow {
        let not_finite = ResultRow { flags: ResultRow::NOT_FINITE, ..ResultRow::default() };
        let Some(normalizer) = Normalizer::of(self.variant, self.logits) else { return not_finite };
        let vocab = self.logits.len();
        let (values, ids) = (&mut adjusted[..vocab], &mut ids[..vocab]);
        values.copy_from_slice(self.logits);
        self.adjust(values);
        // A bias or a penalty can turn finite numbers into NaN, and NaN has no order.
        let has_nan = values.iter().fold(false, |any, value| any | value.is_nan());
        let first = largest(values);
        if has_nan || values[first as usize] == f32::NEG_INFINITY {
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
            log_probability: normalizer.log_probability(self.logits[token as usize]),
            candidates: match self.output.candidates {
                // The usual case; counting the tokens that a mask allows costs time.
                0 => 0,
                wanted => wanted.min(allowed(self.mask, vocab) as u32),
            },
        }
    }

    /// Applies biases, then penalties, then the mask.
    fn adjust(&self, values: &mut [f32]) {
        for bias in self.biases {
            if let Some(value) = values.get_mut(bias.token as usize) {
                *value += bias.bias;
            }
        }
        let output = self.output;
        let mut tokens = [0; MAX_PENALTY_WINDOW as usize];
        let window = output.penalty_window.min(MAX_PENALTY_WINDOW).min(output.position + 1);
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

    /// Truncates and samples; `first` is the likeliest token.
    fn pick(&self, values: &[f32], ids: &mut [u32], first: u32) -> u32 {
        let output = self.output;
        let top = values[first as usize];
        // Most tokens are far below the bound, and need no exponential.
        let far = libm::logf(output.min_p) - FAR; // `min_p` 0: negative infinity
        let likely = |value: f32| value - top >= far && libm::expf(value - top) >= output.min_p;
        let cuts_none = output.top_k == 0 || output.top_k as usize >= values.len();
        if cuts_none && output.top_p >= 1.0 {
            let all = (0..values.len() as u32)
                .filter(|id| output.min_p <= 0.0 || likely(values[*id as usize]));
            return self.gumbel(values, first, all);
        }
        // A cut needs the order of the likeliest tokens, which costs more than the draw.
        let kept = self.prefix(values, ids, top);
        let likely_end = ids[..kept].partition_point(|id| likely(values[*id as usize]));
        self.gumbel(values, first, ids[..likely_end].iter().copied())
    }

    /// Sorts the tokens that top-k and top-p keep to the front of `ids`. Returns their number, at
    /// least 1.
    fn prefix(&self, values: &[f32], ids: &mut [u32], top: f32) -> usize {
        let weight = |id: u32| f64::from(libm::expf(values[id as usize] - top));
        let k = match self.output.top_k as usize {
            0 => values.len(),
            k => k.min(values.len()),
        };
        if k <= MAX_INSERT {
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
        let total = if k == values.len() {
            kernels::sum_exp(self.variant, values, top)
        } else {
            ids[..k].iter().map(|id| weight(*id)).sum()
        };
        let wanted = f64::from(self.output.top_p) * total;
        // The first `k` are in order already, unless `k` is the whole vocabulary.
        let mut sorted = if k < values.len() || k <= MAX_INSERT { k } else { 0 };
        let (mut sum, mut end) = (0.0, 0);
        while end < k {
            if end == sorted {
                // All tokens before `sorted` are in order; extend the sorted part eightfold.
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

    /// The kept token with the largest `s - ln(-ln u)`; of equal ones the lower id.
    fn gumbel(&self, values: &[f32], first: u32, kept: impl Iterator<Item = u32>) -> u32 {
        let score = |id: u32| {
            let counter = [self.output.position.wrapping_add(1), id, 0, 0];
            let u = unit_interval(philox4x32(counter, self.output.seed)[0]);
            values[id as usize] - libm::logf(-libm::logf(u))
        };
        let mut best = (first, score(first));
        for id in kept.filter(|id| *id != first) {
            // Too unlikely to exceed the best with any random number.
            if values[id as usize] + MAX_GUMBEL < best.1 {
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

/// Index of the largest value; of equal ones the first.
fn largest(values: &[f32]) -> u32 {
    let mut id = [0];
    insert_top(values, &mut id);
    id[0]
}

#[cfg(test)]
mod tests;
