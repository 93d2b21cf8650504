//! What the tests across the crates share: where the reference data lies, and how to load a model of it.

#![expect(clippy::missing_panics_doc, reason = "test support panics where a test should fail")]

mod oracle;

use std::path::PathBuf;

pub use oracle::{Class, Differences, OracleModel, OracleSequence, bits, oracle_models};

/// The folder of reference data beside the checkout, if it is there.
///
/// Without it the tests that need it say so and pass: they have nothing to compare with.
#[must_use]
pub fn shared_data() -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"));
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: there is no reference data at {}", path.display());
    None
}
