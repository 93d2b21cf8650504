//! all-MiniLM-L6-v2 against another implementation: `tools/embedding/README.md` has the commands.

use std::path::{Path, PathBuf};

use walla_embed::{Embedder, EmbedderOptions};
use walla_model::Gguf;
use walla_model::tokenizer::{EncodeOptions, Tokenizer};

use crate::common::{embed, references, texts, worst};

/// The folder of the converted files and the references.
fn folder() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/walla_models/minilm");
    std::env::var_os("WALLA_MINILM").map_or(default, PathBuf::from)
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2: cargo xtask minilm"]
fn vectors_equal_the_reference() {
    let references = references(&folder().join("vectors.json"));
    assert!(references.len() >= 50);
    for (kind, least) in [("f32", 0.999_9), ("f16", 0.999_9), ("q8_0", 0.99)] {
        let file = folder().join(format!("minilm-{kind}.gguf"));
        let embedder = Embedder::load(&file, EmbedderOptions::default()).unwrap();
        let (cosine, text) = worst(&embed(&embedder, texts(&references)), &references);
        println!("{kind}: lowest cosine {cosine} for {text:?}");
        assert!(cosine >= least, "{kind}: {cosine} for {text:?}");
    }
}

#[test]
#[ignore = "needs all-MiniLM-L6-v2: cargo xtask minilm"]
fn ids_equal_the_reference() {
    let gguf = Gguf::open(folder().join("minilm-f16.gguf")).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let json = std::fs::read(folder().join("ids.json")).unwrap();
    let cases: Vec<(String, Vec<u32>)> = serde_json::from_slice(&json).unwrap();
    assert!(cases.len() >= 2_000);
    let options = EncodeOptions { add_special: true, parse_special: true };
    for (text, wanted) in cases {
        let ids = tokenizer.encode(&text, options).unwrap();
        let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
        assert_eq!(ids, wanted, "{text:?}");
    }
}
