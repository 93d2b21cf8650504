//! GGUF files, model specifications, tokenizers and chat templates.

pub mod template;
pub mod tokenizer;
