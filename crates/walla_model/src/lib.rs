//! GGUF files, model specifications, tokenizers and chat templates.
//!
//! Everything here reads untrusted files: whatever the bytes say, the answer is a value or an error that names what is
//! wrong, never a panic, and never an allocation that the file's length does not pay for.

#![forbid(unsafe_code)]

mod architecture;
pub mod chat;
pub mod gguf;
pub mod quant;
pub mod spec;
pub mod synth;
pub mod tokenizer;

pub use architecture::SpecError;
pub use gguf::{Gguf, GgufError, MetadataError, TensorError, TensorInfo, Value};
pub use quant::{dequantise, quantise};
pub use spec::ModelSpec;
