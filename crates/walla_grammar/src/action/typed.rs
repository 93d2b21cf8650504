//! Actions of a program's own types.

use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{ActionError, ActionSpec};

/// A type that describes an action: a struct whose fields are the arguments. Implemented for all
/// types with serde's `Deserialize` and the schema of `schemars`.
///
/// The name of the action is the name of the type in snake case (`OpenGate`: `open_gate`), its
/// description the doc comment of the type. Doc comments of fields describe the arguments. The
/// attributes of serde and `schemars` apply, such as `#[serde(rename = "…")]` and
/// `#[schemars(range(min = 1, max = 9))]`.
pub trait Action: DeserializeOwned + JsonSchema + Send + Sync + 'static {}

impl<T: DeserializeOwned + JsonSchema + Send + Sync + 'static> Action for T {}

impl ActionSpec {
    /// The specification of an action that a type describes.
    ///
    /// # Errors
    /// [`ActionError::Of`] names the action and the part of the schema that is not supported.
    ///
    /// # Examples
    /// ```
    /// use walla_grammar::ActionSpec;
    ///
    /// /// Hands an item over the counter.
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct HandOver { item: String }
    ///
    /// let spec = ActionSpec::of::<HandOver>()?;
    /// assert_eq!((spec.name(), spec.description()), ("hand_over", "Hands an item over the counter."));
    /// # Ok::<(), walla_grammar::ActionError>(())
    /// ```
    pub fn of<T: Action>() -> Result<Self, ActionError> {
        let schema = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
        let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let name = action_name::<T>();
        Self::new(name, description, &schema)
    }
}

/// The name of the action that a type describes.
#[must_use]
pub fn action_name<T: Action>() -> String {
    let mut name = String::new();
    let mut was_lower = false;
    for letter in T::schema_name().chars() {
        if letter.is_ascii_uppercase() && was_lower {
            name.push('_');
        }
        was_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
        name.push(letter.to_ascii_lowercase());
    }
    name
}

/// The action with these arguments.
///
/// # Errors
/// serde's error: the type refuses a value, or has another schema than the action.
pub fn from_arguments<T: Action>(arguments: &Map<String, Value>) -> Result<T, serde_json::Error> {
    T::deserialize(arguments).or_else(|error| {
        // A unit struct is deserialised from null.
        let is_unit = arguments.is_empty();
        if is_unit { serde_json::from_value(Value::Null).map_err(|_| error) } else { Err(error) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attacks.
    #[derive(Debug, PartialEq, serde::Deserialize, JsonSchema)]
    struct AttackHTTPServer2 {
        /// Whom.
        target: String,
        #[schemars(range(min = 1, max = 9))]
        times: u8,
        mood: Option<Mood>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Mood {
        Angry,
        VeryAngry,
    }

    /// Runs away.
    #[derive(Debug, PartialEq, serde::Deserialize, JsonSchema)]
    struct Flee;

    fn arguments(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_type_describes_an_action() {
        let spec = ActionSpec::of::<AttackHTTPServer2>().unwrap();
        assert_eq!((spec.name(), spec.description()), ("attack_httpserver2", "Attacks."));
        let text = spec.parameters().to_string();
        for part in ["Whom.", "\"maximum\":9", "very_angry"] {
            assert!(text.contains(part), "{text}");
        }
        let given = arguments(r#"{"target": "the wolf", "times": 2, "mood": "very_angry"}"#);
        let action: AttackHTTPServer2 = from_arguments(&given).unwrap();
        let expected =
            AttackHTTPServer2 { target: "the wolf".into(), times: 2, mood: Some(Mood::VeryAngry) };
        assert_eq!(action, expected);
        assert!(from_arguments::<AttackHTTPServer2>(&arguments("{}")).is_err());
    }

    #[test]
    fn a_unit_struct_is_an_action_without_arguments() {
        let spec = ActionSpec::of::<Flee>().unwrap();
        assert_eq!((spec.name(), spec.is_unit()), ("flee", true));
        assert_eq!(from_arguments::<Flee>(&arguments("{}")).unwrap(), Flee);
    }
}
