//! Lowers programs to kernel launches: selects kernels, grids and addresses. It runs nothing:
//! [`enqueue`](crate::enqueue::enqueue) does.

mod attention;
mod attention_tiling;
mod deferred_splits;
mod delta_net;
mod experts;
mod gate_rows;
mod gemm_sm90;
mod kernel;
mod layer_inputs;
mod linear;
mod operands;
mod order;
mod packed_rows;
mod product;
mod sample;
mod tiling;
mod workspace;

use bytemuck::Pod;
use walla_device::{DeviceError, Norm, Op, OpKind, Program, Slot, VectorId};

pub(crate) use self::delta_net::DeltaState;
use self::gate_rows::Ungated;
pub(crate) use self::kernel::WARPGROUP_KERNELS;
use self::operands::Normed;
use self::product::on_tensor_cores;
use self::workspace::Area;
pub(crate) use self::workspace::Workspace;
use crate::driver::{Context, Launch};
use crate::kernels::Kernels;
use crate::params::{Address, DeferredSplits, HeadRef, PackedRef, ResultRef, StepRef, StepRingRef};
use crate::resources::{Resources, unknown};
use crate::step_ring::STEP_RING_THREADS;

/// Lowers one program.
pub(crate) struct Lowering<'a> {
    device: &'a str,
    context: &'a Context,
    kernels: &'a mut Kernels,
    resources: &'a Resources,
    program: &'a Program,
    launches: Vec<Launch>,
    workspace: &'a mut Workspace,
    /// The slot that the latest kernels wrote packed instead of plain, and its packed rows.
    packed: Option<(Slot, PackedRef)>,
    /// The rows that are packed as a norm's input.
    normed: Option<Normed>,
    /// Which of the two buffers holds the factors of the last norm.
    factors: bool,
    /// Set if the next attention finishes query, key and value from the products itself: their
    /// slot, the products, and how to finish them.
    unappended: Option<(Slot, Address, HeadRef, DeferredSplits)>,
    /// Set if the next op is the gate of a mixer's result that is not finished.
    ungated: Option<Ungated>,
    /// Use WGMMA kernels for more than 8 rows of x, or 5 and more if K > 3,072 and there are more
    /// tiles than multiprocessors.
    warpgroups: bool,
}

/// Whether there are kernels for ops of this kind.
pub(crate) fn runs(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Experts
            | OpKind::DeltaNet
            | OpKind::Gate
            | OpKind::LayerInputs
            | OpKind::SharedKeys
            | OpKind::ValueNorm
            | OpKind::ScaledSum
            | OpKind::BoundedLogits
    )
}

impl<'a> Lowering<'a> {
    /// Lowers with the addresses of a workspace, whose areas grow to the sizes that are used.
    pub(crate) fn new(
        device: &'a str,
        context: &'a Context,
        kernels: &'a mut Kernels,
        resources: &'a Resources,
        program: &'a Program,
        workspace: &'a mut Workspace,
        warpgroups: bool,
    ) -> Self {
        Self {
            device,
            context,
            kernels,
            resources,
            program,
            launches: Vec::new(),
            workspace,
            packed: None,
            normed: None,
            factors: false,
            unappended: None,
            ungated: None,
            warpgroups,
        }
    }
}

