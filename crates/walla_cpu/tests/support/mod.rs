//! A small random decoder with every op, run through the device contract, and the same decoder in
//! naive f64.

#![allow(dead_code, reason = "each test binary uses its part")]

mod reference;
mod weights;

use std::cell::Cell;

use walla_cpu::{CpuDevice, CpuOptions};
use walla_device::step::{OutputRow, ResultView, StepLayout, StepRow, StepViewMut};
use walla_device::{
    BufferId, CacheDesc, CacheId, CacheLayer, DeltaShape, Device, DeviceError, EventId, GraphId,
    HeadShape, HostId, KeyValue, KvType, Linear, MatrixDesc, MatrixUse, Norm, Op, Phase, Program,
    RopeDesc, Slot, SlotDesc, StreamId, StreamPriority, op,
};
use walla_types::{Activation, ExpertScore, PositionScale, RopePairs, TensorType};

use weights::floats;
pub use weights::{Random, matrix_bytes};

pub const VOCAB: usize = 70;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const PAGES_PER_SEQUENCE: u32 = 12;
pub const SEQUENCES: u32 = 6;
pub const ROWS: u32 = 40;
pub const TAPS: usize = 3;
/// Growth of the scores of the last layer.
pub const GROWTH: PositionScale = PositionScale { slope: 0.3, period_tokens: 5 };

pub const LAYOUT: StepLayout = StepLayout {
    max_rows: ROWS,
    max_outputs: ROWS,
    max_biases: 8,
    max_sequences: SEQUENCES,
    pages_per_sequence: PAGES_PER_SEQUENCE,
};

/// Parameters that vary between models.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub ty: TensorType,
    pub width: usize,
    pub hidden: usize,
    pub head_dim: usize,
    pub pairs: RopePairs,
    pub activation: Activation,
    pub kv_type: KvType,
    pub window: Option<u32>,
    pub page_tokens: u32,
    pub seed: u32,
    /// Of the last layer, in place of its feed-forward network; `hidden` wide each.
    pub experts: Option<ExpertShape>,
    /// In place of the convolution layer. The factor of that layer's hidden activations is then a
    /// gate of one row.
    pub delta: Option<DeltaShape>,
    /// Inputs of each layer, this wide. Then values of the first layer are normalised, the last
    /// layer reads its keys and values, layers are scaled, and logits are capped and suppressed.
    pub inputs: Option<usize>,
}

/// Number of layers.
pub const LAYERS: usize = 3;
/// Factor of the table of the layers' inputs.
pub const TABLE_SCALE: f32 = 3.0;
/// Factor of the hidden state after each layer, if layers have inputs.
pub const LAYER_SCALE: f32 = 0.75;
/// Bound of the logits, if layers have inputs.
pub const SOFT_CAP: f32 = 2.5;
/// Tokens that are not generated, if layers have inputs.
pub const SUPPRESSED: [u32; 2] = [5, VOCAB as u32 - 1];

/// Heads of different sizes and numbers than the attention's.
pub const DELTA: DeltaShape =
    DeltaShape { key_heads: 2, value_heads: 6, head_dim: 32, taps: TAPS as u32 };

