//! Pre-tokenizers of byte-level BPE: they split text into words before pairs are merged.
//!
//! A vocabulary names its pre-tokenizer (`tokenizer.ggml.pre`). Each is published as one or several
//! regular expressions, applied sequentially, each to the pieces of the previous one. Text that an
//! expression does not match is a separate piece. Here each expression is a hand-written scanner:
//! linear in the text, without backtracking or allocation. Pieces are returned in order and
//! concatenate to the text.
//!
//! The reference is llama.cpp (`llama-vocab.cpp`, `unicode.cpp`), including two deviations of its
//! engine from the published expressions: all white-space characters beyond ASCII are treated as
//! the same character, which is in no range; and `$` is the end of the current piece.

mod rules;
mod scan;

use rules::{
    cased_letters, chinese_or_kana, deepseek_v3, default_signs, east_asian, falcon_signs, gpt2,
    letters, line_break, llama3, mixed_case, numbers, punctuation, signs, three_digits,
};
use scan::{Matcher, is_space, isolate_all};

/// How text is split into words before merging: the families of `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// For older files without a name.
    Default,
    /// `gpt-2` and derivatives.
    Gpt2,
    /// `llama-bpe` and derivatives: up to three digits per word; words that are tokens are not
    /// merged.
    Llama3,
    /// `dbrx`, `smaug-bpe`: split as [`Llama3`](Self::Llama3), always merged.
    Dbrx,
    /// `minicpm5`: digits are grouped by three first.
    MiniCpm5,
    /// `qwen2` and derivatives: one digit per word.
    Qwen2,
    /// `qwen35`: as `qwen2`, with combining marks inside words.
    Qwen35,
    /// `smollm`, `starcoder` and derivatives: GPT-2 with single digits.
    SmolLm,
    /// `falcon`.
    Falcon,
    /// `deepseek-llm`.
    DeepseekLlm,
    /// `deepseek-coder`.
    DeepseekCoder,
    /// `deepseek-v3` and derivatives.
    DeepseekV3,
    /// `gpt-4o`, `llama4`: words split at a capital letter; English endings stay with the word.
    Gpt4o,
    /// `tekken` (Mistral Nemo): words split at a capital letter, single digits.
    Tekken,
}

impl PreTokenizer {
    /// One name per pre-tokenizer, for messages. [`from_name`](Self::from_name) accepts more names.
    #[rustfmt::skip]
    pub const NAMES: [&'static str; 14] = [
        "default", "gpt-2", "llama-bpe", "dbrx", "minicpm5", "qwen2", "qwen35", "smollm", "falcon",
        "deepseek-llm", "deepseek-coder", "deepseek-v3", "gpt-4o", "tekken",
    ];

    /// The pre-tokenizer with this name; `None` if it is not supported.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "" | "default" => Self::Default,
            "gpt-2" | "phi-2" | "gigachat" | "a.x-4.0" | "mellum" | "exaone4" | "mpt" | "olmo"
            | "jais" | "trillion" | "granite-docling" => Self::Gpt2,
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" => Self::Llama3,
            "dbrx" | "smaug-bpe" => Self::Dbrx,
            "minicpm5" => Self::MiniCpm5,
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2"
            | "hunyuan" | "solar-open" | "grok-2" => Self::Qwen2,
            "qwen35" => Self::Qwen35,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => Self::SmolLm,
            "falcon" => Self::Falcon,
            "deepseek-llm" => Self::DeepseekLlm,
            "deepseek-coder" => Self::DeepseekCoder,
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => Self::DeepseekV3,
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => Self::Gpt4o,
            "tekken" => Self::Tekken,
            _ => return None,
        })
    }

    /// Whether a word that is a token is used whole, without merging.
    #[must_use]
    pub fn ignores_merges(self) -> bool {
        matches!(self, Self::Llama3 | Self::MiniCpm5 | Self::Tekken)
    }

    /// Whether a file without the key gets a BOS token.
    #[must_use]
    pub fn adds_bos(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken)
    }

    /// Its expressions, in order.
    const fn matchers(self) -> &'static [Matcher] {
        match self {
            Self::Default => &[default_signs, gpt2, numbers::<{ usize::MAX }>, three_digits],
            Self::Gpt2 => &[gpt2],
            Self::Llama3 | Self::Dbrx => &[llama3::<3, false>],
            Self::MiniCpm5 => &[numbers::<3>, llama3::<{ usize::MAX }, false>],
            Self::Qwen2 => &[llama3::<1, false>],
            Self::Qwen35 => &[llama3::<1, true>],
            Self::SmolLm => &[numbers::<1>, gpt2],
            Self::Falcon => &[falcon_signs, gpt2, three_digits],
            // White space at the end of a piece is one piece before the last two: see `split`.
            Self::DeepseekLlm => {
                &[line_break, cased_letters, signs, east_asian, numbers::<{ usize::MAX }>]
            }
            Self::DeepseekCoder => &[line_break, letters, punctuation, east_asian, numbers::<1>],
            Self::DeepseekV3 => &[numbers::<3>, chinese_or_kana, deepseek_v3],
            Self::Gpt4o => &[mixed_case::<3, true>],
            Self::Tekken => &[mixed_case::<1, false>],
        }
    }

    /// Calls `word` with the words of `text`, in order; they concatenate to `text`.
    pub(crate) fn split<'t>(self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        let matchers = self.matchers();
        let (first, behind) = match self {
            Self::DeepseekLlm => matchers.split_at_checked(3).unwrap_or_default(),
            _ => return isolate_all(text, matchers, word),
        };
        // `\s+$` is no matcher: it would read all white space again at each of its characters.
        isolate_all(text, first, &mut |piece| {
            let (kept, spaces) = piece.split_at(piece.trim_end_matches(is_space).len());
            for part in [kept, spaces].into_iter().filter(|part| !part.is_empty()) {
                isolate_all(part, behind, word);
            }
        });
    }
}

#[cfg(test)]
mod tests;
