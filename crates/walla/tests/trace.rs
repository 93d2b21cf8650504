//! The trace file of an engine. A process writes one at a time, so this is a separate program.

#[path = "api/host.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod host;

use host::{eventually, on, options, soon, speaker};
use walla_device::FaultPlan;

#[tokio::test]
async fn a_trace_ends_with_its_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let builder = on(FaultPlan::new(0), options()).0.trace(&path);
    let engine = soon("it starts", builder.start()).await.unwrap();
    let agent = engine.agent_with(speaker(1, 5));
    soon("the end", agent.ask("Hello").finish()).await.unwrap();
    drop((agent, engine));
    eventually("the file is complete", || {
        let text = std::fs::read_to_string(&path).unwrap();
        text.trim_end().ends_with(']') && text.contains(r#""launch""#)
    })
    .await;
}
