//! Specifications of actions.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde_json::{Value, json};
use walla_model::chat::Tools;

use super::shown;
use crate::schema::{self, Fields, Kind, Part, Schema, Type, is_name};
use crate::work::limit;
use crate::{ActionError, Constraint};

/// An action that an agent can execute: a name, a description for the model, and the schema of its
/// arguments.
///
/// A clone shares the content. Two specifications are equal if their names, descriptions and
/// parameters are, and the parameters that a prompt [lists](Self::listed).
///
/// # Schemas
///
/// The parameters are a JSON schema of an object, as `schemars` 1.x writes it for a struct. The
/// schema of a unit struct, `{"type": "null"}`, is an action without arguments. Keywords are
/// supported or refused by name:
///
/// | keyword | condition |
/// |---|---|
/// | `type`, `const`, `enum` | constants are scalar |
/// | `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum` | |
/// | `format` | of numbers: `int32`, `uint8`, `float` … |
/// | `minLength`, `maxLength`, `minItems`, `maxItems` | up to 4,096 |
/// | `items`, `prefixItems` | tuples have a fixed length |
/// | `properties`, `required` | |
/// | `additionalProperties` | `false`; added where it is absent |
/// | `anyOf`, `oneOf` | alternatives of `oneOf` have no common value |
/// | `$ref`, `$defs`, `definitions` | not recursive |
/// | `description`, `default` | kept for the model |
///
/// Dropped are `title`, `$schema`, `$id`, `$comment`, `$anchor`, `examples`, `example`,
/// `deprecated`, `readOnly` and `writeOnly`.
///
/// Names of properties have the rule of [`new`](Self::new) at any depth.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use walla_grammar::ActionSpec;
///
/// let give = ActionSpec::new(
///     "give",
///     "Hands an item over the counter.",
///     &json!({"type": "object", "properties": {"item": {"type": "string"}}}),
/// )?;
/// let give = give.with_choices("item", ["horseshoe", "nails"])?;
/// assert!(give.is_possible());
/// assert!(!give.with_choices("item", [""; 0])?.is_possible());
/// # Ok::<(), walla_grammar::ActionError>(())
/// ```
#[derive(Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "stored::Stored", try_from = "stored::Stored"))]
pub struct ActionSpec(Arc<Content>);

struct Content {
    name: String,
    description: String,
    arguments: Fields,
    parameters: Value,
    /// The parameters as text: their identity, including the order of properties.
    text: String,
    is_unit: bool,
    /// The action as prompts list it, if some choices are unlisted. It has no such action itself.
    listed: Option<ActionSpec>,
}

impl fmt::Debug for ActionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content { name, description, text, is_unit, listed, .. } = &*self.0;
        let listed = listed.as_ref().map(|listed| &listed.0.text);
        let mut content = f.debug_struct("ActionSpec");
        content.field("name", name).field("description", description).field("parameters", text);
        content.field("is_unit", is_unit).field("listed", &listed).finish()
    }
}

impl PartialEq for ActionSpec {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.key() == other.key()
    }
}

impl Eq for ActionSpec {}

impl Hash for ActionSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl ActionSpec {
    /// Maximum length of the schema, and of the description, in bytes of JSON.
    pub const MAX_BYTES: usize = 16 << 10;

    /// An action. `name` is `[A-Za-z0-9_-]{1,64}`. Line breaks and runs of white space in
    /// the description become one space.
    ///
    /// # Errors
    /// [`ActionError::Name`], or [`ActionError::Of`] with the action and the part of the schema
    /// that is not supported.
    pub fn new(
        name: impl Into<String>,
        description: &str,
        parameters: &Value,
    ) -> Result<Self, ActionError> {
        let name = name.into();
        if !is_name(&name) {
            return Err(ActionError::Name { name: shown(&name), at: String::new() });
        }
        Self::of_parameters(&name, description, parameters, schema::arguments, false, None)
            .map_err(|error| error.of(&name))
    }

    fn of_parameters(
        name: &str,
        description: &str,
        parameters: &Value,
        read: fn(&Value) -> Result<Schema, ActionError>,
        is_unit: bool,
        listed: Option<Self>,
    ) -> Result<Self, ActionError> {
        for (what, bytes) in [
            ("the length of the schema in bytes", parameters.to_string().len()),
            ("the length of the description in bytes", description.len()),
        ] {
            limit(what, bytes as u64, Self::MAX_BYTES as u64)?;
        }
        let mut schema = read(parameters)?;
        let is_unit = is_unit || schema.is_null();
        let arguments = match schema.type_mut() {
            Some(Type::Object(arguments)) => std::mem::take(arguments),
            Some(Type::Null) => Fields::default(),
            _ => return Err(ActionError::NotAnObject),
        };
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        Self::from_parts(name.to_owned(), description, arguments, is_unit, listed)
    }

