//! Times of the shaders of one step, by op: `cargo run --release -p walla_vulkan --example
//! shader_times -- [--device vulkan:0] [SHAPE:TYPE[:AGENTS[xTOKENS][:CONTEXT]] …]`, for example
//! `llama-3.2-1b:q4_k_m:8:1024`. With `xTOKENS` the step reads that many prompt tokens of each
//! agent, the last at position CONTEXT.
//!
//! Each shader waits for the one before it, as in a step, and for its timestamp, which costs a
//! little more than the step's own.

#[path = "../../walla_cuda/examples/shapes/mod.rs"]
mod shapes;

use walla_device::{OpenOptions, Phase, Program};
use walla_vulkan::{ShaderTime, VulkanBackend};

use self::shapes::{PAGE_TOKENS, Result, Rig, SHAPES, Shape, layout, model, pages_of};

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
    for item in wanted {
        let mut parts = item.split(':');
        let name = parts.next().unwrap_or_default();
        let shape = SHAPES.iter().find(|shape| shape.name == name).ok_or("no such shape")?;
        let mixture = parts.next().ok_or("expected SHAPE:TYPE")?;
        let rows = parts.next().unwrap_or("1");
        let (agents, chunk) = rows.split_once('x').unwrap_or((rows, "1"));
        let (agents, chunk): (u32, u32) = (agents.parse()?, chunk.parse()?);
        let context = parts.next().map_or(Ok(128), str::parse)?;
        if context + 1 < chunk {
            return Err("the context is shorter than the prompt's tokens".into());
        }
        println!("{item}");
        run(&device, (shape, mixture), (agents, chunk), context)?;
    }
    Ok(())
}

fn run(
    device: &str,
    (shape, mixture): (&Shape, &str),
    (agents, chunk): (u32, u32),
    context: u32,
) -> Result<()> {
    let options = OpenOptions::default();
    let mut device = VulkanBackend::from_env().open_gpu(device, &options)?;
    let model = model(&mut device, shape, mixture)?;
    let layout = layout(64.max(agents * chunk), context);
    let pages = agents * pages_of(context);
    let kv = walla_device::KvType::F16;
    let rig = Rig::new(&mut device, layout, (&model.layers, pages, kv), shape.vocab)?;
    let sizes = (agents * chunk, context + PAGE_TOKENS, shape.vocab);
    let program = Program {
        phase: if chunk == 1 { Phase::Decode } else { Phase::Prefill },
        pure_decode: chunk == 1,
        max_outputs: agents,
        ..rig.program(sizes, &model.slots, &model.ops)
    };
    rig.write(&mut device, &vec![context; agents as usize], chunk)?;
    rig.upload(&mut device, agents)?;
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
