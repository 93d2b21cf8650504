//! GGUF files, model specifications, tokenizers and chat templates.
//!
//! Everything here reads untrusted files. For any bytes the result is a value or an error that
//! names the defect, never a panic, and never an allocation larger than the file's length
//! justifies.
//!
//! The lints below enforce that for panics. Arithmetic on numbers of a file is checked where they
//! are read (`gguf`, `architecture`: clippy's `arithmetic_side_effects`). Elsewhere numbers are
//! bounded by lengths of texts and lists, and this workspace builds the crate with overflow checks
//! in release too. A dependent that wants these checks sets `overflow-checks = true` for the
//! package `walla_model` in its profile.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

#[deny(clippy::arithmetic_side_effects)]
mod architecture;
pub mod chat;
pub mod embedding;
pub mod gguf;
mod names;
mod quant;
pub mod spec;
pub mod tokenizer;

pub use architecture::SpecError;
pub use embedding::EmbeddingSpec;
pub use gguf::{Gguf, GgufError, MetadataError, TensorError, TensorInfo, Value};
pub use quant::dequantize;
pub use spec::ModelSpec;
