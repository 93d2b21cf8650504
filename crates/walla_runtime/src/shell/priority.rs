//! Scheduling priority of the engine's threads relative to the host.

/// Nanoseconds of a time slice: the shortest that Linux has.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const SLICE: u64 = 100_000;

/// Gives this thread, and the threads it will start, the batch scheduling policy. If no core is
/// free, waking such a thread does not preempt the thread that wakes it (the game's). From Linux
/// 6.12 on, the threads also get the shortest time slice, so that a thread of the game that wakes
/// waits less for a core. No effect on systems without this policy.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the system calls have no safe wrapper in std")]
pub(super) fn yield_to_host() {
    // The policy alone, for systems that refuse the call with the time slice.
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 denotes the calling thread, and the pointer is to a parameter block that outlives
    // the call.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    // SAFETY: the call has no pointers; 0 denotes the calling thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32, // 48.
        sched_policy: libc::SCHED_BATCH as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SLICE, // Earlier versions ignore it.
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 denotes the calling thread, and the pointer is to attributes of the size that they
    // name, which outlive the call.
    let unchanged = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if refused != 0 || unchanged != 0 {
        tracing::debug!("the device thread keeps its scheduling policy or its time slice");
    }
}

/// See the Linux version.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn yield_to_host() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Policy, nice value and slice of the calling thread.
    #[expect(unsafe_code, reason = "the system call has no safe wrapper in std")]
    fn attributes() -> (u32, i32, u64) {
        // SAFETY: the structure is of integers alone.
        let mut of: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: 0 denotes the calling thread, and the pointer is to as many bytes as are named.
        let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut of, size, 0) };
        assert_eq!(failed, 0);
        (of.sched_policy, of.sched_nice, of.sched_runtime)
    }

    #[test]
    fn threads_of_the_engine_yield_and_keep_their_nice_value() {
        let thread = std::thread::spawn(|| {
            let (_, nice, slice_before) = attributes();
            yield_to_host();
            // Versions without slices report none.
            let slice = if slice_before == 0 { 0 } else { SLICE };
            assert_eq!(attributes(), (libc::SCHED_BATCH as u32, nice, slice));
            let started = std::thread::spawn(attributes);
            assert_eq!(started.join().unwrap(), attributes());
        });
        thread.join().unwrap();
    }
}
