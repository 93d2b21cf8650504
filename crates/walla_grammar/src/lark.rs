//! Lark grammars: embedded schemas are lowered, names of special tokens are replaced by their ids,
//! and directives that change limits are refused.
//!
//! Syntax: <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>.

use serde_json::Value;
use walla_types::TokenId;

use crate::schema::{self, JsonWhitespace};
use crate::terminals::Tokens;
use crate::work::{Budget, limit};
use crate::{CompilerOptions, ConstraintError, Vocabulary, regex};

/// Maximum nesting depth of parentheses, brackets and braces; the library parses them by recursion.
const MAX_NESTING: usize = 24;

/// Maximum number of rules, terminals and opening parentheses, brackets and braces. The library
/// compiles a chain of them by recursion, with 3 to 4 kB of stack for each.
const MAX_LEVELS: u64 = 4_000;

/// A text as a string of the grammar.
pub(crate) fn quote(text: &str) -> String {
    // JSON leaves this control character as it is; the grammar does not allow it.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The grammar with lowered schemas.
pub(crate) fn lower(
    source: &str,
    vocabulary: &Vocabulary,
    options: &CompilerOptions,
    budget: &mut Budget,
) -> Result<String, ConstraintError> {
    let source = schema::without_mark(source);
    let mut lowered = String::with_capacity(source.len());
    let mut tokens = Tokens::of(source);
    let (mut rest, mut depth, mut levels) = (source, 0_usize, 0_u64);
    while let Some(next) = rest.chars().next() {
        let offset = source.len() - rest.len();
        if let Some(name) = rest.strip_prefix("%special") {
            let mut texts = serde_json::Deserializer::from_str(name).into_iter::<String>();
            let Some(Ok(text)) = texts.next() else {
                return Err(at(source, offset, "a text in quotes must follow %special"));
            };
            let token = special(&text, vocabulary).map_err(|e| at(source, offset, &e))?;
            lowered.push_str(&format!("<[{}]>", token.0));
            tokens.push_opaque(offset);
            rest = name.get(texts.byte_offset()..).unwrap_or_default();
            continue;
        }
        if let Some(schema) = rest.strip_prefix("%json") {
            let (whitespace, schema) =
                layout(schema, options.whitespace).map_err(|e| at(source, offset, e))?;
            let mut values = serde_json::Deserializer::from_str(schema).into_iter::<Value>();
            let value = match values.next() {
                Some(Ok(value)) => value,
                Some(Err(error)) => return Err(schema::json_error(&error)),
                None => return Err(at(source, offset, "a schema must follow %json")),
            };
            let end = values.byte_offset();
            lowered.push_str("%json ");
            let value = schema::lower_value(&value, options, whitespace, budget)?;
            lowered.push_str(&value.to_string());
            tokens.push_opaque(offset);
            rest = schema.get(end..).unwrap_or_default();
            continue;
        }
        // It changes limits, and texts: the grammar could allow invalid UTF-8.
        if rest.starts_with("%llguidance") {
            return Err(at(source, offset, "%llguidance is not supported"));
        }
        match next {
            '(' | '[' | '{' => (depth, levels) = (depth + 1, levels + 1),
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ':' => levels += 1,
            _ => {}
        }
        limit("the number of rules and parentheses", levels, MAX_LEVELS)?;
        if depth > MAX_NESTING {
            let message = format!("more than {MAX_NESTING} nested parentheses");
            return Err(at(source, offset, &message));
        }
        let length = token_bytes(rest);
        let token = rest.get(..length).unwrap_or(rest);
        // An id would pass by the checks of `special`.
        if token.starts_with("<[") {
            return Err(at(source, offset, "tokens are named by their text, not by id"));
        }
        let flags = rest.get(length..).unwrap_or_default().chars();
        let is_verbose = flags.take_while(char::is_ascii_alphabetic).any(|flag| flag == 'x');
        if let Some(text) = expression(token).filter(|_| !is_verbose) {
            regex::parse(text).map_err(|(_, message)| {
                at(source, offset, &format!("regular expression {token}: {message}"))
            })?;
        }
        if is_special(token) {
            special(token, vocabulary).map_err(|e| at(source, offset, &e))?;
        }
        lowered.push_str(token);
        tokens.push(offset, token);
        rest = rest.get(length..).unwrap_or_default();
    }
    tokens.check(budget)?;
    Ok(lowered)
}

/// The special token of a text.
fn special(text: &str, vocabulary: &Vocabulary) -> Result<TokenId, String> {
    match vocabulary.special(text) {
        None => Err(format!("the vocabulary has no special token {text}")),
        // The library accepts it at the end of a grammar only.
        Some(token) if vocabulary.is_end(token) => Err(format!("a reply ends at the token {text}")),
        Some(token) => Ok(token),
    }
}

/// The white space of an embedded schema, by the suffix of its directive, and the text behind it.
fn layout(text: &str, default: JsonWhitespace) -> Result<(JsonWhitespace, &str), &'static str> {
    let Some(suffix) = text.strip_prefix(':') else { return Ok((default, text)) };
    let layouts = [
        ("compact", JsonWhitespace::Compact),
        ("spaced", JsonWhitespace::Spaced),
        ("flexible", JsonWhitespace::Flexible),
    ];
    let found = layouts.iter().find_map(|(name, whitespace)| {
        let rest = suffix.strip_prefix(name)?;
        let is_end = !rest.starts_with(|c: char| c.is_alphanumeric());
        is_end.then_some((*whitespace, rest))
    });
    found.ok_or("%json: must be followed by compact, spaced or flexible")
}

