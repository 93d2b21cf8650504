//! Messages name the part of the source, its place and the reason, in plain words.

use walla_grammar::{Compiler, CompilerOptions, Constraint, MatchError, Vocabulary};

use crate::common::{compiler, small};

/// Words of the library. No message has them.
const JARGON: [&str; 22] = [
    "coerce_one_of",
    "lookaround",
    "WordUnicode",
    "LF in",
    "regex parse error",
    "lexer error",
    "Parser Error",
    "too many expressions",
    "SearchRegex",
    "(And ",
    "Unsatisfiable schema",
    "invalid regex",
    "(in regex)",
    "patternProperty ",
    "keyword \"\"",
    "at \"\"",
    "fuel exhausted",
    "Current row",
    "symbols) too",
    "initial lexer",
    "expected value",
    "unwrap",
];

fn message(compiler: &Compiler, constraint: Constraint) -> String {
    let error = compiler.compile(&constraint).expect_err(&format!("{constraint:?}"));
    let message = error.to_string();
    for word in JARGON {
        assert!(!message.contains(word), "{constraint:?}: {message}");
    }
    assert!(!message.ends_with(':') && !message.contains('\n'), "{constraint:?}: {message}");
    message
}

#[test]
fn schemas() {
    let compiler = compiler(small("llama32-q4_0"));
    let schema = |text: &str| Constraint::json_schema(text);
    for (text, expected) in [
        ("[]", "the schema must be an object or a boolean, not an array"),
        ("\"x\"", "the schema must be an object or a boolean, not a string"),
        ("null", "the schema must be an object or a boolean, not null"),
        ("1", "the schema must be an object or a boolean, not a number"),
        (
            r#"{"properties":{"a/b":1}}"#,
            "the schema at \"/properties/a~1b\" must be an object or a boolean, not a number",
        ),
        (
            r#"{"anyOf":[true,"x"]}"#,
            "the schema at \"/anyOf/1\" must be an object or a boolean, not a string",
        ),
        (
            r#"{"additionalProperties":null}"#,
            "the schema at \"/additionalProperties\" must be an object or a boolean, not null",
        ),
        (
            r##"{"$ref":"#/$defs/a","$defs":{"a":[]}}"##,
            "the schema at \"/$defs/a\" must be an object or a boolean, not an array",
        ),
        (
            r#"{"oneOf":[{"type":"integer"},{"minimum":2}]}"#,
            "keyword \"oneOf\" is not supported: a value may match both alternative 0 and \
             alternative 1; give them different types or constants, or use \"anyOf\"",
        ),
        (
            r#"{"items":{"oneOf":[{"type":"null"},{"type":"integer"},{"type":"number"}]}}"#,
            "keyword \"oneOf\" at \"/items\" is not supported: a value may match both alternative \
             1 and alternative 2; give them different types or constants, or use \"anyOf\"",
        ),
        (
            r#"{"type":"string","pattern":"\\bfoo"}"#,
            "keyword \"pattern\" is not supported: byte 0: word boundaries (\\b) are not supported",
        ),
        (
            r#"{"properties":{"a":{"pattern":"a^b"}}}"#,
            "keyword \"pattern\" at \"/properties/a\" is not supported: byte 1: ^ is only \
             supported at the start of the expression",
        ),
        (
            r#"{"pattern":"\\p{Foo}"}"#,
            "keyword \"pattern\" is not supported: byte 0: Unicode property not found",
        ),
        (
            r#"{"pattern":"a(?=b)"}"#,
            "keyword \"pattern\" is not supported: byte 1: look-around is not supported",
        ),
        (
            r#"{"patternProperties":{"a":{"type":"integer"},"b":{"type":"null"}}}"#,
            "keyword \"patternProperties\" is not supported: two patterns may match the same name",
        ),
        (
            r#"{"type":"object","properties":{"a":{}},"minProperties":1}"#,
            "keyword \"minProperties\" is not supported: only exact for required properties and \
             one further property",
        ),
        (
            r#"{"type":"text"}"#,
            "keyword \"type\" must be one of the seven types, or a list of them",
        ),
        (
            r#"{"type":"integer","minimum":9007199254740993}"#,
            "keyword \"minimum\" is not supported: 9007199254740993 is beyond 2^53 - 1, the range \
             of exact numbers",
        ),
        ("{", "the schema is not JSON: EOF while parsing an object at line 1 column 1"),
        ("", "the schema is not JSON: the text is empty"),
        ("type: null", "the schema is not JSON: expected ident at line 1 column 2"),
    ] {
        assert_eq!(message(&compiler, schema(text)), expected, "{text}");
    }
}

