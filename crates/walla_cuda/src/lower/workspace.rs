use walla_device::{DeviceError, Op, Program};

use super::{attention, sample};
use crate::resources::Resources;

/// Where the parts of the workspace lie, shared by programs that are prepared together. All of it starts as zeros.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// `[rows, width]` f32 each.
    pub(super) slots: Vec<usize>,
    /// Products that a later kernel of the same op reads.
    pub(super) products: usize,
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
                most.partials = most.partials.max(wanted.partials);
                most.arrivals = most.arrivals.max(wanted.arrivals);
            }
        }
        workspace.products = workspace.take(most.products);
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
    let of_rows = |numbers: usize| Wanted { products: 4 * rows * numbers, ..Wanted::default() };
    Ok(match op {
        Op::Qkv { shape, .. } => {
            of_rows((shape.heads + 2 * shape.kv_heads) as usize * shape.head_dim as usize)
        }
        Op::Attention { shape, window, .. } => {
            let chunks = attention::chunks_max(program, *window) as usize;
            let heads = shape.heads as usize;
            Wanted {
                partials: 4 * rows * heads * chunks * (shape.head_dim as usize + 2),
                arrivals: 4 * rows * heads,
                ..Wanted::default()
            }
        }
        Op::Project { linear, post_norm: Some(_), .. } => {
            of_rows(resources.matrix(linear.matrix)?.rows as usize)
        }
        Op::GateUp { gate, up, .. } => {
            let (gate, up) = (resources.matrix(gate.matrix)?, resources.matrix(up.matrix)?);
            of_rows(if gate.ty == up.ty { 0 } else { 2 * gate.rows as usize })
        }
        Op::ShortConv { input, .. } => {
            of_rows(3 * resources.matrix(input[0].matrix)?.rows as usize)
        }
        Op::Embed { .. } | Op::Project { .. } | Op::Head { .. } | Op::Sample => Wanted::default(),
    })
}
