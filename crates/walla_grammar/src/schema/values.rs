//! Values of `const` and `enum`, and exact decimals.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use super::document::{
    DIGITS_EXACT, Fields, Items, MAX_DECIMALS, MAX_NUMBER, Part, Range, Schema, Text, Type,
};
use super::format;
use crate::ConstraintError;

/// Maximum of a number of `multipleOf` without its decimal point. The library has a state for each
/// remainder, and computes remainders in 32 bits without a check.
const MAX_MULTIPLE: u64 = 1_000;

/// Refuses a value that the grammar cannot write. `count` is called for each nested value.
pub(super) fn check(
    value: &Value,
    count: &mut impl FnMut() -> Result<(), ConstraintError>,
) -> Result<Result<(), String>, ConstraintError> {
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        let text_of = |text: &String| text.chars().find(|&c| is_unwritable(c));
        let unwritable = match value {
            Value::Number(number) if !is_writable(number) => {
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

/// Whether the library writes a number exactly: it computes in 64-bit floating point. Beyond
/// [`MAX_NUMBER`] these are the integers of 64 bits that floating point has, such as 2^60.
fn is_writable(number: &Number) -> bool {
    let is_exact = |whole: i64| whole as f64 as i128 == i128::from(whole) && whole != i64::MIN;
    number.as_f64().is_some_and(|value| value.abs() <= MAX_NUMBER)
        || number.as_i64().is_some_and(is_exact)
}

/// The type of a value, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Whether a character needs the escape `\u`, which the grammar does not allow: it would be a
/// second spelling of property names.
fn is_unwritable(c: char) -> bool {
    (c.is_ascii_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}')) || c == '\u{7f}'
}

/// Equality of JSON Schema: `1` and `1.0` are equal, and the order of properties does not matter.
pub(crate) fn is_equal(left: &Value, right: &Value) -> bool {
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
    let reason = match values.as_slice() {
        [] => "\"const\" is no value of \"enum\"",
        [_] => "other keywords exclude the value of \"const\" or \"enum\"",
        _ => "other keywords exclude all values of \"enum\"",
    };
    values.retain(|value| {
        parts.iter().all(|part| match part {
            Part::Values(others) => others.iter().any(|other| is_equal(value, other)),
            Part::Types(types) => admits(types, value) != Some(false),
            _ => true,
        })
    });
    values.iter_mut().for_each(normalize);
    let mut unique: Vec<Value> = Vec::with_capacity(values.len());
    let mut texts = HashSet::new();
    for value in values {
        // Values without properties are equal if their normal texts are equal. Values can be many;
        // sorting is not possible, because the order is kept.
        let text = value.to_string();
        let has_fields = text.contains('{') && !value.is_string();
        let is_known = !texts.insert(text)
            || (has_fields && unique.iter().any(|known| is_equal(known, &value)));
        if !is_known {
            unique.push(value);
        }
    }
    parts.retain(|part| match part {
        Part::Values(_) => false,
        Part::Types(types) => unique.iter().any(|value| admits(types, value) != Some(true)),
        _ => true,
    });
    parts.insert(
        0,
        if unique.is_empty() { Part::Never(reason.into()) } else { Part::Values(unique) },
    );
}

/// Writes whole numbers without decimals: a program may read them into an integer.
fn normalize(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0);
            if let Some(whole) = whole {
                *number = Number::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Object(fields) => fields.values_mut().for_each(normalize),
        _ => {}
    }
}

/// Whether the types allow a value; `None` if this is not decided here.
pub(super) fn admits(types: &[Type], value: &Value) -> Option<bool> {
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
        (Type::Array(items), Value::Array(values)) => items.admits(values),
        (Type::Object(fields), Value::Object(map)) => fields.admits(map),
        _ => Some(false),
    });
    any(decisions)
}

/// As [`admits`], for a schema.
fn admits_value(schema: &Schema, value: &Value) -> Option<bool> {
    all(schema.parts.iter().map(|part| match part {
        Part::Never(_) => Some(false),
        Part::Types(types) => admits(types, value),
        Part::Any(schemas) => any(schemas.iter().map(|schema| admits_value(schema, value))),
        Part::Values(values) => Some(values.iter().any(|other| is_equal(other, value))),
        Part::One(_) | Part::Ref(_) => None,
    }))
}

/// Whether one decision is true; `None` if this is not known.
fn any(decisions: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    all(decisions.map(|decision| decision.map(|is_true| !is_true))).map(|is_false| !is_false)
}

