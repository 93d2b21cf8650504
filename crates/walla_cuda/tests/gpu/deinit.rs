//! Devices that are dropped late or elsewhere: after the driver has shut down at the end of the
//! process, and on another thread.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use walla_device::KvType;
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::Shape;
use crate::parity::tokens;
use crate::rig::{Piece, Rig};
use crate::{bits, gpu, in_a_child, is_emulated};

/// Set in the process that keeps its device too long.
const CHILD: &str = "WALLA_TEST_DEINIT_CHILD";

const NAME: &str = "deinit::a_device_is_dropped_without_error_after_driver_shutdown";

/// Outlives the driver.
static KEPT: Mutex<Option<Rig>> = Mutex::new(None);

fn rig() -> (Rig, Vec<i32>) {
    let shape = Shape::llama(TensorType::Q8_0);
    let text = tokens(shape.vocab, 4, 3);
    (Rig::new(gpu(), &shape, KvType::F16, 1), text)
}

#[gpu_test]
fn a_device_is_dropped_without_error_after_driver_shutdown() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let device = gpu();
    let said = in_a_child(NAME, (CHILD, "1"));
    assert!(said.contains("deinit: dropped quietly"), "{said}");
    if is_emulated(&*device) {
        // CUDA_ERROR_DEINITIALIZED.
        assert!(said.contains("CUDA error 4"), "{said}");
    }
    said.lines().filter(|line| line.starts_with("deinit: ")).for_each(|line| println!("{line}"));
}

#[expect(unsafe_code, reason = "registers a C exit handler")]
unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

fn child() {
    // Handlers run in reverse order of registration, and the driver registers its own at
    // initialisation. This handler therefore runs after the driver's.
    #[expect(unsafe_code, reason = "as above")]
    // SAFETY: the handler does not unwind.
    let registered = unsafe { atexit(drop_kept) };
    assert_eq!(registered, 0);
    let (mut rig, text) = rig();
    rig.step(&[Piece::new(0, 0, &text)], 0);
    *KEPT.lock().unwrap() = Some(rig);
}

extern "C" fn drop_kept() {
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rig) = kept.as_mut() {
            println!("deinit: {:?}", rig.device.synchronize());
        }
        drop(kept.take());
    }));
    match dropped {
        Ok(()) => println!("deinit: dropped quietly"),
        Err(_) => println!("deinit: a panic"),
    }
}

#[gpu_test]
fn a_device_is_dropped_on_any_thread() {
    let (mut first, text) = rig();
    let expected = bits(&first.step(&[Piece::new(0, 0, &text)], 0).logits[0]);
    let dropped = std::thread::spawn(move || drop(first)).join();
    assert!(dropped.is_ok());
    let (mut moved, _) = rig();
    // Used and dropped on a different thread than it was created on.
    let used = std::thread::spawn(move || {
        let found = bits(&moved.step(&[Piece::new(0, 0, &text)], 0).logits[0]);
        drop(moved);
        found
    });
    assert_eq!(used.join().unwrap(), expected);
}
