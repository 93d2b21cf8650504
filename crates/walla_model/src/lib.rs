//! GGUF files, model specifications, tokenizers and chat templates.
