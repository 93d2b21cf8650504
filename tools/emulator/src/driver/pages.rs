//! System pages behind fixed addresses.

use std::ops::Range;
use std::ptr;

use cudarc::driver::sys::CUresult;

use super::Outcome;

const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Reserves addresses that begin at a multiple of `alignment` (a power of two). They are not
/// accessible.
pub(super) fn reserve(bytes: usize, alignment: usize) -> Outcome<Range<u64>> {
    let refused = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let whole = bytes.checked_add(alignment).ok_or(refused)?;
    // SAFETY: new pages at an address of the system's choice.
    let found = unsafe { libc::mmap(ptr::null_mut(), whole, libc::PROT_NONE, PRIVATE, -1, 0) };
    if found == libc::MAP_FAILED {
        return Err(refused);
    }
    let found = found.expose_provenance();
    let start = found.next_multiple_of(alignment);
    release(found as u64..start as u64);
    release((start + bytes) as u64..(found + whole) as u64);
    Ok(start as u64..(start + bytes) as u64)
}

/// Makes reserved pages readable and writable: zeros, after [`reserve`] or [`close`].
pub(super) fn open(range: &Range<u64>) -> Outcome {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: callers pass pages that they reserved.
    let result = unsafe { libc::mprotect(start(range), length(range), rights) };
    if result == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) }
}

/// Releases the memory behind reserved pages; the addresses remain reserved.
pub(super) fn close(range: &Range<u64>) {
    let flags = PRIVATE | libc::MAP_FIXED;
    // SAFETY: callers pass pages that they reserved and that are not in use: the new pages replace
    // them.
    let found = unsafe { libc::mmap(start(range), length(range), libc::PROT_NONE, flags, -1, 0) };
    assert!(found != libc::MAP_FAILED, "the system takes back {range:#x?}");
}

/// Releases reserved addresses.
pub(super) fn release(range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    // SAFETY: callers pass pages that they reserved and that are not in use.
    let result = unsafe { libc::munmap(start(&range), length(&range)) };
    assert!(result == 0, "the system takes back {range:#x?}");
}

fn start(range: &Range<u64>) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(range.start as usize)
}

fn length(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
