//! One module per target. Each `check` accepts arbitrary bytes and panics only on a bug.

pub mod gguf;
pub mod input;
pub mod seeds;
pub mod template;
pub mod tokenizer;
