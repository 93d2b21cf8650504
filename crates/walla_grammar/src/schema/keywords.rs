//! The keywords of one schema: which ones exist, and the types of their values.

use serde_json::{Map, Value};

use super::document::MAX_NUMBER;
use super::parse::Limits;
use super::place::At;
use crate::ConstraintError;

/// Drafts with a `$schema` that is accepted. All supported keywords mean the same in them.
const DRAFTS: [&str; 3] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
];

/// Keywords that are known and refused.
const REFUSED: [(&str, &str); 16] = [
    (
        "$dynamicAnchor $dynamicRef $recursiveAnchor $recursiveRef",
        "dynamic references are not resolved",
    ),
    ("$vocabulary", "it belongs to meta-schemas"),
    ("additionalItems", "use \"items\" after \"prefixItems\""),
    ("contains maxContains minContains", "a grammar cannot count matching items"),
    ("contentEncoding contentMediaType contentSchema", "the content of a string is not decoded"),
    (
        "dependencies dependentRequired dependentSchemas",
        "a grammar cannot remember which properties occurred",
    ),
    ("discriminator", "use \"const\" in the alternatives"),
    ("id", "use \"$ref\" within the document"),
    ("if then else", "a grammar cannot negate a schema; use \"anyOf\""),
    ("not", "a grammar cannot negate a schema"),
    ("nullable", "use the type \"null\""),
    ("propertyNames", "use \"patternProperties\""),
    ("unevaluatedItems", "use \"items\""),
    ("uniqueItems", "a grammar cannot compare items"),
    ("unevaluatedProperties", "use \"additionalProperties\""),
    ("x-guidance", "settings belong to the compiler"),
];

pub(super) const TYPES: [&str; 7] =
    ["null", "boolean", "integer", "number", "string", "array", "object"];

/// The keywords of a schema while it is parsed.
pub(super) struct Keywords<'a, 's> {
    pub(super) map: &'s Map<String, Value>,
    pub(super) at: &'a At,
    pub(super) depth: u64,
    pub(super) limits: Limits,
}

