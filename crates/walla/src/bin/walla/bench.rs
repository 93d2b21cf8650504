//! `walla bench`: milliseconds per step of N agents in lockstep, against the minimum time of the
//! memory traffic.

pub mod bandwidth;
mod llama;
pub mod measure;
mod table;

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use walla_device::DeviceInfo;
use walla_exec::{ExecOptions, Lockstep, cache_needs};
use walla_model::{Gguf, ModelSpec};
use walla_runtime::walla_trace::TraceFile;
use walla_types::{Sampling, SeqId};

use self::measure::{Measured, Run};
use crate::Failure;
use crate::args::Bench;
use crate::load;
use crate::output::Target;

/// Sequences of an engine with inactive ones.
const HOLES_SEQUENCES: u32 = 8;

pub fn run(arguments: &Bench) -> Result<(), Failure> {
    let file = load::open(&arguments.model)?;
    let lists = [&arguments.agents, &arguments.context];
    if lists.iter().any(|list| list.is_empty() || list.contains(&0)) || arguments.tokens == 0 {
        return Err("agents, context and tokens are at least 1".into());
    }
    // Checked before the measurements, so that an unwritable path fails at once.
    let inputs: Vec<&Path> =
        [Some(&*arguments.model), arguments.llama.as_deref()].into_iter().flatten().collect();
    let target = arguments.json.as_deref().map(|path| Target::new(path, &inputs)).transpose()?;
    let bytes_per_second = bandwidth::measure(&arguments.device)?;
    // An engine would do this; here the command calls the device itself.
    let _trace = TraceFile::from_environment();
    let mut out = std::io::stdout();
    let mut report = Report::default();
    for &context in &arguments.context {
        bench_context(arguments, &file, context, bytes_per_second, &mut report, &mut out)?;
    }
    let Some(target) = target else { return Ok(()) };
    report.write(arguments, &file, bytes_per_second, &target)
}

/// Contents of the JSON file.
#[derive(Default)]
struct Report {
    device: Option<DeviceInfo>,
    /// One entry per context length.
    load_seconds: Vec<f64>,
    rows: Vec<Value>,
    holes: Vec<Value>,
}

impl Report {
    fn write(
        &self,
        arguments: &Bench,
        file: &Gguf,
        bytes_per_second: f64,
        target: &Target,
    ) -> Result<(), Failure> {
        let device = self.device.as_ref().map(|device| {
            json!({"name": device.name, "description": device.description, "variant": device.variant, "threads": device.threads})
        });
        let report = json!({
            "model": arguments.model.display().to_string(),
            "file_bytes": file.file_bytes(),
            "context": arguments.context,
            "kv": format!("{:?}", arguments.kv).to_lowercase(),
            "steps": arguments.tokens,
            "prefill_rows": arguments.prefill_rows,
            "load_seconds": self.load_seconds,
            "device": device,
            "read_bytes_per_second": bytes_per_second,
            "rows": self.rows,
            "holes": self.holes,
        });
        let mut output = target.create()?;
        let written = writeln!(output.file, "{report:#}").and_then(|()| output.finish());
        written.map_err(|error| target.failed(&error))
    }
}

