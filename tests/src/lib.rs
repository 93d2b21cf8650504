//! Shared code of the tests across the crates: the reference data, and loading of its models.
//!
//! A few small models are in this repository, in `tests/data`. All others are in `shared/data` next
//! to the checkout: a test that needs them is a `walla_reference_test::reference_test`, which is
//! ignored where that folder is absent.

#![expect(clippy::missing_panics_doc, reason = "test support panics where a test should fail")]

mod oracle;

use std::path::{Path, PathBuf};

pub use oracle::{Class, Differences, OracleModel, OracleSequence, bits, evaluator, oracle_models};

/// The folders of reference data: the one in this repository, then the one next to the checkout.
const FOLDERS: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/data"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"),
];

/// A file of the reference data.
#[must_use]
pub fn data(name: &str) -> PathBuf {
    let mut paths = FOLDERS.map(|folder| Path::new(folder).join(name)).into_iter();
    let found = paths.find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no {name} in {FOLDERS:?}: see CONTRIBUTING.md"))
}

#[cfg(test)]
mod tests {
    /// Otherwise tests would stay ignored after the folder was added.
    #[test]
    fn the_reference_data_is_used_if_present() {
        let is_there = std::path::Path::new(super::FOLDERS[1]).join("README.md").exists();
        let is_used = walla_reference_test::has_reference_data!();
        assert_eq!(is_there, is_used, "run `cargo clean -p walla_reference_test`");
    }
}
