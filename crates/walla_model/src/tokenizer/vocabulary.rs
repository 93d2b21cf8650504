use super::{error::VocabularyError, split::PreTokenizer};
use crate::gguf::{Floats, Gguf, Integers, Strings};

/// A file's tokenizer data, unchecked: the input of [`Tokenizer::new`](super::Tokenizer::new).
///
/// Fields are named after GGUF's metadata keys without `tokenizer.ggml.`; lists are indexed by
/// token id.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary<'a> {
    /// `model`: "llama" (SentencePiece-style BPE), "gpt2" (byte-level BPE), "gemma4" (BPE over
    /// characters) or "bert" (WordPiece).
    pub model: &'a str,
    /// `pre`: the pre-tokenizer of a "gpt2" model; empty if the file has no such key. Not used by
    /// the others.
    pub pre: &'a str,
    /// `general.name`, if any. Phi 3 files are recognised by it: their markers consume the white
    /// space after them.
    pub model_name: &'a str,
    /// `tokens`.
    pub tokens: Vec<&'a str>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Without this
    /// list all are normal.
    pub token_types: Option<Vec<i64>>,
    /// `scores`: required by "llama", not used by the others.
    pub scores: Option<Vec<f32>>,
    /// `merges`: required by "gpt2" and "gemma4", not used by "llama"; highest priority first.
    pub merges: Option<Vec<&'a str>>,
    /// `…_token_id`.
    pub special: SpecialIds,
    /// `add_bos_token`. "gemma4" and "bert" add BOS in any case.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: used only by "llama".
    pub add_space_prefix: Option<bool>,
    /// `normalizer.lowercase`: whether a "bert" vocabulary changes text to lower case. Default:
    /// yes.
    pub lowercase: Option<bool>,
    /// `normalizer.strip_accents`: whether a "bert" vocabulary removes accents. Default: as
    /// `lowercase`.
    pub strip_accents: Option<bool>,
    /// Values of the file that were ignored, because the tokenizer works without them.
    pub warnings: Vec<String>,
}

/// Tokens with a role, as far as the file specifies them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Starts a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn of a chat.
    pub eot: Option<u32>,
    /// Ends a message that waits for a tool.
    pub eom: Option<u32>,
    /// Represents text that the vocabulary cannot spell.
    pub unknown: Option<u32>,
    /// Starts a text of a "bert" vocabulary, unless `bos` does. Default there: 101.
    pub cls: Option<u32>,
    /// Ends a text of a "bert" vocabulary. Default there: 102.
    pub separator: Option<u32>,
    /// Precedes the text before the gap (fill-in-the-middle).
    pub fim_prefix: Option<u32>,
    /// Precedes the text after the gap.
    pub fim_suffix: Option<u32>,
    /// Precedes the text that fills the gap.
    pub fim_middle: Option<u32>,
    /// Padding of a gap.
    pub fim_pad: Option<u32>,
    /// Precedes a repository's name.
    pub fim_repo: Option<u32>,
    /// Separates files.
    pub fim_separator: Option<u32>,
}

type Slot = fn(&mut SpecialIds) -> &mut Option<u32>;

/// Whether walla requires a role. An invalid id of an optional role is a warning, of another role
/// an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Determines the tokens around a text, the end of a generation, or the token of unknown bytes.
    Used,
    /// Fill-in-the-middle, which walla does not use, and roles with a default.
    Optional,
}

/// Metadata keys of special tokens; of two keys for one role the later one is used.
const KEYS: [(&str, Need, Slot); 16] = [
    ("tokenizer.ggml.bos_token_id", Need::Used, |ids| &mut ids.bos),
    ("tokenizer.ggml.eos_token_id", Need::Used, |ids| &mut ids.eos),
    ("tokenizer.ggml.eot_token_id", Need::Used, |ids| &mut ids.eot),
    ("tokenizer.ggml.eom_token_id", Need::Used, |ids| &mut ids.eom),
    ("tokenizer.ggml.unknown_token_id", Need::Used, |ids| &mut ids.unknown),
    ("tokenizer.ggml.cls_token_id", Need::Optional, |ids| &mut ids.cls),
    // The key's spelling is llama.cpp's.
    ("tokenizer.ggml.seperator_token_id", Need::Optional, |ids| &mut ids.separator),
    ("tokenizer.ggml.fim_pre_token_id", Need::Optional, |ids| &mut ids.fim_prefix),
    ("tokenizer.ggml.fim_suf_token_id", Need::Optional, |ids| &mut ids.fim_suffix),
    ("tokenizer.ggml.fim_mid_token_id", Need::Optional, |ids| &mut ids.fim_middle),
    ("tokenizer.ggml.fim_pad_token_id", Need::Used, |ids| &mut ids.fim_pad),
    ("tokenizer.ggml.fim_rep_token_id", Need::Used, |ids| &mut ids.fim_repo),
    ("tokenizer.ggml.fim_sep_token_id", Need::Used, |ids| &mut ids.fim_separator),
    ("tokenizer.ggml.prefix_token_id", Need::Optional, |ids| &mut ids.fim_prefix),
    ("tokenizer.ggml.suffix_token_id", Need::Optional, |ids| &mut ids.fim_suffix),
    ("tokenizer.ggml.middle_token_id", Need::Optional, |ids| &mut ids.fim_middle),
];

/// The id that converters write for a missing token: -1 as an unsigned number.
const NO_TOKEN: u32 = u32::MAX;

