//! Protects the process from bad templates.
//!
//! Model files, and so their templates, come from untrusted sources. The engine bounds steps and
//! the nesting of blocks. It does not bound the length of a chain of operators (its tree is as deep
//! as the chain is long, and overflows the stack) or the size of values (a string that is joined to
//! itself in a loop exhausts any memory). Both would end the process. Therefore:
//!
//! - Before the engine parses a source, its tokens are [checked](check).
//! - [`compile`] inserts a [check of the value](super::values::checked) after every instruction
//!   that creates a value. It charges the value's size to a budget, so a value exceeds the charged
//!   size by at most one operation. It also bounds the nesting depth of lists.
//! - Filters that amplify their input in one operation are replaced or removed (`filters`).
//! - Instructions that read a whole value are charged too (`reading`).

use minijinja::Error;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;

use super::TemplateError;

/// Maximum number of tokens in a tag; bounds the depth of an expression's tree. Real templates have
/// up to about 40.
const MAX_TAG_TOKENS: usize = 256;

/// Maximum number of `elif`s in a template: each one nests the rest of its chain. Real templates
/// have about 20.
const MAX_ELIFS: usize = 256;

/// Maximum repetition of a literal: the engine folds constants when it compiles, before anything is
/// charged.
const MAX_REPETITIONS: u64 = 64;

/// Maximum number of lines of a template, and of characters of a line: the engine stores both in 16
/// bits, and computes the end column of an error without a check. Real templates have some hundred.
const MAX_LINES: usize = 65_000;

/// Statements of multi-file templates; only one file exists here.
const REFUSED_STATEMENTS: [&str; 6] =
    ["block", "extends", "include", "import", "from", "autoescape"];

/// Keywords that are followed by an expression.
const BEFORE_EXPRESSIONS: [&str; 9] =
    ["if", "elif", "else", "in", "not", "and", "or", "call", "do"];

/// Name of the filter that checks a value. A template cannot write this name.
pub(super) const CHECK: &str = "\u{1}checked";

/// Name of the filter that replaces the operator `~`: the engine's version prints lists with
/// escaped items.
pub(super) const CONCATENATE: &str = "\u{1}concatenate";

/// Name of the filter that replaces the operator `*`: the engine's version repeats before it is
/// checked.
pub(super) const MULTIPLY: &str = "\u{1}multiply";

/// Name of the filter that replaces slices: the engine's version panics on an empty list, for
/// example.
pub(super) const SLICE: &str = "\u{1}slice";

/// Name of the filter before each comparison: it charges for reading both operands.
pub(super) const OPERANDS: &str = "\u{1}operands";

/// Name of the filter before each loop: it turns a text into its characters and charges for them.
pub(super) const EACH: &str = "\u{1}each";

/// Name of the filter that replaces `value[key]`: the engine's version scans texts, and splits
/// untrusted characters.
pub(super) const ITEM: &str = "\u{1}item";

