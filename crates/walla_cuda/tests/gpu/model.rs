//! Random models: small, but with every kind of op and every type.

use half::f16;
use walla_device::{
    CacheLayer, DeltaShape, Device, HeadShape, KeyValue, Linear, MatrixDesc, MatrixId, MatrixUse,
    Norm, Op, RopeDesc, RopeId, Slot, SlotDesc, VectorId, op,
};
use walla_types::{Activation, ExpertScore, PositionScale, RopePairs, TensorType};

use crate::in_file::InFile;

/// A random number generator with the same sequence on every platform.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 29
    }

    /// Uniform in -1 .. 1.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, end: u32) -> u32 {
        (self.bits() >> 33) as u32 % end
    }

    fn half(&mut self, low: f32, high: f32) -> [u8; 2] {
        let unit = (self.number() + 1.0) / 2.0;
        f16::from_f32(low + (high - low) * unit).to_le_bytes()
    }
}

/// A block of a type, with numbers of magnitude `size`.
fn block(ty: TensorType, size: f32, random: &mut Random) -> Vec<u8> {
    let number = random.number() * size;
    match ty {
        TensorType::F32 => return number.to_le_bytes().to_vec(),
        TensorType::F16 => return f16::from_f32(number).to_le_bytes().to_vec(),
        TensorType::BF16 => return number.to_le_bytes()[2..].to_vec(),
        _ => {}
    }
    let mut bytes: Vec<u8> = (0..ty.block_bytes()).map(|_| random.bits() as u8).collect();
    // Scales for numbers of magnitude `size`; minimums that centre them.
    let mut put = |at: usize, low: f32, high: f32| {
        let half = random.half(low * size, high * size);
        bytes[at..at + 2].copy_from_slice(&half);
    };
    match ty {
        TensorType::Q8_0 => put(0, 0.002, 0.01),
        TensorType::Q4_0 => put(0, -0.1, 0.15),
        TensorType::Q5_0 => put(0, -0.05, 0.08),
        TensorType::Q4_1 | TensorType::Q5_1 => {
            let scale = if ty == TensorType::Q4_1 { 0.1 } else { 0.05 };
            put(0, scale / 2.0, scale);
            put(2, -0.8, -0.6);
        }
        TensorType::Q4K | TensorType::Q5K => {
            // Minimums in the middle of the numbers: a multiple of the scale, with the same 6-bit
            // factors.
            let (scale, middle) = if ty == TensorType::Q4K { (0.003, 7.5) } else { (0.0015, 15.5) };
            put(0, scale, scale);
            put(2, scale * middle, scale * middle);
            bytes.copy_within(4..8, 8);
            bytes[12..16].iter_mut().for_each(|byte| *byte = *byte & 15 | *byte << 4);
        }
        TensorType::Q6K => put(208, 0.0002, 0.0005),
        TensorType::Q3K => put(108, 0.003, 0.008),
        TensorType::Iq4Nl => put(0, 0.004, 0.01),
        TensorType::Iq4Xs => put(0, 0.0003, 0.0005),
        TensorType::Q2K => {
            // As Q4_K.
            put(80, 0.05, 0.05);
            put(82, 0.075, 0.075);
            bytes[..16].iter_mut().for_each(|byte| *byte = *byte & 15 | *byte << 4);
        }
        // Numbers up to `size`, or half of it.
        TensorType::Mxfp4 => {
            let exponent = 126.0 + (size / 6.0).log2().round();
            bytes[0] = exponent as u8 + (random.bits() & 1) as u8;
        }
        other => panic!("no blocks of {other}"),
    }
    bytes
}

/// How one token, [`POISONED`], produces non-finite numbers. The embedding table is then a separate
/// f32 matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Its row of the table contains a NaN.
    Table,
    /// Its values in the first layer exceed f16: f16 pages then contain infinities.
    Values,
}

/// The poisoned token.
pub const POISONED: u32 = 3;

/// Mixtures of experts.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    pub count: u32,
    pub used: u32,
    pub score: ExpertScore,
    /// Whether there is a selection bias.
    pub is_biased: bool,
    /// Types of router, gate, up and down.
    pub types: [TensorType; 4],
    /// The first layers, which have no experts.
    pub dense_layers: u32,
    /// Whether layers with experts also have the network of the others, with the same norm.
    pub is_shared: bool,
}

impl Experts {
    pub fn of(ty: TensorType) -> Self {
        Self {
            count: 8,
            used: 3,
            score: ExpertScore::Softmax,
            is_biased: false,
            types: [TensorType::F32, ty, ty, ty],
            dense_layers: 0,
            is_shared: false,
        }
    }
}

