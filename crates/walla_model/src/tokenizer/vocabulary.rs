use super::error::VocabularyError;
use crate::gguf::{Floats, Gguf, Integers, Strings};

/// What a file says about its tokenizer, unchecked: the input of [`Tokenizer::new`](super::Tokenizer::new).
///
/// Names are those of GGUF's metadata keys without `tokenizer.ggml.`; lists are by token id.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary<'a> {
    /// `model`: "llama" (SentencePiece-style BPE) or "gpt2" (byte-level BPE).
    pub model: &'a str,
    /// `pre`: the pre-tokenizer of a "gpt2" model; empty if the file does not say.
    pub pre: &'a str,
    /// `general.name`, if any. Phi 3 files are known by their name: their markers take the white space behind them.
    pub model_name: &'a str,
    /// `tokens`.
    pub tokens: Vec<&'a str>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Without it all are normal.
    pub token_types: Option<Vec<i64>>,
    /// `scores`: needed by "llama".
    pub scores: Option<Vec<f32>>,
    /// `merges`: needed by "gpt2"; the most urgent first.
    pub merges: Option<Vec<&'a str>>,
    /// `…_token_id`.
    pub special: SpecialIds,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

/// Tokens with a role, as far as the file names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn of a chat.
    pub eot: Option<u32>,
    /// Ends a message that waits for a tool.
    pub eom: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unknown: Option<u32>,
    /// Before the text in front of a gap to fill.
    pub fim_prefix: Option<u32>,
    /// Before the text behind a gap to fill.
    pub fim_suffix: Option<u32>,
    /// Before what fills the gap.
    pub fim_middle: Option<u32>,
    /// Fills up a gap.
    pub fim_pad: Option<u32>,
    /// Before a repository's name.
    pub fim_repo: Option<u32>,
    /// Between files.
    pub fim_separator: Option<u32>,
}

type Slot = fn(&mut SpecialIds) -> &mut Option<u32>;

/// Metadata keys of special tokens; of two keys for one role the later one counts.
const KEYS: [(&str, Slot); 14] = [
    ("tokenizer.ggml.bos_token_id", |ids| &mut ids.bos),
    ("tokenizer.ggml.eos_token_id", |ids| &mut ids.eos),
    ("tokenizer.ggml.eot_token_id", |ids| &mut ids.eot),
    ("tokenizer.ggml.eom_token_id", |ids| &mut ids.eom),
    ("tokenizer.ggml.unknown_token_id", |ids| &mut ids.unknown),
    ("tokenizer.ggml.fim_pre_token_id", |ids| &mut ids.fim_prefix),
    ("tokenizer.ggml.fim_suf_token_id", |ids| &mut ids.fim_suffix),
    ("tokenizer.ggml.fim_mid_token_id", |ids| &mut ids.fim_middle),
    ("tokenizer.ggml.fim_pad_token_id", |ids| &mut ids.fim_pad),
    ("tokenizer.ggml.fim_rep_token_id", |ids| &mut ids.fim_repo),
    ("tokenizer.ggml.fim_sep_token_id", |ids| &mut ids.fim_separator),
    ("tokenizer.ggml.prefix_token_id", |ids| &mut ids.fim_prefix),
    ("tokenizer.ggml.suffix_token_id", |ids| &mut ids.fim_suffix),
    ("tokenizer.ggml.middle_token_id", |ids| &mut ids.fim_middle),
];

/// What converters write for "there is none": -1 as an unsigned number.
const NO_TOKEN: u32 = u32::MAX;

impl SpecialIds {
    /// What a file with so many tokens says.
    pub(super) fn from_gguf(gguf: &Gguf, tokens: usize) -> Result<Self, VocabularyError> {
        let mut ids = Self::default();
        for (key, slot) in KEYS {
            let Some(id) = gguf.find::<i64>(key)? else { continue };
            if id < 0 || id == i64::from(NO_TOKEN) {
                continue;
            }
            let within = u32::try_from(id).ok().filter(|&id| (id as usize) < tokens);
            let outside = || VocabularyError::SpecialId { key, id, tokens };
            *slot(&mut ids) = Some(within.ok_or_else(outside)?);
        }
        Ok(ids)
    }

    /// Checks that all are within a vocabulary of `tokens` tokens, if somebody else than a file says so.
    pub(super) fn check(mut self, tokens: usize) -> Result<(), VocabularyError> {
        for (key, slot) in KEYS {
            if let Some(id) = *slot(&mut self)
                && id as usize >= tokens
            {
                return Err(VocabularyError::SpecialId { key, id: id.into(), tokens });
            }
        }
        Ok(())
    }
}

impl<'a> Vocabulary<'a> {
    /// Reads what a file says.
    ///
    /// # Errors
    /// [`VocabularyError::Metadata`] if the model's name or the tokens are missing, or a key has the wrong type,
    /// [`VocabularyError::SpecialId`] if one names a token that the file does not have.
    pub fn from_gguf(gguf: &'a Gguf) -> Result<Self, VocabularyError> {
        let tokens: Vec<&str> =
            gguf.require::<Strings<'_>>("tokenizer.ggml.tokens")?.iter().collect();
        Ok(Self {
            model: gguf.require("tokenizer.ggml.model")?,
            pre: gguf.find("tokenizer.ggml.pre")?.unwrap_or_default(),
            model_name: gguf.find("general.name")?.unwrap_or_default(),
            token_types: gguf
                .find::<Integers<'_>>("tokenizer.ggml.token_type")?
                .map(|types| types.iter().collect()),
            scores: gguf
                .find::<Floats<'_>>("tokenizer.ggml.scores")?
                .map(|scores| scores.iter().collect()),
            merges: gguf
                .find::<Strings<'_>>("tokenizer.ggml.merges")?
                .map(|merges| merges.iter().collect()),
            special: SpecialIds::from_gguf(gguf, tokens.len())?,
            tokens,
            add_bos: gguf.find("tokenizer.ggml.add_bos_token")?,
            add_eos: gguf.find("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: gguf.find("tokenizer.ggml.add_space_prefix")?,
        })
    }
}
