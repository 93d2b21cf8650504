//! Whether two schemas have no common value, so that `oneOf` has the meaning of `anyOf`.

use serde_json::Value;

use super::{Kind, Property, Schema};

/// Whether no value is valid by both schemas. `false` if this is not known.
pub(super) fn are_disjoint(one: &Schema, other: &Schema) -> bool {
    match (&one.kind, &other.kind) {
        (Kind::Any(options), _) => options.iter().all(|option| are_disjoint(option, other)),
        (_, Kind::Any(options)) => options.iter().all(|option| are_disjoint(one, option)),
        (Kind::Values(values), _) => values.iter().all(|value| !may_contain(other, value)),
        (_, Kind::Values(values)) => values.iter().all(|value| !may_contain(one, value)),
        (Kind::Object(one), Kind::Object(other)) => separates(one, other) || separates(other, one),
        (one, other) => kind_of(one) != kind_of(other),
    }
}

/// Whether a required property of one object is unknown to the other, or has no common value.
fn separates(one: &[Property], other: &[Property]) -> bool {
    one.iter().filter(|property| property.is_required).any(|property| {
        match other.iter().find(|other| other.name == property.name) {
            None => true,
            Some(other) => are_disjoint(&property.schema, &other.schema),
        }
    })
}

fn may_contain(schema: &Schema, value: &Value) -> bool {
    match &schema.kind {
        Kind::Values(values) => values.iter().any(|other| match (value.as_f64(), other.as_f64()) {
            (Some(value), Some(other)) => value.total_cmp(&other).is_eq(),
            _ => value == other,
        }),
        kind => {
            kind_of(kind)
                == match value {
                    Value::Null => 0,
                    Value::Bool(_) => 1,
                    Value::Number(_) => 2,
                    Value::String(_) => 3,
                    Value::Array(_) => 4,
                    Value::Object(_) => 5,
                }
        }
    }
}

/// Kinds of JSON values: integers and numbers have common values.
fn kind_of(kind: &Kind) -> u8 {
    match kind {
        Kind::Null => 0,
        Kind::Boolean => 1,
        Kind::Integer(_) | Kind::Number(_) => 2,
        Kind::Text(_) => 3,
        Kind::List(..) | Kind::Tuple(_) => 4,
        Kind::Object(_) => 5,
        Kind::Values(_) | Kind::Any(_) => 6,
    }
}
