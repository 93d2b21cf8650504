//! Facts of the machine: memory, cores, processors; processor time of a thread.

use std::time::Duration;

#[cfg(not(any(windows, target_os = "macos")))]
mod files;
#[cfg(any(windows, target_os = "macos"))]
mod reported;

#[cfg(not(any(windows, target_os = "macos")))]
use files as facts;
#[cfg(any(windows, target_os = "macos"))]
use reported as facts;

/// Memory that this process may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemMemory {
    pub total: u64,
    pub available: u64,
}

impl SystemMemory {
    /// Current numbers; `None` if the system does not report them.
    pub(crate) fn now() -> Option<Self> {
        facts::memory()
    }
}

/// Name of the processor, or of its architecture if the system does not report one.
pub(crate) fn processor_name() -> String {
    let name = facts::processor_name().unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { std::env::consts::ARCH.to_owned() } else { name.to_owned() }
}

/// Processor time of the calling thread, from an arbitrary origin. `None` on systems without such a
/// clock of microseconds: the thread times of Windows have a resolution of 16 ms.
pub(crate) fn processor_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: `time` is valid for a write.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let (seconds, nanos) =
            (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
        (result == 0 && nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
    }
    #[cfg(not(unix))]
    None
}

/// Number of the processor that runs the calling thread. `None` on systems that this crate does not
/// ask.
pub(crate) fn processor() -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: it has no arguments and only reads.
        let processor = unsafe { libc::sched_getcpu() };
        usize::try_from(processor).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Moves the calling thread from this processor to another one that it may use, if fewer threads
/// are ready to run than there are such processors. Does nothing on systems that this crate does
/// not ask.
pub(crate) fn leave_processor(processor: usize) {
    #[cfg(target_os = "linux")]
    affinity::leave(processor);
    #[cfg(not(target_os = "linux"))]
    let _ = processor;
}

/// The processors that the calling thread may use.
#[cfg(target_os = "linux")]
mod affinity {
    use std::fs::File;
    use std::io::Read;

    const BYTES: usize = size_of::<libc::cpu_set_t>();

    /// See [`leave_processor`](super::leave_processor).
    pub(super) fn leave(processor: usize) {
        let Some(allowed) = get() else { return };
        let mut others = allowed;
        if processor >= 8 * BYTES {
            return;
        }
        #[expect(unsafe_code, reason = "a macro of the C library")]
        // SAFETY: the number is within the set.
        unsafe {
            libc::CPU_CLR(processor, &mut others);
        }
        // The system moves a running thread at once if its processor is not allowed. Afterwards
        // the thread may use all of them again, as the program has chosen.
        if count(&others) > 0 && threads_ready().is_some_and(|ready| ready <= count(&allowed)) {
            set(&others);
            set(&allowed);
        }
    }

    fn get() -> Option<libc::cpu_set_t> {
        #[expect(unsafe_code, reason = "a type of the C library")]
        // SAFETY: a set of bits.
        let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: writes at most `BYTES` bytes.
        let result = unsafe { libc::sched_getaffinity(0, BYTES, &raw mut allowed) };
        (result == 0).then_some(allowed)
    }

    /// Without effect if a sandbox forbids the call.
    fn set(processors: &libc::cpu_set_t) {
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: reads at most `BYTES` bytes.
        let _ = unsafe { libc::sched_setaffinity(0, BYTES, processors) };
    }

    fn count(processors: &libc::cpu_set_t) -> usize {
        #[expect(unsafe_code, reason = "a macro of the C library")]
        // SAFETY: it only reads.
        let count = unsafe { libc::CPU_COUNT(processors) };
        usize::try_from(count).unwrap_or(0)
    }

    /// Threads of the whole system that run or wait for a processor. Allocates nothing.
    fn threads_ready() -> Option<usize> {
        let mut text = [0; 64];
        let bytes = File::open("/proc/loadavg").ok()?.read(&mut text).ok()?;
        ready(std::str::from_utf8(&text[..bytes]).ok()?)
    }

    /// The first number of the fourth field: `0.20 0.18 0.12 2/111 11206`.
    pub(super) fn ready(loadavg: &str) -> Option<usize> {
        loadavg.split(' ').nth(3)?.split('/').next()?.parse().ok()
    }
}

/// Number of hardware threads that the process may use, as limited by affinity and quotas.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Number of cores that this thread may run on. Hardware threads that share a core count as one; if
/// the system does not report siblings, each counts as a core.
pub(crate) fn cores() -> usize {
    let threads = processors();
    // A CPU quota may allow fewer cores than exist.
    facts::cores().map_or(threads, |cores| cores.clamp(1, threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_plausible_on_every_system() {
        // The tests run on systems that report it.
        let memory = SystemMemory::now().unwrap();
        assert!(memory.total >= memory.available && memory.available > 0, "{memory:?}");
        assert!((1..=processors()).contains(&cores()));
        assert!(!processor_name().is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_moves_keeps_its_limits() {
        let allowed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned)
        };
        let before = allowed();
        assert!(before.is_some());
        for processor in [processor().unwrap(), usize::MAX, 0, 1] {
            leave_processor(processor);
            assert_eq!(allowed(), before);
        }
        assert_eq!(affinity::ready("0.20 0.18 0.12 2/111 11206\n"), Some(2));
        for malformed in ["", "0.20 0.18", "0.20 0.18 0.12 x/111 1", "0.20 0.18 0.12 111"] {
            assert_eq!(affinity::ready(malformed).filter(|ready| *ready != 111), None);
        }
    }
}
