//! Sets `cfg(reference_data)` if the folder of reference data is next to the checkout, and
//! `cfg(gpu)` if there is an NVIDIA GPU.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(reference_data, gpu)");
    println!("cargo::rerun-if-changed=build.rs");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/README.md");
    if readme.exists() {
        println!("cargo::rerun-if-changed={}", readme.display());
        println!("cargo::rustc-cfg=reference_data");
    }
    // A part of every driver. It fails without a GPU.
    if Command::new("nvidia-smi").arg("-L").output().is_ok_and(|output| output.status.success()) {
        println!("cargo::rustc-cfg=gpu");
    }
}
