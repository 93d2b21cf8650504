//! Filters that replace the engine's: they handle untrusted text, or they are bounded.

use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State};

use super::budget::{charge, with_budget};
use super::values::{self, checked, join_text, list, printed};
use super::{guard, methods, product, reading, slice, taint};

/// Engine filters that are removed: they amplify their input, or their output format is of no use.
const LEFT_OUT: [&str; 10] =
    ["batch", "slice", "format", "pprint", "chain", "zip", "groupby", "sum", "split", "lines"];

pub(super) fn install(environment: &mut Environment<'static>) {
    for name in LEFT_OUT {
        environment.remove_filter(name);
    }
    // dict() nests without a depth check; debug() prints the context.
    environment.remove_global("dict");
    environment.remove_global("debug");
    environment.add_filter(guard::CHECK, checked);
    environment.add_filter(guard::CONCATENATE, |left: &Value, right: &Value| {
        Ok::<_, Error>(printed(left)? + &printed(right)?)
    });
    environment.add_filter(guard::MULTIPLY, product::multiply);
    environment.add_filter(guard::SLICE, slice::slice);
    environment.add_filter("list", list);
    environment.add_function("range", range);
    environment.add_filter("join", join);
    environment.add_filter("indent", indent);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| printed(value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("trim", |text: &Value, set: Option<&str>| -> Result<String, Error> {
        reading::read(text)?;
        let text = printed(text)?;
        Ok(methods::strip_both(&text, set).to_owned())
    });
    environment.add_filter("replace", |text: &Value, from: &str, to: &str| {
        methods::replace(&printed(text)?, from, to, None)
    });
    reading::install(environment);
    environment.set_formatter(print);
}

/// The engine's `range`, without bounds whose difference overflows.
fn range(lower: isize, upper: Option<isize>, step: Option<isize>) -> Result<Value, Error> {
    let is_sane = |bound: isize| bound.unsigned_abs() <= i32::MAX as usize;
    if [Some(lower), upper, step].into_iter().flatten().all(is_sane) {
        minijinja::functions::range(lower, upper, step)
    } else {
        Err(Error::new(ErrorKind::InvalidOperation, "range has too many elements"))
    }
}

/// Prints a value into a prompt, as Python does.
fn print(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    let text = printed(value)?;
    charge(text.len())?;
    out.write_str(&text).map_err(|_| Error::new(ErrorKind::WriteFailure, "the output is full"))
}

/// Number of characters of a text or items of a list.
fn length(value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        reading::read_text(text)?;
        return Ok(taint::characters(text));
    }
    if value.is_undefined() {
        return Ok(0);
    }
    let unknown = || Error::new(ErrorKind::InvalidOperation, "a value without a length");
    value.len().ok_or_else(unknown)
}

/// `join(separator, attribute)`
fn join(items: &Value, separator: Option<&Value>, options: Kwargs) -> Result<String, Error> {
    let named: Option<Value> = options.get("d")?;
    let attribute: Option<Value> = options.get("attribute")?;
    options.assert_all_used()?;
    let separator = separator.or(named.as_ref()).map_or_else(|| Ok(String::new()), printed)?;
    join_text(items, &separator, attribute.as_ref())
}

/// `indent(width, first, blank)`
fn indent(
    text: &Value,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
) -> Result<String, Error> {
    let (text, width) = (printed(text)?, width.unwrap_or(4));
    let lines = methods::lines(&text)?;
    charge(lines.len().saturating_mul(width))?;
    let blanks = " ".repeat(width);
    let mut indented = String::new();
    for (nth, (line, end)) in lines.into_iter().enumerate() {
        let wants = (nth > 0 || first == Some(true)) && (blank == Some(true) || !line.is_empty());
        indented.push_str(if wants { &blanks } else { "" });
        indented.push_str(line);
        indented.push_str(end);
    }
    Ok(indented)
}

/// `tojson` as in transformers: Python's `json.dumps` with `ensure_ascii=False`.
fn tojson(value: &Value, _args: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    values::json(value, indent.map(|width| width.min(16)))
}

/// A value in JSON, outside of a running template.
pub(super) fn json(value: &Value) -> Result<String, Error> {
    with_budget(u64::MAX, || values::json(value, None))
}
