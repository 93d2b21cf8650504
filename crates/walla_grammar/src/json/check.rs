//! Refuses schemas without a finite value, which a model could never finish.

use super::merge::lowest;
use super::place::At;
use super::schema::{Document, Fields, Items, Part, Schema, Text, Type};
use crate::ConstraintError;

/// Refuses a document whose parts are combined and that allows no finite value.
pub(super) fn check_values(document: &Document) -> Result<(), ConstraintError> {
    // Definitions with a finite value: the least fixed point.
    let mut finite = vec![false; document.definitions.len()];
    loop {
        let next: Vec<bool> =
            document.definitions.iter().map(|schema| is_finite(schema, &finite)).collect();
        if next == finite {
            break;
        }
        finite = next;
    }
    if is_finite(&document.root, &finite) {
        return Ok(());
    }
    let (at, reason) = Search { document, finite: &finite }.schema(&document.root, &[]);
    Err(ConstraintError::Unsatisfiable { reason: at.named(&reason) })
}

/// Searches the place and the reason of a schema without a finite value.
struct Search<'d> {
    document: &'d Document,
    /// Whether each definition has a finite value.
    finite: &'d [bool],
}

impl Search<'_> {
    /// `stack` has the definitions around the schema.
    fn schema(&self, schema: &Schema, stack: &[usize]) -> (At, String) {
        let at = || schema.at.clone();
        let defect = schema.parts.iter().find(|part| !is_part_finite(part, self.finite));
        match defect {
            Some(Part::Never(reason)) => (at(), reason.clone().into_owned()),
            Some(Part::Types(types)) => match types.as_slice() {
                [ty] => self.ty(ty, &schema.at, stack),
                _ => {
                    let reasons = types.iter().map(|ty| self.ty(ty, &schema.at, stack).1);
                    (at(), reasons.collect::<Vec<_>>().join("; "))
                }
            },
            Some(Part::Any(all) | Part::One(all)) => match all.as_slice() {
                [one] => self.schema(one, stack),
                [] => (at(), "there is no alternative".to_owned()),
                [first, ..] => {
                    let (place, reason) = self.schema(first, stack);
                    let text = "no alternative allows a value; the first one";
                    (at(), format!("{text}, at \"{place}\": {reason}"))
                }
            },
            Some(Part::Ref(target)) => match self.document.definitions.get(*target) {
                Some(definition) if !stack.contains(target) => {
                    let stack: Vec<usize> = stack.iter().copied().chain([*target]).collect();
                    self.schema(definition, &stack)
                }
                _ => (at(), "the reference leads to values of infinite depth".to_owned()),
            },
            Some(Part::Values(_)) | None => (at(), "the schema allows no value".to_owned()),
        }
    }

    fn ty(&self, ty: &Type, at: &At, stack: &[usize]) -> (At, String) {
        let here = |reason: String| (at.clone(), reason);
        match ty {
            Type::Null | Type::Boolean => here("the schema allows no value".to_owned()),
            Type::Integer(range) => here(format!("no integer is {}", range.describe())),
            Type::Number(range) => here(format!("no number is {}", range.describe())),
            Type::String(Text { min, max, .. }) => here(more("minLength", *min, "maxLength", *max)),
            Type::Array(Items { prefix, rest, min, max }) => {
                if max.is_some_and(|max| *min > max) {
                    return here(more("minItems", *min, "maxItems", *max));
                }
                let needed = usize::try_from(*min).unwrap_or(usize::MAX);
                let mut items = prefix.iter().take(needed).chain(rest.as_deref());
                let item = items.find(|item| !is_finite(item, self.finite));
                match item {
                    Some(item) => self.schema(item, stack),
                    None => here("the schema allows no array".to_owned()),
                }
            }
            Type::Object(fields) => self.object(fields, at, stack),
        }
    }

    fn object(&self, fields: &Fields, at: &At, stack: &[usize]) -> (At, String) {
        let here = |reason: String| (at.clone(), reason);
        let name =
            fields.required.iter().find(|name| !is_required_finite(fields, name, self.finite));
        if let Some(name) = name {
            return match fields.property(name) {
                (Some(own), _) => self.schema(own, stack),
                (None, Some(rest)) if !rest.is_never() => self.schema(rest, stack),
                _ => here(format!("the required property {name:?} is not allowed")),
            };
        }
        let required = fields.required.len() as u64;
        if fields.max.is_some_and(|max| fields.min > max) {
            return here(more("minProperties", fields.min, "maxProperties", fields.max));
        }
        if fields.max.is_some_and(|max| required > max) {
            return here(more(
                "the number of required properties",
                required,
                "maxProperties",
                fields.max,
            ));
        }
        let possible = fields.possible();
        here(more("minProperties", fields.min, "the number of possible properties", possible))
    }
}

