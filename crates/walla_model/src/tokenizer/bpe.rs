//! BPE with a list of merges, over one of two [alphabets](Alphabet).
//!
//! Byte-level vocabularies (`tokenizer.ggml.model` = "gpt2") spell each byte as one printable
//! character (`Ġ` is a space). Vocabularies of characters ("gemma4") spell only a space in another
//! way (`▁`, U+2581). Loading decodes this spelling once, so encoding works on the text.
//!
//! Symbols are ids. Below the vocabulary's size they are tokens. From there on they are byte
//! strings that merges mention but that are not tokens (in broken files, and wherever a merge would
//! spell a control token).

use walla_types::TokenId;

use super::{
    encode::Encoding,
    error::VocabularyError,
    merge::{Merger, Pair},
    pieces::{Index, Pieces, mix, secret, slots_for},
    split::PreTokenizer,
};

/// Id of no token.
const NONE: u32 = u32::MAX;

/// The first symbols of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Bytes. The text is split into words first.
    Bytes(PreTokenizer),
    /// Characters. A word is a run of line breaks, or everything between two such runs. A run of
    /// line breaks that is a token is not merged. A character that is no token becomes bytes.
    Characters,
}

impl Alphabet {
    /// Converts a text of the vocabulary to the text that it represents, in `bytes`. Returns
    /// `false` if no text is spelled like this.
    pub(super) fn spell(self, text: &str, bytes: &mut Vec<u8>) -> bool {
        bytes.clear();
        match self {
            Self::Bytes(_) => {
                text.chars().all(|c| byte_of(c).map(|byte| bytes.push(byte)).is_some())
            }
            Self::Characters => {
                bytes.extend_from_slice(text.replace('▁', " ").as_bytes());
                // The space of a text becomes `▁`, so a piece with a real space never occurs.
                !text.contains(' ')
            }
        }
    }
}