/// Loads the model for one length of context and measures every number of agents with it.
fn bench_context(
    arguments: &Bench,
    file: &Gguf,
    context: u32,
    bytes_per_second: f64,
    report: &mut Report,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let Bench { tokens, prefill_rows, .. } = *arguments;
    let run = Run { context, tokens, prefill_rows };
    let model = ModelSpec::from_gguf(file, run.max_context())
        .map_err(|error| load::named(&arguments.model, &error))?;
    let max_agents = arguments.agents.iter().max().copied().unwrap_or(1);
    let max_sequences = if arguments.holes { max_agents.max(HOLES_SEQUENCES) } else { max_agents };
    let options = ExecOptions {
        max_sequences,
        context_tokens: run.max_context(),
        max_rows: prefill_rows.max(max_sequences),
        max_outputs: max_sequences,
        max_logits_rows: 0,
        mapped_results: !arguments.copied_results,
        kv_type: arguments.kv.into(),
        ..ExecOptions::default()
    };
    let options = options.with_full_pages();
    let start = Instant::now();
    let executor = load::executor(&arguments.model, file, &model, &arguments.device, options)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let device = executor.device().info().clone();
    let memory = executor.device().memory();
    // A row of the embedding is looked up without reading the matrix. Only a tied matrix is read,
    // by the output head.
    let embedding = if model.is_tied() { 0 } else { matrix_bytes(&model.embedding) };
    let table = model.layer_inputs.map_or(0, |inputs| matrix_bytes(&inputs.table));
    let bytes = StepBytes {
        weights: memory
            .weight_bytes
            .saturating_sub((embedding + table).saturating_sub(memory.host_table_bytes))
            .saturating_sub(idle_expert_bytes(&model)),
        per_token: cache_needs(&model, options.kv_type, context).kv_bytes_per_token,
    };
    table::heading(out, arguments, context, &device, (bytes_per_second, load_seconds))?;
    let fallbacks = executor.device().graph_fallbacks();
    if fallbacks.total() > 0 {
        writeln!(out, "programs launched op by op instead of as graphs: {fallbacks}")?;
    }
    let mut lockstep = Lockstep::new(executor, Vec::new(), Sampling::greedy())?;
    let mut rows = Vec::new();
    for &agents in &arguments.agents {
        let measured = measure::measure(&mut lockstep, sequences(0..agents), run, &model)?;
        let floor_ms = bytes.of(agents, run) as f64 / bytes_per_second * 1e3;
        table::row(out, agents, &measured, floor_ms)?;
        rows.push(table::to_json(agents, context, &measured, floor_ms));
    }
    if arguments.holes {
        report.holes.push(holes(&mut lockstep, run, &model, out)?);
    }
    // Frees the device memory for llama.cpp.
    drop(lockstep);
    if let Some(path) = &arguments.llama {
        let theirs = llama::run(path, arguments, context, &device)?;
        table::beside(out, &mut rows, &theirs)?;
    }
    report.rows.extend(rows);
    report.load_seconds.push(load_seconds);
    report.device = Some(device);
    Ok(())
}

/// Minimum number of bytes that a step reads.
struct StepBytes {
    weights: u64,
    /// Keys and values of one token of one agent.
    per_token: u64,
}

impl StepBytes {
    /// Weights once and every agent's keys and values once, at the context length in the middle of
    /// the run.
    fn of(&self, agents: u32, run: Run) -> u64 {
        self.weights + u64::from(agents) * u64::from(run.context_mean()) * self.per_token
    }
}

fn sequences(numbers: impl IntoIterator<Item = u32>) -> Vec<SeqId> {
    numbers.into_iter().map(SeqId).collect()
}

/// Four agents without and with an inactive sequence between them, measured alternately.
fn holes(
    lockstep: &mut Lockstep,
    run: Run,
    model: &ModelSpec,
    out: &mut impl Write,
) -> Result<Value, Failure> {
    const ROUNDS: usize = 3;
    let sets = [[0, 1, 2, 3], [0, 1, 3, 4]];
    let mut best_ms = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for (best, set) in best_ms.iter_mut().zip(sets) {
            let measured = measure::measure(lockstep, sequences(set), run, model)?;
            *best = best.min(measured.step_ms.quantile(0.5));
        }
    }
    let [dense, holed] = best_ms;
    writeln!(
        out,
        "agents 0,1,2,3 of {HOLES_SEQUENCES}: {dense:.4} ms a step; 0,1,3,4: {holed:.4} ms ({:+.2} %)",
        100.0 * (holed / dense - 1.0)
    )?;
    Ok(json!({"context": run.context, "step_ms_0123": dense, "step_ms_0134": holed}))
}

/// Experts that no agent uses if all agents use the same ones.
fn idle_expert_bytes(model: &ModelSpec) -> u64 {
    let idle = model.experts().map(|experts| {
        let all: u64 = [experts.gate, experts.up, experts.down].iter().map(matrix_bytes).sum();
        all / experts.count as u64 * (experts.count - experts.used) as u64
    });
    idle.sum()
}

fn matrix_bytes(matrix: &walla_model::spec::Matrix) -> u64 {
    matrix.ty.row_bytes(matrix.cols).unwrap_or(0) as u64 * matrix.rows as u64
}
