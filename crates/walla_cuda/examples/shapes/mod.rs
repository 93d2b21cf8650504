//! Models of real shapes with random weights, and the steps of their agents: for benchmarks of
//! devices.
#![allow(dead_code, reason = "each benchmark uses a part")]

use walla_device::step::{OutputRow, StepLayout, StepRow, StepViewMut};
use walla_device::{
    BufferId, CacheDesc, CacheId, CacheLayer, Device, HeadShape, HostId, KeyValue, KvType, Linear,
    MatrixDesc, MatrixId, MatrixUse, Norm, Op, Phase, Program, RopeDesc, Slot, SlotDesc, StreamId,
    StreamPriority, op,
};
use walla_types::{Activation, ExpertScore, RopePairs, TensorType};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub const PAGE_TOKENS: u32 = 32;

/// The layout for steps of up to `rows` rows of 64 agents with contexts of at most `context`
/// tokens.
pub fn layout(rows: u32, context: u32) -> StepLayout {
    StepLayout {
        max_rows: rows,
        max_outputs: 64,
        max_biases: 64,
        max_sequences: 64,
        pages_per_sequence: pages_of(context),
    }
}

/// Pages of a sequence that has `context` tokens and reads one more.
pub fn pages_of(context: u32) -> u32 {
    context / PAGE_TOKENS + 1
}

pub struct Shape {
    pub name: &'static str,
    pub width: u32,
    pub hidden: u32,
    pub vocab: u32,
    pub layers: u32,
    pub heads: HeadShape,
    pub head_norms: bool,
    pub tied: bool,
    /// Experts, and experts per token: in place of one network, with as many hidden numbers each.
    pub experts: Option<(u32, u32)>,
    /// As in Gemma 3: post norms, and this window in all but every sixth layer.
    pub window: Option<u32>,
}

const fn heads(heads: u32, kv_heads: u32, head_dim: u32) -> HeadShape {
    HeadShape { heads, kv_heads, head_dim }
}

#[rustfmt::skip]
pub const SHAPES: [Shape; 10] = [
    Shape { name: "demo", width: 256, hidden: 768, vocab: 3072, layers: 8, heads: heads(8, 2, 64), head_norms: true, tied: true, experts: None, window: None },
    Shape { name: "smollm2-135m", width: 576, hidden: 1536, vocab: 49_152, layers: 30, heads: heads(9, 3, 64), head_norms: false, tied: true, experts: None, window: None },
    Shape { name: "llama-3.2-1b", width: 2048, hidden: 8192, vocab: 128_256, layers: 16, heads: heads(32, 8, 64), head_norms: false, tied: true, experts: None, window: None },
    Shape { name: "qwen3-0.6b", width: 1024, hidden: 3072, vocab: 151_936, layers: 28, heads: heads(16, 8, 128), head_norms: true, tied: true, experts: None, window: None },
    Shape { name: "qwen3-4b", width: 2560, hidden: 9728, vocab: 151_936, layers: 36, heads: heads(32, 8, 128), head_norms: true, tied: true, experts: None, window: None },
    Shape { name: "llama-3.1-8b", width: 4096, hidden: 14_336, vocab: 128_256, layers: 32, heads: heads(32, 8, 128), head_norms: false, tied: false, experts: None, window: None },
    Shape { name: "gemma-3-270m", width: 640, hidden: 2048, vocab: 262_144, layers: 18, heads: heads(4, 1, 256), head_norms: true, tied: true, experts: None, window: Some(512) },
    Shape { name: "gemma-3-1b", width: 1152, hidden: 6912, vocab: 262_144, layers: 26, heads: heads(4, 1, 256), head_norms: true, tied: true, experts: None, window: Some(512) },
    // Two layers each, of 48 and of 24: all have the same kernels.
    Shape { name: "qwen3-30b-a3b", width: 2048, hidden: 768, vocab: 151_936, layers: 2, heads: heads(32, 4, 128), head_norms: true, tied: true, experts: Some((128, 8)), window: None },
    Shape { name: "lfm2-8b-a1b", width: 2048, hidden: 1792, vocab: 65_536, layers: 2, heads: heads(32, 8, 64), head_norms: true, tied: true, experts: Some((32, 4)), window: None },
];

