//! What Python's Jinja has and templates use: string and dictionary methods, `raise_exception`, `strftime_now`.

use minijinja::value::{Rest, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use super::Date;

/// Marks an error as the template's own.
const RAISED: &str = "raise_exception: ";

pub(super) fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

/// What the template said when it raised.
pub(super) fn raised(error: &Error) -> Option<String> {
    error.detail()?.strip_prefix(RAISED).map(str::to_owned)
}

/// Methods that minijinja leaves to others.
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
    let value = match method {
        "strip" => Value::from(strip(text, args, true, true)?),
        "lstrip" => Value::from(strip(text, args, true, false)?),
        "rstrip" => Value::from(strip(text, args, false, true)?),
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "title" => Value::from(title(text)),
        "capitalize" => Value::from(capitalize(text)),
        "startswith" => Value::from(text.starts_with(from_args::<(&str,)>(args)?.0)),
        "endswith" => Value::from(text.ends_with(from_args::<(&str,)>(args)?.0)),
        "find" => {
            let (part,): (&str,) = from_args(args)?;
            let characters =
                |byte: usize| text.get(..byte).map_or(0, |before| before.chars().count() as i64);
            Value::from(text.find(part).map_or(-1, characters))
        }
        "count" => Value::from(text.matches(from_args::<(&str,)>(args)?.0).count()),
        "replace" => {
            let (from, to, count): (&str, &str, Option<usize>) = from_args(args)?;
            Value::from(
                count.map_or_else(|| text.replace(from, to), |n| text.replacen(from, to, n)),
            )
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "split" => split(text, args)?,
        "splitlines" => text.lines().map(Value::from).collect(),
        "join" => {
            let (items,): (Value,) = from_args(args)?;
            let parts: Vec<String> = items.try_iter()?.map(|item| item.to_string()).collect();
            Value::from(parts.join(text))
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
    let matches = |c: char| characters.map_or_else(|| c.is_whitespace(), |set| set.contains(c));
    let text = if start { text.trim_start_matches(matches) } else { text };
    Ok(if end { text.trim_end_matches(matches) } else { text })
}

fn split(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, splits_max): (Option<&str>, Option<i64>) = from_args(args)?;
    let splits_max = splits_max.and_then(|n| usize::try_from(n).ok());
    let Some(separator) = separator else {
        return Ok(text.split_whitespace().map(Value::from).collect());
    };
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(match splits_max {
        Some(n) => text.splitn(n.saturating_add(1), separator).map(Value::from).collect(),
        None => text.split(separator).map(Value::from).collect(),
    })
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

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The subset of C's `strftime` that templates use; other conversions stay as they stand.
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
