//! Functions of Python's Jinja that templates use: string and dictionary methods,
//! `raise_exception`, `strftime_now`.

use std::ops::Range;

use minijinja::value::{Rest, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use super::budget::{ITEM_BYTES, charge};
use super::values::join_text;
use super::{Date, reading, taint};

/// Marks an error that the template raised.
const RAISED: &str = "raise_exception: ";

pub(super) fn raise_exception(message: &str) -> Result<Value, Error> {
    let message: String = taint::readable(message).chars().take(500).collect();
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

/// The message of `raise_exception`.
pub(super) fn raised(error: &Error) -> Option<String> {
    error.detail()?.strip_prefix(RAISED).map(str::to_owned)
}

/// Methods that minijinja does not implement.
pub(super) fn call(
    _state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let unknown = || Error::from(ErrorKind::UnknownMethod);
    match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, method, args)?.ok_or_else(unknown),
        (None, ValueKind::Map) => of_map(value, method, args)?.ok_or_else(unknown),
        _ => Err(unknown()),
    }
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    charge(text.len())?;
    args.iter().try_for_each(reading::read)?;
    let value = match method {
        "strip" => Value::from(strip(text, args, true, true)?),
        "lstrip" => Value::from(strip(text, args, true, false)?),
        "rstrip" => Value::from(strip(text, args, false, true)?),
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "title" => Value::from(title(text)),
        "capitalize" => Value::from(capitalize(text)),
        "startswith" => {
            let (part,): (&str,) = from_args(args)?;
            Value::from(without_prefix(text, part).is_some())
        }
        "endswith" => {
            let (part,): (&str,) = from_args(args)?;
            Value::from(without_suffix(text, part).is_some())
        }
        "find" => {
            let (part,): (&str,) = from_args(args)?;
            let found = places(text, part)?.into_iter().next();
            let before = found.and_then(|place| text.get(..place.start));
            Value::from(before.map_or(-1, |before| taint::characters(before) as i64))
        }
        "count" => Value::from(places(text, from_args::<(&str,)>(args)?.0)?.len()),
        "replace" => {
            let (from, to, count): (&str, &str, Option<usize>) = from_args(args)?;
            Value::from(replace(text, from, to, count)?)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(without_prefix(text, prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(without_suffix(text, suffix).unwrap_or(text))
        }
        "split" => split(text, args)?,
        "splitlines" => split_lines(text, args)?,
        "join" => {
            let (items,): (Value,) = from_args(args)?;
            Value::from(join_text(&items, text, None)?)
        }
        "isdigit" => Value::from(!text.is_empty() && text.chars().all(char::is_numeric)),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn of_map(map: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match method {
        "keys" => map.try_iter()?.collect(),
        "values" => {
            let keys: Vec<Value> = map.try_iter()?.collect();
            keys.iter().map(|key| map.get_item(key)).collect::<Result<Value, Error>>()?
        }
        "items" => {
            let keys: Vec<Value> = map.try_iter()?.collect();
            let pair =
                |key: &Value| Ok([key.clone(), map.get_item(key)?].into_iter().collect::<Value>());
            keys.iter().map(pair).collect::<Result<Value, Error>>()?
        }
        "get" => {
            let (key, Rest(default)): (Value, Rest<Value>) = from_args(args)?;
            reading::read(&key)?;
            let found = map.get_item(&key)?;
            let default = || default.first().cloned().unwrap_or_else(|| Value::from(()));
            if found.is_undefined() { default() } else { found }
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn strip<'a>(text: &'a str, args: &[Value], start: bool, end: bool) -> Result<&'a str, Error> {
    let (characters,): (Option<&str>,) = from_args(args)?;
    let text = if start { text.trim_start_matches(within(characters)) } else { text };
    Ok(if end { text.trim_end_matches(within(characters)) } else { text })
}

/// `strip()`, shared with the filter `trim`.
pub(super) fn strip_both<'a>(text: &'a str, characters: Option<&str>) -> &'a str {
    text.trim_matches(within(characters))
}

/// Matches the characters of a set, or white space without a set. White space of untrusted text
/// matches as the character that it represents.
fn within(characters: Option<&str>) -> impl Fn(char) -> bool {
    let set: Option<Vec<char>> = characters.map(|set| set.chars().collect());
    move |c| match &set {
        None => c.is_whitespace(),
        Some(set) => set.contains(&c) || taint::space(c).is_some_and(|space| set.contains(&space)),
    }
}

/// A text as templates see it: white space of untrusted text is white space, its other characters
/// are opaque.
fn seen(text: &str) -> String {
    text.chars().map(seen_character).collect()
}

fn seen_character(c: char) -> char {
    taint::space(c).unwrap_or(c)
}

/// The text after a prefix, if the text has it. Both are compared as templates [see](seen) them.
fn without_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let mut rest = text.chars();
    let is_next = |c| rest.next().is_some_and(|own| seen_character(own) == seen_character(c));
    prefix.chars().all(is_next).then_some(rest.as_str())
}

/// The text before a suffix, if the text has it. Both are compared as templates [see](seen) them.
fn without_suffix<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let mut rest = text.chars();
    let is_next = |c| rest.next_back().is_some_and(|own| seen_character(own) == seen_character(c));
    suffix.chars().rev().all(is_next).then_some(rest.as_str())
}

/// Lines and their line breaks, as templates [see](seen) them. After the last break follows one
/// more line, which may be empty.
pub(super) fn lines(text: &str) -> Result<Vec<(&str, &str)>, Error> {
    const BREAKS: [char; 8] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}'];
    let mut lines = Vec::new();
    let mut start = 0;
    let mut characters = text.char_indices().map(|(at, c)| (at, seen_character(c))).peekable();
    while let Some((at, c)) = characters.next() {
        if BREAKS.contains(&c) {
            if c == '\r' {
                characters.next_if(|&(_, c)| c == '\n');
            }
            let end = characters.peek().map_or(text.len(), |&(at, _)| at);
            charge(ITEM_BYTES)?;
            let line = text.get(start..at).unwrap_or_default();
            lines.push((line, text.get(at..end).unwrap_or_default()));
            start = end;
        }
    }
    lines.push((text.get(start..).unwrap_or_default(), ""));
    Ok(lines)
}

