//! Lowers programs to dispatches: selects shaders, grids and addresses. It runs nothing.

mod attention;
mod experts;
mod gates;
mod output;
mod products;
mod recurrent;
mod workspace;

use bytemuck::Pod;
use walla_device::{DeviceError, Linear, MatrixId, Norm, Op, Program, Slot, VectorId, op};
use walla_types::Activation;

use crate::driver::{Clock, Context, Dispatch};
use crate::params::{self, Address};
use crate::repack::{BLOCK, positions};
use crate::resources::{Resources, unknown};
use crate::shaders::Shaders;

use self::products::{FLAG_ACTIVATION, PRODUCT_ROWS, Target};
use self::workspace::Area;
pub(crate) use self::workspace::Workspace;

/// Workgroups of a row of `pack` have this many numbers.
const PACK_NUMBERS: u32 = 512;
/// Largest row that products pack themselves (`NORM_MAX`).
const NORM_MAX: u32 = 8192;
/// Matrices with more rows would pack it too often.
const NORM_ROWS_MAX: u32 = 1 << 15;
/// Rows of x of the largest workgroup of matrix units.
const TILE_ROWS: usize = 32;

/// A lowered program.
pub(crate) struct Lowered {
    pub(crate) dispatches: Vec<Dispatch>,
    /// Index of the op, and shader, of each.
    pub(crate) shaders: Vec<(usize, String)>,
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
    /// One row that products pack themselves, in place of the packed one.
    norm: Option<RawRow>,
}

impl Input {
    fn blocks(&self) -> u32 {
        self.width / BLOCK as u32
    }
}

/// A row of f32 numbers and its norm.
#[derive(Clone, Copy, Debug)]
struct RawRow {
    x: Address,
    weight: Address,
    eps: f32,
}

/// Rows that a product or attention writes as the input of the next op's product.
#[derive(Clone, Copy, Debug)]
struct Packed {
    /// The slot of the rows.
    slot: Slot,
    input: Input,
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
    /// Products may pack a single row themselves.
    by_products: bool,
}

impl Source {
    /// Rows of a slot or an area.
    fn of(x: Address, width: u32, norm: Option<Norm>) -> Self {
        Self {
            x,
            width,
            stride: width,
            norm,
            gate: None,
            by_output: false,
            multiple: 1,
            by_products: true,
        }
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
    names: Vec<(usize, String)>,
    /// Index of the op.
    op: usize,
    /// Rows that the op before has packed for this one.
    packed: Option<Packed>,
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
            names: Vec::new(),
            op: 0,
            packed: None,
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
            self.op = i;
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
        let Self { dispatches, names, constants, .. } = self;
        Ok(Lowered { dispatches, shaders: names, clock, constants, offset })
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
            reserved: 0,
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
        self.specialized(shader, &[], groups, push)
    }

