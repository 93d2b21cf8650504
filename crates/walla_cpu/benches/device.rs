//! Speed of the CPU device: matrix products by type and number of rows, then whole decode steps of
//! real model shapes with random weights.
//!
//! ```text
//! cargo bench -p walla_cpu --bench device -- [linear|cached|model|wake] [filter]
//! ```
//!
//! `cached` measures products of a matrix in the L2 cache; `wake` measures small products, whose
//! time is that of publishing and waking.
//!
//! `WALLA_BENCH_THREADS` sets the number of threads (default 2), `WALLA_BENCH_VARIANT` the kernel
//! variant. Each time is the minimum over repeats, because other load on the machine only adds
//! time. `WALLA_BENCH_INLINE` runs everything on one thread and measures its CPU time; use it on a
//! busy machine. `WALLA_BENCH_ROWS` selects one number of rows, for a profiler.

use std::time::Instant;

use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_device::step::{OutputRow, StepLayout, StepRow, StepViewMut};
use walla_device::{
    BufferId, CacheDesc, CacheId, CacheLayer, Device, HeadShape, HostId, KvType, Linear,
    MatrixDesc, MatrixId, MatrixUse, Norm, Op, Phase, Program, RopeDesc, Slot, SlotDesc,
    StreamPriority,
};
use walla_types::{Activation, RopePairs, TensorType};

fn options() -> CpuOptions {
    let threads = std::env::var("WALLA_BENCH_THREADS").ok().and_then(|t| t.parse().ok());
    let variant = std::env::var("WALLA_BENCH_VARIANT").ok();
    CpuOptions {
        threads: Some(threads.unwrap_or(2)),
        variant: variant.map(|name| Variant::from_name(&name).expect("a variant")),
        inline: std::env::var_os("WALLA_BENCH_INLINE").is_some(),
        ..CpuOptions::default()
    }
}

