//! Constraints and actions of both parts.

use serde_json::json;
use walla::{ActionError, ActionSpec, Constraint};

use super::dice::Dice;

pub const QUESTIONS: [&str; 6] = [
    "What does a horseshoe cost?",
    "Who are you?",
    "Have you heard any news?",
    "Where is the old mine?",
    "A horseshoe, please.",
    "Good night!",
];

/// Name of a model file that does not exist.
pub const MISSING: &str = "missing.gguf";

pub fn persona(dice: &mut Dice) -> String {
    let number = dice.throw(100);
    format!("You are Greta {number}, the smith of Emberfall. A horseshoe costs 3 silver.")
}

/// A constraint that every engine accepts.
pub fn constraint(dice: &mut Dice) -> Constraint {
    match dice.throw(4) {
        0 => Constraint::json_schema_value(&json!({
            "type": "object",
            "properties": {"item": {"enum": ["nails", "horseshoe"]}, "count": {"type": "integer"}},
            "required": ["item", "count"], "additionalProperties": false,
        })),
        1 => Constraint::regex("[A-Z][a-z]{2,8}( [a-z]{1,8}){0,6}\\."),
        2 => Constraint::choice(["yes", "no", "perhaps"]),
        _ => Constraint::lark(
            "start: greeting \" \" NAME\ngreeting: \"Hello,\" | \"Farewell,\"\nNAME: /[A-Z][a-z]{1,9}/",
        ),
    }
}

/// A constraint that is too complex, has no text, or is no constraint. New ones are not in a cache.
pub fn refused_constraint(dice: &mut Dice) -> Constraint {
    let new = dice.throw(1 << 20);
    match dice.throw(4) {
        0 => {
            let pattern = |n| json!({"pattern": format!("{new}.*a{n}.*b{n}.{{{n}}}c")});
            let all: Vec<_> = (0..60).map(pattern).collect();
            Constraint::json_schema_value(&json!({"type": "string", "allOf": all}))
        }
        1 => Constraint::json_schema_value(&json!({"type": "integer", "minimum": 2, "maximum": 1})),
        2 => Constraint::regex(format!("({new}")),
        _ => Constraint::lark(format!("start: absent{new}")),
    }
}

pub fn action() -> Result<ActionSpec, ActionError> {
    let schema = json!({"type": "object", "properties": {"item": {"type": "string"}},
        "required": ["item"]});
    let give = ActionSpec::new("give", "Hands an item over the counter.", &schema)?;
    give.with_choices("item", ["nails", "horseshoe"])
}
