//! Parses a schema and refuses every keyword that cannot be enforced.
//!
//! Keywords: [JSON Schema 2020-12](https://json-schema.org/draft/2020-12/json-schema-validation).

use std::collections::HashMap;

use serde_json::Value;

use super::document::{Document, Fields, Items, Part, Range, Schema, Text, Type};
use super::format;
use super::keywords::{Keywords, TYPES, decode_percent, types_of};
use super::pattern;
use super::place::At;
use super::values;
use crate::work::limit;
use crate::{CompilerOptions, ConstraintError};

/// Limits and rules of a document.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Whether it is the schema of [arguments](mod@super::arguments).
    pub(super) is_arguments: bool,
    /// Whether enumerations may be empty.
    pub(super) has_empty: bool,
    /// Maximum nesting depth of schemas: the library recurses, with kilobytes of stack per level,
    /// and chat templates print arguments of a lower depth.
    pub(super) depth: u64,
    /// Maximum number of schemas, of values and of names.
    pub(super) nodes: usize,
    /// Maximum value of a length or count. A reply is never that long.
    pub(super) count: u64,
}

impl Limits {
    pub(super) fn constraint(nodes: usize) -> Self {
        Self { is_arguments: false, has_empty: false, depth: 32, nodes, count: 65_535 }
    }

    pub(super) fn arguments() -> Self {
        let nodes = CompilerOptions::default().max_nodes;
        Self { is_arguments: true, has_empty: false, depth: 16, nodes, count: 4_096 }
    }
}

/// Maximum number of named properties of an object: the library recurses over them, and the time to
/// exclude their names from additional properties grows with the square of the number.
const MAX_PROPERTIES: usize = 1_000;

/// Maximum number of patterns of an object: the library compares each one with each other one.
const MAX_PATTERNS: usize = 32;

/// Parses the schema and the schemas that it refers to.
pub(super) fn parse(source: &Value, limits: Limits) -> Result<Document, ConstraintError> {
    let mut parser =
        Parser { source, limits, counts: [0; 3], targets: HashMap::new(), pending: Vec::new() };
    let root = parser.schema(source, &At::root(), 0)?;
    let mut definitions = Vec::new();
    while let Some((pointer, target)) = parser.pending.get(definitions.len()).cloned() {
        definitions.push(parser.schema(target, &At::pointer(&pointer), 0)?);
    }
    Ok(Document { root, definitions })
}

struct Parser<'s> {
    source: &'s Value,
    limits: Limits,
    /// The number of each of [`COUNTED`].
    counts: [usize; 3],
    /// Index of each definition by its JSON pointer.
    targets: HashMap<String, usize>,
    /// Pointer and value of each definition.
    pending: Vec<(String, &'s Value)>,
}

/// Parts of a schema, each with the same limit. A user can count each one in the source: also each
/// value in a value.
const COUNTED: [&str; 3] = [
    "the number of schemas",
    "the number of values of \"enum\" and \"const\"",
    "the number of names in \"required\"",
];

impl<'s> Parser<'s> {
    fn schema(&mut self, value: &'s Value, at: &At, depth: u64) -> Result<Schema, ConstraintError> {
        self.count(0)?;
        limit("the nesting depth of schemas", depth, self.limits.depth)?;
        let map = match value {
            Value::Bool(true) if self.limits.is_arguments => {
                return Err(at.unsupported("true", "a schema must be an object with a type"));
            }
            Value::Bool(true) => return Ok(Schema { at: at.clone(), ..Schema::default() }),
            Value::Bool(false) => return Ok(Schema::never(at.clone(), "the schema is false")),
            Value::Object(map) => map,
            other => {
                let found = values::kind(other);
                return Err(ConstraintError::NoSchema { at: at.to_string(), found });
            }
        };
        let keywords = Keywords { map, at, depth, limits: self.limits };
        keywords.check_names()?;
        let mut parts = Vec::new();
        parts.extend(self.types(&keywords)?.map(Part::Types));
        parts.extend(self.values(&keywords)?.map(Part::Values));
        parts.extend(self.reference(&keywords)?.map(Part::Ref));
        for part in self.schemas(&keywords, "allOf")?.unwrap_or_default() {
            parts.extend(part.parts);
        }
        parts.extend(self.schemas(&keywords, "anyOf")?.map(Part::Any));
        parts.extend(self.schemas(&keywords, "oneOf")?.map(Part::One));
        let mut schema = Schema { parts, at: at.clone(), ..Schema::default() };
        if self.limits.is_arguments {
            schema.description = keywords.text("description")?.map(str::to_owned);
            schema.default = keywords.get("default").cloned();
        }
        Ok(schema)
    }

