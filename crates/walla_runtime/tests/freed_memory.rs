//! The end of an engine returns freed memory of the process. One test, because it measures the
//! whole process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::time::{Duration, Instant};

use walla_runtime::{Engine, EngineOptions, ModelSource};

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let memory = std::fs::read_to_string("/proc/self/statm").unwrap();
    memory.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// Starts an engine that cannot load, and waits for its end.
fn run_engine() {
    let engine = Engine::start(EngineOptions::new(ModelSource::Static(b"GGUF, but broken")));
    let Ok(engine) = engine else { panic!("it fails on its thread") };
    let start = Instant::now();
    while !engine.is_ended() {
        assert!(start.elapsed() < Duration::from_secs(120), "it never ends");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_end_of_an_engine_returns_freed_memory() {
    // As after an unload: small texts that stay keep the memory between them from being returned.
    let mut all: Vec<Vec<u8>> = (0..64 << 10).map(|nth| vec![nth as u8; 1 << 10]).collect();
    let mut kept = Vec::new();
    for (nth, block) in all.drain(..).enumerate() {
        if nth % 64 == 0 {
            kept.push(block);
        }
    }
    let before = resident();
    run_engine();
    let after = resident();
    assert!(after + (40 << 20) < before, "{before} bytes before, {after} after");
    assert!(kept.iter().enumerate().all(|(nth, block)| block[9] == (nth * 64) as u8));
}
