//! The reference data for tests: `shared/data` next to the repository. Its files are not part of
//! the repository.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::path::{Path, PathBuf};

/// A file or folder of the reference data.
///
/// If it is absent: `None` and a line on stderr, or a failure if `WALLA_REQUIRE_DATA` is set.
pub fn data(name: &str) -> Option<PathBuf> {
    let all = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data"));
    let path = all.join(name);
    if path.exists() {
        return Some(path);
    }
    let required = walla_types::environment::requires_test_data();
    assert!(!required, "WALLA_REQUIRE_DATA is set, and there is no {}", path.display());
    eprintln!("SKIPPED: no reference data at {}", path.display());
    None
}

/// Files with an extension in a folder of the reference data, sorted; empty if the folder is
/// absent.
pub fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let Some(folder) = data(folder) else { return Vec::new() };
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let is_wanted = |path: &PathBuf| path.extension().is_some_and(|e| e == extension);
    let mut files: Vec<_> = entries.filter(is_wanted).collect();
    assert!(!files.is_empty(), "no {extension} in {}", folder.display());
    files.sort();
    files
}
