//! Byte-level BPE (`tokenizer.ggml.model` = "gpt2").
//!
//! These vocabularies spell each byte as one printable character (GPT-2's alphabet: `Ġ` is a
//! space). Loading decodes this spelling once, so encoding works on the text's bytes.
//!
//! Symbols are ids. Below the vocabulary's size they are tokens. From there on they are byte
//! strings that merges mention but that are not tokens (in broken files, and wherever a merge would
//! spell a control token).

use walla_types::TokenId;

use super::{
    error::VocabularyError,
    merge::{Merger, Pair},
    pieces::{Index, Pieces, mix, secret, slots_for},
    split::PreTokenizer,
    untrusted::Avoided,
};

/// Id of no token.
const NONE: u32 = u32::MAX;

/// The byte that a character of the alphabet represents.
///
/// Printable bytes represent themselves; the other 68 are the characters from U+0100 on, in order.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,        // 0x00..=0x20
        0x121..=0x142 => code - 0x121 + 0x7f, // 0x7f..=0xa0
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Converts a text in the alphabet to the bytes that it represents, in `bytes`. Returns `false` if
/// a character is not in the alphabet.
pub(super) fn spell(text: &str, bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    text.chars().all(|c| byte_of(c).map(|byte| bytes.push(byte)).is_some())
}

/// Bytes of ordinary text: no ASCII control characters, no first bytes of characters beyond
/// U+3FFFF, and no bytes that never occur in UTF-8. Vocabularies trained without a full alphabet
/// lack some of these and are still valid.
fn is_common(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..=0xbf | 0xc2..=0xf0)
}

/// One merge; 16 bytes, so that a look-up reads one cache line.
#[derive(Clone, Copy, Debug)]
struct Merge {
    left: u32,
    right: u32,
    rank: u32,
    merged: u32,
}

/// Hash table of the pairs that merge: open addressing, load factor at most 2/3.
#[derive(Clone, Debug)]
struct Merges {
    slots: Vec<Merge>,
    secret: u64,
}

impl Merges {
    fn with_capacity(merges: usize) -> Self {
        let empty = Merge { left: NONE, right: NONE, rank: 0, merged: 0 };
        Self { slots: vec![empty; slots_for(merges)], secret: secret() }
    }

    fn first_slot(&self, left: u32, right: u32) -> usize {
        mix(u64::from(left) << 32 | u64::from(right), self.secret) as usize
    }

    fn find(&self, left: u32, right: u32) -> Option<Pair> {
        let mut at = self.first_slot(left, right);
        loop {
            let slot = self.slots.get(at & (self.slots.len() - 1))?;
            if (slot.left, slot.right) == (left, right) {
                return Some(Pair { key: slot.rank, id: slot.merged });
            }
            if slot.left == NONE {
                return None;
            }
            at += 1;
        }
    }

    /// Adds a merge unless its pair is present: the first merge of a pair is used.
    fn insert(&mut self, merge: Merge) {
        let mask = self.slots.len() - 1;
        let mut at = self.first_slot(merge.left, merge.right) & mask;
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.left == NONE {
                *slot = merge;
                return;
            }
            if (slot.left, slot.right) == (merge.left, merge.right) {
                return;
            }
            at = (at + 1) & mask;
        }
    }
}

/// Data for encoding, in addition to the pieces.
#[derive(Clone, Debug)]
pub(super) struct Bpe {
    pre: PreTokenizer,
    merges: Merges,
    /// The symbol of each byte.
    bytes: [u32; 256],
    /// Tokens of the symbols from the vocabulary's size on; mostly [`NONE`].
    beyond: Vec<u32>,
    /// Size of the vocabulary.
    tokens: u32,
}

/// Symbols during loading: the vocabulary's pieces, then byte strings that only merges mention.
struct Symbols<'l> {
    pieces: &'l mut Pieces,
    index: &'l mut Index,
    beyond: Vec<u32>,
}

impl Symbols<'_> {
    fn add(&mut self, bytes: &[u8], token: u32) -> u32 {
        let id = self.pieces.push(bytes);
        self.beyond.push(token);
        match self.index.insert(self.pieces, id) {
            Ok(()) => id,
            Err(first) => first,
        }
    }

    fn get(&mut self, bytes: &[u8]) -> u32 {
        self.index.find(self.pieces, bytes).unwrap_or_else(|| self.add(bytes, NONE))
    }
}

