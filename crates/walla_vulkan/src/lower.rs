//! Lowers programs to dispatches: selects shaders, grids and addresses. It runs nothing.

mod workspace;

use bytemuck::Pod;
use walla_device::op;
use walla_device::step::mask_words;
use walla_device::{
    CacheLayer, DeviceError, HeadShape, Linear, MatrixId, Norm, Op, Program, Slot, VectorId,
};
use walla_types::{Activation, ExpertScore, MAX_CANDIDATES, RopePairs};

use crate::cache::{delta_numbers, kv_params};
use crate::driver::{Clock, Context, Dispatch};
use crate::params::{self, Address};
use crate::repack::{BLOCK, Kind};
use crate::resources::{Matrix, Resources, unknown};
use crate::shaders::Shaders;

use self::workspace::Area;
pub(crate) use self::workspace::Workspace;

/// Rows of W in a workgroup of a product.
const PRODUCT_ROWS: u32 = 16;
/// Cells of a span, and query heads of a workgroup (`SPAN`, `HEADS` of attention.slang).
const SPAN: u32 = 512;
const HEADS: u32 = 8;
/// Most experts, and most of them that a row uses (`EXPERTS_MAX`, `USED_MAX`).
const MAX_EXPERTS: u32 = 512;
const MAX_USED: u32 = 32;
/// Columns of DeltaNet's states in a workgroup (`COLUMNS`).
const DELTA_COLUMNS: u32 = 32;
/// Most taps of a convolution (`TAPS_MAX`).
const TAPS_MAX: u32 = 8;
/// Largest head of attention (`HEAD_MAX`).
const HEAD_MAX: u32 = 512;

/// Tokens of a chunk of the sampler, and sizes of its structs (sample.slang). Sums of parts of
/// probabilities of more tokens would not fit into 32 bits.
const CHUNK: u32 = 1024;
const MAX_VOCAB: u32 = 1 << 19;
const CHUNK_STATS_BYTES: usize = 32;
const CANDIDATE_BYTES: usize = 8;
const BINS_BYTES: usize = 4096 + 4 * 4096 + 8 + 2 * 2048 * 8 + 16 + 8;

/// A lowered program.
pub(crate) struct Lowered {
    pub(crate) dispatches: Vec<Dispatch>,
    pub(crate) clock: Option<Clock>,
    /// Structs that dispatches refer to, and their place in the workspace.
    pub(crate) constants: Vec<u8>,
    pub(crate) offset: usize,
}

/// Rows that products read, in the forms that they need.
#[derive(Clone, Copy, Debug)]
struct Input {
    words: Address,
    factors: Address,
    plain: Address,
    width: u32,
    by_output: bool,
}

/// Where the rows of a product go.
#[derive(Clone, Copy, Debug)]
struct Target {
    out: Address,
    stride: u32,
    /// `Some(scale)`: they are added, and the sum is multiplied.
    adds: Option<f32>,
}

/// Rows before they are packed.
#[derive(Clone, Copy, Debug)]
struct Source {
    x: Address,
    width: u32,
    stride: u32,
    norm: Option<Norm>,
    gate: Option<(Address, Activation)>,
    by_output: bool,
    /// Rows for each row of the step.
    multiple: u32,
}

impl Source {
    /// Rows of a slot or an area.
    fn of(x: Address, width: u32, norm: Option<Norm>) -> Self {
        Self { x, width, stride: width, norm, gate: None, by_output: false, multiple: 1 }
    }
}

/// Lowers one program.
pub(crate) struct Lowering<'a> {
    device: &'a str,
    context: &'a mut Context,
    shaders: &'a mut Shaders,
    resources: &'a Resources,
    program: &'a Program,
    workspace: &'a mut Workspace,
    dispatches: Vec<Dispatch>,
    constants: Vec<u8>,
    /// The program's struct.
    head: Address,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        device: &'a str,
        (context, shaders): (&'a mut Context, &'a mut Shaders),
        resources: &'a Resources,
        program: &'a Program,
        workspace: &'a mut Workspace,
    ) -> Self {
        Self {
            device,
            context,
            shaders,
            resources,
            program,
            workspace,
            dispatches: Vec::new(),
            constants: Vec::new(),
            head: 0,
        }
    }
}

