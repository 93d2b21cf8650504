//! A random decoder on any device.

use walla_device::step::{OutputRow, StepLayout, StepRow, StepViewMut};
use walla_device::{
    CacheDesc, CacheLayer, Device, HeadShape, KeyValue, KvType, Linear, MatrixDesc, MatrixId,
    MatrixUse, Norm, Op, Phase, Program, RopeDesc, Slot, SlotDesc, StreamPriority, op, philox4x32,
    unit_interval,
};
use walla_types::{Activation, ExpertScore, RopePairs, TensorType};

const VOCAB: u32 = 80;
const SEQUENCES: u32 = 6;
const PAGE_TOKENS: u32 = 16;
const MAX_ROWS: u32 = 150;

/// Parameters of a model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub ty: TensorType,
    pub layers: u32,
    pub width: u32,
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub pairs: RopePairs,
    pub activation: Activation,
    pub kv_type: KvType,
    pub window: Option<u32>,
    pub context: u32,
    pub has_head_norms: bool,
    pub has_post_norms: bool,
    pub has_biases: bool,
    /// Number of experts, and of experts that a row uses, in place of one network.
    pub experts: Option<(u32, u32, ExpertScore)>,
}

impl Shape {
    pub fn of(ty: TensorType) -> Self {
        Self {
            ty,
            layers: 2,
            width: 256,
            hidden: 512,
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
            pairs: RopePairs::Halves,
            activation: Activation::Silu,
            kv_type: KvType::F16,
            window: None,
            context: 256,
            has_head_norms: false,
            has_post_norms: false,
            has_biases: false,
            experts: None,
        }
    }
}

/// Rows of a step: sequence and position. A token follows from both.
pub struct Step(Vec<(u32, u32)>);

impl Step {
    pub fn rows(rows: &[(u32, u32)]) -> Self {
        Self(rows.to_vec())
    }

    pub fn prompt(sequence: u32, position: u32, tokens: u32) -> Self {
        Self((position..position + tokens).map(|position| (sequence, position)).collect())
    }
}

struct Random(u32);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 += 1;
        philox4x32([self.0, 0, 0, 0], [7, 99])[0]
    }

    fn number(&mut self) -> f32 {
        2.0 * unit_interval(self.word()) - 1.0
    }

    fn vector(&mut self, count: u32, scale: f32, offset: f32) -> Vec<f32> {
        (0..count).map(|_| self.number() * scale + offset).collect()
    }

    /// A block of numbers of magnitude `size`.
    fn block(&mut self, ty: TensorType, size: f32) -> Vec<u8> {
        let number = self.number() * size;
        let half = |number: f32| half::f16::from_f32(number).to_le_bytes();
        match ty {
            TensorType::F32 => return number.to_le_bytes().to_vec(),
            TensorType::F16 => return half(number).to_vec(),
            TensorType::BF16 => return number.to_le_bytes()[2..].to_vec(),
            _ => {}
        }
        let mut bytes: Vec<u8> = (0..ty.block_bytes()).map(|_| self.word() as u8).collect();
        // Place and size of the scale, and of the minimum that centres the numbers.
        let (at, scale, minimum) = match ty {
            TensorType::Q8_0 => (0, 0.008, None),
            TensorType::Q4_0 => (0, 0.12, None),
            TensorType::Q5_0 => (0, 0.06, None),
            TensorType::Q4_1 => (0, 0.1, Some((2, -0.75))),
            TensorType::Q5_1 => (0, 0.05, Some((2, -0.75))),
            TensorType::Q4K => (0, 0.003, Some((2, 0.0225))),
            TensorType::Q5K => (0, 0.0015, Some((2, 0.02325))),
            TensorType::Q6K => (208, 0.0004, None),
            TensorType::Q3K => (108, 0.006, None),
            TensorType::Q2K => (80, 0.05, Some((82, 0.075))),
            TensorType::Iq4Nl => (0, 0.008, None),
            TensorType::Iq4Xs => (0, 0.0004, None),
            _ => {
                bytes[0] = (126.0 + (size / 6.0).log2().round()) as u8;
                return bytes;
            }
        };
        bytes[at..at + 2].copy_from_slice(&half(scale * size));
        if let Some((at, minimum)) = minimum {
            bytes[at..at + 2].copy_from_slice(&half(minimum * size));
        }
        // The same factors for scales and minimums.
        match ty {
            TensorType::Q4K | TensorType::Q5K => {
                bytes.copy_within(4..8, 8);
                bytes[12..16].iter_mut().for_each(|byte| *byte = *byte & 15 | *byte << 4);
            }
            TensorType::Q2K => {
                bytes[..16].iter_mut().for_each(|byte| *byte = *byte & 15 | *byte << 4);
            }
            _ => {}
        }
        bytes
    }
}