impl<'s> Keywords<'_, 's> {
    pub(super) fn get(&self, keyword: &str) -> Option<&'s Value> {
        self.map.get(keyword)
    }

    pub(super) fn read<T>(
        &self,
        keyword: &str,
        read: impl FnOnce(&'s Value) -> Option<T>,
        expected: &'static str,
    ) -> Result<Option<T>, ConstraintError> {
        let value = self.get(keyword).map(read);
        value.map(|value| value.ok_or_else(|| self.at.invalid(keyword, expected))).transpose()
    }

    pub(super) fn list(&self, keyword: &str) -> Result<Option<&'s Vec<Value>>, ConstraintError> {
        self.read(keyword, Value::as_array, "an array")
    }

    pub(super) fn text(&self, keyword: &str) -> Result<Option<&'s str>, ConstraintError> {
        self.read(keyword, Value::as_str, "a string")
    }

    pub(super) fn number(&self, keyword: &str) -> Result<Option<f64>, ConstraintError> {
        let number = self.read(keyword, Value::as_f64, "a number")?;
        match self.get(keyword) {
            Some(value) if number.is_some_and(|number| number.abs() > MAX_NUMBER) => {
                let reason = format!("{value} is beyond 2^53 - 1, the range of exact numbers");
                Err(self.at.unsupported(keyword, reason))
            }
            _ => Ok(number),
        }
    }

    pub(super) fn count(&self, keyword: &str) -> Result<Option<u64>, ConstraintError> {
        let Some(number) = self.number(keyword)? else { return Ok(None) };
        if number < 0.0 || number.fract() != 0.0 {
            return Err(self.at.invalid(keyword, "a non-negative integer"));
        }
        if number > self.limits.count as f64 {
            let reason = format!("{number} is more than {}", self.limits.count);
            return Err(self.at.unsupported(keyword, reason));
        }
        Ok(Some(number as u64))
    }

    /// The types that the schema names. A schema of arguments with properties or items has a type
    /// without saying so.
    pub(super) fn types(&self) -> Result<Option<Vec<&'s str>>, ConstraintError> {
        let names: Option<Vec<&str>> = match self.get("type") {
            None => {
                let implied =
                    [("properties", "object"), ("items", "array"), ("prefixItems", "array")];
                let implied = implied.iter().find(|(keyword, _)| self.map.contains_key(*keyword));
                let implied = implied.filter(|_| self.limits.is_arguments);
                return Ok(implied.map(|(_, name)| vec![*name]));
            }
            Some(Value::String(name)) => Some(vec![name]),
            Some(Value::Array(names)) => names.iter().map(Value::as_str).collect(),
            Some(_) => None,
        };
        let is_valid =
            |names: &Vec<&str>| !names.is_empty() && names.iter().all(|name| TYPES.contains(name));
        let names = names.filter(is_valid);
        let expected = "one of the seven types, or a list of them";
        names.map(Some).ok_or_else(|| self.at.invalid("type", expected))
    }

    /// Refuses every keyword that no other function reads.
    pub(super) fn check_names(&self) -> Result<(), ConstraintError> {
        let (at, is_arguments) = (self.at, self.limits.is_arguments);
        for (name, value) in self.map {
            let name = name.as_str();
            match name {
                "type" | "enum" | "const" | "$ref" | "allOf" | "anyOf" | "oneOf" => {}
                _ if !types_of(name).is_empty() => {}
                "uniqueItems" if *value == Value::Bool(false) => {}
                // Printed schemas of arguments have neither.
                "$schema" | "$id" if is_arguments => {}
                "$schema" => {
                    let draft = value.as_str().ok_or_else(|| at.invalid(name, "a string"))?;
                    if !DRAFTS.contains(&draft.trim_end_matches('#')) {
                        return Err(at.unsupported(name, format!("unknown draft {draft}")));
                    }
                }
                // Elsewhere it changes the target of references.
                "$id" if at.is_root() => {}
                "$id" => return Err(at.unsupported(name, "only the root may have it")),
                // Without an effect on validity.
                "$anchor" | "$comment" | "$defs" | "definitions" | "title" | "description"
                | "default" | "deprecated" | "example" | "examples" | "readOnly" | "writeOnly" => {}
                _ => {
                    let is_known = |names: &str| names.split(' ').any(|known| known == name);
                    let known = REFUSED.iter().find(|(names, _)| is_known(names));
                    let reason = known.map_or("unknown keyword", |(_, reason)| reason);
                    return Err(at.unsupported(name, reason));
                }
            }
        }
        if is_arguments { self.check_arguments() } else { Ok(()) }
    }

    /// Refuses keywords that no grammar of calls has, and those without a meaning next to the
    /// others: their author expects one.
    fn check_arguments(&self) -> Result<(), ConstraintError> {
        let has = |name: &&str| self.map.contains_key(*name);
        let alone = ["$ref", "anyOf", "oneOf"].into_iter().find(has);
        let has_values = ["enum", "const"].iter().any(has);
        let types = self.types()?.unwrap_or_default();
        for (name, value) in self.map {
            let reason = match name.as_str() {
                "allOf" | "multipleOf" | "pattern" | "patternProperties" | "minProperties"
                | "maxProperties" => "a schema of arguments cannot have it",
                "additionalProperties" if *value != Value::Bool(false) => {
                    "the names of properties must be known"
                }
                name => {
                    let types_of = types_of(name);
                    let is_restriction = !types_of.is_empty()
                        || ["type", "$ref", "anyOf", "oneOf", "enum", "const"].contains(&name);
                    let is_meant = match alone {
                        Some(alone) => name == alone,
                        None if has_values => ["type", "enum", "const"].contains(&name),
                        None => name == "type" || types_of.iter().any(|of| types.contains(of)),
                    };
                    if !is_restriction || is_meant {
                        continue;
                    }
                    "it has no meaning next to the other keywords"
                }
            };
            return Err(self.at.unsupported(name, reason));
        }
        Ok(())
    }
}

/// The types whose values a keyword restricts. Formats of texts, which arguments cannot have, are
/// left out.
pub(super) fn types_of(keyword: &str) -> &'static [&'static str] {
    match keyword {
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
        | "format" => &["integer", "number"],
        "minLength" | "maxLength" | "pattern" => &["string"],
        "items" | "prefixItems" | "minItems" | "maxItems" => &["array"],
        "properties"
        | "patternProperties"
        | "additionalProperties"
        | "required"
        | "minProperties"
        | "maxProperties" => &["object"],
        _ => &[],
    }
}

/// Replaces `%` and two hexadecimal digits by the byte (RFC 3986).
pub(super) fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        if byte == b'%' {
            let (digits, behind) = behind.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = behind;
        } else {
            bytes.push(byte);
            rest = behind;
        }
    }
    String::from_utf8(bytes).ok()
}