/// Vectors of a DeltaNet layer.
#[derive(Default)]
pub struct DeltaVectors {
    pub kernel: Vec<f32>,
    pub decay: Vec<f32>,
    pub step_bias: Vec<f32>,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertShape {
    pub count: usize,
    pub used: usize,
    pub score: ExpertScore,
    pub bias: Option<&'static [f32]>,
    /// Multiplies the router's numbers.
    pub router_scale: f32,
    pub router_ty: TensorType,
}

impl ExpertShape {
    pub fn of(count: usize, used: usize, score: ExpertScore) -> Self {
        Self { count, used, score, bias: None, router_scale: 1.0, router_ty: TensorType::F32 }
    }
}

impl Shape {
    pub fn small(ty: TensorType) -> Self {
        let wide = ty.block_elements() == 256;
        Self {
            ty,
            width: if wide { 256 } else { 96 },
            hidden: if wide { 512 } else { 160 },
            head_dim: if wide { 64 } else { 24 },
            pairs: RopePairs::Halves,
            activation: Activation::Silu,
            kv_type: KvType::F16,
            window: Some(7),
            page_tokens: if wide { 16 } else { 5 },
            seed: 1,
            experts: None,
            delta: None,
            inputs: None,
        }
    }
}

/// One weight and its numbers (empty for quantised types).
pub struct Weight {
    pub linear: Linear,
    pub values: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

/// A device with a model: embedding, attention layer with a window, convolution layer, attention
/// layer, head.
pub struct Harness {
    pub device: CpuDevice,
    pub shape: Shape,
    pub weights: Vec<Weight>,
    pub norms: Vec<Vec<f32>>,
    pub kernel: Vec<f32>,
    pub delta: DeltaVectors,
    pub frequencies: Vec<f32>,
    pub cache: CacheId,
    pub graph: GraphId,
    pub stream: StreamId,
    pub event: EventId,
    step: (HostId, BufferId),
    results: (HostId, BufferId),
    logits: (HostId, BufferId),
    steps: u64,
}

pub const EPS: f32 = 1e-5;
pub const MAGNITUDE: f32 = 1.25;

/// One row of a step: sequence, position, token (-1: the last sampled token), whether logits are
/// requested.
#[derive(Clone, Copy, Debug)]
pub struct Row(pub u32, pub u32, pub i32, pub bool);

impl Harness {
    pub fn new(options: CpuOptions, shape: Shape) -> Self {
        Self::try_new(options, shape).unwrap()
    }

    /// The refusal of the program, if the device refuses it.
    pub fn try_new(options: CpuOptions, shape: Shape) -> Result<Self, DeviceError> {
        Self::changed(options, shape, &|_| ())
    }

