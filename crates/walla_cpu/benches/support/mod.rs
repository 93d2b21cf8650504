//! A CPU device with a program, and models of real shapes with random weights.
#![allow(dead_code, reason = "each benchmark uses a part")]

use std::time::Instant;

use walla_cpu::{CpuDevice, CpuOptions, Variant};
use walla_device::step::{OutputRow, StepLayout, StepRow, StepViewMut};
use walla_device::{
    BufferId, CacheDesc, CacheId, CacheLayer, Device, GraphId, HeadShape, HostId, KeyValue, KvType,
    Linear, MatrixDesc, MatrixId, MatrixUse, Norm, Op, Phase, Program, RopeDesc, Slot, SlotDesc,
    StreamId, StreamPriority,
};
use walla_types::{Activation, RopePairs, TensorType};

/// Options with this number of threads, and the environment's variant.
pub fn options(threads: u32) -> CpuOptions {
    let variant = std::env::var("WALLA_BENCH_VARIANT").ok();
    let cost = std::env::var("WALLA_BENCH_THREAD_COST").ok();
    CpuOptions {
        threads: Some(threads),
        variant: variant.map(|name| Variant::from_name(&name).expect("a variant")),
        thread_cost_nanos: cost.map(|nanos| nanos.parse().expect("a number")),
        inline: std::env::var_os("WALLA_BENCH_INLINE").is_some(),
        ..CpuOptions::default()
    }
}

