//! The operator `*`, charged before it runs: the engine repeats a value up to 100 million times
//! first.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget::{ITEM_BYTES, charge};

/// `left * right`.
pub(super) fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    match (repeats(left), repeats(right)) {
        (true, false) => repeat(left, right),
        (false, true) => repeat(right, left),
        _ => product(left, right).ok_or_else(|| {
            let what = format!("cannot multiply a {} by a {}", left.kind(), right.kind());
            Error::new(ErrorKind::InvalidOperation, what)
        }),
    }
}

/// Whether multiplication repeats the value.
fn repeats(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable)
}

/// As in Python, a negative count repeats zero times.
fn repeat(value: &Value, times: &Value) -> Result<Value, Error> {
    let times = usize::try_from(i64::try_from(times.clone())?.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = value.as_str() {
        charge(text.len().saturating_mul(times))?;
        return Ok(Value::from(text.repeat(times)));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    charge(items.len().saturating_mul(times).saturating_mul(ITEM_BYTES))?;
    let all = items.iter().cycle().take(items.len().saturating_mul(times));
    Ok(all.cloned().collect())
}

/// Exact for integers, else as `f64`. `None` for other values, and beyond 128 bits.
fn product(left: &Value, right: &Value) -> Option<Value> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        return None;
    }
    let integer = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    if let (Some(left), Some(right)) = (integer(left), integer(right)) {
        let product = left.checked_mul(right)?;
        return Some(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    let float = |value: &Value| match integer(value) {
        Some(integer) => Some(integer as f64),
        None => f64::try_from(value.clone()).ok(),
    };
    Some(Value::from(float(left)? * float(right)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::budget::with_budget;

    fn text(left: impl Into<Value>, right: impl Into<Value>) -> Result<String, Error> {
        let product = with_budget(1_000, || multiply(&left.into(), &right.into()))?;
        Ok(product.to_string())
    }

    #[test]
    fn products_match_python() {
        assert_eq!(text(6, 7).unwrap(), "42");
        assert_eq!(text(i64::MAX, 2).unwrap(), "18446744073709551614");
        assert_eq!(text(1.5, 2).unwrap(), "3.0");
        assert_eq!(text(true, 3).unwrap(), "3");
        assert_eq!(text("ab", 2).unwrap(), "abab");
        assert_eq!(text(2, "ab").unwrap(), "abab");
        assert_eq!(text("ab", -1).unwrap(), "");
        assert_eq!(text(vec![1, 2], 2).unwrap(), "[1, 2, 1, 2]");
    }

    #[test]
    fn invalid_operands_of_a_product_are_an_error() {
        assert!(text("a", "b").is_err());
        assert!(text("a", 1.5).is_err());
        assert!(text(Value::from(()), 1).is_err());
        assert!(text(i128::MAX, 2).is_err());
    }

    /// No memory is allocated before it is charged: these values would take 2 GB and more.
    #[test]
    fn repetitions_consume_fuel_before_allocation() {
        for left in [Value::from("ab"), Value::from(vec![1]), Value::from("x".repeat(900))] {
            let error = text(left, i64::MAX).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfFuel);
        }
    }
}