/// Shape and features of a model.
#[derive(Clone, Debug)]
pub struct Shape {
    pub width: u32,
    pub hidden: u32,
    pub vocab: u32,
    pub heads: HeadShape,
    pub layers: u32,
    /// Types of, in this order: query, key, value, output, gate, up, down, head.
    pub types: [TensorType; 8],
    pub biases: bool,
    pub head_norms: bool,
    pub post_norms: bool,
    pub activation: Activation,
    pub pairs: RopePairs,
    /// Rotated pairs: at most half of a head.
    pub pairs_count: u32,
    pub window: Option<u32>,
    /// Every second layer is a short convolution with this many taps.
    pub taps: Option<u32>,
    /// Every second layer is a gated DeltaNet.
    pub delta: Option<DeltaShape>,
    /// Attention and feed-forward networks have gates: of networks, one number per row.
    pub gates: bool,
    /// Each layer has an input of this many numbers, and its result is scaled. Every second
    /// attention layer reads the keys and values of the previous one, which have norms.
    pub layer_inputs: Option<u32>,
    /// Logits are bounded, and some tokens suppressed.
    pub bounded: bool,
    /// Scores grow with the position.
    pub position_scale: Option<PositionScale>,
    /// The head repeats this many rows, so that tokens have equal logits.
    pub repeated_rows: Option<u32>,
    pub poison: Option<Poison>,
    pub experts: Option<Experts>,
}

impl Shape {
    pub fn llama(ty: TensorType) -> Self {
        let wide = ty.block_elements() == 256;
        Self {
            width: if wide { 256 } else { 96 },
            hidden: if wide { 512 } else { 224 },
            vocab: 515,
            heads: HeadShape { heads: 4, kv_heads: 2, head_dim: if wide { 64 } else { 24 } },
            layers: 2,
            types: [ty; 8],
            biases: false,
            head_norms: false,
            post_norms: false,
            activation: Activation::Silu,
            pairs: RopePairs::Interleaved,
            pairs_count: if wide { 32 } else { 12 },
            window: None,
            taps: None,
            delta: None,
            gates: false,
            layer_inputs: None,
            bounded: false,
            position_scale: None,
            repeated_rows: None,
            poison: None,
            experts: None,
        }
    }
}

/// A model on a device: everything except the sizes of its programs.
pub struct Model {
    pub ops: Vec<Op>,
    pub slots: Vec<SlotDesc>,
    pub layers: Vec<CacheLayer>,
    pub vocab: u32,
}

struct Builder<'a> {
    device: &'a mut dyn Device,
    random: Random,
    biases: bool,
}

impl Builder<'_> {
    fn linear(&mut self, ty: TensorType, rows: u32, cols: u32, usage: MatrixUse) -> Linear {
        self.repeated(ty, rows, cols, usage, rows)
    }

    /// A matrix whose rows repeat after `different` of them.
    fn repeated(
        &mut self,
        ty: TensorType,
        rows: u32,
        cols: u32,
        usage: MatrixUse,
        different: u32,
    ) -> Linear {
        let blocks = |rows: u32| rows as usize * cols as usize / ty.block_elements();
        let size = 1.7 / (cols as f32).sqrt();
        let mut bytes: Vec<u8> =
            (0..blocks(different)).flat_map(|_| block(ty, size, &mut self.random)).collect();
        for at in 0..blocks(rows) * ty.block_bytes() - bytes.len() {
            bytes.push(bytes[at]);
        }
        let matrix = self.matrix((ty, rows, cols), usage, &bytes);
        let bias = self.biases.then(|| self.vector(rows, 0.0, 0.3));
        Linear { matrix, bias }
    }

    fn matrix(
        &mut self,
        (ty, rows, cols): (TensorType, u32, u32),
        usage: MatrixUse,
        bytes: &[u8],
    ) -> MatrixId {
        let desc = MatrixDesc { name: "random", rows, cols, ty, usage };
        self.device.load_matrix(&desc, &InFile::new(bytes)).unwrap()
    }

    /// A table with one poisoned token. With [`Poison::Values`], only that token has a non-zero
    /// first number.
    fn poisoned_table(&mut self, poison: Poison, vocab: u32, width: u32) -> MatrixId {
        let mut numbers: Vec<f32> =
            (0..vocab * width).map(|_| self.random.number() / (width as f32).sqrt()).collect();
        let row = (POISONED * width) as usize;
        match poison {
            Poison::Table => numbers[row + 5] = f32::NAN,
            Poison::Values => {
                numbers.iter_mut().step_by(width as usize).for_each(|first| *first = 0.0);
                numbers[row] = 20.0;
            }
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.matrix((TensorType::F32, vocab, width), GATHER, &bytes)
    }

    /// Values that are large if the first number of a row of x is non-zero, and small otherwise.
    fn poisoned_values(&mut self, ty: TensorType, rows: u32, cols: u32) -> Linear {
        let blocks = cols as usize / ty.block_elements();
        let mut bytes = vec![];
        for at in 0..rows as usize * blocks {
            let mut block = block(ty, 0.1, &mut self.random);
            if at % blocks == 0 {
                match ty {
                    TensorType::F32 => block.copy_from_slice(&6e4_f32.to_le_bytes()),
                    TensorType::F16 => block.copy_from_slice(&f16::from_f32(6e4).to_le_bytes()),
                    TensorType::Q8_0 => {
                        block.fill(0);
                        block[..2].copy_from_slice(&f16::from_f32(500.0).to_le_bytes());
                        block[2] = 127;
                    }
                    other => panic!("no large blocks of {other}"),
                }
            }
            bytes.extend(block);
        }
        Linear { matrix: self.matrix((ty, rows, cols), MULTIPLY, &bytes), bias: None }
    }

    fn vector(&mut self, len: u32, middle: f32, spread: f32) -> VectorId {
        let values: Vec<f32> = (0..len).map(|_| middle + spread * self.random.number()).collect();
        self.device.load_vector("random", &values).unwrap()
    }

    fn norm(&mut self, len: u32) -> Norm {
        Norm { weight: self.vector(len, 1.0, 0.3), eps: 1e-5 }
    }
}

