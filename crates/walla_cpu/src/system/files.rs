//! Facts of the machine from files of Linux; unknown on systems that do not have them.

use std::path::{Path, PathBuf};

use super::SystemMemory;

/// Reads a system file; `None` if it is unreadable.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The files of this machine.
fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// See [`SystemMemory::now`].
pub(super) fn memory() -> Option<SystemMemory> {
    memory_from(&read)
}

/// Cores of the CPUs that the calling thread may use.
pub(super) fn cores() -> Option<usize> {
    cores_from(&read)
}

/// The model name of the first processor.
pub(super) fn processor_name() -> Option<String> {
    let text = read(Path::new("/proc/cpuinfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    line.split_once(':').map(|(_, name)| name.to_owned())
}

/// The machine's memory, or less if a control group of this process (a container, a service)
/// has a lower limit.
fn memory_from(read: Read<'_>) -> Option<SystemMemory> {
    let text = read(Path::new("/proc/meminfo"))?;
    let kib = |key| number_after(&text, key).map(|kib| kib.saturating_mul(1024));
    let mut memory = SystemMemory { total: kib("MemTotal:")?, available: kib("MemAvailable:")? };
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

fn cores_from(read: Read<'_>) -> Option<usize> {
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
        let memory = memory_from(&files(all))?;
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
            cores_from(&files(&all))
        };
        assert_eq!(cores("0-7"), Some(4));
        assert_eq!(cores("0-3"), Some(4));
        assert_eq!(cores("0,4"), Some(1));
        assert_eq!(cores("2,5-7"), Some(3));
        assert_eq!(cores("9"), None, "a CPU that nothing is said of");
        assert_eq!(cores("0-4000000000"), None);
        assert_eq!(cores_from(&files(&[])), None);
    }
}
