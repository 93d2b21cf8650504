//! Calls the entry points as a program does. Kernels do nothing here: their computation is tested
//! elsewhere.

mod api;
mod captures;
mod contexts;
mod faults;
mod memory;
mod modules;
mod virtual_memory;

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Expects a call to succeed.
macro_rules! ok {
    ($call:expr) => {
        assert_eq!(
            // SAFETY: tests pass pointers that are valid during the call.
            unsafe { $call },
            cudarc::driver::sys::CUresult::CUDA_SUCCESS
        )
    };
}

/// Expects a call to return an error.
macro_rules! refused {
    ($call:expr, $error:ident) => {
        assert_eq!(
            // SAFETY: tests pass pointers that are valid during the call.
            unsafe { $call },
            cudarc::driver::sys::CUresult::$error
        )
    };
}

pub(super) use {ok, refused};

use self::api::*;

/// The device with a current context, for one test at a time: tests count its memory.
struct Device {
    context: CUcontext,
    _alone: MutexGuard<'static, ()>,
}

impl Device {
    fn open() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut context = ptr::null_mut();
        ok!(cuInit(0));
        ok!(cuCtxCreate_v2(&raw mut context, 0, 0));
        Self { context, _alone: alone }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.context.is_null() {
            ok!(cuCtxDestroy_v2(self.context));
        }
    }
}

fn free_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    free as u64
}

fn allocate(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&raw mut address, bytes));
    address
}

fn stream() -> CUstream {
    let mut stream = ptr::null_mut();
    ok!(cuStreamCreate(&raw mut stream, 0));
    stream
}

fn upload(to: CUdeviceptr, bytes: &[u8]) {
    let from = bytes.as_ptr().cast();
    ok!(cuMemcpyHtoDAsync_v2(to, from, bytes.len(), ptr::null_mut()));
}

fn download(from: CUdeviceptr, bytes: usize) -> Vec<u8> {
    let mut to = vec![0; bytes];
    ok!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast::<c_void>(), from, bytes, ptr::null_mut()));
    to
}
