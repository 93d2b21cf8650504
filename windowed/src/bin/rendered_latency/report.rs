//! Output as a table and as JSON.

use std::fs;

use bevy::render::renderer::RenderAdapterInfo;
use bevy_walla::diagnostics::ModelCard;
use serde_json::{Value, json};
use walla_examples::{fail, print_table};

use crate::Mode;
use crate::meter::Times;
use crate::session::{Results, Session, period};

/// A frame that exceeds its expected time by this factor counts as a stutter.
const STUTTER: f64 = 1.5;

pub fn print(session: &Session, adapter: &RenderAdapterInfo, model: Option<&ModelCard>) {
    let arguments = &session.arguments;
    let stutter_ms = STUTTER * expected_millis(session);
    let model = model.map_or(json!(null), |card| {
        json!({
            "name": card.name.as_deref().unwrap_or(card.architecture),
            "file_bytes": card.file_bytes,
            "device": card.device.name,
            "device_description": card.device.description,
        })
    });
    let modes: Vec<Value> =
        session.results.iter().map(|results| json(session, results, stutter_ms)).collect();
    let report = json!({
        "renderer": { "name": adapter.name, "driver": adapter.driver, "driver_info": adapter.driver_info },
        "model": model,
        "agents": arguments.agents,
        "budget_ms": arguments.budget_ms,
        "prompt_tokens": arguments.prompt_tokens,
        "voice_rate": arguments.voice_rate,
        "width": arguments.size.0,
        "height": arguments.size.1,
        "cubes": arguments.cubes,
        "rate": arguments.rate,
        "rounds": arguments.rounds,
        "frames_per_round": arguments.frames,
        "stutter_ms": stutter_ms,
        "modes": modes,
    });
    if let Some(path) = &arguments.json {
        fs::write(path, format!("{report:#}\n"))
            .unwrap_or_else(|error| fail(format!("{}: {error}", path.display())));
    }
    println!(
        "{} by {} ({} cubes, {}x{}); {} on {}, {} agents",
        adapter.name,
        adapter.driver_info,
        arguments.cubes,
        arguments.size.0,
        arguments.size.1,
        report["model"]["name"].as_str().unwrap_or("no model"),
        report["model"]["device"].as_str().unwrap_or("nothing"),
        arguments.agents,
    );
    let stutters = format!("over {stutter_ms:.1}");
    let labels: Vec<String> =
        session.results.iter().map(|results| arguments.label(results.load)).collect();
    let rows = |row: &dyn Fn(&Results) -> Vec<String>| -> Vec<(&str, Vec<String>)> {
        let labels = labels.iter().map(String::as_str);
        labels.zip(session.results.iter().map(row)).collect()
    };
    let spread_head = ["mode", "p50 ms", "p95", "p99", "p99.9", "max"];
    let mut head = spread_head.to_vec();
    head.extend([&stutters, "frames", "frames/s"]);
    println!("\nFrom the beginning of a frame to that of the next:");
    print_table(&head, &rows(&|results| interval_row(results, stutter_ms)));
    println!("\nFrom the beginning of a frame to the end of its work on the GPU:");
    print_table(&spread_head, &rows(&|results| spread_row(&results.drawn)));
    println!("\nThe renderer's part of that, on the CPU and then on the GPU:");
    print_table(&spread_head, &rows(&|results| spread_row(&results.rendering)));
    println!("\nWork of the model:");
    let head =
        ["mode", "tokens/s", "prompt tokens/s", "device ms a frame", "ms a step", "over budget"];
    print_table(&head, &rows(&work_row));
}

/// Expected time of a frame: the period, or the median without dialogue if there is no fixed rate.
fn expected_millis(session: &Session) -> f64 {
    let off = session.results.iter().find(|results| results.load.mode == Mode::Off);
    period(session.arguments.rate)
        .map(|period| period.as_secs_f64() * 1e3)
        .or_else(|| off.or(session.results.first()).map(|results| results.interval.millis(0.5)))
        .unwrap_or(0.0)
}

fn interval_row(results: &Results, stutter_ms: f64) -> Vec<String> {
    let seconds = results.seconds.max(1e-9);
    let mut row = spread_row(&results.interval);
    row.push(results.interval.longer_than(stutter_ms).to_string());
    row.push(results.interval.count().to_string());
    row.push(format!("{:.1}", results.frames as f64 / seconds));
    row
}

fn work_row(results: &Results) -> Vec<String> {
    let seconds = results.seconds.max(1e-9);
    vec![
        format!("{:.0}", results.tokens as f64 / seconds),
        format!("{:.0}", results.prompt_tokens as f64 / seconds),
        format!("{:.3}", device_millis(results)),
        format!("{:.3}", step_millis(results)),
        results.frames_over.to_string(),
    ]
}

fn spread_row(times: &Times) -> Vec<String> {
    [0.5, 0.95, 0.99, 0.999, 1.0].map(|share| format!("{:.2}", times.millis(share))).to_vec()
}

fn device_millis(results: &Results) -> f64 {
    results.device.as_secs_f64() * 1e3 / results.frames.max(1) as f64
}

/// Mean device time of a step.
fn step_millis(results: &Results) -> f64 {
    results.device.as_secs_f64() * 1e3 / results.steps.max(1) as f64
}

fn json(session: &Session, results: &Results, stutter_ms: f64) -> Value {
    let seconds = results.seconds.max(1e-9);
    json!({
        "mode": results.load.mode.name(),
        "launch_ms": session.arguments.launch_ms(results.load),
        "interval_ms": spread(&results.interval),
        "drawn_ms": spread(&results.drawn),
        "rendering_ms": spread(&results.rendering),
        "plugin_ms": spread(&results.plugin),
        "stutters": results.interval.longer_than(stutter_ms),
        "frames_per_second": results.frames as f64 / seconds,
        "tokens_per_second": results.tokens as f64 / seconds,
        "prompt_tokens_per_second": results.prompt_tokens as f64 / seconds,
        "background_tokens_per_second": results.background_tokens as f64 / seconds,
        "steps_per_second": results.steps as f64 / seconds,
        "device_ms_per_frame": device_millis(results),
        "device_ms_per_step": step_millis(results),
        "frames_over_budget": results.frames_over,
    })
}

fn spread(times: &Times) -> Value {
    json!({
        "count": times.count(),
        "p50": times.millis(0.5),
        "p95": times.millis(0.95),
        "p99": times.millis(0.99),
        "p99_9": times.millis(0.999),
        "max": times.millis(1.0),
    })
}
