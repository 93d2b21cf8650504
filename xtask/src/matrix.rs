//! `xtask matrix`: checks `RELIABILITY.md` against the tests: every row has tests that exist, or a
//! note with the reason.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Number of rows of the page.
const ROWS: u32 = 70;

/// Prefixes of the note of a row without a test.
const EXCUSES: &[&str] = &["not applicable:", "open:"];

/// Attributes of tests.
const ATTRIBUTES: &[&str] = &[
    "#[test]",
    "#[tokio::test",
    "#[gpu_test]",
    "#[vulkan_test]",
    "#[walla_reference_test::gpu_test]",
    "#[walla_reference_test::vulkan_test]",
];

/// Runs `xtask matrix`.
///
/// # Errors
/// Every row that is missing, has no test, or names a test that does not exist; one line each.
pub fn check() -> Result<(), String> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest.parent().ok_or("xtask has no parent folder")?;
    let page = root.join("RELIABILITY.md");
    let page = fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
    let (count, faults) = faults(&page, &|path| read(root, path));
    if faults.is_empty() {
        eprintln!("xtask: RELIABILITY.md names {count} tests, which all exist");
        return Ok(());
    }
    Err(faults.join("\n"))
}

/// The text of a file whose path is relative to `crates` or to the repository.
fn read(root: &Path, path: &str) -> Option<String> {
    let places = [root.join("crates").join(path), root.join(path)];
    places.iter().find_map(|place| fs::read_to_string(place).ok())
}

/// Number of tests that the page names, and its errors.
fn faults(page: &str, read: &dyn Fn(&str) -> Option<String>) -> (usize, Vec<String>) {
    let rows: Vec<Row<'_>> = page.lines().filter_map(Row::parse).collect();
    let mut faults = Vec::new();
    for number in 1..=ROWS {
        let count = rows.iter().filter(|row| row.number == number).count();
        if count != 1 {
            faults.push(format!("RELIABILITY.md has row {number} {count} times"));
        }
    }
    let mut tests = 0;
    for row in &rows {
        let named = row.tests();
        tests += named.len();
        let is_excused = EXCUSES.iter().any(|excuse| row.note.starts_with(excuse));
        if named.is_empty() && !is_excused {
            let number = row.number;
            faults.push(format!("row {number} has neither a test nor a note \"{}\"", EXCUSES[0]));
        }
        for (file, name) in named {
            match read(file) {
                None => faults.push(format!("row {}: there is no file {file}", row.number)),
                Some(text) if !has_test(&text, name) => {
                    faults.push(format!("row {}: {file} has no test {name}", row.number));
                }
                Some(_) => {}
            }
        }
    }
    (tests, faults)
}

/// A row of a table whose first cell is a number.
struct Row<'a> {
    number: u32,
    tests: &'a str,
    note: &'a str,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let [number, _fault, _required, tests, note, ..] = cells[..] else { return None };
        Some(Self { number: number.parse().ok()?, tests, note })
    }

    /// Files and names of tests: names follow the path of their file.
    fn tests(&self) -> Vec<(&'a str, &'a str)> {
        let mut file = "";
        let mut tests = Vec::new();
        for code in self.tests.split('`').skip(1).step_by(2) {
            if code.ends_with(".rs") {
                file = code;
            } else {
                tests.push((file, code));
            }
        }
        tests
    }
}

/// Whether a text has a function of this name with a test attribute.
fn has_test(text: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_head = |line: &str| line.strip_prefix("async ").unwrap_or(line).starts_with(&head);
    lines.iter().enumerate().filter(|(_, line)| is_head(line)).any(|(at, _)| {
        // Other attributes and comments may be between the attribute and the function.
        let above = lines[..at].iter().rev().take_while(|line| **line != "}" && !line.is_empty());
        above.clone().any(|line| ATTRIBUTES.iter().any(|it| line.starts_with(it)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "fn helper() {}\n\n/// Why.\n#[test]\n#[ignore = \"slow\"]\nfn one() {}\n\n\
                        #[tokio::test]\nasync fn two() {}\n\nfn three() {}\n\n#[gpu_test]\nfn four() {}\n";

    fn of_row(cells: &str) -> Vec<String> {
        let others = (2..=ROWS).map(|n| format!("| {n} | a | b | `x.rs` `one` | |\n"));
        let page =
            format!("| # | fault |\n|---|---|\n| 1 | {cells}\n{}", others.collect::<String>());
        faults(&page, &|path| (path == "x.rs").then(|| CODE.to_owned())).1
    }

    #[test]
    fn tests_that_exist_are_found() {
        assert!(has_test(CODE, "one") && has_test(CODE, "two"));
        assert_eq!(of_row("a | b | `x.rs` `one` `two` | |"), [""; 0]);
        assert_eq!(of_row("a | b | | not applicable: why |"), [""; 0]);
        assert_eq!(of_row("a | b | | open: why |"), [""; 0]);
    }

    #[test]
    fn a_test_that_disappeared_is_named() {
        assert!(!has_test(CODE, "three"), "no attribute");
        assert!(!has_test(CODE, "on"), "no part of a name");
        for (cells, fault) in [
            ("a | b | `x.rs` `one` `gone` | |", "row 1: x.rs has no test gone"),
            ("a | b | `x.rs` `helper` | |", "row 1: x.rs has no test helper"),
            ("a | b | `y.rs` `one` | |", "row 1: there is no file y.rs"),
            ("a | b | `one` | |", "row 1: there is no file "),
            ("a | b | | |", "row 1 has neither a test nor a note \"not applicable:\""),
            ("a | b | | works |", "row 1 has neither a test nor a note \"not applicable:\""),
        ] {
            assert_eq!(of_row(cells), [fault], "{cells}");
        }
    }

    #[test]
    fn a_missing_or_duplicate_row_is_named() {
        let (_, found) = faults("| 1 | a | b | | open: x |\n| 1 | a | b | | open: x |", &|_| None);
        assert_eq!(found.len(), ROWS as usize, "{found:?}");
        assert_eq!(found[0], "RELIABILITY.md has row 1 2 times");
    }

    /// Row 53: clippy refuses these calls, and warnings are errors in CI.
    #[test]
    fn waits_and_host_callbacks_are_disallowed() {
        let rules = include_str!("../../clippy.toml");
        for call in [
            "cuCtxSynchronize",
            "cuEventSynchronize",
            "cuStreamSynchronize",
            "cuLaunchHostFunc",
            "cuStreamAddCallback",
            "cuGraphAddHostNode",
        ] {
            assert!(rules.contains(&format!("cudarc::driver::sys::{call}\"")), "{call}");
        }
        // The one exception is an `expect`: it fails if the lint no longer finds the calls.
        let context = include_str!("../../crates/walla_cuda/src/driver/context.rs");
        assert_eq!(context.matches("#[expect(clippy::disallowed_methods").count(), 1);
    }
}
