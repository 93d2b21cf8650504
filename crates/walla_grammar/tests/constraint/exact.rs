//! Masks are exact: they allow a token if, and only if, its text continues to a text of the
//! grammar. The oracle enumerates the texts of small grammars.

use std::sync::Arc;

use serde_json::json;
use walla_grammar::{Compiler, Constraint, MaskOutcome};
use walla_model::tokenizer::Tokenizer;
use walla_reference_test::reference_test;
use walla_types::TokenId;

use crate::common::{
    Random, allowed, compiler, demo, exact_compiler, mask, reference, schema, small,
};

/// Finite languages: the constraint and all its texts.
fn languages() -> Vec<(Constraint, Vec<String>)> {
    let own = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let numbers: Vec<String> = (-12..=103).map(|number| number.to_string()).collect();
    let letters = ["a", "b", "c"];
    let pairs = letters.iter().flat_map(|a| letters.map(|b| format!("{a}{b}")));
    let pairs: Vec<String> = pairs.chain(letters.map(str::to_owned)).collect();
    vec![
        (Constraint::choice(["a"]), own(&["a"])),
        (
            Constraint::choice(["yes", "no", "nothing", "née", "日本", "日曜", "🙂!", "🙁"]),
            own(&["yes", "no", "nothing", "née", "日本", "日曜", "🙂!", "🙁"]),
        ),
        (
            Constraint::choice([" a", "  a", "\n", "▁a", "<0x41>"]),
            own(&[" a", "  a", "\n", "▁a", "<0x41>"]),
        ),
        (Constraint::regex("[abc]{1,2}"), pairs.clone()),
        (Constraint::regex("(the |The )?(horse|horseshoe|horses)"), {
            let starts = ["", "the ", "The "];
            starts
                .iter()
                .flat_map(|s| ["horse", "horseshoe", "horses"].map(|e| format!("{s}{e}")))
                .collect()
        }),
        (schema(&json!({"type": "integer", "minimum": -12, "maximum": 103})), numbers.clone()),
        (
            schema(&json!({"enum": ["a\"b", "é", 1, null]})),
            own(&["\"a\\\"b\"", "\"é\"", "1", "null"]),
        ),
        (
            schema(
                &json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
                "required": ["b"], "additionalProperties": false}),
            ),
            own(&["{\"b\":null}", "{\"a\":true,\"b\":null}", "{\"a\":false,\"b\":null}"]),
        ),
        (
            schema(&json!({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2})),
            own(&["[]", "[1]", "[2]", "[1,1]", "[1,2]", "[2,1]", "[2,2]"]),
        ),
        (
            Constraint::lark("start: \"x\" y? | y y\ny: \"(\" | \")\""),
            own(&["x", "x(", "x)", "((", "()", ")(", "))"]),
        ),
    ]
}

/// The tokens that may follow a text, by brute force over the vocabulary.
fn oracle(tokenizer: &Tokenizer, texts: &[String], before: &[u8]) -> Vec<TokenId> {
    let rests: Vec<&[u8]> =
        texts.iter().filter_map(|t| t.as_bytes().strip_prefix(before)).collect();
    let is_complete = rests.iter().any(|rest| rest.is_empty());
    let tokens = (0..tokenizer.vocab_size() as u32).map(TokenId);
    let continues = |token: &TokenId| {
        if tokenizer.is_end_of_generation(*token) {
            return is_complete;
        }
        let bytes = tokenizer.text_bytes(*token);
        let is_text = !bytes.is_empty() && !tokenizer.is_reserved(*token);
        is_text && rests.iter().any(|rest| rest.starts_with(bytes))
    };
    tokens.filter(continues).collect()
}

