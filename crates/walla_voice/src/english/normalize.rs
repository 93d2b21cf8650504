//! Writes out texts that the phoneme library misreads: abbreviations, times, fractions, units,
//! accents, marks of typography and of Markdown. Each byte knows its place in the source, so that
//! times of words are times of the source's words.

mod number;

use std::iter::once;
use std::ops::Range;

use unicode_normalization::UnicodeNormalization;

use number::ends_with_digit;

/// Abbreviations that end with a point. Their words have no point, because the sentence continues.
const ABBREVIATIONS: &[(&str, &str)] = &[
    ("Ave.", "Avenue"),
    ("Blvd.", "Boulevard"),
    ("Capt.", "Captain"),
    ("Col.", "Colonel"),
    ("Gen.", "General"),
    ("Jr.", "Junior"),
    ("Lt.", "Lieutenant"),
    ("Lv.", "Level"),
    ("Lvl.", "Level"),
    ("Mt.", "Mount"),
    ("Prof.", "Professor"),
    ("Rd.", "Road"),
    ("Rev.", "Reverend"),
    ("Sgt.", "Sergeant"),
    ("Sr.", "Senior"),
    ("approx.", "approximately"),
    ("dept.", "department"),
    ("e.g.", "for example"),
    ("i.e.", "that is"),
    ("min.", "minutes"),
    ("sec.", "seconds"),
    ("vs.", "versus"),
];

/// Longest run of one character that is no digit: "Nooooo", "?????".
const MAX_RUN: usize = 3;
/// Times that a group of two to four letters is read: laughter, and words without end, for which
/// the library takes 200 ms ("hahahaha", "Gugugugu…").
const MAX_GROUPS: usize = 3;
/// Letters of a word that are read.
const MAX_LETTERS: usize = 22;
/// Longest mark of a markup language: `<break time="1s"/>`.
const MAX_TAG: usize = 100;
/// Words before a Roman number that counts: "Chapter IV" is "chapter four", "Henry IV" a king.
const COUNTED: &[&str] = &[
    "Act", "Book", "Chapter", "Class", "Episode", "Level", "Mark", "Part", "Phase", "Scene",
    "Section", "Stage", "Tier", "Type", "Volume", "War",
];

/// Whether a letter continues a group of letters that was read often enough.
fn repeats(before: &str, letter: char) -> bool {
    let letters = before.chars().rev().take_while(|c| c.is_alphabetic());
    let letters: Vec<char> = once(letter)
        .chain(letters)
        .map(|c| c.to_ascii_lowercase())
        .take(4 * MAX_GROUPS + 1)
        .collect();
    (2..=4).any(|group| {
        let pairs =
            letters.iter().zip(letters.iter().skip(group)).take((MAX_GROUPS - 1) * group + 1);
        letters.len() > MAX_GROUPS * group && pairs.into_iter().all(|(one, other)| one == other)
    })
}

/// A text that can be read aloud.
pub(super) struct Normalized {
    pub text: String,
    /// Place in the source of each byte, and the source's length.
    places: Vec<usize>,
}