impl Lowering<'_> {
    /// Lowers the program.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] and [`DeviceError::Unsupported`] name the program, the op and the
    /// problem.
    pub(crate) fn launches(mut self) -> Result<Vec<Launch>, DeviceError> {
        self.check_blocks()?;
        let step_ring = self.step_ring()?;
        self.launch(("step_acquire", "step_acquire"), [1, 1, 1], STEP_RING_THREADS, &step_ring)?;
        for (i, op) in self.program.ops.iter().enumerate() {
            let later = self.program.ops.get(i + 1..).unwrap_or_default();
            let before = self.launches.len();
            self.op(op, later).map_err(|error| match error {
                DeviceError::Invalid(why) => {
                    DeviceError::Invalid(format!("program {}, op {i}: {why}", self.program.name))
                }
                other => other,
            })?;
            for launch in &mut self.launches[before..] {
                launch.op = Some(i as u32);
            }
        }
        // The first two kernels do not overlap their predecessors. All earlier work is therefore
        // complete when the first kernel starts, and the step block is complete when the second or
        // any later kernel starts, however early. Kernels may read the step block, and results of
        // earlier steps, copies and cache operations, before they wait for their predecessors in
        // this program.
        for first in self.launches.iter_mut().take(2) {
            first.overlap = false;
        }
        Ok(self.launches)
    }

    fn op(&mut self, op: &Op, later: &[Op]) -> Result<(), DeviceError> {
        if let Some(kind) = OpKind::of(op).find(|kind| !runs(*kind)) {
            return Err(self.unsupported(kind.to_string()));
        }
        match op {
            Op::Embed(op) => self.embed(op),
            Op::Qkv(op) => self.qkv(op, later),
            Op::Attention(op) => self.attention(op, later),
            Op::Project(op) => self.project(op, later),
            Op::GateUp(op) => self.gate_up(op, later),
            Op::ShortConv(op) => self.short_conv(op),
            Op::DeltaNet(op) => self.delta_net(op, later),
            Op::Gate(op) => self.gate(op, later),
            Op::LayerInputs(op) => self.layer_inputs(op),
            Op::GateInput(op) => self.gate_input(op, later),
            Op::Experts(op) => self.experts(op, later),
            Op::Head(op) => self.head(op),
            Op::Hidden(_) => Err(self.unsupported(OpKind::Hidden.to_string())),
            Op::Sample => self.sample(),
        }
    }

    /// Whether the next op needs a slot packed: it projects that slot on tensor cores.
    fn is_packed(&self, later: &[Op], slot: Slot) -> Result<bool, DeviceError> {
        match later.first() {
            Some(Op::Project(op)) if op.y == slot => {
                Ok(on_tensor_cores(self.resources.matrix(op.linear.matrix)?.ty))
            }
            _ => Ok(false),
        }
    }

    /// Checks that step block and result block are as large as the kernels require.
    fn check_blocks(&self) -> Result<(), DeviceError> {
        let layout = &self.program.layout;
        let too_small = |what: &str, wanted: usize| {
            DeviceError::Invalid(format!("{what} below {wanted} bytes ({})", self.program.name))
        };
        if self.resources.buffer(self.program.step)?.bytes() < layout.bytes() {
            return Err(too_small("step block", layout.bytes()));
        }
        if self.resources.buffer(self.program.results)?.bytes() < layout.result_bytes() {
            return Err(too_small("result block", layout.result_bytes()));
        }
        if self.program.max_rows == 0
            || self.program.max_rows > layout.max_rows
            || self.program.max_outputs > layout.max_outputs
            || self.program.vocab == 0
        {
            let why = format!("rows, outputs or vocabulary of program {}", self.program.name);
            return Err(DeviceError::Invalid(why));
        }
        // Kernels can hold as many rows of the head's input as the step has rows.
        if self.program.max_outputs > self.program.max_rows {
            let (outputs, rows) = (self.program.max_outputs, self.program.max_rows);
            let why = format!("{outputs} outputs of {rows} rows ({})", self.program.name);
            return Err(DeviceError::Invalid(why));
        }
        Ok(())
    }

    fn unsupported(&self, what: String) -> DeviceError {
        DeviceError::Unsupported { device: self.device.to_owned(), what }
    }

    fn slot(&self, slot: Slot) -> Result<(Address, u32), DeviceError> {
        let index = slot.0 as usize;
        let desc = self.program.slots.get(index).ok_or_else(|| unknown(&slot))?;
        let address = self.workspace.slot(index).ok_or_else(|| unknown(&slot))?;
        Ok((address, desc.width))
    }

    /// Address of a vector of `len` numbers.
    fn vector(&self, what: &str, vector: VectorId, len: u32) -> Result<Address, DeviceError> {
        let vector = self.resources.vector(vector)?;
        same(what, vector.len, len)?;
        Ok(vector.memory.address())
    }

    /// Address of `numbers` products for each row.
    fn products(&mut self, numbers: u32) -> Address {
        let rows = self.program.max_rows as usize;
        self.workspace.at(Area::Products, 4 * rows * numbers as usize)
    }

    fn step(&self) -> Result<StepRef, DeviceError> {
        let layout = &self.program.layout;
        Ok(StepRef {
            block: self.resources.buffer(self.program.step)?.address(),
            rows_offset: layout.rows_offset() as u32,
            outputs_offset: layout.outputs_offset() as u32,
            biases_offset: layout.biases_offset() as u32,
            tables_offset: layout.tables_offset() as u32,
            pages_per_sequence: layout.pages_per_sequence,
            reserved: 0,
        })
    }

    fn step_ring(&self) -> Result<StepRingRef, DeviceError> {
        let index = self
            .resources
            .step_ring_of(self.program.step)
            .ok_or_else(|| unknown(&self.program.step))?;
        Ok(self.resources.step_ring[index].addresses())
    }

    fn results(&self) -> Result<ResultRef, DeviceError> {
        let layout = &self.program.layout;
        Ok(ResultRef {
            ring: self.resources.buffer(self.program.results)?.address(),
            block_bytes: layout.result_bytes() as u32,
            rows_offset: layout.result_rows_offset() as u32,
            candidates_offset: layout.candidates_offset() as u32,
            reserved: 0,
        })
    }

    fn launch<P: Pod>(
        &mut self,
        kernel: (&str, &str),
        grid: [u32; 3],
        threads: u32,
        params: &P,
    ) -> Result<(), DeviceError> {
        self.launch_shared(kernel, grid, threads, (0, 0), params)
    }

    /// Adds a launch with dynamic shared memory, of a kernel that is allowed the second number of
    /// bytes: the launches of one kernel may need different amounts.
    fn launch_shared<P: Pod>(
        &mut self,
        kernel: (&str, &str),
        grid: [u32; 3],
        threads: u32,
        shared_bytes: (u32, u32),
        params: &P,
    ) -> Result<(), DeviceError> {
        let launch = self.lowered(kernel, grid, threads, shared_bytes, params)?;
        self.launches.push(launch);
        Ok(())
    }

    /// A launch that is not added.
    fn lowered<P: Pod>(
        &mut self,
        (file, name): (&str, &str),
        grid: [u32; 3],
        threads: u32,
        (shared_bytes, max_shared_bytes): (u32, u32),
        params: &P,
    ) -> Result<Launch, DeviceError> {
        let function = self.kernels.get(self.context, file, name, max_shared_bytes)?;
        let overlap = self.context.gpu().facts.programmatic_launch;
        Ok(Launch { overlap, shared_bytes, ..Launch::new(function, grid, threads, params) })
    }
}

/// The norm at the beginning of the next op that reads `x`.
fn next_norm(later: &[Op], x: Slot) -> Option<Norm> {
    let next = later.iter().find_map(|op| {
        let (its, norm) = match op {
            Op::Qkv(op) => (op.x, Some(op.norm)),
            Op::GateUp(op) => (op.x, Some(op.norm)),
            Op::Experts(op) => (op.x, Some(op.norm)),
            Op::ShortConv(op) => (op.x, Some(op.norm)),
            Op::DeltaNet(op) => (op.x, Some(op.norm)),
            Op::Gate(op) => (op.x, Some(op.norm)),
            Op::Head(op) => (op.x, Some(op.norm)),
            Op::Project(op) => (op.x, None),
            Op::Embed(op) => (op.x, None),
            _ => return None,
        };
        (its == x).then_some(norm)
    });
    next.flatten()
}

fn same(what: &str, found: u32, wanted: u32) -> Result<(), DeviceError> {
    if found == wanted {
        return Ok(());
    }
    Err(DeviceError::Invalid(format!("{what} is {found}, expected {wanted}")))
}
