//! Slices as in Python. The engine's own panic at an empty list and take an end of 0 for none when they go backwards.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

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
        return Ok(Value::from(places.take(&taint::split(text)).concat()));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
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
    /// The items at these places, by the rules of Python's `slice.indices`.
    fn take<T: Clone>(&self, items: &[T]) -> Vec<T> {
        let len = i128::try_from(items.len()).unwrap_or(i128::MAX);
        let step = i128::from(self.step);
        let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let place = |bound: Option<i64>, default: i128| {
            let bound = bound.map(i128::from);
            bound.map_or(default, |at| if at < 0 { at + len } else { at }.clamp(lowest, highest))
        };
        let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
        let (mut at, stop) = (place(self.start, first), place(self.stop, last));
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

    fn sliced(text: &str, start: Option<i64>, stop: Option<i64>, step: Option<i64>) -> String {
        let value = |bound: Option<i64>| bound.map_or(Value::from(()), Value::from);
        slice(&Value::from(text), &value(start), &value(stop), &value(step)).unwrap().to_string()
    }

    /// Each expectation is what Python prints for `"abcde"[start:stop:step]`.
    #[test]
    fn slices_are_those_of_python() {
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
        let list = Value::from(vec![1, 2, 3]);
        let backwards = slice(&list, &none, &none, &Value::from(-1)).unwrap();
        assert_eq!(backwards, Value::from(vec![3, 2, 1]));
        let empty = Value::from(Vec::<Value>::new());
        assert_eq!(slice(&empty, &none, &none, &Value::from(-1)).unwrap(), empty);
        assert!(slice(&list, &none, &none, &Value::from(0)).is_err());
        assert!(slice(&Value::from(1), &none, &none, &none).is_err());
    }
}
