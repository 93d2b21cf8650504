//! Divides a text into parts that the network speaks in order.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use unicode_normalization::UnicodeNormalization;

use crate::synthesizer::{PhonemeWord, Phonemizer};
use crate::timing::{Timed, Timing};
use crate::viseme::Viseme;

/// Bytes of text whose phonemes are found in one piece of work: some sentences, about 2 ms, and
/// 10 ms more for each unknown name.
const PIECE: usize = 300;
/// The mouth closes in pauses of at least this many milliseconds.
const PAUSE_MS: u64 = 80;

/// Ids of each symbol of a voice. `^` begins a part, `$` ends it, and `_` follows all others.
pub(crate) type Symbols = HashMap<char, Vec<i32>>;

/// Lengths of parts, in symbols.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// A longer part ends at the next mark of a clause. The time to the first sound grows with the
    /// length of the first part.
    pub clause: usize,
    /// A longer part ends at the next word, and one of twice this length within a word.
    pub word: usize,
    /// Longest word: one of a single letter without end is cut.
    pub max_word: usize,
}

/// A part of a text.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Ids of all symbols, with the voice's marks of begin, end and padding.
    pub ids: Vec<i32>,
    symbols: Vec<Symbol>,
    words: Vec<Range<usize>>,
}

/// A symbol and its ids.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    symbol: char,
    /// Number of ids, with the padding behind it.
    ids: usize,
    /// Index of its word.
    word: Option<usize>,
}

/// The parts of a text, whose phonemes are found as far as they are needed.
#[derive(Debug)]
pub(crate) struct Parts {
    text: String,
    /// First byte of the text that has no phonemes yet.
    next_byte: usize,
    ready: VecDeque<Part>,
}

impl Parts {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), next_byte: 0, ready: VecDeque::new() }
    }

    /// Whether a part of the text has no phonemes yet.
    pub(crate) fn has_text(&self) -> bool {
        self.next_byte < self.text.len()
    }

    /// The next part, if the phonemes of the next piece of the text have one.
    pub(crate) fn next(
        &mut self,
        phonemizer: &dyn Phonemizer,
        symbols: &Symbols,
        lengths: Lengths,
    ) -> Option<Part> {
        if self.ready.is_empty() {
            let piece = piece(&self.text, self.next_byte);
            self.next_byte = piece.end;
            let mut words = phonemizer.words(self.text.get(piece.clone())?);
            for word in &mut words {
                word.text = word.text.start + piece.start..word.text.end + piece.start;
            }
            self.ready = divide(&words, symbols, lengths);
        }
        self.ready.pop_front()
    }
}

/// The range of the next piece of a text: to the end of a sentence, or else of a clause or a word.
fn piece(text: &str, start: usize) -> Range<usize> {
    let rest = text.get(start..).unwrap_or_default();
    if rest.len() <= PIECE {
        return start..text.len();
    }
    let piece = rest.get(..rest.floor_char_boundary(PIECE)).unwrap_or_default();
    let behind = |marks: &[char]| {
        let mut spaces = piece.rmatch_indices(char::is_whitespace);
        let end = spaces.find(|(at, _)| piece.get(..*at).is_some_and(|it| it.ends_with(marks)));
        end.map(|(at, space)| at + space.len())
    };
    let word = || piece.rfind(char::is_whitespace).map(|end| end + 1);
    let line = piece.rfind('\n').map(|end| end + 1);
    let end = line.max(behind(&['.', '!', '?'])).or_else(|| behind(&[',', ';', ':', '—']));
    start..start + end.or_else(word).unwrap_or(piece.len())
}

/// The words of a text as parts of a length that the network speaks well. Words without a symbol
/// that the voice has are left out, as are parts without a word.
fn divide(words: &[PhonemeWord], symbols: &Symbols, lengths: Lengths) -> VecDeque<Part> {
    let (mut parts, mut part) = (VecDeque::new(), Part::new(symbols));
    for word in words {
        part.push(word, symbols, lengths.max_word);
        let is_clause = word.phonemes.chars().any(|symbol| ".,;:!?—…。，、".contains(symbol));
        let length = part.symbols.len();
        let is_long = (length > lengths.clause && is_clause) || length > lengths.word;
        if (word.has_space && is_long) || length > 2 * lengths.word {
            part.end(symbols, &mut parts);
        }
    }
    part.end(symbols, &mut parts);
    parts
}

impl Part {
    fn new(symbols: &Symbols) -> Self {
        let mut part = Self { ids: Vec::new(), symbols: Vec::new(), words: Vec::new() };
        part.push_symbol('^', None, symbols);
        part
    }

    fn push(&mut self, word: &PhonemeWord, symbols: &Symbols, max_word: usize) {
        let is_word = word.phonemes.chars().any(char::is_alphanumeric);
        let index = is_word.then_some(self.words.len());
        let mut has_symbols = false;
        for symbol in word.phonemes.chars().take(max_word) {
            has_symbols |= self.push_symbol(symbol, index, symbols);
        }
        if is_word && has_symbols {
            self.words.push(word.text.clone());
        } else if is_word {
            return;
        }
        if word.has_space {
            self.push_symbol(' ', None, symbols);
        }
    }

    /// Whether the voice has the symbol.
    fn push_symbol(&mut self, symbol: char, word: Option<usize>, symbols: &Symbols) -> bool {
        let Some(ids) = symbols.get(&symbol) else { return false };
        self.ids.extend(ids);
        let mut count = ids.len();
        if symbol != '$' {
            let padding = symbols.get(&'_').map_or(&[][..], Vec::as_slice);
            self.ids.extend(padding);
            count += padding.len();
        }
        self.symbols.push(Symbol { symbol, ids: count, word });
        true
    }