/// The byte that a character of GPT-2's alphabet represents.
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
        if left == NONE {
            return None; // as the left side of an empty slot
        }
        let mut at = self.first_slot(left, right);
        loop {
            // The length is a power of two, and a third of the slots is empty: each search ends.
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
    alphabet: Alphabet,
    merges: Merges,
    /// The symbol of each byte, or, with an alphabet of characters, the token.
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

impl<'l> Symbols<'l> {
    fn new(aliases: &[(Vec<u8>, u32)], pieces: &'l mut Pieces, index: &'l mut Index) -> Self {
        let mut symbols = Self { pieces, index, beyond: Vec::new() };
        for (bytes, token) in aliases {
            symbols.add(bytes, *token);
        }
        symbols
    }

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
    /// Reads the merges of a byte-level vocabulary. `pieces` are the vocabulary's, `index` contains
    /// the pieces that can be spelled, `aliases` are additional spellings of tokens, `unknown` is
    /// used for bytes without a token.
    pub(super) fn of_bytes(
        pre: PreTokenizer,
        merges: &[&str],
        (aliases, unknown): (&[(Vec<u8>, u32)], Option<u32>),
        (pieces, index): (&mut Pieces, &mut Index),
    ) -> Result<Self, VocabularyError> {
        let tokens = pieces.len() as u32;
        let mut symbols = Symbols::new(aliases, pieces, index);
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
        Self::load(Alphabet::Bytes(pre), merges, bytes, symbols, tokens)
    }

    /// As [`of_bytes`](Self::of_bytes), for a vocabulary of characters; `bytes` are the tokens of
    /// the bytes.
    pub(super) fn of_characters(
        merges: &[&str],
        aliases: &[(Vec<u8>, u32)],
        bytes: [u32; 256],
        (pieces, index): (&mut Pieces, &mut Index),
    ) -> Result<Self, VocabularyError> {
        let tokens = pieces.len() as u32;
        let symbols = Symbols::new(aliases, pieces, index);
        Self::load(Alphabet::Characters, merges, bytes, symbols, tokens)
    }

    fn load(
        alphabet: Alphabet,
        merges: &[&str],
        bytes: [u32; 256],
        mut symbols: Symbols<'_>,
        tokens: u32,
    ) -> Result<Self, VocabularyError> {
        let mut table = Merges::with_capacity(merges.len());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for (rank, text) in merges.iter().enumerate() {
            let malformed = || VocabularyError::Merge { index: rank, text: (*text).to_owned() };
            let (a, b) = text.split_once(' ').ok_or_else(malformed)?;
            if a.is_empty() || b.is_empty() || b.contains(' ') {
                return Err(malformed());
            }
            // A text outside the alphabet never occurs: the merge is unused, not an error.
            if alphabet.spell(a, &mut left) && alphabet.spell(b, &mut right) {
                let (a, b) = (symbols.get(&left), symbols.get(&right));
                left.extend_from_slice(&right);
                // Perhaps no token: a later merge can still make one of it.
                let merged = symbols.get(&left);
                table.insert(Merge { left: a, right: b, rank: rank as u32, merged });
            }
        }
        Ok(Self { alphabet, merges: table, bytes, beyond: symbols.beyond, tokens })
    }

    /// Encodes text that contains no special tokens.
    pub(super) fn encode(&self, text: &str, encoding: &mut Encoding<'_>) {
        match self.alphabet {
            Alphabet::Bytes(pre) => pre.split(text, &mut |word| {
                self.encode_word(word, pre.ignores_merges(), encoding);
            }),
            Alphabet::Characters => {
                for word in lines(&text.replace('▁', " ")) {
                    self.encode_word(word, word.starts_with('\n'), encoding);
                }
            }
        }
    }

    /// Encodes one word, without merging if it is a token and `whole` is set.
    fn encode_word(&self, word: &str, whole: bool, encoding: &mut Encoding<'_>) {
        // Taken for the time of the word: closures below borrow the rest of `encoding`.
        let mut merger = std::mem::take(&mut encoding.merger);
        let is_avoided =
            |symbol: u32| self.token(symbol).is_some_and(|token| encoding.avoids(token.0));
        let whole = Some(word).filter(|_| whole).and_then(|word| encoding.find(word.as_bytes()));
        let whole = whole.filter(|&symbol| !is_avoided(symbol));
        if let Some(token) = whole.and_then(|symbol| self.token(symbol)) {
            encoding.merger = merger;
            return encoding.tokens.push(token);
        }
        self.begin(word, encoding, |_| false, &mut merger);
        merger.merge(|left, right| self.merges.find(left.id, right.id));
        // Merges through an avoided token are allowed. They are refused only if such a token is in
        // the result.
        if !encoding.avoided.is_empty() && merger.symbols().any(|node| is_avoided(node.id)) {
            self.begin(word, encoding, is_avoided, &mut merger);
            merger.merge(|left, right| {
                self.merges.find(left.id, right.id).filter(|pair| !is_avoided(pair.id))
            });
        }
        for node in merger.symbols() {
            match self.token(node.id) {
                Some(token) => encoding.tokens.push(token),
                None => {
                    let text = word.as_bytes().get(node.start as usize..).unwrap_or_default();
                    let text = text.get(..node.len as usize).unwrap_or_default();
                    self.spell_by_bytes(text, &mut encoding.tokens);
                }
            }
        }
        encoding.merger = merger;
    }

    /// Starts a word as its bytes or characters. An avoided character is left to its bytes.
    fn begin(
        &self,
        word: &str,
        encoding: &Encoding<'_>,
        is_avoided: impl Fn(u32) -> bool,
        merger: &mut Merger,
    ) {
        merger.clear();
        match self.alphabet {
            Alphabet::Bytes(_) => word.bytes().for_each(|byte| merger.push(self.symbol(byte), 1)),
            Alphabet::Characters => {
                let mut buffer = [0; 4];
                for c in word.chars() {
                    let c = c.encode_utf8(&mut buffer).as_bytes();
                    let symbol = encoding.find(c).filter(|&symbol| !is_avoided(symbol));
                    merger.push(symbol.unwrap_or(NONE), c.len() as u32);
                }
            }
        }
    }

    /// Spells the text of a symbol without a token by bytes.
    fn spell_by_bytes(&self, text: &[u8], out: &mut Vec<TokenId>) {
        let is_spelled = |byte: u8| byte == b' ' && self.alphabet == Alphabet::Characters;
        for &byte in text {
            let one = [byte];
            // A space by its form in the vocabulary.
            let bytes = if is_spelled(byte) { "▁".as_bytes() } else { &one };
            out.extend(bytes.iter().filter_map(|&byte| self.token(self.symbol(byte))));
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

/// Runs of line breaks and of other characters, in order.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    core::iter::from_fn(move || {
        let is_break = rest.starts_with('\n');
        let end = rest.find(|c| (c == '\n') != is_break).unwrap_or(rest.len());
        let (line, behind) = rest.split_at(end);
        rest = behind;
        (!line.is_empty()).then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_text() {
        let parts: Vec<_> = lines("\n\na b\r\n\tc\n").collect();
        assert_eq!(parts, ["\n\n", "a b\r", "\n", "\tc", "\n"]);
        assert_eq!(lines("").count(), 0);
        assert_eq!(lines("é").collect::<Vec<_>>(), ["é"]);
    }

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