#[test]
fn regular_expressions() {
    let compiler = compiler(small("llama32-q4_0"));
    for (text, expected) in [
        (r"\bfoo", "byte 0: word boundaries (\\b) are not supported"),
        (r"fo\Bo", "byte 2: word boundaries (\\B) are not supported"),
        (r"\b{start}a", "byte 0: word boundaries (\\b{start}) are not supported"),
        ("a^b", "byte 1: ^ is only supported at the start of the expression"),
        ("a$b", "byte 1: $ is only supported at the end of the expression"),
        (r"a\Ab", "byte 1: \\A is only supported at the start of the expression"),
        (
            "(?m)^a$",
            "byte 0: ^ and $ are only supported at the start and the end of the text, without the \
             flag m",
        ),
        (r"(?-u)\xff", "byte 5: bytes that are not UTF-8 are not supported"),
        (r"(?-u:.)", "byte 5: bytes that are not UTF-8 are not supported"),
        (r"\p{Foo}", "byte 0: Unicode property not found"),
        ("x(?=y)", "byte 1: look-around is not supported"),
        ("x(?<!y)", "byte 1: look-around is not supported"),
        (r"(a)\1", "byte 3: backreferences are not supported"),
        ("(", "byte 0: unclosed group"),
        ("", "byte 0: the expression is empty"),
    ] {
        let expected = format!("regular expression, {expected}");
        assert_eq!(message(&compiler, Constraint::regex(text)), expected, "{text}");
    }
    let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
    let expected = "regular expression, byte 64: more than 64 nested groups";
    assert_eq!(message(&compiler, Constraint::regex(deep)), expected);
}

#[test]
fn grammars() {
    let compiler = compiler(small("llama32-q4_0"));
    for (text, expected) in [
        (
            r"start: /\bfoo/",
            r"Lark grammar: 1(8): regular expression /\bfoo/: word boundaries (\b) are not supported",
        ),
        (
            "start: A\nA: \"x\" /a^b/",
            "Lark grammar: 2(8): regular expression /a^b/: ^ is only supported at the start of the \
             expression",
        ),
        (
            r"start: /(?-u)\xff/",
            r"Lark grammar: 1(8): regular expression /(?-u)\xff/: bytes that are not UTF-8 are not supported",
        ),
        ("start: %json []", "the schema must be an object or a boolean, not an array"),
        (
            r#"start: %json {"pattern":"^a$","minLength":2,"type":"string"}"#,
            "no text satisfies the constraint: no string matches its pattern, format and length",
        ),
    ] {
        assert_eq!(message(&compiler, Constraint::lark(text)), expected, "{text}");
    }
    // A comment in the verbose mode may have any text.
    assert!(compiler.compile(&Constraint::lark("start: /a # ( comment/x")).is_ok());
}

/// Limits are named by the setting that changes them.
#[test]
fn limits() {
    let tokenizer = small("llama32-q4_0");
    let with = |options: CompilerOptions| {
        Compiler::new(Vocabulary::new(tokenizer.clone()).unwrap(), options)
    };
    let names = |count: usize| {
        (0..count).map(|index| format!("\"p{index}\":{{}}")).collect::<Vec<_>>().join(",")
    };
    let large = format!("{{\"properties\":{{{}}}}}", names(100));
    let options = CompilerOptions { compile_fuel: 1_000, ..CompilerOptions::default() };
    assert_eq!(
        message(&with(options), Constraint::json_schema(large.clone())),
        "the grammar is too complex: regular expressions and texts that need more work than \
         CompilerOptions::compile_fuel allows"
    );
    let options = CompilerOptions { max_grammar_symbols: 50, ..CompilerOptions::default() };
    assert_eq!(
        message(&with(options), Constraint::json_schema(large)),
        "the grammar is too complex: more symbols in the grammar than \
         CompilerOptions::max_grammar_symbols allows"
    );
    let options = CompilerOptions { mask_fuel: 50, ..CompilerOptions::default() };
    assert_eq!(
        message(&with(options), Constraint::regex("(.*a.{12}b){3}")),
        "the grammar is too complex: regular expressions and texts that need more work than \
         CompilerOptions::mask_fuel allows"
    );
    let options = CompilerOptions { max_lexer_states: 400, ..CompilerOptions::default() };
    let compiler = with(options);
    let grammar = compiler.compile(&Constraint::regex("(.*a.{12}b){3}")).unwrap();
    let mut errors = 0;
    for seed in 1..=5 {
        let (mut matcher, mut random) = (grammar.matcher(), crate::common::Random(seed));
        let mut words = vec![0; compiler.vocabulary().mask_words()];
        for _ in 0..500 {
            let Err(error) = matcher.mask(&mut words) else {
                let tokens = crate::common::allowed(&words);
                drop(matcher.accept(tokens[random.below(tokens.len())]));
                continue;
            };
            assert!(matches!(error, MatchError::TooComplex { .. }), "{error:?}");
            assert_eq!(
                error.to_string(),
                "the text exceeds a limit of the matcher: more lexer states than \
                 CompilerOptions::max_lexer_states allows"
            );
            errors += 1;
            break;
        }
    }
    assert!(errors > 0);
}

/// Editors write a byte-order mark before a text.
#[test]
fn a_byte_order_mark_is_ignored() {
    let compiler = compiler(small("llama32-q4_0"));
    let compiled = compiler.compile(&Constraint::json_schema("\u{feff}{\"type\":\"null\"}"));
    assert!(compiled.is_ok(), "{compiled:?}");
    let compiled = compiler.compile(&Constraint::lark("\u{feff}start: \"a\""));
    assert!(compiled.is_ok(), "{compiled:?}");
    let twice = Constraint::json_schema("\u{feff}\u{feff}{\"type\":\"null\"}");
    assert!(compiler.compile(&twice).is_err());
}