/// The Jinja settings of transformers.
pub(super) fn syntax() -> Result<SyntaxConfig, TemplateError> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(|error| TemplateError::Syntax(error.to_string()))
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark text for training, by a
/// condition that is always true. White space control is kept.
pub(super) fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        rest = tag;
        let inner = tag.trim_start_matches(['-', '+']).trim_start();
        for (name, instead) in [("generation", "if true"), ("endgeneration", "endif")] {
            let behind = inner.strip_prefix(name);
            let is_whole =
                |b: &&str| b.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
            if let Some(behind) = behind.filter(is_whole) {
                out.push_str(tag.strip_suffix(inner).unwrap_or_default());
                out.push_str(instead);
                rest = behind;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Refuses a source that could crash the engine.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    let is_long = |line: &str| line.len() > MAX_LINES && line.chars().count() > MAX_LINES;
    if source.split('\n').count() > MAX_LINES || source.split('\n').any(is_long) {
        return Err(TemplateError::Syntax(format!(
            "more than {MAX_LINES} lines, or a line of more than {MAX_LINES} characters"
        )));
    }
    // The engine's own tokens: a second reading of Jinja could differ from the first.
    let tokens = tokenize(source, false, syntax()?).map(|token| token.map(|(token, _)| token));
    let tokens: Vec<_> = tokens.collect::<Result<_, _>>().map_err(|error| invalid(&error))?;
    let refuse = |what: &str| Err(TemplateError::Syntax(what.to_owned()));
    let (mut in_tag, mut elifs) = (0, 0);
    for (at, token) in tokens.iter().enumerate() {
        in_tag += 1;
        match token {
            Token::VariableStart | Token::BlockStart | Token::TemplateData(_) => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Ident("cycle") if is_call_without_arguments(&tokens, at) => {
                return refuse("cycle() without values");
            }
            // A list is expanded to arguments before it is charged, and an empty one makes cycle()
            // panic.
            Token::Mul | Token::Pow
                if matches!(before(&tokens, at), Some(Token::ParenOpen | Token::Comma)) =>
            {
                return refuse("arguments from a list (*) or a map (**)");
            }
            Token::Ident(name)
                if is_statement(&tokens, at) && REFUSED_STATEMENTS.contains(name) =>
            {
                return Err(TemplateError::Syntax(format!("{{% {name} %}} is not supported")));
            }
            _ => {}
        }
        if in_tag > MAX_TAG_TOKENS {
            return refuse("a tag of more than 256 tokens");
        }
    }
    if elifs > MAX_ELIFS {
        return refuse("more than 256 elif");
    }
    for tag in tokens.split(|token| matches!(token, Token::VariableEnd | Token::BlockEnd)) {
        check_products(tag)?;
    }
    check_namespaces(&tokens)
}

/// A tag that could multiply a literal may do so only once and by a small integer. Multiplied
/// tuples are refused, because their items are copied.
fn check_products(tag: &[Token<'_>]) -> Result<(), TemplateError> {
    let count = |is: fn(&Token<'_>) -> bool| tag.iter().filter(|token| is(token)).count();
    let products = count(|token| matches!(token, Token::Mul | Token::Pow));
    let literals =
        count(|token| matches!(token, Token::Str(_) | Token::String(_) | Token::BracketOpen));
    let numbers =
        count(|token| matches!(token, Token::Int(_) | Token::Int128(_) | Token::Float(_)));
    let is_large = |token: &Token<'_>| match token {
        Token::Int(n) => *n > MAX_REPETITIONS,
        // `true / 1e-9` is large too.
        Token::Int128(_) | Token::Float(_) => true,
        _ => false,
    };
    let is_long = literals > 0 && (products > 1 || numbers > 1 || tag.iter().any(is_large));
    if products > 0 && (is_long || has_tuple(tag)) {
        return Err(TemplateError::Syntax("a literal multiplied by more than 64".into()));
    }
    Ok(())
}

/// Whether a tag has a comma within parentheses that are not an argument list.
fn has_tuple(tag: &[Token<'_>]) -> bool {
    let mut open = Vec::new();
    tag.iter().enumerate().any(|(at, token)| {
        match token {
            Token::ParenOpen => open.push(!is_call(before(tag, at))),
            Token::BracketOpen | Token::BraceOpen => open.push(false),
            Token::ParenClose | Token::BracketClose | Token::BraceClose => _ = open.pop(),
            Token::Comma => return open.last() == Some(&true),
            _ => {}
        }
        false
    })
}

/// Whether a parenthesis after this token starts an argument list.
fn is_call(before: Option<&Token<'_>>) -> bool {
    match before {
        Some(Token::Ident(word)) => !BEFORE_EXPRESSIONS.contains(word),
        Some(Token::ParenClose | Token::BracketClose) => true,
        _ => false,
    }
}

fn invalid(error: &Error) -> TemplateError {
    TemplateError::Syntax(error.to_string())
}

fn is_call_without_arguments(tokens: &[Token<'_>], at: usize) -> bool {
    matches!(tokens.get(at + 1..at + 3), Some([Token::ParenOpen, Token::ParenClose]))
}

fn before<'t, 's>(tokens: &'t [Token<'s>], at: usize) -> Option<&'t Token<'s>> {
    tokens.get(at.checked_sub(1)?)
}

/// Whether the token at `at` is the keyword of a block.
fn is_statement(tokens: &[Token<'_>], at: usize) -> bool {
    matches!(before(tokens, at), Some(Token::BlockStart))
}

/// A namespace may be used only through its attributes. A namespace that contains itself could be
/// neither printed nor freed.
fn check_namespaces(tokens: &[Token<'_>]) -> Result<(), TemplateError> {
    let is_made = |at: usize| {
        let before = at.checked_sub(4).and_then(|start| tokens.get(start..at));
        match (before, tokens.get(at + 1)) {
            (
                Some([Token::BlockStart, Token::Ident("set"), Token::Ident(name), Token::Assign]),
                Some(Token::ParenOpen),
            ) => Some(*name),
            _ => None,
        }
    };
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if matches!(token, Token::Ident("namespace")) {
            let Some(name) = is_made(at) else {
                return Err(TemplateError::Syntax(
                    "namespace() outside of {% set name = namespace() %}".into(),
                ));
            };
            names.push((at - 2, name));
        }
    }
    for (at, token) in tokens.iter().enumerate() {
        let Token::Ident(name) = token else { continue };
        let is_namespace = names.iter().any(|(_, n)| n == name);
        let is_set = names.iter().any(|(place, _)| *place == at);
        let is_attribute = matches!(before(tokens, at), Some(Token::Dot));
        let has_attribute = matches!(tokens.get(at + 1), Some(Token::Dot));
        if is_namespace && !is_set && !is_attribute && !has_attribute {
            return Err(TemplateError::Syntax(format!(
                "the namespace {name} without an attribute"
            )));
        }
    }
    Ok(())
}

/// Compiles a checked source and inserts the checks of values.
pub(super) fn compile<'s>(
    name: &'s str,
    source: &'s str,
) -> Result<Instructions<'s>, TemplateError> {
    let tree = parse(source, name, syntax()?).map_err(|error| invalid(&error))?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (plain, _) = generator.finish(); // without {% block %} there are no other blocks
    Ok(checked(&plain, name, source))
}

/// The same instructions, each one [replaced](replacement).
fn checked<'s>(plain: &Instructions<'s>, name: &'s str, source: &'s str) -> Instructions<'s> {
    let all = || (0..).map_while(|at| plain.get(at).map(|instruction| (at, instruction)));
    // New position of each instruction; the target of a jump becomes the first replacement of the
    // old target.
    let mut places = Vec::new();
    let mut next = 0;
    for (_, instruction) in all() {
        places.push(next);
        next += replacement(instruction).len() as u32;
    }
    // All places are known before the first jump is moved, because jumps also lead forward.
    let place = |target: u32| places.get(target as usize).copied().unwrap_or(next);
    let mut checked = Instructions::new(name, source);
    for (at, instruction) in all() {
        let line = plain.get_line(at).unwrap_or(0).min(usize::from(u16::MAX)) as u16;
        for mut instruction in replacement(instruction) {
            match &mut instruction {
                Instruction::Jump(target)
                | Instruction::JumpIfFalse(target)
                | Instruction::JumpIfFalseOrPop(target)
                | Instruction::JumpIfTrueOrPop(target)
                | Instruction::Iterate(target)
                | Instruction::BuildMacro(_, target, _) => *target = place(*target),
                _ => {}
            }
            _ = checked.add_with_line(instruction, line);
        }
    }
    checked
}