impl SpecialIds {
    /// The ids of a file with `tokens` tokens, and warnings about ignored ids.
    pub(super) fn from_gguf(
        gguf: &Gguf,
        tokens: usize,
    ) -> Result<(Self, Vec<String>), VocabularyError> {
        let (mut ids, mut warnings) = (Self::default(), Vec::new());
        for (key, need, slot) in KEYS {
            match find_id(gguf, key, tokens) {
                Ok(None) => {}
                Ok(id) => *slot(&mut ids) = id,
                Err(error) if need == Need::Optional => {
                    warnings.push(format!("{error}: it is ignored"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((ids, warnings))
    }

    /// Checks that the ids that walla uses are within a vocabulary of `tokens` tokens.
    pub(super) fn check(mut self, tokens: usize) -> Result<(), VocabularyError> {
        for (key, need, slot) in KEYS {
            if let Some(id) = *slot(&mut self)
                && id as usize >= tokens
                && need == Need::Used
            {
                return Err(VocabularyError::SpecialId { key, id: id.into(), tokens });
            }
        }
        Ok(())
    }
}

fn find_id(gguf: &Gguf, key: &'static str, tokens: usize) -> Result<Option<u32>, VocabularyError> {
    let Some(id) = gguf.find::<i64>(key)? else { return Ok(None) };
    if id < 0 || id == i64::from(NO_TOKEN) {
        return Ok(None);
    }
    let within = u32::try_from(id).ok().filter(|&id| (id as usize) < tokens);
    within.map(Some).ok_or(VocabularyError::SpecialId { key, id, tokens })
}

impl<'a> Vocabulary<'a> {
    /// Reads the keys that the file's tokenizer model uses, and no others.
    ///
    /// # Errors
    /// [`VocabularyError::Metadata`] if the model's name or the tokens are missing, or a key has
    /// the wrong type, [`VocabularyError::SpecialId`] if a special id is outside the vocabulary,
    /// [`VocabularyError::Split`] for a part of a split model that has no vocabulary.
    pub fn from_gguf(gguf: &'a Gguf) -> Result<Self, VocabularyError> {
        check_part(gguf)?;
        let tokens: Vec<&str> =
            gguf.require::<Strings<'_>>("tokenizer.ggml.tokens")?.iter().collect();
        let model = gguf.require("tokenizer.ggml.model")?;
        let (special, warnings) = SpecialIds::from_gguf(gguf, tokens.len())?;
        let common = Self {
            model,
            // Read only to recognise Phi 3, so a value of another type is ignored.
            model_name: gguf.find("general.name").ok().flatten().unwrap_or_default(),
            token_types: gguf
                .find::<Integers<'_>>("tokenizer.ggml.token_type")?
                .map(|types| types.iter().collect()),
            special,
            tokens,
            add_bos: gguf.find("tokenizer.ggml.add_bos_token")?,
            add_eos: gguf.find("tokenizer.ggml.add_eos_token")?,
            warnings,
            ..Self::default()
        };
        Ok(match model {
            "llama" => Self {
                scores: gguf
                    .find::<Floats<'_>>("tokenizer.ggml.scores")?
                    .map(|scores| scores.iter().collect()),
                add_space_prefix: gguf.find("tokenizer.ggml.add_space_prefix")?,
                ..common
            },
            "gpt2" => Self {
                pre: gguf.find("tokenizer.ggml.pre")?.unwrap_or_default(),
                merges: merges(gguf)?,
                ..common
            },
            "gemma4" => Self { merges: merges(gguf)?, ..common },
            "bert" => Self {
                lowercase: gguf.find("tokenizer.ggml.normalizer.lowercase")?,
                strip_accents: gguf.find("tokenizer.ggml.normalizer.strip_accents")?,
                ..common
            },
            _ => common, // refused by `Tokenizer::new`
        })
    }

    /// As [`from_gguf`](Self::from_gguf), with another pre-tokenizer than the file's, for files
    /// with no pre-tokenizer or an unsupported one. `None` uses the file's.
    ///
    /// # Errors
    /// [`VocabularyError::UnknownOverride`] if no pre-tokenizer has this name
    /// ([`PreTokenizer::NAMES`]), else as [`from_gguf`](Self::from_gguf).
    pub fn from_gguf_with(gguf: &'a Gguf, pre: Option<&'a str>) -> Result<Self, VocabularyError> {
        let is_unknown = |name: &&str| name.is_empty() || PreTokenizer::from_name(name).is_none();
        if let Some(name) = pre.filter(is_unknown) {
            return Err(VocabularyError::UnknownOverride(name.to_owned()));
        }
        let mut vocabulary = Self::from_gguf(gguf)?;
        if let Some(name) = pre {
            match vocabulary.model {
                "gpt2" => vocabulary.pre = name,
                model => vocabulary.warnings.push(format!(
                    "pre-tokenizer {name:?} has no effect on a vocabulary of model {model:?}"
                )),
            }
        }
        Ok(vocabulary)
    }
}

fn merges(gguf: &Gguf) -> Result<Option<Vec<&str>>, VocabularyError> {
    let merges = gguf.find::<Strings<'_>>("tokenizer.ggml.merges")?;
    Ok(merges.map(|merges| merges.iter().collect()))
}

/// Refuses parts of a split model after the first: they have no vocabulary.
fn check_part(gguf: &Gguf) -> Result<(), VocabularyError> {
    if gguf.get("tokenizer.ggml.tokens").is_some() {
        return Ok(());
    }
    let parts = gguf.find::<u64>("split.count").ok().flatten().unwrap_or(1);
    let part = gguf.find::<u64>("split.no").ok().flatten().unwrap_or(0).saturating_add(1);
    if parts > 1 { Err(VocabularyError::Split { part, parts }) } else { Ok(()) }
}
