//! `walla bench`: milliseconds per step of N agents in lockstep, against the time that the memory alone needs.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use walla_exec::{ExecOptions, Lockstep};
use walla_model::{Gguf, ModelSpec};
use walla_types::{Sampling, SeqId, TokenId};

use crate::Failure;
use crate::args::Bench;
use crate::load;

/// Rows of a prefill step.
const PREFILL_ROWS: u32 = 128;

/// Steps before the measured ones: caches and clocks settle.
const WARM_UP_STEPS: u32 = 4;

/// What was measured for one number of agents.
struct Measured {
    agents: u32,
    /// Sorted.
    steps: Vec<Duration>,
    prefill_tokens_per_second: f64,
    /// Weights once and every agent's keys and values once, at the context in the middle of the run.
    bytes_per_step: u64,
}

pub fn run(arguments: &Bench) -> Result<(), Failure> {
    let file = load::open(&arguments.model)?;
    if arguments.agents.contains(&0) || arguments.context == 0 || arguments.tokens == 0 {
        return Err("agents, context and tokens are at least 1".into());
    }
    let context_tokens =
        arguments.context.saturating_add(arguments.tokens).saturating_add(WARM_UP_STEPS);
    let model = ModelSpec::from_gguf(&file, context_tokens)
        .map_err(|error| load::named(&arguments.model, &error))?;
    // Before anything is measured: nobody wants to wait for numbers that cannot be written.
    let json_file = arguments.json.as_ref().map(|path| {
        std::fs::File::create(path)
            .map_err(|error| load::named(path, &error))
            .map(|file| (path, file))
    });
    let json_file = json_file.transpose()?;
    let mut bandwidth = None;
    let mut rows = Vec::new();
    let mut out = std::io::stdout();
    for &agents in &arguments.agents {
        let (measured, device) = measure(arguments, &file, &model, agents, context_tokens)?;
        let bytes_per_second = *bandwidth.get_or_insert_with(|| read_bandwidth(device.threads));
        if rows.is_empty() {
            let (name, variant, threads) = (&device.name, &device.variant, device.threads);
            let gigabytes = bytes_per_second / 1e9;
            writeln!(out, "{}", arguments.model.display())?;
            writeln!(
                out,
                "{name} {variant}, {threads} threads, {gigabytes:.1} GB/s measured read"
            )?;
            writeln!(out, "context {}, {} steps", arguments.context, arguments.tokens)?;
            writeln!(
                out,
                "{:>7} {:>10} {:>10} {:>11} {:>14} {:>9}",
                "agents", "p50 ms", "p99 ms", "tokens/s", "prefill tok/s", "of floor"
            )?;
        }
        let row = to_json(&measured, bytes_per_second);
        writeln!(
            out,
            "{:>7} {:>10.3} {:>10.3} {:>11.1} {:>14.1} {:>8.0}%",
            agents,
            row["step_ms_p50"].as_f64().unwrap_or_default(),
            row["step_ms_p99"].as_f64().unwrap_or_default(),
            row["tokens_per_second"].as_f64().unwrap_or_default(),
            row["prefill_tokens_per_second"].as_f64().unwrap_or_default(),
            100.0 * row["share_of_floor"].as_f64().unwrap_or_default(),
        )?;
        out.flush()?;
        rows.push((row, device));
    }
    let Some((path, mut json_out)) = json_file else { return Ok(()) };
    let device = rows.first().map(|(_, device)| {
        json!({"name": device.name, "description": device.description, "variant": device.variant, "threads": device.threads})
    });
    let report = json!({
        "model": arguments.model.display().to_string(),
        "file_bytes": file.file_bytes(),
        "context": arguments.context,
        "steps": arguments.tokens,
        "device": device,
        "read_bytes_per_second": bandwidth,
        "rows": rows.into_iter().map(|(row, _)| row).collect::<Vec<Value>>(),
    });
    writeln!(json_out, "{report:#}").map_err(|error| load::named(path, &error))?;
    Ok(())
}