impl Normalized {
    pub(super) fn new(source: &str) -> Self {
        let mut out = Self { text: String::with_capacity(source.len()), places: Vec::new() };
        let mut at = 0;
        while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
            let before = source.get(..at).unwrap_or_default();
            at += out.next(before, rest, at);
        }
        out.places.push(source.len());
        out
    }

    /// The range of the source that became a range of this text.
    pub(super) fn source(&self, range: Range<usize>) -> Range<usize> {
        let place = |at: usize| self.places.get(at).or(self.places.last()).copied().unwrap_or(0);
        let start = place(range.start);
        // The end of the last byte's source: the next byte with another place.
        let last = place(range.end.saturating_sub(1).max(range.start));
        let after = self.places.get(range.end..).unwrap_or_default();
        let end =
            after.iter().copied().find(|place| *place > last).unwrap_or_else(|| place(usize::MAX));
        start..if range.is_empty() { start } else { end }
    }

    /// Whether the last word has all letters that are read.
    fn is_word_full(&self) -> bool {
        let letters = self.text.chars().rev().take_while(|last| last.is_alphabetic());
        letters.take(MAX_LETTERS).count() == MAX_LETTERS
    }

    fn push(&mut self, text: &str, place: usize) {
        // The library has one space between words.
        let has_space = self.text.ends_with(' ');
        self.text.push_str(text.strip_prefix(' ').filter(|_| has_space).unwrap_or(text));
        self.places.resize(self.text.len(), place);
    }

    /// Appends the next piece of the source. Returns its length in bytes.
    fn next(&mut self, before: &str, rest: &str, at: usize) -> usize {
        let begins_word = !before.ends_with(char::is_alphanumeric);
        if begins_word && rest.starts_with(|first: char| first.is_ascii_digit()) {
            return self.number(before, rest, at);
        }
        if let Some((length, amount)) = number::amount(rest) {
            self.push(&amount, at);
            return length;
        }
        let form = if begins_word { abbreviation(before, rest) } else { None };
        if let Some((length, words)) = form.or_else(|| symbol(before, rest)) {
            self.push(words, at);
            return length;
        }
        if begins_word && let Some((length, words)) = roman(before, rest) {
            self.push(&words, at);
            return length;
        }
        let Some(first) = rest.chars().next() else { return 1 };
        self.character(before, first, at);
        first.len_utf8()
    }

    /// A character that is not part of a longer form.
    fn character(&mut self, before: &str, first: char, at: usize) {
        let run = before.chars().rev().take(MAX_RUN).filter(|c| *c == first).count();
        match first {
            first if run == MAX_RUN && !first.is_ascii_digit() => {}
            letter
                if letter.is_alphabetic() && (self.is_word_full() || repeats(before, letter)) => {}
            // The library would make it a symbol inside the word.
            ':' if ends_with_digit(before) => self.push(" ", at),
            '’' | '‘' | '`' | '´' => self.push("'", at),
            '“' | '”' | '„' | '«' | '»' => self.push("\"", at),
            '…' => self.push("...", at),
            '–' if ends_with_digit(before) => self.push(" to ", at),
            '–' | '―' | '—' => self.push("—", at),
            'æ' => self.push("ae", at),
            'Æ' => self.push("Ae", at),
            'œ' => self.push("oe", at),
            'ø' => self.push("o", at),
            'Ø' => self.push("O", at),
            'ß' => self.push("ss", at),
            'ð' => self.push("th", at),
            'þ' => self.push("th", at),
            'ł' => self.push("l", at),
            'Ł' => self.push("L", at),
            // Brackets would be the library's markup, the others are Markdown's.
            '*' | '_' | '~' | '^' | '|' | '\\' | '<' | '>' | '{' | '}' | '[' | ']' | '#' | '$' => {
                self.push(" ", at);
            }
            space if space.is_whitespace() => self.push(" ", at),
            control if control.is_control() => {}
            letter if letter.is_ascii() => self.push(letter.encode_utf8(&mut [0; 4]), at),
            mark if unicode_normalization::char::is_combining_mark(mark) => {}
            // An accent is a mark behind its letter in the decomposed form. Other scripts and
            // emojis, which take the library most time, have no sound.
            letter => {
                let base = once(letter).nfd().next().filter(char::is_ascii);
                self.push(base.unwrap_or(' ').encode_utf8(&mut [0; 4]), at);
            }
        }
    }
}

/// Length and words of an abbreviation at the begin.
fn abbreviation(before: &str, rest: &str) -> Option<(usize, &'static str)> {
    if rest.starts_with("St.") {
        // "Baker St." or "St. Anne".
        let last = before.split_whitespace().next_back();
        let is_name = |word: &str| {
            word.starts_with(|first: char| first.is_uppercase() || first.is_ascii_digit())
        };
        let follows_name = last.is_some_and(is_name);
        return Some((3, if follows_name { "Street" } else { "Saint" }));
    }
    if rest.starts_with("No. ") && rest.get(4..)?.starts_with(|next: char| next.is_ascii_digit()) {
        return Some((3, "Number"));
    }
    let found = ABBREVIATIONS.iter().find(|(short, _)| rest.starts_with(short));
    found.map(|(short, words)| (short.len(), *words))
}

/// Length and words of a symbol, or of a mark of a markup language, at the begin.
fn symbol(before: &str, rest: &str) -> Option<(usize, &'static str)> {
    let first = rest.chars().next()?;
    let after = rest.get(first.len_utf8()..)?;
    let follows_number = ends_with_digit(before);
    let words = match first {
        '<' if after.starts_with(|next: char| next.is_ascii_alphabetic() || next == '/') => {
            let end = after.find(['<', '>']).filter(|end| *end < MAX_TAG)?;
            return after.get(end..)?.starts_with('>').then_some((end + 2, " "));
        }
        '#' if after.starts_with(|next: char| next.is_ascii_digit()) => "number ",
        '=' if !before.ends_with('=') && !after.starts_with('=') => " equals ",
        '×' => " times ",
        '÷' => " divided by ",
        '±' => " plus or minus ",
        '½' if follows_number => " and one half",
        '⅓' if follows_number => " and one third",
        '⅔' if follows_number => " and two thirds",
        '¼' if follows_number => " and one quarter",
        '¾' if follows_number => " and three quarters",
        '½' => "one half",
        '⅓' => "one third",
        '⅔' => "two thirds",
        '¼' => "one quarter",
        '¾' => "three quarters",
        _ => return None,
    };
    Some((first.len_utf8(), words))
}

