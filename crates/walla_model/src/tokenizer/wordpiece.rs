//! WordPiece (`tokenizer.ggml.model` = "bert"): the tokenizer of BERT and of most small embedding
//! models.
//!
//! A text is normalised and split into words, and each word into the longest tokens from its start
//! on. In GGUF files the token of a word's start is written as `▁start` and a continuation, which
//! BERT's own vocabularies write as `##part`, as `part`. Loading replaces the `▁` by a space, which
//! no word contains.
//!
//! Source: `BertNormalizer`, `BertPreTokenizer` and `WordPiece` of the `tokenizers` library, whose
//! ids are reproduced. One difference: marks with a combining class that are no accents keep their
//! order.

use walla_types::TokenId;

use super::{
    encode::Encoding,
    unicode::bert::{self, decompose},
};

/// Characters of the longest word that is split; a longer one becomes the unknown token.
const MAX_WORD_CHARACTERS: usize = 100;

/// Data for encoding, in addition to the pieces.
#[derive(Clone, Debug)]
pub(super) struct WordPiece {
    /// The token of a word that cannot be spelled.
    pub unknown: u32,
    /// Whether text is changed to lower case.
    pub lowercase: bool,
    /// Whether accents are removed.
    pub strips_accents: bool,
    /// Longest token that can be spelled, in bytes.
    pub max_piece_bytes: usize,
}

impl WordPiece {
    pub(super) fn encode(&self, text: &str, encoding: &mut Encoding<'_>) {
        let mut words = Words { own: self, word: Word::default(), encoding };
        text.chars().for_each(|c| words.push(c));
        words.end();
    }
}

/// The current word: a space and its characters.
#[derive(Default)]
struct Word {
    text: String,
    characters: usize,
}

/// Collects words and splits them.
struct Words<'w, 'e> {
    own: &'w WordPiece,
    word: Word,
    encoding: &'w mut Encoding<'e>,
}

impl Words<'_, '_> {
    /// A character of the text before normalisation.
    fn push(&mut self, c: char) {
        if bert::is_other(c) {
            return;
        }
        if c.is_whitespace() {
            return self.end();
        }
        let is_ideograph = bert::is_ideograph(c);
        if is_ideograph {
            self.end();
        }
        if !self.own.strips_accents {
            self.push_cased(c);
        } else if !bert::is_mark(c) {
            decompose(c).for_each(|part| self.push_cased(part));
        }
        if is_ideograph {
            self.end();
        }
    }

    fn push_cased(&mut self, c: char) {
        if self.own.lowercase {
            c.to_lowercase().for_each(|c| self.push_normal(c));
        } else {
            self.push_normal(c);
        }
    }

    /// A character after normalisation.
    fn push_normal(&mut self, c: char) {
        let is_alone = bert::is_punctuation(c);
        if is_alone {
            self.end();
        }
        let word = &mut self.word;
        if word.characters == 0 {
            word.text.push(' ');
        }
        word.characters = word.characters.saturating_add(1);
        // A longer word becomes one unknown token: its text is not needed.
        if word.characters <= MAX_WORD_CHARACTERS {
            word.text.push(c);
        }
        if is_alone {
            self.end();
        }
    }

    /// Ends the current word, if there is one.
    fn end(&mut self) {
        if self.word.characters == 0 {
            return;
        }
        let first = self.encoding.tokens.len();
        if self.word.characters > MAX_WORD_CHARACTERS || !self.split() {
            self.encoding.tokens.truncate(first);
            self.encoding.tokens.push(TokenId(self.own.unknown));
        }
        self.word.text.clear();
        self.word.characters = 0;
    }

    /// Appends the tokens of the word. Returns whether all of it was spelled.
    fn split(&mut self) -> bool {
        let mut rest = self.word.text.as_str();
        // The space alone is not the start of a word.
        let mut shortest = 2;
        while !rest.is_empty() {
            let longest = rest.len().min(self.own.max_piece_bytes);
            let found = (shortest..=longest).rev().find_map(|end| {
                let id = self.encoding.find(rest.get(..end)?.as_bytes())?;
                (!self.encoding.avoids(id)).then_some((end, id))
            });
            let Some((end, id)) = found else { return false };
            self.encoding.tokens.push(TokenId(id));
            rest = rest.get(end..).unwrap_or_default();
            shortest = 1;
        }
        true
    }
}
