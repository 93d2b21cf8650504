//! 500 agents for 30 seconds: budgets are kept, and every agent is served. Larger runs:
//! `benches/src/simulate.rs`.

#[path = "common/simulation/mod.rs"]
mod simulation;

use simulation::{Settings, run};
use walla_plan::GovernorOptions;

#[test]
fn many_agents_keep_the_budget_and_all_are_served() {
    let settings = Settings {
        agents: 500,
        frames: 2_000,
        seed: 7,
        options: GovernorOptions::default(),
        asks_per_frame: 2.0,
    };
    let mut report = run(settings);
    assert!(report.frames_used > 1_900, "there is always something to do");
    assert!(report.adherence() >= 0.995, "{} {:?}", report.adherence(), report.stats);
    let [half, worst] = report.use_share.at([0.5, 1.0]);
    assert!(half > 0.4 && worst < 2.0, "used, and not much over: {half} {worst}");
    assert!(report.planner_wait.0 <= report.planner_wait.1, "{:?}", report.planner_wait);
    for of in &mut report.details {
        assert!(of.replies > 100);
        let [waited] = of.waits().at([0.99]);
        // After one second agents of low priority are served too, behind agents that have waited as
        // long.
        assert!(waited <= 75.0, "{waited}");
    }
    let full = &report.details[0];
    assert!((full.tokens_late as f64) < 0.01 * full.tokens as f64, "{full:?}");
    assert!(report.stats.error_p50 < 0.06, "{:?}", report.stats);
}

#[test]
fn the_seed_determines_the_simulation() {
    let settings = Settings {
        agents: 50,
        frames: 200,
        seed: 3,
        options: GovernorOptions::default(),
        asks_per_frame: 0.5,
    };
    let rows = || {
        let report = run(settings);
        (report.steps, report.rows, report.stats)
    };
    assert_eq!(rows(), rows());
}

#[test]
fn many_agents_with_few_pages_make_progress() {
    // All agents get requests continuously, with pages for a tenth of all contexts.
    let settings = Settings {
        agents: 200,
        frames: 600,
        seed: 5,
        options: GovernorOptions::default(),
        asks_per_frame: 20.0,
    };
    let report = run(settings);
    let replies: u64 = report.details.iter().map(|of| of.replies).sum();
    assert!(report.preemptions > 0, "pages are scarce");
    assert!(report.preemptions < replies, "{} for {replies} replies", report.preemptions);
    assert!(report.planner_wait.0 <= report.planner_wait.1, "{:?}", report.planner_wait);
    for of in &report.details {
        assert!(of.replies > 100, "{of:?}");
    }
}
