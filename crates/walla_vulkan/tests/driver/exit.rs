use std::ffi::c_int;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, process, thread};

use walla_device::KvType;
use walla_reference_test::vulkan_test;
use walla_types::TensorType;

use crate::gpu;
use crate::model::Shape;
use crate::rig::{Piece, Rig};

/// Set in the child processes: the work of their devices.
const CHILD: &str = "WALLA_TEST_EXIT_CHILD";

/// Steps of all devices.
static STEPS: AtomicU32 = AtomicU32::new(0);

/// Processes that end while devices of other threads work, or are opened and closed. Drivers free
/// all that they have at the end of a process, so no call may be in progress then.
#[vulkan_test]
fn a_process_ends_while_its_devices_work() {
    if let Ok(work) = env::var(CHILD) {
        return end_while_devices_work(&work);
    }
    for (work, count) in [("steps", 4), ("opens", 4)] {
        for _ in 0..count {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "exit::a_process_ends_while_its_devices_work"]);
            command.args(["--include-ignored", "--nocapture"]).env(CHILD, work);
            let output = command.output().unwrap();
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{work}: {}\n{complained}", output.status);
        }
    }
}

fn rig() -> Rig {
    Rig::new(gpu(), &Shape::llama(TensorType::Q4K), KvType::F16, 3)
}

/// An exit handler. It is registered before a driver's handlers, so it runs after them.
extern "C" fn check() {
    let before = STEPS.load(Ordering::Acquire);
    thread::sleep(Duration::from_millis(50));
    if STEPS.load(Ordering::Acquire) != before {
        process::abort();
    }
}

#[expect(unsafe_code, reason = "a handler of the C library")]
fn end_while_devices_work(work: &str) {
    unsafe extern "C" {
        fn atexit(handler: extern "C" fn()) -> c_int;
    }
    // SAFETY: a function of the C library; the handler lives as long as the process.
    assert_eq!(unsafe { atexit(check) }, 0);
    for _ in 0..2 {
        if work == "steps" {
            let mut rig = rig();
            thread::spawn(move || {
                let mut position = 0;
                loop {
                    rig.step(&[Piece::new(0, position % 64, &[7])], 0);
                    STEPS.fetch_add(1, Ordering::AcqRel);
                    position += 1;
                }
            });
        } else {
            thread::spawn(|| {
                loop {
                    drop(rig());
                }
            });
        }
    }
    thread::sleep(Duration::from_millis(if work == "steps" { 20 } else { 300 }));
    assert!(work == "opens" || STEPS.load(Ordering::Acquire) > 0, "no device works");
    process::exit(0);
}
