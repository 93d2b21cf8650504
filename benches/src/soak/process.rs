//! Memory and threads of this process.

use std::time::{Duration, Instant};

use walla_benches::machine;

/// Timeout for threads to end after their engine, and for the last replies.
pub const MAX_END: Duration = Duration::from_secs(30);

/// Resident memory of this process; 0 if the system does not report it.
pub fn resident_kib() -> u64 {
    machine::memory_bytes("VmRSS:").unwrap_or(0) >> 10
}

/// Names of walla's threads in this process.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("walla")).collect()
}

pub fn await_no_threads(part: &str) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let left = threads();
        if left.is_empty() {
            return Ok(());
        }
        if start.elapsed() > MAX_END {
            return Err(format!("{part}: threads outlive their engine: {left:?}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Held by tests that count the threads of the process.
#[cfg(test)]
pub static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
