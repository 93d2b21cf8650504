//! Runs the ops of one step.

pub(crate) mod attention;
mod convolution;
mod delta_net;
mod experts;
mod feed_forward;
mod head;
mod layer_inputs;
pub(crate) mod linear;
mod qkv;
mod short_conv;

use std::time::{Duration, Instant};

use walla_device::step::{BiasRow, OutputRow, StepHeader, StepRow};
use walla_device::{Linear, MatrixId, Op, Program, op};

use crate::cache::{Cache, Layer};
use crate::matrix::Matrix;
use crate::options::Variant;
use crate::pool::Pool;
use crate::sync::{AtomicBool, Ordering};
use crate::system;
use crate::work::{self, StepWork};
use crate::workspace::{Rope, Workspace};

/// Clock of one step.
#[derive(Clone, Copy)]
pub(crate) struct StepClock {
    /// Origin of the device's clock.
    origin: Instant,
    /// The device's clock when the program began.
    begin: Duration,
    /// Processor time of this thread when the program began, if the system reports it.
    begin_processor: Option<Duration>,
}

impl StepClock {
    /// Begins a step on the calling thread.
    pub(crate) fn begin(origin: Instant) -> Self {
        let begin_processor = system::processor_time();
        Self { origin, begin: origin.elapsed(), begin_processor }
    }

    /// Times of the step that ends now: begin and end in nanoseconds on the device's clock, and the
    /// time in microseconds in which the thread did not run. The thread yields its core only if the
    /// system runs others, or if it waits for a worker that the system does not run.
    fn end(&self) -> (u64, u64, u32) {
        let end = self.origin.elapsed();
        let ran = system::processor_time().zip(self.begin_processor);
        let ran = ran.and_then(|(end, begin)| end.checked_sub(begin));
        let wall = end.saturating_sub(self.begin);
        let preempted = ran.map_or(Duration::ZERO, |ran| wall.saturating_sub(ran));
        let micros = u32::try_from(preempted.as_micros()).unwrap_or(u32::MAX);
        (nanos(self.begin), nanos(end), micros)
    }
}

/// Nanoseconds of a duration; a `u64` holds 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One launch: the parsed step block, and everything that its ops read and write.
pub(crate) struct Frame<'a> {
    pub variant: Variant,
    pub pool: &'a Pool,
    pub program: &'a Program,
    pub header: &'a StepHeader,
    /// Rows in use.
    pub rows: &'a [StepRow],
    /// Outputs in use.
    pub outputs: &'a [OutputRow],
    pub biases: &'a [BiasRow],
    /// `[masks, mask_words(vocab)]`.
    pub masks: &'a [u32],
    /// `[max_sequences, pages_per_sequence]`.
    pub tables: &'a [u32],
    pub matrices: &'a [Matrix],
    pub vectors: &'a [Vec<f32>],
    pub ropes: &'a [Rope],
    pub cache: &'a mut Cache,
    /// `[max_outputs, vocab]`.
    pub logits: &'a mut [f32],
    /// The result block that the step selected.
    pub result: &'a mut [u8],
    pub workspace: &'a mut Workspace,
    pub clock: StepClock,
}