/// The replacement of an instruction. Raw text is printed like any other value, some instructions
/// become filters of this crate, and instructions that read or create values get filters that
/// charge for them.
fn replacement<'s>(instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
    // `u8::MAX`: not in the engine's cache of filters, whose places its own compiler numbers.
    let filter = |name, args| Instruction::ApplyFilter(name, Some(args), u8::MAX);
    let mut all = match instruction {
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit]
        }
        Instruction::StringConcat => vec![filter(CONCATENATE, 2)],
        Instruction::Mul => vec![filter(MULTIPLY, 2)],
        Instruction::Slice => vec![filter(SLICE, 4)],
        Instruction::GetItem => vec![filter(ITEM, 2)],
        Instruction::In
        | Instruction::Eq
        | Instruction::Ne
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::CompareAndPreserve(_) => {
            vec![filter(OPERANDS, 2), Instruction::UnpackList(2), instruction.clone()]
        }
        Instruction::PushLoop(_)
        | Instruction::FastRecurse
        | Instruction::CallFunction("loop", Some(1)) => vec![filter(EACH, 1), instruction.clone()],
        // `loop.changed(a, b)` compares its arguments with the previous ones. One charged list has
        // the same effect.
        Instruction::CallMethod("changed", Some(args @ 1..)) => vec![
            Instruction::BuildList(Some(usize::from(args - 1))),
            filter(CHECK, 1),
            Instruction::CallMethod("changed", Some(2)),
        ],
        other => vec![other.clone()],
    };
    if makes_value(instruction) {
        all.push(filter(CHECK, 1));
    }
    all
}

