//! Capacities: all memory follows from them.

use walla_device::KvType;
use walla_device::step::StepLayout;
use walla_types::LOGIT_BIASES_MAX;

use crate::error::ExecError;

/// Capacities of an executor: all memory follows from them, at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecOptions {
    /// Sequences that live at the same time: the bound of every `SeqId`. Default 64.
    pub sequences_max: u32,
    /// Tokens of one sequence, at most. Default 1,024.
    pub context_tokens: u32,
    /// Tokens in a KV page. Default 16: half a page is wasted per sequence on average, and a table
    /// of 1,024 tokens is 64 entries.
    pub page_tokens: u32,
    /// KV pages of all sequences together, the reserved page 0 included. Default 4,097: 64 full
    /// contexts.
    pub pages: u32,
    /// Rows of one step. Default 128.
    pub rows_max: u32,
    /// Outputs of one step. Default 64.
    pub outputs_max: u32,
    /// Rows of logits that one step can bring to the host. Default 4: few agents ask for logits,
    /// and a row of a 150,000-token vocabulary is 600 kB.
    pub logits_rows_max: u32,
    /// Different masks of allowed tokens that one step can have. A mask takes a bit a token on the
    /// device (16 KB of a vocabulary of 128,000 tokens) and as much pinned memory for each step in
    /// flight. Default 0: no step has masks.
    pub masks_max: u32,
    /// Whether steps write their results straight into the host's memory and tell their end there,
    /// on devices that can: fewer calls of the driver and an earlier end than a copy behind an
    /// event (`benches/results/cuda-host.md`). Default: yes.
    pub mapped_results: bool,
    /// How keys and values are stored. Default f16.
    pub kv_type: KvType,
    /// Steps in flight. Default 3: one runs, one is launched ahead, one is being read.
    pub ring: u32,
}

impl Default for ExecOptions {
    fn default() -> Self {
        Self {
            sequences_max: 64,
            context_tokens: 1_024,
            page_tokens: 16,
            pages: 64 * 64 + 1,
            rows_max: 128,
            outputs_max: 64,
            logits_rows_max: 4,
            masks_max: 0,
            mapped_results: true,
            kv_type: KvType::F16,
            ring: 3,
        }
    }
}

impl ExecOptions {
    /// Options with as many pages as every sequence needs at its longest.
    #[must_use]
    pub fn with_full_pages(mut self) -> Self {
        self.pages = self.sequences_max.saturating_mul(self.pages_per_sequence()).saturating_add(1);
        self
    }

    /// Entries of a page table.
    #[must_use]
    pub fn pages_per_sequence(&self) -> u32 {
        self.context_tokens.div_ceil(self.page_tokens.max(1))
    }

    pub(crate) fn check(&self) -> Result<(), ExecError> {
        let bounds = [
            ("sequences_max", self.sequences_max, 1..=65_536),
            ("context_tokens", self.context_tokens, 1..=1 << 20),
            ("page_tokens", self.page_tokens, 1..=1_024),
            ("pages", self.pages, 2..=1 << 28),
            ("rows_max", self.rows_max, 1..=512),
            ("outputs_max", self.outputs_max, 1..=512),
            ("logits_rows_max", self.logits_rows_max, 0..=512),
            ("masks_max", self.masks_max, 0..=4_096),
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
            rows_max: self.rows_max,
            outputs_max: self.outputs_max,
            biases_max: self.outputs_max * LOGIT_BIASES_MAX as u32,
            sequences_max: self.sequences_max.min(self.rows_max),
            pages_per_sequence: self.pages_per_sequence(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_beyond_all_reason_are_refused() {
        let options = ExecOptions::default();
        assert!(options.check().is_ok());
        let unreasonable = [
            (ExecOptions { masks_max: u32::MAX, ..options }, "masks_max"),
            (ExecOptions { logits_rows_max: u32::MAX, ..options }, "logits_rows_max"),
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
