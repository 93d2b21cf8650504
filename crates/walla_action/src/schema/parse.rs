//! Reads a schema. The input may be the output of `schemars` 1.x for a struct.

use serde_json::{Map, Value};

use super::disjoint::are_disjoint;
use super::{Kind, Limits, MAX_EXACT, MAX_LENGTH, Property, Range, Schema, is_name};
use crate::ActionError;
use crate::error::shown;

/// Maximum nesting depth of schemas.
const MAX_DEPTH: usize = 16;

/// Maximum number of schemas after references are replaced.
const MAX_SCHEMAS: usize = 1_000;

/// Keywords without effect on validity that are dropped.
const ANNOTATIONS: [&str; 12] = [
    "title",
    "$schema",
    "$id",
    "$comment",
    "$anchor",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$defs",
    "definitions",
];

/// Formats of numbers that `schemars` writes, with their bounds.
const FORMATS: [(&str, f64, f64); 14] = [
    ("int8", -128.0, 127.0),
    ("int16", -32_768.0, 32_767.0),
    ("int32", -2_147_483_648.0, 2_147_483_647.0),
    ("int64", -9_223_372_036_854_775_808.0, 9_223_372_036_854_774_784.0),
    ("int128", f64::NEG_INFINITY, f64::INFINITY),
    ("int", -9_223_372_036_854_775_808.0, 9_223_372_036_854_774_784.0),
    ("uint8", 0.0, 255.0),
    ("uint16", 0.0, 65_535.0),
    ("uint32", 0.0, 4_294_967_295.0),
    ("uint64", 0.0, 18_446_744_073_709_549_568.0),
    ("uint128", 0.0, f64::INFINITY),
    ("uint", 0.0, 18_446_744_073_709_549_568.0),
    ("float", f64::NEG_INFINITY, f64::INFINITY),
    ("double", f64::NEG_INFINITY, f64::INFINITY),
];

/// The bounds of a format.
pub(super) fn format_bounds(name: &str) -> (f64, f64) {
    let found = FORMATS.iter().find(|(format, ..)| *format == name);
    found.map_or((f64::NEG_INFINITY, f64::INFINITY), |&(_, min, max)| (min, max))
}

/// Reads a schema.
pub(crate) fn parse(root: &Value) -> Result<Schema, ActionError> {
    Parser { root, has_empty: false, schemas: 0, references: Vec::new() }.schema(root, "", 0)
}

/// Reads a schema that [`for_model`](super::for_model) printed.
#[cfg(feature = "serde")]
pub(crate) fn parse_stored(root: &Value) -> Result<Schema, ActionError> {
    Parser { root, has_empty: true, schemas: 0, references: Vec::new() }.schema(root, "", 0)
}

struct Parser<'s> {
    root: &'s Value,
    /// Enumerations may have no values: choices of the program.
    has_empty: bool,
    schemas: usize,
    /// The references that are being replaced.
    references: Vec<&'s str>,
}

fn unsupported(keyword: &str, at: &str, reason: &'static str) -> ActionError {
    ActionError::Unsupported { keyword: shown(keyword), at: at.to_owned(), reason }
}

fn invalid(keyword: &str, at: &str, expected: &'static str) -> ActionError {
    ActionError::Invalid { keyword: keyword.to_owned(), at: at.to_owned(), expected }
}

impl<'s> Parser<'s> {
    fn schema(&mut self, value: &'s Value, at: &str, depth: usize) -> Result<Schema, ActionError> {
        self.schemas += 1;
        for (what, value, max_value) in [
            ("the nesting depth of the schema", depth, MAX_DEPTH),
            ("the number of schemas", self.schemas, MAX_SCHEMAS),
        ] {
            if value > max_value {
                return Err(ActionError::TooLarge { what, value, max_value });
            }
        }
        let Value::Object(object) = value else {
            let reason = "a schema must be an object with a type";
            return Err(unsupported(if value.is_boolean() { "true" } else { "" }, at, reason));
        };
        let mut fields = Fields::new(object, at);
        let description = fields.text("description")?.map(str::to_owned);
        let default = fields.take("default").cloned();
        let schema = if let Some(target) = fields.text("$ref")? {
            let target = self.reference(target, at, depth)?;
            Schema { description: description.or(target.description), ..target }
        } else {
            let schema = self.unnamed(&mut fields, at, depth)?;
            Schema { description: join(description, schema.description), ..schema }
        };
        fields.finish()?;
        let mut schema = schema;
        schema.default = default.or(schema.default);
        Ok(schema)
    }

