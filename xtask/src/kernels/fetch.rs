//! Installs nvcc from the Python package index into a dedicated virtual environment, so that a
//! machine without CUDA can compile the kernels.

use std::path::{Path, PathBuf};

use crate::python;

/// Version that the fetched nvcc reports. The shipped images are built by this version.
pub const VERSION: &str = "V13.0.88";

/// Packages for compiling to PTX and machine code, in the versions used for the shipped images, and
/// the disassembler.
const PACKAGES: &[&str] = &[
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-nvdisasm==13.5.37",
];

/// The compiler installed by [`fetch`], if present.
pub fn find(environment: &Path) -> Option<PathBuf> {
    python::find(environment, "nvidia/cu13/bin/nvcc")
}

/// Installs the compiler into a virtual environment, unless it is already there.
///
/// # Errors
/// The missing tool, or the installer's error output.
pub fn fetch(environment: &Path) -> Result<PathBuf, String> {
    let is_whole = |nvcc: &PathBuf| nvcc.with_file_name("nvdisasm").is_file();
    if let Some(nvcc) = find(environment).filter(is_whole) {
        return Ok(nvcc);
    }
    python::install(environment, PACKAGES)?;
    find(environment).ok_or_else(|| format!("no nvcc in {}", environment.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_version_matches_the_package() {
        let number = VERSION.strip_prefix('V').unwrap();
        assert!(PACKAGES.contains(&format!("nvidia-cuda-nvcc=={number}").as_str()));
    }
}