/// A step to measure.
pub struct Case<'a> {
    pub shape: &'static Shape,
    pub mixture: &'a str,
    pub agents: u32,
    /// Tokens of each agent.
    pub chunk: u32,
    pub context: u32,
}

impl<'a> Case<'a> {
    /// Parses `SHAPE:TYPE[:AGENTS[xTOKENS][:CONTEXT]]`.
    pub fn parse(item: &'a str) -> Result<Self> {
        let mut parts = item.split(':');
        let name = parts.next().unwrap_or_default();
        let shape = SHAPES.iter().find(|shape| shape.name == name).ok_or("no such shape")?;
        let mixture = parts.next().ok_or("expected SHAPE:TYPE")?;
        let rows = parts.next().unwrap_or("1");
        let (agents, chunk) = rows.split_once('x').unwrap_or((rows, "1"));
        let (agents, chunk): (u32, u32) = (agents.parse()?, chunk.parse()?);
        let context = parts.next().map_or(Ok(128), str::parse)?;
        if !(1..=64).contains(&agents) || !(1..=512).contains(&(agents * chunk)) {
            return Err("expected 1 to 64 agents and 512 rows at most".into());
        }
        if context + 1 < chunk {
            return Err("the context is shorter than the prompt's tokens".into());
        }
        Ok(Self { shape, mixture, agents, chunk, context })
    }

    /// Creates a model with random weights and the program of the step, and uploads the step.
    pub fn load(&self, device: &mut dyn Device) -> Result<(Model, Rig, Program)> {
        let Self { shape, agents, chunk, context, .. } = *self;
        let model = model(device, shape, self.mixture)?;
        let layout = layout(64.max(agents * chunk), context);
        let pages = agents * pages_of(context);
        let rig = Rig::new(device, layout, (&model.layers, pages, KvType::F16), shape.vocab)?;
        let sizes = (agents * chunk, context + PAGE_TOKENS, shape.vocab);
        let program = Program {
            phase: if chunk == 1 { Phase::Decode } else { Phase::Prefill },
            pure_decode: chunk == 1,
            max_outputs: agents,
            ..rig.program(sizes, &model.slots, &model.ops)
        };
        rig.write(device, &vec![context; agents as usize], chunk)?;
        rig.upload(device, agents)?;
        Ok((model, rig, program))
    }
}

/// Types in a mixture for layer `i`: value, down, head, and all others.
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

/// The type of a matrix whose rows are not a whole number of blocks of `ty`, as in llama.cpp.
fn fitting(ty: TensorType, cols: u32) -> TensorType {
    match ty {
        _ if cols.is_multiple_of(ty.block_elements() as u32) => ty,
        TensorType::Q4K => TensorType::Q5_0,
        TensorType::Q6K => TensorType::Q8_0,
        _ => TensorType::F16,
    }
}

/// Sets the scales of random blocks, so that activations stay moderate.
fn scale_blocks(ty: TensorType, cols: u32, bytes: &mut [u8]) {
    let scale = 1.0 / (cols as f32).sqrt();
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    let levels = match ty {
        TensorType::Q8_0 | TensorType::Iq4Nl => 64.0,
        TensorType::Q4_0 | TensorType::Q4_1 => 4.0,
        TensorType::Q5_0 | TensorType::Q5_1 => 8.0,
        TensorType::Q4K => 250.0,
        TensorType::Q6K | TensorType::Iq4Xs => 2000.0,
        TensorType::Q3K => 120.0,
        TensorType::Q2K => 30.0,
        _ => 500.0,
    };
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let number = scale * f32::from(block[0].cast_signed()) / 128.0;
        let at = match ty {
            TensorType::F32 => {
                block.copy_from_slice(&number.to_le_bytes());
                continue;
            }
            TensorType::F16 => {
                block.copy_from_slice(&half(number));
                continue;
            }
            TensorType::BF16 => {
                block[1] = 0x3C | block[1] & 0x80;
                continue;
            }
            TensorType::Mxfp4 => {
                block[0] = (127.0 + (scale / 6.0).log2()) as u8;
                continue;
            }
            TensorType::Q6K => 208,
            TensorType::Q3K => 108,
            TensorType::Q2K => 80,
            _ => 0,
        };
        block[at..at + 2].copy_from_slice(&half(scale / levels));
        // The scale of minimums.
        let minimum = match ty {
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => 32.0,
            TensorType::Q2K => levels,
            _ => continue,
        };
        block[at + 2..at + 4].copy_from_slice(&half(scale / minimum));
    }
}

