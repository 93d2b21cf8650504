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
use walla_device::{Linear, MatrixId, Op, Program, Slot};

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
            Op::Embed { table, scale, x } => self.embed(*table, *scale, *x),
            Op::LayerInputs { .. } => self.layer_inputs(op),
            Op::GateInput { x, linear, activation, e, first, h } => {
                self.gate_input(*x, linear, *activation, (*e, *first as usize), *h);
            }
            Op::Qkv { .. } => self.qkv(op),
            Op::Attention { q, shape, layer, scale, position_scale, window, out } => {
                let scales = (*scale, *position_scale);
                self.attention(*q, *shape, *layer as usize, scales, *window, *out);
            }
            Op::Project { y, linear, post_norm, scale, x } => {
                self.project(*y, linear, post_norm.as_ref(), *scale, *x);
            }
            Op::GateUp { x, norm, gate, up, activation, h } => {
                self.gate_up(*x, norm, [gate, up], *activation, *h);
            }
            Op::Experts { .. } => self.experts(op),
            Op::ShortConv { x, norm, input, kernel, taps: _, layer, out } => {
                self.short_conv(*x, norm, input, *kernel, *layer as usize, *out);
            }
            Op::DeltaNet { .. } => self.delta_net(op),
            Op::Gate { x, norm, linear, activation, y } => {
                self.gate(*x, norm, linear, *activation, *y);
            }
            Op::Head { x, norm, linear, soft_cap, suppressed } => {
                self.head(*x, norm, linear, *soft_cap, suppressed);
            }
            Op::Hidden { x, norm } => self.hidden(*x, norm),
            Op::Sample => self.sample(),
        }
    }

    /// Estimated work of the step: of the products and the attention, which are most of it.
    pub(crate) fn work(&self) -> StepWork {
        let mut step = StepWork::default();
        let rows = self.rows.len();
        let product = |linears: &[&Linear], rows: usize| {
            linears.iter().map(|l| self.matrices[l.matrix.0 as usize].nanos(rows)).sum()
        };
        let mut cells = 0;
        let mut cells_window = None;
        for op in &self.program.ops {
            match op {
                Op::LayerInputs { projection, .. } => step.add(product(&[projection], rows)),
                Op::GateInput { linear, .. } => step.add(product(&[linear], rows)),
                Op::Qkv { query, keys: None, .. } => step.add(product(&[query], rows)),
                Op::Qkv { query, keys: Some(keys), .. } => {
                    step.add(product(&[query, &keys.key, &keys.value], rows));
                }
                Op::Attention { shape, window, layer, .. } => {
                    if cells_window != Some(*window) {
                        cells_window = Some(*window);
                        cells = attention::cells(self.rows, *window);
                    }
                    let in_vectors = match &self.cache.layers[*layer as usize] {
                        Layer::Kv(kv) => attention::has_vectors(self.variant, kv),
                        Layer::Conv(_) | Layer::Delta(_) => continue,
                    };
                    step.add(work::attention(in_vectors, *shape, cells));
                }
                Op::Project { linear, .. } => step.add(product(&[linear], rows)),
                Op::GateUp { gate, up, .. } => step.add(product(&[gate, up], rows)),
                Op::Experts { router, used, gate, up, down, .. } => {
                    let [router, gate, up, down] =
                        [router, gate, up, down].map(|id| &self.matrices[id.0 as usize]);
                    let choices = rows * *used as usize;
                    let used = choices.min(router.rows);
                    let nanos = |part: &Matrix| part.part_nanos(router.rows, used, choices);
                    step.add(router.nanos(rows));
                    step.add(nanos(gate) + nanos(up));
                    step.add(nanos(down));
                }
                Op::ShortConv { input: [a, b, c], .. } => step.add(product(&[a, b, c], rows)),
                Op::DeltaNet { input, alpha, beta, shape, .. } => {
                    step.add(product(&[input, alpha, beta], rows));
                    step.add(work::delta_rule(self.variant, *shape, rows));
                }
                Op::Gate { linear, .. } => step.add(product(&[linear], rows)),
                Op::Head { linear, .. } => step.add(product(&[linear], self.outputs.len())),
                Op::Sample => step.add(work::sample(self.outputs.len(), self.program.vocab)),
                Op::Embed { .. } | Op::Hidden { .. } => {}
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
            self.pool.grid(&mut rotations[..used], pairs, (1, pairs), nanos, &|_, tile| {
                for r in 0..tile.rows {
                    let position = self.rows[tile.row + r].position as f32;
                    for (turn, frequency) in tile.row_mut(r).iter_mut().zip(&rope.frequencies) {
                        let (sin, cos) = f64::from(position * frequency).sin_cos();
                        *turn = [(cos * magnitude) as f32, (sin * magnitude) as f32];
                    }
                }
            });
        }
    }

    /// Writes the rows' tokens to their sequences' recent tokens.
    fn remember(&mut self) {
        if !self.program.ops.iter().any(|op| matches!(op, Op::Embed { .. })) {
            return;
        }
        for row in self.rows {
            let token = token_of(row, &self.cache.last);
            self.cache.remember(row.sequence as usize, row.position, token);
        }
    }

    fn embed(&mut self, table: MatrixId, scale: f32, x: Slot) {
        let table = &self.matrices[table.0 as usize];
        let (width, rows, last) = (table.cols, self.rows, &self.cache.last);
        let x = &mut self.workspace.slots[x.0 as usize].as_mut_slice()[..rows.len() * width];
        let nanos = work::elements(2 * x.len());
        self.pool.grid(x, width, (1, width), nanos, &|_, tile| {
            for r in 0..tile.rows {
                // A program with a larger vocabulary may have sampled a token that is out of range
                // here.
                let token = token_of(&rows[tile.row + r], last) as usize;
                let out = tile.row_mut(r);
                table.gather(token.min(table.rows - 1), out);
                out.iter_mut().for_each(|x| *x *= scale);
            }
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
