//! Damaged files and settings are errors or load; nothing panics.

use walla_embed::{Embedder, EmbedderOptions, LoadError, Pooling, Purpose};
use walla_model::{Gguf, ModelSpec, SpecError};

use crate::common::{data, model};

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(model(name)).unwrap()
}

/// Loads a file from memory and, if it loads, computes a text.
fn try_all(bytes: Vec<u8>) -> bool {
    let Ok(gguf) = Gguf::from_bytes(bytes) else { return false };
    let Ok(embedder) = Embedder::from_gguf(gguf, EmbedderOptions::default()) else { return false };
    let texts = vec!["Where is the key?".to_owned(), "Café 中文".to_owned()];
    let result = embedder.embed_blocking(texts, Purpose::Plain);
    assert_ne!(result.as_ref().err(), Some(&walla_embed::EmbedError::Stopped), "a panic");
    embedder.close();
    true
}

#[test]
fn every_truncation_is_an_error() {
    for name in ["bert-cls-q8_0", "qwen3-last"] {
        let whole = bytes(name);
        // Every length of the header, and steps in the data.
        let lengths = (0..whole.len()).filter(|len| *len < 12_000 || len % 509 == 0);
        for len in lengths {
            assert!(!try_all(whole[..len].to_vec()), "{name}: {len} bytes load");
        }
        assert!(try_all(whole));
    }
}

#[test]
fn flipped_bytes_are_errors_or_load() {
    let mut loaded = 0;
    for name in ["bert-cls-q8_0", "qwen3-last"] {
        let whole = bytes(name);
        let mut state = 1_u64;
        for round in 0..3_000 {
            let mut damaged = whole.clone();
            for _ in 0..=round % 3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Two of three in the header.
                let span = if round % 3 < 2 { 9_000 } else { whole.len() };
                let at = (state >> 33) as usize % span;
                damaged[at] ^= 1 << (state >> 60 & 7);
            }
            loaded += usize::from(try_all(damaged));
        }
    }
    println!("{loaded} of 6000 loaded");
    assert!(loaded > 100, "most flips in weights do not prevent loading: {loaded}");
}

#[test]
fn a_model_that_generates_text_needs_a_pooling() {
    let file = data("../../../../tests/data/models/qwen2-q8_0.gguf");
    let error = Embedder::load(&file, EmbedderOptions::default()).unwrap_err();
    assert!(matches!(error, LoadError::NoPooling), "{error}");
    let with = |pooling| EmbedderOptions { pooling: Some(pooling), ..Default::default() };
    let error = Embedder::load(&file, with(Pooling::Mean)).unwrap_err();
    assert!(matches!(error, LoadError::Pooling { pooling: Pooling::Mean }), "{error}");
}

#[test]
fn a_generating_engine_refuses_an_encoder_by_name() {
    let gguf = Gguf::open(model("bert-mean-f32")).unwrap();
    let error = ModelSpec::from_gguf(&gguf, 512).unwrap_err();
    assert!(matches!(error, SpecError::Encoder { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("walla::Embedder") && message.contains("walla embed"), "{message}");
}

#[test]
fn settings_out_of_range_are_named() {
    let default = EmbedderOptions::default;
    let wrong = [
        (EmbedderOptions { threads: 0, ..default() }, "threads"),
        (EmbedderOptions { max_batch_tokens: 0, ..default() }, "max_batch_tokens"),
        (EmbedderOptions { max_context_tokens: Some(1), ..default() }, "max_context_tokens"),
        (EmbedderOptions { max_texts: 0, ..default() }, "max_texts"),
        (EmbedderOptions { max_requests: usize::MAX, ..default() }, "max_requests"),
    ];
    for (options, name) in wrong {
        let error = Embedder::load(model("bert-mean-f32"), options).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{name} is ")), "{error}");
    }
    let small = EmbedderOptions { max_memory_bytes: Some(10_000), ..default() };
    let error = Embedder::load(model("bert-mean-f32"), small).unwrap_err();
    assert!(error.to_string().starts_with("out of memory"), "{error}");
    assert!(Embedder::load("no such file", default()).is_err());
}
