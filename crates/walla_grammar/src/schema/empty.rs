//! Finds strings that no text matches. The library refuses them too, without their place.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

use super::document::{Document, Part, Text, Type};

/// Maximum work to test one string, as in the library.
const FUEL: u64 = 10_000;

/// The first string without a text.
pub(super) fn find(document: &Document) -> Option<String> {
    let has_no_text = |ty: &Type| matches!(ty, Type::String(text) if is_empty(text));
    let is_defect = |part: &Part| matches!(part, Part::Types(all) if all.iter().any(has_no_text));
    let found = document.schemas().into_iter().find(|schema| schema.parts.iter().any(is_defect));
    found.map(|schema| schema.at.named("no string matches its pattern, format and length"))
}

/// Whether it is known that no text matches. Formats of the library are not considered.
fn is_empty(text: &Text) -> bool {
    let patterns = text.patterns.iter();
    let mut all: Vec<RegexAst> =
        patterns.map(|pattern| RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))).collect();
    if all.is_empty() {
        return false;
    }
    let max = text.max.map(|max| max.to_string()).unwrap_or_default();
    all.push(RegexAst::Regex(format!("(?s:.{{{},{max}}})", text.min)));
    let mut builder = RegexBuilder::new();
    let built = builder.mk(&RegexAst::And(all));
    let regex = built.and_then(|expression| builder.to_regex_limited(expression, FUEL));
    regex.is_ok_and(|mut regex| regex.always_empty())
}