    fn reference(
        &mut self,
        target: &'s str,
        at: &str,
        depth: usize,
    ) -> Result<Schema, ActionError> {
        let found = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let found = found.ok_or_else(|| invalid("$ref", at, "a JSON pointer in the schema"))?;
        if target == "#" || self.references.contains(&target) {
            return Err(unsupported("$ref", at, "a recursive schema has calls of any length"));
        }
        self.references.push(target);
        let schema = self.schema(found, at, depth + 1);
        self.references.pop();
        schema
    }

    /// A schema without a reference.
    fn unnamed(
        &mut self,
        fields: &mut Fields<'s>,
        at: &str,
        depth: usize,
    ) -> Result<Schema, ActionError> {
        for (keyword, is_exclusive) in [("anyOf", false), ("oneOf", true)] {
            if let Some(options) = fields.take(keyword) {
                return self.any(options, keyword, is_exclusive, at, depth);
            }
        }
        let types = fields.types()?;
        if let Some(values) = fields.values(self.has_empty)? {
            return Ok(Schema::plain(values_of(values, &types, at)?));
        }
        let types = if types.is_empty() { fields.implied_type()? } else { types };
        let mut kinds = Vec::new();
        for name in types {
            kinds.push(match name {
                "null" => Kind::Null,
                "boolean" => Kind::Boolean,
                "integer" => Kind::Integer(fields.range()?),
                "number" => Kind::Number(fields.range()?),
                "string" => Kind::Text(fields.limits("minLength", "maxLength")?),
                "array" => self.list(fields, at, depth)?,
                "object" => self.object(fields, at, depth)?,
                _ => return Err(invalid("type", at, "a type of JSON")),
            });
        }
        let has = |kind: fn(&Kind) -> bool| kinds.iter().any(kind);
        if has(|k| matches!(k, Kind::Number(_))) && has(|k| matches!(k, Kind::Integer(_))) {
            kinds.retain(|kind| !matches!(kind, Kind::Integer(_)));
        }
        Ok(flatten(kinds.into_iter().map(Schema::plain).collect()))
    }

    fn any(
        &mut self,
        options: &'s Value,
        keyword: &str,
        is_exclusive: bool,
        at: &str,
        depth: usize,
    ) -> Result<Schema, ActionError> {
        let Some(options) = options.as_array().filter(|options| !options.is_empty()) else {
            return Err(invalid(keyword, at, "a list of schemas"));
        };
        let mut schemas = Vec::new();
        for (index, option) in options.iter().enumerate() {
            schemas.push(self.schema(option, &format!("{at}/{keyword}/{index}"), depth + 1)?);
        }
        if is_exclusive {
            for (index, schema) in schemas.iter().enumerate() {
                if !schemas.iter().skip(index + 1).all(|other| are_disjoint(schema, other)) {
                    let reason = "a value may be valid by two of the alternatives";
                    return Err(unsupported(keyword, at, reason));
                }
            }
        }
        Ok(flatten(schemas))
    }

    fn list(
        &mut self,
        fields: &mut Fields<'s>,
        at: &str,
        depth: usize,
    ) -> Result<Kind, ActionError> {
        let limits = fields.limits("minItems", "maxItems")?;
        if fields.take("uniqueItems").is_some_and(|unique| *unique != Value::Bool(false)) {
            return Err(unsupported("uniqueItems", at, "a grammar cannot compare items"));
        }
        if let Some(prefix) = fields.take("prefixItems") {
            let prefix = prefix.as_array().filter(|prefix| !prefix.is_empty());
            let prefix = prefix.ok_or_else(|| invalid("prefixItems", at, "a list of schemas"))?;
            let is_closed = limits.min == prefix.len()
                && (limits.max == Some(prefix.len())
                    || fields.take("items") == Some(&Value::Bool(false)));
            if !is_closed {
                let reason = "minItems and maxItems must be the number of schemas";
                return Err(unsupported("prefixItems", at, reason));
            }
            fields.take("items");
            let mut items = Vec::new();
            for (index, item) in prefix.iter().enumerate() {
                items.push(self.schema(item, &format!("{at}/prefixItems/{index}"), depth + 1)?);
            }
            return Ok(Kind::Tuple(items));
        }
        let items = fields.take("items").ok_or_else(|| invalid("items", at, "a schema"))?;
        let items = self.schema(items, &format!("{at}/items"), depth + 1)?;
        Ok(Kind::List(Box::new(items), limits))
    }

