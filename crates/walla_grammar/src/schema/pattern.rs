//! Regular expressions of JSON schemas.
//!
//! `pattern` has the syntax of ECMA-262 with Unicode semantics; the library's syntax is that of
//! Rust. Where both differ, the expression is translated or refused.

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use regex_syntax::ast::{
    AssertionKind, Ast, ClassPerlKind, ClassSetBinaryOp, ClassSetItem, GroupKind, LiteralKind,
    Span, SpecialLiteralKind, Visitor, visit,
};

use crate::regex;

/// ECMA-262: `.` without line terminators.
const DOT: &str = "[^\\n\\r\\x{2028}\\x{2029}]";

/// ECMA-262: `\s`, the items of a class.
const SPACE: &str = "\\t-\\r \\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}\\x{FEFF}";

/// The expression in the library's syntax, or the reason of the refusal.
pub(super) fn lower(regex: &str) -> Result<String, String> {
    let ast =
        regex::parse(regex).map_err(|(offset, message)| format!("byte {offset}: {message}"))?;
    let at = |(offset, message): (usize, &str)| format!("byte {offset}: {message}");
    let mut changes = visit(&ast, Translator { changes: Vec::new() }).map_err(at)?;
    changes.sort_by_key(|(span, _)| span.start.offset);
    let (mut lowered, mut from) = (String::new(), 0);
    for (span, text) in changes {
        lowered.push_str(regex.get(from..span.start.offset).unwrap_or_default());
        lowered.push_str(text.as_str());
        from = span.end.offset;
    }
    lowered.push_str(regex.get(from..).unwrap_or_default());
    // The library refuses anchors in the middle.
    let built = RegexBuilder::new().mk_regex_for_serach(&regex_to_lark(&lowered, "dw"));
    built.map_err(|error| regex::refused(&error.to_string()))?;
    Ok(lowered)
}

struct Translator {
    /// Replacements of parts of the expression.
    changes: Vec<(Span, String)>,
}

impl Visitor for Translator {
    type Output = Vec<(Span, String)>;
    type Err = (usize, &'static str);

    fn finish(self) -> Result<Self::Output, Self::Err> {
        Ok(self.changes)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        let at = ast.span().start.offset;
        match ast {
            Ast::Dot(span) => self.changes.push((**span, DOT.to_owned())),
            Ast::ClassPerl(class) if class.kind == ClassPerlKind::Space => {
                let not = if class.negated { "^" } else { "" };
                self.changes.push((class.span, format!("[{not}{SPACE}]")));
            }
            Ast::Assertion(assertion) => match assertion.kind {
                AssertionKind::StartText => return Err((at, "\\A is not part of ECMA-262")),
                AssertionKind::EndText => return Err((at, "\\z is not part of ECMA-262")),
                _ => {}
            },
            Ast::Flags(_) => return Err((at, "flags are not part of ECMA-262")),
            Ast::Group(group) => match &group.kind {
                GroupKind::NonCapturing(flags) if !flags.items.is_empty() => {
                    return Err((at, "flags are not part of ECMA-262"));
                }
                GroupKind::CaptureName { starts_with_p: true, .. } => {
                    return Err((at, "(?P<name>) is not part of ECMA-262"));
                }
                _ => {}
            },
            Ast::Literal(literal) => check_literal(&literal.kind, at)?,
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Self::Err> {
        let at = item.span().start.offset;
        match item {
            ClassSetItem::Bracketed(_) => Err((at, "nested classes are not part of ECMA-262")),
            ClassSetItem::Ascii(_) => Err((at, "[:name:] is not part of ECMA-262")),
            ClassSetItem::Literal(literal) => check_literal(&literal.kind, at),
            ClassSetItem::Range(range) => {
                check_literal(&range.start.kind, at)?;
                check_literal(&range.end.kind, at)
            }
            ClassSetItem::Perl(class) if class.kind == ClassPerlKind::Space => {
                if class.negated {
                    return Err((at, "\\S in a class is not supported"));
                }
                self.changes.push((class.span, SPACE.to_owned()));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn visit_class_set_binary_op_pre(&mut self, op: &ClassSetBinaryOp) -> Result<(), Self::Err> {
        Err((op.span.start.offset, "operators in classes are not part of ECMA-262"))
    }
}

fn check_literal(kind: &LiteralKind, at: usize) -> Result<(), (usize, &'static str)> {
    match kind {
        LiteralKind::Special(SpecialLiteralKind::Bell) => Err((at, "\\a is not part of ECMA-262")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_translated() {
        assert_eq!(lower("^a.b$").unwrap(), format!("^a{DOT}b$"));
        assert_eq!(lower("\\s+x\\S").unwrap(), format!("[{SPACE}]+x[^{SPACE}]"));
        assert_eq!(lower("[\\s,]é.").unwrap(), format!("[{SPACE},]é{DOT}"));
        assert_eq!(lower("^[a-z0-9_-]{3,16}$").unwrap(), "^[a-z0-9_-]{3,16}$");
    }

    #[test]
    fn other_syntax_is_refused_with_its_position() {
        let refused = [
            ("a\\b", 1),
            ("(?i)a", 0),
            ("a(?=b)", 1),
            ("[a&&b]", 1),
            ("[[:alpha:]]", 1),
            ("(?P<n>a)", 0),
            ("a(?i:b)", 1),
            ("(a)\\1", 3),
            ("[a[b]]", 2),
            ("a{2,1}", 1),
            ("\\A", 0),
            ("[\\S]", 1),
            ("(", 0),
            ("\\a", 0),
        ];
        for (regex, offset) in refused {
            let reason = lower(regex).unwrap_err();
            assert!(reason.starts_with(&format!("byte {offset}:")), "{regex}: {reason}");
        }
        assert!(lower(&format!("{}a{}", "(".repeat(100), ")".repeat(100))).is_err());
    }
}
