//! Sets of actions.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::schema::{Kind, Property, Schema};
use crate::{ActionError, ActionSpec, CallFormat, ParsedCall, render};

/// The actions that an agent may execute in a reply. A clone shares the content.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use walla_action::{ActionSet, ActionSpec, CallFormat};
///
/// let wave = ActionSpec::new("wave", "Waves.", &json!({"type": "object"}))?;
/// let actions = ActionSet::new([wave])?;
/// assert_eq!(actions.tools()[0]["function"]["name"], "wave");
/// assert!(actions.description(CallFormat::Plain).starts_with("Actions:\nwave(): Waves.\n"));
/// # Ok::<(), walla_action::ActionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Vec<ActionSpec>"))]
pub struct ActionSet(Arc<[ActionSpec]>);

impl Default for ActionSet {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl TryFrom<Vec<ActionSpec>> for ActionSet {
    type Error = ActionError;

    fn try_from(actions: Vec<ActionSpec>) -> Result<Self, ActionError> {
        Self::new(actions)
    }
}

impl ActionSet {
    /// Maximum number of actions.
    pub const MAX_ACTIONS: usize = 64;

    /// A set of actions, in this order.
    ///
    /// # Errors
    /// [`ActionError::TooLarge`] for more than [`MAX_ACTIONS`](Self::MAX_ACTIONS) actions,
    /// [`ActionError::Duplicate`] if two have the same name.
    pub fn new(actions: impl IntoIterator<Item = ActionSpec>) -> Result<Self, ActionError> {
        let mut all: Vec<ActionSpec> = Vec::new();
        for action in actions {
            if all.len() == Self::MAX_ACTIONS {
                return Err(ActionError::TooLarge {
                    what: "the number of actions",
                    value: Self::MAX_ACTIONS + 1,
                    max_value: Self::MAX_ACTIONS,
                });
            }
            if all.iter().any(|other| other.name() == action.name()) {
                return Err(ActionError::Duplicate { name: action.name().to_owned() });
            }
            all.push(action);
        }
        Ok(Self(all.into()))
    }

    /// All actions.
    #[must_use]
    pub fn actions(&self) -> &[ActionSpec] {
        &self.0
    }

    /// The actions as prompts [list](ActionSpec::listed) them.
    #[must_use]
    pub fn listed(&self) -> Self {
        if self.0.iter().all(|action| std::ptr::eq(action, action.listed())) {
            return self.clone();
        }
        Self(self.0.iter().map(|action| action.listed().clone()).collect())
    }

    /// The [possible](ActionSpec::is_possible) actions. Only these can be called.
    pub fn possible(&self) -> impl Iterator<Item = &ActionSpec> {
        self.0.iter().filter(|action| action.is_possible())
    }

    /// Whether no action is possible.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.possible().next().is_none()
    }

    /// The possible action of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ActionSpec> {
        self.possible().find(|action| action.name() == name)
    }

    /// The possible actions as tools for a chat template or a server, in the form of OpenAI's API.
    /// Equal sets have equal lists; the order of keys is the order of the schema.
    #[must_use]
    pub fn tools(&self) -> Vec<Value> {
        self.possible().map(ActionSpec::tool).collect()
    }

    /// The possible actions as text, for the system message of a model whose template has no
    /// tools: one line per action, then an example of a call. Empty if no action is possible.
    /// Equal sets have equal texts.
    ///
    /// Markers of the format are written as text.
    #[must_use]
    pub fn description(&self, format: CallFormat) -> String {
        let mut text = String::new();
        let mut example = None;
        for action in self.possible() {
            text.push_str(if text.is_empty() { "Actions:\n" } else { "" });
            let _ = write!(text, "{}(", action.name());
            describe_properties(action.schema().properties(), &mut text);
            text.push(')');
            if !action.description().is_empty() {
                let _ = write!(text, ": {}", action.description());
            }
            text.push('\n');
            for property in action.schema().properties() {
                if let Some(description) = &property.schema.description {
                    let line = description.split_whitespace().collect::<Vec<_>>().join(" ");
                    let _ = writeln!(text, "  {}: {line}", property.name);
                }
            }
            let arguments = action.schema().properties().len().min(2);
            if example.as_ref().is_none_or(|(count, _)| *count < arguments) {
                example = Some((arguments, action));
            }
        }
        if let Some((_, action)) = example {
            let properties = action.schema().properties().iter().filter(|p| p.is_required);
            let arguments: Map<String, Value> =
                properties.map(|p| (p.name.clone(), sample(&p.schema))).collect();
            let call = render(format, &ParsedCall::new(action.name(), arguments));
            let _ = write!(text, "To act, write a call like this:\n{call}");
        }
        text
    }
}

fn describe_properties(properties: &[Property], text: &mut String) {
    for (index, property) in properties.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let optional = if property.is_required { "" } else { "?" };
        let _ = write!(text, "{comma}{}{optional}: ", property.name);
        describe(&property.schema, text);
    }
}

fn describe_all(schemas: &[Schema], separator: &str, text: &mut String) {
    for (index, schema) in schemas.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { separator });
        describe(schema, text);
    }
}

/// The type of an argument, as short as possible.
fn describe(schema: &Schema, text: &mut String) {
    match &schema.kind {
        Kind::Null => text.push_str("null"),
        Kind::Boolean => text.push_str("true|false"),
        Kind::Integer(range) | Kind::Number(range) => {
            let is_integer = matches!(schema.kind, Kind::Integer(_));
            let name = if is_integer { "integer" } else { "number" };
            let _ = match (range.min, range.max) {
                (Some(min), Some(max)) => write!(text, "{name} {min} to {max}"),
                (Some(min), None) => write!(text, "{name} from {min}"),
                (None, Some(max)) => write!(text, "{name} up to {max}"),
                (None, None) => write!(text, "{name}"),
            };
        }
        Kind::Text(_) => text.push_str("text"),
        Kind::Values(values) => {
            for (index, value) in values.iter().enumerate() {
                let _ = write!(text, "{}{value}", if index == 0 { "" } else { "|" });
            }
        }
        Kind::List(items, _) => {
            text.push_str("list of ");
            describe(items, text);
        }
        Kind::Tuple(items) => {
            text.push('[');
            describe_all(items, ", ", text);
            text.push(']');
        }
        Kind::Any(options) => describe_all(options, " or ", text),
        Kind::Object(properties) => {
            text.push('{');
            describe_properties(properties, text);
            text.push('}');
        }
    }
}

/// A value for the example.
fn sample(schema: &Schema) -> Value {
    match &schema.kind {
        Kind::Null => Value::Null,
        Kind::Boolean => Value::Bool(true),
        Kind::Integer(range) => Value::from(range.min.unwrap_or(1.0).ceil() as i64),
        Kind::Number(range) => Value::from(range.min.unwrap_or(1.0)),
        Kind::Text(_) => Value::from("..."),
        Kind::Values(values) => values.first().cloned().unwrap_or_default(),
        Kind::List(items, _) => Value::Array(vec![sample(items)]),
        Kind::Tuple(items) => items.iter().map(sample).collect(),
        Kind::Any(options) => options.first().map(sample).unwrap_or_default(),
        Kind::Object(properties) => {
            let required = properties.iter().filter(|p| p.is_required);
            Value::Object(required.map(|p| (p.name.clone(), sample(&p.schema))).collect())
        }
    }
}
