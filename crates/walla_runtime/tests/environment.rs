//! The engine reads no variables of its process: only `walla_types::environment` does. A switch for
//! an experiment would change the behavior of a game that has a variable of that name.

use std::fs;
use std::path::Path;

/// Rust files of a folder with code that is not compiled for tests only.
fn sources(folder: &Path, visit: &mut dyn FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if path.is_dir() && name != "tests" {
            sources(&path, visit);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            visit(&path, &fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn the_engine_reads_no_variables_of_its_process() {
    let (mut files, mut readers) = (0, Vec::new());
    for of_crate in ["walla_runtime", "walla_exec", "walla_plan"] {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        sources(&crates.join(of_crate).join("src"), &mut |path, text| {
            files += 1;
            if text.contains("env::var") {
                readers.push(path.display().to_string());
            }
        });
    }
    assert!(files > 100, "{files} files");
    assert_eq!(readers, [""; 0]);
}