const MULTIPLY: MatrixUse = MatrixUse { gather: false, multiply: true };
const GATHER: MatrixUse = MatrixUse { gather: true, multiply: false };
const BOTH: MatrixUse = MatrixUse { gather: true, multiply: true };

const X: Slot = Slot(0);
const Q: Slot = Slot(1);
const MIXED: Slot = Slot(2);
const H: Slot = Slot(3);
const CONV: Slot = Slot(4);
const DELTA: Slot = Slot(5);
const INPUTS: Slot = Slot(6);
const GATED: Slot = Slot(7);

impl Model {
    /// The same model on every device, for a given seed.
    pub fn load(device: &mut dyn Device, shape: &Shape, seed: u64) -> Self {
        let mut b = Builder { device, random: Random(seed), biases: shape.biases };
        let frequencies: Vec<f32> = (0..shape.pairs_count)
            .map(|i| 10_000_f32.powf(-(i as f32) / shape.pairs_count as f32))
            .collect();
        let magnitude = if shape.head_norms { 1.1 } else { 1.0 };
        let desc = RopeDesc { frequencies: &frequencies, magnitude, pairs: shape.pairs };
        let rope = b.device.load_rope(&desc).unwrap();
        let [.., head_ty] = shape.types;
        let different = shape.repeated_rows.unwrap_or(shape.vocab);
        let head = b.repeated(head_ty, shape.vocab, shape.width, BOTH, different);
        let head = Linear { bias: None, ..head };
        let poisoned = shape.poison.map(|its| b.poisoned_table(its, shape.vocab, shape.width));
        let table = poisoned.unwrap_or(head.matrix);
        let mut ops = vec![Op::Embed(op::Embed { table, scale: 8.0, x: X })];
        let mut layers = vec![];
        if let Some(part) = shape.layer_inputs {
            let width = part * shape.layers;
            let [ty, ..] = shape.types;
            let table = b.linear(ty, shape.vocab, width, GATHER).matrix;
            ops.push(Op::LayerInputs(op::LayerInputs {
                x: X,
                table,
                table_scale: 0.6,
                projection: b.linear(ty, width, shape.width, MULTIPLY),
                norm: b.norm(part),
                e: INPUTS,
            }));
        }
        for layer in 0..shape.layers {
            let is_odd = layer % 2 == 1;
            let recurrent = (shape.taps.filter(|_| is_odd), shape.delta.filter(|_| is_odd));
            match recurrent {
                (Some(taps), _) => convolution(&mut b, shape, layer, taps, &mut ops, &mut layers),
                (_, Some(its)) => delta_net(&mut b, shape, layer, its, &mut ops, &mut layers),
                _ => attention(&mut b, shape, layer, rope, &mut ops, &mut layers),
            }
            match &shape.experts {
                Some(its) if layer >= its.dense_layers => experts(&mut b, shape, its, &mut ops),
                _ => feed_forward(&mut b, shape, &mut ops),
            }
            if let Some(part) = shape.layer_inputs {
                layer_input(&mut b, shape, layer, part, &mut ops);
            }
        }
        ops.push(Op::Head(op::Head {
            x: X,
            norm: b.norm(shape.width),
            linear: head,
            soft_cap: shape.bounded.then_some(3.0),
            // More than one launch takes.
            suppressed: if shape.bounded { (5..75).chain([514]).collect() } else { vec![] },
        }));
        ops.push(Op::Sample);
        let heads = shape.heads.heads * shape.heads.head_dim;
        let values = shape.delta.map_or(1, |delta| delta.values());
        let part = shape.layer_inputs.unwrap_or(1);
        let widths = [
            shape.width,
            heads,
            heads,
            shape.hidden,
            shape.width,
            values,
            part * shape.layers,
            part,
        ];
        let slots = widths.map(|width| SlotDesc { width }).to_vec();
        Self { ops, slots, layers, vocab: shape.vocab }
    }
}

