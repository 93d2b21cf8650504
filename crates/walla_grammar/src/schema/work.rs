//! Refuses strings and names of properties whose expressions need too much work of the library.

use super::ConstraintError;
use super::document::{Document, Fields, Part, Text, Type};
use crate::work::{Bound, Budget, limit, of_pattern};

/// Maximum number of pairs of patterns of names: the library compares the two, with up to 10,000
/// steps.
const MAX_PAIRS: u64 = 2_000;

/// Checks a document whose parts are combined.
pub(super) fn check_work(document: &Document, budget: &mut Budget) -> Result<(), ConstraintError> {
    let mut checker = Checker { budget, pairs: 0 };
    for part in document.schemas().into_iter().flat_map(|schema| &schema.parts) {
        let Part::Types(types) = part else { continue };
        for ty in types {
            match ty {
                Type::String(text) => checker.text(text)?,
                Type::Object(fields) => checker.names(fields)?,
                _ => {}
            }
        }
    }
    Ok(())
}

struct Checker<'b> {
    budget: &'b mut Budget,
    pairs: u64,
}

impl Checker<'_> {
    fn text(&mut self, text: &Text) -> Result<(), ConstraintError> {
        let mut all: Vec<Bound> = text.patterns.iter().map(|regex| of_pattern(regex)).collect();
        // The formats of the library are of the size of this one.
        all.extend(text.formats.iter().map(|_| of_pattern("^[0-9a-f]{1,9}(?:[:.-][0-9a-f]*)*$")));
        if all.is_empty() {
            return Ok(());
        }
        // A length has one alternative: it multiplies no combinations of others.
        if all.len() == 1 && (text.min > 0 || text.max.is_some()) {
            all.push(Bound::any());
        }
        let bound = if all.len() == 1 { all.remove(0) } else { Bound::all(all)? };
        self.budget.pay(bound.work)
    }

    fn names(&mut self, fields: &Fields) -> Result<(), ConstraintError> {
        let bounds: Vec<Bound> =
            fields.patterns.iter().map(|(regex, _)| of_pattern(regex)).collect();
        for (index, bound) in bounds.iter().enumerate() {
            self.budget.pay(bound.work)?;
            for other in bounds.iter().skip(index + 1) {
                self.pairs += 1;
                limit("the number of pairs of \"patternProperties\"", self.pairs, MAX_PAIRS)?;
                let both = Bound::all(vec![bound.clone(), other.clone()])?;
                // The work of both is taken once.
                self.budget.pay(both.work.saturating_sub(bound.work.saturating_add(other.work)))?;
            }
        }
        Ok(())
    }
}
