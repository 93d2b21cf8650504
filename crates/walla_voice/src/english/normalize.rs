//! Writes out texts that the phoneme library misreads: abbreviations, times, fractions, units,
//! accents, marks of typography and of Markdown. Each byte knows its place in the source, so that
//! times of words are times of the source's words.

use std::ops::Range;

use unicode_normalization::UnicodeNormalization;

/// Abbreviations that end with a point. Their words have no point, because the sentence continues.
const ABBREVIATIONS: &[(&str, &str)] = &[
    ("Ave.", "Avenue"),
    ("Blvd.", "Boulevard"),
    ("Capt.", "Captain"),
    ("Col.", "Colonel"),
    ("Gen.", "General"),
    ("Jr.", "Junior"),
    ("Lt.", "Lieutenant"),
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

/// Units behind a number.
const UNITS: &[(&str, &str)] = &[
    ("°C", " degrees Celsius"),
    ("°F", " degrees Fahrenheit"),
    ("°", " degrees"),
    ("km/h", " kilometers per hour"),
    ("mph", " miles per hour"),
    ("m/s", " meters per second"),
    ("km", " kilometers"),
    ("cm", " centimeters"),
    ("mm", " millimeters"),
    ("kg", " kilograms"),
    ("lbs", " pounds"),
    ("ft", " feet"),
    ("ms", " milliseconds"),
];

/// Longest number that is read as a number; longer ones are read digit by digit.
const MAX_DIGITS: usize = 12;
/// Longest run of one letter: "Nooooo".
const MAX_RUN: usize = 3;

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

    fn push(&mut self, text: &str, place: usize) {
        self.text.push_str(text);
        self.places.resize(self.text.len(), place);
    }

    /// Appends the next piece of the source. Returns its length in bytes.
    fn next(&mut self, before: &str, rest: &str, at: usize) -> usize {
        let begins_word = !before.ends_with(char::is_alphanumeric);
        if begins_word && rest.starts_with(|first: char| first.is_ascii_digit()) {
            return self.number(before, rest, at);
        }
        if begins_word && let Some((length, words)) = abbreviation(before, rest) {
            self.push(words, at);
            return length;
        }
        let Some(first) = rest.chars().next() else { return 1 };
        self.character(before, first, at);
        first.len_utf8()
    }

    /// A number, with its fraction, time and unit.
    fn number(&mut self, before: &str, rest: &str, at: usize) -> usize {
        let digits = digits(rest);
        let number = rest.get(..digits).unwrap_or_default();
        let behind = rest.get(digits..).unwrap_or_default();
        let ends = |rest: &str| !rest.starts_with(char::is_alphanumeric);
        let is_continued = before.ends_with([':', '/', '.', ',']);
        if let Some(minutes) = behind.strip_prefix(':').and_then(|behind| behind.get(..2))
            && digits <= 2
            && !is_continued
            && minutes.bytes().all(|byte| byte.is_ascii_digit())
            && minutes < "60"
            && behind.get(3..).is_some_and(|after| ends(after) && !after.starts_with(':'))
        {
            let words = match minutes.strip_prefix('0') {
                Some("0") => format!("{number} o'clock"),
                Some(minute) => format!("{number} oh {minute}"),
                None => format!("{number} {minutes}"),
            };
            self.push(&words, at);
            return digits + 3;
        }
        if let Some(rest) = behind.strip_prefix('/')
            && !is_continued
            && let Some(words) = fraction(number, rest)
        {
            let is_mixed = before.ends_with(' ')
                && before.trim_end().ends_with(|last: char| last.is_ascii_digit());
            self.push(if is_mixed { "and " } else { "" }, at);
            self.push(&words, at);
            return digits + 1 + self::digits(rest);
        }
        // "1,000" and "10.005" are one number.
        let digit = |last: char| last.is_ascii_digit();
        let is_part = before.strip_suffix([',', '.']).is_some_and(|before| before.ends_with(digit));
        if digits > MAX_DIGITS || (digits > 2 && number.starts_with('0') && !is_part) {
            for (offset, digit) in number.char_indices() {
                self.push(digit.encode_utf8(&mut [0; 4]), at + offset);
                self.push(" ", at + offset);
            }
            return digits;
        }
        self.push(number, at);
        let unit = UNITS.iter().find_map(|(unit, words)| {
            let spaces = behind.len() - behind.trim_start_matches(' ').len();
            let after = behind.get(spaces..)?.strip_prefix(unit)?;
            // "5 ft" is a unit, "5 ms" too; "5 feet" is not "5 f".
            (spaces <= 1 && ends(after)).then_some((spaces + unit.len(), words))
        });
        let Some((length, words)) = unit else { return digits };
        self.push(words, at + digits);
        digits + length
    }

    /// A character that is not part of a longer form.
    fn character(&mut self, before: &str, first: char, at: usize) {
        let run = before.chars().rev().take(MAX_RUN).filter(|c| *c == first).count();
        match first {
            letter if letter.is_alphabetic() && run == MAX_RUN => {}
            // The library would make it a symbol inside the word.
            ':' if before.ends_with(|last: char| last.is_ascii_digit()) => self.push(" ", at),
            '’' | '‘' | '`' | '´' => self.push("'", at),
            '“' | '”' | '„' | '«' | '»' => self.push("\"", at),
            '…' => self.push("...", at),
            '–' if before.ends_with(|last: char| last.is_ascii_digit()) => self.push(" to ", at),
            '–' | '―' => self.push("—", at),
            'æ' => self.push("ae", at),
            'Æ' => self.push("Ae", at),
            'œ' => self.push("oe", at),
            'ø' => self.push("o", at),
            'Ø' => self.push("O", at),
            'ß' => self.push("ss", at),
            'ð' => self.push("th", at),
            'þ' => self.push("th", at),
            'ł' => self.push("l", at),
            // Brackets would be the library's markup, the others are Markdown's.
            '*' | '_' | '~' | '^' | '|' | '\\' | '<' | '>' | '{' | '}' | '[' | ']' => {
                self.push(" ", at);
            }
            // The library has one space between words.
            space if space.is_whitespace() => {
                if !self.text.ends_with(' ') {
                    self.push(" ", at);
                }
            }
            control if control.is_control() => {}
            letter if letter.is_ascii() => self.push(letter.encode_utf8(&mut [0; 4]), at),
            // An accent is a mark behind its letter in the decomposed form.
            letter => {
                let mut parts = std::iter::once(letter).nfd();
                let base = parts.next().unwrap_or(letter);
                let base = if base.is_ascii() { base } else { letter };
                let is_mark = unicode_normalization::char::is_combining_mark(letter);
                if !is_mark {
                    self.push(base.encode_utf8(&mut [0; 4]), at);
                }
            }
        }
    }
}

