//! SentencePiece-style BPE (`tokenizer.ggml.model` = "llama"): the pair with the best score that is
//! a token merges first; text that no token spells becomes bytes.
//!
//! These vocabularies write a space as `▁` (U+2581). Loading converts it to a space, and encoding
//! treats a `▁` in the text as a space too, as SentencePiece does.

use walla_types::TokenId;

use super::{
    encode::Encoding,
    merge::{Merger, Pair},
    pieces::Pieces,
};

/// Id of a character that no token spells.
const NONE: u32 = u32::MAX;

/// Data for encoding, in addition to the pieces.
#[derive(Clone, Debug)]
pub(super) struct Spm {
    /// Merge key of each token, computed from its score: lower keys merge first.
    keys: Vec<u32>,
    /// The token of each byte.
    bytes: [u32; 256],
    /// Longest token that can be spelled, in bytes.
    max_piece_bytes: u32,
    /// Whether no token has a space after another character. Then no merge crosses the start of a
    /// word, so words can be merged one by one, which is faster and gives the same result.
    splits_words: bool,
}

/// The score as a merge key: greater scores first, `-0.0` equal to `0.0`.
fn key(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

/// Whether a space follows another character.
fn has_inner_space(piece: &[u8]) -> bool {
    piece.windows(2).any(|pair| matches!(pair, [before, b' '] if *before != b' '))
}

impl Spm {
    /// `spellable` are the tokens that merging may produce, `bytes` the token of each byte.
    pub(super) fn load(
        scores: &[f32],
        bytes: [u32; 256],
        pieces: &Pieces,
        spellable: impl Iterator<Item = u32> + Clone,
    ) -> Self {
        let longest = spellable.clone().map(|id| pieces.get(id).len()).max().unwrap_or(0);
        Self {
            keys: scores.iter().map(|&score| key(score)).collect(),
            bytes,
            max_piece_bytes: longest as u32,
            splits_words: spellable.map(|id| pieces.get(id)).all(|piece| !has_inner_space(piece)),
        }
    }

    /// Encodes text that contains no special tokens and in which spaces are not escaped.
    pub(super) fn encode(&self, text: &str, encoding: &mut Encoding<'_>) {
        if !self.splits_words {
            return self.encode_word(text, encoding);
        }
        let mut rest = text;
        while !rest.is_empty() {
            let spaces = rest.bytes().take_while(|&b| b == b' ').count();
            let letters = rest.bytes().skip(spaces).take_while(|&b| b != b' ').count();
            let (word, behind) = rest.split_at(spaces + letters);
            self.encode_word(word, encoding);
            rest = behind;
        }
    }

    fn encode_word(&self, word: &str, encoding: &mut Encoding<'_>) {
        let mut merger = std::mem::take(&mut encoding.merger);
        let slice = |start: u32, len: u32| {
            word.as_bytes().get(start as usize..(start + len) as usize).unwrap_or_default()
        };
        let find = |start: u32, len: u32| encoding.find(slice(start, len));
        self.merge_word(word, &mut merger, find);
        // Merges through an avoided token are allowed. They are refused only if such a token is in
        // the result.
        if merger.symbols().any(|node| encoding.avoids(node.id)) {
            let find = |start, len| find(start, len).filter(|&id| !encoding.avoids(id));
            self.merge_word(word, &mut merger, find);
        }
        for node in merger.symbols() {
            match node.id {
                NONE => self.spell(slice(node.start, node.len), &mut encoding.tokens),
                token => encoding.tokens.push(TokenId(token)),
            }
        }
        encoding.merger = merger;
    }

    /// Merges a word with the tokens that `find` returns by start and length.
    fn merge_word(&self, word: &str, merger: &mut Merger, find: impl Fn(u32, u32) -> Option<u32>) {
        merger.clear();
        let mut at = 0;
        for c in word.chars() {
            let len = c.len_utf8() as u32;
            merger.push(find(at, len).unwrap_or(NONE), len);
            at += len;
        }
        merger.merge(|left, right| {
            let len = left.len + right.len;
            if len > self.max_piece_bytes {
                return None;
            }
            let id = find(left.start, len)?;
            Some(Pair { key: *self.keys.get(id as usize)?, id })
        });
    }

    /// Spells a character as bytes; a space as the bytes of `▁`, its form in the vocabulary.
    fn spell(&self, character: &[u8], out: &mut Vec<TokenId>) {
        let bytes = if character == b" " { "▁".as_bytes() } else { character };
        out.extend(
            bytes
                .iter()
                .filter_map(|&byte| self.bytes.get(usize::from(byte)))
                .map(|&id| TokenId(id)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_scores_from_high_to_low() {
        let scores = [f32::INFINITY, 1e9, 0.5, 0.0, -0.5, -1.0, -31999.0, f32::NEG_INFINITY];
        assert!(scores.map(key).is_sorted());
        assert_eq!(key(0.0), key(-0.0));
    }

    #[test]
    fn inner_spaces() {
        assert!(has_inner_space(b"a b"));
        assert!(!has_inner_space(b"  a"));
        assert!(!has_inner_space(b"   "));
    }
}
