//! Capacities of an executor.

use walla_device::KvType;
use walla_device::step::StepLayout;
use walla_model::ModelSpec;
use walla_model::spec::Mixer;
use walla_plan::{CacheNeeds, CacheSize, defaults};
use walla_types::MAX_LOGIT_BIASES;

use crate::error::ExecError;

/// Memory that agents of a model take, with keys and values of this type.
#[must_use]
pub fn cache_needs(model: &ModelSpec, kv_type: KvType, context_tokens: u32) -> CacheNeeds {
    let scales = model.layers.iter().map(|layer| match &layer.mixer {
        Mixer::Attention(attention) if attention.own_keys().is_some() => {
            2 * attention.kv_heads * kv_type.scale_bytes()
        }
        Mixer::Attention(_) | Mixer::ShortConv(_) | Mixer::DeltaNet(_) => 0,
    });
    let of_token = model.kv_numbers_per_token() * kv_type.bytes() + scales.sum::<usize>();
    CacheNeeds {
        context_tokens,
        kv_bytes_per_token: of_token as u64,
        state_bytes_per_agent: (model.state_numbers_per_sequence() * size_of::<f32>()) as u64,
    }
}

/// Result of a step for each output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Logits, and a sampled token.
    Tokens,
    /// The hidden state behind the last norm, in place of logits. Nothing is sampled. The device
    /// must run [`OpKind::Hidden`](walla_device::OpKind::Hidden).
    Hidden,
}

/// Capacities of an executor. They determine all memory, which is allocated at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecOptions {
    /// Maximum number of live sequences: the bound of every `SeqId`. Default:
    /// [`defaults::MAX_SEQUENCES`].
    pub max_sequences: u32,
    /// Snapshots of recurrent states: further sequences that only hold copies. Each takes the state
    /// of one sequence in device memory. Default 0. No effect on models without recurrent layers.
    pub max_snapshots: u32,
    /// Bytes of a host buffer for copies of cache contents
    /// ([`Executor::read_part`](crate::Executor::read_part)), at least. There are two buffers, and
    /// one further sequence, which follows the snapshots. Default 0: none of them.
    pub transfer_bytes: u32,
    /// Maximum tokens of one sequence. Default: [`defaults::CONTEXT_TOKENS`].
    pub context_tokens: u32,
    /// Tokens in a KV page. Default: [`defaults::PAGE_TOKENS`].
    pub page_tokens: u32,
    /// KV pages of all sequences together, including the reserved page 0. Default: enough for
    /// every sequence at its maximum length.
    pub pages: u32,
    /// Rows of one step. Default: [`defaults::MAX_ROWS`].
    pub max_rows: u32,
    /// Outputs of one step. Default: [`defaults::MAX_SEQUENCES`].
    pub max_outputs: u32,
    /// Rows of logits that one step can copy to the host. Default 4: few agents request logits, and
    /// a row of a 150,000-token vocabulary is 600 kB.
    pub max_logits_rows: u32,
    /// Maximum number of different token masks in one step. A mask takes one bit per token on the
    /// device (16 KB for a vocabulary of 128,000 tokens) and the same amount of pinned memory for
    /// each step in flight. Default 0: no step has masks.
    pub max_masks: u32,
    /// Whether steps write their results and completion flag directly to mapped host memory, if the
    /// device can. This takes fewer driver calls and completes earlier than a copy behind an event
    /// (`benches/results/cuda-host.md`). Default: yes.
    pub mapped_results: bool,
    /// Storage format of keys and values. Default f16.
    pub kv_type: KvType,
    /// Maximum steps in flight. Default 3: one runs, one is submitted ahead, one is being read.
    pub ring: u32,
    /// Result of a step for each output. Default: [`Target::Tokens`].
    pub target: Target,
}

impl Default for ExecOptions {
    fn default() -> Self {
        Self {
            max_sequences: defaults::MAX_SEQUENCES,
            max_snapshots: 0,
            transfer_bytes: 0,
            context_tokens: defaults::CONTEXT_TOKENS,
            page_tokens: defaults::PAGE_TOKENS,
            pages: defaults::MAX_SEQUENCES * (defaults::CONTEXT_TOKENS / defaults::PAGE_TOKENS) + 1,
            max_rows: defaults::MAX_ROWS,
            max_outputs: defaults::MAX_SEQUENCES,
            max_logits_rows: 4,
            max_masks: 0,
            mapped_results: true,
            kv_type: KvType::F16,
            ring: 3,
            target: Target::Tokens,
        }
    }
}

impl ExecOptions {
    /// Options with enough pages for every sequence at its maximum length.
    #[must_use]
    pub fn with_full_pages(mut self) -> Self {
        self.pages = self.max_sequences.saturating_mul(self.pages_per_sequence()).saturating_add(1);
        self
    }

    /// Options for a cache of this size.
    #[must_use]
    pub fn with_cache(mut self, size: CacheSize) -> Self {
        self.max_sequences = size.agents;
        // Plus the reserved page.
        let pages = size.kv_tokens.div_ceil(self.page_tokens.max(1)).max(1);
        self.pages = pages.saturating_add(1);
        self
    }

    /// Entries of a page table.
    #[must_use]
    pub fn pages_per_sequence(&self) -> u32 {
        self.context_tokens.div_ceil(self.page_tokens.max(1))
    }

    /// Sequences of the cache: agents, snapshots, and the one for copies.
    #[must_use]
    pub fn cache_sequences(&self) -> u32 {
        self.max_sequences + self.max_snapshots + u32::from(self.transfer_bytes > 0)
    }

    pub(crate) fn check(&self) -> Result<(), ExecError> {
        let bounds = [
            ("max_sequences", self.max_sequences, 1..=65_536),
            ("max_snapshots", self.max_snapshots, 0..=65_536),
            ("transfer_bytes", self.transfer_bytes, 0..=1 << 30),
            ("context_tokens", self.context_tokens, 1..=1 << 20),
            ("page_tokens", self.page_tokens, 1..=1_024),
            ("pages", self.pages, 2..=1 << 28),
            ("max_rows", self.max_rows, 1..=512),
            ("max_outputs", self.max_outputs, 1..=512),
            ("max_logits_rows", self.max_logits_rows, 0..=512),
            ("max_masks", self.max_masks, 0..=4_096),
            ("ring", self.ring, 1..=64),
        ];
        for (name, value, range) in bounds {
            if !range.contains(&value) {
                let what = format!("{name} is {value}, expected {range:?}");
                return Err(ExecError::Options(what));
            }
        }
        Ok(())
    }

    pub(crate) fn layout(&self) -> StepLayout {
        StepLayout {
            max_rows: self.max_rows,
            max_outputs: self.max_outputs,
            max_biases: self.max_outputs * MAX_LOGIT_BIASES as u32,
            max_sequences: self.max_sequences.min(self.max_rows),
            pages_per_sequence: self.pages_per_sequence(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excessive_capacities_are_refused() {
        let options = ExecOptions::default();
        assert!(options.check().is_ok());
        let unreasonable = [
            (ExecOptions { max_masks: u32::MAX, ..options }, "max_masks"),
            (ExecOptions { max_logits_rows: u32::MAX, ..options }, "max_logits_rows"),
            (ExecOptions { pages: u32::MAX, ..options }, "pages"),
            (ExecOptions { pages: 1, ..options }, "pages"),
            (ExecOptions { ring: 0, ..options }, "ring"),
        ];
        for (options, name) in unreasonable {
            let refusal = options.check().expect_err(name).to_string();
            assert!(refusal.starts_with(&format!("{name} is ")), "{refusal}");
        }
    }
}