/// Number of digits at the begin.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Length and words of an abbreviation at the begin.
fn abbreviation(before: &str, rest: &str) -> Option<(usize, &'static str)> {
    if rest.starts_with("St.") {
        // "Baker St." or "St. Anne".
        let last = before.split_whitespace().next_back();
        let follows_name = last.is_some_and(|word| word.starts_with(char::is_uppercase));
        return Some((3, if follows_name { "Street" } else { "Saint" }));
    }
    let found = ABBREVIATIONS.iter().find(|(short, _)| rest.starts_with(short));
    found.map(|(short, words)| (short.len(), *words))
}

/// The words of a fraction whose denominator begins `rest`.
fn fraction(numerator: &str, rest: &str) -> Option<String> {
    let length = digits(rest);
    let after = rest.get(length..)?;
    // A date ("1/2/1999") is no fraction.
    if after.starts_with(|next: char| next.is_alphanumeric() || next == '/') {
        return None;
    }
    let name = match rest.get(..length)? {
        "2" => "half",
        "3" => "third",
        "4" => "quarter",
        "5" => "fifth",
        "6" => "sixth",
        "8" => "eighth",
        "10" => "tenth",
        _ => return None,
    };
    Some(match numerator {
        "1" => format!("one {name}"),
        _ if name == "half" => format!("{numerator} halves"),
        _ => format!("{numerator} {name}s"),
    })
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
            ("pages 5–7", "pages 5 to 7"),
            ("naïve Zoë, Łódź, smørrebrød", "naive Zoe, Łodz, smorrebrod"),
            ("“Wait…” it’s", "\"Wait...\" it's"),
            ("*so* **bold** [a](b)", " so  bold  a (b)"),
            ("Noooooooo\tway\u{7}", "Nooo way"),
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
