use walla_device::{DeviceError, MatrixId, Op, Program};

use super::{attend, attention, linear, sample};
use crate::resources::Resources;

/// Where the parts of the workspace lie, shared by programs that are prepared together. All of it starts as zeros.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// `[rows, width]` f32 each.
    pub(super) slots: Vec<usize>,
    /// Products that a later kernel of the same op reads.
    pub(super) products: usize,
    /// Rows as tensor cores read them.
    pub(super) packed: usize,
    /// The same, of what attention leaves. Parts of their own keep padding zero: widths differ.
    pub(super) packed_mixed: usize,
    /// The same, of what gates leave.
    pub(super) packed_hidden: usize,
    /// Chunks of attention.
    pub(super) partials: usize,
    /// Blocks of attention that have arrived: zeros between launches.
    pub(super) arrivals: usize,
    /// The sampler's.
    pub(super) sampler: sample::Parts,
    end: usize,
}

/// Bytes that one program wants of each part.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    products: usize,
    packed: usize,
    packed_mixed: usize,
    packed_hidden: usize,
    partials: usize,
    arrivals: usize,
}

impl Workspace {
    /// Lays out a workspace that every one of the programs fits.
    pub(crate) fn of(resources: &Resources, programs: &[Program]) -> Result<Self, DeviceError> {
        let mut workspace = Self::default();
        let slots = programs.iter().map(|p| p.slots.len()).max().unwrap_or_default();
        for slot in 0..slots {
            let bytes = |p: &Program| {
                let width = p.slots.get(slot).map_or(0, |s| s.width as usize);
                4 * width * p.rows_max as usize
            };
            let bytes = programs.iter().map(bytes).max().unwrap_or_default();
            let offset = workspace.take(bytes);
            workspace.slots.push(offset);
        }
        let mut most = Wanted::default();
        for program in programs {
            for op in &program.ops {
                let wanted = wanted(resources, program, op)?;
                most.products = most.products.max(wanted.products);
                most.packed = most.packed.max(wanted.packed);
                most.packed_mixed = most.packed_mixed.max(wanted.packed_mixed);
                most.packed_hidden = most.packed_hidden.max(wanted.packed_hidden);
                most.partials = most.partials.max(wanted.partials);
                most.arrivals = most.arrivals.max(wanted.arrivals);
            }
        }
        workspace.products = workspace.take(most.products);
        workspace.packed = workspace.take(most.packed);
        workspace.packed_mixed = workspace.take(most.packed_mixed);
        workspace.packed_hidden = workspace.take(most.packed_hidden);
        workspace.partials = workspace.take(most.partials);
        workspace.arrivals = workspace.take(most.arrivals);
        workspace.sampler = sample::Parts::of(programs, |bytes| workspace.take(bytes));
        Ok(workspace)
    }

    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> usize {
        self.end
    }

    fn take(&mut self, bytes: usize) -> usize {
        let start = self.end;
        self.end += bytes.next_multiple_of(256);
        start
    }
}

fn wanted(resources: &Resources, program: &Program, op: &Op) -> Result<Wanted, DeviceError> {
    let rows = program.rows_max as usize;
    let packed_bytes = |cols| linear::packed_bytes(program.rows_max.max(program.outputs_max), cols);
    let packed =
        |matrix: MatrixId| Ok::<_, DeviceError>(packed_bytes(resources.matrix(matrix)?.cols));
    let products = |numbers: usize| 4 * rows * numbers;
    let mut wanted = Wanted::default();
    match op {
        Op::Qkv { shape, query, .. } => {
            let heads = (shape.heads + 2 * shape.kv_heads) as usize;
            wanted.products = products(heads * shape.head_dim as usize);
            wanted.packed = packed(query.matrix)?;
        }
        Op::Attention { shape, window, .. } => {
            let chunks = attention::chunks_max(program, *window) as usize;
            let heads = shape.heads as usize;
            let plain = products(heads * chunks * (shape.head_dim as usize + 2));
            wanted.partials = plain.max(attend::partials_bytes(program, *shape));
            wanted.arrivals = products(heads);
            wanted.packed_mixed = packed_bytes(shape.heads * shape.head_dim);
        }
        Op::Project { linear, post_norm, .. } => {
            if post_norm.is_some() {
                wanted.products = products(resources.matrix(linear.matrix)?.rows as usize);
            }
            wanted.packed = packed(linear.matrix)?;
        }
        Op::GateUp { gate, up, .. } => {
            let (g, u) = (resources.matrix(gate.matrix)?, resources.matrix(up.matrix)?);
            wanted.products = products(if g.ty == u.ty { 0 } else { 2 * g.rows as usize });
            wanted.packed = packed(gate.matrix)?;
            wanted.packed_hidden = packed_bytes(g.rows);
        }
        Op::ShortConv { input, .. } => {
            wanted.products = products(3 * resources.matrix(input[0].matrix)?.rows as usize);
            wanted.packed = packed(input[0].matrix)?;
        }
        Op::Head { linear, .. } => wanted.packed = packed(linear.matrix)?,
        Op::Embed { .. } | Op::Sample => {}
    }
    Ok(wanted)
}
