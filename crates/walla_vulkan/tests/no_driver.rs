//! Machines without a loader or a driver, or with broken ones: the reason is a message, and the CPU
//! runs the model. Each case is a child process, since a process loads the loader only once.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::{env, fs};

use walla_cpu::{CpuBackend, CpuOptions};
use walla_device::{Backend, OpenOptions, Registry};
use walla_vulkan::VulkanBackend;

/// Set in the process without a driver.
const CHILD: &str = "WALLA_TEST_NO_VULKAN_CHILD";

const NAME: &str = "without_a_usable_driver_the_cpu_runs";

#[test]
fn without_a_usable_driver_the_cpu_runs() {
    if env::var_os(CHILD).is_some() {
        return child();
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["libvulkan.so", "libvulkan.so.1"] {
        fs::write(at(name), "this is no library\n").unwrap();
    }
    fs::write(at("no.json"), "{}").unwrap();
    let others = tempfile::tempdir().unwrap();
    for name in ["libvulkan.so", "libvulkan.so.1"] {
        fs::copy(loaded("libgcc_s.so"), others.path().join(name)).unwrap();
    }
    let cases = [
        ("a broken loader", "LD_LIBRARY_PATH", folder.path().to_owned()),
        ("another library", "LD_LIBRARY_PATH", others.path().to_owned()),
        ("no driver", "VK_ICD_FILENAMES", at("none.json")),
        ("a broken driver", "VK_ICD_FILENAMES", at("no.json")),
    ];
    for (case, variable, value) in cases {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(CHILD, case);
        let output = command.env("VK_DRIVER_FILES", &value).env(variable, &value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}: {}\n{said}\n{complained}", output.status);
        assert!(said.contains("the CPU runs"), "{case}:\n{said}");
    }
}

/// File of a library of this process.
fn loaded(name: &str) -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let file = maps.split_whitespace().find(|word| word.contains(name));
    file.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

fn child() {
    let vulkan = VulkanBackend::default();
    let reason = vulkan.devices().expect_err("no driver");
    assert!(reason.contains("Vulkan"), "{reason}");
    // A reason, not only its title.
    assert!(!reason.trim_end().ends_with(':'), "{reason}");
    let refused = vulkan.open("vulkan:0", &OpenOptions::default()).err().expect("no driver");
    println!("{reason}; {refused}");
    let cpu = CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
    let registry = Registry::new().with(vulkan).with(cpu);
    assert_eq!(registry.absent(), [("vulkan", reason)]);
    let device = registry.open("auto", &OpenOptions::default()).unwrap();
    println!("the CPU runs: {}", device.info().name);
}
