//! Helpers for tests of whole engines.
#![allow(dead_code, reason = "each test uses its part")]

use std::thread;
use std::time::{Duration, Instant};

use walla_cpu::{CpuBackend, CpuOptions};

/// A CPU device that works on the device thread only.
pub fn inline_cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() })
}

/// Waits up to `limit` for a change that another thread makes.
pub fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "never happened: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}