    /// As `try_new`, with a change of each op.
    pub fn changed(
        options: CpuOptions,
        shape: Shape,
        change: &dyn Fn(&mut Op),
    ) -> Result<Self, DeviceError> {
        let mut device = CpuDevice::new(options).unwrap();
        let mut random = Random::new(shape.seed);
        let (mut weights, mut norms) = (Vec::new(), Vec::new());
        let Shape { width, hidden, head_dim, .. } = shape;
        let (q_width, kv_width) = (HEADS * head_dim, KV_HEADS * head_dim);
        // Type of the next matrices and factor of their numbers.
        let kind = Cell::new((shape.ty, 1.0));
        // Whether the next matrix is a table.
        let is_table = Cell::new(false);
        let mut linear =
            |device: &mut CpuDevice, random: &mut Random, rows: usize, cols: usize, bias: bool| {
                let (ty, factor) = kind.get();
                let scale = if weights.is_empty() { 1.0 } else { 2.0 / (cols as f32).sqrt() };
                let ty =
                    if cols.is_multiple_of(ty.block_elements()) { ty } else { TensorType::F32 };
                let bytes = matrix_bytes(random, ty, rows * cols, scale * factor);
                let gather = weights.is_empty() || is_table.get();
                let usage = MatrixUse { gather, multiply: !is_table.get() };
                let desc =
                    MatrixDesc { name: "w", rows: rows as u32, cols: cols as u32, ty, usage };
                let matrix = device.load_matrix(&desc, &bytes).unwrap();
                let bias = bias.then(|| random.vector(rows, 0.25, 0.0));
                let id = bias.as_ref().map(|bias| device.load_vector("b", bias).unwrap());
                let values = if ty.is_quantized() { Vec::new() } else { floats(ty, &bytes) };
                weights.push(Weight { linear: Linear { matrix, bias: id }, values, bias });
                weights.last().unwrap().linear
            };
        let mut norm = |device: &mut CpuDevice, random: &mut Random, width: usize| {
            norms.push(random.vector(width, 0.5, 1.0));
            Norm { weight: device.load_vector("n", norms.last().unwrap()).unwrap(), eps: EPS }
        };
        let d = &mut device;
        let r = &mut random;
        let pairs = head_dim / 2 - 2;
        let frequencies: Vec<f32> =
            (0..pairs).map(|i| 100_f32.powf(-(i as f32) / pairs as f32)).collect();
        let rope = RopeDesc { frequencies: &frequencies, magnitude: MAGNITUDE, pairs: shape.pairs };
        let rope = d.load_rope(&rope).unwrap();
        let embedding = linear(d, r, VOCAB, width, false);
        let (x, q, y, h) = (Slot(0), Slot(1), Slot(2), Slot(3));
        let head_shape =
            HeadShape { heads: HEADS as u32, kv_heads: KV_HEADS as u32, head_dim: head_dim as u32 };
        let mut ops = vec![Op::Embed(op::Embed { table: embedding.matrix, scale: 1.5, x })];
        let (e, gated) = (Slot(6), Slot(7));
        let layer_scale = if shape.inputs.is_some() { LAYER_SCALE } else { 1.0 };
        if let Some(part) = shape.inputs {
            is_table.set(true);
            let table = linear(d, r, VOCAB, LAYERS * part, false).matrix;
            is_table.set(false);
            ops.push(Op::LayerInputs(op::LayerInputs {
                x,
                table,
                table_scale: TABLE_SCALE,
                projection: linear(d, r, LAYERS * part, width, true),
                norm: norm(d, r, part),
                e,
            }));
        }
        let kernel = r.vector(width * TAPS, 0.5, 0.0);
        let kernel_id = d.load_vector("kernel", &kernel).unwrap();
        let delta = match shape.delta {
            Some(delta) => DeltaVectors {
                kernel: r.vector(delta.channels() as usize * TAPS, 0.5, 0.0),
                decay: r.vector(delta.value_heads as usize, 0.9, -1.0),
                step_bias: r.vector(delta.value_heads as usize, 1.0, 0.0),
            },
            None => DeltaVectors::default(),
        };
        for layer in 0..LAYERS as u32 {
            if let (1, Some(delta_shape)) = (layer, shape.delta) {
                let values = delta_shape.values() as usize;
                let heads = delta_shape.value_heads as usize;
                let input_norm = norm(d, r, width);
                ops.push(Op::DeltaNet(op::DeltaNet {
                    x,
                    norm: input_norm,
                    shape: delta_shape,
                    input: linear(d, r, delta_shape.channels() as usize, width, true),
                    kernel: d.load_vector("kernel", &delta.kernel).unwrap(),
                    alpha: linear(d, r, heads, width, false),
                    beta: linear(d, r, heads, width, true),
                    decay: d.load_vector("decay", &delta.decay).unwrap(),
                    step_bias: d.load_vector("step bias", &delta.step_bias).unwrap(),
                    eps: EPS,
                    head_norm: norm(d, r, delta_shape.head_dim as usize),
                    layer,
                    out: Slot(5),
                }));
                ops.push(Op::Gate(op::Gate {
                    x,
                    norm: input_norm,
                    linear: linear(d, r, values, width, true),
                    activation: Activation::Silu,
                    y: Slot(5),
                }));
                ops.push(Op::Project(op::Project {
                    y: Slot(5),
                    linear: linear(d, r, width, values, false),
                    post_norm: None,
                    scale: 1.0,
                    x,
                }));
            } else if layer == 1 {
                let input_norm = norm(d, r, width);
                let input = [(); 3].map(|()| linear(d, r, width, width, false));
                ops.push(Op::ShortConv(op::ShortConv {
                    x,
                    norm: input_norm,
                    input,
                    kernel: kernel_id,
                    taps: TAPS as u32,
                    layer,
                    out: Slot(4),
                }));
                ops.push(Op::Project(op::Project {
                    y: Slot(4),
                    linear: linear(d, r, width, width, false),
                    post_norm: None,
                    scale: 1.0,
                    x,
                }));
            } else {
                let is_shared = layer == 2 && shape.inputs.is_some();
                let cached = if is_shared { 0 } else { layer };
                let ones = vec![1.0; head_dim];
                ops.push(Op::Qkv(op::Qkv {
                    x,
                    norm: norm(d, r, width),
                    query: linear(d, r, q_width, width, true),
                    query_norm: Some(norm(d, r, head_dim)),
                    keys: (!is_shared).then(|| KeyValue {
                        key: linear(d, r, kv_width, width, true),
                        key_norm: Some(norm(d, r, head_dim)),
                        value: linear(d, r, kv_width, width, true),
                        value_norm: shape.inputs.map(|_| Norm {
                            weight: d.load_vector("ones", &ones).unwrap(),
                            eps: EPS,
                        }),
                    }),
                    rope: Some(rope),
                    shape: head_shape,
                    layer: cached,
                    q,
                }));
                let window = if layer == 0 { shape.window } else { None };
                let scale = 1.0 / (head_dim as f32).sqrt();
                let position_scale = (layer > 0).then_some(GROWTH);
                ops.push(Op::Attention(op::Attention {
                    q,
                    shape: head_shape,
                    layer: cached,
                    scale,
                    position_scale,
                    window,
                    out: y,
                }));
                let linear = linear(d, r, width, q_width, false);
                let post_norm = Some(norm(d, r, width));
                ops.push(Op::Project(op::Project { y, linear, post_norm, scale: 1.0, x }));
            }
            let gate_norm = norm(d, r, width);
            if let (2, Some(experts)) = (layer, shape.experts) {
                let count = experts.count;
                kind.set((experts.router_ty, experts.router_scale));
                let router = linear(d, r, count, width, false).matrix;
                kind.set((shape.ty, 1.0));
                let [gate, up] = [(); 2].map(|()| linear(d, r, count * hidden, width, false));
                let bias = experts.bias.map(|bias| d.load_vector("bias", bias).unwrap());
                ops.push(Op::Experts(op::Experts {
                    x,
                    norm: gate_norm,
                    router,
                    selection_bias: bias,
                    score: experts.score,
                    used: experts.used as u32,
                    gate: gate.matrix,
                    up: up.matrix,
                    down: linear(d, r, count * width, hidden, false).matrix,
                    activation: shape.activation,
                }));
            } else {
                let [gate, up] = [(); 2].map(|()| linear(d, r, hidden, width, false));
                ops.push(Op::GateUp(op::GateUp {
                    x,
                    norm: gate_norm,
                    gate,
                    up,
                    activation: shape.activation,
                    h,
                }));
                if layer == 1 && shape.delta.is_some() {
                    let linear = linear(d, r, 1, width, false);
                    let activation = Activation::Sigmoid;
                    ops.push(Op::Gate(op::Gate { x, norm: gate_norm, linear, activation, y: h }));
                }
                ops.push(Op::Project(op::Project {
                    y: h,
                    linear: linear(d, r, width, hidden, true),
                    post_norm: None,
                    scale: 1.0,
                    x,
                }));
            }
            if let Some(part) = shape.inputs {
                ops.push(Op::GateInput(op::GateInput {
                    x,
                    linear: linear(d, r, part, width, true),
                    activation: Activation::GeluTanh,
                    e,
                    first: layer * part as u32,
                    h: gated,
                }));
                ops.push(Op::Project(op::Project {
                    y: gated,
                    linear: linear(d, r, width, part, true),
                    post_norm: Some(norm(d, r, width)),
                    scale: 1.0,
                    x,
                }));
            }
            if let Some(Op::Project(op::Project { scale, .. })) = ops.last_mut() {
                *scale = layer_scale;
            }
        }
        ops.push(Op::Head(op::Head {
            x,
            norm: norm(d, r, width),
            linear: embedding,
            soft_cap: shape.inputs.map(|_| SOFT_CAP),
            suppressed: shape.inputs.map_or(vec![], |_| SUPPRESSED.to_vec()),
        }));
        ops.push(Op::Sample);
        ops.iter_mut().for_each(change);
        let kv = CacheLayer::Kv {
            kv_heads: KV_HEADS as u32,
            head_dim: head_dim as u32,
            rope: Some(rope),
        };
        let conv = CacheLayer::ShortConv { width: width as u32, taps: TAPS as u32 };
        let recurrent = shape.delta.map_or(conv, CacheLayer::DeltaNet);
        let cache = CacheDesc {
            layers: if shape.inputs.is_some() {
                vec![kv, recurrent]
            } else {
                vec![kv, recurrent, kv]
            },
            pages: 1 + SEQUENCES * PAGES_PER_SEQUENCE,
            page_tokens: shape.page_tokens,
            max_sequences: SEQUENCES,
            kv_type: shape.kv_type,
        };
        let cache = d.create_cache(&cache).unwrap();
        let mut pair = |what: &str, bytes: usize| {
            (d.create_host(what, bytes).unwrap(), d.create_buffer(what, bytes).unwrap())
        };
        let step = pair("step", LAYOUT.bytes());
        let results = pair("results", LAYOUT.result_bytes());
        let logits = pair("logits", ROWS as usize * VOCAB * 4);
        let values = shape.delta.map_or(1, |delta| delta.values() as usize);
        let part = shape.inputs.unwrap_or(1);
        let widths = [width, q_width, q_width, hidden, width, values, LAYERS * part, part];
        let program = Program {
            name: "test".to_owned(),
            phase: Phase::Decode,
            pure_decode: false,
            max_rows: ROWS,
            max_outputs: ROWS,
            max_context: shape.page_tokens * PAGES_PER_SEQUENCE,
            vocab: VOCAB as u32,
            slots: widths.map(|width| SlotDesc { width: width as u32 }).to_vec(),
            cache,
            step: step.1,
            layout: LAYOUT,
            results: results.1,
            logits: logits.1,
            masks: None,
            ops,
        };
        let graph = d.prepare(vec![program])?[0].graph;
        let stream = d.create_stream(StreamPriority::Low).unwrap();
        let event = d.create_event().unwrap();
        Ok(Self {
            device,
            shape,
            weights,
            norms,
            kernel,
            delta,
            frequencies,
            cache,
            graph,
            stream,
            event,
            step,
            results,
            logits,
            steps: 0,
        })
    }

