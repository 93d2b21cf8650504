//! Tests of model files in one program, which builds faster than one for each file.

#[path = "../gguf_common/mod.rs"]
mod gguf_common;
#[path = "../reference_data/mod.rs"]
mod reference_data;
#[path = "../spec_common/mod.rs"]
mod spec_common;
#[path = "../tokenizer_common/mod.rs"]
mod tokenizer_common;

mod dequantize;
mod file;
mod file_kinds;
mod lenient_metadata;
mod malformed;
mod oracles;
mod spec_malformed;
mod spec_oracles;
mod spec_synth;
mod split;
mod writer;
