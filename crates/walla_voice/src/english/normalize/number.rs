//! Numbers, with their times, fractions, units and currencies.

use super::Normalized;

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
    ("am", " A M"),
    ("AM", " A M"),
    ("pm", " P M"),
    ("PM", " P M"),
];

/// Signs of currencies, with words if the library does not know the sign.
const CURRENCIES: &[(char, Option<[&str; 2]>)] = &[
    ('$', None),
    ('€', None),
    ('£', None),
    ('¥', Some(["yen", "yen"])),
    ('₹', Some(["rupee", "rupees"])),
    ('₿', Some(["bitcoin", "bitcoins"])),
];

/// Letters behind an amount.
const MAGNITUDES: &[(&str, &str)] = &[
    ("k", "thousand"),
    ("K", "thousand"),
    ("m", "million"),
    ("M", "million"),
    ("bn", "billion"),
    ("B", "billion"),
];

/// Longest number that is read as a number; longer ones are read digit by digit.
const MAX_DIGITS: usize = 12;

impl Normalized {
    /// A number at the begin of `rest`, with what belongs to it. Returns its length in bytes.
    pub(super) fn number(&mut self, before: &str, rest: &str, at: usize) -> usize {
        let digits = digits(rest);
        let number = rest.get(..digits).unwrap_or_default();
        let behind = rest.get(digits..).unwrap_or_default();
        let is_continued = before.ends_with([':', '/', '.', ',']);
        if !is_continued && let Some(words) = time(number, behind) {
            self.push(&words, at);
            let length = digits + 3;
            return length + self.unit(rest.get(length..).unwrap_or_default(), at + length);
        }
        if let Some(rest) = behind.strip_prefix('/')
            && !is_continued
            && let Some(words) = fraction(number, rest)
        {
            let is_mixed = before.ends_with(' ') && ends_with_digit(before.trim_end());
            self.push(if is_mixed { "and " } else { "" }, at);
            self.push(&words, at);
            return digits + 1 + self::digits(rest);
        }
        if !is_continued && let Some((length, amount)) = amount_before_sign(rest) {
            self.push(&amount, at);
            return length;
        }
        // "1,000" and "10.005" are one number.
        let follows = |mark: &[char]| before.strip_suffix(mark).is_some_and(ends_with_digit);
        let is_part = follows(&[',', '.']);
        if digits > MAX_DIGITS || (digits > 2 && number.starts_with('0') && !is_part) {
            for (offset, digit) in number.char_indices() {
                self.push(digit.encode_utf8(&mut [0; 4]), at + offset);
                self.push(" ", at + offset);
            }
            return digits;
        }
        self.push(number, at);
        let Some((mark, next)) = split_mark(behind) else {
            return digits + self.unit(behind, at + digits);
        };
        // The library would read one number.
        let is_chain =
            || follows(&['.']) || split_mark(next.1).is_some_and(|(mark, _)| mark == '.');
        let words = match mark {
            ',' if next.0.len() != 3 => ", ",
            '.' if is_chain() => " ",
            '-' if is_range(number, next) && !before.ends_with('-') => " to ",
            '-' => " ",
            _ => return digits,
        };
        self.push(words, at + digits);
        digits + 1
    }

    /// A unit at the begin of `behind`, or a space before other letters. Returns its length.
    fn unit(&mut self, behind: &str, at: usize) -> usize {
        let spaces = behind.len() - behind.trim_start_matches(' ').len();
        let unit = UNITS.iter().find_map(|(unit, words)| {
            let after = behind.get(spaces..)?.strip_prefix(unit)?;
            // "5 ft" is a unit, "5 ms" too; "5 feet" is not "5 f".
            (spaces <= 1 && ends(after)).then_some((spaces + unit.len(), words))
        });
        if let Some((length, words)) = unit {
            self.push(words, at);
            return length;
        }
        let letters = behind.len() - behind.trim_start_matches(char::is_alphabetic).len();
        let word = behind.get(..letters).unwrap_or_default();
        if letters > 0 && !["st", "nd", "rd", "th", "s"].contains(&word) {
            self.push(" ", at);
        }
        0
    }
}

/// Length and text of an amount whose sign is at the begin: "$5.5", "€0,50", "$1.5M".
pub(super) fn amount(rest: &str) -> Option<(usize, String)> {
    let (sign, words) = currency(rest)?;
    let (length, number, has_fraction) = decimal(rest.get(sign.len_utf8()..)?)?;
    let length = sign.len_utf8() + length;
    let behind = rest.get(length..)?;
    let magnitude = MAGNITUDES.iter().find_map(|(short, word)| {
        ends(behind.strip_prefix(short)?).then_some((short.len(), *word))
    });
    let is_magnitude = magnitude.is_some()
        || [" thousand", " million", " billion"].iter().any(|word| behind.starts_with(word));
    let (more, word) = magnitude.unwrap_or_default();
    let number = if is_magnitude { number } else { cents(number, has_fraction) };
    let space = if word.is_empty() { "" } else { " " };
    Some((length + more, written(sign, words, &format!("{number}{space}{word}"))))
}

