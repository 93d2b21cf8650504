//! The frame-latency benchmark runs, and its output is complete. The values depend on the machine.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

#[test]
fn a_quick_run_writes_results_and_plots() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("results");
    let output = Command::new(env!("CARGO_BIN_EXE_frame_latency"))
        .args(["--quick", "--modes", "walla,walla-no-overlap,blocking,llama"])
        .args(["--threads", "1", "--frames", "45", "--warm-up", "15", "--prefill-event", "100"])
        .arg("--out")
        .arg(&out)
        .arg("--trace")
        .arg(out.join("trace.json"))
        .env_remove("WALLA_LLAMA_SERVER")
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("| walla | cpu | 60 | 2 |"));
    check_summary(&json(&out.join("summary.json")));
    let events = json(&out.join("trace.json"));
    assert!(events.as_array().is_some_and(|events| events.len() > 100), "a trace of 45 frames");
    for picture in ["percentiles-cpu-60hz-2", "timeline-cpu-60hz-2", "budget-cpu-60hz"] {
        check_picture(&out, picture);
    }
    for file in ["walla-cpu-60hz-2.work.hgrm", "walla-cpu-60hz-2.device.hgrm", "table.md"] {
        assert!(out.join(file).is_file(), "{file}");
    }
}

/// Runs the benchmark's command, which must succeed.
fn frame_latency(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_frame_latency"));
    let output = command.args(arguments).env_remove("WALLA_LLAMA_SERVER").output();
    output.expect("it starts")
}

#[test]
fn parts_of_a_long_run_are_merged() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    for (part, frames) in [("one", "20"), ("two", "30")] {
        let quick = ["--quick", "--part", "--modes", "walla", "--threads", "1", "--warm-up", "5"];
        let rest = ["--frames", frames, "--prefill-event", "60", "--out", &at(part)];
        let output = frame_latency(&[&quick[..], &rest[..]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let output = frame_latency(&["--out", &at("both"), "--merge", &at("one"), &at("two")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [one, two, both] =
        ["one", "two", "both"].map(|name| json(&folder.path().join(name).join("summary.json")));
    assert_eq!(both["machine"]["parts"].as_array().map(Vec::len), Some(2));
    for cell in 0..2 {
        let of = |summary: &Value, path: &str| {
            summary["cells"][cell].pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
        };
        for sum in ["/frames", "/tokens", "/replies", "/frame_work_ms/count", "/stutters"] {
            assert_eq!(of(&both, sum), of(&one, sum) + of(&two, sum), "{cell} {sum}");
        }
        for most in ["/frame_work_ms/max", "/frame_interval_ms/max"] {
            assert_eq!(of(&both, most), of(&one, most).max(of(&two, most)), "{cell} {most}");
        }
    }
    for sum in ["frames_booked", "steps", "frames_over"] {
        let of = |summary: &Value| summary["cells"][1]["engine"][sum].as_u64().unwrap_or(0);
        assert_eq!(of(&both), of(&one) + of(&two), "{sum}");
    }
    assert!(!both["cells"][1]["engine"]["prediction_error_by_bucket"].is_null());
    assert!(both["cells"][1]["prefill_event"].is_object());
    check_picture(&folder.path().join("both"), "percentiles-cpu-60hz-2");

    let refused = frame_latency(&["--out", &at("none"), "--merge", &at("one"), &at("three")]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("three"));
}

fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn check_summary(summary: &Value) {
    assert!(summary["machine"]["date"].as_str().is_some_and(|date| date.len() == 10));
    let cells = summary["cells"].as_array().expect("cells");
    let modes: Vec<_> = cells.iter().filter_map(|cell| cell["mode"].as_str()).collect();
    // Without a path to llama.cpp's server.
    assert_eq!(modes, ["off", "walla", "walla-no-overlap", "blocking"]);
    for cell in cells {
        let mode = &cell["mode"];
        assert_eq!(cell["frames"], 45, "{mode}");
        for distribution in ["frame_work_ms", "frame_interval_ms"] {
            let at = |name: &str| cell[distribution][name].as_f64().unwrap_or(-1.0);
            assert!(at("p50") > 0.0, "{mode} {distribution}");
            let names = ["p50", "p95", "p99", "p99_9", "max"];
            assert!(names.is_sorted_by_key(|name| at(name)), "{mode} {distribution}");
        }
    }
    for cell in &cells[1..] {
        let (mode, device) = (&cell["mode"], &cell["device_time"]);
        assert!(cell["tokens"].as_u64() > Some(0), "{mode} speaks");
        assert_eq!(cell["replies_failed"], 0, "{mode}");
        assert!(device["per_frame_ms"]["max"].as_f64() > Some(0.0), "{mode}");
        assert!(device["over_budget_share"].as_f64().is_some_and(|s| (0.0..=1.0).contains(&s)));
        assert!(cell["first_token_ms"]["count"].as_u64().is_some(), "{mode}");
        assert!(cell["engine"]["background_tokens"].is_u64(), "{mode}");
        check_first_token(&cell["first_token_parts"], cell);
        assert!(cell["deadline_misses_share"].as_f64().is_some(), "{mode}");
    }
    assert!(cells[1]["device_time"]["over_budget_share_as_booked"].is_f64(), "walla has a budget");
    assert!(cells[3]["device_time"]["over_budget_share_as_booked"].is_null(), "blocking has none");
}

/// Checks the parts of the slowest asks, if a reply began and ended in the measured frames.
fn check_first_token(parts: &Value, cell: &Value) {
    if parts.is_null() {
        return;
    }
    let slowest = &parts["slowest_percent_mean"];
    let millis = |name: &str| slowest[name].as_f64().unwrap_or(f64::NAN);
    let names = ["waiting_ms", "encoding_ms", "prefill_ms", "decode_ms", "host_ms"];
    let sum: f64 = names.iter().map(|name| millis(name)).sum();
    assert!((sum - millis("first_token_ms")).abs() < 0.01, "{parts}");
    let max = cell["first_token_ms"]["max"].as_f64().unwrap_or(f64::NAN);
    // The distribution has three digits.
    assert!(millis("first_token_ms") <= max * 1.01, "{parts} {max}");
    assert!(parts["asks"].as_u64() >= slowest["asks"].as_u64(), "{parts}");
    for tokens in ["cached_tokens", "evaluated_tokens"] {
        assert!(parts[tokens]["median"].as_u64() <= parts[tokens]["max"].as_u64(), "{parts}");
    }
    assert!(parts["cached_tokens"]["max"].is_u64(), "{parts}");
}

/// Checks an SVG with text, and a PNG of twice its size with more than one colour.
fn check_picture(out: &Path, name: &str) {
    let svg = std::fs::read_to_string(out.join(format!("{name}.svg"))).expect("an SVG");
    assert!(svg.starts_with("<svg") && svg.contains("<text"), "{name}.svg");
    let png = std::fs::read(out.join(format!("{name}.png"))).expect("a PNG");
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().expect("a PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("it fits")];
    reader.next_frame(&mut pixels).expect("pixels");
    let size = format!("width=\"{}\"", reader.info().width / 2);
    assert!(svg.contains(&size), "{name}: {size}");
    let dark = pixels.chunks(3).filter(|pixel| pixel.iter().all(|&c| c < 128)).count();
    assert!(dark > 1_000, "{name}.png has text and lines: {dark} dark pixels");
}
