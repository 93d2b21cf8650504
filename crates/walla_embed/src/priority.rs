//! Scheduling priority of the embedder's threads relative to the host.

/// Gives this thread, and the threads it will start, the batch scheduling policy and a lower
/// priority (nice 10, about a tenth of a normal thread's share of a core that both need). No effect
/// on other systems than Linux.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the system calls have no safe wrapper in std")]
pub(crate) fn lower() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 denotes the calling thread, and the pointer is to a parameter block that outlives
    // the call.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    // SAFETY: the call has no pointers; on Linux, 0 denotes the calling thread.
    let unchanged = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
    if refused != 0 || unchanged != 0 {
        tracing::debug!("the embedder's thread keeps its priority");
    }
}

/// See the Linux version.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn lower() {}
