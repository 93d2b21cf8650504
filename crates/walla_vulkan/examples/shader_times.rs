//! Times of the shaders of one step, by op: `cargo run --release -p walla_vulkan --example
//! shader_times -- [--device vulkan:0] [SHAPE:TYPE[:AGENTS[xTOKENS][:CONTEXT]] …]`, for example
//! `llama-3.2-1b:q4_k_m:8:1024`. With `xTOKENS` the step reads that many prompt tokens of each
//! agent, the last at position CONTEXT.
//!
//! Each shader waits for the one before it, as in a step, and for its timestamp, which costs a
//! little more than the step's own.

#[path = "../../walla_cuda/examples/shapes/mod.rs"]
mod shapes;

use walla_device::OpenOptions;
use walla_vulkan::{ShaderTime, VulkanBackend};

use self::shapes::{Case, Result};

const RUNS: usize = 50;

fn main() -> Result<()> {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut device = "vulkan:0".to_owned();
    if wanted.first().is_some_and(|first| first == "--device") {
        device = wanted.get(1).ok_or("--device needs a name")?.clone();
        wanted.drain(..2);
    }
    if wanted.is_empty() {
        wanted.push("llama-3.2-1b:q4_k_m".to_owned());
    }
    wanted.iter().try_for_each(|item| {
        println!("{item}");
        run(&device, &Case::parse(item)?)
    })
}

fn run(device: &str, case: &Case<'_>) -> Result<()> {
    let mut device = VulkanBackend::from_env().open_gpu(device, &OpenOptions::default())?;
    let (model, _, program) = case.load(&mut device)?;
    // Clocks rise.
    device.shader_times(&program, 10 * RUNS)?;
    let times = device.shader_times(&program, RUNS)?;
    let mut rows: Vec<(&ShaderTime, usize, f64)> = Vec::new();
    for time in &times {
        let kind = |time: &ShaderTime| model.ops.get(time.op).map(std::mem::discriminant);
        let same = |(its, _, _): &&mut (&ShaderTime, usize, f64)| {
            its.shader == time.shader && kind(its) == kind(time)
        };
        match rows.iter_mut().find(same) {
            Some((_, count, nanos)) => (*count, *nanos) = (*count + 1, *nanos + time.nanos),
            None => rows.push((time, 1, time.nanos)),
        }
    }
    let all: f64 = times.iter().map(|time| time.nanos).sum();
    println!(
        "{:<12} {:<50} {:>5} {:>9} {:>8} {:>7}",
        "op", "shader", "runs", "us", "each", "share"
    );
    for (time, count, nanos) in rows {
        let op = model.ops.get(time.op).map(|op| format!("{op:?}")).unwrap_or_default();
        let op = op.split('(').next().unwrap_or_default();
        let micros = nanos / 1e3;
        let (each, share) = (micros / count as f64, 100.0 * nanos / all);
        println!("{op:<12} {:<50} {count:>5} {micros:>9.1} {each:>8.2} {share:>6.1}%", time.shader);
    }
    println!("all: {:.1} us", all / 1e3);
    Ok(())
}
