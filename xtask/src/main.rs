//! The project's own chores.
//!
//! - `cargo xtask ci`: everything that continuous integration runs, in the same order.
//! - `cargo xtask layers`: checks that arrows between crates point to a lower floor only.
//! - `cargo xtask emulate [--capability X.Y] [TEST ARGUMENTS]`: runs walla's GPU tests on the emulator, where there is no GPU.
//! - `cargo xtask kernels [--check | --fetch | --out FOLDER [--only TARGET …]]`: rebuilds the CUDA kernel images, proves that they are those of the
//!   sources, fetches nvcc for it, or makes images for a game to ship.

mod emulate;
mod kernels;
mod layers;

use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask ci | layers | emulate [--capability X.Y] [TEST ARGUMENTS] | \
                     kernels [--check | --fetch | --out FOLDER [--only TARGET …]]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("ci") => ci(),
        Some("layers") => layers::check(),
        Some("emulate") => emulate::run(&arguments[1..]),
        Some("kernels") => kernels::run(&arguments[1..]),
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

/// What CI runs: tests first, since they say most.
fn ci() -> Result<(), String> {
    run(&mut all_tests())?;
    emulate::ci()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--all-targets", "--", "-D", "warnings"])?;
    cargo(&["clippy", "--package", "walla", "--features", "cuda", "--", "-D", "warnings"])?;
    let timing = ["--package", "walla_cuda", "--features", "cupti", "--all-targets"];
    cargo(&[&["clippy"], &timing[..], &["--", "-D", "warnings"]].concat())?;
    cargo(&["test", "--package", "walla_cuda", "--features", "cupti", "--lib"])?;
    let lod = ["--package", "bevy_walla", "--features", "lod"];
    cargo(&[&["clippy"], &lod[..], &["--all-targets", "--", "-D", "warnings"]].concat())?;
    cargo(&[&["test"], &lod[..], &["--lib", "--test", "level_of_detail"]].concat())?;
    run(cargo_command(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    layers::check()?;
    // Without network, or without Python, the images are checked by hash alone.
    if let Err(reason) = kernels::run(&["--fetch".to_owned()]) {
        eprintln!("xtask: no compiler for the kernels: {reason}");
    }
    kernels::run(&["--check".to_owned()])
}

/// All tests; where the reference data lies beside the checkout, those that compare with it may not skip.
fn all_tests() -> Command {
    let mut command = cargo_command(&["test"]);
    if Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")).is_dir() {
        command.env("WALLA_REQUIRE_DATA", "1");
    } else {
        eprintln!("xtask: there is no reference data: tests that compare with it skip");
    }
    command
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    run(&mut cargo_command(arguments))
}

fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("xtask: {command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
