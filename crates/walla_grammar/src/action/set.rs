//! Sets of actions.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::schema::{Fields, Items, Kind, Schema, Type};
use crate::work::limit;
use crate::{ActionError, ActionSpec, CallFormat, MalformedCall, ParsedCall, check, render};

/// The actions that an agent may execute in a reply. A clone shares the content.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use walla_grammar::{ActionSet, ActionSpec, CallFormat};
///
/// let wave = ActionSpec::new("wave", "Waves.", &json!({"type": "object"}))?;
/// let actions = ActionSet::new([wave])?;
/// assert_eq!(actions.tools()[0]["function"]["name"], "wave");
/// assert!(actions.description(CallFormat::Plain).starts_with("Actions:\nwave(): Waves.\n"));
/// # Ok::<(), walla_grammar::ActionError>(())
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
    /// [`ActionError::Schema`] for more than [`MAX_ACTIONS`](Self::MAX_ACTIONS) actions,
    /// [`ActionError::Duplicate`] if two have the same name.
    pub fn new(actions: impl IntoIterator<Item = ActionSpec>) -> Result<Self, ActionError> {
        let mut all: Vec<ActionSpec> = Vec::new();
        for action in actions {
            limit("the number of actions", all.len() as u64 + 1, Self::MAX_ACTIONS as u64)?;
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
            describe_properties(action.arguments(), &mut text);
            text.push(')');
            if !action.description().is_empty() {
                let _ = write!(text, ": {}", action.description());
            }
            text.push('\n');
            for (name, schema) in &action.arguments().properties {
                if let Some(description) = &schema.description {
                    let line = description.split_whitespace().collect::<Vec<_>>().join(" ");
                    let _ = writeln!(text, "  {name}: {line}");
                }
            }
            let arguments = action.arguments().properties.len().min(2);
            if example.as_ref().is_none_or(|(count, _)| *count < arguments) {
                example = Some((arguments, action));
            }
        }
        if let Some((_, action)) = example {
            let call = ParsedCall::new(action.name(), samples(action.arguments()));
            let call = render(format, &call);
            let _ = write!(text, "To act, write a call like this:\n{call}");
        }
        text
    }

    /// Examples of calls as text, for the end of a persona: requests, each with an action and its
    /// arguments. With two examples of each action, a small model chooses the right action more
    /// often; their sentences need not be like the requests of players. Empty without examples.
    ///
    /// The calls are written in the format of the model, as text.
    ///
    /// # Errors
    /// As [`check`], for the first call that is not valid.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use walla_grammar::{ActionSet, ActionSpec, CallFormat};
    ///
    /// let schema = json!({"type": "object", "properties": {"count": {"type": "integer"}}});
    /// let actions = ActionSet::new([ActionSpec::new("give", "Hands nails over.", &schema)?])?;
    /// let four = ("Four nails, please.", "give", json!({"count": 4}));
    /// assert_eq!(
    ///     actions.examples(CallFormat::Lfm2, [four])?,
    ///     "Examples:\nUser: Four nails, please.\n\
    ///      Assistant: <|tool_call_start|>[give(count=4)]<|tool_call_end|>"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn examples<'a>(
        &self,
        format: CallFormat,
        examples: impl IntoIterator<Item = (&'a str, &'a str, Value)>,
    ) -> Result<String, MalformedCall> {
        let mut text = String::new();
        for (request, name, arguments) in examples {
            let arguments = match arguments {
                Value::Object(arguments) => arguments,
                _ => Map::new(),
            };
            let call = render(format, &check(self, ParsedCall::new(name, arguments))?);
            let start = if text.is_empty() { "Examples:" } else { "" };
            let _ = write!(text, "{start}\nUser: {request}\nAssistant: {call}");
        }
        Ok(text)
    }
}

fn describe_properties(fields: &Fields, text: &mut String) {
    for (index, (name, schema)) in fields.properties.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let optional = if fields.is_required(name) { "" } else { "?" };
        let _ = write!(text, "{comma}{name}{optional}: ");
        describe(schema, text);
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
    let ty = match schema.kind() {
        Kind::Any(options) => return describe_all(options, " or ", text),
        Kind::Values(values) => {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            return text.push_str(&values.join("|"));
        }
        Kind::Type(ty) => ty,
    };
    match ty {
        Type::Boolean => text.push_str("true|false"),
        Type::Integer(range) | Type::Number(range) => {
            let name = ty.name();
            let _ = match (range.min, range.max) {
                (Some(min), Some(max)) => write!(text, "{name} {min} to {max}"),
                (Some(min), None) => write!(text, "{name} from {min}"),
                (None, Some(max)) => write!(text, "{name} up to {max}"),
                (None, None) => write!(text, "{name}"),
            };
        }
        Type::String(_) => text.push_str("text"),
        Type::Array(Items { rest: Some(item), .. }) => {
            text.push_str("list of ");
            describe(item, text);
        }
        Type::Array(items) => {
            text.push('[');
            describe_all(&items.prefix, ", ", text);
            text.push(']');
        }
        Type::Object(fields) => {
            text.push('{');
            describe_properties(fields, text);
            text.push('}');
        }
        Type::Null => text.push_str(ty.name()),
    }
}

/// Required arguments for the example.
fn samples(fields: &Fields) -> Map<String, Value> {
    let required = fields.properties.iter().filter(|(name, _)| fields.is_required(name));
    required.map(|(name, schema)| (name.clone(), sample(schema))).collect()
}

/// A value for the example.
fn sample(schema: &Schema) -> Value {
    match schema.kind() {
        Kind::Values(values) => values.first().cloned().unwrap_or_default(),
        Kind::Any(options) => options.first().map(sample).unwrap_or_default(),
        Kind::Type(Type::Null) => Value::Null,
        Kind::Type(Type::Boolean) => Value::Bool(true),
        Kind::Type(Type::Integer(range)) => Value::from(range.min.unwrap_or(1.0).ceil() as i64),
        Kind::Type(Type::Number(range)) => Value::from(range.min.unwrap_or(1.0)),
        Kind::Type(Type::String(_)) => Value::from("..."),
        Kind::Type(Type::Array(items)) => {
            items.prefix.iter().chain(items.rest.as_deref()).map(sample).collect()
        }
        Kind::Type(Type::Object(fields)) => Value::Object(samples(fields)),
    }
}
