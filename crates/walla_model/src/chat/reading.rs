//! Charges for reads: fuel counts instructions, and one instruction can read a whole value.
//!
//! `'x' in list` returns a bool, regardless of the list's length. So each operation that reads more
//! than a fixed part of a value and returns something small is charged here: comparisons by a
//! filter before them ([`operands`]), the engine's tests and filters by wrappers with the same
//! names.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters as engine, tests};

use super::budget::{ITEM_BYTES, MAX_NESTING, charge};
use super::values::list;
use super::{guard, taint};

/// Cost of creating a byte relative to reading it: a read allocates nothing.
const READING_SHARE: usize = 8;

/// Charges for reading all of a value.
pub(super) fn read(value: &Value) -> Result<(), Error> {
    charge(extent(value, 0) / READING_SHARE)
}

/// Charges for reading a text.
pub(super) fn read_text(text: &str) -> Result<(), Error> {
    charge(text.len() / READING_SHARE)
}

/// Bytes to read. Values were charged when they were created, so this terminates.
fn extent(value: &Value, depth: usize) -> usize {
    if let Some(text) = value.as_str() {
        return text.len();
    }
    let is_map = value.kind() == ValueKind::Map;
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let items = value.try_iter().ok().filter(|_| (is_map || is_list) && depth < MAX_NESTING);
    let within = |item: &Value| ITEM_BYTES + extent(item, depth + 1);
    let behind = |key: &Value| value.get_item(key).map_or(0, |item| within(&item));
    let both = |item: Value| within(&item) + if is_map { behind(&item) } else { 0 };
    items.map_or(0, |items| items.map(both).sum())
}

/// Charges for reading both operands of a comparison, and returns them in the order in which they
/// are unpacked.
fn operands(left: &Value, right: &Value) -> Result<Value, Error> {
    read(left)?;
    read(right)?;
    Ok(Value::from(vec![right.clone(), left.clone()]))
}

/// The items of a loop. A text becomes its characters; untrusted characters stay whole.
pub(super) fn each(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() { list(value) } else { Ok(value.clone()) }
}

/// `value[key]`. An item of a text is a character; untrusted characters stay whole.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    read(key)?; // it is hashed
    if value.kind() == ValueKind::Iterable {
        read(value)?; // the engine iterates to the item
    }
    let Some(text) = value.as_str() else { return value.get_item(key) };
    let Ok(index) = i64::try_from(key.clone()) else { return Ok(Value::UNDEFINED) };
    read_text(text)?;
    let last = || i64::try_from(taint::characters(text)).unwrap_or(i64::MAX);
    let index = if index < 0 { index.saturating_add(last()) } else { index };
    let Ok(index) = usize::try_from(index) else { return Ok(Value::UNDEFINED) };
    let mut starts = taint::starts(text).skip(index);
    let Some(start) = starts.next() else { return Ok(Value::UNDEFINED) };
    let end = starts.next().unwrap_or(text.len());
    Ok(text.get(start..end).map_or(Value::UNDEFINED, Value::from))
}

/// `value.a.0.b`
fn attribute(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(names) = path.as_str() else { return item(value, path) };
    names.split('.').try_fold(value.clone(), |value, name| match name.parse::<u32>() {
        Ok(index) => item(&value, &Value::from(index)),
        Err(_) => value.get_attr(name),
    })
}

/// The items that `select` and similar filters keep: the items with the wanted result of a test,
/// of the item or of an attribute.
fn choose(
    state: &mut State<'_, '_>,
    items: &Value,
    args: &[Value],
    (by_attribute, wanted): (bool, bool),
) -> Result<Vec<Value>, Error> {
    let missing = || Error::from(ErrorKind::MissingArgument);
    let (path, args) = args.split_at_checked(by_attribute.into()).ok_or_else(missing)?;
    let (test, Rest(args)): (Option<&str>, Rest<Value>) = from_args(args)?;
    let mut chosen = Vec::new();
    for item in each(items)?.try_iter()? {
        charge(ITEM_BYTES)?;
        let subject = match path {
            [path] => attribute(&item, path)?,
            _ => item.clone(),
        };
        let holds = match test {
            Some(test) => {
                let args: Vec<Value> =
                    core::iter::once(subject).chain(args.iter().cloned()).collect();
                state.perform_test(test, &args)?
            }
            None => subject.is_true(),
        };
        if holds == wanted {
            chosen.push(item);
        }
    }
    Ok(chosen)
}

