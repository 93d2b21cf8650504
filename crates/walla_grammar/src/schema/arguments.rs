//! Schemas of the arguments of actions: a subset of the schemas of constraints, with all references
//! replaced by their targets. The input may be the output of `schemars` 1.x for a struct.
//!
//! Each schema has one part: values, alternatives that have no alternatives themselves, or one
//! type. Objects are closed, and arrays are lists or tuples of a fixed length.

use serde_json::Value;

use super::disjoint::may_overlap;
use super::document::{Fields, Items, Kind, Part, Schema, Type};
use super::parse::{self, Limits};
use super::place::At;
use super::values::admits;
use crate::ActionError;
use crate::action::shown;
use crate::work::limit;

/// Maximum length of a text that the grammar allows if the schema has no `maxLength`, in
/// characters.
pub(crate) const TEXT_CHARS_DEFAULT: u64 = 200;

/// Maximum number of items that the grammar allows if the schema has no `maxItems`.
pub(crate) const ITEMS_DEFAULT: u64 = 16;

/// The schema of arguments, or of a unit struct.
pub(crate) fn arguments(source: &Value) -> Result<Schema, ActionError> {
    read(source, Limits::arguments())
}

/// The arguments of an action that was stored: choices of the program may be empty.
#[cfg(feature = "serde")]
pub(crate) fn stored_arguments(source: &Value) -> Result<Schema, ActionError> {
    read(source, Limits { has_empty: true, ..Limits::arguments() })
}

fn read(source: &Value, limits: Limits) -> Result<Schema, ActionError> {
    let document = parse::parse(source, limits)?;
    let mut reader =
        Reader { definitions: &document.definitions, limits, open: Vec::new(), schemas: 0 };
    reader.schema(&document.root, 0)
}

struct Reader<'d> {
    definitions: &'d [Schema],
    limits: Limits,
    /// The references that are being replaced.
    open: Vec<usize>,
    schemas: u64,
}

impl Reader<'_> {
    fn schema(&mut self, schema: &Schema, depth: u64) -> Result<Schema, ActionError> {
        self.schemas += 1;
        let at = &schema.at;
        limit("the nesting depth of schemas", depth, self.limits.depth)?;
        limit("the number of schemas", self.schemas, self.limits.nodes as u64)?;
        let read = match schema.parts.as_slice() {
            [Part::Ref(target)] => self.reference(*target, at, depth)?,
            [Part::Any(all)] => flatten(self.schemas(all, depth)?),
            [Part::One(all)] => {
                let all = self.schemas(all, depth)?;
                if may_overlap(&all) {
                    let reason = "a value may be valid by two of the alternatives";
                    Err(at.unsupported("oneOf", reason))?;
                }
                flatten(all)
            }
            [Part::Values(values)] => self.choices(values, None, at)?,
            [Part::Types(types), Part::Values(values)] => self.choices(values, Some(types), at)?,
            [Part::Types(types)] => {
                let types = types.iter().map(|ty| Ok(Schema::of(self.ty(ty, at, depth)?, at)));
                flatten(types.collect::<Result<_, ActionError>>()?)
            }
            _ => Err(at.unsupported("type", "a schema without a type allows any value"))?,
        };
        let own = schema.description.clone();
        let description = match schema.parts.as_slice() {
            [Part::Ref(_)] => own.or(read.description),
            _ => join(own, read.description),
        };
        Ok(Schema { description, default: schema.default.clone().or(read.default), ..read })
    }

    fn schemas(&mut self, all: &[Schema], depth: u64) -> Result<Vec<Schema>, ActionError> {
        all.iter().map(|schema| self.schema(schema, depth + 1)).collect()
    }

    fn reference(&mut self, target: usize, at: &At, depth: u64) -> Result<Schema, ActionError> {
        let definition = self.definitions.get(target).filter(|_| !self.open.contains(&target));
        let reason = "a recursive schema has calls of any length";
        let definition = definition.ok_or_else(|| at.unsupported("$ref", reason))?;
        self.open.push(target);
        let schema = self.schema(definition, depth + 1);
        self.open.pop();
        schema
    }

    /// The scalar values of `enum` or `const`, which must have one of the types. Null is an
    /// alternative to the others.
    fn choices(
        &self,
        values: &[Value],
        types: Option<&[Type]>,
        at: &At,
    ) -> Result<Schema, ActionError> {
        if values.iter().any(|value| value.is_array() || value.is_object()) {
            Err(at.unsupported("enum", "values must be scalar"))?;
        }
        let is_valid = |value| types.is_none_or(|types| admits(types, value) == Some(true));
        if (values.is_empty() && !self.limits.has_empty) || !values.iter().all(is_valid) {
            Err(at.invalid("enum", "values of the type"))?;
        }
        let mut kept: Vec<Value> = Vec::new();
        for value in values {
            if !value.is_null() && !kept.contains(value) {
                kept.push(value.clone());
            }
        }
        let null = Schema::of(Type::Null, at);
        if kept.is_empty() && !values.is_empty() {
            return Ok(null);
        }
        let kept = Schema::with(Part::Values(kept), at);
        let has_null = values.iter().any(Value::is_null);
        Ok(if has_null { Schema::with(Part::Any(vec![kept, null]), at) } else { kept })
    }

    fn ty(&mut self, ty: &Type, at: &At, depth: u64) -> Result<Type, ActionError> {
        Ok(match ty {
            Type::String(text) if !text.patterns.is_empty() || !text.formats.is_empty() => {
                Err(at.unsupported("format", "only formats of numbers are supported"))?
            }
            Type::Array(Items { prefix, rest: Some(item), min, max }) if prefix.is_empty() => {
                let rest = Some(Box::new(self.schema(item, depth + 1)?));
                Type::Array(Items { prefix: Vec::new(), rest, min: *min, max: *max })
            }
            Type::Array(Items { prefix, .. }) if prefix.is_empty() => {
                Err(at.invalid("items", "a schema"))?
            }
            Type::Array(Items { prefix, rest, min, max }) => {
                let length = prefix.len() as u64;
                let is_closed = rest.as_ref().is_some_and(|rest| rest.is_never());
                if *min != length || (*max != Some(length) && !is_closed) {
                    let reason = "minItems and maxItems must be the number of schemas";
                    Err(at.unsupported("prefixItems", reason))?;
                }
                let prefix = self.schemas(prefix, depth)?;
                Type::Array(Items { prefix, rest: None, min: length, max: Some(length) })
            }
            Type::Object(fields) => {
                let mut properties = Vec::new();
                for (name, schema) in &fields.properties {
                    if !is_name(name) {
                        let at = shown(&schema.at.to_string());
                        return Err(ActionError::Name { name: shown(name), at });
                    }
                    properties.push((name.clone(), self.schema(schema, depth + 1)?));
                }
                if fields.required.iter().any(|name| fields.property(name).0.is_none()) {
                    Err(at.invalid("required", "names of properties"))?;
                }
                let (rest, required) = (fields.rest.clone(), fields.required.clone());
                Type::Object(Fields { properties, rest, required, ..Fields::default() })
            }
            other => other.clone(),
        })
    }
}