    fn from_parts(
        name: String,
        description: String,
        arguments: Fields,
        is_unit: bool,
        listed: Option<Self>,
    ) -> Result<Self, ActionError> {
        let parameters = schema::for_model(&arguments);
        let text = parameters.to_string();
        let what = "the length of the schema in bytes, without references";
        limit(what, text.len() as u64, Self::MAX_BYTES as u64)?;
        // Without choices there is nothing to check, and no call.
        if arguments.are_possible() {
            Constraint::check_json_schema(&schema::of_type(&Type::Object(arguments.clone())))?;
        }
        let content = Content { name, description, arguments, parameters, text, is_unit, listed };
        let spec = Self(Arc::new(content));
        // An ask lists it in the same way.
        match Tools::new(&json!([spec.tool()]), "") {
            Ok(_) => Ok(spec),
            Err(error) => Err(ActionError::Refused { reason: error.to_string() }),
        }
    }

    /// What distinguishes two specifications.
    fn key(&self) -> (&str, &str, &str, bool, &str) {
        let Content { name, description, text, is_unit, .. } = &*self.0;
        (name, description, text, *is_unit, &self.listed().0.text)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The description for the model.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.0.description
    }

    /// The schema of the arguments, with all choices, without references, titles and `$schema`.
    #[must_use]
    pub fn parameters(&self) -> &Value {
        &self.0.parameters
    }

    /// Whether the schema is the one of a unit struct. Such a type is deserialised from `null`, not
    /// from an empty object.
    #[must_use]
    pub fn is_unit(&self) -> bool {
        self.0.is_unit
    }

    /// Whether a call can be valid: each list of choices has a value.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.0.arguments.are_possible()
    }

    /// The action as prompts list it: without its [unlisted
    /// choices](Self::with_unlisted_choices).
    #[must_use]
    pub fn listed(&self) -> &Self {
        self.0.listed.as_ref().unwrap_or(self)
    }

    /// The action with other choices of a property: its schema becomes an enumeration of these
    /// texts. The property is a text, an optional text, or a list of texts; then the choices
    /// restrict the items. Duplicates are dropped. Without values the action is not
    /// [possible](Self::is_possible).
    ///
    /// A prompt lists the choices, so other choices change its beginning.
    ///
    /// # Errors
    /// [`ActionError::NoProperty`], [`ActionError::NotText`], and [`ActionError::Of`] with
    /// [`ActionError::Schema`] if the schema becomes too long, or if a choice has a character that
    /// a call cannot contain.
    pub fn with_choices<T: Into<String>>(
        &self,
        property: &str,
        values: impl IntoIterator<Item = T>,
    ) -> Result<Self, ActionError> {
        let values: Vec<String> = bounded(values).map_err(|error| error.of(&self.0.name))?;
        let listed = self.0.listed.as_ref();
        let listed =
            listed.map(|listed| listed.chosen(property, Some(&values), None)).transpose()?;
        self.chosen(property, Some(&values), listed)
    }

    /// The action with choices that the grammar of calls has and prompts do not list. A prompt
    /// keeps the schema that the property has there: of a text, of an enumeration of the program's
    /// type, or of the latest [listed choices](Self::with_choices). So other unlisted choices do
    /// not change the prompt, and without values the prompt keeps the action too. A default is
    /// dropped.
    ///
    /// Use it for choices that change often, and for long lists. The model does not learn the
    /// choices from the list of actions: name them in a turn of the conversation or in notes, or
    /// list all choices that there can be first.
    ///
    /// Servers get the choices with every request, because they have no other grammar.
    ///
    /// # Errors
    /// As [`with_choices`](Self::with_choices).
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use walla_grammar::ActionSpec;
    ///
    /// let schema = json!({"type": "object", "properties": {"item": {"type": "string"}}});
    /// let give = ActionSpec::new("give", "Hands an item over.", &schema)?;
    /// let stock = give.with_unlisted_choices("item", ["nails", "sword"])?;
    /// let sold = give.with_unlisted_choices("item", ["nails"])?;
    /// assert_ne!(stock, sold);
    /// assert_eq!(stock.listed(), sold.listed());
    /// # Ok::<(), walla_grammar::ActionError>(())
    /// ```
    pub fn with_unlisted_choices<T: Into<String>>(
        &self,
        property: &str,
        values: impl IntoIterator<Item = T>,
    ) -> Result<Self, ActionError> {
        let values: Vec<String> = bounded(values).map_err(|error| error.of(&self.0.name))?;
        let listed = self.listed().chosen(property, None, None)?;
        self.chosen(property, Some(&values), Some(listed))
    }

    /// The action with these choices of a property and without its default. `None`: its schema is
    /// kept.
    fn chosen(
        &self,
        property: &str,
        values: Option<&[String]>,
        listed: Option<Self>,
    ) -> Result<Self, ActionError> {
        let action = || self.0.name.clone();
        let mut arguments = self.0.arguments.clone();
        let found = arguments.properties.iter_mut().find(|(name, _)| name == property);
        let (_, found) = found.ok_or_else(|| ActionError::NoProperty {
            action: action(),
            property: shown(property),
        })?;
        let text = found.text_mut().ok_or_else(|| ActionError::NotText {
            action: action(),
            property: property.to_owned(),
        })?;
        if let Some(values) = values {
            text.parts = vec![Part::Values(values.iter().map(|value| json!(value)).collect())];
        }
        // A default may be none of the choices.
        text.default = None;
        found.default = None;
        let Content { description, is_unit, .. } = &*self.0;
        let changed = Self::from_parts(action(), description.clone(), arguments, *is_unit, listed);
        changed.map_err(|error| error.of(&self.0.name))
    }

    /// The properties with unlisted choices, and the choices.
    #[must_use]
    pub fn unlisted_choices(&self) -> Vec<(String, Vec<String>)> {
        let listed = &self.listed().0.arguments.properties;
        let changed = self.0.arguments.properties.iter().filter(|own| !listed.contains(own));
        let choices = changed.filter_map(|(name, schema)| {
            let mut schema = schema.clone();
            let Kind::Values(values) = schema.text_mut()?.kind() else { return None };
            let texts = values.iter().filter_map(Value::as_str).map(str::to_owned);
            Some((name.clone(), texts.collect()))
        });
        choices.collect()
    }

    /// The action as a tool in the form of OpenAI's API.
    #[must_use]
    pub fn tool(&self) -> Value {
        json!({"type": "function", "function": {
            "name": self.0.name,
            "description": self.0.description,
            "parameters": self.0.parameters,
        }})
    }

    pub(crate) fn arguments(&self) -> &Fields {
        &self.0.arguments
    }
}

