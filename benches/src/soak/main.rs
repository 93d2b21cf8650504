//! Soaks: agents answer for minutes, first through the async API and then through Bevy.
//!
//! - [`steady`]: each agent is asked again as soon as its reply has ended.
//! - [`random`]: random operations of the whole API, while engines load and unload.
//!
//! Exits with an error if a reply does not end exactly once, if memory grows, or if a thread
//! outlives its engine.
//!
//! ```text
//! cargo run --release -p walla_benches --bin soak -- --seconds 300
//! cargo run --release -p walla_benches --bin soak -- --random --seconds 300 --seed 1
//! ```

mod process;
mod random;
mod steady;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde_json::{Map, Value, json};
use walla_benches::{machine, output};

/// Soak test of both APIs.
#[derive(Debug, Parser)]
struct Args {
    /// Random operations, and engines that load and unload.
    #[arg(long)]
    random: bool,
    /// Duration of each of the two parts, in seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Agents that answer at the same time, without `--random`.
    #[arg(long, default_value_t = 12)]
    agents: usize,
    /// Seed of the random operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the numbers, as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
}

/// Results of a soak.
#[derive(Debug, Default)]
struct Report {
    /// Numbers of each part, by its name.
    parts: Map<String, Value>,
    lines: Vec<String>,
    /// Broken promises.
    broken: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, &[] as &[PathBuf])?;
    }
    let whole = Duration::from_secs(args.seconds);
    let report = match args.random {
        true => random::soak(args.seed, whole)?,
        false => steady::report(args.agents.max(1), whole)?,
    };
    report.lines.iter().for_each(|line| println!("{line}"));
    if let Some(path) = &args.output {
        let all = json!({
            "machine": machine::facts(None), "seconds": args.seconds, "parts": report.parts,
            "agents": (!args.random).then_some(args.agents),
            "seed": args.random.then_some(args.seed), "broken": report.broken,
        });
        output::replace(path, serde_json::to_string_pretty(&all)? + "\n")?;
    }
    match report.broken.is_empty() {
        true => Ok(()),
        false => Err(report.broken.join("\n").into()),
    }
}
