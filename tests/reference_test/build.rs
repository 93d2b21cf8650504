//! Sets `cfg(reference_data)` if the folder of reference data is next to the checkout, `cfg(gpu)`
//! if there is an NVIDIA GPU, and `cfg(vulkan)` if there is a Vulkan driver.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(reference_data, gpu, vulkan)");
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
    if has_vulkan() {
        println!("cargo::rustc-cfg=vulkan");
    }
}

/// Whether the loader of Vulkan is installed, and the description of a driver: on Linux. Drivers of
/// other systems are found by running the tests.
fn has_vulkan() -> bool {
    println!("cargo::rerun-if-env-changed=VK_DRIVER_FILES");
    let libraries = Command::new("/sbin/ldconfig").arg("-p").output();
    let has_loader = libraries
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libvulkan.so.1"));
    let folders = ["/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
    let has_driver = std::env::var_os("VK_DRIVER_FILES").is_some()
        || folders.iter().any(|folder| {
            println!("cargo::rerun-if-changed={folder}");
            Path::new(folder).read_dir().is_ok_and(|mut files| files.next().is_some())
        });
    has_loader && has_driver
}