/// That a lower limit is more than an upper one.
fn more(low: &str, min: u64, high: &str, max: Option<u64>) -> String {
    format!("{low}, {min}, is more than {high}, {}", max.unwrap_or_default())
}

/// Refuses references that lead back to themselves without a property or an item in between.
pub(super) fn check_references(document: &Document) -> Result<(), ConstraintError> {
    let count = document.definitions.len();
    let edges: Vec<Vec<usize>> = document
        .definitions
        .iter()
        .map(|schema| {
            let mut targets = Vec::new();
            in_place(schema, &mut targets);
            targets
        })
        .collect();
    // A definition that no cycle contains can be removed after all that it refers to.
    let mut removed = vec![false; count];
    loop {
        let before = removed.iter().filter(|&&is_removed| is_removed).count();
        for (index, targets) in edges.iter().enumerate() {
            let are_removed = targets.iter().all(|&target| removed.get(target) == Some(&true));
            if let Some(is_removed) = removed.get_mut(index) {
                *is_removed |= are_removed;
            }
        }
        let after = removed.iter().filter(|&&is_removed| is_removed).count();
        if after == count {
            return Ok(());
        }
        if after == before {
            return Err(ConstraintError::UnsupportedKeyword {
                keyword: "$ref".to_owned(),
                at: String::new(),
                reason: "a reference leads back to itself".to_owned(),
            });
        }
    }
}

/// References that apply to the same value as the schema.
fn in_place(schema: &Schema, targets: &mut Vec<usize>) {
    for part in &schema.parts {
        match part {
            Part::Ref(target) => targets.push(*target),
            Part::Any(schemas) | Part::One(schemas) => {
                schemas.iter().for_each(|schema| in_place(schema, targets));
            }
            Part::Never(_) | Part::Types(_) | Part::Values(_) => {}
        }
    }
}

fn is_finite(schema: &Schema, definitions: &[bool]) -> bool {
    schema.parts.iter().all(|part| is_part_finite(part, definitions))
}

fn is_part_finite(part: &Part, definitions: &[bool]) -> bool {
    match part {
        Part::Never(_) => false,
        Part::Types(types) => types.iter().any(|ty| is_type_finite(ty, definitions)),
        Part::Any(schemas) | Part::One(schemas) => {
            schemas.iter().any(|schema| is_finite(schema, definitions))
        }
        Part::Ref(target) => definitions.get(*target) == Some(&true),
        Part::Values(_) => true,
    }
}

fn is_type_finite(ty: &Type, definitions: &[bool]) -> bool {
    let is_finite = |schema: &Schema| is_finite(schema, definitions);
    match ty {
        Type::Null | Type::Boolean => true,
        Type::Integer(range) => !range.is_empty(true),
        Type::Number(range) => !range.is_empty(false),
        Type::String(text) => text.max.is_none_or(|max| text.min <= max),
        Type::Array(Items { prefix, rest, min, max }) => {
            let needed = usize::try_from(*min).unwrap_or(usize::MAX);
            max.is_none_or(|max| *min <= max)
                && prefix.iter().take(needed).all(is_finite)
                && (needed <= prefix.len() || rest.as_deref().is_none_or(is_finite))
        }
        Type::Object(fields) => {
            let max_count = lowest(fields.max, fields.possible());
            let count_min = fields.min.max(fields.required.len() as u64);
            max_count.is_none_or(|max| count_min <= max)
                && fields.required.iter().all(|name| is_required_finite(fields, name, definitions))
        }
    }
}

/// Whether a required property has a finite value.
fn is_required_finite(fields: &Fields, name: &str, definitions: &[bool]) -> bool {
    let (own, rest) = fields.property(name);
    // A pattern may apply instead of `additionalProperties`.
    let may_match = own.is_none() && !fields.patterns.is_empty();
    may_match || own.or(rest).is_none_or(|schema| is_finite(schema, definitions))
}