/// Whether an instruction leaves a value on the stack that may be larger than its operands.
fn makes_value(instruction: &Instruction<'_>) -> bool {
    matches!(
        instruction,
        Instruction::Add
            | Instruction::Mul
            | Instruction::StringConcat
            | Instruction::Slice
            | Instruction::BuildList(_)
            | Instruction::BuildTuple(_)
            | Instruction::BuildMap(_)
            | Instruction::EndCapture
            | Instruction::ApplyFilter(..)
            | Instruction::CallFunction(..)
            | Instruction::CallMethod(..)
            | Instruction::CallObject(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(source: &str) -> String {
        check(source).unwrap_err().to_string()
    }

    #[test]
    fn expression_chains_deeper_than_the_stack_are_refused() {
        for (before, link, behind) in [
            ("{{ 1", "+1", " }}"),
            ("{{ 1", "~1", " }}"),
            ("{{ a", ".b", " }}"),
            ("{{ a", "[0]", " }}"),
            ("{{ a", "|abs", " }}"),
            ("{{ a", "(1)", " }}"),
            ("{{ 1", " and 1", " }}"),
            ("{{ ", "not ", "1 }}"),
            ("{{ ", "-", "1 }}"),
            ("{{ ", "1 if 0 else ", "1 }}"),
            ("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        ] {
            assert!(check(&format!("{before}{}{behind}", link.repeat(20))).is_ok(), "{link}");
            refusal(&format!("{before}{}{behind}", link.repeat(1000)));
        }
    }

    #[test]
    fn namespaces_cannot_be_copied_or_nested() {
        assert!(
            check("{% set ns = namespace(x=1) %}{% set ns.x = ns.x + a.ns %}{{ ns.x }}").is_ok()
        );
        for source in [
            "{% set ns = namespace() %}{% set ns.x = ns %}",
            "{% set ns = namespace() %}{% set other = ns %}",
            "{% set ns = namespace() %}{{ [ns] }}",
            "{{ namespace() }}",
            "{% set f = namespace %}",
        ] {
            assert!(refusal(source).contains("namespace"), "{source}");
        }
    }

    #[test]
    fn literals_are_not_multiplied_at_length() {
        assert!(check("{{ '-' * 40 }}{{ index * 1000 * 1000 }}{{ '-' * n }}").is_ok());
        assert!(check("{{ range(0, n * 100) }}{{ f(a, b)(c, d) * 100 }}").is_ok());
        for source in [
            "{{ 'a' * 65 }}",
            "{{ 'a' * 60 * 60 }}",
            "{{ 'a' * (60 + 60) }}",
            "{{ [1] * 2 ** 9 }}",
            "{{ 'a' * 1e8 }}",
            "{{ 1e8 * 'a' }}",
            "{{ 'a' * (true / 1e-8) }}",
            "{{ [1] * 1e8 }}",
            "{{ (1,) * 99999999 }}",
            "{{ (1, [2, 3]) * 2 }}",
            "{{ not (1,) * 99999999 }}",
            "{{ 1 if (1,) * 99999999 }}",
            "{% for x in (1,) * 99999999 %}{% endfor %}",
            "{% macro m(x=(1,) * 99999999) %}{% endmacro %}",
        ] {
            assert!(refusal(source).contains("multiplied"), "{source}");
        }
    }

    #[test]
    fn argument_unpacking_is_refused() {
        assert!(check("{{ f(a * b, c ** d) }}").is_ok());
        for source in ["{{ f(*a) }}", "{{ f(1, *a) }}", "{{ f(**a) }}", "{{ x | f(*a) }}"] {
            assert!(refusal(source).contains("arguments"), "{source}");
        }
    }

    #[test]
    fn generation_tags_do_not_change_the_output() {
        let source = "a {%- generation -%} {{ x }}{% endgeneration %} {% set generation = 1 %}{{ generation }}";
        let expected =
            "a {%- if true -%} {{ x }}{% endif %} {% set generation = 1 %}{{ generation }}";
        assert_eq!(without_generation(source), expected);
        assert_eq!(without_generation("{% {%generation%}"), "{% {%if true%}");
        assert_eq!(without_generation("no tags"), "no tags");
    }

    #[test]
    fn other_files_are_refused() {
        assert!(refusal("{% include 'chat' %}").contains("include"));
        assert!(check("{% set include = 1 %}{{ include }}").is_ok());
    }
}