impl Lowering<'_> {
    /// Lowers the program.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] and [`DeviceError::Unsupported`] name the program, the op and the
    /// problem.
    pub(crate) fn run(mut self) -> Result<Lowered, DeviceError> {
        self.check_blocks()?;
        self.workspace.begin();
        let shared = self.shared()?;
        self.head = self.constant(&shared);
        for (i, op) in self.program.ops.iter().enumerate() {
            self.op(op).map_err(|error| match error {
                DeviceError::Invalid(why) => {
                    DeviceError::Invalid(format!("program {}, op {i}: {why}", self.program.name))
                }
                other => other,
            })?;
        }
        let clock = if self.workspace.is_placed() { self.context.clock()? } else { None };
        self.finish(clock)?;
        let offset = self.workspace.end(self.constants.len());
        let Self { dispatches, constants, .. } = self;
        Ok(Lowered { dispatches, clock, constants, offset })
    }

    fn op(&mut self, op: &Op) -> Result<(), DeviceError> {
        match op {
            Op::Embed(op) => self.embed(op),
            Op::Qkv(op) => self.qkv(op),
            Op::Attention(op) => self.attention(op),
            Op::Project(op) => self.project(op),
            Op::GateUp(op) => self.gate_up(op),
            Op::ShortConv(op) => self.short_conv(op),
            Op::Gate(op) => self.gate(op),
            Op::Experts(op) => self.experts(op),
            Op::LayerInputs(op) => self.layer_inputs(op),
            Op::GateInput(op) => self.gate_input(op),
            Op::Head(op) => self.head(op),
            Op::Hidden(op) => self.hidden(op),
            Op::Sample => self.sample(),
            Op::DeltaNet(op) => self.delta_net(op),
        }
    }

    fn unsupported(&self, what: String) -> DeviceError {
        DeviceError::Unsupported { device: self.device.to_owned(), what }
    }

    /// Checks that the blocks are as large as the shaders require.
    fn check_blocks(&self) -> Result<(), DeviceError> {
        let (program, layout) = (self.program, &self.program.layout);
        let numbers = u64::from(program.max_outputs) * u64::from(program.vocab);
        let logits = usize::try_from(numbers * 4).unwrap_or(usize::MAX);
        for (what, buffer, bytes) in [
            ("step block", program.step, layout.bytes()),
            ("result block", program.results, layout.result_bytes()),
            ("logits", program.logits, logits),
        ] {
            if self.resources.buffer(buffer)?.bytes() < bytes {
                let why = format!("{what} below {bytes} bytes ({})", program.name);
                return Err(DeviceError::Invalid(why));
            }
        }
        if program.max_rows == 0
            || program.max_rows > layout.max_rows
            || program.max_outputs > layout.max_outputs.min(program.max_rows)
            || program.vocab == 0
        {
            let (outputs, rows) = (program.max_outputs, program.max_rows);
            let why =
                format!("{outputs} outputs of {rows} rows, or no vocabulary ({})", program.name);
            return Err(DeviceError::Invalid(why));
        }
        Ok(())
    }

    fn shared(&self) -> Result<params::ProgramParams, DeviceError> {
        let layout = &self.program.layout;
        let step = self.resources.buffer(self.program.step)?.address();
        let cache = self.resources.cache(self.program.cache)?;
        let at = |offset: usize| step + offset as u64;
        Ok(params::ProgramParams {
            step,
            rows: at(layout.rows_offset()),
            outputs: at(layout.outputs_offset()),
            biases: at(layout.biases_offset()),
            tables: at(layout.tables_offset()),
            last_sampled: cache.last_sampled.address(),
            recent: cache.recent.address(),
            pages_per_sequence: layout.pages_per_sequence,
            page_tokens: cache.desc.page_tokens,
        })
    }

    /// Stores a struct that dispatches refer to. Returns its address.
    fn constant<P: Pod>(&mut self, value: &P) -> Address {
        self.constants_of(bytemuck::bytes_of(value))
    }

    fn constants_of(&mut self, bytes: &[u8]) -> Address {
        let offset = self.constants.len().next_multiple_of(16);
        self.constants.resize(offset, 0);
        self.constants.extend(bytes);
        self.workspace.constants() + offset as u64
    }

    fn dispatch<P: Pod>(
        &mut self,
        shader: &str,
        groups: [u32; 3],
        push: &P,
    ) -> Result<(), DeviceError> {
        let pipeline = self.shaders.get(self.context, shader)?;
        let push = bytemuck::bytes_of(push).to_vec();
        self.dispatches.push(Dispatch { pipeline, groups, push });
        Ok(())
    }

    fn slot(&self, slot: Slot) -> Result<(Address, u32), DeviceError> {
        let index = slot.0 as usize;
        let desc = self.program.slots.get(index).ok_or_else(|| unknown(&slot))?;
        Ok((self.workspace.slot(index), desc.width))
    }

    fn vector(&self, what: &str, vector: VectorId, len: u32) -> Result<Address, DeviceError> {
        let vector = self.resources.vector(vector)?;
        same(what, vector.len, len)?;
        Ok(vector.memory.address())
    }

    fn norm(&self, norm: Option<Norm>, width: u32) -> Result<(Address, f32), DeviceError> {
        norm.map_or(Ok((0, 0.0)), |norm| Ok((self.vector("norm", norm.weight, width)?, norm.eps)))
    }

    /// Rows of f32 numbers, for the widest use of an area.
    fn area(&mut self, area: Area, width: u32) -> Address {
        self.workspace.at(area, 4 * self.program.max_rows as usize * width as usize)
    }

    fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError> {
        let matrix = self.resources.matrix(op.table)?;
        let (x, width) = self.slot(op.x)?;
        if !matrix.usage.gather {
            return Err(DeviceError::Invalid(format!("{} is not to be looked up", matrix.name)));
        }
        same("columns of the table", matrix.cols, width)?;
        let [factors, scales] = factors(matrix);
        let push = params::Embed {
            program: self.head,
            weights: matrix.weights.address(),
            factors,
            scales,
            x,
            kind: matrix.kind as u32,
            vocab: matrix.rows,
            width,
            scale: op.scale,
        };
        self.dispatch("embed", [self.program.max_rows, 1, 1], &push)
    }

    /// Packs rows for products with these matrices.
    fn pack(&mut self, source: &Source, matrices: &[MatrixId]) -> Result<Input, DeviceError> {
        let Source { x, width, stride, norm, gate, by_output, multiple } = *source;
        let (mut is_packed, mut is_plain) = (false, false);
        for matrix in matrices {
            let is_quantized = self.resources.matrix(*matrix)?.kind.is_quantized();
            is_packed |= is_quantized;
            is_plain |= !is_quantized;
        }
        let blocks = width / BLOCK as u32;
        let mut area = |is_needed: bool, area: Area, words: u32| match is_needed {
            true => self.area(area, words * multiple),
            false => 0,
        };
        let words = area(is_packed, Area::Words, width.div_ceil(4));
        let factors = area(is_packed, Area::Factors, 2 * blocks);
        let plain = area(is_plain, Area::Plain, width);
        let (norm, eps) = self.norm(norm, width)?;
        let (gate, activation) = gate.map_or((0, 0), |(gate, its)| (gate, code(its)));
        let push = params::Pack {
            program: self.head,
            x,
            norm,
            gate,
            words,
            factors,
            plain,
            width,
            stride,
            activation,
            eps,
            by_output: u32::from(by_output),
            multiple,
        };
        let rows = if by_output { self.program.max_outputs } else { self.program.max_rows };
        self.dispatch("pack", [rows * multiple, 1, 1], &push)?;
        Ok(Input { words, factors, plain, width, by_output })
    }

    /// A product of packed rows.
    fn product(
        &mut self,
        linear: &Linear,
        input: &Input,
        target: &Target,
    ) -> Result<(), DeviceError> {
        let matrix = self.resources.matrix(linear.matrix)?;
        if !matrix.usage.multiply {
            return Err(DeviceError::Invalid(format!("{} is not to be multiplied", matrix.name)));
        }
        same("columns of a matrix", matrix.cols, input.width)?;
        let bias = match linear.bias {
            Some(bias) => self.vector("bias", bias, matrix.rows)?,
            None => 0,
        };
        let rows_of_x =
            if input.by_output { self.program.max_outputs } else { self.program.max_rows };
        let columns = match rows_of_x {
            1 => 1,
            2 => 2,
            3..=4 => 4,
            _ => 8,
        };
        let groups = [matrix.rows.div_ceil(PRODUCT_ROWS), rows_of_x.div_ceil(columns), 1];
        let Target { out, stride, adds } = *target;
        let (sum_scale, adds) = (adds.unwrap_or(1.0), u32::from(adds.is_some()));
        let by_output = u32::from(input.by_output);
        let (program, weights, rows) = (self.head, matrix.weights.address(), matrix.rows);
        if !matrix.kind.is_quantized() {
            let push = params::ProductFloat {
                program,
                weights,
                bias,
                x: input.plain,
                out,
                kind: matrix.kind as u32,
                rows,
                cols: matrix.cols,
                stride,
                adds,
                sum_scale,
                by_output,
                reserved: 0,
            };
            return self.dispatch(&format!("product_float COLUMNS={columns}"), groups, &push);
        }
        let [factors, scales] = factors(matrix);
        let push = params::Product {
            program,
            weights,
            factors,
            scales,
            bias,
            x: input.words,
            x_factors: input.factors,
            out,
            rows,
            blocks: matrix.cols / BLOCK as u32,
            stride,
            adds,
            sum_scale,
            by_output,
        };
        let dot = u32::from(self.context.gpu().has_dot_product);
        let shader = format!("product KIND=KIND_{:?} COLUMNS={columns} DOT={dot}", matrix.kind);
        self.dispatch(&shader, groups, &push)
    }

    fn rows_of(&self, matrix: MatrixId) -> Result<u32, DeviceError> {
        Ok(self.resources.matrix(matrix)?.rows)
    }

    fn qkv(&mut self, op: &op::Qkv) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (q, q_width) = self.slot(op.q)?;
        let HeadShape { heads, kv_heads, head_dim } = op.shape;
        same("query slot", q_width, heads.saturating_mul(head_dim))?;
        same("rows of the query matrix", self.rows_of(op.query.matrix)?, q_width)?;
        let mut matrices = vec![op.query.matrix];
        let kv_width = kv_heads.saturating_mul(head_dim);
        if let Some(keys) = &op.keys {
            for linear in [keys.key, keys.value] {
                same("rows of a key or value matrix", self.rows_of(linear.matrix)?, kv_width)?;
                matrices.push(linear.matrix);
            }
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let input = self.pack(&source, &matrices)?;
        let stride = q_width + op.keys.map_or(0, |_| 2 * kv_width);
        let products = self.area(Area::Products, stride);
        let target =
            |first: u32| Target { out: products + u64::from(first) * 4, stride, adds: None };
        self.product(&op.query, &input, &target(0))?;
        if let Some(keys) = &op.keys {
            self.product(&keys.key, &input, &target(q_width))?;
            self.product(&keys.value, &input, &target(q_width + kv_width))?;
        }
        let kv = self.kv(op.layer, op.shape)?;
        let (key_norm, value_norm) =
            op.keys.as_ref().map_or((None, None), |keys| (keys.key_norm, keys.value_norm));
        let (query_norm, query_eps) = self.norm(op.query_norm, head_dim)?;
        let (key_norm, key_eps) = self.norm(key_norm, head_dim)?;
        let (value_norm, value_eps) = self.norm(value_norm, head_dim)?;
        let mut head = params::HeadParams {
            kv,
            query_norm,
            key_norm,
            value_norm,
            query_eps,
            key_eps,
            value_eps,
            heads,
            ..bytemuck::Zeroable::zeroed()
        };
        if let Some(rope) = op.rope {
            let rope = self.resources.rope(rope)?;
            if 2 * rope.pairs_count > head_dim {
                return Err(DeviceError::Invalid(format!("a rope beyond heads of {head_dim}")));
            }
            head.frequencies = rope.frequencies.address();
            head.pairs = rope.pairs_count;
            head.magnitude = rope.magnitude;
            head.interleaved = u32::from(rope.pairs == RopePairs::Interleaved);
        }
        let head = self.constant(&head);
        let push = params::Append { program: self.head, head, products, q, stride, reserved: 0 };
        let appended = op.keys.map_or(0, |_| 2 * kv_heads);
        self.dispatch("append", [self.program.max_rows, heads + appended, 1], &push)
    }

    /// A layer of the cache.
    fn kv(&self, layer: u32, shape: HeadShape) -> Result<params::KvParams, DeviceError> {
        let cache = self.resources.cache(self.program.cache)?;
        let HeadShape { heads, kv_heads, head_dim } = shape;
        let is_its = |its: &CacheLayer| {
            matches!(its, CacheLayer::Kv { kv_heads: heads, head_dim: dim, .. }
                if (*heads, *dim) == (kv_heads, head_dim))
        };
        let Some((_, memory)) = cache.layer(layer).filter(|(its, _)| is_its(its)) else {
            return Err(DeviceError::Invalid(format!(
                "layer {layer} of the cache has other heads"
            )));
        };
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(DeviceError::Invalid(format!("{heads} heads over {kv_heads}")));
        }
        if head_dim > HEAD_MAX {
            return Err(self.unsupported(format!("heads of {head_dim}")));
        }
        Ok(kv_params(&cache.desc, [kv_heads, head_dim], memory))
    }

    fn attention(&mut self, op: &op::Attention) -> Result<(), DeviceError> {
        let growth = op.position_scale.filter(|its| !its.is_one_within(self.program.max_context));
        let HeadShape { heads, kv_heads, head_dim } = op.shape;
        let (q, q_width) = self.slot(op.q)?;
        let (out, out_width) = self.slot(op.out)?;
        same("query slot", q_width, heads.saturating_mul(head_dim))?;
        same("output slot", out_width, q_width)?;
        let kv = self.kv(op.layer, op.shape)?;
        let kv = self.constant(&kv);
        let rows = self.program.max_rows;
        let spans = self.program.max_context.div_ceil(SPAN).max(1);
        let partials = match spans {
            1 => 0,
            _ => self.area(Area::Partials, heads * spans * (head_dim + 2)),
        };
        let (program, window) = (self.head, op.window.unwrap_or(0));
        let groups = kv_heads * (heads / kv_heads).div_ceil(HEADS);
        let push = params::Attention {
            program,
            kv,
            q,
            out,
            partials,
            heads,
            window,
            scale: op.scale,
            spans,
            slope: growth.map_or(0.0, |its| its.slope),
            period: growth.map_or(0, |its| its.period_tokens),
        };
        self.dispatch("attention", [rows, groups, spans], &push)?;
        if spans == 1 {
            return Ok(());
        }
        let dim = head_dim;
        let push = params::AttentionSum { program, partials, out, heads, dim, window, spans };
        self.dispatch("attention_sum", [rows, heads, 1], &push)
    }

    fn project(&mut self, op: &op::Project) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (y, y_width) = self.slot(op.y)?;
        same("rows of a matrix", self.rows_of(op.linear.matrix)?, width)?;
        let source = Source::of(y, y_width, None);
        let input = self.pack(&source, &[op.linear.matrix])?;
        self.added(op, &input, (x, width))
    }

    /// The product and the sum of a projection.
    fn added(
        &mut self,
        op: &op::Project,
        input: &Input,
        (x, width): (Address, u32),
    ) -> Result<(), DeviceError> {
        let Some(norm) = op.post_norm else {
            let target = Target { out: x, stride: width, adds: Some(op.scale) };
            return self.product(&op.linear, input, &target);
        };
        let y = self.area(Area::Products, width);
        self.product(&op.linear, input, &Target { out: y, stride: width, adds: None })?;
        let (norm, eps) = self.norm(Some(norm), width)?;
        let push = params::AddNorm {
            program: self.head,
            y,
            norm,
            x,
            width,
            eps,
            scale: op.scale,
            reserved: 0,
        };
        self.dispatch("add_norm", [self.program.max_rows, 1, 1], &push)
    }

    fn gate_up(&mut self, op: &op::GateUp) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (h, hidden) = self.slot(op.h)?;
        for linear in [&op.gate, &op.up] {
            same("rows of a matrix", self.rows_of(linear.matrix)?, hidden)?;
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let input = self.pack(&source, &[op.gate.matrix, op.up.matrix])?;
        let gate = self.area(Area::Products, hidden);
        let target = |out| Target { out, stride: hidden, adds: None };
        self.product(&op.gate, &input, &target(gate))?;
        self.product(&op.up, &input, &target(h))?;
        let push = params::Pack {
            program: self.head,
            x: h,
            norm: 0,
            gate,
            words: 0,
            factors: 0,
            plain: h,
            width: hidden,
            stride: hidden,
            activation: code(op.activation),
            eps: 0.0,
            by_output: 0,
            multiple: 1,
        };
        self.dispatch("pack", [self.program.max_rows, 1, 1], &push)
    }

    fn short_conv(&mut self, op: &op::ShortConv) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (out, out_width) = self.slot(op.out)?;
        same("output slot", out_width, width)?;
        let kernel = self.vector("kernel", op.kernel, width.saturating_mul(op.taps))?;
        let wanted = CacheLayer::ShortConv { width, taps: op.taps };
        let cache = self.resources.cache(self.program.cache)?;
        let state = match cache.layer(op.layer) {
            Some((its, [state])) if *its == wanted => state.address(),
            _ => return Err(DeviceError::Invalid(format!("layer {} of the cache", op.layer))),
        };
        if op.taps > TAPS_MAX {
            return Err(self.unsupported(format!("convolutions of {} taps", op.taps)));
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let matrices = op.input.map(|linear| linear.matrix);
        let input = self.pack(&source, &matrices)?;
        let stride = 3 * width;
        let products = self.area(Area::Products, stride);
        for (first, linear) in (0..).zip(&op.input) {
            same("rows of a matrix", self.rows_of(linear.matrix)?, width)?;
            let out = products + u64::from(first * width) * 4;
            self.product(linear, &input, &Target { out, stride, adds: None })?;
        }
        let (program, taps) = (self.head, op.taps);
        let push = params::ShortConv { program, products, kernel, state, out, width, taps };
        let groups = [width.div_ceil(128), self.program.max_rows, 1];
        self.dispatch("short_conv STATE=0", groups, &push)?;
        self.dispatch("short_conv STATE=1", groups, &push)
    }

    fn head(&mut self, op: &op::Head) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let vocab = self.program.vocab;
        same("rows of the head", self.rows_of(op.linear.matrix)?, vocab)?;
        let norm = Some(op.norm);
        let source = Source { by_output: true, ..Source::of(x, width, norm) };
        let input = self.pack(&source, &[op.linear.matrix])?;
        let logits = self.resources.buffer(self.program.logits)?.address();
        self.product(&op.linear, &input, &Target { out: logits, stride: vocab, adds: None })?;
        if op.soft_cap.is_none() && op.suppressed.is_empty() {
            return Ok(());
        }
        let cap = op.soft_cap.unwrap_or(0.0);
        if !cap.is_finite() || op.soft_cap.is_some_and(|cap| cap <= 0.0) {
            return Err(DeviceError::Invalid(format!("a cap of {cap}")));
        }
        let push = params::BoundLogits {
            program: self.head,
            logits,
            suppressed: self.constants_of(bytemuck::cast_slice(&op.suppressed)),
            vocab,
            count: op.suppressed.len() as u32,
            cap,
            reserved: 0,
        };
        let groups = [vocab.div_ceil(CHUNK), self.program.max_outputs, 1];
        self.dispatch("bound_logits", groups, &push)
    }

    fn gate(&mut self, op: &op::Gate) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (y, gated) = self.slot(op.y)?;
        let rows = self.rows_of(op.linear.matrix)?;
        if rows != 1 {
            same("rows of a gate", rows, gated)?;
        }
        let norm = Some(op.norm);
        let source = Source::of(x, width, norm);
        let input = self.pack(&source, &[op.linear.matrix])?;
        let gate = self.area(Area::Products, rows);
        self.product(&op.linear, &input, &Target { out: gate, stride: rows, adds: None })?;
        self.gate_rows((gate, rows), (y, gated), (y, gated), op.activation)
    }

    /// `out = activation(gate) * input`, with the width of `out`. Pairs are addresses and strides.
    fn gate_rows(
        &mut self,
        (gate, gate_stride): (Address, u32),
        (input, input_stride): (Address, u32),
        (out, width): (Address, u32),
        activation: Activation,
    ) -> Result<(), DeviceError> {
        let push = params::GateRows {
            program: self.head,
            gate,
            input,
            out,
            width,
            gate_stride,
            gate_step: u32::from(gate_stride != 1),
            input_stride,
            activation: code(activation),
            reserved: 0,
        };
        self.dispatch("gate_rows", [width.div_ceil(128), self.program.max_rows, 1], &push)
    }

    fn experts(&mut self, op: &op::Experts) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (experts, used) = (self.rows_of(op.router)?, op.used);
        if experts > MAX_EXPERTS || used == 0 || used > experts.min(MAX_USED) {
            return Err(self.unsupported(format!("{used} of {experts} experts")));
        }
        let hidden = self.rows_of(op.gate)? / experts;
        for (what, matrix, rows) in [
            ("rows of the gates", op.gate, experts.saturating_mul(hidden)),
            ("rows of the second gate", op.up, experts.saturating_mul(hidden)),
            ("rows of the results", op.down, experts.saturating_mul(width)),
        ] {
            same(what, self.rows_of(matrix)?, rows)?;
        }
        let source = Source::of(x, width, Some(op.norm));
        let input = self.pack(&source, &[op.router, op.gate, op.up])?;
        let router = Linear { matrix: op.router, bias: None };
        let products = self.area(Area::Products, experts);
        self.product(&router, &input, &Target { out: products, stride: experts, adds: None })?;
        let choices = self.area(Area::Choices, 2 * used);
        let bias = match op.selection_bias {
            Some(bias) => self.vector("selection bias", bias, experts)?,
            None => 0,
        };
        let push = params::ExpertsChoose {
            program: self.head,
            products,
            bias,
            choices,
            experts,
            used,
            is_sigmoid: u32::from(op.score == ExpertScore::Sigmoid),
            reserved: 0,
        };
        self.dispatch("experts_choose", [self.program.max_rows, 1, 1], &push)?;
        let gate = self.area(Area::ExpertsGate, used * hidden.max(width));
        let up = self.area(Area::ExpertsUp, used * hidden);
        let choice = (choices, used);
        self.experts_product(op.gate, &input, choice, used, (gate, hidden))?;
        self.experts_product(op.up, &input, choice, used, (up, hidden))?;
        let source = Source {
            gate: Some((gate, op.activation)),
            multiple: used,
            ..Source::of(up, hidden, None)
        };
        let input = self.pack(&source, &[op.down])?;
        // The gates are packed.
        self.experts_product(op.down, &input, choice, 1, (gate, width))?;
        let push = params::ExpertsAdd { program: self.head, choices, y: gate, x, width, used };
        self.dispatch("experts_add", [width.div_ceil(128), self.program.max_rows, 1], &push)
    }

    /// Products of the chosen experts' matrices. `each`: choices that share a row of the input.
    fn experts_product(
        &mut self,
        matrix: MatrixId,
        input: &Input,
        (choices, used): (Address, u32),
        each: u32,
        (out, rows): (Address, u32),
    ) -> Result<(), DeviceError> {
        let matrix = self.resources.matrix(matrix)?;
        same("columns of a matrix", matrix.cols, input.width)?;
        if !matrix.usage.multiply {
            return Err(DeviceError::Invalid(format!("{} is not to be multiplied", matrix.name)));
        }
        let [factors, scales] = factors(matrix);
        let is_quantized = matrix.kind.is_quantized();
        let push = params::ExpertsProduct {
            program: self.head,
            choices,
            weights: matrix.weights.address(),
            factors,
            scales,
            x: if is_quantized { input.words } else { input.plain },
            x_factors: input.factors,
            out,
            kind: matrix.kind as u32,
            rows,
            cols: matrix.cols,
            used,
            each,
            reserved: 0,
        };
        let dot = u32::from(self.context.gpu().has_dot_product);
        let kind = if is_quantized { matrix.kind } else { Kind::F32 };
        let shader = format!("experts_product KIND=KIND_{kind:?} DOT={dot}");
        let groups = [rows.div_ceil(PRODUCT_ROWS), self.program.max_rows * used, 1];
        self.dispatch(&shader, groups, &push)
    }

    fn delta_net(&mut self, op: &op::DeltaNet) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (out, out_width) = self.slot(op.out)?;
        let shape = op.shape;
        let (channels, heads) = (shape.channels(), shape.value_heads);
        same("output slot", out_width, shape.values())?;
        let cache = self.resources.cache(self.program.cache)?;
        let state = match cache.layer(op.layer) {
            Some((CacheLayer::DeltaNet(its), [state])) if *its == shape => state.address(),
            _ => return Err(DeviceError::Invalid(format!("layer {} of the cache", op.layer))),
        };
        let state_numbers = delta_numbers(shape).unwrap_or_default();
        let linears = [&op.input, &op.alpha, &op.beta];
        let source = Source::of(x, width, Some(op.norm));
        let input = self.pack(&source, &linears.map(|linear| linear.matrix))?;
        let stride = channels + 2 * heads;
        let products = self.area(Area::Products, stride);
        let mut first = 0;
        for (linear, rows) in linears.into_iter().zip([channels, heads, heads]) {
            same("rows of a matrix", self.rows_of(linear.matrix)?, rows)?;
            let out = products + u64::from(first) * 4;
            self.product(linear, &input, &Target { out, stride, adds: None })?;
            first += rows;
        }
        let convolved = self.area(Area::Convolved, channels);
        let (program, max_rows) = (self.head, self.program.max_rows);
        let push = params::DeltaConv {
            program,
            products,
            kernel: self.vector("kernel", op.kernel, channels.saturating_mul(shape.taps))?,
            state,
            out: convolved,
            channels,
            stride,
            taps: shape.taps,
            state_numbers,
            inputs: shape.values() * shape.head_dim,
            reserved: 0,
        };
        let groups = [channels.div_ceil(128), max_rows, 1];
        self.dispatch("delta_conv STATE=0", groups, &push)?;
        self.dispatch("delta_conv STATE=1", groups, &push)?;
        let push = params::DeltaRule {
            program,
            convolved,
            products,
            decay: self.vector("decays", op.decay, heads)?,
            step_bias: self.vector("step biases", op.step_bias, heads)?,
            state,
            out,
            key_heads: shape.key_heads,
            value_heads: heads,
            head_dim: shape.head_dim,
            stride,
            alpha: channels,
            state_numbers,
            eps: op.eps,
            reserved: 0,
        };
        let strips = shape.head_dim.div_ceil(DELTA_COLUMNS);
        self.dispatch("delta_rule", [max_rows, heads, strips], &push)?;
        let push = params::HeadNorm {
            program,
            x: out,
            weight: self.vector("head norm", op.head_norm.weight, shape.head_dim)?,
            heads,
            dim: shape.head_dim,
            eps: op.head_norm.eps,
            reserved: 0,
        };
        self.dispatch("head_norm", [max_rows, heads, 1], &push)
    }

    fn layer_inputs(&mut self, op: &op::LayerInputs) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (e, numbers) = self.slot(op.e)?;
        let part = self.resources.vector(op.norm.weight)?.len;
        if part == 0 || !numbers.is_multiple_of(part) {
            return Err(DeviceError::Invalid(format!("{numbers} inputs in parts of {part}")));
        }
        same("rows of the projection", self.rows_of(op.projection.matrix)?, numbers)?;
        let source = Source::of(x, width, None);
        let input = self.pack(&source, &[op.projection.matrix])?;
        let products = self.area(Area::Products, numbers);
        let target = Target { out: products, stride: numbers, adds: None };
        self.product(&op.projection, &input, &target)?;
        let table = self.resources.matrix(op.table)?;
        same("columns of the table", table.cols, numbers)?;
        let whole = if table.kind.is_quantized() { BLOCK as u32 } else { 2 };
        if !table.usage.gather || !part.is_multiple_of(whole) {
            return Err(self.unsupported(format!("{} in parts of {part}", table.name)));
        }
        let [factors, scales] = factors(table);
        let layers = numbers / part;
        let push = params::LayerInputs {
            program: self.head,
            products,
            norm: self.vector("norm", op.norm.weight, part)?,
            weights: table.weights.address(),
            factors,
            scales,
            e,
            kind: table.kind as u32,
            vocab: table.rows,
            width: part,
            layers,
            eps: op.norm.eps,
            table_scale: op.table_scale,
        };
        self.dispatch("layer_inputs", [self.program.max_rows, layers, 1], &push)
    }

    fn gate_input(&mut self, op: &op::GateInput) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (h, gated) = self.slot(op.h)?;
        let (e, numbers) = self.slot(op.e)?;
        same("rows of a gate", self.rows_of(op.linear.matrix)?, gated)?;
        if op.first.checked_add(gated).is_none_or(|end| end > numbers) {
            let why = format!("{gated} inputs from {} on, of {numbers}", op.first);
            return Err(DeviceError::Invalid(why));
        }
        let source = Source::of(x, width, None);
        let input = self.pack(&source, &[op.linear.matrix])?;
        let gate = self.area(Area::Products, gated);
        self.product(&op.linear, &input, &Target { out: gate, stride: gated, adds: None })?;
        let inputs = e + u64::from(op.first) * 4;
        self.gate_rows((gate, gated), (inputs, numbers), (h, gated), op.activation)
    }

    fn hidden(&mut self, op: &op::Hidden) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        same("elements of a result", self.program.vocab, width)?;
        let (norm, eps) = self.norm(Some(op.norm), width)?;
        let plain = self.resources.buffer(self.program.logits)?.address();
        let push = params::Pack {
            program: self.head,
            x,
            norm,
            gate: 0,
            words: 0,
            factors: 0,
            plain,
            width,
            stride: width,
            activation: 0,
            eps,
            by_output: 1,
            multiple: 1,
        };
        self.dispatch("pack", [self.program.max_outputs, 1, 1], &push)
    }

    fn sample(&mut self) -> Result<(), DeviceError> {
        let (layout, vocab) = (&self.program.layout, self.program.vocab);
        let outputs = self.program.max_outputs as usize;
        let chunks = vocab.div_ceil(CHUNK);
        if vocab > MAX_VOCAB {
            return Err(self.unsupported(format!("a vocabulary of {vocab} tokens")));
        }
        let masks = match self.program.masks {
            Some(masks) => self.resources.buffer(masks)?.address(),
            None => 0,
        };
        let of_chunks = outputs * chunks as usize;
        let likely = of_chunks * MAX_CANDIDATES as usize * CANDIDATE_BYTES;
        let params = params::SampleParams {
            logits: self.resources.buffer(self.program.logits)?.address(),
            scores: self.workspace.at(Area::SampleScores, outputs * vocab as usize * 4),
            stats: self.workspace.at(Area::SampleStats, of_chunks * CHUNK_STATS_BYTES),
            likely: self.workspace.at(Area::SampleLikely, likely),
            bins: self.workspace.at(Area::SampleBins, outputs * BINS_BYTES),
            masks,
            results: self.resources.buffer(self.program.results)?.address(),
            block_words: (layout.result_bytes() / 4) as u32,
            rows_words: (layout.result_rows_offset() / 4) as u32,
            candidates_words: (layout.candidates_offset() / 4) as u32,
            vocab,
            chunks,
            mask_words: mask_words(vocab) as u32,
        };
        let sample = self.constant(&params);
        let outputs = self.program.max_outputs;
        for (shader, chunks, cut) in [
            ("sample_scan", chunks, 0),
            ("sample_bins", chunks, 0),
            ("sample_list", chunks, 0),
            ("sample_limit", 1, 0),
            ("sample_list", chunks, 1),
            ("sample_limit", 1, 1),
            ("sample_choose", chunks, 0),
            ("sample_draw", 1, 0),
        ] {
            let push = params::SamplePush { program: self.head, sample, cut, reserved: 0 };
            self.dispatch(shader, [chunks, outputs, 1], &push)?;
        }
        Ok(())
    }

    fn finish(&mut self, clock: Option<Clock>) -> Result<(), DeviceError> {
        let push = params::Finish {
            program: self.head,
            results: self.resources.buffer(self.program.results)?.address(),
            timestamps: clock.map_or(0, |clock| clock.memory.address()),
            block_words: (self.program.layout.result_bytes() / 4) as u32,
            nanos: (self.context.gpu().timestamp_nanos * 65_536.0) as u32,
        };
        self.dispatch("finish", [1, 1, 1], &push)
    }
}

/// Factors of blocks and of rows; zeros of a matrix of floats.
fn factors(matrix: &Matrix) -> [Address; 2] {
    matrix.factors.as_ref().map_or([0; 2], |both| both.map(|memory| memory.address()))
}

/// Code of an activation in `kernels/vulkan/common.slang`.
fn code(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::Sigmoid => 2,
    }
}

fn same(what: &str, found: u32, wanted: u32) -> Result<(), DeviceError> {
    if found == wanted {
        return Ok(());
    }
    Err(DeviceError::Invalid(format!("{what} is {found}, expected {wanted}")))
}
