pub(crate) mod int_dot;

use std::sync::atomic::{AtomicUsize, Ordering};

use walla_device::{philox4x32, unit_interval};

use super::*;
use crate::operands::ROWS;
use crate::quantize::{GROUP, Group};
use crate::work::ThreadCosts;

fn word(i: u32, seed: u32) -> u32 {
    philox4x32([i, 0, 0, 0], [seed, 5])[0]
}

/// Random blocks with moderate scales.
fn random_bytes(ty: TensorType, rows: usize, cols: usize) -> Vec<u8> {
    let len = ty.row_bytes(cols).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..len as u32).map(|i| word(i, ty.to_ggml()) as u8).collect();
    for (i, block) in bytes.chunks_mut(ty.block_bytes()).enumerate() {
        let scale = half::f16::from_f32(unit_interval(word(i as u32, 77)) - 0.5).to_le_bytes();
        match ty {
            TensorType::F32 => {
                block.copy_from_slice(&(unit_interval(word(i as u32, 78)) - 0.5).to_le_bytes());
            }
            TensorType::BF16 => block[1] = 0x3C | block[1] & 0x83,
            TensorType::F16 => block.copy_from_slice(&scale),
            TensorType::Q6K => block[208..].copy_from_slice(&scale),
            TensorType::Q3K => block[108..].copy_from_slice(&scale),
            TensorType::Q2K => {
                block[80..82].copy_from_slice(&scale);
                block[82..].copy_from_slice(&scale);
            }
            TensorType::Mxfp4 => block[0] = 120 + block[0] % 8,
            _ => {
                block[..2].copy_from_slice(&scale);
                if matches!(
                    ty,
                    TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K
                ) {
                    block[2..4].copy_from_slice(&scale);
                }
            }
        }
    }
    bytes
}

fn load(ty: TensorType, rows: usize, cols: usize, bytes: &[u8], variant: Variant) -> Matrix {
    load_on(&Pool::start(1, ThreadCosts::new(0)).unwrap(), ty, rows, cols, bytes, variant)
}

fn load_on(
    pool: &Pool,
    ty: TensorType,
    rows: usize,
    cols: usize,
    bytes: &[u8],
    variant: Variant,
) -> Matrix {
    let usage = MatrixUse { gather: true, multiply: true };
    let desc = MatrixDesc { name: "w", rows: rows as u32, cols: cols as u32, ty, usage };
    Matrix::load(&desc, &bytes, variant, pool).unwrap()
}

fn simd() -> impl Iterator<Item = Variant> {
    let runs = |variant: &Variant| *variant != Variant::Scalar && variant.score().is_some();
    Variant::ALL.iter().copied().filter(runs)
}

/// Column counts: one block, several blocks, and odd numbers for types with blocks of one element.
fn columns(ty: TensorType) -> [usize; 3] {
    match ty.block_elements() {
        256 => [256, 512, 1280],
        32 => [32, 96, 576],
        _ => [1, 37, 64],
    }
}

#[test]
fn packed_rows_are_gathered_bit_for_bit() {
    for ty in TensorType::ALL {
        let cols = columns(ty)[1];
        let bytes = random_bytes(ty, 35, cols);
        let scalar = load(ty, 35, cols, &bytes, Variant::Scalar);
        for variant in simd() {
            let packed = load(ty, 35, cols, &bytes, variant);
            for row in [0, 1, 15, 16, 34] {
                let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
                scalar.gather(row, &mut a);
                packed.gather(row, &mut b);
                assert_eq!(a, b, "{ty} {variant} row {row}");
            }
        }
    }
}

#[test]
fn panels_do_not_depend_on_the_number_of_threads() {
    let pool = Pool::start(3, ThreadCosts::new(0)).unwrap();
    for (ty, variant) in TensorType::ALL.into_iter().flat_map(|ty| simd().map(move |v| (ty, v))) {
        // The last panel is partial.
        let (rows, cols) = (100, columns(ty)[2]);
        let bytes = random_bytes(ty, rows, cols);
        let alone = load(ty, rows, cols, &bytes, variant);
        let together = load_on(&pool, ty, rows, cols, &bytes, variant);
        assert!(alone.bytes.bytes() == together.bytes.bytes(), "{ty} {variant}");
    }
}

