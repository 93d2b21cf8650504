//! Counts of this thread instead of elapsed time: a busy machine makes every call slow.
#![allow(dead_code, reason = "each test uses its part")]

use std::time::Duration;

/// Number of times that this thread has waited: for a lock, a sleep or another thread. A preempted
/// thread does not wait. Always 0 on other systems than Linux.
pub fn waits() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a number")
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// Processor time of this thread. On other systems than Linux: time.
pub fn processor_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        // The system updates the number when it chooses the next thread.
        std::thread::yield_now();
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
        let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
        Duration::from_nanos(nanos.expect("a number"))
    }
    #[cfg(not(target_os = "linux"))]
    {
        static BEGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        BEGIN.get_or_init(std::time::Instant::now).elapsed()
    }
}