    /// Counts one of [`COUNTED`].
    fn count(&mut self, index: usize) -> Result<(), ConstraintError> {
        let (Some(count), Some(what)) = (self.counts.get_mut(index), COUNTED.get(index)) else {
            return Ok(());
        };
        *count += 1;
        check_number(what, *count, self.limits.nodes)
    }

    /// The types of a schema with a keyword that depends on the type.
    fn types(&mut self, keywords: &Keywords<'_, 's>) -> Result<Option<Vec<Type>>, ConstraintError> {
        let names = keywords.types()?;
        let is_limited = keywords.map.keys().any(|name| !types_of(name).is_empty());
        let range = self.range(keywords)?;
        let text = text(keywords)?;
        let mut items = self.items(keywords)?;
        let mut fields = self.fields(keywords)?;
        let names = match names {
            None if !is_limited => return Ok(None),
            // Prompts have the order of the source.
            Some(names) if self.limits.is_arguments => names,
            names => {
                let is_named = |name: &&str| names.as_ref().is_none_or(|all| all.contains(name));
                TYPES.into_iter().filter(is_named).collect()
            }
        };
        let types = names.iter().filter_map(|name| match *name {
            "null" => Some(Type::Null),
            "boolean" => Some(Type::Boolean),
            "integer" if names.contains(&"number") => None,
            "integer" => Some(Type::Integer(range.clone())),
            "number" => Some(Type::Number(range.clone())),
            "string" => Some(Type::String(text.clone())),
            "array" => Some(Type::Array(std::mem::take(&mut items))),
            _ => Some(Type::Object(std::mem::take(&mut fields))),
        });
        Ok(Some(types.collect()))
    }

    fn range(&self, keywords: &Keywords<'_, 's>) -> Result<Range, ConstraintError> {
        let multiple_of = keywords.number("multipleOf")?;
        if let Some(multiple) = multiple_of {
            if multiple <= 0.0 {
                return Err(keywords.at.invalid("multipleOf", "a positive number"));
            }
            if values::scale(multiple).is_none() {
                let reason =
                    format!("{multiple} is no exact decimal up to 1,000 without its decimal point");
                return Err(keywords.at.unsupported("multipleOf", reason));
            }
        }
        let range = Range {
            min: keywords.number("minimum")?,
            max: keywords.number("maximum")?,
            above: keywords.number("exclusiveMinimum")?,
            below: keywords.number("exclusiveMaximum")?,
            multiple_of,
            format: keywords.text("format")?.and_then(format::of_numbers).map(|(name, ..)| name),
        };
        Ok(if self.limits.is_arguments { range } else { range.unformatted() })
    }

    fn items(&mut self, keywords: &Keywords<'_, 's>) -> Result<Items, ConstraintError> {
        if keywords.get("items").is_some_and(Value::is_array) {
            return Err(keywords.at.unsupported("items", "use \"prefixItems\" for a list"));
        }
        Ok(Items {
            prefix: self.schemas(keywords, "prefixItems")?.unwrap_or_default(),
            rest: self.child(keywords, "items")?,
            min: keywords.count("minItems")?.unwrap_or(0),
            max: keywords.count("maxItems")?,
        })
    }