    /// A dispatch of a shader with values for its constants, in order.
    fn specialized<P: Pod>(
        &mut self,
        shader: &str,
        constants: &[u32],
        groups: [u32; 3],
        push: &P,
    ) -> Result<(), DeviceError> {
        let pipeline = self.shaders.get(self.context, shader, constants)?;
        let push = bytemuck::bytes_of(push).to_vec();
        self.names.push((self.op, shader.to_owned()));
        self.dispatches.push(Dispatch { pipeline, groups, push, waits: true });
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

    /// Rows of f32 numbers, for the widest use of an area; whole tiles of them, which matrix units
    /// read.
    fn area(&mut self, area: Area, width: u32) -> Address {
        let rows = self.program.max_rows as usize;
        self.workspace.at(area, 4 * rows.next_multiple_of(TILE_ROWS) * width as usize)
    }

    /// Areas for the words and factors of packed rows, `multiple` for each row of the step.
    fn packed_areas(&mut self, areas: [Area; 2], width: u32, multiple: u32) -> [Address; 2] {
        let blocks = positions(width as usize / BLOCK) as u32;
        let [words, factors] = areas;
        [self.area(words, 8 * blocks * multiple), self.area(factors, 2 * blocks * multiple)]
    }

    fn embed(&mut self, op: &op::Embed) -> Result<(), DeviceError> {
        let matrix = self.resources.matrix(op.table)?;
        let (x, width) = self.slot(op.x)?;
        if !matrix.usage.gather {
            return Err(DeviceError::Invalid(format!("{} is not to be looked up", matrix.name)));
        }
        same("columns of the table", matrix.cols, width)?;
        let [factors, scales] = matrix.factors();
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
        let Source { x, width, stride, norm, gate, by_output, multiple, by_products } = *source;
        let (mut is_packed, mut is_plain) = (false, false);
        for matrix in matrices {
            let is_quantized = self.resources.matrix(*matrix)?.kind.is_quantized();
            is_packed |= is_quantized;
            is_plain |= !is_quantized;
        }
        let rows = if by_output { self.program.max_outputs } else { self.program.max_rows };
        let heights = matrices.iter().map(|matrix| self.rows_of(*matrix));
        let is_small = heights.sum::<Result<u32, _>>()? <= NORM_ROWS_MAX;
        if let Some(norm) =
            norm.filter(|_| by_products && rows == 1 && !is_plain && width <= NORM_MAX && is_small)
        {
            let (weight, eps) = self.norm(Some(norm), width)?;
            let norm = Some(RawRow { x, weight, eps });
            return Ok(Input { words: 0, factors: 0, plain: 0, width, by_output, norm });
        }
        let [words, factors] = match is_packed {
            true => self.packed_areas([Area::Words, Area::Factors], width, multiple),
            false => [0; 2],
        };
        let plain = if is_plain { self.area(Area::Plain, width * multiple) } else { 0 };
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
        self.dispatch("pack", [rows * multiple, width.div_ceil(PACK_NUMBERS), 1], &push)?;
        Ok(Input { words, factors, plain, width, by_output, norm: None })
    }

    fn bias(&self, linear: &Linear, rows: u32) -> Result<Address, DeviceError> {
        linear.bias.map_or(Ok(0), |bias| self.vector("bias", bias, rows))
    }

    /// Areas for packed rows of a slot, if the next op's product is all that reads them.
    fn packed_for_next(&mut self, slot: Slot, width: u32) -> Option<Packed> {
        let Some(Op::Project(next)) = self.program.ops.get(self.op + 1) else { return None };
        let matrix = self.resources.matrix(next.linear.matrix).ok()?;
        let is_only = self.program.ops.iter().enumerate().all(|(index, op)| {
            !reads(op, slot)
                || matches!(op, Op::Project(_)) && index > 0 && {
                    writes(&self.program.ops[index - 1], slot)
                }
        });
        if next.y != slot || !matrix.kind.is_quantized() || !is_only || !width.is_multiple_of(32) {
            return None;
        }
        let [words, factors] = self.packed_areas([Area::OutWords, Area::OutFactors], width, 1);
        let input = Input { words, factors, plain: 0, width, by_output: false, norm: None };
        self.packed = Some(Packed { slot, input });
        self.packed
    }

    fn rows_of(&self, matrix: MatrixId) -> Result<u32, DeviceError> {
        Ok(self.resources.matrix(matrix)?.rows)
    }

    fn project(&mut self, op: &op::Project) -> Result<(), DeviceError> {
        let (x, width) = self.slot(op.x)?;
        let (y, y_width) = self.slot(op.y)?;
        same("rows of a matrix", self.rows_of(op.linear.matrix)?, width)?;
        let input = match self.packed.take().filter(|its| its.slot == op.y) {
            Some(packed) => packed.input,
            None => self.pack(&Source::of(y, y_width, None), &[op.linear.matrix])?,
        };
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

/// Whether an op reads a slot that it does not write.
fn reads(op: &Op, slot: Slot) -> bool {
    let read = match op {
        Op::Embed(_) | Op::Sample => [None; 2],
        Op::Qkv(op) => [Some(op.x), None],
        Op::Attention(op) => [Some(op.q), None],
        Op::Project(op) => [Some(op.y), Some(op.x)],
        Op::GateUp(op) => [Some(op.x), None],
        Op::ShortConv(op) => [Some(op.x), None],
        Op::Gate(op) => [Some(op.x), Some(op.y)],
        Op::Experts(op) => [Some(op.x), None],
        Op::LayerInputs(op) => [Some(op.x), None],
        Op::GateInput(op) => [Some(op.x), Some(op.e)],
        Op::Head(op) => [Some(op.x), None],
        Op::Hidden(op) => [Some(op.x), None],
        Op::DeltaNet(op) => [Some(op.x), None],
    };
    read.contains(&Some(slot))
}

/// Whether an op fills a slot that the next op projects.
fn writes(op: &Op, slot: Slot) -> bool {
    match op {
        Op::Attention(op) => op.out == slot,
        Op::GateUp(op) => op.h == slot,
        _ => false,
    }
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
