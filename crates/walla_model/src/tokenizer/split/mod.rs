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

mod deepseek;
mod gpt2;
mod llama3;
mod mixed_case;
mod scan;

use super::unicode::Class;
use scan::{isolate, one, run, run_of};

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

    /// Calls `word` with the words of `text`, in order; they concatenate to `text`.
    pub(crate) fn split<'t>(self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        match self {
            Self::Default => isolate(text, default_signs, &mut |piece| {
                gpt2::split(piece, &mut |piece| {
                    isolate(piece, numbers, &mut |piece| isolate(piece, three_digits, word));
                });
            }),
            Self::Gpt2 => gpt2::split(text, word),
            Self::Llama3 | Self::Dbrx => {
                llama3::Llama3 { digits: 3, marks: false }.split(text, word);
            }
            Self::MiniCpm5 => isolate(text, up_to_three_numbers, &mut |piece| {
                llama3::Llama3 { digits: usize::MAX, marks: false }.split(piece, word);
            }),
            Self::Qwen2 => llama3::Llama3 { digits: 1, marks: false }.split(text, word),
            Self::Qwen35 => llama3::Llama3 { digits: 1, marks: true }.split(text, word),
            Self::SmolLm => isolate(text, one_number, &mut |piece| gpt2::split(piece, word)),
            Self::Falcon => isolate(text, falcon_signs, &mut |piece| {
                gpt2::split(piece, &mut |piece| isolate(piece, three_digits, word));
            }),
            Self::DeepseekLlm => deepseek::split_llm(text, word),
            Self::DeepseekCoder => deepseek::split_coder(text, word),
            Self::DeepseekV3 => deepseek::split_v3(text, word),
            Self::Gpt4o => mixed_case::Rules { digits: 3, endings: true }.split(text, word),
            Self::Tekken => mixed_case::Rules { digits: 1, endings: false }.split(text, word),
        }
    }
}

/// `[\p{P}\$\+<=>\^~\|]+`: punctuation of any script, symbols of ASCII except the backtick.
fn default_signs(text: &str) -> usize {
    run(text, |c| Class::of(c) == Class::Punctuation || "$+<=>^~|".contains(c))
}

/// As [`default_signs`], with the backtick.
fn falcon_signs(text: &str) -> usize {
    run(text, |c| Class::of(c) == Class::Punctuation || "$+<=>^~|`".contains(c))
}

/// `\p{N}+`.
fn numbers(text: &str) -> usize {
    run_of(text, Class::Number)
}

/// `\p{N}`.
fn one_number(text: &str) -> usize {
    one(text, |c| Class::of(c) == Class::Number)
}

/// `\p{N}{1,3}`.
fn up_to_three_numbers(text: &str) -> usize {
    scan::run_at_most(text, 3, |c| Class::of(c) == Class::Number)
}

/// `[0-9][0-9][0-9]`.
fn three_digits(text: &str) -> usize {
    let digits = text.bytes().take(3).take_while(u8::is_ascii_digit).count();
    if digits == 3 { 3 } else { 0 }
}

#[cfg(test)]
mod tests;
