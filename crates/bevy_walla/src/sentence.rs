//! Sentences out of deltas, without allocating.

use walla_runtime::InlineText;

/// Bytes of text that one [`SentenceSpoken`](crate::SentenceSpoken) carries at most: about 40 English words.
pub const SENTENCE_BYTES_MAX: usize = 240;

/// A sentence, or a part of one that is too long.
pub(crate) type Sentence = InlineText<SENTENCE_BYTES_MAX>;

/// Words whose full stop ends no sentence, in lower case.
const ABBREVIATIONS: &[&str] =
    &["mr", "mrs", "ms", "dr", "prof", "st", "sgt", "capt", "lt", "jr", "vs", "e.g", "i.e"];

/// Collects deltas and gives out sentences as they become complete.
///
/// A sentence ends at a line break; at `.`, `!`, `?` or `…`, with whatever quotes and brackets close after it, once white
/// space follows; and at their wide forms (`。！？`) at once. A full stop ends none after an abbreviation, an initial (`J.`) or the
/// number of a list (`1.`). Only the text that has not been given out is held: at most [`SENTENCE_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentenceSplitter {
    held: Sentence,
    ending: Ending,
}

/// What the last characters held say about the sentence's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ending {
    #[default]
    No,
    /// Complete if white space comes next.
    AtSpace,
    /// Complete unless another terminator or closing mark comes next.
    Now,
}

impl SentenceSplitter {
    /// Takes more text and gives each sentence that it completes to `say`.
    pub(crate) fn push(&mut self, text: &str, mut say: impl FnMut(Sentence)) {
        for c in text.chars() {
            self.push_char(c, &mut say);
        }
    }

    /// Gives out what is left.
    pub(crate) fn finish(&mut self, mut say: impl FnMut(Sentence)) {
        self.give_out(&mut say);
    }

    fn push_char(&mut self, c: char, say: &mut impl FnMut(Sentence)) {
        let ends = match self.ending {
            Ending::No => c == '\n',
            Ending::AtSpace => c.is_whitespace() && !ends_in_abbreviation(&self.held),
            Ending::Now => !is_terminator(c) && !is_closing(c),
        };
        if ends {
            self.give_out(say);
        }
        if self.held.is_empty() && c.is_whitespace() {
            return;
        }
        let mut utf8 = [0; 4];
        let character: &str = c.encode_utf8(&mut utf8);
        if !self.held.push(character).is_empty() {
            self.make_room(say);
            self.held.push(character);
        }
        self.ending = match c {
            '。' | '！' | '？' => Ending::Now,
            c if is_terminator(c) => self.ending.max(Ending::AtSpace),
            c if is_closing(c) => self.ending,
            _ => Ending::No,
        };
    }

    fn give_out(&mut self, say: &mut impl FnMut(Sentence)) {
        let sentence = self.held.trim_end();
        if !sentence.is_empty() {
            let mut out = Sentence::new();
            out.push(sentence);
            say(out);
        }
        self.held.clear();
        self.ending = Ending::No;
    }

    /// Gives out the whole words held so far; the unfinished word stays.
    fn make_room(&mut self, say: &mut impl FnMut(Sentence)) {
        let whole = *self;
        let words_end = whole.held.rfind(char::is_whitespace).unwrap_or(whole.held.len());
        let (words, rest) = whole.held.split_at(words_end);
        self.held.clear();
        self.held.push(words);
        self.give_out(say);
        self.held.push(rest.trim_start());
    }
}

impl Ending {
    fn max(self, other: Self) -> Self {
        if self == Self::No { other } else { self }
    }
}

fn is_terminator(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '。' | '！' | '？')
}

fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '”' | '’' | '»' | '」' | '』' | '）' | '*')
}

fn ends_in_abbreviation(held: &str) -> bool {
    let Some(text) = held.strip_suffix('.') else { return false };
    let (before, word) = match text.rfind(char::is_whitespace) {
        Some(at) => {
            (text.get(..at).unwrap_or_default(), text.get(at..).unwrap_or_default().trim_start())
        }
        None => ("", text),
    };
    let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
    let mut letters = word.chars();
    let initial =
        letters.next().is_some_and(|c| c.is_uppercase() && c != 'I') && letters.next().is_none();
    let list_number =
        before.is_empty() && !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    initial || list_number || ABBREVIATIONS.iter().any(|a| word.eq_ignore_ascii_case(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, delta_chars: usize) -> Vec<String> {
        let mut splitter = SentenceSplitter::default();
        let mut said = Vec::new();
        let characters: Vec<char> = text.chars().collect();
        for delta in characters.chunks(delta_chars) {
            let delta: String = delta.iter().collect();
            splitter.push(&delta, |s| said.push(s.to_string()));
        }
        splitter.finish(|s| said.push(s.to_string()));
        said
    }

    #[test]
    fn sentences_end_where_people_end_them() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("  \n ", &[]),
            ("Hello", &["Hello"]),
            ("Aye. Three silver!  Deal?", &["Aye.", "Three silver!", "Deal?"]),
            ("It costs 3.50 today. Pay.", &["It costs 3.50 today.", "Pay."]),
            ("\"Stop!\" he said.", &["\"Stop!\"", "he said."]),
            ("Well... no?! Yes.", &["Well...", "no?!", "Yes."]),
            ("Ask Dr. Voss or J. Hale. Go.", &["Ask Dr. Voss or J. Hale.", "Go."]),
            ("So do I. Bye.", &["So do I.", "Bye."]),
            ("1. Bread\n2. Ale", &["1. Bread", "2. Ale"]),
            ("馬は高い。銀貨三枚！」はい", &["馬は高い。", "銀貨三枚！」", "はい"]),
            ("Fin…\nOui.", &["Fin…", "Oui."]),
        ];
        for (text, expected) in cases {
            for delta_chars in [1, 2, 3, 7, 100] {
                assert_eq!(split(text, delta_chars), *expected, "{text:?} by {delta_chars}");
            }
        }
    }

    #[test]
    fn a_sentence_that_never_ends_is_cut_between_words() {
        let words = "anvil ".repeat(100);
        let parts = split(&words, 5);
        assert!(parts.iter().all(|p| p.len() <= SENTENCE_BYTES_MAX && !p.ends_with(' ')));
        assert_eq!(parts.join(" "), words.trim_end());
        let one_word = "é".repeat(500);
        assert_eq!(split(&one_word, 9).concat(), one_word);
    }
}