/// Seconds: wall-clock time, or CPU time of this thread if everything runs inline.
fn now() -> f64 {
    #[cfg(target_os = "linux")]
    if options().inline {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        #[expect(unsafe_code, reason = "a system call")]
        // SAFETY: the kernel writes the time to the `timespec` that it is given, which is valid.
        let _ = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
    }
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

/// Random blocks with scales that keep activations moderate.
fn load(
    device: &mut CpuDevice,
    ty: TensorType,
    rows: usize,
    cols: usize,
    gather: bool,
) -> MatrixId {
    let mut state = 0x9E37_79B9_u32.wrapping_mul(rows as u32 ^ 7);
    let mut bytes = vec![0; ty.row_bytes(cols).expect("whole blocks") * rows];
    for byte in &mut bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    let scale = 1.0 / (cols as f32).sqrt();
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    for block in bytes.chunks_mut(ty.block_bytes()) {
        match ty {
            TensorType::F32 => block.copy_from_slice(
                &(scale * f32::from(block[0].cast_signed()) / 128.0).to_le_bytes(),
            ),
            TensorType::F16 => {
                block.copy_from_slice(&half(scale * f32::from(block[0].cast_signed()) / 128.0));
            }
            TensorType::BF16 => block[1] = 0x3C | block[1] & 0x80,
            TensorType::Q6K => block[208..].copy_from_slice(&half(scale / 2000.0)),
            _ => {
                let levels = match ty {
                    TensorType::Q8_0 => 64.0,
                    TensorType::Q4_0 | TensorType::Q4_1 => 4.0,
                    TensorType::Q5_0 | TensorType::Q5_1 => 8.0,
                    TensorType::Q4K => 250.0,
                    _ => 500.0,
                };
                block[..2].copy_from_slice(&half(scale / levels));
                if matches!(
                    ty,
                    TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K
                ) {
                    block[2..4].copy_from_slice(&half(scale / 32.0));
                }
            }
        }
    }
    let usage = MatrixUse { gather, multiply: true };
    let desc = MatrixDesc { name: "w", rows: rows as u32, cols: cols as u32, ty, usage };
    device.load_matrix(&desc, &bytes).expect("loads")
}

/// A program, its device and its step block.
struct Bench {
    device: CpuDevice,
    step: (HostId, BufferId),
    layout: StepLayout,
    program: Program,
}

const PAGE_TOKENS: u32 = 32;
const CONTEXT: u32 = 1024;
const SEQUENCES_MAX: u32 = 64;
/// Pages of the cache, shared equally by the sequences of a step.
const PAGES: u32 = 512;
const VOCAB_NONE: u32 = 16;

impl Bench {
    fn new(
        rows: u32,
        vocab: u32,
        slots: &[usize],
        cache: impl FnOnce(&mut CpuDevice) -> CacheId,
    ) -> Self {
        let mut device = CpuDevice::new(options()).expect("opens");
        let layout = StepLayout {
            rows_max: rows,
            outputs_max: rows.min(SEQUENCES_MAX),
            biases_max: 1,
            sequences_max: SEQUENCES_MAX,
            pages_per_sequence: CONTEXT / PAGE_TOKENS,
        };
        let step = (
            device.create_host("step", layout.bytes()).expect("fits"),
            device.create_buffer("step", layout.bytes()).expect("fits"),
        );
        let logits = layout.outputs_max as usize * vocab as usize * 4;
        let program = Program {
            name: "bench".to_owned(),
            phase: Phase::Decode,
            pure_decode: false,
            rows_max: rows,
            outputs_max: layout.outputs_max,
            context_max: CONTEXT,
            vocab,
            slots: slots.iter().map(|width| SlotDesc { width: *width as u32 }).collect(),
            cache: cache(&mut device),
            step: step.1,
            layout,
            results: device.create_buffer("results", layout.result_bytes()).expect("fits"),
            logits: device.create_buffer("logits", logits).expect("fits"),
            masks: None,
            ops: Vec::new(),
        };
        Self { device, step, layout, program }
    }

    /// Seconds of one run: the minimum of several.
    fn time(&mut self, rows: u32, sequences: u32, position: u32, ops: &[Op]) -> f64 {
        self.time_of(rows, sequences, position, ops, (0.7, 100))
    }

    /// Seconds of one run: the minimum of up to `runs_max` runs within `seconds_max`.
    fn time_of(
        &mut self,
        rows: u32,
        sequences: u32,
        position: u32,
        ops: &[Op],
        (seconds_max, runs_max): (f64, u32),
    ) -> f64 {
        let stream = self.device.create_stream(StreamPriority::Low).expect("a stream");
        let program = Program { ops: ops.to_vec(), ..self.program.clone() };
        let graph = self.device.prepare(vec![program]).expect("prepares")[0].graph;
        let layout = self.layout;
        let mut write = |bytes: &mut [u8]| {
            let view = StepViewMut::new(bytes, &layout).expect("a block");
            (view.header.rows, view.header.sequences) = (rows, sequences);
            view.header.outputs = sequences.min(rows);
            let each = rows / sequences;
            for r in 0..rows {
                let sequence = r / each;
                view.rows[r as usize] = StepRow {
                    token: (r % 16) as i32,
                    position: position + r % each,
                    sequence,
                    table: sequence,
                    previous: -1,
                    output: -1,
                    ..StepRow::default()
                };
            }
            for s in 0..view.header.outputs {
                view.outputs[s as usize] = OutputRow {
                    row: (s + 1) * each - 1,
                    sequence: s,
                    position: position + each - 1,
                    flags: OutputRow::SAMPLE,
                    temperature: 0.8,
                    top_k: 40,
                    top_p: 0.95,
                    repetition_penalty: 1.0,
                    ..OutputRow::default()
                };
            }
            let each = (PAGES / sequences).min(CONTEXT / PAGE_TOKENS);
            let tables = view.tables.chunks_exact_mut((CONTEXT / PAGE_TOKENS) as usize);
            for (s, table) in (0..sequences).zip(tables) {
                table
                    .iter_mut()
                    .zip(1 + s * each..)
                    .take(each as usize)
                    .for_each(|(to, page)| *to = page);
            }
        };
        self.device.write_host(self.step.0, 0, layout.bytes(), &mut write).expect("writes");
        self.device.upload(stream, self.step.0, self.step.1, layout.bytes()).expect("uploads");
        let mut best = f64::INFINITY;
        let began = Instant::now();
        let mut runs = 0;
        while runs < 3 || (began.elapsed().as_secs_f64() < seconds_max && runs < runs_max) {
            let start = now();
            self.device.launch(stream, graph).expect("launches");
            self.device.synchronise().expect("runs");
            best = best.min(now() - start);
            runs += 1;
        }
        best
    }
}

/// Weights of at least 48 MiB, so that they are read from memory and not from a cache.
fn linear(filter: &str) {
    let (width, hidden) = (1024, 3072);
    let rows_all = [1, 2, 4, 8, 32, 128];
    println!(
        "GB/s of weights as stored in the file, {width} -> {hidden}, by rows {rows_all:?}; then billion multiply-adds/s"
    );
    for ty in TensorType::ALL.into_iter().filter(|ty| ty.name().contains(filter)) {
        let mut bench = Bench::new(128, VOCAB_NONE, &[width, hidden], |device| cache(device, &[]));
        let bytes = ty.row_bytes(width).expect("whole") * hidden;
        let count = (64 << 20) / bytes;
        let (x, y) = (Slot(0), Slot(1));
        let mut ops = Vec::new();
        for _ in 0..count {
            let linear =
                Linear { matrix: load(&mut bench.device, ty, hidden, width, false), bias: None };
            ops.push(Op::Project { y: x, linear, post_norm: None, x: y });
        }
        let times = rows_all.map(|rows| bench.time(rows, 1, 0, &ops));
        let total = (bytes * count) as f64;
        let speed = times.map(|seconds| format!("{:6.1}", total / seconds / 1e9)).join(" ");
        let macs = (width * hidden * count) as f64;
        let work: Vec<_> = rows_all
            .iter()
            .zip(times)
            .map(|(r, s)| format!("{:5.0}", macs * f64::from(*r) / s / 1e9))
            .collect();
        println!("{:5} {speed}  | {}", ty.name(), work.join(" "));
    }
}

/// Products of a small matrix whose weights stay in the L2 cache: the bound is arithmetic.
fn cached(filter: &str) {
    let width = 768;
    let rows_all = [1, 4, 8, 12, 16, 64, 128];
    println!("billion multiply-adds/s, {width} -> {width}, by rows {rows_all:?}");
    for ty in TensorType::ALL.into_iter().filter(|ty| ty.name().contains(filter)) {
        let mut bench = Bench::new(128, VOCAB_NONE, &[width, width], |device| cache(device, &[]));
        let matrix = load(&mut bench.device, ty, width, width, false);
        let (x, y) = (Slot(0), Slot(1));
        let op = Op::Project { y: x, linear: Linear { matrix, bias: None }, post_norm: None, x: y };
        let ops = vec![op; 20];
        let work = rows_all.map(|rows| {
            let seconds = bench.time_of(rows, 1, 0, &ops, (0.3, 1000));
            let macs = (width * width * ops.len()) as f64 * f64::from(rows);
            format!("{:5.1}", macs / seconds / 1e9)
        });
        println!("{:5} {}", ty.name(), work.join(" "));
    }
}

/// Microseconds of a launch with one small product, whose threads sleep before it, and of each
/// further product, whose threads are awake.
fn wake() {
    let width = 256;
    let mut bench = Bench::new(16, VOCAB_NONE, &[width, width], |device| cache(device, &[]));
    let matrix = load(&mut bench.device, TensorType::Q8_0, width, width, false);
    let (x, y) = (Slot(0), Slot(1));
    let op = Op::Project { y: x, linear: Linear { matrix, bias: None }, post_norm: None, x: y };
    for rows in [1, 12] {
        let mut micros = |ops: usize| {
            let ops = vec![op.clone(); ops];
            1e6 * bench.time_of(rows, 1, 0, &ops, (2.0, 100_000))
        };
        let (one, many) = (micros(1), micros(101));
        println!("{rows} rows: launch {one:.2} us, further product {:.3} us", (many - one) / 100.0);
    }
}

fn cache(device: &mut CpuDevice, layers: &[CacheLayer]) -> CacheId {
    let desc = CacheDesc {
        layers: layers.to_vec(),
        pages: 1 + PAGES,
        page_tokens: PAGE_TOKENS,
        sequences_max: SEQUENCES_MAX,
        kv_type: KvType::F16,
    };
    device.create_cache(&desc).expect("fits")
}

struct Model {
    name: &'static str,
    width: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden: usize,
    vocab: usize,
    head_norms: bool,
}

const MODELS: [Model; 3] = [
    Model {
        name: "demo",
        width: 256,
        layers: 8,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        hidden: 768,
        vocab: 3072,
        head_norms: true,
    },
    Model {
        name: "smollm2-135m",
        width: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        hidden: 1536,
        vocab: 49152,
        head_norms: false,
    },
    Model {
        name: "qwen3-0.6b",
        width: 1024,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        hidden: 3072,
        vocab: 151_936,
        head_norms: true,
    },
];

/// The tensor type that llama.cpp's quantisation mixes choose.
fn mixed(mix: &str, cols: usize, better: bool) -> TensorType {
    match (mix, cols % 256, better) {
        ("q8_0", ..) => TensorType::Q8_0,
        ("q4_0", ..) => TensorType::Q4_0,
        ("f16", ..) => TensorType::F16,
        ("bf16", ..) => TensorType::BF16,
        (_, 0, false) => TensorType::Q4K,
        (_, 0, true) => TensorType::Q6K,
        (_, _, false) => TensorType::Q5_0,
        (_, _, true) => TensorType::Q8_0,
    }
}

fn model(shape: &Model, mix: &str) {
    let Model { width, heads, kv_heads, head_dim, hidden, vocab, .. } = *shape;
    let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
    let layer = CacheLayer::Kv { kv_heads: kv_heads as u32, head_dim: head_dim as u32, rope: None };
    let layers = vec![layer; shape.layers];
    let slots = [width, q_width, q_width, hidden];
    let mut bench = Bench::new(512, vocab as u32, &slots, |device| cache(device, &layers));
    let d = &mut bench.device;
    let norm = |d: &mut CpuDevice, width: usize| Norm {
        weight: d.load_vector("n", &vec![1.0; width]).expect("fits"),
        eps: 1e-6,
    };
    let linear = |d: &mut CpuDevice, rows: usize, cols: usize, better: bool| Linear {
        matrix: load(d, mixed(mix, cols, better), rows, cols, false),
        bias: None,
    };
    let frequencies: Vec<f32> =
        (0..head_dim / 2).map(|i| 1e6_f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
    let rope = d
        .load_rope(&RopeDesc {
            frequencies: &frequencies,
            magnitude: 1.0,
            pairs: RopePairs::Halves,
        })
        .expect("fits");
    let table = load(d, mixed(mix, width, true), vocab, width, true);
    let (x, q, y, h) = (Slot(0), Slot(1), Slot(2), Slot(3));
    let head_shape =
        HeadShape { heads: heads as u32, kv_heads: kv_heads as u32, head_dim: head_dim as u32 };
    let mut ops = vec![Op::Embed { table, scale: 1.0, x }];
    for layer in 0..shape.layers {
        let better = layer < shape.layers / 8
            || layer >= 7 * shape.layers / 8
            || (layer - shape.layers / 8) % 3 == 2;
        ops.push(Op::Qkv {
            x,
            norm: norm(d, width),
            query: linear(d, q_width, width, false),
            key: linear(d, kv_width, width, false),
            value: linear(d, kv_width, width, better),
            head_norms: shape.head_norms.then(|| (norm(d, head_dim), norm(d, head_dim))),
            rope: Some(rope),
            shape: head_shape,
            layer: layer as u32,
            q,
        });
        let scale = 1.0 / (head_dim as f32).sqrt();
        ops.push(Op::Attention {
            q,
            shape: head_shape,
            layer: layer as u32,
            scale,
            window: None,
            out: y,
        });
        ops.push(Op::Project { y, linear: linear(d, width, q_width, false), post_norm: None, x });
        let [gate, up] = [(); 2].map(|()| linear(d, hidden, width, false));
        ops.push(Op::GateUp { x, norm: norm(d, width), gate, up, activation: Activation::Silu, h });
        ops.push(Op::Project {
            y: h,
            linear: linear(d, width, hidden, better),
            post_norm: None,
            x,
        });
    }
    ops.push(Op::Head { x, norm: norm(d, width), linear: Linear { matrix: table, bias: None } });
    ops.push(Op::Sample);
    let weights = bench.device.memory().weight_bytes as f64;
    let wanted: Option<u32> =
        std::env::var("WALLA_BENCH_ROWS").ok().and_then(|rows| rows.parse().ok());
    let decode = [1, 2, 4, 8, 12, 16, 64].map(|rows| {
        if wanted.is_some_and(|wanted| wanted != rows) {
            return String::new();
        }
        let seconds = bench.time(rows, rows, 192, &ops);
        format!("{rows}: {:.3} ms", seconds * 1e3)
    });
    let prefill = [128, 512].map(|rows| {
        if wanted.is_some_and(|wanted| wanted != rows) {
            return String::new();
        }
        let seconds = bench.time(rows, 1, 0, &ops);
        format!("{rows}: {:.0} tok/s", f64::from(rows) / seconds)
    });
    println!(
        "{} {mix}: {:.0} MB; decode at 192 {}; prefill {}",
        shape.name,
        weights / 1e6,
        decode.join(", "),
        prefill.join(", ")
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let what = args.first().map_or("", String::as_str);
    let filter = args.get(1).map_or("", String::as_str);
    let probe = CpuDevice::new(options()).expect("opens");
    println!("{:?}", probe.info());
    if what == "wake" {
        return wake();
    }
    if what == "cached" {
        return cached(filter);
    }
    if what != "model" {
        linear(filter);
    }
    if what != "linear" {
        for shape in &MODELS {
            for mix in ["q8_0", "q4_0", "q4_k_m", "f16"] {
                if format!("{} {mix}", shape.name).contains(filter) {
                    model(shape, mix);
                }
            }
        }
    }
}