/// Walks through the languages with random tokens and compares every mask.
fn check_exact(compiler: &Compiler, tokenizer: &Tokenizer, walks: u64) {
    for (constraint, texts) in languages() {
        let grammar =
            compiler.compile(&constraint).unwrap_or_else(|e| panic!("{constraint:?}: {e}"));
        for seed in 1..=walks {
            let mut random = Random(seed * 0x9e37_79b9);
            let (mut matcher, mut before) = (grammar.matcher(), Vec::new());
            while !matcher.has_ended() {
                let (outcome, tokens) = mask(&mut matcher, compiler.vocabulary());
                let expected = oracle(tokenizer, &texts, &before);
                let text = String::from_utf8_lossy(&before);
                assert_eq!(outcome, MaskOutcome::Open);
                assert_eq!(tokens, expected, "{constraint:?} after {text:?}");
                let token = tokens[random.below(tokens.len())];
                matcher.accept(token).unwrap();
                if !tokenizer.is_end_of_generation(token) {
                    before.extend_from_slice(tokenizer.token_bytes(token));
                }
            }
            let text = String::from_utf8(before).unwrap();
            assert!(texts.contains(&text), "{constraint:?}: {text:?}");
            let (outcome, tokens) = mask(&mut matcher, compiler.vocabulary());
            assert_eq!(outcome, MaskOutcome::Ended);
            assert_eq!(tokens, tokenizer.end_of_generation_tokens().collect::<Vec<_>>());
        }
    }
}

/// Tokens outside the mask are refused and change nothing; the tokens of the mask are accepted.
fn check_refusals(compiler: &Compiler, tokenizer: &Tokenizer) {
    for (constraint, texts) in languages() {
        let grammar = compiler.compile(&constraint).unwrap();
        let text = texts.last().unwrap();
        let mut matcher = grammar.matcher();
        for token in compiler.vocabulary().encode(text) {
            let (_, tokens) = mask(&mut matcher, compiler.vocabulary());
            for other in (0..tokenizer.vocab_size() as u32 + 3).map(TokenId) {
                if tokens.binary_search(&other).is_err() {
                    let error = matcher.accept(other).unwrap_err();
                    assert_eq!(error, walla_grammar::MatchError::Refused { token: other });
                    assert!(!error.is_final());
                }
            }
            assert_eq!(mask(&mut matcher, compiler.vocabulary()).1, tokens);
            matcher.accept(token).unwrap();
        }
        assert!(matcher.is_complete());
    }
}

fn check(tokenizer: Arc<Tokenizer>, walks: u64) {
    let compiler = exact_compiler(tokenizer.clone());
    check_exact(&compiler, &tokenizer, walks);
}

#[test]
fn masks_of_byte_level_vocabularies_are_exact() {
    check(small("llama32-q4_0"), 12);
    check(demo(), 4);
}

#[test]
fn masks_of_sentence_piece_vocabularies_are_exact() {
    check(small("gemma3-q8_0"), 8);
    check(small("tinystories-260k"), 8);
}

#[reference_test]
fn masks_of_real_vocabularies_are_exact() {
    for name in ["llama-spm", "qwen2"] {
        check(reference(name), 1);
    }
}

#[test]
fn tokens_outside_the_mask_are_refused() {
    for name in ["llama32-q4_0", "tinystories-260k"] {
        let tokenizer = small(name);
        check_refusals(&exact_compiler(tokenizer.clone()), &tokenizer);
        check_refusals(&compiler(tokenizer.clone()), &tokenizer);
    }
}

#[test]
fn a_mask_of_the_wrong_length_is_refused() {
    let compiler = compiler(demo());
    let mut matcher = compiler.compile(&Constraint::choice(["a", "b"])).unwrap().matcher();
    let needed = compiler.vocabulary().mask_words();
    let mut words = vec![0; needed - 1];
    let error = matcher.mask(&mut words).unwrap_err();
    let expected = walla_grammar::MatchError::MaskTooShort { words: needed - 1, needed };
    assert_eq!(error, expected);
    let mut words = vec![u32::MAX; needed + 2];
    assert_eq!(matcher.mask(&mut words), Ok(MaskOutcome::Open));
    assert_eq!(words[needed..], [0, 0]);
    assert!(!allowed(&words).is_empty());
}
