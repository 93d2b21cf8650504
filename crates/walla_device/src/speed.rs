//! Time of small steps, to compare devices before a model is loaded.

use std::time::{Duration, Instant};

use walla_types::{Activation, TensorType};

use crate::cache::{CacheDesc, KvType};
use crate::device::{Device, MatrixDesc, MatrixUse, StreamPriority};
use crate::error::DeviceError;
use crate::handles::{EventId, GraphId, HostId, MatrixId, StreamId};
use crate::op::{self, Linear, Norm, Op, Phase, Program, Slot, SlotDesc};
use crate::step::{OutputRow, StepLayout, StepRow, StepViewMut};

/// Feed-forward layers of a model of 1 GB with 8-bit weights, whose steps read more than a
/// processor caches: 53 MB.
const LAYERS: u32 = 4;
const WIDTH: u32 = 1024;
const HIDDEN: u32 = 4096;
const VOCAB: u32 = 32;
/// Rows of the larger step: a batch of agents, or a part of a prompt.
const ROWS: u32 = 32;
const LAYOUT: StepLayout = StepLayout {
    max_rows: ROWS,
    max_outputs: 1,
    max_biases: 1,
    max_sequences: 1,
    pages_per_sequence: 1,
};

/// Steps of one kind are repeated for this time, in which clocks rise; the shortest counts.
const ROUND: Duration = Duration::from_millis(60);
/// A device that takes longer for a step is too slow in any case.
const MAX_STEP: Duration = Duration::from_millis(250);

/// Times of two steps on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTimes {
    /// One row: the speed of memory decides.
    pub one_row: Duration,
    /// 32 rows: the speed of 8-bit products decides.
    pub many_rows: Duration,
}

impl StepTimes {
    /// Measures a device, in less than half a second after its kernels are compiled. The memory
    /// stays allocated until the device is dropped, so measure on a dedicated device.
    ///
    /// # Errors
    /// The device's error, or [`DeviceError::Failed`] if a step takes more than 250 ms.
    pub fn measure(device: &mut dyn Device) -> Result<Self, DeviceError> {
        let mut rig = Rig::load(device)?;
        Ok(Self { one_row: rig.shortest(0, 1)?, many_rows: rig.shortest(1, ROWS)? })
    }

    /// Whether this device is better for a game than the other: not slower with one row, and at
    /// least 1.5 times as fast with many.
    #[must_use]
    pub fn is_better_than(&self, other: &Self) -> bool {
        self.one_row <= other.one_row && self.many_rows * 3 <= other.many_rows * 2
    }
}

struct Rig<'a> {
    device: &'a mut dyn Device,
    stream: StreamId,
    event: EventId,
    step: crate::handles::BufferId,
    step_host: HostId,
    graphs: Vec<GraphId>,
}

/// Blocks of `Q8_0`: a scale of 2^-10, and 32 numbers that differ, because some devices read
/// zeros faster.
fn weights(rows: u32, cols: u32) -> Vec<u8> {
    let block = |index: u32| {
        let numbers = (0..32).map(move |number: u32| (index * 7 + number * 37) as u8);
        [0x00, 0x14].into_iter().chain(numbers)
    };
    (0..rows * cols / 32).flat_map(block).collect()
}

