//! Freed memory of the process.

/// Returns freed memory of the allocator to the system, as engines do when they end. A load
/// allocates in many sizes and on several threads, so glibc keeps much of it, and the memory of a
/// program that loads and unloads engines would grow. It takes milliseconds, in which a thread that
/// allocates from the same arena may wait. No effect with other allocators.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator's call has no safe wrapper in std")]
    // SAFETY: the call has no pointers, may be made by any thread, and frees nothing in use.
    let _is_any_returned = unsafe { libc::malloc_trim(0) };
}