/// `map(filter, …)`, `map(attribute=…, default=…)`
fn map(
    state: &mut State<'_, '_>,
    items: &Value,
    args: Rest<Value>,
    options: Kwargs,
) -> Result<Vec<Value>, Error> {
    let (path, default): (Option<Value>, Option<Value>) =
        (options.get("attribute")?, options.get("default")?);
    options.assert_all_used()?;
    let mut mapped = Vec::new();
    for item in each(items)?.try_iter()? {
        charge(ITEM_BYTES)?;
        let value = match (&path, args.split_first()) {
            (Some(path), _) => match (attribute(&item, path), &default) {
                (Ok(value), Some(default)) if value.is_undefined() => default.clone(),
                (Err(_), Some(default)) => default.clone(),
                (value, _) => value?,
            },
            (None, Some((filter, args))) => {
                let args: Vec<Value> = core::iter::once(item).chain(args.iter().cloned()).collect();
                let name = filter.as_str().unwrap_or_default();
                state.apply_filter(name, &args)?
            }
            (None, None) => {
                return Err(Error::new(ErrorKind::MissingArgument, "map() without a filter"));
            }
        };
        mapped.push(value);
    }
    Ok(mapped)
}

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter(guard::OPERANDS, operands);
    environment.add_filter(guard::EACH, each);
    environment.add_filter(guard::ITEM, item);
    environment.add_filter("attr", item);
    environment.add_filter("map", map);
    for (name, choice) in [
        ("select", (false, true)),
        ("reject", (false, false)),
        ("selectattr", (true, true)),
        ("rejectattr", (true, false)),
    ] {
        environment.add_filter(name, move |state: &mut State, items: &Value, args: Rest<Value>| {
            choose(state, items, &args, choice)
        });
    }
    install_filters(environment);
    install_tests(environment);
}

/// An engine filter of a list.
type Reduction = fn(&State<'_, '_>, Value, Kwargs) -> Result<Value, Error>;

/// Engine filters that read much and return little.
fn install_filters(environment: &mut Environment<'static>) {
    let whole: [(_, Reduction); 3] =
        [("min", engine::min), ("max", engine::max), ("unique", engine::unique)];
    for (name, filter) in whole {
        environment.add_filter(name, move |state: &State, items: Value, options: Kwargs| {
            read(&items)?;
            filter(state, items, options)
        });
    }
    environment.add_filter("first", |items: &Value| match items.as_str() {
        Some(_) => item(items, &Value::from(0)),
        None => engine::first(items),
    });
    environment.add_filter("last", |items: Value| {
        if items.as_str().is_some() {
            return item(&items, &Value::from(-1));
        }
        read(&items)?;
        engine::last(items)
    });
    environment.add_filter(
        "int",
        |state: &State,
         text: &Value,
         default: Option<Value>,
         base: Option<u32>,
         options: Kwargs| {
            read(text)?;
            engine::int(state, text, default, base, options)
        },
    );
    environment.add_filter(
        "float",
        |state: &State, text: &Value, default: Option<Value>, options: Kwargs| {
            read(text)?;
            engine::float(state, text, default, options)
        },
    );
}

type Comparison = fn(&Value, &Value) -> bool;
type Property = fn(&Value) -> bool;

fn install_tests(environment: &mut Environment<'static>) {
    // Not in Jinja2.
    environment.remove_test("startingwith");
    environment.remove_test("endingwith");
    let comparisons: [(Comparison, &[&'static str]); 7] = [
        (tests::is_eq, &["eq", "equalto", "=="]),
        (tests::is_ne, &["ne", "!="]),
        (tests::is_lt, &["lt", "lessthan", "<"]),
        (tests::is_le, &["le", "<="]),
        (tests::is_gt, &["gt", "greaterthan", ">"]),
        (tests::is_ge, &["ge", ">="]),
        (tests::is_sameas, &["sameas"]),
    ];
    for (compare, names) in comparisons {
        for name in names {
            environment.add_test(*name, move |left: &Value, right: &Value| {
                read(left)?;
                read(right)?;
                Ok::<_, Error>(compare(left, right))
            });
        }
    }
    environment.add_test("in", |state: &State, value: &Value, container: &Value| {
        read(value)?;
        read(container)?;
        tests::is_in(state, value, container)
    });
    for (name, is_case) in [("lower", tests::is_lower as Property), ("upper", tests::is_upper)] {
        environment.add_test(name, move |text: &Value| {
            read(text)?;
            Ok::<_, Error>(is_case(text))
        });
    }
    // The engine's version panics for a divisor of 0, and for the smallest number and -1.
    environment.add_test("divisibleby", |number: i128, by: i128| {
        let zero = || Error::new(ErrorKind::InvalidOperation, "divisibleby(0)");
        if by == 0 { Err(zero()) } else { Ok(number.wrapping_rem(by) == 0) }
    });
}