/// Loads random weights.
pub struct Loader<'a> {
    device: &'a mut dyn Device,
    noise: Vec<u8>,
    bytes: u64,
}

impl<'a> Loader<'a> {
    pub fn new(device: &'a mut dyn Device) -> Self {
        Self { device, noise: vec![], bytes: 0 }
    }

    pub fn linear(&mut self, ty: TensorType, rows: u32, cols: u32, gather: bool) -> Result<Linear> {
        let ty = fitting(ty, cols);
        let bytes = ty.row_bytes(cols as usize).ok_or("blocks")? * rows as usize;
        while self.noise.len() < bytes {
            let i = self.noise.len() as u64;
            let word = (i / 8 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.noise.extend_from_slice(&(word ^ word >> 29).to_le_bytes());
        }
        let mut data = self.noise[..bytes].to_vec();
        scale_blocks(ty, cols, &mut data);
        self.bytes += bytes as u64;
        let usage = MatrixUse { gather, multiply: true };
        let desc = MatrixDesc { name: "random", rows, cols, ty, usage };
        Ok(Linear { matrix: self.device.load_matrix(&desc, &data)?, bias: None })
    }

    /// A router whose numbers are uniform in -1 .. 1: tokens choose different experts.
    fn router(&mut self, rows: u32, cols: u32) -> Result<MatrixId> {
        let number = |i: u32| {
            let word = u64::from(i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mixed = (word ^ word >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let data: Vec<u8> = (0..rows * cols).flat_map(|i| number(i).to_le_bytes()).collect();
        let usage = MatrixUse { gather: false, multiply: true };
        let desc = MatrixDesc { name: "router", rows, cols, ty: TensorType::F32, usage };
        Ok(self.device.load_matrix(&desc, &data)?)
    }

    fn norm(&mut self, len: u32) -> Result<Norm> {
        Ok(Norm { weight: self.device.load_vector("norm", &vec![1.0; len as usize])?, eps: 1e-5 })
    }

    fn post_norm(&mut self, shape: &Shape) -> Result<Option<Norm>> {
        shape.window.map(|_| self.norm(shape.width)).transpose()
    }
}

pub struct Model {
    pub ops: Vec<Op>,
    pub layers: Vec<CacheLayer>,
    pub slots: Vec<SlotDesc>,
    pub weight_bytes: u64,
}

pub fn model(device: &mut dyn Device, shape: &Shape, mixture: &str) -> Result<Model> {
    let [x, q, mixed, h] = [0, 1, 2, 3].map(Slot);
    let HeadShape { heads, kv_heads, head_dim } = shape.heads;
    let frequencies: Vec<f32> =
        (0..head_dim / 2).map(|i| 500_000_f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
    let pairs = RopePairs::Halves;
    let rope = device.load_rope(&RopeDesc { frequencies: &frequencies, magnitude: 1.0, pairs })?;
    let mut b = Loader::new(device);
    let [_, _, head_ty, _] = types(mixture, 0, shape.layers)?;
    let head = b.linear(head_ty, shape.vocab, shape.width, true)?;
    let table = if shape.tied {
        head.matrix
    } else {
        let table = b.linear(head_ty, shape.vocab, shape.width, true)?.matrix;
        b.bytes /= 2; // Only one row of the table is read.
        table
    };
    let mut ops = vec![Op::Embed(op::Embed { table, scale: 1.0, x })];
    let mut layers = vec![];
    for layer in 0..shape.layers {
        let [value_ty, down_ty, _, ty] = types(mixture, layer, shape.layers)?;
        layers.push(CacheLayer::Kv { kv_heads, head_dim, rope: Some(rope) });
        let head_norm = |b: &mut Loader<'_>| match shape.head_norms {
            true => b.norm(head_dim).map(Some),
            false => Ok(None),
        };
        ops.push(Op::Qkv(op::Qkv {
            x,
            norm: b.norm(shape.width)?,
            query: b.linear(ty, heads * head_dim, shape.width, false)?,
            query_norm: head_norm(&mut b)?,
            keys: Some(KeyValue {
                key: b.linear(ty, kv_heads * head_dim, shape.width, false)?,
                key_norm: head_norm(&mut b)?,
                value: b.linear(value_ty, kv_heads * head_dim, shape.width, false)?,
                value_norm: None,
            }),
            rope: Some(rope),
            shape: shape.heads,
            layer,
            q,
        }));
        let scale = 1.0 / (head_dim as f32).sqrt();
        let window = shape.window.filter(|_| layer % 6 != 5);
        ops.push(Op::Attention(op::Attention {
            q,
            shape: shape.heads,
            layer,
            scale,
            position_scale: None,
            window,
            out: mixed,
        }));
        let linear = b.linear(ty, shape.width, heads * head_dim, false)?;
        ops.push(Op::Project(op::Project {
            y: mixed,
            linear,
            post_norm: b.post_norm(shape)?,
            scale: 1.0,
            x,
        }));
        if let Some((count, used)) = shape.experts {
            ops.push(Op::Experts(op::Experts {
                x,
                norm: b.norm(shape.width)?,
                router: b.router(count, shape.width)?,
                selection_bias: None,
                score: ExpertScore::Softmax,
                used,
                gate: b.linear(ty, count * shape.hidden, shape.width, false)?.matrix,
                up: b.linear(ty, count * shape.hidden, shape.width, false)?.matrix,
                down: b.linear(down_ty, count * shape.width, shape.hidden, false)?.matrix,
                activation: Activation::Silu,
            }));
            continue;
        }
        ops.push(Op::GateUp(op::GateUp {
            x,
            norm: b.norm(shape.width)?,
            gate: b.linear(ty, shape.hidden, shape.width, false)?,
            up: b.linear(ty, shape.hidden, shape.width, false)?,
            activation: match shape.window {
                Some(_) => Activation::GeluTanh,
                None => Activation::Silu,
            },
            h,
        }));
        let linear = b.linear(down_ty, shape.width, shape.hidden, false)?;
        ops.push(Op::Project(op::Project {
            y: h,
            linear,
            post_norm: b.post_norm(shape)?,
            scale: 1.0,
            x,
        }));
    }
    ops.push(Op::Head(op::Head {
        x,
        norm: b.norm(shape.width)?,
        linear: head,
        soft_cap: None,
        suppressed: vec![],
    }));
    ops.push(Op::Sample);
    let widths = [shape.width, heads * head_dim, heads * head_dim, shape.hidden];
    let weight_bytes = b.bytes;
    b.device.synchronize()?;
    let slots = widths.map(|width| SlotDesc { width }).to_vec();
    Ok(Model { ops, layers, slots, weight_bytes })
}

/// Memory for the steps of a model.
pub struct Rig {
    pub stream: StreamId,
    layout: StepLayout,
    cache: CacheId,
    host: HostId,
    step: BufferId,
    results: BufferId,
    logits: BufferId,
}

impl Rig {
    /// Memory with `pages` pages in addition to the one for padding.
    pub fn new(
        device: &mut dyn Device,
        layout: StepLayout,
        (layers, pages, kv_type): (&[CacheLayer], u32, KvType),
        vocab: u32,
    ) -> Result<Self> {
        let (layers, pages, page_tokens) = (layers.to_vec(), 1 + pages, PAGE_TOKENS);
        let cache = CacheDesc { layers, pages, page_tokens, max_sequences: 64, kv_type };
        let logits = 4 * layout.max_outputs as usize * vocab as usize;
        Ok(Self {
            stream: device.create_stream(StreamPriority::Low)?,
            layout,
            cache: device.create_cache(&cache)?,
            host: device.create_host("step", layout.bytes())?,
            step: device.create_buffer("step", layout.bytes())?,
            results: device.create_buffer("results", layout.result_bytes())?,
            logits: device.create_buffer("logits", logits)?,
        })
    }

    /// A decode program.
    pub fn program(
        &self,
        (rows, max_context, vocab): (u32, u32, u32),
        slots: &[SlotDesc],
        ops: &[Op],
    ) -> Program {
        Program {
            name: format!("{rows} rows"),
            phase: Phase::Decode,
            pure_decode: true,
            max_rows: rows,
            max_outputs: rows.min(64),
            max_context,
            vocab,
            slots: slots.to_vec(),
            cache: self.cache,
            step: self.step,
            layout: self.layout,
            results: self.results,
            logits: self.logits,
            masks: None,
            ops: ops.to_vec(),
        }
    }

    /// Writes the step in which agents read `chunk` tokens each, the last at their positions.
    pub fn write(&self, device: &mut dyn Device, positions: &[u32], chunk: u32) -> Result<()> {
        let mut write = |bytes: &mut [u8]| fill(bytes, &self.layout, positions, chunk);
        Ok(device.write_host(self.host, 0, self.layout.bytes(), &mut write)?)
    }

    /// Enqueues the upload of a step of this number of agents.
    pub fn upload(&self, device: &mut dyn Device, agents: u32) -> Result<()> {
        let bytes = self.layout.bytes_with(agents);
        Ok(device.upload(self.stream, self.host, self.step, bytes)?)
    }
}

/// Fills a step: every agent reads `chunk` tokens, the last at its position. Each agent has
/// separate pages, assigned consecutively from page 1.
///
/// # Panics
/// If there are more agents, or longer contexts, than the layout allows.
fn fill(bytes: &mut [u8], layout: &StepLayout, positions: &[u32], chunk: u32) {
    let agents = positions.len() as u32;
    let Some(view) = StepViewMut::new(bytes, layout) else { return };
    view.header.rows = agents * chunk;
    view.header.outputs = agents;
    view.header.sequences = agents;
    let tables = view.tables.chunks_exact_mut(layout.pages_per_sequence as usize);
    let mut pages = 1..;
    for (entries, &position) in tables.zip(positions) {
        let entries = &mut entries[..pages_of(position) as usize];
        entries.iter_mut().zip(&mut pages).for_each(|(entry, page)| *entry = page);
    }
    for (at, &position) in positions.iter().enumerate() {
        let sequence = at as u32;
        for r in sequence * chunk..(sequence + 1) * chunk {
            let is_last = r + 1 == (sequence + 1) * chunk;
            view.rows[r as usize] = StepRow {
                token: ((r * 37 + 5) % 1024).cast_signed(),
                position: position - ((sequence + 1) * chunk - 1 - r),
                sequence,
                table: sequence,
                previous: StepRow::NONE,
                output: if is_last { sequence.cast_signed() } else { StepRow::NONE },
                flags: if is_last { StepRow::LAST_OF_SEQUENCE } else { 0 },
                reserved: 0,
            };
        }
        view.outputs[at] = OutputRow {
            row: (sequence + 1) * chunk - 1,
            sequence,
            position,
            flags: OutputRow::SAMPLE,
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            seed: [sequence, 1],
            ..OutputRow::default()
        };
    }
}
