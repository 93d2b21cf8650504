//! Milliseconds of one decode step of real shapes with random weights, for several numbers of
//! agents and contexts, as JSON lines.
//!
//! `cargo run --release -p walla_cuda --example step_bench -- [SHAPE:TYPE …]`, for example
//! `llama-3.2-1b:q4_k_m`. Variants: `llama-3.2-1b:q4_k_m:64` for 64 agents only,
//! `llama-3.2-1b:q4_k_m:kv8` for 8-bit pages, `llama-3.2-1b:q4_k_m:each4000` for contexts of 4,000
//! tokens, and `llama-3.2-1b:q4_k_m:first4000` for a context of 4,000 tokens of the first agent
//! only.

mod shapes;

use std::time::Instant;

use walla_cuda::CudaBackend;
use walla_device::{Backend, HeadShape, KvType, OpenOptions};

use self::shapes::{PAGE_TOKENS, Result, Rig, SHAPES, Shape, layout, model, pages_of};

const BUCKETS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const CONTEXTS: [u32; 2] = [128, 1024];
/// Context limit of the long-context programs; the others just fit the context. The difference in
/// time is the possible gain from tiers of context.
const LONGEST: u32 = 16_384;

/// Restriction of the measurements.
#[derive(Clone, Copy, Default)]
struct Only {
    agents: Option<u32>,
    first_context: Option<u32>,
    context: Option<u32>,
    kv_type: KvType,
}

fn run(shape: &Shape, mixture: &str, only: Only) -> Result<()> {
    let kv_type = only.kv_type;
    let mut device = CudaBackend::from_env().open("cuda:0", &OpenOptions::default())?;
    let d = &mut *device;
    let gpu = d.info().gpu.clone().unwrap_or_default();
    for refused in &gpu.kernel_images_refused {
        eprintln!("kernel image refused: {refused}");
    }
    let loading = Instant::now();
    let model = model(d, shape, mixture)?;
    let load_seconds = loading.elapsed().as_secs_f64();
    let contexts = only.context.map_or(CONTEXTS.to_vec(), |context| vec![context]);
    let others = contexts.iter().copied().max().unwrap_or_default();
    let first = only.first_context.unwrap_or(others);
    let layout = layout(64, first.max(others));
    let pages = pages_of(first) + 63 * pages_of(others);
    let rig = Rig::new(d, layout, (&model.layers, pages, kv_type), shape.vocab)?;
    let program = |rows: u32, max_context: u32| {
        rig.program((rows, max_context, shape.vocab), &model.slots, &model.ops)
    };
    let tiers: Vec<_> = contexts
        .iter()
        .flat_map(|&context| [context + PAGE_TOKENS, LONGEST.max(first.max(others))])
        .collect();
    let programs = tiers.iter().flat_map(|tier| BUCKETS.map(|rows| program(rows, *tier)));
    let preparing = Instant::now();
    let prepared = d.prepare(programs.collect())?;
    println!(
        "{{\"shape\": \"{}\", \"type\": \"{mixture}\", \"kv\": \"{kv_type:?}\", \"weight_gb\": {:.3}, \"load_s\": {:.2}, \
         \"prepare_s\": {:.2}, \"mode\": \"{:?}\", \"image\": \"{}\"}}",
        shape.name,
        model.weight_bytes as f64 / 1e9,
        load_seconds,
        preparing.elapsed().as_secs_f64(),
        prepared[0].mode,
        gpu.kernel_image,
    );
    for (c, &max_context) in tiers.iter().enumerate() {
        let context = contexts[c / 2];
        for (b, rows) in BUCKETS.into_iter().enumerate() {
            if only.agents.is_some_and(|only| only != rows) {
                continue;
            }
            let graph = prepared[c * BUCKETS.len() + b].graph;
            let first = only.first_context.unwrap_or(context);
            if first > max_context {
                continue;
            }
            let mut its = [context; 64];
            its[0] = first;
            rig.write(d, &its[..rows as usize], 1)?;
            let mut best = f64::MAX;
            for _ in 0..4 {
                d.synchronize()?;
                let start = Instant::now();
                let times = 20;
                for _ in 0..times {
                    rig.upload(d, rows)?;
                    d.launch(rig.stream, graph)?;
                }
                d.synchronize()?;
                best = best.min(start.elapsed().as_secs_f64() * 1e3 / f64::from(times));
            }
            let HeadShape { kv_heads, head_dim, .. } = shape.heads;
            let head_bytes = head_dim * kv_type.bytes() as u32 + kv_type.scale_bytes() as u32;
            let kv = 2
                * u64::from(shape.layers * kv_heads * head_bytes)
                * u64::from(context * (rows - 1) + first);
            let floor_ms = (model.weight_bytes + kv) as f64 / 4.3e12 * 1e3;
            println!(
                "{{\"shape\": \"{}\", \"type\": \"{mixture}\", \"context\": {context}, \"first_context\": {first}, \"context_max\": {max_context}, \"agents\": {rows}, \
                 \"step_ms\": {best:.3}, \"floor_ms\": {floor_ms:.3}, \"share\": {:.2}}}",
                shape.name,
                floor_ms / best
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.is_empty() {
        wanted.push("llama-3.2-1b:q4_k_m".to_owned());
    }
    for item in wanted {
        let mut parts = item.split(':');
        let (Some(name), Some(mixture)) = (parts.next(), parts.next()) else {
            return Err("expected SHAPE:TYPE".into());
        };
        let mut only = Only::default();
        for part in parts {
            if part == "kv8" {
                only.kv_type = KvType::Q8;
            } else if let Some(context) = part.strip_prefix("first") {
                only.first_context = Some(context.parse()?);
            } else if let Some(context) = part.strip_prefix("each") {
                only.context = Some(context.parse()?);
            } else {
                only.agents = Some(part.parse()?);
            }
        }
        let shape = SHAPES.iter().find(|shape| shape.name == name).ok_or("no such shape")?;
        run(shape, mixture, only)?;
    }
    Ok(())
}
