//! The actions that a model may call, for templates that print them.
//!
//! # Trust
//! Text of the list is untrusted, because games translate and mods extend it: names, descriptions,
//! titles, choices and defaults. Only keywords of JSON schema and the names of its types are
//! template text, because templates compare them.

use std::fmt;
use std::sync::Arc;

use minijinja::value::Value;
use serde_json::Value as Json;

use super::{filters, taint};

/// Maximum size of a list of tools in JSON, in bytes.
pub const MAX_TOOLS_BYTES: usize = 256 << 10;

/// Maximum nesting depth of a list of tools: the list, the tool and its function, and two for each
/// of 17 schemas within each other, as many as an action has, with a list of choices.
const MAX_DEPTH: usize = 3 + 2 * 17 + 1;

/// Maximum nesting depth of the arguments of a call: one for each of these schemas.
const MAX_ARGUMENTS_DEPTH: usize = 17;

/// Maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The actions that a model may call. Immutable and cheap to clone.
///
/// # Examples
/// ```
/// use walla_model::chat::Tools;
///
/// let list = serde_json::json!([{
///     "type": "function",
///     "function": {
///         "name": "give",
///         "description": "Hands an item over the counter.",
///         "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
///     },
/// }]);
/// let tools = Tools::new(&list, "Actions:\n- give(item): hands an item over the counter")?;
/// # Ok::<(), walla_model::chat::ToolsError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Tools(Arc<List>);

#[derive(PartialEq, Eq)]
struct List {
    value: Value,
    /// The list in JSON, in the template's alphabet.
    json: String,
    description: String,
    bytes: usize,
}

/// Why a list of tools cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// The value is not a list of `{"type": "function", "function": {"name": …}}`.
    #[error("tool {index} is not of the form {{\"type\": \"function\", \"function\": {{…}}}}")]
    NotATool {
        /// Its index in the list; 0 if the value is not a list.
        index: usize,
    },
    /// A name is not of 1 to 64 letters, digits, `_` or `-`.
    #[error("{name:?} is not the name of a tool")]
    Name {
        /// The name.
        name: String,
    },
    /// The list is nested too deeply.
    #[error("the list of tools is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// The list is too long.
    #[error("the list of tools has {bytes} bytes, at most {MAX_TOOLS_BYTES}")]
    TooLong {
        /// Its length in JSON.
        bytes: usize,
    },
}

impl Tools {
    /// Tools from a list in the form of the OpenAI API, and a compact description in plain text.
    ///
    /// Templates that print tools receive the list. For all others the description is appended to
    /// the system text, separated by an empty line.
    ///
    /// # Errors
    /// [`ToolsError`] if the list has another form or exceeds a limit.
    pub fn new(list: &Json, description: &str) -> Result<Self, ToolsError> {
        if !is_within(list, MAX_DEPTH) {
            return Err(ToolsError::TooDeep);
        }
        let bytes = list.to_string().len() + description.len();
        if bytes > MAX_TOOLS_BYTES {
            return Err(ToolsError::TooLong { bytes });
        }
        let tools = list.as_array().ok_or(ToolsError::NotATool { index: 0 })?;
        for (index, tool) in tools.iter().enumerate() {
            let is_function = tool.get("type").and_then(Json::as_str) == Some("function");
            let function = tool.get("function").filter(|_| is_function);
            let name = function.and_then(|function| function.get("name")?.as_str());
            let name = name.ok_or(ToolsError::NotATool { index })?;
            if !is_name(name) {
                return Err(ToolsError::Name { name: name.to_owned() });
            }
        }
        let value: Value = tools.iter().map(|tool| map(tool, Kind::Tool)).collect();
        let json = filters::json(&value).unwrap_or_default();
        Ok(Self(Arc::new(List { value, json, description: description.to_owned(), bytes })))
    }

    /// The description in plain text.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.0.description
    }

    /// The list as templates receive it.
    pub(super) fn value(&self) -> Value {
        self.0.value.clone()
    }

    /// Size of the list and the description, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The list in JSON, in the template's alphabet.
    pub(super) fn json(&self) -> &str {
        &self.0.json
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tools").field(&taint::readable(self.json())).finish()
    }
}

