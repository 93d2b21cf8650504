//! The demo model that ships with walla: 8.1 million parameters, trained by us on our own text.
//!
//! It plays characters of a tavern from a description in the system prompt, and a robot. Both call
//! actions that the prompt lists (`<tool_call>` with JSON); without a list, the robot answers with
//! one JSON object. It has no world knowledge. The model card `tools/demo_model/README.md` in the
//! repository documents its capabilities and limits, with numbers, and its training.
//!
//! The file is a GGUF (version 3) of the `qwen3` architecture in Q8_0 with a ChatML template, and
//! is dedicated to the public domain (CC0-1.0). A program that depends on this crate grows by
//! [`GGUF`]`.len()` bytes, 8.8 MB.
//!
//! ```
//! assert!(walla_demo_model::GGUF.starts_with(b"GGUF"));
//! ```

#![forbid(unsafe_code)]

/// The bytes of the GGUF file, aligned to [`ALIGNMENT`] so that a reader can borrow its tensors in
/// place.
pub static GGUF: &[u8] = &FILE.0;

/// Alignment of [`GGUF`] in bytes: the default `general.alignment` of tensors in a GGUF file.
pub const ALIGNMENT: usize = 32;

/// Name of the file, for programs that write it to disk.
pub const FILE_NAME: &str = "walla-demo-q8_0.gguf";

/// SHA-256 of [`GGUF`], in hexadecimal.
pub const SHA256: &str = "02ef5b9ca390564ffea2fe712859d73effd7acc23fc85022c55a596ea5e4cbbf";

#[repr(C, align(32))]
struct Aligned<T: ?Sized>(T);

static FILE: Aligned<[u8; include_bytes!("../walla-demo-q8_0.gguf").len()]> =
    Aligned(*include_bytes!("../walla-demo-q8_0.gguf"));