    fn object(
        &mut self,
        fields: &mut Fields<'s>,
        at: &str,
        depth: usize,
    ) -> Result<Kind, ActionError> {
        if fields.take("additionalProperties").is_some_and(|more| *more != Value::Bool(false)) {
            let reason = "the names of properties must be known";
            return Err(unsupported("additionalProperties", at, reason));
        }
        let required = match fields.take("required") {
            None => Some(Vec::new()),
            Some(Value::Array(names)) => names.iter().map(Value::as_str).collect(),
            Some(_) => None,
        };
        let required = required.ok_or_else(|| invalid("required", at, "a list of texts"))?;
        let schemas = match fields.take("properties") {
            None => None,
            Some(Value::Object(schemas)) => Some(schemas),
            Some(_) => return Err(invalid("properties", at, "an object")),
        };
        if required.iter().any(|name| !schemas.is_some_and(|s| s.contains_key(*name))) {
            return Err(invalid("required", at, "names of properties"));
        }
        let mut properties = Vec::new();
        for (name, schema) in schemas.into_iter().flatten() {
            let at = format!("{at}/properties/{name}");
            if !is_name(name) {
                return Err(ActionError::Name { name: shown(name), at: shown(&at) });
            }
            let schema = self.schema(schema, &at, depth + 1)?;
            let is_required = required.contains(&name.as_str());
            properties.push(Property { name: name.clone(), schema, is_required });
        }
        Ok(Kind::Object(properties))
    }
}

/// The scalar values of `enum` or `const`, which must have one of the types.
fn values_of(values: Vec<&Value>, types: &[&str], at: &str) -> Result<Kind, ActionError> {
    let mut kept: Vec<Value> = Vec::new();
    for value in values {
        let is_valid = match value {
            Value::Array(_) | Value::Object(_) => {
                return Err(unsupported("enum", at, "values must be scalar"));
            }
            Value::Null => types.contains(&"null"),
            Value::Bool(_) => types.contains(&"boolean"),
            Value::String(_) => types.contains(&"string"),
            Value::Number(number) => {
                types.contains(&"number") || types.contains(&"integer") && !number.is_f64()
            }
        };
        if !types.is_empty() && !is_valid {
            return Err(invalid("enum", at, "values of the type"));
        }
        if !kept.contains(value) {
            kept.push(value.clone());
        }
    }
    let scalars = kept.iter().filter(|value| !value.is_null()).count();
    if scalars == 0 && !kept.is_empty() {
        return Ok(Kind::Null);
    }
    let has_null = scalars < kept.len();
    kept.retain(|value| !value.is_null());
    let values = Kind::Values(kept);
    Ok(if has_null {
        Kind::Any(vec![Schema::plain(values), Schema::plain(Kind::Null)])
    } else {
        values
    })
}

/// Alternatives without nested alternatives. Alternatives of constants become one list of values,
/// with their descriptions in the description.
fn flatten(schemas: Vec<Schema>) -> Schema {
    let mut flat: Vec<Schema> = Vec::new();
    for schema in schemas {
        match schema.kind {
            Kind::Any(options) => flat.extend(options),
            _ => flat.push(schema),
        }
    }
    let mut merged: Vec<Schema> = Vec::new();
    for schema in flat {
        let Kind::Values(values) = &schema.kind else {
            if !merged.iter().any(|other| other.kind == schema.kind) {
                merged.push(schema);
            }
            continue;
        };
        let described = described(values, schema.description.as_deref());
        let lists = |other: &&mut Schema| matches!(other.kind, Kind::Values(_));
        match merged.iter_mut().find(lists) {
            Some(Schema { kind: Kind::Values(all), description, .. }) => {
                all.extend(values.iter().filter(|v| !all.contains(v)).cloned().collect::<Vec<_>>());
                *description = join(description.take(), described);
            }
            _ => merged.push(Schema { description: described, ..schema }),
        }
    }
    match merged.len() {
        1 => merged.remove(0),
        _ => Schema::plain(Kind::Any(merged)),
    }
}

fn join(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first} {second}")),
        (first, second) => first.or(second),
    }
}

/// `"value": description` of a constant with a description.
fn described(values: &[Value], description: Option<&str>) -> Option<String> {
    match (values, description) {
        ([value], Some(text)) => Some(format!("{value}: {text}")),
        (_, text) => text.map(str::to_owned),
    }
}

/// The keywords of a schema, and which of them were read.
struct Fields<'s> {
    object: &'s Map<String, Value>,
    at: String,
    read: Vec<&'static str>,
}

impl<'s> Fields<'s> {
    fn new(object: &'s Map<String, Value>, at: &str) -> Self {
        Self { object, at: at.to_owned(), read: Vec::new() }
    }