/// Whether all decisions are true; `None` if this is not known.
fn all(decisions: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut is_known = true;
    for decision in decisions {
        match decision {
            Some(false) => return Some(false),
            Some(true) => {}
            None => is_known = false,
        }
    }
    is_known.then_some(true)
}

impl Items {
    fn admits(&self, values: &[Value]) -> Option<bool> {
        let count = values.len() as u64;
        if count < self.min || self.max.is_some_and(|max| count > max) {
            return Some(false);
        }
        all(values.iter().enumerate().map(|(index, value)| match self.item(index) {
            Some(schema) => admits_value(schema, value),
            None => Some(true),
        }))
    }
}

impl Fields {
    fn admits(&self, map: &Map<String, Value>) -> Option<bool> {
        let count = map.len() as u64;
        let is_counted = count >= self.min && self.max.is_none_or(|max| count <= max);
        if !is_counted || self.required.iter().any(|name| !map.contains_key(name)) {
            return Some(false);
        }
        let has_patterns = !self.patterns.is_empty();
        let decisions = map.iter().map(|(name, value)| {
            let (own, rest) = self.property(name);
            match own.or(rest) {
                Some(schema) => admits_value(schema, value),
                None => Some(true),
            }
        });
        // A pattern may apply too, or instead of `additionalProperties`.
        if has_patterns { None } else { all(decisions) }
    }
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
    /// The conditions, for a message.
    pub(super) fn describe(&self) -> String {
        let conditions = [
            ("at least", self.min),
            ("above", self.above),
            ("at most", self.max),
            ("below", self.below),
            ("a multiple of", self.multiple_of),
        ];
        let own = conditions.iter().filter_map(|(name, value)| Some((name, (*value)?)));
        let texts: Vec<String> = own.map(|(name, value)| format!("{name} {value}")).collect();
        texts.join(" and ")
    }

    /// The highest inclusive lower bound, with the format's.
    pub(crate) fn low(&self) -> f64 {
        let format = self.format.and_then(format::of_numbers);
        let low = format.map_or(f64::NEG_INFINITY, |(_, low, _)| low);
        self.min.unwrap_or(f64::NEG_INFINITY).max(low)
    }

    /// The lowest inclusive upper bound, with the format's.
    pub(crate) fn high(&self) -> f64 {
        let format = self.format.and_then(format::of_numbers);
        let high = format.map_or(f64::INFINITY, |(.., high)| high);
        self.max.unwrap_or(f64::INFINITY).min(high)
    }

    /// The same range of exact numbers without a format.
    pub(super) fn unformatted(&self) -> Self {
        if self.format.is_none() {
            return self.clone();
        }
        let (low, high) = (self.low().max(-MAX_NUMBER), self.high().min(MAX_NUMBER));
        Self { min: Some(low), max: Some(high), format: None, ..*self }
    }

    /// Whether the number is in the range.
    pub(crate) fn contains(&self, number: f64) -> bool {
        let is_multiple = self.multiple_of.is_none_or(|multiple| {
            let (Some((step, digits)), Some((value, own))) =
                (scale(multiple), decimal(number.abs()))
            else {
                return number == 0.0;
            };
            let max_digits = digits.max(own);
            let to = |value: u64, digits: u32| u128::from(value) * 10_u128.pow(max_digits - digits);
            to(value, own) % to(step, digits) == 0
        });
        number >= self.low()
            && number <= self.high()
            && self.above.is_none_or(|above| number > above)
            && self.below.is_none_or(|below| number < below)
            && is_multiple
    }

    /// The whole numbers in the range, within ±[`MAX_NUMBER`], as lowest and highest one.
    pub(super) fn whole(&self) -> (f64, f64) {
        let low = self.min.map_or(-MAX_NUMBER, f64::ceil);
        let low = self.above.map_or(low, |above| low.max(above.floor() + 1.0));
        let high = self.max.map_or(MAX_NUMBER, f64::floor);
        let high = self.below.map_or(high, |below| high.min(below.ceil() - 1.0));
        (low, high)
    }

    /// The lowest and the highest number, both perhaps not included, within ±[`MAX_NUMBER`].
    fn ends(&self) -> (f64, f64) {
        let low = self.min.unwrap_or(-MAX_NUMBER);
        let high = self.max.unwrap_or(MAX_NUMBER);
        let low = self.above.map_or(low, |above| low.max(above));
        (low, self.below.map_or(high, |below| high.min(below)))
    }