/// The form in which serde stores an action.
#[cfg(feature = "serde")]
mod stored {
    use super::{ActionError, ActionSpec, Content, Value, is_name, schema, shown};

    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Stored {
        name: String,
        description: String,
        is_unit: bool,
        #[serde(serialize_with = "crate::json_text")]
        parameters: Value,
        /// The listed parameters; null: they are the same.
        #[serde(serialize_with = "crate::json_text")]
        listed: Value,
    }

    impl From<ActionSpec> for Stored {
        fn from(spec: ActionSpec) -> Self {
            let Content { name, description, parameters, is_unit, listed, .. } = &*spec.0;
            Self {
                name: name.clone(),
                description: description.clone(),
                is_unit: *is_unit,
                parameters: parameters.clone(),
                listed: listed.as_ref().map_or(Value::Null, |listed| listed.parameters().clone()),
            }
        }
    }

    impl TryFrom<Stored> for ActionSpec {
        type Error = ActionError;

        fn try_from(stored: Stored) -> Result<Self, ActionError> {
            let Stored { name, description, is_unit, parameters, listed } = stored;
            if !is_name(&name) {
                return Err(ActionError::Name { name: shown(&name), at: String::new() });
            }
            let read = |parameters: &Value, listed| {
                let reader = schema::stored_arguments;
                Self::of_parameters(&name, &description, parameters, reader, is_unit, listed)
            };
            let listed = (!listed.is_null()).then(|| read(&listed, None)).transpose()?;
            read(&parameters, listed)
        }
    }
}

/// Choices without duplicates.
fn bounded<T: Into<String>>(
    values: impl IntoIterator<Item = T>,
) -> Result<Vec<String>, ActionError> {
    let (mut choices, mut bytes) = (Vec::new(), 0);
    for value in values {
        let value: String = value.into();
        bytes += value.len();
        let what = "the length of the choices in bytes";
        limit(what, bytes as u64, ActionSpec::MAX_BYTES as u64)?;
        if !choices.contains(&value) {
            choices.push(value);
        }
    }
    Ok(choices)
}
