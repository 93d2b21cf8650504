//! A feed-forward layer with weights of each type.

use walla_device::step::{OutputRow, StepLayout, StepRow, StepViewMut};
use walla_device::{
    CacheDesc, Device, DeviceError, KvType, Linear, MatrixDesc, MatrixId, MatrixUse, Norm, Op,
    Phase, Program, Slot, SlotDesc, StreamPriority, op, philox4x32,
};
use walla_types::{Activation, TensorType};

const VOCAB: u32 = 64;
const WIDTH: u32 = 256;
const HIDDEN: u32 = 512;
/// More rows than a tile, and not a multiple of one.
const ROWS: u32 = 21;
const LAYOUT: StepLayout = StepLayout {
    max_rows: ROWS,
    max_outputs: ROWS,
    max_biases: 1,
    max_sequences: 1,
    pages_per_sequence: 1,
};

/// Writes a half of 2^-`power`.
fn put_half(bytes: &mut [u8], at: usize, power: u8) {
    bytes[at..at + 2].copy_from_slice(&[0, (15 - power) << 2]);
}

/// Makes random bytes a block of weights of magnitude 1/8, about 0.
fn make_block(ty: TensorType, bytes: &mut [u8]) {
    match ty {
        // Sign and mantissa are random.
        TensorType::F32 => {
            bytes[2] |= 0x80;
            bytes[3] = bytes[3] & 0x80 | 0x3d;
        }
        TensorType::BF16 => {
            bytes[0] |= 0x80;
            bytes[1] = bytes[1] & 0x80 | 0x3d;
        }
        TensorType::F16 => bytes[1] = bytes[1] & 0x83 | 0x2c,
        TensorType::Q8_0 | TensorType::Iq4Nl => put_half(bytes, 0, 10),
        TensorType::Q4_0 => put_half(bytes, 0, 6),
        TensorType::Q5_0 => put_half(bytes, 0, 7),
        // The minimum is -1/8.
        TensorType::Q4_1 | TensorType::Q5_1 => {
            put_half(bytes, 0, if ty == TensorType::Q4_1 { 6 } else { 7 });
            put_half(bytes, 2, 3);
            bytes[3] |= 0x80;
        }
        // Minimums have the same factors as scales, so that the weights are about 0.
        TensorType::Q4K | TensorType::Q5K => {
            put_half(bytes, 0, if ty == TensorType::Q4K { 11 } else { 12 });
            put_half(bytes, 2, 8);
            bytes.copy_within(4..8, 8);
            bytes[12..16].iter_mut().for_each(|byte| *byte = *byte & 15 | *byte << 4);
        }
        TensorType::Q2K => {
            put_half(bytes, 80, 7);
            put_half(bytes, 82, 7);
            bytes[..16].iter_mut().for_each(|byte| *byte = *byte & 15 | *byte << 4);
        }
        TensorType::Q3K => put_half(bytes, 108, 10),
        TensorType::Q6K => put_half(bytes, 208, 14),
        TensorType::Iq4Xs => put_half(bytes, 0, 14),
        TensorType::Mxfp4 => bytes[0] = 120,
        // A type that is new here: its result is no number, which fails the test of this test.
        _ => bytes.fill(0),
    }
}

fn weights(ty: TensorType, rows: u32, cols: u32, seed: u32) -> Vec<u8> {
    let bytes = (rows * cols) as usize / ty.block_elements() * ty.block_bytes();
    let words = (0..).flat_map(|index| philox4x32([index, seed, 0, 0], [7, 99]));
    let mut all: Vec<u8> = words.flat_map(u32::to_le_bytes).take(bytes).collect();
    all.chunks_exact_mut(ty.block_bytes()).for_each(|block| make_block(ty, block));
    all
}

