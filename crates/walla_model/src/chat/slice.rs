//! Slices as in Python. The engine's version panics on an empty list, and with a negative step
//! treats an end of 0 as absent.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget::{ITEM_BYTES, charge};
use super::reading::read_text;
use super::taint;

/// `value[start:stop:step]`.
pub(super) fn slice(
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let places =
        Places { start: bound(start)?, stop: bound(stop)?, step: bound(step)?.unwrap_or(1) };
    if places.step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a slice of step 0"));
    }
    if let Some(text) = value.as_str() {
        return places.take_text(text).map(Value::from);
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            charge(value.len().unwrap_or(0).saturating_mul(ITEM_BYTES))?;
            let items: Vec<Value> = value.try_iter()?.collect();
            Ok(Value::from(places.take(&items)))
        }
        ValueKind::Undefined | ValueKind::None => Ok(Value::from(Vec::<Value>::new())),
        kind => {
            let what = format!("a value of type {kind} cannot be sliced");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}

fn bound(value: &Value) -> Result<Option<i64>, Error> {
    if value.is_none() { Ok(None) } else { i64::try_from(value.clone()).map(Some) }
}

struct Places {
    start: Option<i64>,
    stop: Option<i64>,
    /// Not 0.
    step: i64,
}

impl Places {
    /// First index and end index, by the rules of Python's `slice.indices`.
    fn ends(&self, len: usize) -> (i128, i128) {
        let len = i128::try_from(len).unwrap_or(i128::MAX);
        let (lowest, highest) = if self.step > 0 { (0, len) } else { (-1, len - 1) };
        let place = |bound: Option<i64>, default: i128| {
            let bound = bound.map(i128::from);
            bound.map_or(default, |at| if at < 0 { at + len } else { at }.clamp(lowest, highest))
        };
        let (first, last) = if self.step > 0 { (lowest, highest) } else { (highest, lowest) };
        (place(self.start, first), place(self.stop, last))
    }

    /// The characters of the slice.
    fn take_text(&self, text: &str) -> Result<String, Error> {
        let characters = taint::characters(text);
        if self.step != 1 {
            charge(characters.saturating_mul(ITEM_BYTES))?;
            return Ok(self.take(&taint::split(text)).concat());
        }
        read_text(text)?;
        let (start, stop) = self.ends(characters);
        let byte = |place| {
            let place = usize::try_from(place).ok();
            place.and_then(|place| taint::starts(text).nth(place)).unwrap_or(text.len())
        };
        Ok(text.get(byte(start)..byte(stop)).unwrap_or_default().to_owned())
    }

    /// The items of the slice.
    fn take<T: Clone>(&self, items: &[T]) -> Vec<T> {
        let step = i128::from(self.step);
        let (mut at, stop) = self.ends(items.len());
        let mut taken = Vec::new();
        while if step > 0 { at < stop } else { at > stop } {
            taken.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
            at += step;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::budget::with_budget;

    fn sliced(text: &str, start: Option<i64>, stop: Option<i64>, step: Option<i64>) -> String {
        let value = |bound: Option<i64>| bound.map_or(Value::from(()), Value::from);
        let slice = || slice(&Value::from(text), &value(start), &value(stop), &value(step));
        with_budget(1_000, slice).unwrap().to_string()
    }

    /// Each expectation is Python's output for `"abcde"[start:stop:step]`.
    #[test]
    fn slices_match_python() {
        const MIN: Option<i64> = Some(i64::MIN);
        const MAX: Option<i64> = Some(i64::MAX);
        for (start, stop, step, expected) in [
            (None, None, None, "abcde"),
            (Some(1), None, None, "bcde"),
            (None, Some(-1), None, "abcd"),
            (Some(-2), None, None, "de"),
            (Some(1), Some(4), Some(2), "bd"),
            (Some(4), Some(1), None, ""),
            (None, None, Some(-1), "edcba"),
            (Some(3), Some(0), Some(-1), "dcb"),
            (Some(0), Some(3), Some(-1), ""),
            (Some(-2), Some(-5), Some(-2), "db"),
            (Some(9), Some(-9), Some(-3), "eb"),
            (MIN, MAX, MAX, "a"),
            (MAX, MIN, MIN, "e"),
        ] {
            assert_eq!(
                sliced("abcde", start, stop, step),
                expected,
                "[{start:?}:{stop:?}:{step:?}]"
            );
        }
        assert_eq!(sliced("", None, None, Some(-1)), "");
    }

    #[test]
    fn untrusted_characters_stay_whole() {
        let text = taint::taint("a猫b");
        assert_eq!(sliced(&text, None, None, Some(-1)), taint::taint("b猫a"));
        assert_eq!(sliced(&text, Some(1), Some(2), None), taint::taint("猫"));
    }

    #[test]
    fn lists_are_sliced_too() {
        let none = Value::from(());
        let sliced = |value: &Value, step: i64| {
            with_budget(1_000, || slice(value, &none, &none, &Value::from(step)))
        };
        let list = Value::from(vec![1, 2, 3]);
        assert_eq!(sliced(&list, -1).unwrap(), Value::from(vec![3, 2, 1]));
        let empty = Value::from(Vec::<Value>::new());
        assert_eq!(sliced(&empty, -1).unwrap(), empty);
        assert!(sliced(&list, 0).is_err());
        assert!(sliced(&Value::from(1), 1).is_err());
    }
}
