//! The reference data for tests. A few small models are in this repository, in `tests/data`. All
//! other files are in `shared/data` next to the checkout: a test that needs them is a
//! `reference_test`, which is ignored where that folder is absent.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folders of reference data: the one in this repository, then the one next to the checkout.
const FOLDERS: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data"),
];

/// A file of the reference data.
pub fn data(name: &str) -> PathBuf {
    let mut paths = FOLDERS.map(|folder| Path::new(folder).join(name)).into_iter();
    let found = paths.find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no {name} in {FOLDERS:?}: see CONTRIBUTING.md"))
}

/// All files that are here with an extension in a folder of the reference data, sorted by name. A
/// file that is in both folders is listed once. Empty if there is no such folder.
pub fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut files = BTreeMap::new();
    for all in FOLDERS {
        let Ok(entries) = std::fs::read_dir(Path::new(all).join(folder)) else { continue };
        let paths = entries.map(|entry| entry.unwrap().path());
        let wanted = paths.filter(|path| path.extension().is_some_and(|e| e == extension));
        for path in wanted {
            files.entry(path.file_name().unwrap().to_owned()).or_insert(path);
        }
    }
    files.into_values().collect()
}

/// All models that are here, from the folders `models` and `models_2026`, sorted by name. The
/// latter include architectures that have no builder.
pub fn models(extension: &str) -> Vec<PathBuf> {
    let paths = ["models_2026", "models"].into_iter().flat_map(|folder| files(folder, extension));
    let by_name = |path: PathBuf| (path.file_name().unwrap().to_owned(), path);
    paths.map(by_name).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// As [`files`], in a `reference_test`: there is at least one.
pub fn all_files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let files = files(folder, extension);
    assert!(!files.is_empty(), "no {extension} in {folder}");
    files
}
