use std::sync::Arc;
use std::time::Instant;

use walla_device::Program;
use walla_device::op;
use walla_device::step::{ResultViewMut, StepView, mask_words};

use crate::cache::Cache;
use crate::check::Resources;
use crate::command::Command;
use crate::forward::{Frame, StepClock};
use crate::matrix::Matrix;
use crate::memory::Bytes;
use crate::options::Variant;
use crate::pool::Pool;
use crate::step_check;
use crate::sync::AtomicBool;
use crate::transfer::{Completed, Host};
use crate::workspace::{Rope, Workspace};

/// Step number in the result block of a refused step: no step has this number.
const REFUSED: u64 = u64::MAX;

/// The state that commands use.
pub(crate) struct Machine {
    pub variant: Variant,
    pub pool: Pool,
    pub matrices: Vec<Matrix>,
    pub vectors: Vec<Vec<f32>>,
    pub ropes: Vec<Rope>,
    pub caches: Vec<Cache>,
    pub buffers: Vec<Bytes>,
    pub hosts: Vec<Arc<Host<Bytes>>>,
    pub events: Vec<Arc<Completed>>,
    pub programs: Vec<Program>,
    pub workspace: Workspace,
    /// Origin of the device's clock.
    start: Instant,
}

impl Machine {
    pub(crate) fn new(variant: Variant, pool: Pool) -> Self {
        Self {
            variant,
            pool,
            matrices: Vec::new(),
            vectors: Vec::new(),
            ropes: Vec::new(),
            caches: Vec::new(),
            buffers: Vec::new(),
            hosts: Vec::new(),
            events: Vec::new(),
            programs: Vec::new(),
            workspace: Workspace::default(),
            start: Instant::now(),
        }
    }

    pub(crate) fn resources(&self) -> Resources<'_> {
        Resources {
            matrices: &self.matrices,
            vectors: &self.vectors,
            ropes: &self.ropes,
            caches: &self.caches,
            buffers: &self.buffers,
        }
    }

    /// Runs one command to its end, or up to the op at which `cancel` was seen.
    ///
    /// # Errors
    /// The defect of a launch's step block. The launch then only marks the result block as
    /// [`REFUSED`].
    pub(crate) fn execute(&mut self, command: &Command, cancel: &AtomicBool) -> Result<(), String> {
        match *command {
            Command::Upload { host, buffer, bytes } => {
                let to = &mut self.buffers[buffer as usize];
                self.hosts[host as usize].copy(|from| {
                    to.bytes_mut()[..bytes].copy_from_slice(&from.bytes()[..bytes]);
                });
            }
            Command::Download { buffer, buffer_offset, host, host_offset, bytes } => {
                let from = &self.buffers[buffer as usize].bytes()[buffer_offset..][..bytes];
                self.hosts[host as usize].copy(|to| {
                    to.bytes_mut()[host_offset..][..bytes].copy_from_slice(from);
                });
            }
            Command::Launch { graph } => return self.launch(graph as usize, cancel),
            Command::Maintain { cache, ref command } => {
                self.caches[cache as usize].run_cache_ops(command, &self.ropes);
            }
            Command::CopyPart { cache, part, host, host_offset, direction } => {
                let cache = &mut self.caches[cache as usize];
                self.hosts[host as usize].copy(|image| {
                    cache.copy_part(part, &mut image.bytes_mut()[host_offset..], direction);
                });
            }
            Command::Record { event, serial } => {
                self.events[event as usize].complete(serial);
            }
        }
        Ok(())
    }

    fn launch(&mut self, graph: usize, cancel: &AtomicBool) -> Result<(), String> {
        let program = &self.programs[graph];
        let ids = [program.step, program.results, program.logits].map(|id| id.0 as usize);
        let (step, results, logits, masks): (_, _, _, &[u32]) = match program.masks {
            Some(masks) => {
                let ids = [ids[0], ids[1], ids[2], masks.0 as usize];
                let buffers = self.buffers.get_disjoint_mut(ids).map_err(|e| e.to_string())?;
                let [step, results, logits, masks] = buffers;
                (step, results, logits, masks.as_slice())
            }
            None => {
                let buffers = self.buffers.get_disjoint_mut(ids).map_err(|e| e.to_string())?;
                let [step, results, logits] = buffers;
                (step, results, logits, &[])
            }
        };
        let step =
            StepView::new(step.bytes(), &program.layout).ok_or("the step block is too short")?;
        let cache = &mut self.caches[program.cache.0 as usize];
        let result_bytes = program.layout.result_bytes();
        let workspace = &mut self.workspace;
        let tokens = tokens(program, &self.matrices);
        let slots = (results.len() / result_bytes, masks.len() / mask_words(program.vocab));
        let first = (step.header.ring_slot as usize).saturating_mul(result_bytes);
        let reach = &mut workspace.reach;
        if let Err(fault) = step_check::check(&step, program, cache, slots, tokens, reach) {
            // Commands after this launch copy the block and record an event as usual. The block
            // must not be taken for the results of this step.
            let block = results.bytes_mut().get_mut(first..).unwrap_or_default();
            if let Some(block) = ResultViewMut::new(block, &program.layout) {
                block.header.step = REFUSED;
            }
            return Err(fault);
        }
        let mut frame = Frame {
            variant: self.variant,
            pool: &self.pool,
            program,
            rows: &step.rows[..step.header.rows as usize],
            outputs: &step.outputs[..step.header.outputs as usize],
            biases: step.biases,
            masks,
            tables: step.tables,
            header: step.header,
            matrices: &self.matrices,
            vectors: &self.vectors,
            ropes: &self.ropes,
            cache,
            logits: logits.as_mut_slice(),
            clock: StepClock::begin(self.start),
            result: &mut results.bytes_mut()[first..first + result_bytes],
            workspace,
        };
        let work = frame.work();
        let threads = self.pool.costs().of_step(work, self.pool.workers());
        // Before the first op: a wake-up takes as long as several small ops.
        self.pool.wake(threads, work.nanos);
        frame.run(cancel);
        Ok(())
    }

    /// Lets the pool sleep: no command is left.
    pub(crate) fn rest(&self) {
        self.pool.rest();
    }
}

/// Number of tokens that every embedding of the program contains.
fn tokens(program: &Program, matrices: &[Matrix]) -> u32 {
    let tables = program.ops.iter().filter_map(|op| match op {
        walla_device::Op::Embed(op::Embed { table, .. }) => Some(matrices[table.0 as usize].rows),
        _ => None,
    });
    tables.min().map_or(u32::MAX, |rows| u32::try_from(rows).unwrap_or(u32::MAX))
}
