use std::collections::HashMap;

use bytemuck::{bytes_of, pod_read_unaligned};
use walla_device::step::{ResultHeader, ResultRow, StepHeader, StepLayout};
use walla_device::{BufferId, GraphId, HostId, Program};

use super::plan::FaultPlan;

/// Reports output rows of chosen launches as not finite.
///
/// It tracks the data flow: the step of each upload, the launch that runs it, and the host buffers
/// to which its result block is copied. It changes the bytes that are read there.
#[derive(Debug, Default)]
pub(super) struct Poisoner {
    launches: u64,
    graphs: HashMap<GraphId, Bound>,
    /// The step that was last uploaded to each step buffer.
    steps: HashMap<BufferId, u64>,
    /// Poisoned steps and outputs.
    poisoned: Vec<(u64, u32)>,
    /// Copied result blocks: host buffer and offset of the block.
    copied: HashMap<(HostId, usize), StepLayout>,
}

/// Buffers of a program.
#[derive(Clone, Copy, Debug)]
struct Bound {
    step: BufferId,
    results: BufferId,
    layout: StepLayout,
}

impl Poisoner {
    pub(super) fn prepare(&mut self, graph: GraphId, program: &Program) {
        let Program { step, results, layout, .. } = *program;
        self.graphs.insert(graph, Bound { step, results, layout });
    }

    /// `header`: the first bytes copied to a buffer.
    pub(super) fn upload(&mut self, to: BufferId, header: &[u8]) {
        if let Some(header) = header.get(..size_of::<StepHeader>()) {
            self.steps.insert(to, pod_read_unaligned::<StepHeader>(header).step);
        }
    }

    pub(super) fn launch(&mut self, graph: GraphId, plan: &FaultPlan) {
        let launch = self.launches;
        self.launches += 1;
        let step = self.graphs.get(&graph).and_then(|bound| self.steps.get(&bound.step));
        let Some(&step) = step else { return };
        let outputs = plan.poisons.iter().filter(|poison| poison.launch == launch);
        self.poisoned.extend(outputs.map(|poison| (step, poison.output)));
    }

    pub(super) fn download(&mut self, from: (BufferId, usize), to: (HostId, usize)) {
        let mut bound = self.graphs.values().filter(|bound| bound.results == from.0);
        match bound.next().map(|bound| bound.layout) {
            Some(layout) if from.1.is_multiple_of(layout.result_bytes()) => {
                self.copied.insert(to, layout);
            }
            _ => drop(self.copied.remove(&to)),
        }
    }

    /// Changes the poisoned rows in `bytes`, which were read from `offset` of `host`. Blocks whose
    /// header is not in `bytes` are unchanged.
    pub(super) fn change(&self, host: HostId, offset: usize, bytes: &mut [u8]) {
        let blocks = self.copied.iter().filter(|((of, _), _)| *of == host);
        for ((_, at), layout) in blocks {
            let Some(start) = at.checked_sub(offset) else { continue };
            let Some(block) = bytes.get_mut(start..) else { continue };
            let Some(header) = block.get(..size_of::<ResultHeader>()) else { continue };
            let header: ResultHeader = pod_read_unaligned(header);
            for &(_, output) in self.poisoned.iter().filter(|(step, _)| *step == header.step) {
                change_row(block, layout, output);
            }
        }
    }
}

fn change_row(block: &mut [u8], layout: &StepLayout, output: u32) {
    if output >= layout.max_outputs {
        return;
    }
    let at = layout.result_rows_offset() + output as usize * size_of::<ResultRow>();
    let Some(bytes) = block.get_mut(at..at + size_of::<ResultRow>()) else { return };
    let row: ResultRow = pod_read_unaligned(bytes);
    let flags = row.flags & !ResultRow::SAMPLED | ResultRow::NOT_FINITE;
    bytes.copy_from_slice(bytes_of(&ResultRow {
        token: 0,
        flags,
        log_probability: f32::NAN,
        ..row
    }));
}