/// Whether a text is the name of a tool.
pub(super) fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_part)
}

/// Whether lists and maps are nested at most `depth` deep.
fn is_within(value: &Json, depth: usize) -> bool {
    let Some(left) = depth.checked_sub(1) else {
        return !value.is_array() && !value.is_object();
    };
    match value {
        Json::Array(items) => items.iter().all(|item| is_within(item, left)),
        Json::Object(map) => map.values().all(|value| is_within(value, left)),
        _ => true,
    }
}

/// Whether a template can receive these arguments of a call.
pub(super) fn are_arguments(value: &Json) -> bool {
    value.is_object() && is_within(value, MAX_ARGUMENTS_DEPTH)
}

/// A value whose texts and keys are untrusted. The caller has checked its depth.
pub(super) fn untrusted(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (.., number) => number.map_or_else(|| Value::from(()), Value::from),
        },
        Json::String(text) => Value::from(taint::taint(text)),
        Json::Array(items) => items.iter().map(untrusted).collect(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (taint::taint(key), untrusted(value))))
        }
    }
}

/// Meaning of a map of the list.
#[derive(Clone, Copy)]
enum Kind {
    Tool,
    Function,
    Schema,
    /// A map from names to schemas.
    Schemas,
}

/// Keys of a tool and of its function, as templates read them.
const TOOL_KEYS: [&str; 8] =
    ["type", "function", "name", "description", "parameters", "strict", "return", "response"];

/// Keywords of JSON schema.
#[rustfmt::skip]
const KEYWORDS: [&str; 49] = [
    "$defs", "$id", "$ref", "$schema", "additionalItems", "additionalProperties", "allOf", "anyOf",
    "const", "contains", "default", "definitions", "dependentSchemas", "deprecated", "description",
    "else", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items",
    "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties",
    "minimum", "multipleOf", "not", "nullable", "oneOf", "pattern", "patternProperties",
    "prefixItems", "properties", "propertyNames", "readOnly", "required", "then", "title", "type",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "writeOnly",
];

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Converts a map of the list, or another value in its place.
fn map(value: &Json, kind: Kind) -> Value {
    let Json::Object(map) = value else { return untrusted(value) };
    let entry = |(key, value): (&String, &Json)| {
        let is_known = match kind {
            Kind::Tool | Kind::Function => TOOL_KEYS.contains(&key.as_str()),
            Kind::Schema => KEYWORDS.contains(&key.as_str()),
            Kind::Schemas => false,
        };
        let key_value = if is_known { key.clone() } else { taint::taint(key) };
        (key_value, member(key, value, kind))
    };
    Value::from_pairs(map.iter().map(entry))
}

/// Converts a member of a map.
fn member(key: &str, value: &Json, kind: Kind) -> Value {
    match (kind, key) {
        (Kind::Tool, "type") => Value::from("function"),
        (Kind::Tool, "function") => map(value, Kind::Function),
        (Kind::Function, "parameters" | "return" | "response") => map(value, Kind::Schema),
        (Kind::Tool | Kind::Function, _) => untrusted(value),
        (Kind::Schemas, _) => map(value, Kind::Schema),
        (Kind::Schema, "type") => type_names(value),
        (
            Kind::Schema,
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
        ) => map(value, Kind::Schemas),
        (
            Kind::Schema,
            "additionalItems"
            | "additionalProperties"
            | "allOf"
            | "anyOf"
            | "contains"
            | "else"
            | "if"
            | "items"
            | "not"
            | "oneOf"
            | "prefixItems"
            | "propertyNames"
            | "then"
            | "unevaluatedItems"
            | "unevaluatedProperties",
        ) => match value {
            Json::Array(items) => items.iter().map(|item| map(item, Kind::Schema)).collect(),
            value => map(value, Kind::Schema),
        },
        (Kind::Schema, _) => untrusted(value),
    }
}

/// The value of `type`: a type or a list of types.
fn type_names(value: &Json) -> Value {
    match value {
        Json::String(name) if TYPES.contains(&name.as_str()) => Value::from(name.as_str()),
        Json::Array(items) => items.iter().map(type_names).collect(),
        value => untrusted(value),
    }
}
