//! Splits text that arrives in pieces into sentences, for speech synthesis.

mod words;

#[cfg(test)]
mod tests;

use self::words::{Abbreviation, is_closing, is_terminator, is_wide_terminator};

/// Splits a reply's text into sentences while it is generated, so that speech synthesis can start
/// with the first sentence.
///
/// A sentence ends
/// - at a line break,
/// - at `.` `!` `?` `…` (and their Arabic, Devanagari and other equivalents) with all closing
///   quotes and brackets after it, if white space follows: `3.5`, `example.org` and `v1.2` contain
///   no end;
/// - at the wide `。` `！` `？` `．` likewise, but at once, since no space follows them.
///
/// A full stop does not end a sentence after an abbreviation (`Mr.`, `e.g.`), an initial
/// (`J. Smith`), or a list number (`1. First`). After `...`, `etc.` or closing quotes
/// (`"Stop!" he said.`) the end depends on the next word, and the splitter waits for it: the word
/// begins a new sentence unless it begins with a lower-case letter (after `etc.` and `p.m.`: only
/// if it begins with a capital).
///
/// White space between sentences is dropped; white space inside a sentence is kept. All other
/// characters are returned exactly once, in order. A sentence longer than the limit is cut at a
/// word boundary, or, without one, between characters. The result does not depend on how the text
/// was cut into pieces.
///
/// Memory is allocated on construction only.
///
/// # Examples
/// ```
/// use walla_runtime::SentenceSplitter;
/// let mut splitter = SentenceSplitter::new();
/// let mut said = Vec::new();
/// for delta in ["Three sil", "ver. No", " less", "! Good day"] {
///     splitter.push(delta, |sentence| said.push(sentence.to_owned()));
/// }
/// splitter.finish(|sentence| said.push(sentence.to_owned()));
/// assert_eq!(said, ["Three silver.", "No less!", "Good day"]);
/// ```
#[derive(Clone, Debug)]
pub struct SentenceSplitter {
    /// The sentence so far. It does not begin with white space and has at most `max_bytes` bytes.
    text: String,
    max_bytes: usize,
    state: State,
}

/// State of the text's end within the sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before any end.
    Inside,
    /// Behind one or more terminators and possibly closing marks.
    AtEnd {
        /// Number of full stops, or 0 if other terminators occur.
        stops: usize,
        /// Position of the first terminator.
        at: usize,
        wide: bool,
        closed: bool,
    },
    /// In white space behind a possible end that depends on the next word.
    Undecided {
        /// Position where the white space begins.
        end: usize,
        only_before_capital: bool,
    },
}

/// Bytes that neither end a sentence nor are part of a character of several bytes.
static IS_PLAIN: [bool; 256] = {
    let mut is_plain = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        is_plain[byte as usize] = byte != b'\n' && !is_terminator(byte as char);
        byte += 1;
    }
    is_plain
};

/// Decision about a possible end that white space follows.
enum Verdict {
    Ends,
    GoesOn,
    AskNextWord { only_before_capital: bool },
}

impl Default for SentenceSplitter {
    fn default() -> Self {
        Self::new()
    }
}

impl SentenceSplitter {
    /// Default maximum length of a sentence in bytes: some 80 words, 30 seconds of speech.
    pub const MAX_BYTES: usize = 512;

