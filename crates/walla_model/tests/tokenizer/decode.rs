//! Decoding: whole, streamed, and properties of both.

use crate::tokenizer_common::{byte_level, characters, sentence_piece};
use proptest::prelude::*;
use walla_model::tokenizer::{
    DecodeOptions, EncodeOptions, StreamDecoder, Tokenizer, TokenizerError,
};
use walla_types::TokenId;

fn all() -> [Tokenizer; 3] {
    [byte_level("gpt-2"), sentence_piece(), characters()].map(|lists| lists.tokenizer())
}

/// Deltas of a stream; each fits the documented capacity.
fn streamed(tokenizer: &Tokenizer, tokens: &[TokenId], options: DecodeOptions) -> Vec<String> {
    let mut decoder = StreamDecoder::new(options);
    let mut delta = String::with_capacity(tokenizer.max_delta_bytes());
    let (start, capacity) = (delta.as_ptr(), delta.capacity());
    let mut deltas = Vec::new();
    for &token in tokens {
        delta.clear();
        decoder.push(tokenizer, token, &mut delta).unwrap();
        deltas.push(delta.clone());
    }
    delta.clear();
    decoder.finish(&mut delta);
    deltas.push(delta.clone());
    assert_eq!((delta.as_ptr(), delta.capacity()), (start, capacity), "the buffer was reallocated");
    deltas
}

#[test]
fn characters_are_decoded_whole() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    let byte =
        |b: u8| tokenizer.encode(&String::from(char::from(b)), Default::default()).unwrap()[0];
    let raw = |b: u8| TokenId(u32::from(b)); // token n of this vocabulary is byte n
    assert_eq!(byte(b'a'), raw(b'a'));
    let deltas = streamed(&tokenizer, &[0xf0, 0x9f, 0x98, 0x80, b'!'].map(raw), Default::default());
    assert_eq!(deltas, ["", "", "", "😀", "!", ""]);
    // Interrupted by another character, and at the end.
    let deltas = streamed(&tokenizer, &[0xf0, 0x9f, b'a', 0xe2, 0x82].map(raw), Default::default());
    assert_eq!(deltas, ["", "", "\u{fffd}a", "", "", "\u{fffd}"]);
    // Can never be completed: replaced immediately.
    let deltas = streamed(&tokenizer, &[0xff, 0x80, 0xe0, 0x80].map(raw), Default::default());
    assert_eq!(deltas, ["\u{fffd}", "\u{fffd}", "", "\u{fffd}\u{fffd}", ""]);
}

#[test]
fn control_tokens_are_omitted_unless_requested() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    let options = EncodeOptions { add_special: false, parse_special: true };
    let tokens = tokenizer.encode("a<|im_end|>b<think>", options).unwrap();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "ab<think>");
    let shown = DecodeOptions { control_text: true, ..Default::default() };
    assert_eq!(tokenizer.decode_with(&tokens, shown).unwrap(), "a<|im_end|>b<think>");
}

#[test]
fn the_space_prefix_can_be_kept() {
    let tokenizer = sentence_piece().tokenizer();
    let tokens = tokenizer.encode("the", EncodeOptions::default()).unwrap();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "the");
    let kept = DecodeOptions { strip_space_prefix: false, ..Default::default() };
    assert_eq!(tokenizer.decode_with(&tokens, kept).unwrap(), " the");
}

#[test]
fn tokens_of_another_model_are_refused() {
    let tokenizer = byte_level("gpt-2").tokenizer();
    let token = TokenId(tokenizer.vocab_size() as u32);
    let tokens = tokenizer.vocab_size();
    assert_eq!(tokenizer.decode(&[token]), Err(TokenizerError::UnknownToken { token, tokens }));
    assert_eq!(tokenizer.token_bytes(token), b"");
    assert!(!tokenizer.is_control(token) && !tokenizer.is_end_of_generation(token));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(2000)
    })]

    /// Any text is restored byte for byte.
    #[test]
    fn texts_round_trip(text in "(\\PC|the |<\\|im_end\\|>|</s>|<0x41>|\\s|[\\x00-\\x1f]){0,40}") {
        prop_assume!(!text.contains('▁')); // a space in SentencePiece and Gemma 4
        for tokenizer in all() {
            for parse_special in [false, true] {
                let options = EncodeOptions { add_special: true, parse_special };
                let tokens = tokenizer.encode(&text, options).unwrap();
                let shown = DecodeOptions { control_text: parse_special, ..Default::default() };
                let decoded = tokenizer.decode_with(&tokens, shown).unwrap();
                let bos = tokenizer.adds_bos() && parse_special;
                let bos = tokenizer.bos().filter(|_| bos).map(|bos| tokenizer.token_bytes(bos));
                let bos = String::from_utf8_lossy(bos.unwrap_or_default());
                prop_assert_eq!(decoded, format!("{bos}{text}"));
            }
        }
    }

    /// Typed text never becomes a token of the chat format.
    #[test]
    fn plain_text_never_gives_control_tokens(text in "(<|\\||>|/|s|im_|end|start|im_end|<\\|im_end\\|>|</s>|<s>|<unk>|<0x41>| |\\PC){0,30}") {
        for tokenizer in all() {
            for token in tokenizer.encode(&text, EncodeOptions::default()).unwrap() {
                prop_assert!(!tokenizer.is_control(token), "{}", token);
            }
        }
    }

    /// For any tokens, the concatenated deltas equal the whole text, and the text equals the bytes.
    #[test]
    fn deltas_join_to_the_whole_text(
        ids in proptest::collection::vec(0_u32..330, 0..40),
        control_text: bool,
        strip_space_prefix: bool,
    ) {
        let options = DecodeOptions { control_text, strip_space_prefix };
        for tokenizer in all() {
            let size = tokenizer.vocab_size() as u32;
            let tokens: Vec<_> = ids.iter().map(|id| TokenId(id % size)).collect();
            let whole = tokenizer.decode_with(&tokens, options).unwrap();
            prop_assert_eq!(streamed(&tokenizer, &tokens, options).concat(), whole.as_str());
            if control_text && !strip_space_prefix {
                let bytes = tokens.iter().flat_map(|&t| tokenizer.token_bytes(t));
                let bytes: Vec<u8> = bytes.copied().collect();
                prop_assert_eq!(String::from_utf8_lossy(&bytes), whole);
            }
        }
    }
}
