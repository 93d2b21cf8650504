//! Fields of JSON values, with an error if one is missing.

use std::error::Error;
use std::time::Duration;

use serde_json::Value;

pub type Found<T> = Result<T, Box<dyn Error>>;

/// Pairs of numbers.
pub fn pairs(value: &Value) -> Found<Vec<[u64; 2]>> {
    let pair = |pair: &Value| Ok([count(&pair[0])?, count(&pair[1])?]);
    list(value)?.iter().map(pair).collect()
}

pub fn list(value: &Value) -> Found<&Vec<Value>> {
    value.as_array().ok_or_else(|| "a list is missing".into())
}

pub fn count(value: &Value) -> Found<u64> {
    value.as_u64().ok_or_else(|| "a count is missing".into())
}

pub fn number(value: &Value) -> Found<f64> {
    value.as_f64().ok_or_else(|| "a number is missing".into())
}

pub fn text(value: &Value) -> Found<&str> {
    value.as_str().ok_or_else(|| "a text is missing".into())
}

pub fn time(value: &Value) -> Found<Duration> {
    count(value).map(Duration::from_nanos)
}