fn measure(
    arguments: &Bench,
    file: &Gguf,
    model: &ModelSpec,
    agents: u32,
    context_tokens: u32,
) -> Result<(Measured, walla_device::DeviceInfo), Failure> {
    let options = ExecOptions {
        sequences_max: agents,
        context_tokens,
        rows_max: PREFILL_ROWS.max(agents),
        outputs_max: agents,
        logits_rows_max: 0,
        ..ExecOptions::default()
    };
    let options = options.with_full_pages();
    let executor = load::executor(&arguments.model, file, model, &arguments.device, options)?;
    let device = executor.device().info().clone();
    let weight_bytes = executor.device().memory().weight_bytes;
    let active = (0..agents).map(SeqId).collect();
    let mut lockstep = Lockstep::new(executor, active, Sampling::greedy())?;
    let tokens: Vec<TokenId> = (0..arguments.context)
        .map(|index| TokenId((index * 7 + 11) % model.vocab as u32))
        .collect();
    let start = Instant::now();
    lockstep.prefill(&tokens)?;
    let prefill = start.elapsed();
    let mut steps = Vec::with_capacity(arguments.tokens as usize);
    for step in 0..WARM_UP_STEPS + arguments.tokens {
        let start = Instant::now();
        lockstep.submit_step()?;
        lockstep.collect()?;
        if step >= WARM_UP_STEPS {
            steps.push(start.elapsed());
        }
    }
    steps.sort_unstable();
    let context_mean = u64::from(arguments.context + WARM_UP_STEPS + arguments.tokens / 2);
    let kv_bytes = model.kv_numbers_per_token() as u64 * options.kv_type.bytes() as u64;
    // A row of the embedding is looked up, the matrix is not read: only a tied one is, by the head.
    let embedding = if model.is_tied() { 0 } else { matrix_bytes(&model.embedding) };
    let prefilled = f64::from(agents) * f64::from(arguments.context);
    let measured = Measured {
        agents,
        steps,
        prefill_tokens_per_second: prefilled / prefill.as_secs_f64(),
        bytes_per_step: weight_bytes.saturating_sub(embedding)
            + u64::from(agents) * context_mean * kv_bytes,
    };
    Ok((measured, device))
}

fn matrix_bytes(matrix: &walla_model::spec::Matrix) -> u64 {
    matrix.ty.row_bytes(matrix.cols).unwrap_or(0) as u64 * matrix.rows as u64
}

fn to_json(measured: &Measured, bytes_per_second: f64) -> Value {
    let quantile = |q: f64| {
        let index = ((measured.steps.len() - 1) as f64 * q).round() as usize;
        measured.steps.get(index).map_or(0.0, Duration::as_secs_f64)
    };
    let (p50, p99) = (quantile(0.5), quantile(0.99));
    let floor = measured.bytes_per_step as f64 / bytes_per_second;
    json!({
        "agents": measured.agents,
        "step_ms_min": quantile(0.0) * 1e3,
        "step_ms_p50": p50 * 1e3,
        "step_ms_p99": p99 * 1e3,
        "tokens_per_second": f64::from(measured.agents) / p50,
        "prefill_tokens_per_second": measured.prefill_tokens_per_second,
        "bytes_per_step": measured.bytes_per_step,
        "floor_ms": floor * 1e3,
        "share_of_floor": floor / p50,
    })
}

/// Bytes a second that `threads` threads read from memory: the best of five passes over a buffer larger than any cache.
fn read_bandwidth(threads: u32) -> f64 {
    const WORDS_PER_THREAD: usize = 16 << 20;
    let buffers: Vec<Vec<u64>> =
        (0..threads.max(1)).map(|seed| vec![u64::from(seed); WORDS_PER_THREAD]).collect();
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(move || std::hint::black_box(sum(buffer)));
            }
        });
        (buffers.len() * WORDS_PER_THREAD * size_of::<u64>()) as f64 / start.elapsed().as_secs_f64()
    };
    (0..5).map(|_| pass()).fold(0.0, f64::max)
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, &word| sum ^ word)
}