/// `splitlines(keepends)`
fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keeps,): (Option<bool>,) = from_args(args)?;
    let lines = lines(text)?.into_iter().filter(|(line, end)| !line.is_empty() || !end.is_empty());
    if keeps == Some(true) {
        return Ok(lines.map(|(line, end)| Value::from(line.to_owned() + end)).collect());
    }
    Ok(lines.map(|(line, _)| Value::from(line)).collect())
}

/// Byte ranges of all occurrences of `part` in a text, without overlaps. Both are compared as
/// templates [see](seen) them.
fn places(text: &str, part: &str) -> Result<Vec<Range<usize>>, Error> {
    let paid = |place| charge(ITEM_BYTES).map(|()| place);
    if !part.contains(|c| taint::space(c).is_some()) {
        let found = text.match_indices(part).map(|(at, found)| paid(at..at + found.len()));
        return found.collect();
    }
    // White space is shorter in the seen text, so both texts are scanned in parallel.
    let mut characters = text.char_indices();
    let mut seen_to = 0;
    let mut origin = |seen_at: usize| {
        while seen_to < seen_at
            && let Some((_, c)) = characters.next()
        {
            seen_to += seen_character(c).len_utf8();
        }
        characters.offset()
    };
    let (text, part) = (seen(text), seen(part));
    let found = text.match_indices(&part);
    found.map(|(at, found)| paid(origin(at)..origin(at + found.len()))).collect()
}

/// `replace(from, to, count)`
pub(super) fn replace(
    text: &str,
    from: &str,
    to: &str,
    count: Option<usize>,
) -> Result<String, Error> {
    let places = places(text, from)?;
    let count = count.unwrap_or(usize::MAX).min(places.len());
    charge(text.len() + to.len().saturating_mul(count))?;
    let mut replaced = String::new();
    let mut at = 0;
    for place in places.into_iter().take(count) {
        replaced.push_str(text.get(at..place.start).unwrap_or_default());
        replaced.push_str(to);
        at = place.end;
    }
    replaced.push_str(text.get(at..).unwrap_or_default());
    Ok(replaced)
}

fn split(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, max_splits): (Option<&str>, Option<i64>) = from_args(args)?;
    let max_splits = max_splits.and_then(|n| usize::try_from(n).ok());
    let Some(separator) = separator else {
        return split_words(text, max_splits.unwrap_or(usize::MAX)).map(Value::from);
    };
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let places = places(text, separator)?;
    let mut parts = Vec::new();
    let mut at = 0;
    for place in places.into_iter().take(max_splits.unwrap_or(usize::MAX)) {
        parts.push(Value::from(text.get(at..place.start).unwrap_or_default()));
        at = place.end;
    }
    parts.push(Value::from(text.get(at..).unwrap_or_default()));
    Ok(Value::from(parts))
}

/// `split()`: splits at runs of white space; the last part is the remainder.
fn split_words(text: &str, max_splits: usize) -> Result<Vec<Value>, Error> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = rest.find(char::is_whitespace).filter(|_| words.len() < max_splits);
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        charge(ITEM_BYTES)?;
        words.push(Value::from(word));
        rest = behind.trim_start();
    }
    Ok(words)
}

fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(characters.flat_map(char::to_lowercase)).collect()
}

fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match (character.is_alphabetic(), inside) {
            (true, false) => out.extend(character.to_uppercase()),
            (true, true) => out.extend(character.to_lowercase()),
            (false, _) => out.push(character),
        }
        inside = character.is_alphabetic();
    }
    out
}

#[rustfmt::skip]
const MONTHS: [&str; 12] = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
];

/// The subset of C's `strftime` that templates use; other conversions are copied unchanged.
pub(super) fn format_date(format: &str, date: Date) -> String {
    let month =
        (date.month as usize).checked_sub(1).and_then(|index| MONTHS.get(index)).unwrap_or(&"");
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => out += &format!("{:04}", date.year),
            Some('m') => out += &format!("{:02}", date.month),
            Some('d') => out += &format!("{:02}", date.day),
            Some('B') => out += month,
            Some('b') => out += month.get(..3).unwrap_or_default(),
            Some('H' | 'M' | 'S') => out += "00",
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let date = Date { year: 2024, month: 7, day: 6 };
        assert_eq!(format_date("%d %b %Y", date), "06 Jul 2024");
        assert_eq!(format_date("%Y-%m-%d 100%% %q%", date), "2024-07-06 100% %q%");
    }

    #[test]
    fn titles() {
        assert_eq!(title("hello wORLD-wide"), "Hello World-Wide");
        assert_eq!(capitalize("hELLO"), "Hello");
    }
}