/// Length of the token at the start of a text: a string, a regular expression, a comment, a special
/// token or one character.
pub(crate) fn token_bytes(text: &str) -> usize {
    let one = text.chars().next().map_or(0, char::len_utf8);
    let quoted = |end: char| {
        let mut is_escaped = false;
        for (at, c) in text.char_indices().skip(1) {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                _ if c == end => return at + c.len_utf8(),
                _ => {}
            }
        }
        text.len()
    };
    if text.starts_with("//") || text.starts_with('#') {
        return text.find('\n').unwrap_or(text.len());
    }
    match text.chars().next() {
        Some('"') => quoted('"'),
        Some('/') => quoted('/'),
        Some('<') => {
            let end =
                text.char_indices().skip(1).find(|(_, c)| c.is_whitespace() || "<>".contains(*c));
            match end {
                Some((at, '>')) if at > 1 => at + 1,
                _ => one,
            }
        }
        _ => one,
    }
}

/// The regular expression of a token.
fn expression(token: &str) -> Option<&str> {
    let is_comment = token.starts_with("//");
    token.strip_prefix('/')?.strip_suffix('/').filter(|_| !is_comment)
}

fn is_special(token: &str) -> bool {
    token.starts_with('<') && token.ends_with('>') && token.len() > 2
}

/// An error with line and column.
fn at(source: &str, offset: usize, message: &str) -> ConstraintError {
    let before = source.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    ConstraintError::Lark { message: format!("{line}({column}): {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_whole() {
        for (text, token) in [
            (r#""a\"b" c"#, r#""a\"b""#),
            (r"/a\/[{(]/i b", r"/a\/[{(]/"),
            ("# ( {\nx", "# ( {"),
            ("// %json\nx", "// %json"),
            ("<tool_call> x", "<tool_call>"),
            ("< x>", "<"),
            ("é", "é"),
        ] {
            assert_eq!(&text[..token_bytes(text)], token);
        }
    }

    #[test]
    fn positions_count_from_one() {
        let error = at("a\nbc", 3, "x");
        assert_eq!(error.to_string(), "Lark grammar: 2(2): x");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(quote("a\"\n\u{1}\u{7f}"), "\"a\\\"\\n\\u0001\\u007f\"");
    }
}
