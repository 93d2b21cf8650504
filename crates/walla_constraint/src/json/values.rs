//! Values of `const` and `enum`, and exact decimals.

use serde_json::{Number, Value};

use super::schema::{NUMBER_MAX, Part, Range, Text, Type};
use crate::ConstraintError;

/// Maximum of a number of `multipleOf` without its decimal point. The library has a state for each
/// remainder, and computes remainders in 32 bits without a check.
const MULTIPLE_MAX: u64 = 1_000;

/// Refuses a value that the grammar cannot write. `count` is called for each nested value.
pub(super) fn check(
    value: &Value,
    count: &mut impl FnMut() -> Result<(), ConstraintError>,
) -> Result<Result<(), String>, ConstraintError> {
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        let text_of = |text: &String| text.chars().find(|&c| is_unwritable(c));
        let unwritable = match value {
            Value::Number(number) if number.as_f64().is_none_or(|n| n.abs() > NUMBER_MAX) => {
                let reason = format!("{number} is beyond 2^53 - 1, the range of exact numbers");
                return Ok(Err(reason));
            }
            Value::String(text) => text_of(text),
            Value::Array(items) => {
                rest.extend(items);
                None
            }
            Value::Object(fields) => {
                rest.extend(fields.values());
                fields.keys().find_map(text_of)
            }
            _ => None,
        };
        if let Some(character) = unwritable {
            return Ok(Err(format!("control character {character:?} in a string")));
        }
        count()?;
    }
    Ok(Ok(()))
}

/// Whether a character needs the escape `\u`, which the grammar does not allow: it would be a
/// second spelling of property names.
fn is_unwritable(c: char) -> bool {
    (c.is_ascii_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}')) || c == '\u{7f}'
}

/// Equality of JSON Schema: `1` and `1.0` are equal, and the order of properties does not matter.
pub(super) fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| is_equal(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, value)| {
                    right.get(name).is_some_and(|other| is_equal(value, other))
                })
        }
        _ => left == right,
    }
}

/// Removes values that other parts forbid, and parts that the remaining values satisfy.
pub(super) fn narrow(parts: &mut Vec<Part>) {
    let Some(first) = parts.iter().position(|part| matches!(part, Part::Values(_))) else { return };
    let Part::Values(mut values) = parts.remove(first) else { return };
    values.retain(|value| {
        parts.iter().all(|part| match part {
            Part::Values(others) => others.iter().any(|other| is_equal(value, other)),
            Part::Types(types) => admits(types, value) != Some(false),
            _ => true,
        })
    });
    values.iter_mut().for_each(normalise);
    let mut unique: Vec<Value> = Vec::with_capacity(values.len());
    for value in values {
        // Strings alone can be many; sorting is not possible, because the order is kept.
        if value.is_string() || !unique.iter().any(|known| is_equal(known, &value)) {
            unique.push(value);
        }
    }
    parts.retain(|part| match part {
        Part::Values(_) => false,
        Part::Types(types) => unique.iter().any(|value| admits(types, value) != Some(true)),
        _ => true,
    });
    parts.insert(0, if unique.is_empty() { Part::Never } else { Part::Values(unique) });
}

/// Writes whole numbers without decimals: a program may read them into an integer.
fn normalise(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0);
            if let Some(whole) = whole {
                *number = Number::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::Object(fields) => fields.values_mut().for_each(normalise),
        _ => {}
    }
}

/// Whether the types allow a value; `None` if this is not decided here.
fn admits(types: &[Type], value: &Value) -> Option<bool> {
    let decisions = types.iter().map(|ty| match (ty, value) {
        (Type::Null, Value::Null) | (Type::Boolean, Value::Bool(_)) => Some(true),
        (Type::Number(range), Value::Number(number)) => {
            Some(number.as_f64().is_some_and(|number| range.contains(number)))
        }
        (Type::Integer(range), Value::Number(number)) => {
            let is_in = |number: f64| number.fract() == 0.0 && range.contains(number);
            Some(number.as_f64().is_some_and(is_in))
        }
        (Type::String(text), Value::String(value)) => text.admits(value),
        (Type::Array(_), Value::Array(_)) | (Type::Object(_), Value::Object(_)) => None,
        _ => Some(false),
    });
    let decisions: Vec<Option<bool>> = decisions.collect();
    if decisions.contains(&Some(true)) {
        return Some(true);
    }
    (!decisions.contains(&None)).then_some(false)
}

impl Text {
    fn admits(&self, value: &str) -> Option<bool> {
        let length = value.chars().count() as u64;
        if length < self.min || self.max.is_some_and(|max| length > max) {
            return Some(false);
        }
        (self.patterns.is_empty() && self.formats.is_empty()).then_some(true)
    }
}

impl Range {
    fn contains(&self, number: f64) -> bool {
        let is_multiple = self.multiple_of.is_none_or(|multiple| {
            let (Some((step, digits)), Some((value, own))) =
                (scale(multiple), decimal(number.abs()))
            else {
                return number == 0.0;
            };
            let digits_max = digits.max(own);
            let to = |value: u64, digits: u32| u128::from(value) * 10_u128.pow(digits_max - digits);
            to(value, own) % to(step, digits) == 0
        });
        self.min.is_none_or(|min| number >= min)
            && self.max.is_none_or(|max| number <= max)
            && self.above.is_none_or(|above| number > above)
            && self.below.is_none_or(|below| number < below)
            && is_multiple
    }