impl Bpe {
    /// Reads the merges. `pieces` are the vocabulary's, `index` contains the pieces that can be
    /// spelled, `aliases` are additional spellings of tokens, `unknown` is used for bytes without a
    /// token.
    pub(super) fn load(
        pre: PreTokenizer,
        merges: &[&str],
        (aliases, unknown): (&[(Vec<u8>, u32)], Option<u32>),
        pieces: &mut Pieces,
        index: &mut Index,
    ) -> Result<Self, VocabularyError> {
        let tokens = pieces.len() as u32;
        let mut symbols = Symbols { pieces, index, beyond: Vec::new() };
        for (bytes, token) in aliases {
            symbols.add(bytes, *token);
        }
        let mut bytes = [NONE; 256];
        for (byte, symbol) in (0..=u8::MAX).zip(&mut bytes) {
            *symbol = match symbols.index.find(symbols.pieces, &[byte]) {
                Some(symbol) => symbol,
                None if unknown.is_none() && is_common(byte) => {
                    return Err(VocabularyError::MissingByte { byte });
                }
                None => symbols.add(&[byte], unknown.unwrap_or(NONE)),
            };
        }
        let mut table = Merges::with_capacity(merges.len());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for (rank, text) in merges.iter().enumerate() {
            let malformed = || VocabularyError::Merge { index: rank, text: (*text).to_owned() };
            let (a, b) = text.split_once(' ').ok_or_else(malformed)?;
            if a.is_empty() || b.is_empty() || b.contains(' ') {
                return Err(malformed());
            }
            // A text outside the alphabet never occurs: the merge is unused, not an error.
            if spell(a, &mut left) && spell(b, &mut right) {
                let (a, b) = (symbols.get(&left), symbols.get(&right));
                left.extend_from_slice(&right);
                let merged = symbols.get(&left);
                table.insert(Merge { left: a, right: b, rank: rank as u32, merged });
            }
        }
        Ok(Self { pre, merges: table, bytes, beyond: symbols.beyond, tokens })
    }

    /// Encodes text that contains no special tokens.
    pub(super) fn encode(
        &self,
        text: &str,
        vocabulary: (&Pieces, &Index),
        avoided: Avoided<'_>,
        (merger, out): (&mut Merger, &mut Vec<TokenId>),
    ) {
        self.pre.split(text, &mut |word| {
            self.encode_word(word, vocabulary, avoided, (merger, out));
        });
    }

    fn encode_word(
        &self,
        word: &str,
        (pieces, index): (&Pieces, &Index),
        avoided: Avoided<'_>,
        (merger, out): (&mut Merger, &mut Vec<TokenId>),
    ) {
        let is_avoided =
            |symbol: u32| self.token(symbol).is_some_and(|token| avoided.contains(token.0));
        if self.pre.ignores_merges() {
            let whole = index.find(pieces, word.as_bytes()).filter(|&symbol| !is_avoided(symbol));
            if let Some(token) = whole.and_then(|symbol| self.token(symbol)) {
                out.push(token);
                return;
            }
        }
        self.begin(word, merger);
        merger.merge(|left, right| self.merges.find(left.id, right.id));
        // Merges through an avoided token are allowed. They are refused only if such a token is in
        // the result.
        if !avoided.is_empty() && merger.symbols().any(|node| is_avoided(node.id)) {
            self.begin(word, merger);
            merger.merge(|left, right| {
                self.merges.find(left.id, right.id).filter(|pair| !is_avoided(pair.id))
            });
        }
        for node in merger.symbols() {
            match self.token(node.id) {
                Some(token) => out.push(token),
                // Spelled by bytes if merging ends in a symbol without a token.
                None => out
                    .extend(pieces.get(node.id).iter().filter_map(|&b| self.token(self.symbol(b)))),
            }
        }
    }

    /// Starts a word as its bytes.
    fn begin(&self, word: &str, merger: &mut Merger) {
        merger.clear();
        for byte in word.bytes() {
            merger.push(self.symbol(byte), 1);
        }
    }

    fn symbol(&self, byte: u8) -> u32 {
        self.bytes.get(usize::from(byte)).copied().unwrap_or(NONE)
    }

    fn token(&self, symbol: u32) -> Option<TokenId> {
        if symbol < self.tokens {
            return Some(TokenId(symbol));
        }
        let token = *self.beyond.get((symbol - self.tokens) as usize)?;
        (token != NONE).then_some(TokenId(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_one_character_for_each_byte() {
        let mut seen = [false; 256];
        for byte in (0..=0x143).filter_map(char::from_u32).filter_map(byte_of) {
            assert!(!core::mem::replace(&mut seen[usize::from(byte)], true), "{byte} twice");
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('ł'), Some(0xa0));
        assert_eq!(byte_of('Ń'), Some(0xad));
        assert_eq!(byte_of(' '), None);
    }
}
