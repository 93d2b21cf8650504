//! The embedded file has the hash and the size that the documentation states.

use std::fmt::Write as _;

use walla_minilm::{ALIGNMENT, GGUF, SHA256};

#[test]
fn the_file_is_the_documented_one() {
    let digest = ring::digest::digest(&ring::digest::SHA256, GGUF);
    let hex = digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    assert_eq!(hex, SHA256, "after a change of the model: write the new hash into src/lib.rs");
}

/// Users were promised at most 10 MB, and the registry takes no larger crate.
#[test]
fn the_file_is_an_aligned_gguf_of_version_3_and_small() {
    assert!(GGUF.starts_with(b"GGUF\x03\0\0\0"));
    assert_eq!(GGUF.as_ptr().align_offset(ALIGNMENT), 0);
    assert!(GGUF.len() <= 9_990_000, "{}", GGUF.len());
}