    fn take(&mut self, keyword: &'static str) -> Option<&'s Value> {
        self.read.push(keyword);
        self.object.get(keyword)
    }

    /// An error for a keyword that was not read.
    fn finish(&self) -> Result<(), ActionError> {
        let is_read =
            |keyword: &str| self.read.contains(&keyword) || ANNOTATIONS.contains(&keyword);
        match self.object.keys().find(|keyword| !is_read(keyword)) {
            Some(keyword) => {
                let reason = "it is unknown, or has no meaning next to the other keywords";
                Err(unsupported(keyword, &self.at, reason))
            }
            None => Ok(()),
        }
    }

    fn text(&mut self, keyword: &'static str) -> Result<Option<&'s str>, ActionError> {
        match self.take(keyword) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(invalid(keyword, &self.at, "a text")),
        }
    }

    fn types(&mut self) -> Result<Vec<&'s str>, ActionError> {
        let types: Option<Vec<&str>> = match self.take("type") {
            None => Some(Vec::new()),
            Some(Value::String(name)) => Some(vec![name]),
            Some(Value::Array(names)) if !names.is_empty() => {
                names.iter().map(Value::as_str).collect()
            }
            Some(_) => None,
        };
        types.ok_or_else(|| invalid("type", &self.at, "a type or a list of types"))
    }

    /// A schema with properties or items has a type without saying so.
    fn implied_type(&self) -> Result<Vec<&'static str>, ActionError> {
        let has = |keyword| self.object.contains_key(keyword);
        if has("properties") {
            Ok(vec!["object"])
        } else if has("items") || has("prefixItems") {
            Ok(vec!["array"])
        } else {
            let reason = "a schema without a type allows any value";
            let keyword = self.object.keys().find(|k| !ANNOTATIONS.contains(&k.as_str()));
            let unread = keyword.filter(|keyword| !self.read.contains(&keyword.as_str()));
            Err(unsupported(unread.map_or("type", String::as_str), &self.at, reason))
        }
    }

    fn values(&mut self, has_empty: bool) -> Result<Option<Vec<&'s Value>>, ActionError> {
        match (self.take("const"), self.take("enum")) {
            (Some(_), Some(_)) => Err(unsupported("const", &self.at, "enum is enough")),
            (Some(value), None) => Ok(Some(vec![value])),
            (None, Some(Value::Array(values))) if has_empty || !values.is_empty() => {
                Ok(Some(values.iter().collect()))
            }
            (None, Some(_)) => Err(invalid("enum", &self.at, "a list of values")),
            (None, None) => Ok(None),
        }
    }

    fn limits(&mut self, min: &'static str, max: &'static str) -> Result<Limits, ActionError> {
        let mut read = |keyword| match self.take(keyword) {
            None => Ok(None),
            Some(value) => match value.as_u64().map(usize::try_from) {
                Some(Ok(length)) if length <= MAX_LENGTH => Ok(Some(length)),
                _ => Err(invalid(keyword, &self.at, "an integer from 0 to 4096")),
            },
        };
        let limits = Limits { min: read(min)?.unwrap_or(0), max: read(max)? };
        match limits.max {
            Some(limit) if limit < limits.min => {
                Err(invalid(max, &self.at, "at least the minimum"))
            }
            _ => Ok(limits),
        }
    }

    fn range(&mut self) -> Result<Range, ActionError> {
        let mut number = |keyword| match self.take(keyword) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) if number.abs() <= MAX_EXACT => Ok(Some(number)),
                Some(_) => {
                    let reason = "bounds must be within ±(2^53 - 1), the range of exact numbers";
                    Err(unsupported(keyword, &self.at, reason))
                }
                None => Err(invalid(keyword, &self.at, "a number")),
            },
        };
        let mut range = Range {
            min: number("minimum")?,
            max: number("maximum")?,
            above: number("exclusiveMinimum")?,
            below: number("exclusiveMaximum")?,
            format: None,
        };
        if let Some(format) = self.text("format")? {
            let known = FORMATS.iter().find(|(name, ..)| *name == format);
            let known = known.ok_or_else(|| {
                unsupported("format", &self.at, "only formats of numbers are supported")
            })?;
            range.format = Some(known.0);
        }
        if range.low() > range.high() {
            return Err(invalid("maximum", &self.at, "at least the minimum"));
        }
        Ok(range)
    }
}

impl Range {
    /// The largest inclusive lower bound.
    pub(crate) fn low(&self) -> f64 {
        let format = self.format.map_or(f64::NEG_INFINITY, |format| format_bounds(format).0);
        self.min.unwrap_or(f64::NEG_INFINITY).max(format)
    }

    /// The smallest inclusive upper bound.
    pub(crate) fn high(&self) -> f64 {
        let format = self.format.map_or(f64::INFINITY, |format| format_bounds(format).1);
        self.max.unwrap_or(f64::INFINITY).min(format)
    }

    /// Whether the number is within the bounds.
    pub(crate) fn contains(&self, number: f64) -> bool {
        number >= self.low()
            && number <= self.high()
            && self.above.is_none_or(|above| number > above)
            && self.below.is_none_or(|below| number < below)
    }
}
