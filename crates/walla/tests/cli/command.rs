//! Runs the command; models for it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use walla_doubles::synth::{self, Mixture, Model};

#[path = "../../../walla_model/tests/reference_data/mod.rs"]
mod reference_data;

pub use reference_data::data as reference;

/// The command with the CPU's exact kernels, one thread, and none of the caller's settings.
pub fn walla(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walla"));
    command.args(arguments).env("WALLA_CPU_VARIANT", "scalar").stdin(Stdio::null());
    // Nothing is left in the user's cache folder.
    command.env("WALLA_VULKAN_CACHE", "0");
    command
}

/// A device that accepts and forgets all bytes.
pub const NULL: &str = if cfg!(windows) { "NUL" } else { "/dev/null" };

/// Result of a run. Standard output is always text.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    fn new(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

pub fn run(arguments: &[&str]) -> Ran {
    Ran::new(walla(arguments).output().expect("the command starts"))
}

/// Runs a command that must succeed, and returns its standard output.
pub fn succeed(arguments: &[&str]) -> String {
    let ran = run(arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
    ran.out
}

/// Runs with bytes on standard input.
pub fn run_with_input(arguments: &[&str], input: impl AsRef<[u8]>) -> Ran {
    let mut command = walla(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    child.stdin.take().unwrap().write_all(input.as_ref()).unwrap();
    Ran::new(child.wait_with_output().unwrap())
}

/// Parses standard output as JSON on a single line.
pub fn json_line(out: &str) -> Value {
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// A folder for this test run.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

/// A path in the test's folder.
pub fn scratch(name: &str) -> String {
    folder().join(name).to_str().unwrap().to_owned()
}

/// A tiny synthetic model: its text is meaningless, but it passes through every part of the
/// command.
pub fn tiny() -> &'static str {
    static TINY: OnceLock<String> = OnceLock::new();
    TINY.get_or_init(|| {
        let model = Model {
            width: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            hidden: 96,
            vocab: 300,
            context_train: 256,
            ..Model::QWEN3_0_6B
        };
        let path = scratch("tiny.gguf");
        std::fs::write(&path, synth::write(&model, Mixture::Q8_0, 7, Vec::new()).unwrap()).unwrap();
        path
    })
}

/// A JSON file of the reference data.
pub fn reference_json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(reference(name)).unwrap()).unwrap()
}
