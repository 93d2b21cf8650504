//! Tokens of Whisper, from the `tokenizer.json` of the model.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use crate::error::VoiceError;
use crate::onnx;

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_TOKENS: usize = 1 << 20;
/// Tokens of times, every 20 ms from 0 to 30 s, behind all others.
const TIMES: usize = 1501;
/// Vocabularies are padded to multiples of this or more.
const PADDING: usize = 64;
/// Bytes of tokens that are not written: Whisper has them for noise (`[BLANK_AUDIO]`, `(wind)`).
const NOTES: &[u8] = b"[](){}*#_\xe2\x99";

#[derive(Debug)]
pub(super) struct Tokens {
    /// Bytes of each token of text; empty for others.
    bytes: Vec<Vec<u8>>,
    /// Whether a token may be written.
    is_text: Vec<bool>,
    /// Number of all tokens in the file.
    count: usize,
    /// A space alone.
    space: Option<i32>,
    pub start: i32,
    pub end: i32,
    transcribe: i32,
    no_timestamps: i32,
    /// Codes and tokens of the languages; empty for an English model.
    pub languages: Vec<(String, i32)>,
}

impl Tokens {
    pub(super) fn read(path: &Path) -> Result<Self, VoiceError> {
        onnx::read_json(path, MAX_FILE_BYTES, Self::parse)
    }

    fn parse(json: &Value) -> Result<Self, String> {
        let vocabulary = json.pointer("/model/vocab").and_then(Value::as_object);
        let vocabulary = vocabulary.ok_or("it has no model.vocab")?;
        let letters = letters();
        let mut bytes = Vec::new();
        for (token, id) in vocabulary {
            let id = id.as_u64().map(|id| id as usize).filter(|id| *id < MAX_TOKENS);
            let id = id.ok_or_else(|| format!("the id of {token:?} is no token"))?;
            if bytes.len() <= id {
                bytes.resize(id + 1, Vec::new());
            }
            if let Some(bytes) = bytes.get_mut(id) {
                *bytes = token.chars().filter_map(|letter| letters.get(&letter).copied()).collect();
            }
        }
        let added = json.get("added_tokens").and_then(Value::as_array);
        let mut special = HashMap::new();
        for token in added.into_iter().flatten() {
            let (Some(content), Some(id)) = (
                token.get("content").and_then(Value::as_str),
                token.get("id").and_then(Value::as_u64).filter(|id| *id < MAX_TOKENS as u64),
            ) else {
                continue;
            };
            if let Some(bytes) = bytes.get_mut(id as usize) {
                bytes.clear();
            }
            special.insert(content, id as i32);
        }
        let find = |content: &str| {
            let token = special.get(content).copied();
            token.ok_or_else(|| format!("it has no token {content}: is it Whisper's?"))
        };
        let of_special = special.values().map(|id| *id as usize + 1).max().unwrap_or(0);
        let count = bytes.len().max(of_special);
        let end = find("<|endoftext|>")?;
        let start = find("<|startoftranscript|>")?;
        let transcribe = find("<|transcribe|>")?;
        // English models have the tokens of languages too, behind another vocabulary.
        let is_english = end == 50_256;
        let code = |(content, id): (&&str, &i32)| {
            let code = content.strip_prefix("<|")?.strip_suffix("|>")?;
            let is_language = (start + 1..transcribe - 1).contains(id) && code.len() <= 3;
            is_language.then(|| (code.to_owned(), *id))
        };
        let mut languages: Vec<_> =
            special.iter().filter(|_| !is_english).filter_map(code).collect();
        languages.sort_by_key(|(_, id)| *id);
        let no_timestamps = find("<|notimestamps|>")?;
        let has_note = |bytes: &[u8]| bytes.iter().any(|byte| NOTES.contains(byte));
        let mut is_text: Vec<bool> =
            bytes.iter().map(|bytes| !bytes.is_empty() && !has_note(bytes)).collect();
        let space = bytes.iter().position(|bytes| bytes == b" ").map(|space| space as i32);
        if let Some(is_text) = is_text.get_mut(end as usize) {
            *is_text = true;
        }
        Ok(Self { bytes, is_text, count, space, start, end, transcribe, no_timestamps, languages })
    }

    /// Whether a network with as many tokens can have these.
    pub(super) fn is_vocabulary_of(&self, tokens: usize) -> bool {
        // Tokens of times are not in the file, and a vocabulary can be padded to a multiple.
        let with_times = self.no_timestamps as usize + 1 + TIMES;
        let is_padded = tokens > self.count && tokens.is_multiple_of(PADDING);
        tokens == self.count || tokens == with_times || is_padded
    }

    /// Tokens before the text.
    pub(super) fn prompt(&self, language: Option<i32>) -> Vec<i32> {
        match language {
            Some(language) => vec![self.start, language, self.transcribe, self.no_timestamps],
            None => vec![self.start, self.no_timestamps],
        }
    }

    /// The most probable token that may be written, and its logit. The first one is not the end and
    /// no space alone.
    pub(super) fn best(&self, logits: &[f32], is_first: bool) -> Option<(f32, i32)> {
        let is_no_first = |token| token == self.end || Some(token) == self.space;
        let tokens = logits.iter().copied().zip(0..).zip(&self.is_text);
        let allowed =
            tokens.filter(|((_, token), is_text)| **is_text && !(is_first && is_no_first(*token)));
        allowed.map(|(token, _)| token).max_by(|(a, _), (b, _)| a.total_cmp(b))
    }

    pub(super) fn text(&self, tokens: &[i32]) -> String {
        let bytes = tokens.iter().filter_map(|token| self.bytes.get(*token as usize)).flatten();
        let bytes: Vec<u8> = bytes.copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

/// Bytes of the letters in which byte-level vocabularies are written: printable bytes are
/// themselves, the others follow from 256 on (GPT-2's `bytes_to_unicode`).
fn letters() -> HashMap<char, u8> {
    let mut letters = HashMap::new();
    let mut others = 256..;
    for byte in 0..=u8::MAX {
        let prints = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let letter = if prints { Some(u32::from(byte)) } else { others.next() };
        if let Some(letter) = letter.and_then(char::from_u32) {
            letters.insert(letter, byte);
        }
    }
    letters
}
