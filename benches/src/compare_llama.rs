//! Decode steps of walla and of llama.cpp on the same files, machine and threads, in turns.
//!
//! ```text
//! cargo build --release -p walla && cargo run --release -p walla_benches --bin compare_llama -- \
//!     --llama-batched-bench PATH --json benches/results/cpu-vs-llama.json model.gguf …
//! ```
//!
//! The two run alternately, several rounds; for each number the best round counts, because other work on the machine only ever adds
//! time. `llama-batched-bench` is found at the path given; nothing of it is part of this project.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde_json::{Value, json};

#[derive(Debug, Parser)]
struct Arguments {
    /// The peer's `llama-batched-bench`
    #[arg(long)]
    llama_batched_bench: PathBuf,
    /// The `walla` command
    #[arg(long, default_value = "target/release/walla")]
    walla: PathBuf,
    /// Numbers of agents
    #[arg(long, value_delimiter = ',', default_value = "1,4,8")]
    agents: Vec<u32>,
    /// Threads of both
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Prompt tokens of each agent
    #[arg(long, default_value_t = 128)]
    context: u32,
    /// Measured steps
    #[arg(long, default_value_t = 32)]
    tokens: u32,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// File to write
    #[arg(long)]
    json: Option<PathBuf>,
    /// GGUF files
    #[arg(required = true)]
    models: Vec<PathBuf>,
}

/// One number of agents, all rounds: milliseconds per step and prompt tokens a second.
#[derive(Debug, Default)]
struct Rounds {
    step_ms: Vec<f64>,
    prefill: Vec<f64>,
}

impl Rounds {
    fn best(&self) -> (f64, f64) {
        let step_ms = self.step_ms.iter().copied().fold(f64::INFINITY, f64::min);
        (step_ms, self.prefill.iter().copied().fold(0.0, f64::max))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let mut report = Vec::new();
    println!(
        "| model | agents | walla ms/step | llama.cpp ms/step | ratio | walla prefill tok/s | llama.cpp |"
    );
    println!("|---|---|---|---|---|---|---|");
    for model in &arguments.models {
        let mut ours: Vec<Rounds> = arguments.agents.iter().map(|_| Rounds::default()).collect();
        let mut theirs: Vec<Rounds> = arguments.agents.iter().map(|_| Rounds::default()).collect();
        for _ in 0..arguments.rounds {
            round(&arguments, model, &mut ours, &mut theirs)?;
        }
        let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for (index, agents) in arguments.agents.iter().enumerate() {
            let ((step, prefill), (their_step, their_prefill)) =
                (ours[index].best(), theirs[index].best());
            println!(
                "| {name} | {agents} | {step:.2} | {their_step:.2} | {:.2}x | {prefill:.0} | {their_prefill:.0} |",
                their_step / step
            );
            report.push(json!({
                "model": name,
                "agents": agents,
                "walla": {"step_ms_rounds": ours[index].step_ms, "prefill_tokens_per_second_rounds": ours[index].prefill},
                "llama_cpp": {"step_ms_rounds": theirs[index].step_ms, "prefill_tokens_per_second_rounds": theirs[index].prefill},
                "ratio_of_best_steps": their_step / step,
            }));
        }
    }
    if let Some(path) = &arguments.json {
        let report = json!({
            "machine": machine(),
            "threads": arguments.threads,
            "context": arguments.context,
            "steps": arguments.tokens,
            "rounds": arguments.rounds,
            "rows": report,
        });
        std::fs::write(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {said}", output.status).into());
    }
    Ok(())
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// One round: `walla bench` measures itself, then the peer beside it.
fn round(
    arguments: &Arguments,
    model: &Path,
    ours: &mut [Rounds],
    theirs: &mut [Rounds],
) -> Result<(), Box<dyn Error>> {
    let json = std::env::temp_dir().join(format!("walla-bench-{}.json", std::process::id()));
    run(Command::new(&arguments.walla)
        .arg("bench")
        .arg(model)
        .args(["--device", "cpu", "--threads", &arguments.threads.to_string()])
        .args(["--agents", &list(&arguments.agents)])
        .args(["--context", &arguments.context.to_string()])
        .args(["--tokens", &arguments.tokens.to_string()])
        .arg("--llama")
        .arg(&arguments.llama_batched_bench)
        .arg("--json")
        .arg(&json))?;
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    std::fs::remove_file(&json)?;
    for (index, (ours, theirs)) in ours.iter_mut().zip(theirs).enumerate() {
        let row = &report["rows"][index];
        ours.step_ms.extend(row["step_ms_p50"].as_f64());
        ours.prefill.extend(row["prefill_tokens_per_second"].as_f64());
        let row = &row["llama_cpp"];
        theirs.step_ms.extend(row["step_ms"].as_f64());
        theirs.prefill.extend(row["prefill_tokens_per_second"].as_f64());
    }
    Ok(())
}

/// What the processor calls itself.
fn machine() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = facts.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", model.map_or("unknown processor", |(_, name)| name))
}
