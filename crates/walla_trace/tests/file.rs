//! Contents of trace files. A process writes one file at a time, so the tests run sequentially.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use walla_trace::{
    DeviceClock, FirstToken, Stage, StepTimes, TraceError, TraceFile, device_step, enter,
    first_token, host_span, now_nanos,
};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spans of a file: track, name, and begin and end in nanoseconds.
fn spans(path: &Path) -> Vec<(String, String, Range<u64>)> {
    let events: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let events = events.as_array().unwrap();
    let track = |tid: &Value| {
        let names = |event: &&Value| event["name"] == "thread_name" && event["tid"] == *tid;
        events.iter().find(names).unwrap()["args"]["name"].as_str().unwrap().to_owned()
    };
    let spans = events.iter().filter(|event| event["ph"] == "X");
    let nanos = |micros: &Value| (micros.as_f64().unwrap() * 1e3).round() as u64;
    let span = |event: &Value| {
        let begin = nanos(&event["ts"]);
        let name = event["name"].as_str().unwrap().to_owned();
        (track(&event["tid"]), name, begin..begin + nanos(&event["dur"]))
    };
    spans.map(span).collect()
}

#[test]
fn stages_nest_and_device_steps_use_the_hosts_clock() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let trace = TraceFile::start(&path).unwrap();
    let begin = now_nanos();
    let plan = enter(Stage::Plan);
    drop(enter(Stage::Fill));
    drop(plan);
    let launched_nanos = now_nanos();
    std::thread::sleep(std::time::Duration::from_millis(2));
    let seen_nanos = now_nanos();
    let times =
        StepTimes { step: 3, rows: 5, launched_nanos, device_nanos: 70_000..1_070_000, seen_nanos };
    device_step(&mut DeviceClock::default(), times);
    enter(Stage::Read).discard();
    host_span("frame", begin..now_nanos());
    let summary = trace.finish().unwrap();
    assert_eq!((summary.spans, summary.spans_lost), (5, 0));

    let spans = spans(&path);
    let find = |name: &str| spans.iter().find(|span| span.1 == name).unwrap().clone();
    let (frame, plan, fill) = (find("frame"), find("plan"), find("fill"));
    let (step, results) = (find("step"), find("results"));
    let tracks = [&frame, &plan, &fill, &step, &results].map(|span| span.0.as_str());
    assert_eq!(tracks, ["host frame", "device thread", "device thread", "device", "device copies"]);
    assert!(plan.2.start <= fill.2.start && fill.2.end <= plan.2.end, "{plan:?} {fill:?}");
    assert_eq!(step.2, launched_nanos..launched_nanos + 1_000_000);
    assert_eq!(results.2, launched_nanos + 1_000_000..seen_nanos);
    assert!(frame.2.start <= step.2.start && step.2.end <= frame.2.end, "under the host's frame");
}

/// Spans of replies in a file: id, agent, name, and begin and end in nanoseconds.
fn replies(path: &Path) -> Vec<(String, u64, String, Range<u64>)> {
    let events: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let nanos = |event: &Value| (event["ts"].as_f64().unwrap() * 1e3).round() as u64;
    let (mut spans, mut open) = (Vec::new(), Vec::new());
    for event in events.as_array().unwrap() {
        match event["ph"].as_str() {
            Some("b") => open.push(event),
            Some("e") => {
                let begin = open.pop().expect("a begin precedes its end");
                assert_eq!((&begin["id"], &begin["name"]), (&event["id"], &event["name"]));
                let text = |name: &str| event[name].as_str().unwrap().to_owned();
                let agent = begin["args"]["agent"].as_u64().unwrap();
                spans.push((text("id"), agent, text("name"), nanos(begin)..nanos(event)));
            }
            _ => {}
        }
    }
    assert!(open.is_empty());
    spans
}

#[test]
fn the_parts_of_a_first_token_fill_its_span() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let trace = TraceFile::start(&path).unwrap();
    let times = FirstToken {
        agent: 4,
        reply_id: 1,
        arrived_nanos: 10_000,
        encoding_nanos: 12_000..15_000,
        prefill_nanos: 19_000..27_000,
        token_nanos: 30_000,
    };
    first_token(&times);
    // Another agent's ask overlaps it, and its prompt is evaluated in one step.
    first_token(&FirstToken { agent: 5, reply_id: 2, prefill_nanos: 19_000..19_000, ..times });
    assert_eq!(trace.finish().unwrap().spans, 7 + 6);
    let spans = replies(&path);
    let of_agent = |agent: u64| {
        let spans = spans.iter().filter(move |span| span.1 == agent);
        spans.map(|(_, _, name, nanos)| (name.as_str(), nanos.clone())).collect::<Vec<_>>()
    };
    let parts = [
        ("waiting", 10_000..12_000),
        ("encoding", 12_000..15_000),
        ("waiting", 15_000..19_000),
        ("prefill", 19_000..27_000),
        ("decode", 27_000..30_000),
        ("first token", 10_000..30_000), // its end is the last event
    ];
    assert_eq!(of_agent(4), parts);
    assert_eq!(of_agent(5)[3], ("decode", 19_000..30_000));
    assert_ne!(spans[0].0, spans[6].0, "one id per reply");
}

