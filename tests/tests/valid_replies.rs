//! Some hundred constrained replies and calls are valid by another library: a small version of the
//! benchmark `actions`, whose modules it uses.

#[expect(dead_code, reason = "the benchmark reads all fields")]
#[path = "../../benches/src/actions/host.rs"]
mod host;
#[path = "../../benches/src/actions/models.rs"]
mod models;
#[expect(dead_code, reason = "the benchmark prints the counts")]
#[path = "../../benches/src/actions/replies.rs"]
mod replies;
#[expect(dead_code, reason = "other parts of the benchmark use the other schemas")]
#[path = "../../benches/src/actions/schemas.rs"]
mod schemas;

use walla_runtime::{Engine, EngineOptions, FrameBudget, ModelSource, Pacing};

/// Asks a model this often.
fn validate(model: ModelSource, format: &str, asks: u64) -> replies::Counts {
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(replies::AGENTS as u32),
        context_tokens: 2_048,
        budget: FrameBudget::Unlimited,
        background_prefill: false,
        ..EngineOptions::new(model)
    };
    let engine = Engine::start(options).expect("options are valid");
    let client = engine.client(Pacing::FreeRunning).expect("there is room");
    let counts = replies::measure(&engine, client, asks, 80).expect("no reply fails");
    assert_eq!(replies::format_of(&engine), format);
    engine.stop();
    assert_eq!((counts.faults, counts.replies), (0, asks), "{:?}", counts.first_faults);
    assert_eq!(counts.valid, counts.finished);
    assert!(counts.finished > asks / 2 && counts.forced > 0, "{counts:?}");
    counts
}

#[test]
fn replies_and_calls_are_valid() {
    validate(ModelSource::Static(walla_demo_model::GGUF), "HermesJson", 64);
    for (is_plain, format) in [(true, "Plain"), (false, "HermesJson")] {
        let counts = validate(models::tiny(is_plain).expect("it is written"), format, 160);
        // Required calls, and some that the model opened itself.
        assert!(counts.calls > 160 / 4, "{counts:?}");
    }
}