fn attention(
    b: &mut Builder<'_>,
    shape: &Shape,
    layer: u32,
    rope: RopeId,
    ops: &mut Vec<Op>,
    layers: &mut Vec<CacheLayer>,
) {
    let HeadShape { heads, kv_heads, head_dim } = shape.heads;
    let [query, key, value, output, ..] = shape.types;
    // Every third layer has no rotary embedding.
    let rope = (layer % 3 != 2).then_some(rope);
    // A layer without keys reads the cache of the layer before it.
    let has_keys = shape.layer_inputs.is_none() || layer.is_multiple_of(2);
    if has_keys {
        layers.push(CacheLayer::Kv { kv_heads, head_dim, rope });
    }
    let layer_of_cache = layers.len() as u32 - 1;
    let head_norm = |b: &mut Builder<'_>| shape.head_norms.then(|| b.norm(head_dim));
    let [query_norm, key_norm] = [head_norm(b), head_norm(b)];
    let norm = b.norm(shape.width);
    ops.push(Op::Qkv(op::Qkv {
        x: X,
        norm,
        query: b.linear(query, heads * head_dim, shape.width, MULTIPLY),
        query_norm,
        keys: has_keys.then(|| KeyValue {
            key: b.linear(key, kv_heads * head_dim, shape.width, MULTIPLY),
            key_norm,
            value: match shape.poison {
                Some(Poison::Values) if layer == 0 => {
                    b.poisoned_values(value, kv_heads * head_dim, shape.width)
                }
                _ => b.linear(value, kv_heads * head_dim, shape.width, MULTIPLY),
            },
            value_norm: shape.layer_inputs.map(|_| b.norm(head_dim)),
        }),
        rope,
        shape: shape.heads,
        layer: layer_of_cache,
        q: Q,
    }));
    let scale = 1.5 / (head_dim as f32).sqrt();
    ops.push(Op::Attention(op::Attention {
        q: Q,
        shape: shape.heads,
        layer: layer_of_cache,
        scale,
        position_scale: shape.position_scale,
        window: shape.window,
        out: MIXED,
    }));
    if shape.gates {
        let linear = b.linear(key, heads * head_dim, shape.width, MULTIPLY);
        ops.push(Op::Gate(op::Gate {
            x: X,
            norm,
            linear,
            activation: Activation::Sigmoid,
            y: MIXED,
        }));
    }
    ops.push(Op::Project(op::Project {
        y: MIXED,
        linear: b.linear(output, shape.width, heads * head_dim, MULTIPLY),
        post_norm: shape.post_norms.then(|| b.norm(shape.width)),
        scale: 1.0,
        x: X,
    }));
}

fn convolution(
    b: &mut Builder<'_>,
    shape: &Shape,
    layer: u32,
    taps: u32,
    ops: &mut Vec<Op>,
    layers: &mut Vec<CacheLayer>,
) {
    let width = shape.width;
    let [query, key, value, output, ..] = shape.types;
    layers.push(CacheLayer::ShortConv { width, taps });
    ops.push(Op::ShortConv(op::ShortConv {
        x: X,
        norm: b.norm(width),
        input: [query, key, value].map(|ty| b.linear(ty, width, width, MULTIPLY)),
        kernel: b.vector(width * taps, 0.0, 1.0),
        taps,
        layer,
        out: CONV,
    }));
    let linear = b.linear(output, width, width, MULTIPLY);
    ops.push(Op::Project(op::Project { y: CONV, linear, post_norm: None, scale: 1.0, x: X }));
}

