//! Decode steps of walla and of llama.cpp on the same files and device.
//!
//! ```text
//! cargo build --release -p walla && \
//! cargo run --release -p walla_benches --bin compare_llama -- \
//!     --llama-batched-bench PATH --json benches/results/cpu-vs-llama.json model.gguf …
//! cargo build --release -p walla --features cuda && \
//! cargo run --release -p walla_benches --bin compare_llama -- \
//!     --llama-batched-bench PATH --llama-args "-fa on" --device cuda:0 --synth llama-3.2-1b:q4_k_m,llama-3.2-1b:bf16 \
//!     --agents 1,2,4,8,16,32,64 --contexts 128,1024 --json benches/results/cuda-vs-llama.json
//! ```
//!
//! The two run alternately, several rounds. For each value the best round counts, because other
//! work on the machine only ever adds time. Means of a round's steps are compared, since llama.cpp
//! reports only a mean; walla's median is listed in addition. A `walla` that is too old to report
//! its mean is compared by its median, which a few long steps do not affect: the file and the
//! table's last line note this. `llama-batched-bench` is run from the given path; it is not part of
//! this project. Results are written after every round, so an aborted run keeps the completed
//! rounds.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde_json::{Value, json};
use walla_benches::{machine, output, synthetic};

#[derive(Debug, Parser)]
struct Arguments {
    /// Path of llama.cpp's `llama-batched-bench`
    #[arg(long)]
    llama_batched_bench: PathBuf,
    /// More arguments for it
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    llama_args: String,
    /// The `walla` command, built by `cargo build --release -p walla`
    #[arg(long, default_value = "target/release/walla")]
    walla: PathBuf,
    /// Device of both: `cpu`, or a GPU such as `cuda:0`
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Numbers of agents
    #[arg(long, value_delimiter = ',', default_value = "1,4,8")]
    agents: Vec<u32>,
    /// Threads of both, on a CPU
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Prompt tokens of each agent
    #[arg(long, value_delimiter = ',', default_value = "128")]
    contexts: Vec<u32>,
    /// Measured steps
    #[arg(long, default_value_t = 32)]
    tokens: u32,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Models of random weights, `shape:types`, created if they do not exist
    #[arg(long, value_delimiter = ',')]
    synth: Vec<String>,
    /// The commit that `walla` was built from, if git is not available
    #[arg(long)]
    commit: Option<String>,
    /// File to write
    #[arg(long)]
    json: Option<PathBuf>,
    /// GGUF files
    #[arg(required_unless_present = "synth")]
    models: Vec<PathBuf>,
}

/// Values of every round for a number of agents and a context length, in milliseconds per step and
/// prompt tokens per second.
#[derive(Debug, Default)]
struct Rounds {
    model: String,
    context: u32,
    agents: u32,
    ours: Vec<Reading>,
    theirs: Vec<Reading>,
    /// Whether walla's value is a median and llama.cpp's a mean.
    is_of_medians: bool,
    /// Lower bound by memory bandwidth, and walla's overhead outside the device: of the last round.
    floor_ms: f64,
    submit_us: f64,
    gap_us: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    /// The mean of a round's steps, or the median if no mean was reported.
    step_ms: f64,
    /// Walla's median.
    step_ms_p50: Option<f64>,
    prefill: f64,
}

impl Reading {
    /// The shortest step and the fastest prefill, each over all rounds.
    fn best(all: &[Self]) -> Self {
        Self {
            step_ms: all.iter().map(|one| one.step_ms).fold(f64::INFINITY, f64::min),
            step_ms_p50: all.iter().filter_map(|one| one.step_ms_p50).reduce(f64::min),
            prefill: all.iter().map(|one| one.prefill).fold(0.0, f64::max),
        }
    }

    /// walla's values in a row of `walla bench --json`.
    fn ours(row: &Value) -> Option<Self> {
        let step_ms_p50 = row["step_ms_p50"].as_f64();
        Some(Self {
            step_ms: row["step_ms_mean"].as_f64().or(step_ms_p50)?,
            step_ms_p50,
            prefill: row["prefill_tokens_per_second"].as_f64()?,
        })
    }

