//! Reference data and shorthands.

use std::path::{Path, PathBuf};

use serde_json::Value;
use walla_embed::{Embedder, EmbedderOptions, Embedding, Purpose, cosine};

/// The small models.
pub const MODELS: [&str; 3] = ["bert-mean-f32", "bert-cls-q8_0", "qwen3-last"];

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub fn model(name: &str) -> PathBuf {
    data(&format!("{name}.gguf"))
}

pub fn load(name: &str, options: EmbedderOptions) -> Embedder {
    Embedder::load(model(name), options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A text with the ids and the vector of another implementation.
pub struct Reference {
    pub text: String,
    pub ids: Vec<u32>,
    pub vector: Vec<f32>,
}

pub fn references(path: &Path) -> Vec<Reference> {
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let reference = |value: &Value| Reference {
        text: value["text"].as_str().unwrap().to_owned(),
        ids: numbers(&value["ids"], |id| id.as_u64().unwrap() as u32),
        vector: numbers(&value["vector"], |x| x.as_f64().unwrap() as f32),
    };
    json["texts"].as_array().unwrap().iter().map(reference).collect()
}

fn numbers<T>(value: &Value, of: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(of).collect()
}

pub fn texts(references: &[Reference]) -> Vec<String> {
    references.iter().map(|reference| reference.text.clone()).collect()
}

pub fn embed(embedder: &Embedder, texts: Vec<String>) -> Vec<Embedding> {
    embedder.embed_blocking(texts, Purpose::Plain).unwrap()
}

/// The lowest cosine of vectors and their references, with its text.
pub fn worst<'r>(found: &[Embedding], references: &'r [Reference]) -> (f32, &'r str) {
    assert_eq!(found.len(), references.len());
    let pairs = found.iter().zip(references);
    let cosines = pairs.map(|(f, r)| (cosine(&f.vector, &r.vector), r.text.as_str()));
    cosines.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}