impl<'a> Rig<'a> {
    fn load(device: &'a mut dyn Device) -> Result<Self, DeviceError> {
        let bytes = weights(HIDDEN, WIDTH);
        let matrix = |device: &mut dyn Device, rows, cols| -> Result<MatrixId, DeviceError> {
            let usage = MatrixUse { gather: rows == VOCAB, multiply: true };
            let desc =
                MatrixDesc { name: "a measurement", rows, cols, ty: TensorType::Q8_0, usage };
            let length = bytes.len() / (HIDDEN * WIDTH / (rows * cols)) as usize;
            device.load_matrix(&desc, &&bytes[..length])
        };
        let linear = |matrix| Linear { matrix, bias: None };
        let weight = device.load_vector("a measurement", &[1.0; WIDTH as usize])?;
        let norm = Norm { weight, eps: 1e-5 };
        let (x, h) = (Slot(0), Slot(1));
        let table = matrix(device, VOCAB, WIDTH)?;
        let mut ops = vec![Op::Embed(op::Embed { table, scale: 1.0, x })];
        for _ in 0..LAYERS {
            ops.push(Op::GateUp(op::GateUp {
                x,
                norm,
                gate: linear(matrix(device, HIDDEN, WIDTH)?),
                up: linear(matrix(device, HIDDEN, WIDTH)?),
                activation: Activation::Silu,
                h,
            }));
            ops.push(Op::Project(op::Project {
                y: h,
                linear: linear(matrix(device, WIDTH, HIDDEN)?),
                post_norm: None,
                scale: 1.0,
                x,
            }));
        }
        let head = linear(table);
        let suppressed = Vec::new();
        ops.push(Op::Head(op::Head { x, norm, linear: head, soft_cap: None, suppressed }));
        let cache = device.create_cache(&CacheDesc {
            layers: Vec::new(),
            pages: 2,
            page_tokens: ROWS,
            max_sequences: 1,
            kv_type: KvType::F16,
        })?;
        let step = device.create_buffer("step", LAYOUT.bytes())?;
        let results = device.create_buffer("results", LAYOUT.result_bytes())?;
        let logits = device.create_buffer("logits", 4 * VOCAB as usize)?;
        let program = |max_rows| Program {
            name: format!("a measurement of {max_rows} rows"),
            phase: Phase::Decode,
            pure_decode: false,
            max_rows,
            max_outputs: 1,
            max_context: ROWS,
            vocab: VOCAB,
            slots: [WIDTH, HIDDEN].map(|width| SlotDesc { width }).to_vec(),
            cache,
            step,
            layout: LAYOUT,
            results,
            logits,
            masks: None,
            ops: ops.clone(),
        };
        let prepared = device.prepare([1, ROWS].map(program).to_vec())?;
        Ok(Self {
            stream: device.create_stream(StreamPriority::Low)?,
            event: device.create_event()?,
            step_host: device.create_host("step", LAYOUT.bytes())?,
            graphs: prepared.iter().map(|program| program.graph).collect(),
            step,
            device,
        })
    }

    /// The shortest step of a program with this many rows.
    fn shortest(&mut self, program: usize, rows: u32) -> Result<Duration, DeviceError> {
        let begin = Instant::now();
        let mut shortest = Duration::MAX;
        while begin.elapsed() < ROUND {
            shortest = shortest.min(self.step(program, rows)?);
        }
        Ok(shortest)
    }

    fn step(&mut self, program: usize, rows: u32) -> Result<Duration, DeviceError> {
        let Self { device, stream, event, step, step_host, graphs } = self;
        device.write_host(*step_host, 0, LAYOUT.bytes(), &mut |bytes| fill(bytes, rows))?;
        let begin = Instant::now();
        device.upload(*stream, *step_host, *step, LAYOUT.bytes())?;
        device.launch(*stream, graphs[program])?;
        device.record(*stream, *event)?;
        while !device.poll(*event)? {
            if begin.elapsed() > MAX_STEP {
                let reason = format!("a step of {rows} rows took more than {MAX_STEP:?}");
                return Err(DeviceError::Failed { call: "measure", reason });
            }
            // Not a spin: the device may need this processor.
            std::thread::yield_now();
        }
        Ok(begin.elapsed())
    }
}

/// The first rows of a sequence; the last is an output.
fn fill(bytes: &mut [u8], rows: u32) {
    let Some(view) = StepViewMut::new(bytes, &LAYOUT) else { return };
    (view.header.rows, view.header.outputs, view.header.sequences) = (rows, 1, 1);
    let last = rows - 1;
    for (position, row) in (0..rows).zip(view.rows) {
        let is_last = position == last;
        *row = StepRow {
            token: (position % VOCAB).cast_signed(),
            position,
            previous: position.cast_signed() - 1,
            output: if is_last { 0 } else { StepRow::NONE },
            flags: if is_last { StepRow::LAST_OF_SEQUENCE } else { 0 },
            ..StepRow::default()
        };
    }
    view.outputs[0] = OutputRow { row: last, position: last, ..OutputRow::default() };
    view.tables[0] = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_as_fast_with_one_row_and_faster_with_many() {
        let times = |one, many| StepTimes {
            one_row: Duration::from_micros(one),
            many_rows: Duration::from_micros(many),
        };
        let cpu = times(100, 300);
        assert!(times(100, 200).is_better_than(&cpu));
        assert!(!times(101, 20).is_better_than(&cpu));
        assert!(!times(10, 201).is_better_than(&cpu));
        assert!(!cpu.is_better_than(&cpu));
    }
}