    /// Enqueues one step. Sequence `s` owns pages `1 + s * PAGES_PER_SEQUENCE ..`, in reverse
    /// order.
    pub fn enqueue(&mut self, rows: &[Row], sampling: &OutputRow) {
        self.enqueue_with(rows, sampling, &|_| ());
    }

    /// As `enqueue`, with a final change of the step block.
    pub fn enqueue_with(
        &mut self,
        rows: &[Row],
        sampling: &OutputRow,
        change: &dyn Fn(&mut StepViewMut<'_>),
    ) {
        self.steps += 1;
        let step = self.steps;
        let mut write = |bytes: &mut [u8]| {
            let mut view = StepViewMut::new(bytes, &LAYOUT).unwrap();
            (view.header.step, view.header.rows) = (step, rows.len() as u32);
            view.header.sequences = SEQUENCES;
            let mut outputs = 0;
            for (r, &Row(sequence, position, token, wanted)) in rows.iter().enumerate() {
                let is = |at: u32| move |row: &Row| row.0 == sequence && row.1 == at;
                let previous = position.checked_sub(1).and_then(|at| rows.iter().position(is(at)));
                let last = !rows.iter().any(is(position + 1));
                view.rows[r] = StepRow {
                    token,
                    position,
                    sequence,
                    table: sequence,
                    previous: previous.map_or(StepRow::NONE, |r| r as i32),
                    output: if wanted { outputs as i32 } else { StepRow::NONE },
                    flags: if last { StepRow::LAST_OF_SEQUENCE } else { 0 },
                    reserved: 0,
                };
                if wanted {
                    view.outputs[outputs] =
                        OutputRow { row: r as u32, sequence, position, ..*sampling };
                    outputs += 1;
                }
            }
            view.header.outputs = outputs as u32;
            for (i, page) in view.tables.iter_mut().enumerate() {
                let (sequence, at) = (i as u32 / PAGES_PER_SEQUENCE, i as u32 % PAGES_PER_SEQUENCE);
                *page = 1 + sequence * PAGES_PER_SEQUENCE + (PAGES_PER_SEQUENCE - 1 - at);
            }
            change(&mut view);
        };
        self.device.write_host(self.step.0, 0, LAYOUT.bytes(), &mut write).unwrap();
        self.device.upload(self.stream, self.step.0, self.step.1, LAYOUT.bytes()).unwrap();
        self.device.launch(self.stream, self.graph).unwrap();
        let all = |layout: &StepLayout| layout.result_bytes();
        let (results, logits) = (self.results, self.logits);
        self.device.download(self.stream, (results.1, 0), (results.0, 0), all(&LAYOUT)).unwrap();
        let bytes = ROWS as usize * VOCAB * 4;
        self.device.download(self.stream, (logits.1, 0), (logits.0, 0), bytes).unwrap();
        self.device.record(self.stream, self.event).unwrap();
    }

    /// Runs one step; returns the logits of the rows that requested them, and the sampled tokens.
    pub fn run(&mut self, rows: &[Row], sampling: &OutputRow) -> (Vec<Vec<f32>>, Vec<u32>) {
        self.enqueue(rows, sampling);
        self.device.synchronize().unwrap();
        assert!(self.device.poll(self.event).unwrap());
        let (mut logits, mut tokens, outputs) =
            (Vec::new(), Vec::new(), rows.iter().filter(|row| row.3).count());
        let step = self.steps;
        let mut read = |bytes: &[u8]| {
            let view = ResultView::new(bytes, &LAYOUT).unwrap();
            assert_eq!((view.header.step, view.header.outputs as usize), (step, outputs));
            tokens.extend(view.rows[..outputs].iter().map(|row| row.token));
        };
        self.device.read_host(self.results.0, 0, LAYOUT.result_bytes(), &mut read).unwrap();
        let mut read = |bytes: &[u8]| {
            let floats = |row: &[u8]| {
                row.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
            };
            logits.extend(bytes.chunks(VOCAB * 4).take(outputs).map(floats));
        };
        self.device.read_host(self.logits.0, 0, ROWS as usize * VOCAB * 4, &mut read).unwrap();
        (logits, tokens)
    }

    /// Tries to read the result block; returns its step number.
    pub fn read_results(&mut self) -> Result<u64, DeviceError> {
        let mut step = 0;
        self.device.read_host(self.results.0, 0, LAYOUT.result_bytes(), &mut |bytes| {
            step = ResultView::new(bytes, &LAYOUT).unwrap().header.step;
        })?;
        Ok(step)
    }
}

/// Greedy sampling.
pub fn greedy() -> OutputRow {
    OutputRow {
        flags: OutputRow::SAMPLE,
        top_p: 1.0,
        repetition_penalty: 1.0,
        ..OutputRow::default()
    }
}

/// All rows of one sequence from position 0 on, each with logits.
pub fn whole(sequence: u32, tokens: &[i32]) -> Vec<Row> {
    tokens.iter().zip(0..).map(|(token, position)| Row(sequence, position, *token, true)).collect()
}
