//! The frame budget governor with a crowd: 10,000 agents, 100,000 frames of mixed load (28 minutes
//! at 60 Hz) on a simulated device whose true costs differ from its cost model. The clock counts
//! frames. Prints how well budgets are kept, the waiting times, and the errors of predictions.
//!
//! ```text
//! cargo run --release -p walla_benches --bin simulate
//! ```

#[path = "../../crates/walla_plan/tests/common/simulation/mod.rs"]
mod simulation;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use simulation::report::{OfDetail, Report};
use simulation::{Settings, run};
use walla_benches::{machine, output};
use walla_plan::GovernorOptions;

/// Simulates a crowd under a frame budget.
#[derive(Debug, Parser)]
struct Args {
    /// Number of agents.
    #[arg(long, default_value_t = 10_000)]
    agents: u32,
    /// Frames, at 60 Hz.
    #[arg(long, default_value_t = 100_000)]
    frames: u32,
    /// Device-time budget of a frame in microseconds.
    #[arg(long, default_value_t = 4_166)]
    budget_micros: u32,
    /// Device time of one step in microseconds.
    #[arg(long, default_value_t = 2_000)]
    launch_micros: u32,
    /// Asks in a quiet frame, on average; a rush has four times as many.
    #[arg(long, default_value_t = 2.0)]
    asks_per_frame: f32,
    /// Seed of the simulation.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// JSON file for the results.
    #[arg(long, default_value = "benches/results/governor-simulation.json")]
    output: PathBuf,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let settings = Settings {
        agents: args.agents.max(1),
        frames: args.frames,
        seed: args.seed,
        options: GovernorOptions {
            budget_micros: Some(args.budget_micros),
            max_launch_micros: Some(args.launch_micros),
            ..GovernorOptions::default()
        },
        asks_per_frame: args.asks_per_frame,
    };
    output::check(&args.output, &[] as &[PathBuf])?;
    let start = Instant::now();
    let mut report = run(settings);
    let seconds = start.elapsed().as_secs_f64();
    print(&mut report, &args, seconds);
    let text = serde_json::to_string_pretty(&json(&mut report, &args, seconds))?;
    output::replace(&args.output, text + "\n")?;
    println!("\n{}", args.output.display());
    Ok(())
}

const DETAILS: [&str; 3] = ["full", "reduced", "background"];

fn print(report: &mut Report, args: &Args, seconds: f64) {
    let Args { agents, frames, budget_micros, .. } = args;
    println!(
        "{agents} agents, {frames} frames, {budget_micros} µs a frame: {seconds:.1} s to simulate"
    );
    let stats = report.stats;
    println!(
        "frames that ran something {}, within their budget {:.3} %, sat out {}",
        report.frames_used,
        100.0 * report.adherence(),
        stats.frames_skipped,
    );
    let [p50, p95, p99, p999, max] =
        report.use_share.at([0.5, 0.95, 0.99, 0.999, 1.0]).map(|share| 100.0 * share);
    println!(
        "use of the budget: p50 {p50:.0} %, p95 {p95:.0} %, p99 {p99:.0} %, p99.9 {p999:.0} %, max {max:.0} %"
    );
    println!(
        "steps {}, rows a step {:.1}, agents at work at most {}, preempted {}",
        report.steps,
        report.rows as f64 / report.steps.max(1) as f64,
        report.max_agents_active,
        report.preemptions,
    );
    let (longest, bound) = report.planner_wait;
    println!("longest wait {longest} frames, bound {bound}\n");
    println!("| detail | replies | tokens | late | first token p50 / p99 | waits p99 | longest |");
    println!("|---|---|---|---|---|---|---|");
    for (name, of) in DETAILS.iter().zip(&mut report.details) {
        let [p50, p99] = of.first_token_frames.at([0.5, 0.99]);
        let [wait] = of.waits().at([0.99]);
        let (replies, tokens, longest) = (of.replies, of.tokens, of.longest_wait);
        let late = 100.0 * late_share(of);
        println!(
            "| {name} | {replies} | {tokens} | {late:.3} % | {p50:.0} / {p99:.0} frames | {wait:.0} frames | {longest} frames |"
        );
    }
    println!("\n| bucket | steps | prediction error p50 | p99 |");
    println!("|---|---|---|---|");
    for of in &report.errors {
        let (p50, p99) = (100.0 * of.p50, 100.0 * of.p99);
        println!("| {} | {} | {p50:.1} % | {p99:.1} % |", of.bucket, of.steps);
    }
}

fn late_share(of: &OfDetail) -> f64 {
    of.tokens_late as f64 / of.tokens.max(1) as f64
}

fn json(report: &mut Report, args: &Args, seconds: f64) -> Value {
    let [p50, p95, p99, p999, max] = report.use_share.at([0.5, 0.95, 0.99, 0.999, 1.0]);
    let details = DETAILS.iter().zip(&mut report.details).map(|(name, of)| {
        let [first_p50, first_p99] = of.first_token_frames.at([0.5, 0.99]);
        let [wait_p50, wait_p99] = of.waits().at([0.5, 0.99]);
        json!({
            "detail": name,
            "replies": of.replies,
            "tokens": of.tokens,
            "tokens_late_share": late_share(of),
            "first_token_frames": { "p50": first_p50, "p99": first_p99 },
            "wait_frames": { "p50": wait_p50, "p99": wait_p99, "max": of.longest_wait },
        })
    });
    let details: Vec<_> = details.collect();
    let buckets: Vec<_> = report
        .errors
        .iter()
        .map(|of| json!({ "bucket": of.bucket, "steps": of.steps, "p50": of.p50, "p99": of.p99 }))
        .collect();
    json!({
        "command": "cargo run --release -p walla_benches --bin simulate",
        "machine": machine::facts(None),
        "settings": {
            "agents": args.agents,
            "frames": args.frames,
            "budget_micros": args.budget_micros,
            "launch_micros_max": args.launch_micros,
            "asks_per_frame": args.asks_per_frame,
            "seed": args.seed,
        },
        "seconds": seconds,
        "frames_used": report.frames_used,
        "adherence": report.adherence(),
        "frames_over": report.stats.frames_over,
        "frames_overdrawn": report.stats.frames_overdrawn,
        "frames_skipped": report.stats.frames_skipped,
        "use_of_budget": { "p50": p50, "p95": p95, "p99": p99, "p99_9": p999, "max": max },
        "steps": report.steps,
        "rows": report.rows,
        "agents_active_max": report.max_agents_active,
        "preemptions": report.preemptions,
        "longest_wait_frames": report.planner_wait.0,
        "longest_wait_frames_bound": report.planner_wait.1,
        "details": details,
        "prediction_error": { "p50": report.stats.error_p50, "p99": report.stats.error_p99, "buckets": buckets },
    })
}
