//! Shared code of the tests across the crates: the location of the reference data, and loading of
//! its models.

#![expect(clippy::missing_panics_doc, reason = "test support panics where a test should fail")]

mod oracle;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

pub use oracle::{Class, Differences, OracleModel, OracleSequence, bits, oracle_models};

/// The folder of reference data next to the checkout, if it exists.
///
/// Without it, the tests that need it report that they are skipped, and pass. `WALLA_REQUIRE_DATA`
/// in the environment makes them fail instead.
#[must_use]
pub fn shared_data() -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"));
    if path.is_dir() {
        return Some(path);
    }
    let missing = format!("there is no reference data at {}", path.display());
    assert!(!walla_types::environment::requires_test_data(), "{missing}");
    say_skipped(missing);
    None
}

/// Reports on standard error that a test is skipped, and why: the standard output of a passing test
/// is not shown.
pub fn say_skipped(why: impl Display) {
    let _ = writeln!(io::stderr(), "SKIPPED: {why}");
}
