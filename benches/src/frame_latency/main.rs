//! Cost of dialogue for a game's frames: a headless Bevy app with a calibrated load, with and
//! without agents that speak.
//!
//! ```text
//! cargo run --release -p walla_benches --bin frame_latency -- --agents 0,12 --out benches/results/frame-latency-cpu
//! ```
//!
//! A cell is one way to run a model (mode), one device, one frame rate and one number of agents.
//! Each cell runs a separate app for the same number of frames with the same work per frame, and
//! agents that speak continuously. See `benches/README.md` for how to read the results:
//! `summary.json`, `table.md`, a `.hgrm` file for each distribution, and plots as PNG and SVG.

mod args;
mod cell;
mod event;
mod fields;
mod first_token;
mod llama;
mod load;
mod measure;
mod model;
mod parts;
mod plot;
mod report;
mod run;
mod talk;
mod voices;
mod waiting;

use std::error::Error;

use clap::Parser;
use walla_benches::machine;

use crate::args::Arguments;
use crate::cell::cells;
use crate::parts::Facts;
use crate::run::{Bench, Outcome};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = Arguments::parse().with_quick();
    if let Some(synth) = &arguments.synth {
        arguments.model = Some(walla_benches::synthetic(synth)?);
    }
    std::fs::create_dir_all(&arguments.out)?;
    if !arguments.merge.is_empty() {
        let (facts, outcomes) = parts::read(&arguments.merge)?;
        return publish(&arguments, &facts, &outcomes);
    }
    let mut bench = Bench::new(&arguments)?;
    let mut outcomes = Vec::new();
    let end = run_all(&mut bench, &arguments, &mut outcomes);
    if outcomes.is_empty() {
        return end;
    }
    let machine = machine::facts(arguments.commit.as_deref());
    let facts = Facts { machine, model: bench.model, voice_rate: arguments.voice_rate };
    if arguments.part {
        parts::write(&arguments.out, &facts, &outcomes)?;
    }
    publish(&arguments, &facts, &outcomes)?;
    end
}

/// Runs every cell in every round. Returns the first error; results measured before it stay in
/// `outcomes`.
fn run_all(
    bench: &mut Bench<'_>,
    arguments: &Arguments,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Box<dyn Error>> {
    for round in 0..arguments.rounds.max(1) {
        for cell in cells(arguments) {
            eprintln!("{cell}, round {} …", round + 1);
            match bench.run(&cell).map_err(|error| format!("{cell}: {error}"))? {
                Some(outcome) => Outcome::collect(outcomes, outcome),
                None => eprintln!("  left out"),
            }
        }
    }
    Ok(())
}

/// Writes files and plots, and prints the table.
fn publish(
    arguments: &Arguments,
    facts: &Facts,
    outcomes: &[Outcome],
) -> Result<(), Box<dyn Error>> {
    let results = report::Results { arguments, facts, outcomes };
    results.write()?;
    plot::draw(&results)?;
    println!("{}{}", results.table(), results.notes());
    println!("written to {}", arguments.out.display());
    Ok(())
}
