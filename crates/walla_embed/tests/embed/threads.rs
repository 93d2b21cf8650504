//! The thread ends with the last handle, for every state of the work, and frees its memory.

#[cfg(target_os = "linux")]
use std::{path::Path, time::Instant};

use std::time::Duration;

use walla_embed::{EmbedError, EmbedderOptions, Purpose, TrySubmitError};

use crate::common::load;
use crate::own_thread::waits;

fn some(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("the door {nth}")).collect()
}

#[test]
fn a_drop_in_the_middle_of_work_ends_requests() {
    for _ in 0..20 {
        let embedder = load("bert-mean-f32", EmbedderOptions::default());
        let pending = embedder.try_submit(some(5_000), Purpose::Plain).unwrap();
        let before = waits();
        drop(embedder);
        // For a lock for a moment at most.
        assert!(waits() - before < 5, "the drop does not wait");
        // Either it was fast enough, or it was stopped.
        match pending.wait() {
            Ok(found) => assert_eq!(found.len(), 5_000),
            Err(error) => assert_eq!(error, EmbedError::Stopped),
        }
    }
}

#[test]
fn a_closed_embedder_refuses_requests_of_its_clones() {
    let embedder = load("bert-mean-f32", EmbedderOptions::default());
    let clone = embedder.clone();
    let paused = Some(Duration::ZERO);
    embedder.set_budget(paused);
    let pending = embedder.try_submit(some(3), Purpose::Plain).unwrap();
    embedder.close();
    assert_eq!(pending.wait(), Err(EmbedError::Stopped));
    let refused = clone.try_submit(some(2), Purpose::Plain).unwrap_err();
    assert_eq!(refused, TrySubmitError::Stopped(some(2)));
    let error = clone.embed_blocking(some(1), Purpose::Plain).unwrap_err();
    assert_eq!(error, EmbedError::Stopped);
}

#[test]
fn a_pending_result_outlives_the_embedder() {
    let embedder = load("bert-mean-f32", EmbedderOptions::default());
    let mut pending = embedder.try_submit(some(2), Purpose::Plain).unwrap();
    let found = loop {
        if let Some(found) = pending.try_recv() {
            break found.unwrap();
        }
        std::thread::yield_now();
    };
    drop(embedder);
    assert_eq!((found.len(), pending.try_recv()), (2, None));
}

/// Names of this process's threads.
#[cfg(target_os = "linux")]
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

#[cfg(target_os = "linux")]
#[test]
fn threads_have_a_low_priority() {
    let embedder = load("bert-mean-f32", EmbedderOptions { threads: 2, ..Default::default() });
    let nices = || -> Vec<i32> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |path: &Path| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        let tasks = tasks.map(|task| task.path()).filter(|path| name(path).trim() == "walla-embed");
        // Field 19 is the nice value; the name in field 2 has no spaces.
        let stats = tasks.filter_map(|path| std::fs::read_to_string(path.join("stat")).ok());
        stats.filter_map(|stat| stat.split(' ').nth(18)?.parse().ok()).collect()
    };
    // Threads of other tests begin with the normal one.
    let begin = Instant::now();
    loop {
        let nices = nices();
        if !nices.is_empty() && nices.iter().all(|nice| *nice >= 10) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{nices:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    embedder.close();
}

#[cfg(target_os = "linux")]
#[test]
fn memory_and_threads_do_not_grow_with_models_and_texts() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let round = || {
        let embedder = load("bert-cls-q8_0", EmbedderOptions { threads: 2, ..Default::default() });
        let found = crate::common::embed(&embedder, some(500));
        assert_eq!(found.len(), 500);
        embedder.close();
    };
    (0..20).for_each(|_| round());
    let before = resident();
    (0..200).for_each(|_| round());
    let grown = resident().saturating_sub(before);
    // Other tests of this program run at the same time.
    assert!(grown < 64 << 20, "{grown} bytes more");
    assert!(threads("walla-embed") < 30, "{} threads", threads("walla-embed"));
}