    /// llama.cpp's values in such a row.
    fn theirs(row: &Value) -> Option<Self> {
        let prefill = row["prefill_tokens_per_second"].as_f64()?;
        Some(Self { step_ms: row["step_ms"].as_f64()?, step_ms_p50: None, prefill })
    }

    fn list(all: &[Self]) -> Value {
        json!({
            "step_ms_rounds": all.iter().map(|one| one.step_ms).collect::<Vec<_>>(),
            "step_ms_p50_rounds": all.iter().map(|one| one.step_ms_p50).collect::<Vec<_>>(),
            "prefill_tokens_per_second_rounds": all.iter().map(|one| one.prefill).collect::<Vec<_>>(),
        })
    }
}

impl Rounds {
    /// Adds a row of `walla bench --json`.
    fn add(&mut self, row: &Value) {
        self.ours.extend(Reading::ours(row));
        self.theirs.extend(Reading::theirs(&row["llama_cpp"]));
        self.is_of_medians |= row["step_ms_mean"].is_null();
        let number = |name: &str| row[name].as_f64().unwrap_or_default();
        (self.floor_ms, self.submit_us, self.gap_us) =
            (number("floor_ms"), number("submit_us_p50"), number("gap_us_p50"));
    }

    fn to_json(&self) -> Value {
        let ratio = Reading::best(&self.theirs).step_ms / Reading::best(&self.ours).step_ms;
        json!({
            "model": self.model,
            "context": self.context,
            "agents": self.agents,
            "walla": Reading::list(&self.ours),
            "llama_cpp": Reading::list(&self.theirs),
            "ratio_of_best_steps": ratio,
            "walla_step": if self.is_of_medians { "median" } else { "mean" },
            "llama_cpp_step": "mean",
            "floor_ms": self.floor_ms,
            "submit_us_p50": self.submit_us,
            "gap_us_p50": self.gap_us,
        })
    }

    fn row(&self) -> String {
        let (ours, theirs) = (Reading::best(&self.ours), Reading::best(&self.theirs));
        let Self { model, context, agents, floor_ms, submit_us, gap_us, .. } = self;
        format!(
            "| {model} | {context} | {agents} | {:.3} | {} | {:.0} % | {:.3} | {:.2}x | {:.0} | {:.0} | {submit_us:.1} | {gap_us:.1} |",
            ours.step_ms,
            ours.step_ms_p50.map_or_else(|| "–".into(), |p50| format!("{p50:.3}")),
            100.0 * floor_ms / ours.step_ms,
            theirs.step_ms,
            theirs.step_ms / ours.step_ms,
            ours.prefill,
            theirs.prefill,
        )
    }
}

const HEADING: &str = "| model | context | agents | walla ms/step | its p50 | of floor | llama.cpp ms/step | ratio | walla prefill tok/s | llama.cpp | submit µs | gap µs |\n\
                       |---|---|---|---|---|---|---|---|---|---|---|---|";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let mut models = arguments.models.clone();
    for name in &arguments.synth {
        models.push(synthetic(name)?);
    }
    if let Some(path) = &arguments.json {
        output::check(path, &models)?;
    }
    let machine = machine::facts(arguments.commit.as_deref());
    let mut all = Vec::new();
    println!("{HEADING}");
    for model in &models {
        for &context in &arguments.contexts {
            let first = all.len();
            all.extend(arguments.agents.iter().map(|&agents| Rounds {
                model: name_of(model),
                context,
                agents,
                ..Rounds::default()
            }));
            for _ in 0..arguments.rounds {
                round(&arguments, model, context, &mut all[first..])?;
                write(&arguments, &machine, &all)?;
            }
            all[first..].iter().for_each(|rounds| println!("{}", rounds.row()));
        }
    }
    if all.iter().any(|rounds| rounds.is_of_medians) {
        println!("\nThis walla tells no mean: its median stands beside llama.cpp's mean.");
    }
    Ok(())
}

fn name_of(model: &Path) -> String {
    let stem = model.file_stem().unwrap_or_default().to_string_lossy();
    stem.strip_prefix("walla-").unwrap_or(&stem).to_owned()
}

