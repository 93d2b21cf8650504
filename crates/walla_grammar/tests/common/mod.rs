//! Vocabularies and random replies.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use walla_grammar::{
    Compiler, CompilerOptions, Constraint, Grammar, MaskOutcome, Matcher, Vocabulary,
    VocabularyOptions,
};
use walla_model::Gguf;
use walla_model::tokenizer::Tokenizer;
use walla_types::TokenId;

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn tokenizer(path: &Path) -> Arc<Tokenizer> {
    let file = Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Arc::new(Tokenizer::from_gguf(&file).unwrap())
}

/// A small model with random weights.
pub fn small(name: &str) -> Arc<Tokenizer> {
    tokenizer(&root().join("tests/data/models").join(format!("{name}.gguf")))
}

/// A vocabulary of the reference data.
pub fn reference(name: &str) -> Arc<Tokenizer> {
    tokenizer(&root().join("../shared/data/tokenizers").join(format!("{name}.gguf")))
}

pub fn demo() -> Arc<Tokenizer> {
    static DEMO: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
        let file = Gguf::from_static(walla_demo_model::GGUF).unwrap();
        Arc::new(Tokenizer::from_gguf(&file).unwrap())
    });
    DEMO.clone()
}

pub fn compiler(tokenizer: Arc<Tokenizer>) -> Compiler {
    Compiler::new(Vocabulary::new(tokenizer).unwrap(), CompilerOptions::default())
}

/// A compiler whose masks allow every spelling.
pub fn exact_compiler(tokenizer: Arc<Tokenizer>) -> Compiler {
    let options = VocabularyOptions { forced_tokens: false };
    let vocabulary = Vocabulary::with_options(tokenizer, options).unwrap();
    Compiler::new(vocabulary, CompilerOptions::default())
}

pub fn allowed(words: &[u32]) -> Vec<TokenId> {
    let bits = words.iter().zip(0..).flat_map(|(&word, index)| {
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| TokenId(index * 32 + bit))
    });
    bits.collect()
}

/// The mask of a matcher, with its outcome.
pub fn mask(matcher: &mut Matcher, vocabulary: &Vocabulary) -> (MaskOutcome, Vec<TokenId>) {
    let mut words = vec![u32::MAX; vocabulary.mask_words() + 1];
    let outcome = matcher.mask(&mut words).unwrap();
    assert_eq!(words.pop(), Some(0), "words beyond the vocabulary are cleared");
    let tokens = allowed(&words);
    assert!(tokens.iter().all(|token| token.index() < vocabulary.tokens()));
    (outcome, tokens)
}

/// A random reply: mostly uniform tokens at first, then tokens that close strings and brackets.
/// `None` if it is not finished after `max_tokens` tokens.
pub fn reply(
    grammar: &Grammar,
    tokenizer: &Tokenizer,
    seed: u64,
    max_tokens: usize,
) -> Option<String> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut matcher = grammar.matcher();
    let mut bytes = Vec::new();
    let freedom = random.below(30);
    for step in 0..max_tokens {
        if matcher.has_ended() {
            return Some(String::from_utf8(bytes).expect("UTF-8"));
        }
        let (_, tokens) = mask(&mut matcher, grammar.vocabulary());
        let is_complete = matcher.is_complete();
        let ends = tokens.iter().any(|&token| tokenizer.is_end_of_generation(token));
        assert_eq!(ends, is_complete, "the grammar may end where ending tokens are allowed");
        let token = pick(&mut random, &tokens, tokenizer, step >= freedom);
        matcher.accept(token).unwrap();
        if tokenizer.is_end_of_generation(token) {
            assert!(matcher.has_ended());
        } else {
            assert!(!tokenizer.is_reserved(token), "{token} is not text");
            bytes.extend_from_slice(tokenizer.token_bytes(token));
        }
    }
    None
}

fn pick(
    random: &mut Random,
    tokens: &[TokenId],
    tokenizer: &Tokenizer,
    is_closing: bool,
) -> TokenId {
    let closes = |token: &&TokenId| {
        let bytes = tokenizer.token_bytes(**token);
        tokenizer.is_end_of_generation(**token) || matches!(bytes, b"\"" | b"}" | b"]")
    };
    if is_closing && random.below(8) != 0 {
        let closing: Vec<_> = tokens.iter().filter(closes).collect();
        if !closing.is_empty() {
            return *closing[random.below(closing.len())];
        }
    }
    // Every other token is short: long texts are not more interesting.
    let one = tokens[random.below(tokens.len())];
    let other = tokens[random.below(tokens.len())];
    let length = |token| tokenizer.token_bytes(token).len();
    if random.below(2) == 0 && length(other) < length(one) { other } else { one }
}

/// Whether the grammar accepts this text as a whole.
pub fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    grammar.vocabulary().encode(text).iter().all(|&token| matcher.accept(token).is_ok())
        && matcher.is_complete()
}

pub fn schema(value: &serde_json::Value) -> Constraint {
    Constraint::json_schema_value(value)
}
