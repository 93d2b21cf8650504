//! Time of one decode step by op and kernel: the time, the bytes read, the time for these bytes at
//! the measured memory bandwidth, and the rest.
//!
//! `cargo run --release -p walla_cuda --features cupti --example kernel_times --
//! [SHAPE:TYPE[:AGENTS[xTOKENS][:CONTEXT]] …]`, for example `llama-3.2-1b:q4_k_m:8:1024`. With
//! `xTOKENS` the step reads that many prompt tokens of each agent, the last at position CONTEXT:
//! `llama-3.2-1b:q4_k_m:1x512:511`. The profiling
//! library (libcupti) must be on the library search path; without it, only spans from events are
//! printed.
//!
//! "own" is the time from the previous kernel's end to a kernel's end; these times add up to the
//! span. "ran" is the time from a kernel's start, which may overlap the previous kernel if kernels
//! may start early.

mod shapes;

use walla_cuda::CudaBackend;
use walla_cuda::timing::{KernelOfProgram, Method, Timing, TimingOptions};
use walla_device::{Device, HeadShape, Op, OpenOptions};

use self::shapes::{Case, Result};

fn main() -> Result<()> {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.is_empty() {
        wanted.push("llama-3.2-1b:q4_k_m".to_owned());
    }
    wanted.iter().try_for_each(|item| run(&Case::parse(item)?))
}

fn run(case: &Case<'_>) -> Result<()> {
    let Case { shape, mixture, agents, chunk, context } = *case;
    let backend = CudaBackend::from_env();
    let options = OpenOptions::default();
    // A separate device, because the memory that the measurement reads stays allocated.
    let measured = backend.open_gpu("cuda:0", &options)?.read_bytes_per_second()?;
    let bytes_per_second = measured.ok_or("no measurement")?;
    let mut device = backend.open_gpu("cuda:0", &options)?;
    let (model, rig, program) = case.load(&mut device)?;
    let (stream, ops, weight_bytes) = (rig.stream, names(&model.ops), model.weight_bytes);
    let graph = device.prepare(vec![program])?.first().ok_or("nothing was prepared")?.graph;
    println!(
        "{} {mixture}, {agents} agents, {chunk} tokens each, context {context}: {:.3} GB of weights, {:.0} GB/s measured",
        shape.name,
        weight_bytes as f64 / 1e9,
        bytes_per_second / 1e9
    );
    let mut time = |method, cold| {
        let options = TimingOptions { method, cold, ..TimingOptions::default() };
        device.time(stream, options, &mut |device, stream, _| device.launch(stream, graph))
    };
    let cupti = time(Method::Cupti, true)?;
    if let Some(why) = &cupti.fallback {
        println!("times from events: {why}");
    }
    let spans = [
        ("records, cold cache", &cupti),
        ("events, cold cache", &time(Method::Events, true)?),
        ("events, warm cache", &time(Method::Events, false)?),
        ("graph of 8 steps replayed", &time(Method::GraphReplay { copies: 8 }, false)?),
    ];
    for (what, timing) in spans {
        println!("{what:>26}: {:>9.1} us", timing.median_micros());
    }
    let HeadShape { kv_heads, head_dim, .. } = shape.heads;
    let page_bytes = 4 * u64::from(kv_heads * head_dim) * u64::from(context * agents);
    table(&device.kernels_of(graph)?, &ops, &cupti, page_bytes, bytes_per_second);
    Ok(())
}

/// Names of ops.
fn names(ops: &[Op]) -> Vec<&'static str> {
    let before = |i: usize| i.checked_sub(1).and_then(|i| ops.get(i));
    let name = |(i, op): (usize, &Op)| match op {
        Op::Embed(_) => "embedding",
        Op::LayerInputs(_) | Op::GateInput(_) => "inputs of layers",
        Op::Qkv(_) => "query, key, value",
        Op::ShortConv(_) => "convolution",
        Op::Attention(_) => "attention",
        Op::Project(_) if matches!(before(i), Some(Op::GateUp(_))) => "down",
        Op::Project(_) => "output",
        Op::GateUp(_) => "gate, up",
        Op::Experts(_) => "experts",
        Op::DeltaNet(_) => "DeltaNet",
        Op::Gate(_) => "gate",
        Op::Head(_) => "head",
        Op::Hidden(_) => "hidden state",
        Op::Sample => "sampler",
    };
    ops.iter().enumerate().map(name).collect()
}

/// Sums over all runs of one kernel's launches for ops of one name.
#[derive(Default)]
struct Row {
    launches: usize,
    own_micros: f64,
    ran_micros: f64,
    bytes: u64,
}

fn table(
    kernels: &[KernelOfProgram],
    ops: &[&'static str],
    timing: &Timing,
    page_bytes: u64,
    bytes_per_second: f64,
) {
    let Some(first) = timing.runs.first() else { return };
    let same = first.pieces.len() == kernels.len()
        && first.pieces.iter().zip(kernels).all(|(piece, kernel)| piece.name == kernel.name);
    if !same {
        println!("the kernels ran in another order than they were launched: neither ops nor bytes");
    }
    // In execution order.
    let mut rows: Vec<((&str, &str), Row)> = Vec::new();
    let steps = timing.runs.len() as f64;
    for run in &timing.runs {
        let mut end_before = 0;
        for (i, piece) in run.pieces.iter().enumerate() {
            let kernel = kernels.get(i).filter(|_| same);
            let op = kernel.and_then(|kernel| ops.get(kernel.op? as usize)).copied();
            let key = (op.unwrap_or_default(), piece.name.as_str());
            let at = rows.iter().position(|(its, _)| *its == key).unwrap_or_else(|| {
                rows.push((key, Row::default()));
                rows.len() - 1
            });
            let row = &mut rows[at].1;
            row.launches += 1;
            row.own_micros += piece.end_nanos.saturating_sub(end_before) as f64 / 1e3;
            row.ran_micros += piece.end_nanos.saturating_sub(piece.begin_nanos) as f64 / 1e3;
            if let Some(kernel) = kernel {
                row.bytes += kernel.weight_bytes;
                let is_attention = kernel.reads_pages && kernel.name.contains("att");
                row.bytes += if is_attention { page_bytes } else { 0 };
            }
            end_before = end_before.max(piece.end_nanos);
        }
    }
    let mut all = Row::default();
    for (_, row) in &rows {
        all.launches += row.launches;
        all.own_micros += row.own_micros;
        all.ran_micros += row.ran_micros;
        all.bytes += row.bytes;
    }
    println!(
        "{:<18} {:<38} {:>6} {:>9} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "op",
        "kernel",
        "a step",
        "own us",
        "of step",
        "each us",
        "ran us",
        "MB",
        "bytes us",
        "beyond us"
    );
    let line = |op: &str, name: &str, row: &Row| {
        let bytes = row.bytes as f64 / steps;
        let (own, of_bytes) = (row.own_micros / steps, bytes / bytes_per_second * 1e6);
        println!(
            "{op:<18} {name:<38} {:>6.1} {own:>9.1} {:>7.1}% {:>8.2} {:>9.1} {:>9.1} {of_bytes:>9.1} {:>9.1}",
            row.launches as f64 / steps,
            100.0 * row.own_micros / all.own_micros,
            row.own_micros / row.launches as f64,
            row.ran_micros / steps,
            bytes / 1e6,
            own - of_bytes
        );
    };
    for ((op, name), row) in &rows {
        line(op, name, row);
    }
    line("all", "", &all);
}
