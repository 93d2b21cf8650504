//! Schemas and actions of a small town, different for each number.

use std::error::Error;

use serde_json::{Value, json};
use walla_runtime::{ActionSet, ActionSpec};

/// Kinds of schemas: the number of a schema selects its kind first.
pub const KINDS: u64 = 8;

/// An object of these properties. The first `required` of them must be there.
fn closed(properties: &[(&str, Value)], required: usize) -> Value {
    let names: Vec<&str> = properties.iter().take(required).map(|(name, _)| *name).collect();
    let properties: serde_json::Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({
        "type": "object", "properties": properties, "required": names,
        "additionalProperties": false
    })
}

/// The schema with this number. Texts and lists have a limit, so most replies can finish.
pub fn schema(number: u64) -> Value {
    let n = number / KINDS;
    let name = &*format!("item{}", n % 97);
    match number % KINDS {
        0 => closed(
            &[
                (name, json!({"enum": ["nails", "sword", "horseshoe", format!("key {n}")]})),
                ("price", json!({"type": "integer", "minimum": 1, "maximum": 99 + n})),
            ],
            2,
        ),
        1 => closed(
            &[
                (name, json!({"type": "string", "maxLength": 4 + n % 20})),
                ("open", json!({"type": "boolean"})),
            ],
            2,
        ),
        2 => closed(
            &[
                (
                    name,
                    json!({"type": "array", "maxItems": 1 + n % 4,
                        "items": {"enum": ["go", "take", "give", n]}}),
                ),
                ("mood", json!({"anyOf": [{"type": "null"}, {"const": "glad"}]})),
            ],
            2,
        ),
        3 => {
            let place = json!({"type": "string", "pattern": format!("^[a-z]{{1,{}}}$", 3 + n % 9)});
            let mut object = closed(
                &[
                    (name, json!({"$ref": "#/$defs/place"})),
                    ("at", json!({"type": "integer", "minimum": 0, "maximum": 24 + n})),
                ],
                2,
            );
            object["$defs"] = json!({"place": place});
            object
        }
        4 => closed(
            &[
                (name, json!({"enum": ["Odo", "Pip", "Wren", n]})),
                ("count", json!({"type": "integer", "minimum": -5, "maximum": 5 + n})),
                ("note", json!({"type": "string", "maxLength": 12})),
                ("paid", json!({"type": "boolean"})),
            ],
            1,
        ),
        5 => {
            let step = closed(
                &[
                    ("place", json!({"enum": ["forge", "tavern", "gate", format!("mill {n}")]})),
                    (
                        "hours",
                        json!({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 12}),
                    ),
                ],
                2,
            );
            closed(
                &[(name, json!({"type": "array", "minItems": 1, "maxItems": 3, "items": step}))],
                1,
            )
        }
        6 => closed(
            &[(
                name,
                json!({"oneOf": [
                    {"type": "integer", "exclusiveMinimum": n},
                    {"type": "string", "minLength": 1, "maxLength": 6},
                    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}],
                        "items": false, "minItems": 2}
                ]}),
            )],
            1,
        ),
        _ => closed(
            &[
                (name, json!({"type": "string", "format": "date"})),
                (
                    "who",
                    json!({"type": "string", "pattern": "^[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})?$"}),
                ),
            ],
            2,
        ),
    }
}

/// The actions of agent `n`, with the schemas by which their arguments are validated.
pub fn actions(n: u64) -> Vec<(&'static str, &'static str, Value)> {
    let item = json!({"enum": ["nails", "horseshoe", "sword", format!("key {n}")]});
    vec![
        (
            "give",
            "Hands an item over.",
            closed(
                &[
                    ("item", item.clone()),
                    ("count", json!({"type": "integer", "minimum": 1, "maximum": 20 + n})),
                    (
                        "note",
                        json!({"anyOf": [{"type": "string", "maxLength": 12}, {"type": "null"}]}),
                    ),
                ],
                2,
            ),
        ),
        (
            "move",
            "Walks along a path.",
            closed(
                &[
                    (
                        "path",
                        json!({"type": "array", "minItems": 1, "maxItems": 3,
                            "items": {"enum": ["gate", "forge", "tavern"]}}),
                    ),
                    ("fast", json!({"type": "boolean"})),
                ],
                1,
            ),
        ),
        (
            "offer",
            "Names a price.",
            closed(
                &[
                    ("goods", json!({"type": "array", "maxItems": 2, "items": item})),
                    ("price", json!({"type": "number", "minimum": 0, "maximum": 500})),
                    ("to", json!({"type": "string", "maxLength": 10})),
                ],
                3,
            ),
        ),
        ("wave", "Waves.", closed(&[], 0)),
    ]
}

/// The actions of a shop.
pub fn shop() -> Vec<(&'static str, &'static str, Value)> {
    let reasons = ["not for sale", "too expensive", "closed", "not enough money"];
    let items = ["horseshoe", "nails", "sword", "healing potion"];
    let integer = |max: u32| json!({"type": "integer", "minimum": 1, "maximum": max});
    vec![
        (
            "give",
            "Hands an item over the counter.",
            closed(&[("item", json!({"enum": items})), ("count", integer(99))], 2),
        ),
        ("take_payment", "Takes coins from the customer.", closed(&[("amount", integer(500))], 1)),
        ("refuse", "Refuses to sell.", closed(&[("reason", json!({"enum": reasons}))], 1)),
    ]
}

/// Actions as the engine takes them.
pub fn set(actions: &[(&str, &str, Value)]) -> Result<ActionSet, Box<dyn Error>> {
    let specs = actions.iter().map(|(name, about, schema)| ActionSpec::new(*name, about, schema));
    Ok(ActionSet::new(specs.collect::<Result<Vec<_>, _>>()?)?)
}

/// A schema without an end: a list of records. No two numbers have the same masks.
pub fn endless_records(n: u64) -> Value {
    let record = closed(
        &[
            (
                &*format!("n{n}"),
                json!({"type": "string", "pattern": format!("^[a-z ]{{1,{}}}$", 20 + n)}),
            ),
            ("count", json!({"type": "integer", "minimum": 0, "maximum": 99 + n})),
            ("mood", json!({"enum": ["glad", "angry", "tired", format!("mood {n}")]})),
        ],
        3,
    );
    json!({"type": "array", "minItems": 1_000, "items": record})
}

/// A schema without an end and with few forced tokens: texts of letters that alternate between two
/// groups. No two numbers have the same masks.
pub fn endless_text(n: u64) -> Value {
    let (split, longest) = (b'c' + (n % 20) as u8, 3 + n / 20);
    let (a, b) = (char::from(split), char::from(split + 1));
    let pattern = format!("^([a-{a} ]{{1,{longest}}}[{b}-z]{{1,{longest}}})+$");
    json!({"type": "array", "minItems": 1_000, "items": {"type": "string", "pattern": pattern}})
}