/// Alternatives without nested alternatives. Alternatives of constants become one list of values,
/// with their descriptions in the description.
fn flatten(schemas: Vec<Schema>) -> Schema {
    let mut merged: Vec<Schema> = Vec::new();
    let flat = schemas.into_iter().flat_map(|mut schema| match schema.parts.as_mut_slice() {
        [Part::Any(options)] => std::mem::take(options),
        _ => vec![schema],
    });
    for mut schema in flat {
        let [Part::Values(values)] = schema.parts.as_slice() else {
            if !merged.iter().any(|other| other.parts == schema.parts) {
                merged.push(schema);
            }
            continue;
        };
        // `"value": description` of a constant with a description.
        if let ([value], Some(text)) = (values.as_slice(), &schema.description) {
            schema.description = Some(format!("{value}: {text}"));
        }
        let others = merged.iter_mut().find_map(|other| match other.parts.as_mut_slice() {
            [Part::Values(all)] => Some((all, &mut other.description)),
            _ => None,
        });
        match others {
            Some((all, description)) => {
                let new = values.iter().filter(|value| !all.contains(value));
                let new: Vec<Value> = new.cloned().collect();
                all.extend(new);
                *description = join(description.take(), schema.description);
            }
            None => merged.push(schema),
        }
    }
    match merged.len() {
        1 => merged.remove(0),
        _ => Schema { parts: vec![Part::Any(merged)], ..Schema::default() },
    }
}

fn join(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first} {second}")),
        (first, second) => first.or(second),
    }
}

/// Whether a text is a name of an action or a property: `[A-Za-z0-9_-]{1,64}`, as in
/// the chat completions protocol.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(is_of_name)
}

/// Whether a byte can be part of a name of an action or a property.
pub(crate) fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

impl Schema {
    fn of(ty: Type, at: &At) -> Self {
        Self::with(Part::Types(vec![ty]), at)
    }

    /// Whether a value exists. Choices may be empty.
    fn is_possible(&self) -> bool {
        match self.kind() {
            Kind::Values(values) => !values.is_empty(),
            Kind::Any(_) | Kind::Type(_) => self.children().into_iter().all(Self::is_possible),
        }
    }

    pub(crate) fn type_mut(&mut self) -> Option<&mut Type> {
        match self.parts.as_mut_slice() {
            [Part::Types(types)] => types.first_mut(),
            _ => None,
        }
    }

    /// The schema of the texts that choices replace: a text, the items of a list of texts, or
    /// the text of an optional value.
    pub(crate) fn text_mut(&mut self) -> Option<&mut Self> {
        match self.kind() {
            Kind::Type(Type::String(_)) => return Some(self),
            Kind::Values(values) if values.iter().all(Value::is_string) => return Some(self),
            _ => {}
        }
        let is_optional =
            matches!(self.kind(), Kind::Any([one, other]) if one.is_null() || other.is_null());
        let is_array = |item: &Self| matches!(item.kind(), Kind::Type(Type::Array(_)));
        match self.parts.as_mut_slice() {
            [Part::Any(options)] if is_optional => {
                options.iter_mut().find(|option| !option.is_null())?.text_mut()
            }
            [Part::Types(types)] => match types.first_mut()? {
                Type::Array(Items { rest: Some(item), .. }) if !is_array(item) => item.text_mut(),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Fields {
    /// Whether arguments exist.
    pub(crate) fn are_possible(&self) -> bool {
        self.properties.iter().all(|(_, schema)| schema.is_possible())
    }
}
