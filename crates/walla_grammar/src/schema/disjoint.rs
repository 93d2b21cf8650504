//! Refuses `oneOf` whose alternatives may overlap: a grammar cannot exclude values that two of them
//! allow. Of alternatives that do not overlap a value matches one if it matches any.

use super::document::{Document, Fields, Items, Part, Schema, Type};
use super::merge::ranges;
use super::place::At;
use super::values::{admits, is_equal};
use crate::ConstraintError;

/// Maximum number of comparisons for one document, of about 50 ns each.
const MAX_COMPARISONS: usize = 1_000_000;

/// Maximum number of references that are followed to compare two schemas.
const MAX_REFERENCES: usize = 8;

/// Whether a value may match two of the schemas, which have no references.
pub(super) fn may_overlap(all: &[Schema]) -> bool {
    Comparer { definitions: &[], left: MAX_COMPARISONS }.overlap(all).is_some()
}

/// Refuses a document with alternatives of `oneOf` that may overlap.
pub(super) fn check_alternatives(document: &Document) -> Result<(), ConstraintError> {
    let mut comparer = Comparer { definitions: &document.definitions, left: MAX_COMPARISONS };
    // The innermost ones first: they are the most precise.
    document.schemas().into_iter().rev().try_for_each(|schema| comparer.check(schema))
}

struct Comparer<'d> {
    definitions: &'d [Schema],
    /// Comparisons that are left.
    left: usize,
}

impl Comparer<'_> {
    fn check(&mut self, schema: &Schema) -> Result<(), ConstraintError> {
        schema.parts.iter().try_for_each(|part| match part {
            Part::One(all) => self.check_one(all, &schema.at),
            _ => Ok(()),
        })
    }

    fn check_one(&mut self, all: &[Schema], at: &At) -> Result<(), ConstraintError> {
        let Some((index, other_index)) = self.overlap(all) else { return Ok(()) };
        let reason = if self.left == 0 {
            "its alternatives are too large to compare; use \"anyOf\"".to_owned()
        } else {
            format!(
                "a value may match both alternative {index} and alternative {other_index}; \
                 give them different types or constants, or use \"anyOf\""
            )
        };
        Err(at.unsupported("oneOf", reason))
    }

    /// The first two schemas that a value may match both.
    fn overlap(&mut self, all: &[Schema]) -> Option<(usize, usize)> {
        let indexed = || all.iter().enumerate();
        let mut pairs = indexed().flat_map(|one| indexed().skip(one.0 + 1).map(move |b| (one, b)));
        let is_known = |((_, one), (_, other)): &((usize, &Schema), (usize, &Schema))| {
            !self.are_disjoint(one, other, MAX_REFERENCES)
        };
        pairs.find(is_known).map(|((one, _), (other, _))| (one, other))
    }

    /// Whether it is known that no value matches both schemas.
    fn are_disjoint(&mut self, one: &Schema, other: &Schema, references: usize) -> bool {
        one.parts.iter().any(|part| {
            other.parts.iter().any(|other| self.are_parts_disjoint(part, other, references))
        })
    }

    fn are_parts_disjoint(&mut self, one: &Part, other: &Part, references: usize) -> bool {
        // An unknown result counts as an overlap: it is refused, not accepted with wrong values.
        if !self.pay(1) {
            return false;
        }
        match (one, other) {
            (Part::Never(_), _) | (_, Part::Never(_)) => true,
            (Part::Ref(target), part) | (part, Part::Ref(target)) => {
                let definitions = self.definitions;
                let definition = definitions.get(*target).filter(|_| references > 0);
                definition.is_some_and(|definition| {
                    definition
                        .parts
                        .iter()
                        .any(|own| self.are_parts_disjoint(own, part, references - 1))
                })
            }
            (Part::Any(all) | Part::One(all), part) | (part, Part::Any(all) | Part::One(all)) => {
                all.iter().all(|schema| {
                    schema.parts.iter().any(|own| self.are_parts_disjoint(own, part, references))
                })
            }
            (Part::Values(values), Part::Values(others)) => {
                self.pay(values.len() * others.len())
                    && !values.iter().any(|value| others.iter().any(|other| is_equal(value, other)))
            }
            (Part::Values(values), Part::Types(types))
            | (Part::Types(types), Part::Values(values)) => {
                self.pay(values.len() * types.len())
                    && values.iter().all(|value| admits(types, value) == Some(false))
            }
            (Part::Types(types), Part::Types(others)) => types.iter().all(|ty| {
                others.iter().all(|other| self.are_types_disjoint(ty, other, references))
            }),
        }
    }

    fn are_types_disjoint(&mut self, one: &Type, other: &Type, references: usize) -> bool {
        match (one, other) {
            (Type::Null, Type::Null) | (Type::Boolean, Type::Boolean) => false,
            (Type::Number(range), Type::Number(other)) => {
                ranges(range, other, &At::root()).is_ok_and(|both| both.is_empty(false))
            }
            (
                Type::Integer(range) | Type::Number(range),
                Type::Integer(other) | Type::Number(other),
            ) => ranges(range, other, &At::root()).is_ok_and(|both| both.is_empty(true)),
            (Type::String(text), Type::String(other)) => {
                // Lengths only: whether two patterns have a common text takes too long to find out.
                let is_longer = |min: u64, max: Option<u64>| max.is_some_and(|max| min > max);
                is_longer(text.min, other.max) || is_longer(other.min, text.max)
            }
            (Type::Array(items), Type::Array(other)) => {
                self.are_arrays_disjoint(items, other, references)
            }
            (Type::Object(fields), Type::Object(other)) => {
                self.are_objects_disjoint(fields, other, references)
            }
            _ => true,
        }
    }

    fn are_arrays_disjoint(&mut self, one: &Items, other: &Items, references: usize) -> bool {
        let needed = one.min.max(other.min);
        if [one.max, other.max].into_iter().flatten().any(|max| needed > max) {
            return true;
        }
        // Further items have the schemas of the first one behind the prefixes.
        let count = one.prefix.len().max(other.prefix.len()) + 1;
        (0..count).take(usize::try_from(needed).unwrap_or(usize::MAX)).any(|index| {
            let schemas = (one.item(index), other.item(index));
            let (Some(item), Some(other)) = schemas else { return false };
            self.are_disjoint(item, other, references)
        })
    }

    /// A value of both has the required properties of both.
    fn are_objects_disjoint(&mut self, one: &Fields, other: &Fields, references: usize) -> bool {
        one.required.iter().chain(&other.required).any(|name| {
            let [own, others] = [one, other].map(|fields| match fields.property(name) {
                (Some(own), _) => Some(own),
                // A pattern may apply instead.
                (None, rest) => rest.filter(|_| fields.patterns.is_empty()),
            });
            match (own, others) {
                (Some(schema), Some(other)) => self.are_disjoint(schema, other, references),
                (Some(one), None) | (None, Some(one)) => one.is_never(),
                (None, None) => false,
            }
        })
    }

    fn pay(&mut self, comparisons: usize) -> bool {
        self.left = self.left.saturating_sub(comparisons);
        self.left > 0
    }
}
