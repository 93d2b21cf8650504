//! Milliseconds of one decode step of real shapes with random weights, at several numbers of agents and contexts, as JSON lines.
//!
//! `cargo run --release -p walla_cuda --example step_bench -- [SHAPE:TYPE …]`, for example `llama-3.2-1b:q4_k_m`, or
//! `llama-3.2-1b:q4_k_m:64` for 64 agents alone.

use std::error::Error;
use std::time::Instant;

use walla_cuda::CudaBackend;
use walla_device::step::{OutputRow, StepLayout, StepRow, StepViewMut};
use walla_device::{
    Backend, CacheDesc, CacheLayer, Device, HeadShape, KvType, Linear, MatrixDesc, MatrixUse, Norm,
    Op, OpenOptions, Phase, Program, RopeDesc, Slot, SlotDesc, StreamPriority,
};
use walla_types::{Activation, RopePairs, TensorType};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BUCKETS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const CONTEXTS: [u32; 2] = [128, 1024];
const PAGE_TOKENS: u32 = 32;
const LAYOUT: StepLayout = StepLayout {
    rows_max: 64,
    outputs_max: 64,
    biases_max: 64,
    sequences_max: 64,
    pages_per_sequence: 1056 / PAGE_TOKENS,
};

struct Shape {
    name: &'static str,
    width: u32,
    hidden: u32,
    vocab: u32,
    layers: u32,
    heads: HeadShape,
    head_norms: bool,
    tied: bool,
}

const fn heads(heads: u32, kv_heads: u32, head_dim: u32) -> HeadShape {
    HeadShape { heads, kv_heads, head_dim }
}

#[rustfmt::skip]
const SHAPES: [Shape; 4] = [
    Shape { name: "llama-3.2-1b", width: 2048, hidden: 8192, vocab: 128_256, layers: 16, heads: heads(32, 8, 64), head_norms: false, tied: true },
    Shape { name: "qwen3-0.6b", width: 1024, hidden: 3072, vocab: 151_936, layers: 28, heads: heads(16, 8, 128), head_norms: true, tied: true },
    Shape { name: "qwen3-4b", width: 2560, hidden: 9728, vocab: 151_936, layers: 36, heads: heads(32, 8, 128), head_norms: true, tied: true },
    Shape { name: "llama-3.1-8b", width: 4096, hidden: 14_336, vocab: 128_256, layers: 32, heads: heads(32, 8, 128), head_norms: false, tied: false },
];

/// Types of a mixture: value, down, head and all others of layer `i`.
fn types(mixture: &str, i: u32, layers: u32) -> Result<[TensorType; 4]> {
    let one = |ty| [ty; 4];
    Ok(match mixture {
        "f16" => one(TensorType::F16),
        "bf16" => one(TensorType::BF16),
        "q8_0" => one(TensorType::Q8_0),
        "q4_0" => [TensorType::Q4_0, TensorType::Q4_0, TensorType::Q6K, TensorType::Q4_0],
        "q4_k_m" => {
            let more = i < layers / 8 || i >= 7 * layers / 8 || (i - layers / 8) % 3 == 2;
            let more = if more { TensorType::Q6K } else { TensorType::Q4K };
            [more, more, TensorType::Q6K, TensorType::Q4K]
        }
        other => return Err(format!("no type {other}").into()),
    })
}

struct Loader<'a> {
    device: &'a mut dyn Device,
    noise: Vec<u8>,
    bytes: u64,
}

impl Loader<'_> {
    fn linear(&mut self, ty: TensorType, rows: u32, cols: u32, gather: bool) -> Result<Linear> {
        let bytes = ty.row_bytes(cols as usize).ok_or("blocks")? * rows as usize;
        // Random codes under small scales: every number is finite and none is zero throughout.
        while self.noise.len() < bytes {
            let i = self.noise.len() as u64;
            let word = (i / 8 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.noise.extend_from_slice(&(word ^ word >> 29).to_le_bytes());
        }
        let mut data = self.noise[..bytes].to_vec();
        let tops: &[usize] = match ty {
            TensorType::Q6K => &[209],
            TensorType::Q4K => &[1, 3],
            TensorType::F16 | TensorType::BF16 => &[1],
            _ => &[1],
        };
        for block in data.chunks_exact_mut(ty.block_bytes()) {
            for top in tops {
                block[*top] = if ty == TensorType::BF16 { 0x3c } else { 0x10 };
            }
        }
        self.bytes += bytes as u64;
        let usage = MatrixUse { gather, multiply: true };
        let desc = MatrixDesc { name: "random", rows, cols, ty, usage };
        Ok(Linear { matrix: self.device.load_matrix(&desc, &data)?, bias: None })
    }

    fn norm(&mut self, len: u32) -> Result<Norm> {
        Ok(Norm { weight: self.device.load_vector("norm", &vec![1.0; len as usize])?, eps: 1e-5 })
    }
}

