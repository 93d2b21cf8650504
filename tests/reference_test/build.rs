//! Sets `cfg(reference_data)` if the folder of reference data is next to the checkout.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(reference_data)");
    println!("cargo::rerun-if-changed=build.rs");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/README.md");
    if readme.exists() {
        println!("cargo::rerun-if-changed={}", readme.display());
        println!("cargo::rustc-cfg=reference_data");
    }
}
