//! Loading: refusals, faults and stops.

use std::ops::ControlFlow;

use walla_device::DeviceError;
use walla_doubles::faulty::{Call, Fault, FaultHandle, FaultPlan};
use walla_exec::{ExecError, ExecOptions, Executor};

use crate::rig::{OPTIONS, Rig, device, go_on, is_failed, model};

/// Loads with planned faults. Returns the error and the calls.
fn failed_load(options: ExecOptions, plan: FaultPlan) -> (ExecError, FaultHandle) {
    let (device, _) = device(plan);
    let calls = device.handle();
    let (file, model) = model();
    let loaded = Executor::load(Box::new(device), &file, &model, options, &mut go_on);
    (loaded.expect_err("it fails"), calls)
}

#[test]
fn a_load_that_fails_at_any_call_frees_the_device() {
    let options = ExecOptions { transfer_bytes: 64, mapped_results: false, ..OPTIONS };
    let loading = Call::ALL
        .into_iter()
        .filter(|call| !call.is_play() && !matches!(call, Call::Synchronize | Call::ResizeCache));
    let whole = Rig::new(options).calls;
    for call in loading {
        let count = whole.calls(call);
        assert!(count > 0, "a load makes no {call:?}");
        for nth in 0..count {
            let plan = FaultPlan::new(1).fail_call(call, nth, Fault::Failed);
            let (error, calls) = failed_load(options, plan);
            assert!(is_failed(&error), "{call:?} {nth}: {error}");
            assert_eq!(calls.calls(call), nth + 1, "nothing was tried again");
            assert!(calls.is_dropped(), "{call:?} {nth}");
        }
    }
}

#[test]
fn too_little_memory_at_any_moment_is_an_error_with_numbers() {
    let used = Rig::new(OPTIONS).sequences.executor.device().memory();
    let all = used.weight_bytes + used.cache_bytes + used.workspace_bytes + used.host_bytes;
    for max_bytes in (0..8).map(|n| all * n / 8) {
        let (error, calls) = failed_load(OPTIONS, FaultPlan::new(1).max_memory_bytes(max_bytes));
        let ExecError::Device(DeviceError::OutOfMemory { wanted_bytes, free_bytes, .. }) = error
        else {
            panic!("{max_bytes}: {error}")
        };
        assert!(wanted_bytes > free_bytes && free_bytes <= max_bytes);
        assert!(calls.is_dropped());
    }
}

#[test]
fn invalid_options_are_refused_before_any_call() {
    for options in [
        ExecOptions { ring: 65, ..OPTIONS },
        ExecOptions { page_tokens: 0, ..OPTIONS },
        ExecOptions { max_rows: 0, ..OPTIONS },
        ExecOptions { context_tokens: 0, ..OPTIONS },
    ] {
        let (error, calls) = failed_load(options, FaultPlan::new(1));
        assert!(matches!(error, ExecError::Options(_)), "{error}");
        assert_eq!(calls.calls_total(), 0);
    }
}

#[test]
fn progress_grows_to_one_and_may_stop_the_load() {
    let (file, model) = model();
    let mut fractions = Vec::new();
    let mut tell = |fraction| {
        fractions.push(fraction);
        ControlFlow::Continue(())
    };
    Executor::load(Box::new(device(FaultPlan::new(1)).0), &file, &model, OPTIONS, &mut tell)
        .unwrap();
    assert!(fractions.is_sorted_by(|a, b| a < b), "{fractions:?}");
    assert_eq!(fractions.last(), Some(&1.0));
    for stop_at in [1, 4, fractions.len()] {
        let (device, _) = device(FaultPlan::new(1));
        let (calls, mut left) = (device.handle(), stop_at);
        let mut tell = |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let stopped = Executor::load(Box::new(device), &file, &model, OPTIONS, &mut tell);
        assert!(matches!(stopped, Err(ExecError::Stopped)));
        assert_eq!(calls.calls(Call::LoadMatrix), stop_at as u64);
        assert!(calls.is_dropped() && calls.calls(Call::CreateCache) == 0);
    }
}

#[test]
fn buckets_are_sorted_and_take_the_largest_step() {
    let rig = Rig::new(OPTIONS);
    let buckets = rig.sequences.executor.buckets();
    assert!(buckets.is_sorted_by_key(|bucket| (bucket.rows, !bucket.pure_decode)));
    let last = buckets.last().unwrap();
    assert_eq!((last.rows, last.pure_decode, last.context), (16, false, 64));
    // Four sequences decode together in the bucket of four.
    let decode = buckets.iter().filter(|bucket| bucket.pure_decode).map(|bucket| bucket.rows);
    assert_eq!(decode.max(), Some(4));
    assert_eq!(rig.sequences.executor.vocab(), 320);
    assert!(!rig.sequences.executor.is_recurrent());
}
