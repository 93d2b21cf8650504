//! Unusual tokens: equal texts, no text, bytes that are not UTF-8, several ends or none.

use crate::lists;

use std::sync::Arc;

use walla_grammar::{
    Compiler, CompilerOptions, Constraint, ConstraintError, Grammar, MaskOutcome, MatchError,
    Matcher, Vocabulary,
};
use walla_types::TokenId;

use crate::common::{compiler, exact_compiler, mask};
use lists::{CONTROL, Lists, NORMAL, UNUSED, byte_level, sentence_piece};

/// All tokens that start a text of UTF-8, by brute force.
fn check_any_text(lists: &Lists) -> Vec<TokenId> {
    let tokenizer = Arc::new(lists.tokenizer());
    let compiler = exact_compiler(tokenizer.clone());
    let grammar = compiler.compile(&Constraint::regex("(?s:.*)")).unwrap();
    let (outcome, tokens) = mask(&mut grammar.matcher(), compiler.vocabulary());
    assert_eq!(outcome, MaskOutcome::Open);
    let starts_text = |token: &TokenId| {
        let bytes = tokenizer.text_bytes(*token);
        let is_start = match std::str::from_utf8(bytes) {
            Ok(_) => true,
            Err(error) => error.error_len().is_none(),
        };
        tokenizer.is_end_of_generation(*token)
            || (is_start
                && !bytes.is_empty()
                && bytes.len() <= 1_000
                && !tokenizer.is_reserved(*token))
    };
    let all = (0..tokenizer.vocab_size() as u32).map(TokenId);
    assert_eq!(tokens, all.filter(starts_text).collect::<Vec<_>>());
    tokens
}

#[test]
fn only_tokens_with_text_are_text() {
    let mut lists = byte_level("gpt-2");
    let unused = TokenId(lists.add("unused", UNUSED, 0.0));
    let empty = TokenId(lists.add("", NORMAL, 0.0));
    let twin = TokenId(lists.add("he", NORMAL, 0.0));
    let first = TokenId(lists.tokens.iter().position(|text| text == "he").unwrap() as u32);
    let long = TokenId(lists.add(&"x".repeat(1_001), NORMAL, 0.0));
    let invalid = TokenId(lists.add("ÿa", NORMAL, 0.0)); // bytes FF 61
    let control = TokenId(lists.add("<|opens|>", CONTROL, 0.0));
    let tokens = check_any_text(&lists);
    for (token, is_allowed) in [
        (unused, false),
        (empty, false),
        (first, true),
        (twin, true),
        (long, false),
        (invalid, false),
        (control, false),
        (TokenId(0xff), false),
        (TokenId(0xf5), false),
        (TokenId(0xf0), true),
        (TokenId(0x80), false),
    ] {
        assert_eq!(tokens.contains(&token), is_allowed, "{token}");
    }
}

#[test]
fn byte_tokens_and_letters_are_equal_text() {
    let lists = sentence_piece();
    let tokens = check_any_text(&lists);
    let letter = lists.tokens.iter().position(|text| text == "e").unwrap();
    let byte = lists.tokens.iter().position(|text| text == "<0x65>").unwrap();
    assert!([letter, byte].iter().all(|&token| tokens.contains(&TokenId(token as u32))));
}

#[test]
fn all_ends_are_allowed_at_the_end() {
    let mut lists = byte_level("gpt-2");
    lists.special.eot = Some(lists.add("<|turn_end|>", CONTROL, 0.0));
    lists.add("<|endoftext|>", CONTROL, 0.0);
    let tokenizer = Arc::new(lists.tokenizer());
    let ends: Vec<TokenId> = tokenizer.end_of_generation_tokens().collect();
    assert!(ends.len() >= 3, "{ends:?}");
    let compiler = compiler(tokenizer.clone());
    let grammar = compiler.compile(&Constraint::regex("ab*")).unwrap();
    for &end in &ends {
        let mut matcher = grammar.matcher();
        assert_eq!(matcher.accept(end), Err(MatchError::Refused { token: end }));
        matcher.accept(TokenId(u32::from(b'a'))).unwrap();
        let (_, tokens) = mask(&mut matcher, compiler.vocabulary());
        assert!(ends.iter().all(|end| tokens.contains(end)));
        assert!(matcher.is_complete() && !matcher.has_ended());
        matcher.accept(end).unwrap();
        assert!(matcher.has_ended() && matcher.is_complete());
    }
}

