//! Constraints: sources of every kind compile or are refused, and replies follow them.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use walla_grammar::{
    Compiler, CompilerOptions, Constraint, ConstraintError, JsonWhitespace, MaskOutcome,
    MatchError, Vocabulary,
};
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_types::TokenId;

/// Maximum number of tokens of a reply.
const MAX_TOKENS: usize = 64;

struct Setup {
    tokenizer: Arc<Tokenizer>,
    vocabulary: Vocabulary,
}

fn setup() -> &'static Setup {
    static SETUP: LazyLock<Setup> = LazyLock::new(|| {
        let file = Gguf::from_static(walla_demo_model::GGUF).expect("the demo model");
        let tokenizer = Arc::new(Tokenizer::from_gguf(&file).expect("the demo model"));
        let vocabulary = Vocabulary::new(tokenizer.clone()).expect("the demo model");
        Setup { tokenizer, vocabulary }
    });
    &SETUP
}

/// The input: a kind, choices of tokens up to the first byte 0xFF, and the source.
pub fn check(bytes: &[u8]) {
    let Some((&kind, rest)) = bytes.split_first() else { return };
    let mut parts = rest.splitn(2, |&byte| byte == 0xff);
    let choices: VecDeque<u8> = parts.next().unwrap_or_default().iter().copied().collect();
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let whitespace = match kind / 5 % 3 {
        0 => JsonWhitespace::Compact,
        1 => JsonWhitespace::Spaced,
        _ => JsonWhitespace::Flexible,
    };
    let texts: Vec<String> = source.split('|').map(str::to_owned).collect();
    let constraint = match kind % 5 {
        0 | 1 => Constraint::json_schema(source),
        2 => Constraint::regex(source),
        3 => Constraint::choice(texts.clone()),
        _ => Constraint::lark(source),
    };
    let options =
        CompilerOptions { whitespace, max_cache_entries: 0, ..CompilerOptions::default() };
    let compiler = Compiler::new(setup().vocabulary.clone(), options);
    match compiler.compile(&constraint) {
        Ok(grammar) => {
            let text = reply(&grammar, choices);
            let Some(text) = text else { return };
            match kind % 5 {
                0 | 1 => drop(serde_json::from_str::<serde_json::Value>(&text).expect(&text)),
                3 => assert!(texts.contains(&text), "{text:?}"),
                _ => {}
            }
        }
        Err(ConstraintError::Internal { message }) => panic!("{constraint:?}: {message}"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The text of a finished reply. Each byte selects a token of the mask.
fn reply(grammar: &walla_grammar::Grammar, mut choices: VecDeque<u8>) -> Option<String> {
    let Setup { tokenizer, vocabulary } = setup();
    let mut matcher = grammar.matcher();
    let (mut words, mut text) = (vec![0; vocabulary.mask_words()], Vec::new());
    for _ in 0..MAX_TOKENS {
        let outcome = match matcher.mask(&mut words) {
            Ok(outcome) => outcome,
            Err(error) => return fail(&error),
        };
        let allowed: Vec<TokenId> = (0..vocabulary.tokens() as u32)
            .filter(|token| words[(token / 32) as usize] >> (token % 32) & 1 == 1)
            .map(TokenId)
            .collect();
        if outcome == MaskOutcome::Ended {
            assert!(matcher.has_ended() && matcher.is_complete());
            return Some(String::from_utf8(text).expect("UTF-8"));
        }
        assert!(!allowed.is_empty());
        let choice = usize::from(choices.pop_front().unwrap_or(0));
        let token = allowed[choice * allowed.len() / 256];
        if let Err(error) = matcher.accept(token) {
            return fail(&error);
        }
        if !tokenizer.is_reserved(token) && !tokenizer.is_end_of_generation(token) {
            text.extend_from_slice(tokenizer.token_bytes(token));
        }
    }
    None
}

fn fail(error: &MatchError) -> Option<String> {
    assert!(matches!(error, MatchError::TooComplex { .. } | MatchError::DeadEnd), "{error:?}");
    None
}

/// Inputs of every kind.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let sources = [
        (
            0,
            r#"{"type":"object","properties":{"a":{"type":"integer","minimum":-3}},"required":["a"]}"#,
        ),
        (
            0,
            r##"{"$ref":"#/$defs/t","$defs":{"t":{"type":"array","items":{"$ref":"#/$defs/t"}}}}"##,
        ),
        (
            5,
            r#"{"anyOf":[{"enum":["a",1,null]},{"type":"string","pattern":"^[a-z]+\\s?$","maxLength":9}]}"#,
        ),
        (10, r#"{"allOf":[{"type":"number","multipleOf":0.5},{"exclusiveMaximum":7.5}]}"#),
        (
            0,
            r#"{"oneOf":[{"const":"x"},{"type":"object","patternProperties":{"^a":{"format":"date"}},
            "additionalProperties":false,"minProperties":1}]}"#,
        ),
        (
            1,
            r#"{"type":["array","string"],"prefixItems":[true,{"type":"null"}],"minItems":1,"format":"ipv6"}"#,
        ),
        (2, r"(yes|no)[^a-c]{1,3}\d+(?i:ok)?"),
        (3, "yes|no|née|日本"),
        (4, "start: \"a\" <|im_start|> b+\nb: /[a-z]{2}/ | %json {\"type\":\"boolean\"}\n// end"),
        (4, "start: x ~ 1..3\nx[suffix=\"!\"]: /.*/\n%ignore / /"),
    ];
    let seed = |(kind, source): &(u8, &str)| {
        [&[*kind, 9, 200, 77, 31, 140, 3, 250, 0, 99, 0xff], source.as_bytes()].concat()
    };
    sources.iter().map(seed).collect()
}
