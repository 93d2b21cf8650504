//! Refuses schemas without a finite value, which a model could never finish.

use super::document::{Document, Fields, Items, Part, Schema, Text, Type};
use super::place::At;
use crate::ConstraintError;

/// Refuses a document whose parts are combined and that allows no finite value.
pub(super) fn check_values(document: &Document) -> Result<(), ConstraintError> {
    let definitions = document.definitions.as_slice();
    let finite = grounded(definitions, |schema, finite| {
        Search { definitions, finite, explains: false }.is_finite(schema)
    });
    let search = Search { definitions, finite: &finite, explains: true };
    match search.schema(&document.root, Some(&[])) {
        None => Ok(()),
        Some((at, reason)) => Err(ConstraintError::Unsatisfiable { reason: at.named(&reason) }),
    }
}

/// The place and the reason of a schema without a finite value; `None` if it has one.
type Defect = Option<(At, String)>;

#[derive(Clone, Copy)]
struct Search<'d> {
    definitions: &'d [Schema],
    /// Whether each definition has a finite value.
    finite: &'d [bool],
    /// Otherwise places and reasons are empty.
    explains: bool,
}

/// The definitions around a schema; `None` if references are not followed.
type Stack<'s> = Option<&'s [usize]>;

impl Search<'_> {
    fn is_finite(self, schema: &Schema) -> bool {
        Self { explains: false, ..self }.schema(schema, None).is_none()
    }

    fn defect(self, at: &At, reason: impl FnOnce() -> String) -> Defect {
        Some(if self.explains { (at.clone(), reason()) } else { Default::default() })
    }

    fn schema(self, schema: &Schema, stack: Stack<'_>) -> Defect {
        schema.parts.iter().find_map(|part| self.part(part, &schema.at, stack))
    }

    fn part(self, part: &Part, at: &At, stack: Stack<'_>) -> Defect {
        match part {
            Part::Never(reason) => self.defect(at, || reason.clone().into_owned()),
            Part::Types(types) => match types.as_slice() {
                [ty] => self.ty(ty, at, stack),
                _ => {
                    // Following the references of each type would take exponential time.
                    let all = types.iter().map(|ty| self.ty(ty, at, None));
                    let all = all.collect::<Option<Vec<_>>>()?;
                    let reasons = all.into_iter().map(|(_, reason)| reason);
                    self.defect(at, || reasons.collect::<Vec<_>>().join("; "))
                }
            },
            Part::Any(all) | Part::One(all) => match all.as_slice() {
                [one] => self.schema(one, stack),
                _ if all.iter().any(|schema| self.is_finite(schema)) => None,
                [] => self.defect(at, || "there is no alternative".to_owned()),
                [first, ..] if self.explains => {
                    let (place, reason) = self.schema(first, stack)?;
                    let text = "no alternative allows a value; the first one";
                    self.defect(at, || format!("{text}, at \"{place}\": {reason}"))
                }
                _ => self.defect(at, String::new),
            },
            Part::Ref(target) if self.finite.get(*target) == Some(&true) => None,
            Part::Ref(target) => match (self.definitions.get(*target), stack) {
                _ if !self.explains => self.defect(at, String::new),
                (_, None) => self.defect(at, || "the reference allows no value".to_owned()),
                (Some(definition), Some(stack)) if !stack.contains(target) => {
                    self.schema(definition, Some(&[stack, &[*target]].concat()))
                }
                _ => {
                    self.defect(at, || "the reference leads to values of infinite depth".to_owned())
                }
            },
            Part::Values(_) => None,
        }
    }

    fn ty(self, ty: &Type, at: &At, stack: Stack<'_>) -> Defect {
        match ty {
            Type::Null | Type::Boolean => None,
            Type::Integer(range) if !range.is_empty(true) => None,
            Type::Number(range) if !range.is_empty(false) => None,
            Type::Integer(range) => {
                self.defect(at, || format!("no integer is {}", range.describe()))
            }
            Type::Number(range) => self.defect(at, || format!("no number is {}", range.describe())),
            Type::String(Text { min, max, .. }) => {
                self.more(at, ("minLength", *min), ("maxLength", *max))
            }
            Type::Array(Items { prefix, rest, min, max }) => {
                let needed = usize::try_from(*min).unwrap_or(usize::MAX);
                let rest = rest.as_deref().filter(|_| needed > prefix.len());
                let mut items = prefix.iter().take(needed).chain(rest);
                self.more(at, ("minItems", *min), ("maxItems", *max))
                    .or_else(|| items.find_map(|item| self.schema(item, stack)))
            }
            Type::Object(fields) => self.object(fields, at, stack),
        }
    }

    fn object(self, fields: &Fields, at: &At, stack: Stack<'_>) -> Defect {
        let property = fields.required.iter().find_map(|name| match fields.property(name) {
            (Some(own), _) => self.schema(own, stack),
            // A pattern may apply instead of `additionalProperties`.
            (None, _) if !fields.patterns.is_empty() => None,
            (None, Some(rest)) if rest.is_never() => {
                self.defect(at, || format!("the required property {name:?} is not allowed"))
            }
            (None, rest) => rest.and_then(|rest| self.schema(rest, stack)),
        });
        let required = fields.required.len() as u64;
        let max = ("maxProperties", fields.max);
        let possible = ("the number of possible properties", fields.possible());
        property
            .or_else(|| self.more(at, ("minProperties", fields.min), max))
            .or_else(|| self.more(at, ("the number of required properties", required), max))
            .or_else(|| self.more(at, ("minProperties", fields.min), possible))
    }

    /// A lower limit that is more than an upper one.
    fn more(self, at: &At, (low, min): (&str, u64), (high, max): (&str, Option<u64>)) -> Defect {
        let max = max.filter(|&max| min > max)?;
        self.defect(at, || format!("{low}, {min}, is more than {high}, {max}"))
    }
}

/// The definitions for which a condition holds: the least fixed point, because the condition of a
/// definition may depend on the definitions that it refers to. Most references are to later ones.
fn grounded(definitions: &[Schema], holds: impl Fn(&Schema, &[bool]) -> bool) -> Vec<bool> {
    let mut known = vec![false; definitions.len()];
    loop {
        let before = known.clone();
        for (index, schema) in definitions.iter().enumerate().rev() {
            let is_known = holds(schema, &known);
            if let Some(known) = known.get_mut(index) {
                *known |= is_known;
            }
        }
        if known == before {
            return known;
        }
    }
}

/// Refuses references that lead back to themselves without a property or an item in between.
pub(super) fn check_references(document: &Document) -> Result<(), ConstraintError> {
    if !grounded(&document.definitions, ends).contains(&false) {
        return Ok(());
    }
    Err(At::root().unsupported("$ref", "a reference leads back to itself"))
}

/// Whether the references end that apply to the same value as the schema.
fn ends(schema: &Schema, definitions: &[bool]) -> bool {
    schema.parts.iter().all(|part| match part {
        Part::Ref(target) => definitions.get(*target) == Some(&true),
        Part::Any(all) | Part::One(all) => all.iter().all(|schema| ends(schema, definitions)),
        Part::Never(_) | Part::Types(_) | Part::Values(_) => true,
    })
}