#[test]
fn a_vocabulary_without_an_end_ends_with_the_grammar() {
    let mut lists = byte_level("gpt-2");
    lists.special.eos = None;
    lists.types.iter_mut().zip(&mut lists.tokens).for_each(|(_, text)| {
        if text == "<|im_end|>" {
            *text = "<|other|>".to_owned();
        }
    });
    let tokenizer = Arc::new(lists.tokenizer());
    assert_eq!(tokenizer.end_of_generation_tokens().count(), 0);
    let compiler = compiler(tokenizer);
    let mut matcher = compiler.compile(&Constraint::choice(["ab"])).unwrap().matcher();
    for byte in *b"ab" {
        assert!(!matcher.has_ended());
        matcher.accept(TokenId(u32::from(byte))).unwrap();
    }
    assert!(matcher.has_ended());
    assert_eq!(mask(&mut matcher, compiler.vocabulary()), (MaskOutcome::Ended, vec![]));
}

/// A vocabulary that lacks bytes: forced tokens are off, and text without tokens is a dead end.
#[test]
fn text_without_tokens_is_a_dead_end() {
    let mut lists = sentence_piece();
    for (ty, text) in lists.types.iter_mut().zip(&lists.tokens) {
        if text.starts_with("<0x") {
            *ty = UNUSED;
        }
    }
    let compiler = compiler(Arc::new(lists.tokenizer()));
    assert!(!compiler.vocabulary().has_forced_tokens());
    let error = compiler.compile(&Constraint::choice(["ü"])).unwrap_err();
    assert!(matches!(error, ConstraintError::Unsatisfiable { .. }), "{error}");
    let mut matcher = compiler.compile(&Constraint::choice(["teü"])).unwrap().matcher();
    let mut words = vec![0; compiler.vocabulary().mask_words()];
    let mut forced = Vec::new();
    let error = loop {
        match matcher.mask(&mut words) {
            Ok(_) => matcher.accept(crate::common::allowed(&words)[0]).unwrap(),
            Err(error) => break error,
        }
        assert_eq!(matcher.forced(&mut forced), Ok(0));
    };
    assert_eq!(error, MatchError::DeadEnd);
    assert_eq!(matcher.accept(TokenId(5)), Err(MatchError::DeadEnd));
    assert_eq!(matcher.forced(&mut forced), Err(MatchError::DeadEnd));
    assert_eq!(matcher.rollback(0), Err(MatchError::DeadEnd));
    assert!(!matcher.has_ended() && !matcher.is_complete());
}

/// Threads that need a constraint at the same time compile it once, and its memory is counted until
/// it is evicted.
#[test]
fn threads_wait_for_one_compilation() {
    let vocabulary = Vocabulary::new(crate::common::demo()).unwrap();
    let tables = vocabulary.bytes();
    assert!(tables > 100 * vocabulary.tokens());
    let options = CompilerOptions { max_cache_entries: 3, ..CompilerOptions::default() };
    let compiler = Compiler::new(vocabulary, options);
    for number in 0..6 {
        let numbers = format!("[a-f]{{1,{}}}(g|h){{3,9}}", 50 + number);
        let constraint = Constraint::regex(numbers);
        let barrier = std::sync::Barrier::new(8);
        let compile = || {
            barrier.wait();
            compiler.compile(&constraint).unwrap()
        };
        let grammars: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(compile)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(grammars.iter().all(|grammar| Arc::ptr_eq(grammar, &grammars[0])));
        assert_eq!(compiler.compilations(), number + 1);
        let (entries, bytes) = compiler.cached();
        assert_eq!(entries as u64, (number + 1).min(3));
        assert_eq!(compiler.bytes(), tables + bytes);
    }
}

#[test]
fn results_are_cached_and_shared_between_threads() {
    fn is_shared<T: Send + Sync + 'static>(_: &T) {}
    fn is_sent<T: Send + 'static>(_: T) {}
    let vocabulary = Vocabulary::new(crate::common::demo()).unwrap();
    let options = CompilerOptions { max_cache_entries: 2, ..CompilerOptions::default() };
    let compiler = Arc::new(Compiler::new(vocabulary, options));
    is_shared(&compiler);
    is_shared(compiler.vocabulary());
    let constraint = |index: usize| Constraint::choice([index.to_string()]);
    let first = compiler.compile(&constraint(0)).unwrap();
    assert!(Arc::ptr_eq(&first, &compiler.compile(&constraint(0)).unwrap()));
    is_sent::<Matcher>(first.matcher());
    is_sent::<Arc<Grammar>>(first.clone());
    compiler.compile(&constraint(1)).unwrap();
    assert!(compiler.compile(&Constraint::regex("(")).is_err());
    let (entries, bytes) = compiler.cached();
    assert!(entries == 2 && bytes > 0);
    assert!(!Arc::ptr_eq(&first, &compiler.compile(&constraint(0)).unwrap()), "it was evicted");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let compiler = compiler.clone();
            std::thread::spawn(move || {
                (0..20).all(|index| compiler.compile(&constraint((index + thread) % 5)).is_ok())
            })
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
}
