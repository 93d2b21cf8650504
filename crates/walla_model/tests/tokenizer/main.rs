//! Tests of tokenizers in one program, which builds faster than one for each file.

#[path = "../naughty/mod.rs"]
mod naughty;
#[path = "../reference_data/mod.rs"]
mod reference_data;
#[path = "../tokenizer_common/mod.rs"]
mod tokenizer_common;

mod decode;
mod encode;
mod malformed;
mod naughty_strings;
mod pre;
mod prompt;
mod reference;
mod untrusted;
mod wordpiece;