    fn fields(&mut self, keywords: &Keywords<'_, 's>) -> Result<Fields, ConstraintError> {
        let at = keywords.at;
        let patterns = self.properties(keywords, "patternProperties")?;
        let patterns = patterns.into_iter().map(|(regex, schema)| {
            let regex = pattern::lower(&regex)
                .map_err(|reason| at.unsupported("patternProperties", reason))?;
            Ok((regex, schema))
        });
        let patterns: Vec<_> = patterns.collect::<Result<_, ConstraintError>>()?;
        let names = keywords.list("required")?.map_or(&[][..], Vec::as_slice);
        check_number(REQUIRED, names.len(), MAX_PROPERTIES)?;
        let names: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
        let mut required: Vec<String> = Vec::new();
        for name in names.ok_or_else(|| at.invalid("required", "an array of strings"))? {
            self.count(2)?;
            if !required.iter().any(|known| known == name) {
                required.push(name.to_owned());
            }
        }
        let mut rest = self.child(keywords, "additionalProperties")?;
        if self.limits.is_arguments && rest.is_none() {
            rest = Some(Box::new(Schema::never(at.clone(), "the schema is false")));
        }
        let fields = Fields {
            properties: self.properties(keywords, "properties")?,
            patterns,
            rest,
            required,
            min: keywords.count("minProperties")?.unwrap_or(0),
            max: keywords.count("maxProperties")?,
        };
        check_counts(&fields, at)?;
        Ok(fields)
    }

    fn properties(
        &mut self,
        keywords: &Keywords<'_, 's>,
        keyword: &str,
    ) -> Result<Vec<(String, Schema)>, ConstraintError> {
        let map = keywords.read(keyword, Value::as_object, "an object of schemas")?;
        let at = keywords.at.child(keyword);
        let schemas = map.into_iter().flatten().map(|(name, schema)| {
            let schema = self.schema(schema, &at.child(name), keywords.depth + 1)?;
            Ok((name.clone(), schema))
        });
        schemas.collect()
    }

    fn child(
        &mut self,
        keywords: &Keywords<'_, 's>,
        keyword: &str,
    ) -> Result<Option<Box<Schema>>, ConstraintError> {
        let Some(value) = keywords.get(keyword) else { return Ok(None) };
        let schema = self.schema(value, &keywords.at.child(keyword), keywords.depth + 1)?;
        Ok(Some(Box::new(schema)))
    }

    fn schemas(
        &mut self,
        keywords: &Keywords<'_, 's>,
        keyword: &str,
    ) -> Result<Option<Vec<Schema>>, ConstraintError> {
        let Some(list) = keywords.list(keyword)? else { return Ok(None) };
        if list.is_empty() {
            return Err(keywords.at.invalid(keyword, "a non-empty array of schemas"));
        }
        let at = keywords.at.child(keyword);
        let schemas = list.iter().enumerate().map(|(index, schema)| {
            self.schema(schema, &at.child(&index.to_string()), keywords.depth + 1)
        });
        schemas.collect::<Result<_, _>>().map(Some)
    }

    fn values(
        &mut self,
        keywords: &Keywords<'_, 's>,
    ) -> Result<Option<Vec<Value>>, ConstraintError> {
        let (constant, list) = (keywords.get("const"), keywords.list("enum")?);
        let mut values: Option<Vec<Value>> = list.cloned();
        if values.as_ref().is_some_and(Vec::is_empty) && !self.limits.has_empty {
            return Err(keywords.at.invalid("enum", "a non-empty array"));
        }
        for (keyword, value) in
            list.into_iter().flatten().map(|v| ("enum", v)).chain(constant.map(|v| ("const", v)))
        {
            let supported = values::check(value, &mut || self.count(1));
            supported?.map_err(|reason| keywords.at.unsupported(keyword, reason))?;
        }
        if let Some(constant) = constant {
            let is_listed =
                |list: &Vec<Value>| list.iter().any(|value| values::is_equal(value, constant));
            let is_allowed = values.as_ref().is_none_or(is_listed);
            values = Some(if is_allowed { vec![constant.clone()] } else { Vec::new() });
        }
        Ok(values)
    }

