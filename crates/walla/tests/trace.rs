//! The trace file of an engine. A process writes one at a time, so this is a separate program.

#[path = "api/host.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod host;

use std::path::Path;

use host::{eventually, on, options, soon, speaker};
use serde_json::Value;
use walla::{FirstTokenTimes, Usage};
use walla_doubles::FaultPlan;

#[tokio::test]
async fn a_trace_ends_with_its_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let builder = on(FaultPlan::new(0), options()).0.trace(&path);
    let engine = soon("it starts", builder.start()).await.unwrap();
    let agent = engine.agent_with(speaker(1, 5));
    let finished = soon("the end", agent.ask("Hello").finish()).await.unwrap();
    drop((agent, engine));
    eventually("the file is complete", || {
        let text = std::fs::read_to_string(&path).unwrap();
        text.trim_end().ends_with(']') && text.contains(r#""launch""#)
    })
    .await;
    check_first_token(&path, finished.usage);
}

/// The spans of the reply are the parts of its usage.
fn check_first_token(path: &Path, usage: Usage) {
    let events: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let micros_of = |name: &str| {
        let of = |ph: &str| {
            let events = events.as_array().unwrap().iter();
            let events = events.filter(move |event| event["ph"] == ph && event["name"] == name);
            events.map(|event| event["ts"].as_f64().unwrap()).sum::<f64>()
        };
        (of("e") - of("b")).round() as u64
    };
    let FirstTokenTimes { waiting_micros, encoding_micros, prefill_micros, decode_micros } =
        usage.first_token;
    let parts = [waiting_micros, encoding_micros, prefill_micros, decode_micros];
    assert_eq!(parts.iter().sum::<u64>(), usage.first_token_micros);
    assert!(usage.first_token_micros > 0 && usage.first_token_micros <= usage.total_micros);
    assert_eq!(["waiting", "encoding", "prefill", "decode"].map(micros_of), parts);
    assert_eq!(micros_of("first token"), usage.first_token_micros);
    let begin = events.as_array().unwrap().iter().find(|event| event["name"] == "first token");
    assert!(begin.unwrap()["args"]["agent"].is_u64(), "{begin:?}");
}