    /// The whole numbers in the range, within ±[`NUMBER_MAX`], as lowest and highest one.
    pub(super) fn whole(&self) -> (f64, f64) {
        let low = self.min.map_or(-NUMBER_MAX, f64::ceil);
        let low = self.above.map_or(low, |above| low.max(above.floor() + 1.0));
        let high = self.max.map_or(NUMBER_MAX, f64::floor);
        let high = self.below.map_or(high, |below| high.min(below.ceil() - 1.0));
        (low, high)
    }

    /// Whether a whole number, or any number, is in the range.
    pub(super) fn is_empty(&self, only_whole: bool) -> bool {
        let (low, high) = if only_whole {
            self.whole()
        } else {
            (self.min.unwrap_or(-NUMBER_MAX), self.max.unwrap_or(NUMBER_MAX))
        };
        let low = self.above.map_or(low, |above| low.max(above));
        let high = self.below.map_or(high, |below| high.min(below));
        let is_open = |number: f64| self.above == Some(number) || self.below == Some(number);
        let Some((step, digits)) = self.multiple_of.and_then(scale) else {
            return low > high || (low == high && is_open(low));
        };
        let power = 10_f64.powi(digits as i32);
        let step = if only_whole {
            // The smallest whole multiple of step / 10^digits.
            let common = gcd(step, 10_u64.pow(digits));
            (step / common) as f64
        } else {
            step as f64 / power
        };
        let mut multiple = (low / step).ceil();
        if is_open(multiple * step) {
            multiple += 1.0;
        }
        let found = multiple * step;
        found > high || (found == high && self.below == Some(high))
    }
}

/// A positive number as a whole number and a number of decimals, at most six, as the library
/// computes them. `None` if it is no such number.
fn decimal(number: f64) -> Option<(u64, u32)> {
    let (mut value, mut digits) = (number, 0);
    while value.fract() != 0.0 {
        if digits == 6 {
            return None;
        }
        value *= 10.0;
        digits += 1;
    }
    (value > 0.0 && value <= NUMBER_MAX).then_some((value as u64, digits))
}

/// As [`decimal`], for a number of `multipleOf`.
pub(super) fn scale(number: f64) -> Option<(u64, u32)> {
    decimal(number).filter(|&(value, _)| value <= MULTIPLE_MAX)
}

/// The least common multiple of two numbers, if it can be [scaled](scale).
pub(super) fn common_multiple(left: f64, right: f64) -> Option<f64> {
    let ((left, own), (right, other)) = (scale(left)?, scale(right)?);
    let digits = own.max(other);
    let to = |value: u64, own: u32| value * 10_u64.pow(digits - own); // at most 10^12
    let (left, right) = (to(left, own), to(right, other));
    let common = (left / gcd(left, right)).checked_mul(right)?;
    let number = common as f64 / 10_f64.powi(digits as i32);
    let (value, written) = scale(number)?;
    (value * 10_u64.pow(digits.checked_sub(written)?) == common).then_some(number)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_equal_by_value() {
        assert!(is_equal(&json!({"a": [1, 2.0]}), &json!({"a": [1.0, 2]})));
        assert!(!is_equal(&json!([1]), &json!([1, 1])));
        assert!(!is_equal(&json!(1), &json!("1")));
    }

    #[test]
    fn decimals_are_scaled() {
        assert_eq!(scale(0.25), Some((25, 2)));
        assert_eq!(scale(30.0), Some((30, 0)));
        assert_eq!(scale(1e-9), None);
        assert_eq!(scale(0.0), None);
        assert_eq!((scale(1e3), scale(1_001.0)), (Some((1_000, 0)), None));
        assert_eq!(decimal(5e9), Some((5_000_000_000, 0)));
    }

    #[test]
    fn common_multiples_are_exact() {
        assert_eq!(common_multiple(4.0, 6.0), Some(12.0));
        assert_eq!(common_multiple(0.5, 0.2), Some(1.0));
        assert_eq!(common_multiple(1.5, 2.0), Some(6.0));
        assert_eq!(common_multiple(99.0, 1_000.0), None);
    }

    #[test]
    fn ranges_without_a_number_are_empty() {
        let range = |min: f64, max: f64, multiple_of: Option<f64>| Range {
            min: Some(min),
            max: Some(max),
            multiple_of,
            ..Range::default()
        };
        assert!(range(4.0, 5.0, Some(3.0)).is_empty(true));
        assert!(!range(4.0, 6.0, Some(3.0)).is_empty(true));
        assert!(range(1.2, 1.8, None).is_empty(true) && !range(1.2, 1.8, None).is_empty(false));
        assert!(range(1.0, 2.0, Some(1.5)).is_empty(true), "1.5 is not whole");
        assert!(!range(1.0, 2.0, Some(1.5)).is_empty(false));
        let open = Range { above: Some(1.0), below: Some(2.0), ..Range::default() };
        assert!(open.is_empty(true) && !open.is_empty(false));
    }
}