/// Length and words of a Roman number to 39 behind a name: "Henry VIII", "Part II".
fn roman(before: &str, rest: &str) -> Option<(usize, String)> {
    let length = rest.bytes().take_while(|byte| b"IVX".contains(byte)).count();
    let after = rest.get(length..)?;
    let name = before.strip_suffix(' ')?.split_whitespace().next_back()?;
    if length < 2 || !number::ends(after) || !name.starts_with(char::is_uppercase) {
        return None;
    }
    let digits = rest.get(..length)?;
    let tens = digits.bytes().take_while(|byte| *byte == b'X').count();
    let ones = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"];
    let number = tens * 10 + ones.iter().position(|ones| digits.get(tens..) == Some(*ones))?;
    if tens > 3 || name.chars().all(char::is_uppercase) {
        return None;
    }
    if COUNTED.contains(&name) {
        return Some((length, number.to_string()));
    }
    let ending = match (number / 10, number % 10) {
        (tens, 1) if tens != 1 => "st",
        (tens, 2) if tens != 1 => "nd",
        (tens, 3) if tens != 1 => "rd",
        _ => "th",
    };
    Some((length, format!("the {number}{ending}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_out() {
        for (text, expected) in [
            ("Prof. X, e.g. at 5th Ave.", "Professor X, for example at 5th Avenue"),
            ("Baker St. is near St. Anne.", "Baker Street is near Saint Anne."),
            ("at 10:30, 9:05 or 12:00", "at 10 30, 9 oh 5 or 12 o'clock"),
            ("10:30:15 and 10:75", "10 30 15 and 10 75"),
            ("2 1/2 cups, 3/4 done, 1/2/1999", "2 and one half cups, 3 quarters done, 1/2/1999"),
            ("25 °C at 90km/h", "25 degrees Celsius at 90 kilometers per hour"),
            ("agent 007, 1234567890123", "agent 0 0 7 , 1 2 3 4 5 6 7 8 9 0 1 2 3 "),
            ("1,000,000 men, 5,050 or 10.005", "1,000,000 men, 5,050 or 10.005"),
            ("1,5 or 10,00 or 2,3,4", "1, 5 or 10, 00 or 2, 3, 4"),
            ("$5.5, $1.5M, €0,50, 3€, 2,50 £", "$5.50, $1.5 million, €0.50, €3, £2.50"),
            ("¥500, ₹1, ₿2, $, $x", "500 yen, 1 rupee, 2 bitcoins, , x"),
            ("30.11.2026, 2026-11-30", "30 11 2026, 2026 11 30"),
            ("5-10 men, 555-1234, 10.0.0.1.", "5 to 10 men, 555 1234, 10 0 0 1."),
            ("3GHz, 1990s, 2nd, 3D, 10am, 9:05pm", "3 GHz, 1990s, 2nd, 3 D, 10 A M, 9 oh 5 P M"),
            ("½ cup, 2¾ cups", "one half cup, 2 and three quarters cups"),
            ("King Aldric VIII, World War II", "King Aldric the 8th, World War 2"),
            ("Chapter IV, I XI, the XII, Louis XXI", "Chapter 4, I XI, the XII, Louis the 21st"),
            ("5th St. near No. 5, Lvl. 3", "5th Street near Number 5, Level 3"),
            ("a = b == c, #5 # 3×4", "a equals b == c, number 5 3 times 4"),
            ("<break time=\"1s\"/>hello <b>you</b> <3 a<b", "hello you 3 a b"),
            ("Привет 你好 😀😀 there$$$$$$$$", "there"),
            ("?????????? -----------", "??? ---"),
            (&"gastropod".repeat(20), "gastropodgastropodgast"),
            ("counterrevolutionaries no", "counterrevolutionaries no"),
            ("pages 5–7", "pages 5 to 7"),
            ("naïve Zoë, Łódź, smørrebrød", "naive Zoe, Lodz, smorrebrod"),
            ("“Wait…” it’s — so", "\"Wait...\" it's — so"),
            ("*so* **bold** [a](b)", " so  bold  a (b)"),
            ("Noooooooo\tway\u{7}", "Nooo way"),
            ("Hahahahahaha, Gugugugugugu! bananananana", "Hahaha, Gugugu! bananan"),
            ("Mississippi, lalala", "Mississippi, lalala"),
        ] {
            let spaces = |text: &str| {
                text.split(' ').filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ")
            };
            let normalized = Normalized::new(text);
            assert_eq!(spaces(&normalized.text), spaces(expected), "{text:?}");
        }
    }

    #[test]
    fn words_know_their_places() {
        let text = "At 10:30 Prof. Zoë 😀 left…";
        let normalized = Normalized::new(text);
        let source = |word: &str| {
            let start = normalized.text.find(word).unwrap();
            &text[normalized.source(start..start + word.len())]
        };
        assert_eq!(source("10 30"), "10:30");
        assert_eq!(source("Professor"), "Prof.");
        assert_eq!(source("Zoe"), "Zoë");
        assert_eq!(source("left..."), "left…");
        assert_eq!(normalized.source(0..0), 0..0);
        assert_eq!(normalized.source(99..99), text.len()..text.len());
    }
}
