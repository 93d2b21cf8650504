//! Memory and cores of the system, from files of Linux, unknown on other systems; processor time
//! of a thread.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reads a system file; `None` if it is unreadable.
pub(crate) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The files of this machine.
fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Memory that this process may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemMemory {
    pub total: u64,
    pub available: u64,
}

impl SystemMemory {
    /// Current numbers; `None` if the system does not report them.
    pub(crate) fn now() -> Option<Self> {
        Self::from_files(&read)
    }

    /// The machine's memory, or less if a control group of this process (a container, a service)
    /// has a lower limit.
    fn from_files(read: Read<'_>) -> Option<Self> {
        let text = read(Path::new("/proc/meminfo"))?;
        let kib = |key| number_after(&text, key).map(|kib| kib.saturating_mul(1024));
        let mut memory = Self { total: kib("MemTotal:")?, available: kib("MemAvailable:")? };
        let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        for group in groups.lines().filter_map(Group::of_line) {
            // The limits of all parent groups apply too. In a container the path may be the host's
            // path; then the mounted root is the container's group.
            for folder in group.folder.ancestors().take_while(|path| path.starts_with(group.root)) {
                if let Some(own) = group.version.memory(folder, read) {
                    memory.total = memory.total.min(own.total);
                    memory.available = memory.available.min(own.available);
                }
            }
        }
        Some(memory)
    }
}

/// A control group with the memory controller.
struct Group {
    version: Version,
    root: &'static str,
    folder: PathBuf,
}

impl Group {
    /// The group of a line of `/proc/self/cgroup`, `hierarchy:controllers:path`. Only two kinds of
    /// hierarchy account for memory.
    fn of_line(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (version, root) = if controllers.is_empty() {
            (Version::Two, "/sys/fs/cgroup")
        } else if controllers.split(',').any(|name| name == "memory") {
            (Version::One, "/sys/fs/cgroup/memory")
        } else {
            return None;
        };
        Some(Self { version, root, folder: Path::new(root).join(path.trim_start_matches('/')) })
    }
}

/// Control groups version 1 and 2.
#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The limit of a group and its available part; `None` if it has no limit.
    fn memory(self, folder: &Path, read: Read<'_>) -> Option<SystemMemory> {
        // Cached files count as used but can be evicted. Reading a model fills any limit with them.
        let (limit, used, cached) = match self {
            Self::One => (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_active_file ", "total_inactive_file "],
            ),
            Self::Two => ("memory.max", "memory.current", ["active_file ", "inactive_file "]),
        };
        let number = |name| read(&folder.join(name))?.trim().parse::<u64>().ok();
        let (total, used) = (number(limit)?, number(used)?);
        let stat = read(&folder.join("memory.stat")).unwrap_or_default();
        let cached = cached.map(|key| number_after(&stat, key).unwrap_or(0));
        let held = used.saturating_sub(cached[0].saturating_add(cached[1]));
        Some(SystemMemory { total, available: total.saturating_sub(held) })
    }
}

/// The number after `key` at the start of a line.
fn number_after(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
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
    cores_from_files(&read).map_or(threads, |cores| cores.clamp(1, threads))
}

/// Cores of the CPUs that the calling thread may use.
fn cores_from_files(read: Read<'_>) -> Option<usize> {
    let status = read(Path::new("/proc/thread-self/status"))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores: Vec<String> = Vec::new();
    for cpu in cpus(list.trim())? {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = read(Path::new(&path))?;
        if !cores.contains(&siblings) {
            cores.push(siblings);
        }
    }
    Some(cores.len())
}

/// The numbers of a list such as `0-3,8`; `None` if it is malformed, or if a number is too large
/// for any machine.
fn cpus(list: &str) -> Option<Vec<u32>> {
    const MAX_CPUS: u32 = 1 << 16;
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if last >= MAX_CPUS {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn files<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        move |path| {
            let found = all.iter().find(|(name, _)| Path::new(name) == path)?;
            Some(found.1.to_owned())
        }
    }

    const MEMINFO: (&str, &str) =
        ("/proc/meminfo", "MemTotal:        2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n");

    fn memory(all: &[(&str, &str)]) -> Option<(u64, u64)> {
        let memory = SystemMemory::from_files(&files(all))?;
        Some((memory.total, memory.available))
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        assert_eq!(memory(&[MEMINFO]), Some((2 << 20, 1 << 20)));
        assert_eq!(memory(&[]), None);
        assert_eq!(memory(&[("/proc/meminfo", "MemTotal: 12 kB\n")]), None);
    }

    #[test]
    fn container_limits_bound_free_memory_and_cached_files_count_as_free() {
        let unlimited = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/game\n"),
            ("/sys/fs/cgroup/game/memory.max", "max\n"),
            ("/sys/fs/cgroup/game/memory.current", "900000\n"),
        ];
        assert_eq!(memory(&unlimited), Some((2 << 20, 1 << 20)));
        // The group has no limit, its parent has one.
        let above = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "1\n"),
            ("/sys/fs/cgroup/a/memory.max", "700000\n"),
            ("/sys/fs/cgroup/a/memory.current", "600000\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 50000\nactive_file 20000\n"),
        ];
        assert_eq!(memory(&above), Some((700_000, 170_000)));
        // A container of version 1 that sees the host's path but only its group, at the root.
        let one = [
            MEMINFO,
            ("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/1234\n0::/\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "700000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "800000\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "active_file 1\ntotal_inactive_file 200000\n"),
        ];
        assert_eq!(memory(&one), Some((700_000, 100_000)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_moves_keeps_its_limits() {
        let allowed = || {
            let status = read(Path::new("/proc/thread-self/status")).unwrap();
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

    #[test]
    fn hyperthreads_count_as_one_core() {
        let siblings: Vec<(String, String)> = (0..8)
            .map(|cpu| {
                let path =
                    format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
                (path, format!("{},{}\n", cpu % 4, cpu % 4 + 4))
            })
            .collect();
        let cores = |allowed: &str| {
            let status = format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n");
            let mut all = vec![("/proc/thread-self/status", status.as_str())];
            all.extend(siblings.iter().map(|(path, text)| (path.as_str(), text.as_str())));
            cores_from_files(&files(&all))
        };
        assert_eq!(cores("0-7"), Some(4));
        assert_eq!(cores("0-3"), Some(4));
        assert_eq!(cores("0,4"), Some(1));
        assert_eq!(cores("2,5-7"), Some(3));
        assert_eq!(cores("9"), None, "a CPU that nothing is said of");
        assert_eq!(cores("0-4000000000"), None);
        assert_eq!(cores_from_files(&files(&[])), None);
        assert!((1..=processors()).contains(&super::cores()));
    }
}
