//! Refuses schemas without a finite value, which a model could never finish.

use super::schema::{Document, Items, Part, Schema, Type};
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
    let reason = if document.definitions.is_empty() {
        "the schema allows no value"
    } else {
        "the schema allows no value, or only values of infinite depth"
    };
    Err(ConstraintError::Unsatisfiable { reason: reason.to_owned() })
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
            Part::Never | Part::Types(_) | Part::Values(_) => {}
        }
    }
}

fn is_finite(schema: &Schema, definitions: &[bool]) -> bool {
    let is_finite = |schema: &Schema| is_finite(schema, definitions);
    schema.parts.iter().all(|part| match part {
        Part::Never => false,
        Part::Types(types) => types.iter().any(|ty| is_type_finite(ty, definitions)),
        Part::Any(schemas) | Part::One(schemas) => schemas.iter().any(is_finite),
        Part::Ref(target) => definitions.get(*target) == Some(&true),
        Part::Values(_) => true,
    })
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
        Type::Object(fields) => fields.required.iter().all(|name| {
            let own = fields.properties.iter().find(|(own, _)| own == name);
            let schema = own.map(|(_, schema)| schema).or(fields.rest.as_deref());
            // A pattern may apply instead of `additionalProperties`.
            let may_match = own.is_none() && !fields.patterns.is_empty();
            may_match || schema.is_none_or(is_finite)
        }),
    }
}