#[test]
fn kernels_agree_with_plain_rust_at_every_number_of_rows() {
    for (ty, variant) in TensorType::ALL.into_iter().flat_map(|ty| simd().map(move |v| (ty, v))) {
        for cols in columns(ty) {
            let bytes = random_bytes(ty, 21, cols);
            let (matrix, scalar) =
                (load(ty, 21, cols, &bytes, variant), load(ty, 21, cols, &bytes, Variant::Scalar));
            let values: Vec<f32> =
                (0..8 * cols as u32).map(|i| unit_interval(word(i, 9)) * 6.0 - 3.0).collect();
            let input = Input { cols, values: &values, groups: &[] };
            for panel in 0..2 {
                let mut wanted = [[0.0; PANEL]; ROWS];
                scalar.multiply(panel, input, &mut vec![0.0; cols], &mut wanted);
                for rows in 1..=ROWS {
                    let mut got = [[f32::NAN; PANEL]; ROWS];
                    let values = &values[..rows * cols];
                    let mut groups = vec![Group::default(); rows * (cols / GROUP)];
                    if matrix.takes_groups() {
                        kernels::round_activations(variant, values, cols, &mut groups);
                    }
                    let input = Input { cols, values, groups: &groups };
                    matrix.multiply(panel, input, &mut [], &mut got);
                    check(&matrix, &bytes, panel, &got[..rows], &wanted, input);
                }
            }
        }
    }

    fn check(
        matrix: &Matrix,
        bytes: &[u8],
        panel: usize,
        got: &[[f32; PANEL]],
        wanted: &Products,
        input: Input<'_>,
    ) {
        let (ty, cols, got_rows) = (matrix.ty, matrix.cols, got.len());
        for (r, got) in got.iter().enumerate() {
            for lane in 0..PANEL {
                let row = panel * PANEL + lane;
                if row >= matrix.rows {
                    assert_eq!(got[lane], 0.0);
                    continue;
                }
                let case = format!("{ty} {} row {row} x {r}, {cols} columns", matrix.variant);
                let mut weights = vec![0.0; cols];
                matrix.gather(row, &mut weights);
                let exact = if matrix.takes_groups() {
                    let row_bytes = ty.row_bytes(cols).unwrap();
                    let x: Vec<Group> =
                        input.groups.iter().skip(r).step_by(got_rows).copied().collect();
                    int_dot::dot(ty, &bytes[row * row_bytes..][..row_bytes], &x)
                } else {
                    int_dot::float_dot(&weights, &input.values[r * cols..][..cols])
                };
                assert_eq!(got[lane], exact, "{case}");
                // Rounding changes each product by at most half a step of 1/127 of the largest
                // activation.
                let size: f32 = weights.iter().map(|w| w.abs()).sum();
                let step = if matrix.takes_groups() { 3.0 / 127.0 / 2.0 } else { 1e-5 };
                let error = (got[lane] - wanted[r][lane]).abs();
                assert!(error <= size * step * 1.01 + 1e-6, "{case}: {error} of {size}");
            }
        }
    }
}

