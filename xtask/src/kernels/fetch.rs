//! nvcc from the Python package index, in a virtual environment of its own, so that a machine
//! without CUDA can compile the kernels.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the fetched nvcc calls itself: the one that the shipped images are made with.
pub const VERSION: &str = "V13.0.88";

/// What nvcc needs to compile to PTX and machine code, in the versions that the shipped images were
/// made with, and what shows machine code as text.
const PACKAGES: &[&str] = &[
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-nvdisasm==13.5.37",
];

/// The compiler in a virtual environment, where [`fetch`] has put it.
pub fn find(environment: &Path) -> Option<PathBuf> {
    let libraries = std::fs::read_dir(environment.join("lib")).ok()?;
    let nvcc = "site-packages/nvidia/cu13/bin/nvcc";
    libraries.flatten().map(|python| python.path().join(nvcc)).find(|path| path.is_file())
}

/// Installs the compiler into a virtual environment, unless it is there.
///
/// # Errors
/// What is missing, or what the installer says.
pub fn fetch(environment: &Path) -> Result<PathBuf, String> {
    let is_whole = |nvcc: &PathBuf| nvcc.with_file_name("nvdisasm").is_file();
    if let Some(nvcc) = find(environment).filter(is_whole) {
        return Ok(nvcc);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment))?;
    let pip = environment.join("bin/pip");
    run(Command::new(pip).args(["install", "--quiet", "--no-deps"]).args(PACKAGES))?;
    find(environment).ok_or_else(|| format!("no nvcc in {}", environment.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_package() {
        let number = VERSION.strip_prefix('V').unwrap();
        assert!(PACKAGES.contains(&format!("nvidia-cuda-nvcc=={number}").as_str()));
    }
}
