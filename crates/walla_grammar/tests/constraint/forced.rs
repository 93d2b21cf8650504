//! Forced tokens are the tokenizer's spelling of the only text that can follow.

use std::sync::Arc;

use serde_json::json;
use walla_grammar::{Compiler, Constraint, MaskOutcome, MatchError};
use walla_model::tokenizer::Tokenizer;
use walla_reference_test::reference_test;
use walla_types::TokenId;

use crate::common::{Random, compiler, demo, exact_compiler, mask, reference, schema, small};

fn text_of(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&t| tokenizer.token_bytes(t)).copied().collect();
    String::from_utf8(bytes).unwrap()
}

fn constraints() -> Vec<Constraint> {
    vec![
        schema(&json!({"type": "object", "properties": {
            "action": {"const": "give"},
            "item": {"enum": ["horseshoe", "horse", "nails"]},
            "to the person": {"type": "string", "maxLength": 8},
            "price": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["action", "item", "to the person", "price"], "additionalProperties": false})),
        Constraint::choice(["Good morning, traveller!", "Good evening, traveller."]),
        Constraint::choice(["日本語のテキスト", "日本酒"]),
        Constraint::choice(["🙂🙂", "🙃"]),
        Constraint::regex("The price is [0-9]{1,3} gold coins(, friend)?\\."),
        Constraint::choice(["  leading   spaces▁ and\n\nlines <|im_end|> <s>"]),
    ]
}

/// Replies with and without the use of `forced` are equal, and all allowed spellings agree with the
/// forced text.
fn check(tokenizer: &Arc<Tokenizer>) {
    let compiler = compiler(tokenizer.clone());
    assert!(compiler.vocabulary().has_forced_tokens());
    let exact = exact_compiler(tokenizer.clone());
    let mut forced_count = 0;
    for constraint in constraints() {
        let grammar = compiler.compile(&constraint).unwrap();
        let every_spelling = exact.compile(&constraint).unwrap();
        for seed in 1..=8 {
            let mut random = Random(seed * 0x1234_5678_9abc);
            let (mut matcher, mut follower) = (grammar.matcher(), grammar.matcher());
            let mut witness = every_spelling.matcher();
            let mut reply = Vec::new();
            while !matcher.has_ended() {
                let mut forced = Vec::new();
                let count = matcher.forced(&mut forced).unwrap();
                assert_eq!(count, forced.len());
                forced_count += count;
                if forced.is_empty() {
                    let (outcome, tokens) = mask(&mut matcher, compiler.vocabulary());
                    assert_eq!(outcome, MaskOutcome::Open);
                    forced.push(tokens[random.below(tokens.len())]);
                } else {
                    check_forced(&mut witness, &forced, tokenizer, exact.vocabulary());
                }
                for token in forced {
                    // The follower samples every token.
                    let (_, tokens) = mask(&mut follower, compiler.vocabulary());
                    assert!(tokens.contains(&token));
                    assert!(count == 0 || tokens == [token], "a forced token is the whole mask");
                    follower.accept(token).unwrap();
                    matcher.accept(token).unwrap();
                    witness.accept(token).unwrap();
                    if !tokenizer.is_end_of_generation(token) {
                        reply.push(token);
                    }
                }
            }
            assert!(follower.has_ended() && witness.is_complete());
            assert!(!text_of(tokenizer, &reply).is_empty());
        }
    }
    assert!(forced_count > 200, "{forced_count} forced tokens");
}

/// All allowed tokens agree with the forced text.
fn check_forced(
    witness: &mut walla_grammar::Matcher,
    forced: &[TokenId],
    tokenizer: &Tokenizer,
    vocabulary: &walla_grammar::Vocabulary,
) {
    let text: Vec<u8> = forced.iter().flat_map(|&t| tokenizer.token_bytes(t)).copied().collect();
    for token in mask(witness, vocabulary).1 {
        let bytes = tokenizer.token_bytes(token);
        let common = bytes.len().min(text.len());
        assert_eq!(bytes[..common], text[..common], "{}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn forced_tokens_do_not_depend_on_the_caller() {
    check(&demo());
}

#[test]
fn forced_tokens_of_sentence_piece_vocabularies() {
    check(&small("tinystories-260k"));
}

#[reference_test]
fn forced_tokens_of_real_vocabularies() {
    for name in ["llama-spm", "llama-bpe", "qwen2"] {
        check(&reference(name));
    }
}

/// A text that is forced as a whole is spelled as the tokenizer spells it.
fn check_spelling(tokenizer: &Arc<Tokenizer>, compiler: &Compiler) {
    let texts = [
        "{\"name\":\"Greta the smith\",\"price\":120}",
        "Hello, world! It's 1999.",
        "éàü 日本語 🙂",
        " a  b   c\n\n",
    ];
    for text in texts {
        let expected = tokenizer.encode_continuation(text).unwrap();
        assert_eq!(text_of(tokenizer, &expected), text);
        assert_eq!(compiler.vocabulary().encode(text), expected);
        let mut matcher = compiler.compile(&Constraint::choice([text])).unwrap().matcher();
        let mut forced = Vec::new();
        while !matcher.has_ended() {
            let start = forced.len();
            matcher.forced(&mut forced).unwrap();
            if forced.len() == start {
                // The last token could be a longer one of another text.
                let (_, tokens) = mask(&mut matcher, compiler.vocabulary());
                assert!(tokens.contains(&expected[start]), "{text:?}");
                forced.push(expected[start]);
            }
            for &token in &forced[start..] {
                matcher.accept(token).unwrap();
            }
        }
        assert_eq!(forced, expected, "{text:?}");
    }
}

#[test]
fn forced_text_has_the_spelling_of_the_tokenizer() {
    for tokenizer in [demo(), small("tinystories-260k"), small("llama32-q4_0")] {
        check_spelling(&tokenizer, &compiler(tokenizer.clone()));
    }
}

#[reference_test]
fn forced_text_has_the_spelling_of_real_tokenizers() {
    for name in ["llama-spm", "llama-bpe", "qwen2"] {
        let tokenizer = reference(name);
        check_spelling(&tokenizer, &compiler(tokenizer.clone()));
    }
}

#[test]
fn sentence_piece_text_has_no_additional_space() {
    let tokenizer = small("tinystories-260k");
    assert!(tokenizer.adds_space_prefix());
    let compiler = compiler(tokenizer.clone());
    let tokens = compiler.vocabulary().encode("once upon");
    assert_eq!(text_of(&tokenizer, &tokens), "once upon");
    // The tokenizer writes `▁` as a space, so it is spelled in bytes.
    let tokens = compiler.vocabulary().encode("a▁b");
    assert_eq!(text_of(&tokenizer, &tokens), "a▁b");
}

/// After a rollback the same masks and the same forced tokens follow.
#[test]
fn a_rollback_restores_the_position() {
    let compiler = compiler(demo());
    for constraint in constraints() {
        let grammar = compiler.compile(&constraint).unwrap();
        let mut random = Random(77);
        let mut matcher = grammar.matcher();
        let mut history: Vec<(Vec<TokenId>, TokenId)> = Vec::new();
        while !matcher.has_ended() {
            let tokens = mask(&mut matcher, compiler.vocabulary()).1;
            let token = tokens[random.below(tokens.len())];
            matcher.accept(token).unwrap();
            history.push((tokens, token));
        }
        assert_eq!(matcher.accepted(), history.len());
        for back in 1..=history.len() {
            matcher.rollback(back).unwrap();
            for (tokens, token) in &history[history.len() - back..] {
                assert_eq!(mask(&mut matcher, compiler.vocabulary()).1, *tokens);
                matcher.accept(*token).unwrap();
            }
            assert!(matcher.has_ended());
        }
        let (wanted, accepted) = (history.len() + 1, history.len());
        let error = matcher.rollback(wanted).unwrap_err();
        assert_eq!(error, MatchError::NothingToRollBack { wanted, accepted });
    }
}