    /// A splitter for sentences of at most [`MAX_BYTES`](Self::MAX_BYTES) bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_bytes(Self::MAX_BYTES)
    }

    /// A splitter for sentences of at most `max_bytes` bytes (at least 4, so that any character
    /// fits).
    #[must_use]
    pub fn with_max_bytes(max_bytes: usize) -> Self {
        let max_bytes = max_bytes.max(4);
        Self { text: String::with_capacity(max_bytes), max_bytes, state: State::Inside }
    }

    /// Takes more text and passes each complete sentence to `say`.
    pub fn push(&mut self, delta: &str, mut say: impl FnMut(&str)) {
        let mut rest = delta;
        loop {
            let (plain, other) = rest.split_at(self.plain(rest));
            self.text.push_str(plain);
            let mut chars = other.chars();
            let Some(c) = chars.next() else { return };
            self.take(c, &mut say);
            rest = chars.as_str();
        }
    }

    /// Length of the prefix of `text` that only extends the sentence. Most text is taken this way,
    /// in bulk.
    fn plain(&self, text: &str) -> usize {
        if self.state != State::Inside || self.text.is_empty() {
            return 0;
        }
        let most = text.len().min(self.max_bytes - self.text.len());
        let ends = |byte: &u8| !IS_PLAIN[usize::from(*byte)];
        text.as_bytes()[..most].iter().position(ends).unwrap_or(most)
    }

    /// Ends the text: passes a remaining fragment to `say`. The splitter can then take another
    /// text.
    pub fn finish(&mut self, mut say: impl FnMut(&str)) {
        self.end(&mut say);
    }

    /// Whether the remaining text is empty or ends like a sentence. If the text is cut here,
    /// [`finish`](Self::finish) returns no fragment.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.text.is_empty() || self.state != State::Inside
    }

    /// Discards the remaining text, for example of a cancelled reply.
    pub fn clear(&mut self) {
        self.text.clear();
        self.state = State::Inside;
    }

    fn take(&mut self, c: char, say: &mut impl FnMut(&str)) {
        if c == '\n' {
            return self.end(say);
        }
        while self.text.len() + c.len_utf8() > self.max_bytes {
            self.cut(say);
        }
        match self.state {
            State::Inside if is_terminator(c) => self.begin_end(c),
            State::Inside => self.add(c),
            State::AtEnd { at, wide, closed, stops } => {
                if !closed && is_terminator(c) {
                    let stops = if c == '.' && stops > 0 { stops + 1 } else { 0 };
                    let wide = wide || is_wide_terminator(c);
                    self.state = State::AtEnd { at, wide, closed, stops };
                    self.text.push(c);
                } else if is_closing(c) {
                    self.state = State::AtEnd { at, wide, closed: true, stops };
                    self.text.push(c);
                } else if wide {
                    self.end(say);
                    self.take(c, say);
                } else if c.is_whitespace() {
                    self.space_after_end(c, at, stops, closed, say);
                } else {
                    self.state = State::Inside;
                    self.take(c, say);
                }
            }
            State::Undecided { .. } if c.is_whitespace() => self.add(c),
            State::Undecided { end, only_before_capital } => {
                let begins = if only_before_capital { c.is_uppercase() } else { !c.is_lowercase() };
                if begins {
                    say(&self.text[..end]);
                    self.clear();
                }
                self.state = State::Inside;
                self.take(c, say);
            }
        }
    }

    fn begin_end(&mut self, c: char) {
        let (at, stops) = (self.text.len(), usize::from(c == '.'));
        self.state = State::AtEnd { at, wide: is_wide_terminator(c), closed: false, stops };
        self.text.push(c);
    }

    fn space_after_end(
        &mut self,
        space: char,
        at: usize,
        stops: usize,
        closed: bool,
        say: &mut impl FnMut(&str),
    ) {
        match self.verdict(at, stops, closed) {
            Verdict::Ends => self.end(say),
            Verdict::GoesOn => {
                self.state = State::Inside;
                self.add(space);
            }
            Verdict::AskNextWord { only_before_capital } => {
                self.state = State::Undecided { end: self.text.len(), only_before_capital };
                self.add(space);
            }
        }
    }

    /// Decides whether the sentence ends at `at`, given that white space follows.
    fn verdict(&self, at: usize, stops: usize, closed: bool) -> Verdict {
        let before = &self.text[..at];
        match Abbreviation::at_end_of(before) {
            Abbreviation::Always if stops == 1 => Verdict::GoesOn,
            Abbreviation::Often if stops == 1 => Verdict::AskNextWord { only_before_capital: true },
            _ if closed || stops > 1 || self.text[at..].starts_with('…') => {
                Verdict::AskNextWord { only_before_capital: false }
            }
            _ => Verdict::Ends,
        }
    }

    /// Appends a character, except for white space at the beginning.
    fn add(&mut self, c: char) {
        if !(self.text.is_empty() && c.is_whitespace()) {
            self.text.push(c);
        }
    }

    /// Passes all text to `say`.
    fn end(&mut self, say: &mut impl FnMut(&str)) {
        let sentence = self.text.trim_end();
        if !sentence.is_empty() {
            say(sentence);
        }
        self.clear();
    }

    /// Frees capacity: passes the text up to its last word boundary to `say`.
    fn cut(&mut self, say: &mut impl FnMut(&str)) {
        let border = match self.state {
            State::Inside => self.text.rfind(char::is_whitespace),
            // A position behind a terminator is treated as the end of the sentence.
            State::AtEnd { .. } | State::Undecided { .. } => None,
        };
        let Some(border) = border else { return self.end(say) };
        say(self.text[..border].trim_end());
        let rest = self.text[border..].len() - self.text[border..].trim_start().len();
        self.text.drain(..border + rest);
    }
}