struct Model {
    ops: Vec<Op>,
    layers: Vec<CacheLayer>,
    slots: Vec<SlotDesc>,
    weight_bytes: u64,
    load_seconds: f64,
}

fn model(device: &mut dyn Device, shape: &Shape, mixture: &str) -> Result<Model> {
    let start = Instant::now();
    let [x, q, mixed, h] = [0, 1, 2, 3].map(Slot);
    let HeadShape { heads, kv_heads, head_dim } = shape.heads;
    let frequencies: Vec<f32> =
        (0..head_dim / 2).map(|i| 500_000_f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
    let pairs = RopePairs::Halves;
    let rope = device.load_rope(&RopeDesc { frequencies: &frequencies, magnitude: 1.0, pairs })?;
    let mut b = Loader { device, noise: vec![], bytes: 0 };
    let [_, _, head_ty, _] = types(mixture, 0, shape.layers)?;
    let head = b.linear(head_ty, shape.vocab, shape.width, true)?;
    let table = if shape.tied {
        head.matrix
    } else {
        let table = b.linear(head_ty, shape.vocab, shape.width, true)?.matrix;
        b.bytes /= 2; // One row of the table is read, not all.
        table
    };
    let mut ops = vec![Op::Embed { table, scale: 1.0, x }];
    let mut layers = vec![];
    for layer in 0..shape.layers {
        let [value_ty, down_ty, _, ty] = types(mixture, layer, shape.layers)?;
        layers.push(CacheLayer::Kv { kv_heads, head_dim, rope: Some(rope) });
        let head_norms =
            if shape.head_norms { Some((b.norm(head_dim)?, b.norm(head_dim)?)) } else { None };
        ops.push(Op::Qkv {
            x,
            norm: b.norm(shape.width)?,
            query: b.linear(ty, heads * head_dim, shape.width, false)?,
            key: b.linear(ty, kv_heads * head_dim, shape.width, false)?,
            value: b.linear(value_ty, kv_heads * head_dim, shape.width, false)?,
            head_norms,
            rope: Some(rope),
            shape: shape.heads,
            layer,
            q,
        });
        let scale = 1.0 / (head_dim as f32).sqrt();
        ops.push(Op::Attention { q, shape: shape.heads, layer, scale, window: None, out: mixed });
        let linear = b.linear(ty, shape.width, heads * head_dim, false)?;
        ops.push(Op::Project { y: mixed, linear, post_norm: None, x });
        ops.push(Op::GateUp {
            x,
            norm: b.norm(shape.width)?,
            gate: b.linear(ty, shape.hidden, shape.width, false)?,
            up: b.linear(ty, shape.hidden, shape.width, false)?,
            activation: Activation::Silu,
            h,
        });
        let linear = b.linear(down_ty, shape.width, shape.hidden, false)?;
        ops.push(Op::Project { y: h, linear, post_norm: None, x });
    }
    ops.push(Op::Head { x, norm: b.norm(shape.width)?, linear: head });
    ops.push(Op::Sample);
    let widths = [shape.width, heads * head_dim, heads * head_dim, shape.hidden];
    let weight_bytes = b.bytes;
    device.synchronise()?;
    let slots = widths.map(|width| SlotDesc { width }).to_vec();
    Ok(Model { ops, layers, slots, weight_bytes, load_seconds: start.elapsed().as_secs_f64() })
}

/// Fills a step: every agent reads one token at `position`.
fn fill(bytes: &mut [u8], rows: u32, position: u32) {
    let Some(view) = StepViewMut::new(bytes, &LAYOUT) else { return };
    view.header.rows = rows;
    view.header.outputs = rows;
    view.header.sequences = rows;
    let pages = LAYOUT.pages_per_sequence;
    for r in 0..rows {
        let at = r as usize;
        view.rows[at] = StepRow {
            token: (r * 37 + 5).cast_signed(),
            position,
            sequence: r,
            table: r,
            previous: StepRow::NONE,
            output: r.cast_signed(),
            flags: StepRow::LAST_OF_SEQUENCE,
            reserved: 0,
        };
        view.outputs[at] = OutputRow {
            row: r,
            sequence: r,
            position,
            flags: OutputRow::SAMPLE,
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            seed: [r, 1],
            ..OutputRow::default()
        };
        for (i, page) in
            view.tables[(r * pages) as usize..][..pages as usize].iter_mut().enumerate()
        {
            *page = 1 + r * pages + i as u32;
        }
    }
}

fn run(shape: &Shape, mixture: &str, only: Option<u32>) -> Result<()> {
    let mut device = CudaBackend::from_env().open("cuda:0", &OpenOptions::default())?;
    let d = &mut *device;
    let model = model(d, shape, mixture)?;
    let cache = d.create_cache(&CacheDesc {
        layers: model.layers.clone(),
        pages: 64 * LAYOUT.pages_per_sequence + 1,
        page_tokens: PAGE_TOKENS,
        sequences_max: 64,
        kv_type: KvType::F16,
    })?;
    let step = d.create_buffer("step", LAYOUT.bytes())?;
    let results = d.create_buffer("results", LAYOUT.result_bytes())?;
    let logits = d.create_buffer("logits", 4 * 64 * shape.vocab as usize)?;
    let host = d.create_host("step", LAYOUT.bytes())?;
    let stream = d.create_stream(StreamPriority::Low)?;
    let program = |rows: u32, context_max: u32| Program {
        name: format!("{rows} rows"),
        phase: Phase::Decode,
        one_row_a_sequence: true,
        rows_max: rows,
        outputs_max: rows,
        context_max,
        vocab: shape.vocab,
        slots: model.slots.clone(),
        cache,
        step,
        layout: LAYOUT,
        results,
        logits,
        ops: model.ops.clone(),
    };
    let tiers = CONTEXTS.map(|context| context + PAGE_TOKENS);
    let programs = tiers.iter().flat_map(|tier| BUCKETS.map(|rows| program(rows, *tier)));
    let preparing = Instant::now();
    let prepared = d.prepare(programs.collect())?;
    println!(
        "{{\"shape\": \"{}\", \"type\": \"{mixture}\", \"weight_gb\": {:.3}, \"load_s\": {:.2}, \
         \"prepare_s\": {:.2}, \"mode\": \"{:?}\"}}",
        shape.name,
        model.weight_bytes as f64 / 1e9,
        model.load_seconds,
        preparing.elapsed().as_secs_f64(),
        prepared[0].mode,
    );
    for (c, context) in CONTEXTS.into_iter().enumerate() {
        for (b, rows) in BUCKETS.into_iter().enumerate() {
            if only.is_some_and(|only| only != rows) {
                continue;
            }
            let graph = prepared[c * BUCKETS.len() + b].graph;
            d.write_host(host, 0, LAYOUT.bytes(), &mut |bytes| fill(bytes, rows, context))?;
            d.upload(stream, host, step, LAYOUT.bytes())?;
            let mut best = f64::MAX;
            for _ in 0..4 {
                d.synchronise()?;
                let start = Instant::now();
                let times = 20;
                for _ in 0..times {
                    d.launch(stream, graph)?;
                }
                d.synchronise()?;
                best = best.min(start.elapsed().as_secs_f64() * 1e3 / f64::from(times));
            }
            let HeadShape { kv_heads, head_dim, .. } = shape.heads;
            let kv = 4 * u64::from(shape.layers * kv_heads * head_dim) * u64::from(context * rows);
            let floor_ms = (model.weight_bytes + kv) as f64 / 4.3e12 * 1e3;
            println!(
                "{{\"shape\": \"{}\", \"type\": \"{mixture}\", \"context\": {context}, \"agents\": {rows}, \
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
        let (name, rest) = item.split_once(':').ok_or("expected SHAPE:TYPE")?;
        let (mixture, only) = match rest.split_once(':') {
            Some((mixture, agents)) => (mixture, Some(agents.parse()?)),
            None => (rest, None),
        };
        let shape = SHAPES.iter().find(|shape| shape.name == name).ok_or("no such shape")?;
        run(shape, mixture, only)?;
    }
    Ok(())
}
