//! Memories of agents at work: right answers of the demo model with and without them, and the frame
//! side of a game whose agents search much lore.
//!
//! ```text
//! cargo run --release -p walla_benches --bin recall -- answers
//! cargo run --release -p walla_benches --bin recall -- frames --embedding-model FILE
//! ```

mod answers;
mod frames;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use walla_benches::{machine, output};

/// Measures memories of agents.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// The commit, if git is not available.
    #[arg(long, global = true)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long, global = true)]
    output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Right answers of the demo model, with and without memories.
    Answers(answers::Args),
    /// Times of frames while agents search.
    Frames(frames::Args),
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.output {
        output::check(path, &[] as &[PathBuf])?;
    }
    let report: Value = match &args.what {
        What::Answers(args) => answers::run(args)?,
        What::Frames(args) => frames::run(args)?,
    };
    if let Some(path) = &args.output {
        let report = json!({"machine": machine::facts(args.commit.as_deref()), "report": report});
        output::replace(path, format!("{report:#}\n"))?;
    }
    Ok(())
}
