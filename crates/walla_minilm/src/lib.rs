//! all-MiniLM-L6-v2 for English texts, small enough to be part of a program: the embedding model by
//! which walla's memories are found by meaning.
//!
//! 22.7 million parameters of sentence-transformers' model became 16.7 million in 4.5 bits:
//! 15,500 of 30,522 tokens, 256 positions, matrices in IQ4_NL (`tools/embedding/shrink.py` in the
//! repository). Vectors have 384 dimensions and the length 1. The file is a GGUF (version 3) of the
//! architecture `bert`. A program that uses [`GGUF`] grows by its length, 10 MB.
//!
//! The weights are derived from
//! [all-MiniLM-L6-v2](https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2) and licensed
//! under the Apache License 2.0; the file `NOTICE` lists the changes.
//!
//! ```
//! assert!(walla_minilm::GGUF.starts_with(b"GGUF"));
//! ```

#![forbid(unsafe_code)]

/// The bytes of the GGUF file, aligned to [`ALIGNMENT`] so that a reader can borrow its tensors in
/// place.
pub static GGUF: &[u8] = &FILE.0;

/// Alignment of [`GGUF`] in bytes: the default `general.alignment` of tensors in a GGUF file.
pub const ALIGNMENT: usize = 32;

/// Name of the file, for programs that write it to disk.
pub const FILE_NAME: &str = "minilm-iq4_nl.gguf";

/// SHA-256 of [`GGUF`], in hexadecimal.
pub const SHA256: &str = "d30265c08c36136c54621c35b6d4b7e2c2c67a1fa5fbef482db068a6683e8e78";

#[repr(C, align(32))]
struct Aligned<T: ?Sized>(T);

static FILE: Aligned<[u8; include_bytes!("../minilm-iq4_nl.gguf").len()]> =
    Aligned(*include_bytes!("../minilm-iq4_nl.gguf"));
