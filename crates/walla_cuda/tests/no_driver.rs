//! Machines without a driver, or with a broken one: the error is a message, and the CPU runs the
//! model. Each case is a child process, since a process loads the driver only once.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use walla_cpu::{CpuBackend, CpuOptions};
use walla_cuda::CudaBackend;
use walla_device::{Backend, OpenOptions, Registry};

/// Set in the process without a driver.
const CHILD: &str = "WALLA_TEST_NO_DRIVER_CHILD";

const NAME: &str = "without_a_usable_driver_the_cpu_runs";

/// Creates the file with the driver's name.
type Make = fn(&Path);

#[test]
fn without_a_usable_driver_the_cpu_runs() {
    if env::var_os(CHILD).is_some() {
        return child();
    }
    let kinds: [(&str, Make); 5] = [
        ("an empty file", |file| fs::write(file, "").unwrap()),
        ("a text", |file| fs::write(file, "this is no library\n".repeat(500)).unwrap()),
        ("half a header", |file| fs::write(file, b"\x7fELF\x02\x01\x01\0\0\0\0\0").unwrap()),
        ("a folder", |file| fs::create_dir(file).unwrap()),
        ("another library", |file| _ = fs::copy(another_library(), file).unwrap()),
    ];
    for (kind, make) in kinds {
        let folder = env::temp_dir().join(format!("walla-no-driver-{}", std::process::id()));
        let _old = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            make(&folder.join(name));
        }
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(CHILD, kind);
        let output = command.env("LD_LIBRARY_PATH", &folder).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind}: {}\n{said}\n{complained}", output.status);
        assert!(said.contains("the CPU runs"), "{kind}:\n{said}");
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// A valid library without the driver's functions.
fn another_library() -> &'static str {
    let known =
        ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"];
    known.into_iter().find(|file| Path::new(file).exists()).expect("every system has a libm")
}

fn child() {
    let cuda = CudaBackend::default();
    // The system's real driver may be found after the broken one: then nothing is tested.
    if let Err(reason) = cuda.devices() {
        assert!(reason.contains("NVIDIA"), "{reason}");
        let refused = cuda.open("cuda:0", &OpenOptions::default()).err().expect("no driver");
        assert!(refused.to_string().contains("NVIDIA"), "{refused}");
        println!("no driver: {reason}");
    }
    let cpu = CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() });
    let registry = Registry::new().with(cuda).with(cpu);
    let device = registry.open("cpu", &OpenOptions::default()).unwrap();
    println!("the CPU runs: {}", device.info().name);
}