fn delta_net(
    b: &mut Builder<'_>,
    shape: &Shape,
    layer: u32,
    delta: DeltaShape,
    ops: &mut Vec<Op>,
    layers: &mut Vec<CacheLayer>,
) {
    let (width, heads) = (shape.width, delta.value_heads);
    let [query, key, value, output, ..] = shape.types;
    layers.push(CacheLayer::DeltaNet(delta));
    let norm = b.norm(width);
    ops.push(Op::DeltaNet(op::DeltaNet {
        x: X,
        norm,
        shape: delta,
        input: b.linear(query, delta.channels(), width, MULTIPLY),
        kernel: b.vector(delta.channels() * delta.taps, 0.0, 1.0),
        alpha: b.linear(value, heads, width, MULTIPLY),
        beta: b.linear(value, heads, width, MULTIPLY),
        decay: b.vector(heads, -1.0, 0.9),
        step_bias: b.vector(heads, 0.0, 2.0),
        eps: 1e-6,
        head_norm: b.norm(delta.head_dim),
        layer,
        out: DELTA,
    }));
    if shape.gates {
        let linear = b.linear(key, delta.values(), width, MULTIPLY);
        ops.push(Op::Gate(op::Gate { x: X, norm, linear, activation: Activation::Silu, y: DELTA }));
    }
    let linear = b.linear(output, width, delta.values(), MULTIPLY);
    ops.push(Op::Project(op::Project { y: DELTA, linear, post_norm: None, scale: 1.0, x: X }));
}

/// The layer's input, gated by the hidden state, and the scale of the layer's result.
fn layer_input(b: &mut Builder<'_>, shape: &Shape, layer: u32, part: u32, ops: &mut Vec<Op>) {
    let [query, .., down, _] = shape.types;
    ops.push(Op::GateInput(op::GateInput {
        x: X,
        linear: b.linear(query, part, shape.width, MULTIPLY),
        activation: shape.activation,
        e: INPUTS,
        first: layer * part,
        h: GATED,
    }));
    ops.push(Op::Project(op::Project {
        y: GATED,
        linear: b.linear(down, shape.width, part, MULTIPLY),
        post_norm: shape.post_norms.then(|| b.norm(shape.width)),
        scale: 0.7,
        x: X,
    }));
}

fn feed_forward(b: &mut Builder<'_>, shape: &Shape, ops: &mut Vec<Op>) {
    let [.., gate, up, down, _] = shape.types;
    let norm = b.norm(shape.width);
    ops.push(Op::GateUp(op::GateUp {
        x: X,
        norm,
        gate: b.linear(gate, shape.hidden, shape.width, MULTIPLY),
        up: b.linear(up, shape.hidden, shape.width, MULTIPLY),
        activation: shape.activation,
        h: H,
    }));
    if shape.gates {
        let linear = b.linear(gate, 1, shape.width, MULTIPLY);
        ops.push(Op::Gate(op::Gate { x: X, norm, linear, activation: Activation::Sigmoid, y: H }));
    }
    ops.push(Op::Project(op::Project {
        y: H,
        linear: b.linear(down, shape.width, shape.hidden, MULTIPLY),
        post_norm: shape.post_norms.then(|| b.norm(shape.width)),
        scale: 1.0,
        x: X,
    }));
}

fn experts(b: &mut Builder<'_>, shape: &Shape, its: &Experts, ops: &mut Vec<Op>) {
    let Shape { width, hidden, .. } = *shape;
    let mut shared = Vec::new();
    if its.is_shared {
        feed_forward(b, shape, &mut shared);
    }
    let norm = match shared.first() {
        Some(Op::GateUp(op::GateUp { norm, .. })) => *norm,
        _ => b.norm(width),
    };
    let project = shared.pop();
    ops.extend(shared);
    let mut matrix = |ty, rows, cols| {
        let biases = std::mem::take(&mut b.biases);
        let matrix = b.linear(ty, rows, cols, MULTIPLY).matrix;
        b.biases = biases;
        matrix
    };
    let [router, gate, up, down] = its.types;
    let count = its.count;
    let matrices = [
        matrix(router, count, width),
        matrix(gate, count * hidden, width),
        matrix(up, count * hidden, width),
        matrix(down, count * width, hidden),
    ];
    let [router, gate, up, down] = matrices;
    ops.push(Op::Experts(op::Experts {
        x: X,
        norm,
        router,
        selection_bias: its.is_biased.then(|| b.vector(count, 0.0, 0.5)),
        score: its.score,
        used: its.used,
        gate,
        up,
        down,
        activation: shape.activation,
    }));
    ops.extend(project);
}
