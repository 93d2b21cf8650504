//! Reference data, and small vocabularies for tests without it.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of this")]

use std::path::Path;

pub use crate::reference_data::{all_files, data, files, models};
use walla_model::{
    Gguf,
    tokenizer::{SpecialIds, Tokenizer, Vocabulary},
};
use walla_types::TokenId;

/// The tokenizer of a file.
pub fn load(path: &Path) -> Tokenizer {
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(path).unwrap());
    tokenizer.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON list of ids.
pub fn ids(value: &serde_json::Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

/// Owned lists of a vocabulary.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    pub model: &'static str,
    pub pre: &'static str,
    pub model_name: &'static str,
    pub tokens: Vec<String>,
    pub types: Vec<i64>,
    pub scores: Vec<f32>,
    pub merges: Vec<String>,
    pub special: SpecialIds,
    pub add_bos: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

impl Lists {
    pub fn add(&mut self, text: &str, ty: i64, score: f32) -> u32 {
        self.tokens.push(text.to_owned());
        self.types.push(ty);
        self.scores.push(score);
        self.tokens.len() as u32 - 1
    }

    pub fn vocabulary(&self) -> Vocabulary<'_> {
        Vocabulary {
            model: self.model,
            pre: self.pre,
            model_name: self.model_name,
            tokens: self.tokens.iter().map(String::as_str).collect(),
            token_types: Some(self.types.clone()),
            scores: (self.model == "llama").then(|| self.scores.clone()),
            merges: (self.model != "llama")
                .then(|| self.merges.iter().map(String::as_str).collect()),
            special: self.special,
            add_bos: self.add_bos,
            add_space_prefix: self.add_space_prefix,
            ..Vocabulary::default()
        }
    }

    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(&self.vocabulary()).unwrap()
    }
}

pub const NORMAL: i64 = 1;
pub const UNKNOWN: i64 = 2;
pub const CONTROL: i64 = 3;
pub const USER_DEFINED: i64 = 4;
pub const UNUSED: i64 = 5;
pub const BYTE: i64 = 6;

/// GPT-2's character for a byte: printable bytes represent themselves, the others follow from
/// U+0100 on.
pub fn spelled(byte: u8) -> char {
    let is_printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !is_printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap()
}

/// A byte-level vocabulary: 256 bytes, merges of common English pairs, and tokens of chat formats.
pub fn byte_level(pre: &'static str) -> Lists {
    let mut lists = Lists { model: "gpt2", pre, ..Lists::default() };
    for byte in 0..=u8::MAX {
        lists.add(&spelled(byte).to_string(), NORMAL, 0.0);
    }
    let merges = [
        "Ġ t",
        "h e",
        "Ġt he",
        "i n",
        "r e",
        "o n",
        "Ġ a",
        "1 2",
        "12 3",
        "Ġ Ġ",
        "ĠĠ ĠĠ",
        "< |",
        "| >",
        "i m",
        "_ s",
        "t a",
        "_s ta",
        "im _sta",
        "e n",
        "en d",
        "im _",
        "im_ end",
        "<| im_end",
        "<|im_end |>",
        "Ċ Ċ",
        "Ã ©",
        "th e",
    ];
    for merge in merges {
        let merged = merge.replace(' ', "");
        // Merges may spell the markers, whose tokens are added below as control tokens.
        if !merged.starts_with("<|im_end|") && !lists.tokens.contains(&merged) {
            lists.add(&merged, NORMAL, 0.0);
        }
        lists.merges.push(merge.to_owned());
    }
    lists.special.bos = Some(lists.add("<|begin|>", CONTROL, 0.0));
    lists.add("<|im_start|>", CONTROL, 0.0);
    lists.special.eos = Some(lists.add("<|im_end|>", CONTROL, 0.0));
    lists.add("<think>", USER_DEFINED, 0.0);
    lists.add("\n\n\n", USER_DEFINED, 0.0);
    lists
}

/// A vocabulary of characters with merges and byte fallback, as of Gemma 4.
pub fn characters() -> Lists {
    let mut lists = Lists { model: "gemma4", ..Lists::default() };
    lists.add("<pad>", CONTROL, 0.0);
    lists.special.eos = Some(lists.add("<eos>", CONTROL, 0.0));
    lists.special.bos = Some(lists.add("<bos>", CONTROL, 0.0));
    lists.special.unknown = Some(lists.add("<unk>", UNKNOWN, 0.0));
    for byte in 0..=u8::MAX {
        lists.add(&format!("<0x{byte:02X}>"), BYTE, 0.0);
    }
    for character in "▁etaoinshrdlucmfwypvbgkqjxz<>/|[]_104é日".chars() {
        lists.add(&character.to_string(), NORMAL, 0.0);
    }
    lists.add("<|turn>", CONTROL, 0.0);
    lists.add("<think>", USER_DEFINED, 0.0);
    let merges = [
        "▁ t",
        "h e",
        "▁t he",
        "i n",
        "r e",
        "▁ ▁",
        "▁▁ ▁▁",
        "▁ a",
        "n d",
        "▁a nd",
        "< |",
        "t u",
        "tu r",
        "<| tur",
        "<|tur n",
        "<|turn >",
        "e ▁",
        "< u",
        "<u n",
    ];
    for merge in merges {
        let merged = merge.replace(' ', "");
        // Merges may spell the markers.
        if !merged.starts_with("<|tur") {
            lists.add(&merged, NORMAL, 0.0);
        }
        lists.merges.push(merge.to_owned());
    }
    for breaks in ["\n", "\n\n", "\n\n\n"] {
        lists.add(breaks, NORMAL, 0.0);
    }
    lists
}

/// A SentencePiece-style vocabulary with byte fallback.
pub fn sentence_piece() -> Lists {
    let mut lists = Lists { model: "llama", ..Lists::default() };
    lists.special.unknown = Some(lists.add("<unk>", UNKNOWN, 0.0));
    lists.special.bos = Some(lists.add("<s>", CONTROL, 0.0));
    lists.special.eos = Some(lists.add("</s>", CONTROL, 0.0));
    for byte in 0..=u8::MAX {
        lists.add(&format!("<0x{byte:02X}>"), BYTE, 0.0);
    }
    lists.add("<think>", USER_DEFINED, 0.0);
    let pieces = [
        "▁t", "he", "▁the", "in", "re", "▁▁", "▁a", "</", "s>", "<s", "an", "▁an", "<0", "x4",
        "1>", "<0x4", "é", "日",
    ];
    for (rank, piece) in (0..).zip(pieces) {
        lists.add(piece, NORMAL, -(rank as f32));
    }
    for (rank, character) in (100..).zip("▁etaoinshrdlucmfwypvbgkqjxz<>/|[]_104".chars()) {
        lists.add(&character.to_string(), NORMAL, -(rank as f32));
    }
    lists
}
