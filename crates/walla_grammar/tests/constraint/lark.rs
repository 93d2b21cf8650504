//! Lark grammars with special tokens and embedded schemas.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use walla_grammar::{Compiler, Constraint, ConstraintError, MaskOutcome, Matcher};
use walla_model::Gguf;
use walla_model::tokenizer::{Tokenizer, Vocabulary};
use walla_reference_test::reference_test;
use walla_types::TokenId;

use crate::common::{Random, compiler, demo, mask};

const USER_DEFINED: i64 = 4;

/// A vocabulary with the action markers of Qwen, which the file of the base model does not have.
fn with_markers(file: &Gguf) -> Arc<Tokenizer> {
    let mut vocabulary = Vocabulary::from_gguf(file).unwrap();
    let types = vocabulary.token_types.get_or_insert_default();
    for marker in ["<tool_call>", "</tool_call>", "[ARGS]", "<|\"|>"] {
        if !vocabulary.tokens.contains(&marker) {
            vocabulary.tokens.push(marker);
            types.push(USER_DEFINED);
        }
    }
    Arc::new(Tokenizer::new(&vocabulary).unwrap())
}

/// Text, then optionally a call.
fn action_grammar() -> Constraint {
    let give = json!({"type": "object", "properties": {
        "name": {"const": "give"},
        "arguments": {"type": "object", "properties": {"item": {"enum": ["nails", "sword"]},
            "count": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["item", "count"], "additionalProperties": false}},
        "required": ["name", "arguments"], "additionalProperties": false});
    Constraint::lark(format!(
        "// An action of Qwen's format.\n\
         start: text call?\n\
         text: /(.|\\n)*/\n\
         call: <tool_call> \"\\n\" action \"\\n\" </tool_call>\n\
         action: %json {give}\n"
    ))
}

fn write(matcher: &mut Matcher, compiler: &Compiler, text: &str) {
    for token in compiler.vocabulary().encode(text) {
        matcher.accept(token).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

fn check_actions(tokenizer: &Arc<Tokenizer>) {
    let compiler = compiler(tokenizer.clone());
    let grammar = compiler.compile(&action_grammar()).unwrap();
    let open = tokenizer.special_token("<tool_call>").unwrap();
    let close = tokenizer.special_token("</tool_call>").unwrap();
    let ends: Vec<TokenId> = tokenizer.end_of_generation_tokens().collect();

    // Free text, in which markers are text.
    let mut matcher = grammar.matcher();
    write(&mut matcher, &compiler, "Here you are!\nNot a <tool_call> at all.");
    let (outcome, tokens) = mask(&mut matcher, compiler.vocabulary());
    assert_eq!(outcome, MaskOutcome::Open);
    let special: Vec<TokenId> = tokens.into_iter().filter(|&t| tokenizer.is_reserved(t)).collect();
    let mut expected: Vec<TokenId> = ends.iter().copied().chain([open]).collect();
    expected.sort();
    assert_eq!(special, expected, "the end, or the start of a call");
    assert!(matcher.is_complete());

    // The call.
    matcher.accept(open).unwrap();
    assert!(!matcher.is_complete());
    let mut bytes = Vec::new();
    let mut random = Random(5);
    let mut forced_count = 0;
    loop {
        let mut forced = Vec::new();
        forced_count += matcher.forced(&mut forced).unwrap();
        if forced.is_empty() {
            let tokens = mask(&mut matcher, compiler.vocabulary()).1;
            forced.push(tokens[random.below(tokens.len())]);
        }
        for &token in &forced {
            matcher.accept(token).unwrap();
            if token != close {
                assert!(!tokenizer.is_reserved(token));
                bytes.extend_from_slice(tokenizer.token_bytes(token));
            }
        }
        if forced.contains(&close) {
            break;
        }
    }
    let call: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(call["name"], "give");
    assert!(forced_count > 3, "{forced_count} forced tokens");
    assert!(matcher.has_ended(), "one call ends the reply");
    let (outcome, tokens) = mask(&mut matcher, compiler.vocabulary());
    assert_eq!((outcome, tokens), (MaskOutcome::Ended, ends.clone()));
    for end in ends {
        assert_eq!(matcher.accept(end), Ok(()));
    }
    assert!(matcher.accept(open).is_err());
}

#[test]
fn actions_open_and_close_with_special_tokens() {
    check_actions(&with_markers(&Gguf::from_static(walla_demo_model::GGUF).unwrap()));
}

#[reference_test]
fn actions_of_a_real_vocabulary_open_and_close_with_special_tokens() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/tokenizers");
    check_actions(&with_markers(&Gguf::open(folder.join("qwen2.gguf")).unwrap()));
}

/// A lazy text that ends at a marker of ordinary text.
#[test]
fn a_suffix_ends_free_text() {
    let compiler = compiler(demo());
    let grammar = compiler.compile(&Constraint::lark(
        "start: speech \"{\" NUMBER \"}\"\nspeech[suffix=\"CALL\"]: /(.|\\n)*/\nNUMBER: /[0-9]+/",
    ));
    let grammar = grammar.unwrap();
    assert!(crate::common::accepts(&grammar, "Well, CALL{12}"));
    assert!(!crate::common::accepts(&grammar, "Well, CALL12}"));
    assert!(!crate::common::accepts(&grammar, "Well, call{12}"));
}

#[test]
fn names_of_special_tokens_are_checked() {
    let compiler = compiler(demo());
    let error = compiler.compile(&Constraint::lark("start: \"a\"\n  <tool_calls>")).unwrap_err();
    let expected = "Lark grammar: 2(3): the vocabulary has no special token <tool_calls>";
    assert_eq!(error.to_string(), expected);
    // In strings and comments they are text.
    let text = compiler.compile(&Constraint::lark("# <tool_calls>\nstart: \"<tool_calls>\""));
    assert!(crate::common::accepts(&text.unwrap(), "<tool_calls>"));
    for ids in ["<[5]>", "<[5-9]>", "<[*]>", "<[^3]>"] {
        let error = compiler.compile(&Constraint::lark(format!("start: {ids}"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Lark grammar: 1(8): tokens are named by their text, not by id"
        );
    }
}

/// Names that are not of the form `<…>`, and `<|"|>`, whose quotation mark starts no string.
#[test]
fn special_tokens_are_named_by_a_text_in_quotes() {
    let tokenizer = with_markers(&Gguf::from_static(walla_demo_model::GGUF).unwrap());
    let compiler = compiler(tokenizer.clone());
    let source = "start: \"f\" %special \"[ARGS]\" (<|\"|> | %special\n\"<|\\\"|>\" ) \"g\"";
    let mut matcher = compiler.compile(&Constraint::lark(source)).unwrap().matcher();
    write(&mut matcher, &compiler, "f");
    for name in ["[ARGS]", "<|\"|>"] {
        let token = tokenizer.special_token(name).unwrap();
        assert_eq!(mask(&mut matcher, compiler.vocabulary()).1, [token], "{name}");
        matcher.accept(token).unwrap();
    }
    write(&mut matcher, &compiler, "g");
    assert!(matcher.has_ended());
    for (source, expected) in [
        ("start: %special \"[NO]\"", "1(8): the vocabulary has no special token [NO]"),
        ("start: %special [ARGS]", "1(8): a text in quotes must follow %special"),
        ("start: %special \"<|im_end|>\"", "1(8): a reply ends at the token <|im_end|>"),
    ] {
        let error = compiler.compile(&Constraint::lark(source)).unwrap_err();
        assert_eq!(error.to_string(), format!("Lark grammar: {expected}"));
    }
}

#[test]
fn embedded_schemas_have_their_own_white_space() {
    let compiler = compiler(demo());
    let schema = r#"{"enum": [{"a": [1, 2]}]}"#;
    for (suffix, text) in [
        ("", r#"{"a":[1,2]}"#),
        (":compact", r#"{"a":[1,2]}"#),
        (":spaced", r#"{"a": [1, 2]}"#),
        (":flexible", r#"{"a":  [1,2]}"#),
    ] {
        let source = Constraint::lark(format!("start: %json{suffix} {schema} \"!\""));
        let grammar = compiler.compile(&source).unwrap();
        assert!(crate::common::accepts(&grammar, &format!("{text}!")), "{suffix}");
    }
    let error = compiler.compile(&Constraint::lark("start: %json:spacious {}")).unwrap_err();
    let expected = "Lark grammar: 1(8): %json: must be followed by compact, spaced or flexible";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn text_never_becomes_a_special_token() {
    let tokenizer = demo();
    let compiler = compiler(tokenizer.clone());
    let special: Vec<&str> = ["<|im_start|>", "<|im_end|>"]
        .into_iter()
        .filter(|text| tokenizer.special_token(text).is_some())
        .collect();
    assert!(!special.is_empty());
    for text in special {
        let mut matcher = compiler.compile(&Constraint::choice([text])).unwrap().matcher();
        let token = tokenizer.special_token(text).unwrap();
        assert!(!mask(&mut matcher, compiler.vocabulary()).1.contains(&token));
        assert!(matcher.accept(token).is_err());
        write(&mut matcher, &compiler, text);
        assert!(matcher.has_ended());
        let named = Constraint::lark(format!("start: \"a\" {text} \"b\""));
        if tokenizer.is_end_of_generation(token) {
            let error = compiler.compile(&named).unwrap_err();
            assert!(error.to_string().contains("a reply ends at the token"), "{error}");
            continue;
        }
        let mut matcher = compiler.compile(&named).unwrap().matcher();
        write(&mut matcher, &compiler, "a");
        assert_eq!(mask(&mut matcher, compiler.vocabulary()).1, [token]);
        matcher.accept(token).unwrap();
        write(&mut matcher, &compiler, "b");
        assert!(matcher.has_ended());
    }
}

#[test]
fn embedded_schemas_are_checked() {
    let compiler = compiler(demo());
    let error = compiler.compile(&Constraint::lark("start: %json {\"not\": {}}")).unwrap_err();
    assert!(matches!(error, ConstraintError::UnsupportedKeyword { .. }), "{error}");
    let nested = "start: %lark { start: %json {\"contains\": {}}\n }";
    let error = compiler.compile(&Constraint::lark(nested)).unwrap_err();
    assert!(matches!(error, ConstraintError::UnsupportedKeyword { .. }), "{error}");
    let grammar = compiler.compile(&Constraint::lark(
        "start: \"%json {\" /\\/%json [(]/ (one | two) // %json {\none: %json {\"const\": 1}\n\
         two: %json\n  {\"$ref\": \"#/$defs/x\", \"$defs\": {\"x\": {\"const\": [2]}}}",
    ));
    let grammar = grammar.unwrap();
    assert!(crate::common::accepts(&grammar, "%json {/%json (1"));
    assert!(crate::common::accepts(&grammar, "%json {/%json ([2]"));
    assert!(!crate::common::accepts(&grammar, "%json {/%json (2"));
}