struct Loader<'a> {
    device: &'a mut dyn Device,
    random: Random,
    shape: Shape,
}

impl Loader<'_> {
    fn matrix(&mut self, ty: TensorType, rows: u32, cols: u32) -> MatrixId {
        let blocks = (rows * cols) as usize / ty.block_elements();
        let size = 2.0 / (cols as f32).sqrt();
        let bytes: Vec<u8> = (0..blocks).flat_map(|_| self.random.block(ty, size)).collect();
        let usage = MatrixUse { gather: true, multiply: true };
        let desc = MatrixDesc { name: "w", rows, cols, ty, usage };
        self.device.load_matrix(&desc, &bytes).unwrap()
    }

    fn linear(&mut self, rows: u32, cols: u32) -> Linear {
        let matrix = self.matrix(self.shape.ty, rows, cols);
        let bias = self.shape.has_biases.then(|| {
            let bias = self.random.vector(rows, 0.25, 0.0);
            self.device.load_vector("b", &bias).unwrap()
        });
        Linear { matrix, bias }
    }

    fn norm(&mut self, width: u32) -> Norm {
        let weight = self.random.vector(width, 0.5, 1.0);
        Norm { weight: self.device.load_vector("n", &weight).unwrap(), eps: 1e-5 }
    }

    fn optional_norm(&mut self, width: u32, has: bool) -> Option<Norm> {
        has.then(|| self.norm(width))
    }
}