/// The logits of a step of many rows and of a step of one row.
pub fn run(device: &mut dyn Device, ty: TensorType) -> Result<Vec<Vec<f32>>, DeviceError> {
    let mut seed = 0;
    let mut matrix = |device: &mut dyn Device, rows, cols| -> Result<MatrixId, DeviceError> {
        seed += 1;
        let usage = MatrixUse { gather: rows == VOCAB, multiply: true };
        let desc = MatrixDesc { name: "a test", rows, cols, ty, usage };
        device.load_matrix(&desc, &weights(ty, rows, cols, seed))
    };
    let linear = |matrix| Linear { matrix, bias: None };
    let weight = device.load_vector("a test", &[1.0; WIDTH as usize])?;
    let norm = Norm { weight, eps: 1e-5 };
    let (x, h) = (Slot(0), Slot(1));
    let ops = vec![
        Op::Embed(op::Embed { table: matrix(device, VOCAB, WIDTH)?, scale: 1.0, x }),
        Op::GateUp(op::GateUp {
            x,
            norm,
            gate: linear(matrix(device, HIDDEN, WIDTH)?),
            up: linear(matrix(device, HIDDEN, WIDTH)?),
            activation: Activation::Silu,
            h,
        }),
        Op::Project(op::Project {
            y: h,
            linear: linear(matrix(device, WIDTH, HIDDEN)?),
            post_norm: None,
            scale: 1.0,
            x,
        }),
        Op::Head(op::Head {
            x,
            norm,
            linear: linear(matrix(device, VOCAB, WIDTH)?),
            soft_cap: None,
            suppressed: Vec::new(),
        }),
    ];
    let cache = device.create_cache(&CacheDesc {
        layers: Vec::new(),
        pages: 2,
        page_tokens: 32,
        max_sequences: 1,
        kv_type: KvType::F16,
    })?;
    let step = device.create_buffer("step", LAYOUT.bytes())?;
    let step_host = device.create_host("step", LAYOUT.bytes())?;
    let results = device.create_buffer("results", LAYOUT.result_bytes())?;
    let bytes = 4 * (ROWS * VOCAB) as usize;
    let logits = device.create_buffer("logits", bytes)?;
    let logits_host = device.create_host("logits", bytes)?;
    let program = |max_rows| Program {
        name: format!("{ty}, {max_rows} rows"),
        phase: Phase::Decode,
        pure_decode: false,
        max_rows,
        max_outputs: max_rows,
        max_context: 32,
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
    let sizes = [ROWS, 1];
    let prepared = device.prepare(sizes.map(program).to_vec())?;
    let (stream, event) = (device.create_stream(StreamPriority::Low)?, device.create_event()?);
    let mut all = Vec::new();
    for (prepared, rows) in prepared.iter().zip(sizes) {
        device.write_host(step_host, 0, LAYOUT.bytes(), &mut |bytes| fill(bytes, rows))?;
        device.upload(stream, step_host, step, LAYOUT.bytes())?;
        device.launch(stream, prepared.graph)?;
        device.download(stream, (logits, 0), (logits_host, 0), bytes)?;
        device.record(stream, event)?;
        device.synchronize_event(event)?;
        device.read_host(logits_host, 0, bytes, &mut |bytes| {
            let numbers = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let numbers: Vec<f32> = numbers.collect();
            all.extend(numbers.chunks(VOCAB as usize).take(rows as usize).map(<[f32]>::to_vec));
        })?;
    }
    Ok(all)
}

/// Rows of one sequence, each with an output.
fn fill(bytes: &mut [u8], rows: u32) {
    let Some(view) = StepViewMut::new(bytes, &LAYOUT) else { return };
    (view.header.rows, view.header.outputs, view.header.sequences) = (rows, rows, 1);
    for (position, (row, output)) in (0..rows).zip(view.rows.iter_mut().zip(view.outputs)) {
        *row = StepRow {
            token: (position * 7 % VOCAB).cast_signed(),
            position,
            previous: position.cast_signed() - 1,
            output: position.cast_signed(),
            flags: if position + 1 == rows { StepRow::LAST_OF_SEQUENCE } else { 0 },
            ..StepRow::default()
        };
        *output = OutputRow { row: position, position, ..OutputRow::default() };
    }
    view.tables[0] = 1;
}
