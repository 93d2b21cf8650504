//! Names and descriptions of errors.

use std::ffi::{CStr, c_char, c_uint};

use cudarc::driver::sys::CUresult;

use super::{Outcome, give};

macro_rules! errors {
    ($($code:ident $words:literal;)*) => {
        /// Every code that this library returns, with its name and description.
        const ERRORS: &[(CUresult, &CStr, &CStr)] =
            &[$((CUresult::$code, terminated(concat!(stringify!($code), "\0")), $words)),*];
    };
}

errors! {
    CUDA_SUCCESS c"no error";
    CUDA_ERROR_INVALID_VALUE c"invalid argument";
    CUDA_ERROR_OUT_OF_MEMORY c"out of memory";
    CUDA_ERROR_NOT_INITIALIZED c"initialization error";
    CUDA_ERROR_INVALID_DEVICE c"invalid device ordinal";
    CUDA_ERROR_INVALID_CONTEXT c"invalid device context";
    CUDA_ERROR_ALREADY_MAPPED c"resource already mapped";
    CUDA_ERROR_NO_BINARY_FOR_GPU c"no kernel image is available for execution on the device";
    CUDA_ERROR_UNSUPPORTED_LIMIT c"limit is not supported on this architecture";
    CUDA_ERROR_INVALID_PTX c"a PTX JIT compilation failed";
    CUDA_ERROR_INVALID_HANDLE c"invalid resource handle";
    CUDA_ERROR_ILLEGAL_STATE
        c"the operation cannot be performed in the present state";
    CUDA_ERROR_NOT_FOUND c"named symbol not found";
    CUDA_ERROR_NOT_READY c"device not ready";
    CUDA_ERROR_ILLEGAL_ADDRESS c"an illegal memory access was encountered";
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES c"too many resources requested for launch";
    CUDA_ERROR_CONTEXT_IS_DESTROYED c"context is destroyed";
    CUDA_ERROR_MISALIGNED_ADDRESS c"misaligned address";
    CUDA_ERROR_LAUNCH_FAILED c"unspecified launch failure";
    CUDA_ERROR_NOT_SUPPORTED c"operation not supported";
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED c"operation not permitted when stream is capturing";
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        c"operation failed due to a previous error during capture";
    CUDA_ERROR_STREAM_CAPTURE_MERGE
        c"operation would result in a merge of separate capture sequences";
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED c"capture was not ended in the same stream as it began";
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED c"capturing stream has unjoined work";
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        c"dependency created on uncaptured work in another stream";
    CUDA_ERROR_CAPTURED_EVENT
        c"operation not permitted on an event last recorded in a capturing stream";
    CUDA_ERROR_INVALID_CLUSTER_SIZE c"invalid cluster size";
    CUDA_ERROR_INVALID_RESOURCE_TYPE c"invalid resource type";
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION c"invalid resource configuration";
}

/// A name with the zero at its end.
const fn terminated(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one zero, at the end"),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_uint, place: *mut *const c_char) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, || find(code).map(|(name, _)| name.as_ptr())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: c_uint, place: *mut *const c_char) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, || find(code).map(|(_, words)| words.as_ptr())) }
}

fn find(code: c_uint) -> Outcome<(&'static CStr, &'static CStr)> {
    let found = ERRORS.iter().find(|(known, ..)| *known as c_uint == code);
    found.map(|(_, name, words)| (*name, *words)).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}