/// The logits of all rows of the steps.
pub fn run(device: &mut dyn Device, shape: &Shape, steps: &[Step]) -> Vec<Vec<f32>> {
    let mut loader = Loader { device, random: Random(0), shape: *shape };
    let Shape { width, hidden, heads, kv_heads, head_dim, .. } = *shape;
    let frequencies: Vec<f32> =
        (0..head_dim / 2 - 1).map(|i| 100_f32.powf(-(i as f32) / 16.0)).collect();
    let rope = RopeDesc { frequencies: &frequencies, magnitude: 1.25, pairs: shape.pairs };
    let rope = loader.device.load_rope(&rope).unwrap();
    let (x, q, y, h) = (Slot(0), Slot(1), Slot(2), Slot(3));
    let embedding = loader.linear(VOCAB, width);
    let mut ops = vec![Op::Embed(op::Embed { table: embedding.matrix, scale: 1.5, x })];
    let head_shape = HeadShape { heads, kv_heads, head_dim };
    for layer in 0..shape.layers {
        let has = shape.has_head_norms;
        ops.push(Op::Qkv(op::Qkv {
            x,
            norm: loader.norm(width),
            query: loader.linear(heads * head_dim, width),
            query_norm: loader.optional_norm(head_dim, has),
            keys: Some(KeyValue {
                key: loader.linear(kv_heads * head_dim, width),
                key_norm: loader.optional_norm(head_dim, has),
                value: loader.linear(kv_heads * head_dim, width),
                value_norm: loader.optional_norm(head_dim, has),
            }),
            rope: Some(rope),
            shape: head_shape,
            layer,
            q,
        }));
        ops.push(Op::Attention(op::Attention {
            q,
            shape: head_shape,
            layer,
            scale: 0.2,
            position_scale: None,
            window: shape.window,
            out: y,
        }));
        let scale = if shape.has_post_norms { 0.75 } else { 1.0 };
        let has = shape.has_post_norms;
        ops.push(Op::Project(op::Project {
            y,
            linear: loader.linear(width, heads * head_dim),
            post_norm: loader.optional_norm(width, has),
            scale: 1.0,
            x,
        }));
        if let Some((count, used, score)) = shape.experts {
            let bias = loader.random.vector(count, 0.2, 0.0);
            let selection_bias = Some(loader.device.load_vector("s", &bias).unwrap());
            ops.push(Op::Experts(op::Experts {
                x,
                norm: loader.norm(width),
                router: loader.matrix(TensorType::F32, count, width),
                selection_bias,
                score,
                used,
                gate: loader.matrix(shape.ty, count * hidden, width),
                up: loader.matrix(shape.ty, count * hidden, width),
                down: loader.matrix(shape.ty, count * width, hidden),
                activation: shape.activation,
            }));
            continue;
        }
        ops.push(Op::GateUp(op::GateUp {
            x,
            norm: loader.norm(width),
            gate: loader.linear(hidden, width),
            up: loader.linear(hidden, width),
            activation: shape.activation,
            h,
        }));
        ops.push(Op::Project(op::Project {
            y: h,
            linear: loader.linear(width, hidden),
            post_norm: loader.optional_norm(width, has),
            scale,
            x,
        }));
    }
    ops.push(Op::Head(op::Head {
        x,
        norm: loader.norm(width),
        linear: loader.linear(VOCAB, width),
        soft_cap: None,
        suppressed: Vec::new(),
    }));
    let layer = CacheLayer::Kv { kv_heads, head_dim, rope: Some(rope) };
    let pages_per_sequence = shape.context / PAGE_TOKENS;
    let cache = CacheDesc {
        layers: vec![layer; shape.layers as usize],
        pages: 1 + SEQUENCES * pages_per_sequence,
        page_tokens: PAGE_TOKENS,
        max_sequences: SEQUENCES,
        kv_type: shape.kv_type,
    };
    let layout = StepLayout {
        max_rows: MAX_ROWS,
        max_outputs: MAX_ROWS,
        max_biases: 1,
        max_sequences: SEQUENCES,
        pages_per_sequence,
    };
    let device = loader.device;
    let cache = device.create_cache(&cache).unwrap();
    let bytes = layout.bytes();
    let (step, step_host) =
        (device.create_buffer("step", bytes).unwrap(), device.create_host("step", bytes).unwrap());
    let results = device.create_buffer("results", layout.result_bytes()).unwrap();
    let bytes = 4 * (MAX_ROWS * VOCAB) as usize;
    let logits = device.create_buffer("logits", bytes).unwrap();
    let logits_host = device.create_host("logits", bytes).unwrap();
    let stream = device.create_stream(StreamPriority::Low).unwrap();
    let event = device.create_event().unwrap();
    let buckets = [1, 2, 4, 8, 40, MAX_ROWS];
    let program = |max_rows| Program {
        name: format!("{max_rows} rows"),
        phase: Phase::Decode,
        pure_decode: false,
        max_rows,
        max_outputs: max_rows,
        max_context: shape.context,
        vocab: VOCAB,
        slots: [width, heads * head_dim, heads * head_dim, hidden]
            .map(|width| SlotDesc { width })
            .to_vec(),
        cache,
        step,
        layout,
        results,
        logits,
        masks: None,
        ops: ops.clone(),
    };
    let prepared = device.prepare(buckets.map(program).to_vec()).unwrap();
    let mut all = Vec::new();
    for (number, Step(rows)) in steps.iter().enumerate() {
        let write = &mut |block: &mut [u8]| {
            let view = StepViewMut::new(block, &layout).unwrap();
            let count = rows.len() as u32;
            view.header.step = number as u64;
            (view.header.rows, view.header.outputs) = (count, count);
            view.header.sequences = SEQUENCES;
            for (r, (sequence, position)) in rows.iter().copied().enumerate() {
                let before =
                    rows.iter().position(|row| *row == (sequence, position.wrapping_sub(1)));
                let is_last = !rows[r + 1..].iter().any(|(other, _)| *other == sequence);
                view.rows[r] = StepRow {
                    token: ((sequence * 31 + position * 7) % VOCAB) as i32,
                    position,
                    sequence,
                    table: sequence,
                    previous: before.map_or(-1, |row| row as i32),
                    output: r as i32,
                    flags: u32::from(is_last),
                    reserved: 0,
                };
                view.outputs[r] =
                    OutputRow { row: r as u32, sequence, position, ..OutputRow::default() };
            }
            // Pages of sequences alternate.
            for (index, page) in view.tables.iter_mut().enumerate() {
                let (sequence, at) =
                    (index as u32 / pages_per_sequence, index as u32 % pages_per_sequence);
                *page = 1 + at * SEQUENCES + sequence;
            }
        };
        device.write_host(step_host, 0, layout.bytes(), write).unwrap();
        device.upload(stream, step_host, step, layout.bytes()).unwrap();
        let bucket = buckets.iter().position(|bucket| *bucket >= rows.len() as u32).unwrap();
        device.launch(stream, prepared[bucket].graph).unwrap();
        device.download(stream, (logits, 0), (logits_host, 0), bytes).unwrap();
        device.record(stream, event).unwrap();
        device.synchronize_event(event).unwrap();
        let read = &mut |bytes: &[u8]| {
            let numbers: &[f32] = bytemuck::cast_slice(bytes);
            all.extend(numbers.chunks(VOCAB as usize).take(rows.len()).map(<[f32]>::to_vec));
        };
        device.read_host(logits_host, 0, bytes, read).unwrap();
    }
    all
}
