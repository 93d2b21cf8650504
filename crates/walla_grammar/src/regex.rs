//! Checks of regular expressions, with messages that name the part of the source.

use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::ast::{self, Assertion, AssertionKind, Ast, RepetitionKind, RepetitionRange};
use regex_syntax::hir;

use crate::ConstraintError;

/// Maximum nesting depth of groups.
const MAX_NESTING: u32 = 64;

/// Offset in bytes, and the defect.
pub(crate) type Defect = (usize, String);

/// Refuses an invalid expression, with its position.
pub(crate) fn check(text: &str) -> Result<(), ConstraintError> {
    if text.is_empty() {
        let message = "the expression is empty".to_owned();
        return Err(ConstraintError::Regex { offset: 0, message });
    }
    let parsed = parse(text);
    parsed.map(drop).map_err(|(offset, message)| ConstraintError::Regex { offset, message })
}

/// Parses an expression of the supported syntax.
pub(crate) fn parse(text: &str) -> Result<Ast, Defect> {
    let mut parser = ParserBuilder::new().nest_limit(MAX_NESTING).build();
    let parsed = parser.parse(text).map_err(|error| {
        let message = match error.kind() {
            ast::ErrorKind::UnsupportedLookAround => "look-around is not supported".to_owned(),
            ast::ErrorKind::NestLimitExceeded(limit) => format!("more than {limit} nested groups"),
            kind => kind.to_string(),
        };
        (error.span().start.offset, message)
    })?;
    check_assertions(&parsed, text, Sides { is_first: true, is_last: true })?;
    let translated = hir::translate::Translator::new().translate(text, &parsed);
    translated.map_err(|error| {
        let message = match error.kind() {
            hir::ErrorKind::InvalidUtf8 => "bytes that are not UTF-8 are not supported".to_owned(),
            kind => kind.to_string(),
        };
        (error.span().start.offset, message)
    })?;
    Ok(parsed)
}

/// Whether a part of an expression is at the start and at the end of the text.
#[derive(Clone, Copy)]
struct Sides {
    is_first: bool,
    is_last: bool,
}

/// Refuses word boundaries, and anchors that are not at a side of the text. The matcher reads no
/// text around a match.
fn check_assertions(ast: &Ast, text: &str, sides: Sides) -> Result<(), Defect> {
    match ast {
        Ast::Assertion(assertion) => check_assertion(assertion, text, sides),
        Ast::Repetition(repetition) => {
            let is_once = repetition.op.kind == RepetitionKind::Range(RepetitionRange::Exactly(1));
            let inner = Sides { is_first: false, is_last: false };
            check_assertions(&repetition.ast, text, if is_once { sides } else { inner })
        }
        Ast::Group(group) => check_assertions(&group.ast, text, sides),
        Ast::Alternation(alternation) => {
            alternation.asts.iter().try_for_each(|ast| check_assertions(ast, text, sides))
        }
        Ast::Concat(concat) => {
            let (first, last) = middle(&concat.asts);
            concat.asts.iter().enumerate().try_for_each(|(index, ast)| {
                let sides = Sides {
                    is_first: sides.is_first && index <= first,
                    is_last: sides.is_last && index >= last,
                };
                check_assertions(ast, text, sides)
            })
        }
        Ast::Empty(_)
        | Ast::Flags(_)
        | Ast::Literal(_)
        | Ast::Dot(_)
        | Ast::ClassUnicode(_)
        | Ast::ClassPerl(_)
        | Ast::ClassBracketed(_) => Ok(()),
    }
}

/// The first part that is no anchor of the start, and the last one that is no anchor of the end.
fn middle(parts: &[Ast]) -> (usize, usize) {
    let is_anchor = |ast: &Ast, kinds: &[AssertionKind]| match ast {
        Ast::Flags(_) | Ast::Empty(_) => true,
        Ast::Assertion(assertion) => kinds.contains(&assertion.kind),
        _ => false,
    };
    let starts = [AssertionKind::StartLine, AssertionKind::StartText];
    let ends = [AssertionKind::EndLine, AssertionKind::EndText];
    let first = parts.iter().position(|ast| !is_anchor(ast, &starts));
    let last = parts.iter().rposition(|ast| !is_anchor(ast, &ends));
    (first.unwrap_or(parts.len()), last.unwrap_or(0))
}

fn check_assertion(assertion: &Assertion, text: &str, sides: Sides) -> Result<(), Defect> {
    let span = assertion.span.start.offset..assertion.span.end.offset;
    let (offset, written) = (span.start, text.get(span).unwrap_or_default());
    let (is_supported, place) = match assertion.kind {
        AssertionKind::StartLine | AssertionKind::StartText => (sides.is_first, "start"),
        AssertionKind::EndLine | AssertionKind::EndText => (sides.is_last, "end"),
        _ => return Err((offset, format!("word boundaries ({written}) are not supported"))),
    };
    if is_supported {
        return Ok(());
    }
    Err((offset, format!("{written} is only supported at the {place} of the expression")))
}

/// The defect of an expression that the library refuses though [`parse`] does not.
pub(crate) fn refused(error: &str) -> String {
    if error.contains("lookarounds") {
        return "^ and $ are only supported at the start and the end of the text, without the flag m"
            .to_owned();
    }
    error.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;

    use super::*;

    /// The library decides in the same way.
    #[test]
    fn anchors_are_at_the_sides() {
        let allowed = [
            "^a$",
            "(^a|b$)",
            "(?:(?i)^a)",
            "^(a|^)$",
            "a",
            "^^a$$",
            "(?x) ^ a $ ",
            r"\Aa\z",
            "(^a){1}b",
            "((?:^a)b|(c$))",
            "^",
            "$",
            "^$",
            "()^a",
            "(?:)",
        ];
        let refused = [
            ("a^b", 1),
            ("a$b", 1),
            ("x(^a)", 2),
            ("(a$)+", 2),
            (r"a\Ab", 1),
            ("(a|b^)c", 4),
            ("^a|b$c", 4),
            ("(^a)*", 1),
            ("(a$)b", 2),
            ("(a)^", 3),
        ];
        let library = |text: &str| RegexBuilder::new().mk_regex(text).is_ok();
        for text in allowed {
            let found = parse(text).map(drop);
            assert_eq!(found.is_ok(), library(text), "{text}: {found:?}");
        }
        for (text, offset) in refused {
            let (found, message) = parse(text).unwrap_err();
            assert!(message.contains("is only supported at the"), "{text}: {message}");
            assert_eq!(found, offset, "{text}");
            assert!(!library(text), "{text}");
        }
    }
}