    /// Number of decimals that the grammar allows without `multipleOf`. It is lower at an
    /// exclusive bound of many digits: a number with more than [`DIGITS_EXACT`] digits could be
    /// read as the bound.
    pub(super) fn decimals(&self) -> u32 {
        let bounds = self.above.into_iter().chain(self.below);
        bounds.map(exact_decimals).fold(MAX_DECIMALS, u32::min)
    }

    /// Numbers of a range that is too narrow for [`decimals`](Self::decimals): its bounds, its
    /// middle and the numbers with these decimals, in so far as they are in the range. `None` if
    /// the range is wide enough.
    pub(super) fn few(&self) -> Option<Vec<f64>> {
        let (low, high) = self.ends();
        let step = step(self.decimals());
        // The library divides bounds by the step, with an error of a few units in the last place,
        // and must find a number between them.
        let width_min = (f64::from(STEPS_MIN) * step).max(low.abs().max(high.abs()) * 4e-15);
        if high - low >= width_min {
            return None;
        }
        let mut values = vec![low, (low + high) / 2.0, high];
        if (high - low) / step <= f64::from(STEPS_MIN) {
            let steps = (0..=STEPS_MIN).map(|count| low + f64::from(count) * step);
            values.extend(steps.map(|value| rounded(value, self.decimals())));
        }
        values.iter_mut().for_each(|value| *value += 0.0); // no -0
        values.retain(|&value| self.contains(value));
        values.sort_by(f64::total_cmp);
        values.dedup();
        Some(values)
    }

    /// The same range for numbers with this number of decimals, with bounds that are in it and
    /// have no more decimals: below a bound with more, the library allows no number that the bound
    /// starts with, and of an exclusive bound that is whole it allows the bound itself.
    pub(super) fn closed(&self, decimals: u32) -> Self {
        let up = |bound: f64| {
            let near = rounded(bound, decimals);
            if near < bound { rounded(bound + step(decimals), decimals) } else { near }
        };
        let next = |bound: f64| {
            let near = up(bound);
            // A parser reads a number with more digits as the bound.
            let decimals = decimals.min(exact_decimals(bound));
            if near > bound { near } else { rounded(bound + step(decimals), decimals) }
        };
        let low = up(self.min.unwrap_or(-MAX_NUMBER));
        let high = -up(-self.max.unwrap_or(MAX_NUMBER));
        Self {
            min: Some(self.above.map_or(low, |above| low.max(next(above)))),
            max: Some(self.below.map_or(high, |below| high.min(-next(-below)))),
            above: None,
            below: None,
            ..*self
        }
    }

    /// Whether a whole number, or any number, is in the range.
    pub(super) fn is_empty(&self, only_whole: bool) -> bool {
        let (low, high) = if only_whole { self.whole() } else { self.ends() };
        let is_open = |number: f64| self.above == Some(number) || self.below == Some(number);
        let Some((step, digits)) = self.multiple_of.and_then(scale) else {
            let is_none = !only_whole && self.few().is_some_and(|values| values.is_empty());
            return low > high || is_none;
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

/// Minimum width of a range that is written as bounds, in steps of the last decimal.
const STEPS_MIN: u32 = 6;

/// Number of decimals that every parser distinguishes from a bound.
fn exact_decimals(bound: f64) -> u32 {
    let digits = format!("{}", bound.abs().trunc()).len();
    DIGITS_EXACT.saturating_sub(digits as u32)
}

/// The nearest number with this number of decimals.
fn rounded(number: f64, decimals: u32) -> f64 {
    format!("{number:.*}", decimals as usize).parse().unwrap_or(number)
}

/// 10^-decimals.
pub(super) fn step(decimals: u32) -> f64 {
    1.0 / 10_f64.powi(decimals as i32)
}

/// A positive number as a whole number and a number of decimals, at most six, as the library
/// computes them. `None` if it is no such number.
fn decimal(number: f64) -> Option<(u64, u32)> {
    let (mut value, mut digits) = (number, 0);
    while value.fract() != 0.0 {
        if digits == MAX_DECIMALS {
            return None;
        }
        value *= 10.0;
        digits += 1;
    }
    (value > 0.0 && value <= MAX_NUMBER).then_some((value as u64, digits))
}

/// As [`decimal`], for a number of `multipleOf`.
pub(super) fn scale(number: f64) -> Option<(u64, u32)> {
    decimal(number).filter(|&(value, _)| value <= MAX_MULTIPLE)
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