fn write(arguments: &Arguments, machine: &Value, all: &[Rounds]) -> Result<(), Box<dyn Error>> {
    let Some(path) = &arguments.json else { return Ok(()) };
    let report = json!({
        "machine": machine,
        "device": arguments.device,
        "threads": arguments.threads,
        "steps": arguments.tokens,
        "rounds": arguments.rounds,
        "llama_cpp_arguments": arguments.llama_args,
        "rows": all.iter().map(Rounds::to_json).collect::<Vec<_>>(),
    });
    Ok(output::replace(path, format!("{report:#}\n"))?)
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let output = command.output().map_err(|error| {
        format!(
            "{command:?}: {error} (`cargo build --release -p walla` makes target/release/walla)"
        )
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {said}", output.status).into());
    }
    Ok(())
}

/// One round: `walla bench` measures walla, then llama.cpp.
fn round(
    arguments: &Arguments,
    model: &Path,
    context: u32,
    rows: &mut [Rounds],
) -> Result<(), Box<dyn Error>> {
    let json = std::env::temp_dir().join(format!("walla-bench-{}.json", std::process::id()));
    let agents: Vec<_> = arguments.agents.iter().map(u32::to_string).collect();
    run(Command::new(&arguments.walla)
        .arg("bench")
        .arg(model)
        .args(["--device", &arguments.device, "--threads", &arguments.threads.to_string()])
        .args(["--agents", &agents.join(",")])
        .args(["--context", &context.to_string()])
        .args(["--tokens", &arguments.tokens.to_string()])
        .arg("--llama")
        .arg(&arguments.llama_batched_bench)
        .args(["--llama-args", &arguments.llama_args])
        .arg("--json")
        .arg(&json))?;
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    std::fs::remove_file(&json)?;
    for rounds in rows {
        let found = report["rows"].as_array().into_iter().flatten();
        let mut found = found.filter(|row| row["agents"].as_u64() == Some(rounds.agents.into()));
        if let Some(row) = found.next() {
            rounds.add(row);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_the_best_rounds() {
        let mut rounds = Rounds { model: "m".into(), context: 128, agents: 4, ..Rounds::default() };
        for (ours, theirs) in [(2.0, 5.0), (1.0, 6.0)] {
            rounds.add(&json!({
                "step_ms_mean": ours, "step_ms_p50": ours / 2.0, "prefill_tokens_per_second": 100.0, "floor_ms": 0.5, "submit_us_p50": 5.0, "gap_us_p50": 2.0,
                "llama_cpp": {"step_ms": theirs, "prefill_tokens_per_second": 50.0},
            }));
        }
        let found = rounds.to_json();
        assert_eq!(found["ratio_of_best_steps"], 5.0);
        assert_eq!(found["walla"]["step_ms_rounds"], json!([2.0, 1.0]));
        assert_eq!(found["walla"]["step_ms_p50_rounds"], json!([1.0, 0.5]));
        assert_eq!(found["walla_step"], "mean");
        assert_eq!(
            rounds.row(),
            "| m | 128 | 4 | 1.000 | 0.500 | 50 % | 5.000 | 5.00x | 100 | 50 | 5.0 | 2.0 |"
        );
    }

    #[test]
    fn a_median_instead_of_a_mean_is_labeled() {
        let mut rounds = Rounds::default();
        rounds.add(&json!({
            "step_ms_p50": 2.0, "prefill_tokens_per_second": 100.0,
            "llama_cpp": {"step_ms": 5.0, "prefill_tokens_per_second": 50.0},
        }));
        let found = rounds.to_json();
        assert_eq!(found["ratio_of_best_steps"], 2.5);
        assert_eq!(found["walla_step"], "median");
    }

    #[test]
    fn rows_are_named_after_models() {
        assert_eq!(name_of(Path::new("x/walla-qwen3-0.6b-q8_0.gguf")), "qwen3-0.6b-q8_0");
        assert_eq!(name_of(Path::new("greta.gguf")), "greta");
    }
}
