//! Samples tokens from hashes.

use walla_device::step::{BiasRow, OutputRow, ResultRow};
use walla_types::MAX_PENALTY_WINDOW;

/// Mixes a number into a hash: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
pub(super) fn mix(hash: u64, number: u64) -> u64 {
    let mut z = (hash ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixes one cell of a context into its hash.
pub(super) fn cell_hash(hash: u64, token: u32, position: i64) -> u64 {
    mix(hash, u64::from(token) | (position as u64) << 32)
}

/// Mixes in the tokens in an output's penalty window. `token_at` returns the token at a position.
pub(super) fn penalty_hash(output: &OutputRow, hash: u64, token_at: impl Fn(u32) -> u32) -> u64 {
    let is_off = output.repetition_penalty == 1.0
        && output.presence_penalty == 0.0
        && output.frequency_penalty == 0.0;
    if is_off {
        return hash;
    }
    let window = output.penalty_window.min(MAX_PENALTY_WINDOW).min(output.position + 1);
    let first = output.position + 1 - window;
    (first..=output.position).fold(hash, |hash, position| mix(hash, token_at(position).into()))
}

/// Inputs shared by all outputs of a step.
pub(super) struct Sampler<'a> {
    pub vocab: u32,
    pub biases: &'a [BiasRow],
    pub masks: &'a [u32],
    pub mask_words: usize,
}

impl Sampler<'_> {
    /// Samples a token from the hash of an output's context.
    pub fn draw(&self, output: &OutputRow, context: u64) -> ResultRow {
        let mut hash = mix(context, u64::from(output.temperature.to_bits()));
        if output.temperature > 0.0 {
            let seed = u64::from(output.seed[0]) | u64::from(output.seed[1]) << 32;
            hash = mix(mix(hash, seed), u64::from(output.position) + 1);
        }
        let first = (hash % u64::from(self.vocab)) as u32;
        let candidates = (first..self.vocab).chain(0..first);
        match candidates.into_iter().find(|&token| self.allows(output, token)) {
            Some(token) => ResultRow {
                token,
                flags: ResultRow::SAMPLED,
                log_probability: -1.0 - (hash >> 40) as f32 / 1e7,
                candidates: output.candidates.min(self.vocab),
            },
            None => ResultRow { flags: ResultRow::NOT_FINITE, ..ResultRow::default() },
        }
    }

    fn allows(&self, output: &OutputRow, token: u32) -> bool {
        let first = output.bias_first as usize;
        let biases = self.biases.get(first..first + output.bias_count as usize);
        let forbids = |bias: &BiasRow| bias.token == token && bias.bias == f32::NEG_INFINITY;
        if biases.unwrap_or_default().iter().any(forbids) {
            return false;
        }
        let Some(mask) = output.mask.checked_sub(1) else { return true };
        let word = mask as usize * self.mask_words + token as usize / 32;
        self.masks.get(word).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}