#[test]
fn a_full_file_counts_dropped_records() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let trace = TraceFile::max_start_with_bytes(&path, 2_560).unwrap();
    for _ in 0..50 {
        drop(enter(Stage::Plan));
    }
    let summary = trace.finish().unwrap();
    assert_eq!((summary.spans, summary.spans_lost), (10, 40));
    assert_eq!(spans(&path).len(), 10);
    assert!(std::fs::metadata(&path).unwrap().len() < 2_560);
}

#[test]
fn many_marks_never_wait_and_every_loss_is_counted() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let trace = TraceFile::start(folder.path().join("trace.json")).unwrap();
    let marks = 200_000;
    for _ in 0..marks {
        drop(enter(Stage::Plan));
    }
    let summary = trace.finish().unwrap();
    assert_eq!(summary.spans + summary.spans_lost, marks);
    assert!(summary.spans >= 65_536, "{summary:?}");
}

#[test]
fn one_file_at_a_time() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let trace = TraceFile::start(folder.path().join("a.json")).unwrap();
    assert!(matches!(TraceFile::start(folder.path().join("b.json")), Err(TraceError::Busy)));
    drop(trace);
    drop(TraceFile::start(folder.path().join("b.json")).unwrap());
    let nowhere = TraceFile::start(folder.path().join("no/such/folder/c.json"));
    assert!(matches!(nowhere, Err(TraceError::Create { .. })));
    drop(TraceFile::start(folder.path().join("c.json")).unwrap());
}

#[test]
fn a_shared_file_ends_with_its_last_holder_and_the_next_one_has_a_number() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mark = || drop(enter(Stage::Plan));
    let first = TraceFile::share(path("trace.json")).unwrap();
    mark();
    let second = TraceFile::share(path("trace.json")).unwrap();
    drop(first);
    mark();
    drop(second);
    assert_eq!(spans(&path("trace.json")).len(), 2, "the first to go does not end it");
    let third = TraceFile::share(path("trace.json")).unwrap();
    mark();
    drop(third);
    assert_eq!(spans(&path("trace.json")).len(), 2, "and the next one does not empty it");
    assert_eq!(spans(&path("trace.2.json")).len(), 1);
    let own = TraceFile::start(path("own.json")).unwrap();
    assert!(TraceFile::share(path("trace.json")).is_none());
    drop(own);
}

/// A wrong path in `WALLA_TRACE` must not destroy a file.
#[test]
fn only_empty_files_and_traces_are_replaced() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let refused = |contents: &[u8]| {
        std::fs::write(&path, contents).unwrap();
        let error = TraceFile::start(&path).unwrap_err();
        assert!(matches!(&error, TraceError::NotATrace(named) if *named == path), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), contents, "it stays as it is");
        assert!(TraceFile::start_or_log(&path).is_none());
        assert_eq!(std::fs::read(&path).unwrap(), contents, "it stays as it is");
    };
    refused(b"a year of work");
    refused(b"[");
    refused(br#"[{"name": "another trace"}]"#);
    refused(b"GGUF\x03\0\0\0");
    // A refusal leaves nothing locked.
    std::fs::write(&path, []).unwrap();
    drop(TraceFile::start(&path).unwrap());
    let long = TraceFile::start(&path).unwrap();
    (0..100).for_each(|_| drop(enter(Stage::Plan)));
    drop(long);
    assert_eq!(spans(&path).len(), 100, "an earlier trace is replaced");
    drop(TraceFile::start(&path).unwrap());
    assert_eq!(spans(&path).len(), 0, "as a whole");
    let folder_itself = TraceFile::start(folder.path()).unwrap_err();
    assert!(matches!(folder_itself, TraceError::NotATrace(_)), "{folder_itself}");
}

/// Opening a FIFO for writing waits for a reader.
#[cfg(unix)]
#[test]
fn a_fifo_is_refused_at_once_and_null_is_written_to() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("trace.json");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (send, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(TraceFile::start(&fifo).map(drop)));
    let answer = done.recv_timeout(std::time::Duration::from_secs(120));
    let error = answer.expect("it does not wait for a reader").unwrap_err();
    assert!(matches!(error, TraceError::NotATrace(_)), "{error}");
    drop(TraceFile::start("/dev/null").unwrap());
}

#[test]
fn stages_have_walla_targets_and_unique_names() {
    let mut names: Vec<_> = Stage::ALL.iter().map(|stage| stage.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Stage::ALL.len());
    assert!(Stage::ALL.iter().all(|stage| stage.target().starts_with("walla::")));
}

#[test]
fn without_a_profiler_library_other_listeners_work() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let file = TraceFile::start(&path).unwrap();
    walla_trace::listen_nvtx();
    walla_trace::listen_nvtx();
    drop(enter(Stage::Plan));
    assert_eq!(file.finish().unwrap().spans, 1);
    assert_eq!(spans(&path)[0].1, "plan");
}