    /// Appends the part to `parts` if it has a word, and begins the next one.
    fn end(&mut self, symbols: &Symbols, parts: &mut VecDeque<Self>) {
        let mut part = std::mem::replace(self, Self::new(symbols));
        while part.symbols.last().is_some_and(|last| last.symbol == ' ') {
            let space = part.symbols.pop().map_or(0, |space| space.ids);
            part.ids.truncate(part.ids.len().saturating_sub(space));
        }
        part.push_symbol('$', None, symbols);
        if !part.words.is_empty() {
            parts.push_back(part);
        }
    }

    /// The times of the part, whose first sample is `start`. `frames` has the number of each id's
    /// frames, with `hop` samples each.
    pub(crate) fn timing(&self, frames: &[usize], hop: u64, start: u64, rate: u32) -> Timing {
        let (mut at, mut frames) = (start, frames.iter());
        let mut phonemes = Vec::with_capacity(self.symbols.len());
        let mut words: Vec<Timed<Range<usize>>> = Vec::with_capacity(self.words.len());
        let mut last_word = None;
        for symbol in &self.symbols {
            let count: usize = frames.by_ref().take(symbol.ids).sum();
            let (begin, end) = (at, at + count as u64 * hop);
            phonemes.push(Timed { value: symbol.symbol, start: begin, end });
            match (symbol.word, words.last_mut()) {
                // "10:45" is two words for the voice and one of the text.
                (Some(word), Some(last))
                    if last_word == Some(word) || self.words.get(word) == Some(&last.value) =>
                {
                    last.end = end;
                }
                (Some(word), _) => {
                    let value = self.words.get(word).cloned().unwrap_or_default();
                    words.push(Timed { value, start: begin, end });
                }
                _ => {}
            }
            last_word = symbol.word;
            at = end;
        }
        Timing { samples: start..at, visemes: visemes(&phonemes, rate), phonemes, words }
    }
}

/// Visemes of phonemes that follow each other.
fn visemes(phonemes: &[Timed<char>], rate: u32) -> Vec<Timed<Viseme>> {
    let pause = PAUSE_MS * u64::from(rate) / 1000;
    let mut visemes: Vec<Timed<Viseme>> = Vec::with_capacity(phonemes.len());
    // A mark of stress belongs to the sound behind it, all others to the one before.
    let mut stress = None;
    for (index, phoneme) in phonemes.iter().enumerate() {
        let next = phonemes.get(index + 1).map(|next| next.value);
        if matches!(phoneme.value, 'ˈ' | 'ˌ') {
            stress.get_or_insert(phoneme.start);
            continue;
        }
        let start = stress.take().unwrap_or(phoneme.start);
        let is_pause = phoneme.value == ' ' && phoneme.end - phoneme.start > pause;
        let value =
            if is_pause { Some(Viseme::Silence) } else { Viseme::of_phoneme(phoneme.value, next) };
        match (value, visemes.last_mut()) {
            (Some(value), Some(last)) if last.value != value => {
                visemes.push(Timed { value, start, end: phoneme.end });
            }
            (_, Some(last)) => last.end = phoneme.end,
            (value, None) => {
                visemes.push(Timed { value: value.unwrap_or_default(), start, end: phoneme.end });
            }
        }
        if let (Some(value), Some(last)) = (glide(phoneme.value), visemes.last_mut()) {
            let middle = start.midpoint(phoneme.end);
            last.end = middle;
            visemes.push(Timed { value, start: middle, end: phoneme.end });
        }
    }
    if let (Some(last), Some(phoneme)) = (visemes.last_mut(), phonemes.last()) {
        last.end = phoneme.end;
    }
    visemes.retain(|viseme| viseme.start < viseme.end);
    visemes
}

/// The viseme at the end of a diphthong that has one symbol, as misaki writes them.
fn glide(symbol: char) -> Option<Viseme> {
    match symbol {
        'A' | 'I' | 'Y' => Some(Viseme::I),
        'O' | 'Q' | 'W' => Some(Viseme::U),
        _ => None,
    }
}

/// The letters of a text as symbols: for voices that were trained on them.
#[derive(Debug)]
pub(crate) struct Letters;

impl Phonemizer for Letters {
    fn words(&self, text: &str) -> Vec<PhonemeWord> {
        let mut words = Vec::new();
        let mut start = 0;
        for piece in text.split_inclusive(char::is_whitespace) {
            let word = piece.trim_end();
            let range = start..start + word.len();
            start += piece.len();
            if !word.is_empty() {
                let phonemes = word.to_lowercase().nfd().collect();
                words.push(PhonemeWord { text: range, phonemes, has_space: true });
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_text_are_short_and_end_at_marks() {
        let pieces = |text: &str| {
            let (mut lengths, mut at) = (Vec::new(), 0);
            while at < text.len() {
                let piece = piece(text, at);
                assert!(piece.start == at && piece.end > at && piece.len() <= PIECE);
                lengths.push(piece.len());
                at = piece.end;
            }
            lengths
        };
        assert_eq!(pieces("One. Two."), [9]);
        let sentence = format!("{}. ", "a".repeat(198));
        assert_eq!(pieces(&sentence.repeat(3)), [200, 200, 200]);
        let clause = format!("{}, ", "a b".repeat(50));
        assert_eq!(pieces(&clause.repeat(3)), [152, 152, 152]);
        assert_eq!(pieces(&"word ".repeat(100)), [300, 200]);
        // Three bytes each; no point ends a sentence within a word.
        assert_eq!(pieces(&"…".repeat(150)), [300, 150]);
        assert_eq!(pieces(&"1.".repeat(200)), [300, 100]);
    }
}
