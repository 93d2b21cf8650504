//! What the tests across the crates share: where the reference data lies, and how to load a model
//! of it.

#![expect(clippy::missing_panics_doc, reason = "test support panics where a test should fail")]

mod oracle;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

pub use oracle::{Class, Differences, OracleModel, OracleSequence, bits, oracle_models};

/// The folder of reference data beside the checkout, if it is there.
///
/// Without it the tests that need it say so and pass: they have nothing to compare with.
/// `WALLA_REQUIRE_DATA` in the environment makes them fail instead.
#[must_use]
pub fn shared_data() -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"));
    if path.is_dir() {
        return Some(path);
    }
    let missing = format!("there is no reference data at {}", path.display());
    assert!(std::env::var_os("WALLA_REQUIRE_DATA").is_none(), "{missing}");
    say_skipped(missing);
    None
}

/// Says that a test does nothing here, and why, where it is heard: what a passing test prints is
/// not.
pub fn say_skipped(why: impl Display) {
    let _ = writeln!(io::stderr(), "SKIPPED: {why}");
}
