//! A trace of a real app, read back: spans nest, and steps on the device overlap the host's frame.
#![cfg(feature = "demo")]

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bevy_app::prelude::*;
use bevy_walla::options::FrameBudget;
use bevy_walla::prelude::*;
use common::*;
use serde_json::Value;

/// A game's own work in each frame.
const HOST_WORK: Duration = Duration::from_millis(4);

/// Spans of one track by begin, in nanoseconds.
type Spans = Vec<(String, Range<u64>)>;

fn work() {
    let start = Instant::now();
    while start.elapsed() < HOST_WORK {
        std::hint::spin_loop();
    }
}

/// Four agents reply to one question each, until all replies have ended.
fn run(path: &Path) {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(4),
        budget: FrameBudget::Unlimited,
        background_prefill: false, // one encoding for each ask
        ..EngineOptions::demo()
    };
    let mut app = app_with(WallaPlugin::new(options).trace(path));
    app.add_systems(Update, work);
    for persona in ["You are Greta.", "You are Odo.", "You are Pip.", "You are Wren."] {
        let limits = ReplyLimits::tokens(48);
        let agent = app.world_mut().spawn((Agent::persona(persona), limits)).id();
        ask(&mut app, agent, "Who are you?");
    }
    // Frames follow each other, so a step runs under one even if the threads share a core.
    let start = Instant::now();
    while log(&app).ends() < 4 {
        assert!(start.elapsed() < TIMEOUT, "no end: {:?}", log(&app).0);
        app.update();
    }
    updates(&mut app, 3);
}

fn read(path: &Path) -> BTreeMap<String, Spans> {
    let bytes = std::fs::read(path).expect("the file is there");
    let events: Vec<Value> = serde_json::from_slice(&bytes).expect("it is JSON");
    let mut names = BTreeMap::new();
    for event in events.iter().filter(|event| event["name"] == "thread_name") {
        let name = event["args"]["name"].as_str().expect("a name").to_owned();
        names.insert(event["tid"].as_u64(), name);
    }
    let mut tracks: BTreeMap<String, Spans> = BTreeMap::new();
    let nanos = |micros: &Value| (micros.as_f64().expect("a number") * 1e3).round() as u64;
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let track = names[&event["tid"].as_u64()].clone();
        let (begin, name) = (nanos(&event["ts"]), event["name"].as_str().expect("a name"));
        let span = (name.to_owned(), begin..begin + nanos(&event["dur"]));
        tracks.entry(track).or_default().push(span);
    }
    for spans in tracks.values_mut() {
        spans.sort_by_key(|(_, span)| (span.start, std::cmp::Reverse(span.end)));
    }
    tracks
}

fn assert_nested(track: &str, spans: &Spans) {
    let mut open: Vec<&(String, Range<u64>)> = Vec::new();
    for span in spans {
        open.retain(|outer| outer.1.end > span.1.start);
        if let Some(outer) = open.last() {
            assert!(span.1.end <= outer.1.end, "{track}: {span:?} sticks out of {outer:?}");
        }
        open.push(span);
    }
}

fn named<'a>(spans: &'a Spans, name: &'a str) -> impl Iterator<Item = &'a Range<u64>> {
    spans.iter().filter(move |span| span.0 == name).map(|span| &span.1)
}

#[test]
fn device_steps_overlap_the_hosts_frame() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("trace.json");
    run(&path);
    let share = share_under_frames(&read(&path));
    assert!(share > 0.5, "of the steps {share} ran while the host worked on a frame");
}

/// Checks a trace. Returns the share of device steps that overlapped a host frame.
fn share_under_frames(tracks: &BTreeMap<String, Spans>) -> f64 {
    let names: Vec<_> = tracks.keys().map(String::as_str).collect();
    assert_eq!(names, ["device", "device copies", "device thread", "host frame", "text thread"]);
    for track in ["host frame", "device thread", "text thread", "device"] {
        assert_nested(track, &tracks[track]);
    }
    let (host, thread, device) =
        (&tracks["host frame"], &tracks["device thread"], &tracks["device"]);
    let frames = named(host, "frame").count();
    for system in ["publish", "collect", "submit"] {
        assert!(named(host, system).count().abs_diff(frames) <= 1, "{system} in every frame");
    }
    assert_eq!(named(&tracks["text thread"], "encode").count(), 4);

    let steps: Vec<_> = named(device, "step").collect();
    assert!(steps.len() >= 4, "{} steps", steps.len());
    // The last step may have been launched ahead and not read when the app ended.
    for stage in ["plan", "fill", "upload", "launch", "copy back", "read"] {
        let more = named(thread, stage).count().checked_sub(steps.len());
        assert!(more.is_some_and(|more| more <= 1), "one {stage} for each step: {more:?}");
    }
    for ((step, launch), read) in
        steps.iter().zip(named(thread, "launch")).zip(named(thread, "read"))
    {
        // The offset between the clocks may have drifted since it was estimated.
        assert!(step.start + 20_000 >= launch.start, "{step:?} begins after its {launch:?}");
        assert!(step.end <= read.end, "and ends before its results have been read");
    }

    let under = |step: &Range<u64>| {
        named(host, "frame").any(|frame| frame.start < step.end && step.start < frame.end)
    };
    steps.iter().filter(|step| under(step)).count() as f64 / steps.len() as f64
}
