//! Scheduling priority of the engine's threads relative to the host.

/// Gives this thread, and the threads it will start, the batch scheduling policy. If no core is
/// free, waking such a thread does not preempt the thread that wakes it (the game's). No effect on
/// systems without this policy.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the system call has no safe wrapper in std")]
pub(super) fn yield_to_host() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 denotes the calling thread, and the pointer is to a parameter block that outlives
    // the call.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    if refused != 0 {
        tracing::debug!("the device thread keeps its scheduling policy");
    }
}

/// See the Linux version.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn yield_to_host() {}