/// Sets the scales of a block: the bits of f16 factors, or an exponent.
fn put_factors(ty: TensorType, block: &mut [u8], bits: u16) {
    let places: &[usize] = match ty {
        TensorType::Mxfp4 => {
            block[0] = bits as u8;
            return;
        }
        TensorType::Q2K => &[80, 82],
        TensorType::Q3K => &[108],
        TensorType::Q6K => &[208],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
        _ => &[0],
    };
    for at in places {
        block[*at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

/// The largest integers, with activations of the largest integer: sums are as far as they can be
/// from zero. Scales are the largest, the smallest, infinite and NaN.
#[test]
fn extreme_blocks_agree_with_plain_rust() {
    let quantized = TensorType::ALL.into_iter().filter(|ty| ty.is_quantized());
    for (ty, variant) in quantized.flat_map(|ty| simd().map(move |variant| (ty, variant))) {
        let cols = columns(ty)[1];
        // The bits of f16: 1, 65504, -65504, the least above zero, infinity, NaN; or exponents.
        let factors: &[u16] = match ty {
            TensorType::Mxfp4 => &[127, 254, 253, 0, 1, 2, 255],
            _ => &[0x3C00, 0x7BFF, 0xFBFF, 1, 0x7C00, 0x7E00],
        };
        let rows = factors.len();
        for fill in [0x00, 0xFF, 0x80, 0x7F, 0x88, 0x77, 0x0F, 0xF0] {
            let mut bytes = vec![fill; ty.row_bytes(cols).unwrap() * rows];
            for (row, bits) in bytes.chunks_mut(ty.row_bytes(cols).unwrap()).zip(factors) {
                row.chunks_mut(ty.block_bytes()).for_each(|block| put_factors(ty, block, *bits));
            }
            let matrix = load(ty, rows, cols, &bytes, variant);
            // All 127, all -127, and both in turn.
            let signs = [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]];
            let values: Vec<f32> =
                signs.iter().flat_map(|two| (0..cols).map(move |i| two[i % 2] * 2.5)).collect();
            let mut groups = vec![Group::default(); 3 * (cols / GROUP)];
            kernels::round_activations(variant, &values, cols, &mut groups);
            let mut got = [[f32::NAN; PANEL]; ROWS];
            let input = Input { cols, values: &values, groups: &groups };
            matrix.multiply(0, input, &mut [], &mut got);
            for (r, row) in (0..3).flat_map(|r| (0..rows).map(move |row| (r, row))) {
                let x: Vec<Group> = groups.iter().skip(r).step_by(3).copied().collect();
                let row_bytes = ty.row_bytes(cols).unwrap();
                let exact = int_dot::dot(ty, &bytes[row * row_bytes..][..row_bytes], &x);
                let same = got[r][row] == exact || got[r][row].is_nan() && exact.is_nan();
                let case = format!("{ty} {variant} {fill:#x} {:#x} x {r}", factors[row]);
                assert!(same, "{case}: {} is not {exact}", got[r][row]);
            }
        }
    }
}

/// A source that copies, like a file.
struct InFile {
    bytes: Vec<u8>,
    /// Reads that start at or after this byte fail.
    fails_from: usize,
    /// Bytes of the largest read.
    largest: AtomicUsize,
}

impl InFile {
    fn new(bytes: &[u8], fails_from: usize) -> Self {
        Self { bytes: bytes.to_vec(), fails_from, largest: AtomicUsize::new(0) }
    }
}

impl WeightSource for InFile {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn read<'a>(
        &'a self,
        range: Range<usize>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], DeviceError> {
        buffer.resize(range.len().max(buffer.len()), 0);
        let part = &mut buffer[..range.len()];
        self.read_into(range.start, part)?;
        self.largest.fetch_max(range.len(), Ordering::Relaxed);
        Ok(part)
    }

    fn read_into(&self, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        if start + out.len() > self.fails_from {
            return Err(DeviceError::Source { matrix: "w".into(), reason: "cut off".into() });
        }
        out.copy_from_slice(&self.bytes[start..][..out.len()]);
        Ok(())
    }
}

#[test]
fn a_matrix_in_a_file_is_read_in_pieces_and_packed_as_one_in_memory() {
    let pools = [
        Pool::start(1, ThreadCosts::new(0)).unwrap(),
        Pool::start(3, ThreadCosts::new(0)).unwrap(),
    ];
    for (ty, variant) in TensorType::ALL
        .into_iter()
        .flat_map(|ty| Variant::ALL.iter().map(move |variant| (ty, *variant)))
        .filter(|(_, variant)| variant.score().is_some())
    {
        // Several pieces of 256 KiB, the last panel not full.
        let cols = columns(ty)[2];
        let rows = (5 * READ_BYTES / 2 / ty.row_bytes(cols).unwrap()).next_multiple_of(PANEL) + 5;
        let bytes = random_bytes(ty, rows, cols);
        let usage = MatrixUse { gather: false, multiply: true };
        let desc = MatrixDesc { name: "w", rows: rows as u32, cols: cols as u32, ty, usage };
        let in_memory = load(ty, rows, cols, &bytes, variant);
        for pool in &pools {
            let source = InFile::new(&bytes, bytes.len());
            let matrix = Matrix::load(&desc, &source, variant, pool).unwrap();
            assert!(matrix.bytes.bytes() == in_memory.bytes.bytes(), "{ty} {variant}");
            assert!(source.largest.into_inner() <= READ_BYTES, "{ty} {variant}");
            // A failed read is an error, wherever it occurs.
            for fails_from in [0, bytes.len() / 2, bytes.len() - 1] {
                let loaded = Matrix::load(&desc, &InFile::new(&bytes, fails_from), variant, pool);
                let error = loaded.err().expect("a part is missing");
                assert!(matches!(error, DeviceError::Source { .. }), "{ty} {variant}: {error}");
            }
        }
    }
}