    fn reference(&mut self, keywords: &Keywords<'_, 's>) -> Result<Option<usize>, ConstraintError> {
        let Some(reference) = keywords.text("$ref")? else { return Ok(None) };
        let outside = || {
            let reason = format!("{reference} is not a JSON pointer within the document");
            keywords.at.unsupported("$ref", reason)
        };
        let pointer = reference.strip_prefix('#').ok_or_else(outside)?;
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return Err(outside());
        }
        let pointer = decode_percent(pointer).ok_or_else(outside)?;
        let target = self.source.pointer(&pointer);
        let target = target.ok_or_else(|| keywords.at.invalid("$ref", "the path of a schema"))?;
        if let Some(&index) = self.targets.get(&pointer) {
            return Ok(Some(index));
        }
        let index = self.pending.len();
        self.targets.insert(pointer.clone(), index);
        self.pending.push((pointer, target));
        Ok(Some(index))
    }
}

fn text(keywords: &Keywords<'_, '_>) -> Result<Text, ConstraintError> {
    let mut text = Text {
        min: keywords.count("minLength")?.unwrap_or(0),
        max: keywords.count("maxLength")?,
        patterns: Vec::new(),
        formats: Vec::new(),
    };
    if let Some(regex) = keywords.text("pattern")? {
        let lowered =
            pattern::lower(regex).map_err(|reason| keywords.at.unsupported("pattern", reason))?;
        text.patterns.push(lowered);
    }
    if let Some(name) = keywords.text("format")? {
        match format::lookup(name) {
            Some(format::Format::Pattern(regex)) => text.patterns.push(regex),
            Some(format::Format::Library(name)) => text.formats.push(name),
            Some(format::Format::Number) => {}
            None => return Err(keywords.at.unsupported("format", format!("\"{name}\""))),
        }
    }
    Ok(text)
}

/// What [`MAX_PROPERTIES`] limits besides properties.
const REQUIRED: &str = "the number of required properties of an object";

fn check_number(what: &'static str, value: usize, max_value: usize) -> Result<(), ConstraintError> {
    limit(what, value as u64, max_value as u64)
}

/// Refuses too many properties, and counts of properties that the grammar cannot enforce. It cannot
/// count optional properties, nor distinct names of additional ones.
pub(super) fn check_counts(fields: &Fields, at: &At) -> Result<(), ConstraintError> {
    check_number("the number of properties of an object", fields.properties.len(), MAX_PROPERTIES)?;
    check_number("the number of patterns of an object", fields.patterns.len(), MAX_PATTERNS)?;
    check_number(REQUIRED, fields.required.len(), MAX_PROPERTIES)?;
    let required = fields.required.len() as u64;
    let is_optional =
        |(name, schema): &&(String, Schema)| !fields.required.contains(name) && !schema.is_never();
    let optional = fields.properties.iter().filter(is_optional).count() as u64;
    let (min, max) = (fields.min.saturating_sub(required), fields.max);
    // One of the optional properties: at least one, or at most one.
    let is_one_of = fields.is_closed() && min <= 1 && max.is_none_or(|max| max == required + 1);
    let max_matters = max.is_some_and(|max| !fields.is_closed() || max < required + optional);
    let reason = "only exact for required properties and one further property";
    if min > 0 && ((optional > 0 && !is_one_of) || min > 1) {
        return Err(at.unsupported("minProperties", reason));
    }
    if max_matters && optional > 0 && !is_one_of {
        return Err(at.unsupported("maxProperties", reason));
    }
    Ok(())
}
