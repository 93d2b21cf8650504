//! Real files are parsed, and fast.

use std::{fs, time::Instant};

use crate::reference_data::{data, files, models};
use walla_model::{Gguf, gguf::Strings};
use walla_reference_test::{has_reference_data, reference_test};

#[test]
fn every_reference_file_opens_in_both_ways() {
    for all in [models("gguf"), files("tokenizers", "gguf")] {
        for path in all {
            let mapped = Gguf::open(&path).unwrap();
            let shared = Gguf::from_bytes(fs::read(&path).unwrap()).unwrap();
            assert!(mapped.metadata().eq(shared.metadata()));
            assert!(mapped.tensors().eq(shared.tensors()));
            for (i, tensor) in mapped.tensors().enumerate() {
                assert_eq!(mapped.find_tensor(tensor.name), Some(i));
                let elements = tensor.shape.elements() as usize;
                let bytes = mapped.tensor_bytes(i).unwrap();
                assert_eq!(Some(bytes.len()), tensor.ty.unwrap().row_bytes(elements));
                assert_eq!(bytes, shared.tensor_bytes(i).unwrap());
            }
            for (key, value) in mapped.metadata() {
                assert_eq!(mapped.get(key), Some(value));
            }
        }
    }
    let count = models("gguf").len();
    assert!(count >= if has_reference_data!() { 55 } else { 9 }, "{count} files");
}

#[reference_test]
fn a_large_vocabulary_opens_in_milliseconds() {
    let path = data("tokenizers/llama-bpe.gguf");
    let start = Instant::now();
    let gguf = Gguf::open(path).unwrap();
    let micros = start.elapsed().as_micros();
    let tokens: Strings<'_> = gguf.require("tokenizer.ggml.tokens").unwrap();
    assert_eq!(
        (tokens.len(), tokens.get(0), tokens.get(128_000)),
        (128_256, Some("!"), Some("<|begin_of_text|>"))
    );
    assert_eq!(tokens.get(128_256), None);
    println!("{} tokens in {micros} us", tokens.len());
}
