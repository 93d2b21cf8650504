//! One module a target. Each `check` takes any bytes and panics only on a defect.

pub mod gguf;
pub mod input;
pub mod seeds;
pub mod template;
pub mod tokenizer;