/// Seconds: wall-clock time, or CPU time of this thread if everything runs inline.
pub fn now() -> f64 {
    #[cfg(target_os = "linux")]
    if std::env::var_os("WALLA_BENCH_INLINE").is_some() {
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
pub fn load(
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
            TensorType::Q3K => block[108..].copy_from_slice(&half(scale / 120.0)),
            TensorType::Q2K => {
                block[80..82].copy_from_slice(&half(scale / 30.0));
                block[82..].copy_from_slice(&half(scale / 30.0));
            }
            TensorType::Mxfp4 => block[0] = (127.0 + (scale / 6.0).log2()) as u8,
            _ => {
                let levels = match ty {
                    TensorType::Q8_0 | TensorType::Iq4Nl => 64.0,
                    TensorType::Q4_0 | TensorType::Q4_1 => 4.0,
                    TensorType::Q5_0 | TensorType::Q5_1 => 8.0,
                    TensorType::Q4K => 250.0,
                    TensorType::Iq4Xs => 2000.0,
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
pub struct Bench {
    pub device: CpuDevice,
    step: (HostId, BufferId),
    layout: StepLayout,
    program: Program,
}

const PAGE_TOKENS: u32 = 32;
const CONTEXT: u32 = 1024;
const MAX_SEQUENCES: u32 = 64;
/// Pages of the cache, shared equally by the sequences of a step.
const PAGES: u32 = 512;
pub const VOCAB_NONE: u32 = 16;

impl Bench {
    pub fn new(
        options: CpuOptions,
        rows: u32,
        vocab: u32,
        slots: &[usize],
        cache: impl FnOnce(&mut CpuDevice) -> CacheId,
    ) -> Self {
        let mut device = CpuDevice::new(options).expect("opens");
        let layout = StepLayout {
            max_rows: rows,
            max_outputs: rows.min(MAX_SEQUENCES),
            max_biases: 1,
            max_sequences: MAX_SEQUENCES,
            pages_per_sequence: CONTEXT / PAGE_TOKENS,
        };
        let step = (
            device.create_host("step", layout.bytes()).expect("fits"),
            device.create_buffer("step", layout.bytes()).expect("fits"),
        );
        let logits = layout.max_outputs as usize * vocab as usize * 4;
        let program = Program {
            name: "bench".to_owned(),
            phase: Phase::Decode,
            pure_decode: false,
            max_rows: rows,
            max_outputs: layout.max_outputs,
            max_context: CONTEXT,
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
    pub fn time(&mut self, rows: u32, sequences: u32, position: u32, ops: &[Op]) -> f64 {
        self.time_of(rows, sequences, position, ops, (0.7, 100))
    }

    /// Seconds of one run: the minimum of up to `max_runs` runs within `max_seconds`.
    pub fn time_of(
        &mut self,
        rows: u32,
        sequences: u32,
        position: u32,
        ops: &[Op],
        (max_seconds, max_runs): (f64, u32),
    ) -> f64 {
        let step = self.prepare(rows, sequences, position, ops);
        let mut best = f64::INFINITY;
        let began = Instant::now();
        let mut runs = 0;
        while runs < 3 || (began.elapsed().as_secs_f64() < max_seconds && runs < max_runs) {
            let start = now();
            self.launch(step);
            self.device.synchronize().expect("runs");
            best = best.min(now() - start);
            runs += 1;
        }
        best
    }

    /// Prepares a program of `ops`, and uploads the step block of `rows` rows of `sequences`
    /// sequences from `position` on.
    pub fn prepare(&mut self, rows: u32, sequences: u32, position: u32, ops: &[Op]) -> Step {
        let stream = self.device.create_stream(StreamPriority::Low).expect("a stream");
        let program = Program { ops: ops.to_vec(), ..self.program.clone() };
        let graph = self.device.prepare(vec![program]).expect("prepares")[0].graph;
        let step = Step { stream, graph };
        self.upload(step, rows, sequences, position);
        step
    }

    /// Uploads the step block of these rows.
    pub fn upload(&mut self, step: Step, rows: u32, sequences: u32, position: u32) {
        let stream = step.stream;
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
        self.device.synchronize().expect("uploads");
    }

    /// Launches a prepared step.
    pub fn launch(&mut self, step: Step) {
        self.device.launch(step.stream, step.graph).expect("launches");
    }
}

/// A prepared program.
#[derive(Clone, Copy)]
pub struct Step {
    stream: StreamId,
    graph: GraphId,
}

pub fn cache(device: &mut CpuDevice, layers: &[CacheLayer]) -> CacheId {
    let desc = CacheDesc {
        layers: layers.to_vec(),
        pages: 1 + PAGES,
        page_tokens: PAGE_TOKENS,
        max_sequences: MAX_SEQUENCES,
        kv_type: KvType::F16,
    };
    device.create_cache(&desc).expect("fits")
}

pub struct Model {
    pub name: &'static str,
    width: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden: usize,
    vocab: usize,
    head_norms: bool,
}

pub const MODELS: [Model; 3] = [
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

impl Model {
    /// A device with this model's weights, in the tensor types of `mix`, and its ops.
    pub fn load(&self, options: CpuOptions, mix: &str) -> (Bench, Vec<Op>) {
        let Model { width, heads, kv_heads, head_dim, hidden, vocab, .. } = *self;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let layer =
            CacheLayer::Kv { kv_heads: kv_heads as u32, head_dim: head_dim as u32, rope: None };
        let layers = vec![layer; self.layers];
        let slots = [width, q_width, q_width, hidden];
        let mut bench =
            Bench::new(options, 512, vocab as u32, &slots, |device| cache(device, &layers));
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
        for layer in 0..self.layers {
            let better = layer < self.layers / 8
                || layer >= 7 * self.layers / 8
                || (layer - self.layers / 8) % 3 == 2;
            ops.push(Op::Qkv {
                x,
                norm: norm(d, width),
                query: linear(d, q_width, width, false),
                query_norm: self.head_norms.then(|| norm(d, head_dim)),
                keys: Some(KeyValue {
                    key: linear(d, kv_width, width, false),
                    key_norm: self.head_norms.then(|| norm(d, head_dim)),
                    value: linear(d, kv_width, width, better),
                    value_norm: None,
                }),
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
                position_scale: None,
                window: None,
                out: y,
            });
            ops.push(Op::Project {
                y,
                linear: linear(d, width, q_width, false),
                post_norm: None,
                scale: 1.0,
                x,
            });
            let [gate, up] = [(); 2].map(|()| linear(d, hidden, width, false));
            ops.push(Op::GateUp {
                x,
                norm: norm(d, width),
                gate,
                up,
                activation: Activation::Silu,
                h,
            });
            ops.push(Op::Project {
                y: h,
                linear: linear(d, width, hidden, better),
                post_norm: None,
                scale: 1.0,
                x,
            });
        }
        ops.push(Op::Head {
            x,
            norm: norm(d, width),
            linear: Linear { matrix: table, bias: None },
            soft_cap: None,
            suppressed: vec![],
        });
        ops.push(Op::Sample);
        (bench, ops)
    }
}