/// Length and text of an amount whose sign follows: "5€", "2,50 €".
fn amount_before_sign(rest: &str) -> Option<(usize, String)> {
    let (length, number, has_fraction) = decimal(rest)?;
    let behind = rest.get(length..)?;
    let space = usize::from(behind.starts_with(' '));
    let (sign, words) = currency(behind.get(space..)?)?;
    let length = length + space + sign.len_utf8();
    let is_end = ends(rest.get(length..)?);
    is_end.then(|| (length, written(sign, words, &cents(number, has_fraction))))
}

/// The currency whose sign is at the begin, and its words.
fn currency(text: &str) -> Option<(char, Option<[&'static str; 2]>)> {
    let sign = text.chars().next()?;
    CURRENCIES.iter().find(|(known, _)| *known == sign).copied()
}

/// An amount as the library reads it, or in words.
fn written(sign: char, words: Option<[&str; 2]>, number: &str) -> String {
    match words {
        None => format!("{sign}{number}"),
        Some([one, _]) if number == "1" => format!("1 {one}"),
        Some([_, many]) => format!("{number} {many}"),
    }
}

/// A number with two digits for its cents.
fn cents(mut number: String, has_fraction: bool) -> String {
    if has_fraction && number.rfind('.').is_some_and(|point| point + 2 == number.len()) {
        number.push('0');
    }
    number
}

/// Length and text of a number with groups of three and a fraction, which begins with a point, or
/// with a comma before one or two digits; and whether it has one.
fn decimal(text: &str) -> Option<(usize, String, bool)> {
    let mut length = digits(text);
    if length == 0 || length > MAX_DIGITS {
        return None;
    }
    let mut number = text.get(..length)?.to_owned();
    while let Some((mark, (group, _))) = split_mark(text.get(length..)?) {
        if mark == ',' && group.len() == 3 && number.len() < MAX_DIGITS {
            number = format!("{number},{group}");
            length += 4;
            continue;
        }
        let is_fraction = mark == '.' || (mark == ',' && group.len() <= 2);
        if is_fraction && group.len() <= MAX_DIGITS {
            return Some((length + 1 + group.len(), format!("{number}.{group}"), true));
        }
        break;
    }
    Some((length, number, false))
}

/// The words of a time ("10:30") if the minutes are at the begin of `behind`.
fn time(hour: &str, behind: &str) -> Option<String> {
    let minutes = behind.strip_prefix(':')?.get(..2)?;
    let after = behind.get(3..)?;
    let is_half = ["am", "pm", "AM", "PM"].iter().any(|half| after.starts_with(half));
    let is_time = hour.len() <= 2
        && minutes.bytes().all(|byte| byte.is_ascii_digit())
        && minutes < "60"
        && (ends(after) || is_half)
        && !after.starts_with(':');
    is_time.then(|| match minutes.strip_prefix('0') {
        Some("0") if is_half => hour.to_owned(),
        Some("0") => format!("{hour} o'clock"),
        Some(minute) => format!("{hour} oh {minute}"),
        None => format!("{hour} {minutes}"),
    })
}

/// The words of a fraction whose denominator begins `rest`.
fn fraction(numerator: &str, rest: &str) -> Option<String> {
    let length = digits(rest);
    let after = rest.get(length..)?;
    // A date ("1/2/1999") is no fraction.
    if !ends(after) || after.starts_with('/') {
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

/// Whether "5-10" is a range, and neither a date nor a telephone's number.
fn is_range(from: &str, (to, after): (&str, &str)) -> bool {
    let value = |digits: &str| digits.parse::<u32>().ok().filter(|_| digits.len() <= 3);
    let is_alone = split_mark(after).is_none_or(|(mark, _)| mark != '-');
    is_alone && value(from).zip(value(to)).is_some_and(|(from, to)| from < to)
}

/// A mark between digits at the begin, the digits behind it and the rest.
fn split_mark(text: &str) -> Option<(char, (&str, &str))> {
    let mark = text.chars().next().filter(|mark| [',', '.', '-'].contains(mark))?;
    let rest = text.get(1..)?;
    let count = digits(rest);
    (count > 0).then_some((mark, rest.split_at(count)))
}

/// Number of digits at the begin.
fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Whether a word has ended before `rest`.
pub(super) fn ends(rest: &str) -> bool {
    !rest.starts_with(char::is_alphanumeric)
}

pub(super) fn ends_with_digit(text: &str) -> bool {
    text.ends_with(|last: char| last.is_ascii_digit())
}
