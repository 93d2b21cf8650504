//! Helpers for tests of whole engines.
#![allow(dead_code, reason = "each test uses its part")]

pub mod own_thread;

use std::thread;
use std::time::{Duration, Instant};

use walla_cpu::{CpuBackend, CpuOptions};

/// A CPU device that works on the device thread only.
pub fn inline_cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { inline: true, ..CpuOptions::default() })
}

/// Longer than any change takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Waits for a change that another thread makes.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LONG, "never happened: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}