impl Frame<'_> {
    /// Runs all ops, or the ops before `cancel` is seen.
    pub(crate) fn run(&mut self, cancel: &AtomicBool) {
        self.compute_rotations();
        // Before the ops: the sampler counts the tokens of this step's rows too.
        self.remember();
        for op in &self.program.ops {
            if cancel.load(Ordering::Relaxed) {
                return;
            }
            self.op(op);
        }
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Embed(op) => self.embed(op),
            Op::LayerInputs(op) => self.layer_inputs(op),
            Op::GateInput(op) => self.gate_input(op),
            Op::Qkv(op) => self.qkv(op),
            Op::Attention(op) => self.attention(op),
            Op::Project(op) => self.project(op),
            Op::GateUp(op) => self.gate_up(op),
            Op::Experts(op) => self.experts(op),
            Op::ShortConv(op) => self.short_conv(op),
            Op::DeltaNet(op) => self.delta_net(op),
            Op::Gate(op) => self.gate(op),
            Op::Head(op) => self.head(op),
            Op::Hidden(op) => self.hidden(op),
            Op::Sample => self.sample(),
        }
    }

    /// Estimated work of the step: of the products and the attention, which are most of it.
    pub(crate) fn work(&self) -> StepWork {
        let mut step = StepWork::default();
        let rows = self.rows.len();
        let matrix = |id: MatrixId| &self.matrices[id.0 as usize];
        let product = |linear: &Linear| matrix(linear.matrix).nanos(rows);
        let mut cells = 0;
        let mut cells_window = None;
        for op in &self.program.ops {
            match op {
                Op::LayerInputs(op) => step.add(product(&op.projection)),
                Op::GateInput(op) => step.add(product(&op.linear)),
                Op::Qkv(op) => {
                    let keys = op.keys.map_or(0, |its| product(&its.key) + product(&its.value));
                    step.add(product(&op.query) + keys);
                }
                Op::Attention(op) => {
                    // Most layers have the same window, and counting takes a pass over the rows.
                    if cells_window != Some(op.window) {
                        cells_window = Some(op.window);
                        cells = attention::cells(self.rows, op.window);
                    }
                    if let Layer::Kv(kv) = &self.cache.layers[op.layer as usize] {
                        let in_vectors = attention::has_vectors(self.variant, kv);
                        step.add(work::attention(in_vectors, op.shape, cells));
                    }
                }
                Op::Project(op) => step.add(product(&op.linear)),
                Op::GateUp(op) => step.add(product(&op.gate) + product(&op.up)),
                Op::Experts(op) => {
                    let router = matrix(op.router);
                    let choices = rows * op.used as usize;
                    let used = choices.min(router.rows);
                    let nanos = |part| matrix(part).part_nanos(router.rows, used, choices);
                    step.add(router.nanos(rows));
                    step.add(nanos(op.gate) + nanos(op.up));
                    step.add(nanos(op.down));
                }
                Op::ShortConv(op) => step.add(op.input.iter().map(product).sum()),
                Op::DeltaNet(op) => {
                    step.add(product(&op.input) + product(&op.alpha) + product(&op.beta));
                    step.add(work::delta_rule(self.variant, op.shape, rows));
                }
                Op::Gate(op) => step.add(product(&op.linear)),
                Op::Head(op) => step.add(matrix(op.linear.matrix).nanos(self.outputs.len())),
                Op::Sample => step.add(work::sample(self.outputs.len(), self.program.vocab)),
                Op::Embed(_) | Op::Hidden(_) => {}
            }
        }
        step
    }

    /// Computes cosines and sines of each row's position, once per rope that the program uses.
    ///
    /// The angle is rounded to f32, as the contract requires; its sine and cosine are computed in
    /// f64.
    fn compute_rotations(&mut self) {
        for (rope, rotations) in self.ropes.iter().zip(&mut self.workspace.rotations) {
            let rotations: &mut [[f32; 2]] = rotations.as_mut_slice();
            let pairs = rope.frequencies.len();
            if rotations.is_empty() || pairs == 0 {
                continue;
            }
            let used = rotations.len().min(self.rows.len() * pairs);
            let magnitude = f64::from(rope.magnitude);
            let nanos = work::elements(used * 64);
            self.pool.rows(&mut rotations[..used], pairs, nanos, |row, turns| {
                let position = self.rows[row].position as f32;
                for (turn, frequency) in turns.iter_mut().zip(&rope.frequencies) {
                    let (sin, cos) = libm::sincos(f64::from(position * frequency));
                    *turn = [(cos * magnitude) as f32, (sin * magnitude) as f32];
                }
            });
        }
    }

    /// Writes the rows' tokens to their sequences' recent tokens.
    fn remember(&mut self) {
        if !self.program.ops.iter().any(|op| matches!(op, Op::Embed(_))) {
            return;
        }
        for row in self.rows {
            let token = token_of(row, &self.cache.last);
            self.cache.remember(row.sequence as usize, row.position, token);
        }
    }

    fn embed(&mut self, op: &op::Embed) {
        let op::Embed { table, scale, x } = *op;
        let table = &self.matrices[table.0 as usize];
        let (width, rows, last) = (table.cols, self.rows, &self.cache.last);
        let x = &mut self.workspace.slots[x.0 as usize].as_mut_slice()[..rows.len() * width];
        let nanos = work::elements(2 * x.len());
        self.pool.rows(x, width, nanos, |row, out| {
            // A program with a larger vocabulary may have sampled a token that is out of range
            // here.
            let token = token_of(&rows[row], last) as usize;
            table.gather(token.min(table.rows - 1), out);
            out.iter_mut().for_each(|x| *x *= scale);
        });
    }
}

/// The row's token, or the last sampled token of its sequence.
fn token_of(row: &StepRow, last: &[u32]) -> u32 {
    u32::try_from(row.token).unwrap_or(last[row.sequence as usize])
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_thread_does_not_run_is_not_device_time() {
        let clock = StepClock::begin(Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (begin_nanos, end_nanos, preempted_micros) = clock.end();
        let wall_micros = (end_nanos - begin_nanos) / 1_000;
        assert!(wall_micros >= 20_000);
        assert!((15_000..=wall_micros).contains(&preempted_micros.into()), "{preempted_micros}");
    }

    #[test]
    fn work_is_device_time() {
        // Other programs can preempt this thread: one of many measurements is undisturbed.
        let begun = Instant::now();
        let mut least = f64::INFINITY;
        while least >= 0.1 {
            assert!(begun.elapsed() < Duration::from_secs(120), "{least}");
            let clock = StepClock::begin(Instant::now());
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            let (begin_nanos, end_nanos, preempted_micros) = clock.end();
            let wall_nanos = (end_nanos - begin_nanos) as f64;
            least = least.min(f64::from(preempted_micros) * 1e3 / wall_nanos);
        }
    }
}
