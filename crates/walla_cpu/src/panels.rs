//! Weights rearranged for kernels that hold 16 weight rows in the lanes of a register.
//!
//! A panel is 16 rows of a matrix (missing rows are zeros). For quantised types its columns form
//! **groups** of 32:
//!
//! | type | `quants` of a group, bytes | `side` of a block, bytes |
//! |---|---|---|
//! | Q8_0 | 8 steps x 64 | 16 f16 scales |
//! | Q4_0, Q4_1 | 4 x 64 (two steps in the nibbles) | 16 f16 scales (, 16 f16 minima) |
//! | Q5_0, Q5_1 | 4 x 64, then 64 with bit `j` of a byte for step `j` | the same |
//! | Q4_K | 4 x 64 | of 256 numbers: 16 f16 `d`, 16 f16 `dmin`, 8 x 16 scales, 8 x 16 minima |
//! | Q5_K | 4 x 64, then 64 | the same |
//! | Q6_K | 4 x 64, then 2 x 64 with bits `2p..2p+2` of register `z` for step `4z + p` | of 256 numbers: 16 f16 `d`, 16 x 16 scales |
//! | Q2_K | 2 x 64 with bits as the last two of Q6_K | of 256 numbers: 16 f16 `d`, 16 f16 `dmin`, 16 x 16 bytes with a scale and a minimum in the nibbles |
//! | Q3_K | 2 x 64, then 64 with bit `j` of a byte for step `j` | as Q6_K |
//! | IQ4_NL | 4 x 64 | 16 f16 scales |
//! | IQ4_XS | 4 x 64 | of 256 numbers: 16 f16 `d`, 8 x 16 scales |
//! | MXFP4 | 4 x 64 | 16 exponents of scales |
//!
//! A **step** is four neighbouring columns: byte `4 * lane + b` of a register belongs to row `lane`
//! and column `4 * step + b`. This is the operand order of instructions that multiply bytes and add
//! groups of four. Low nibbles are steps 0..4, high nibbles steps 4..8. All `side` parts of a panel
//! are stored first, then all `quants`; each of the two starts at a multiple of 64 bytes.
//!
//! F32, F16 and BF16 panels are transposed: 16 numbers for each column.
//!
//! A row's block takes 4 more bytes for Q4_K (2.8 %), Q5_K (2.3 %) and Q3_K (3.6 %), and 2 more for
//! IQ4_XS (1.5 %), because their 6-bit scales are stored in 8 bits. Other types take the same space
//! as in the file, except for rounding to 64 bytes and to 16 rows.

use half::f16;
use walla_types::TensorType;
use walla_types::blocks::{self, Block, Scale};

use crate::operands::PANEL;
use crate::quantize::GROUP;

/// The type as a number for a const parameter: its code in GGUF files.
pub(crate) const fn code(ty: TensorType) -> u32 {
    ty.to_ggml()
}

/// The type with this code.
pub(crate) const fn of_code(code: u32) -> TensorType {
    match TensorType::from_ggml(code) {
        Ok(ty) => ty,
        Err(_) => panic!("not the code of a type"),
    }
}

/// Sizes of a type's panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bytes of the quants of one group.
    pub quants: usize,
    /// Bytes of the side part of one block.
    pub side: usize,
    /// Groups of a block.
    pub groups: usize,
}

impl Format {
    /// The format of a quantised type.
    pub(crate) const fn of(ty: TensorType) -> Self {
        match ty {
            TensorType::Q8_0 => Self { quants: 512, side: 32, groups: 1 },
            TensorType::Q4_0 => Self { quants: 256, side: 32, groups: 1 },
            TensorType::Q4_1 => Self { quants: 256, side: 64, groups: 1 },
            TensorType::Q5_0 => Self { quants: 320, side: 32, groups: 1 },
            TensorType::Q5_1 => Self { quants: 320, side: 64, groups: 1 },
            TensorType::Q4K => Self { quants: 256, side: 320, groups: 8 },
            TensorType::Q5K => Self { quants: 320, side: 320, groups: 8 },
            TensorType::Q2K => Self { quants: 128, side: 320, groups: 8 },
            TensorType::Q3K => Self { quants: 192, side: 288, groups: 8 },
            TensorType::Iq4Nl => Self { quants: 256, side: 32, groups: 1 },
            TensorType::Iq4Xs => Self { quants: 256, side: 160, groups: 8 },
            TensorType::Mxfp4 => Self { quants: 256, side: 16, groups: 1 },
            _ => Self { quants: 384, side: 288, groups: 8 },
        }
    }

    /// Bytes of one group with its share of the side part, which kernels prefetch.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) const fn group_bytes(self) -> usize {
        self.quants + self.side / self.groups
    }
}

/// Offsets in one panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Offset of the quants.
    pub quants_at: usize,
    /// Bytes of a panel.
    pub bytes: usize,
}

impl Layout {
    /// The layout of panels of `cols` columns.
    pub(crate) fn new(ty: TensorType, cols: usize) -> Self {
        if !ty.is_quantized() {
            let bytes = cols * PANEL * ty.block_bytes();
            return Self { quants_at: 0, bytes: bytes.next_multiple_of(64) };
        }
        let format = Format::of(ty);
        let groups = cols / GROUP;
        let side = groups / format.groups * format.side;
        let quants_at = side.next_multiple_of(64);
        Self { quants_at, bytes: quants_at + groups * format.quants }
    }
}

/// Writes `rows` (at most 16, in the file's layout) into a zeroed panel.
pub(crate) fn pack<'a>(
    ty: TensorType,
    cols: usize,
    rows: impl Iterator<Item = &'a [u8]>,
    panel: &mut [u8],
) {
    macro_rules! by_type {
        ($($quantized:ident),+) => {
            match ty {
                $(TensorType::$quantized => {
                    pack_as::<{ code(TensorType::$quantized) }>(cols, rows, panel);
                })+
                _ => transpose(ty.block_bytes(), rows, panel),
            }
        };
    }
    by_type!(Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4K, Q5K, Q6K, Q2K, Q3K, Iq4Nl, Iq4Xs, Mxfp4);
}

/// Writes rows of numbers of `size` bytes, transposed.
fn transpose<'a>(size: usize, rows: impl Iterator<Item = &'a [u8]>, panel: &mut [u8]) {
    for (lane, row) in rows.enumerate() {
        for (col, number) in row.chunks_exact(size).enumerate() {
            panel[(col * PANEL + lane) * size..][..size].copy_from_slice(number);
        }
    }
}

/// Writes rows of a quantised type. The type is a compile-time constant, so the inner loops do not
/// branch on it.
fn pack_as<'a, const TY: u32>(cols: usize, rows: impl Iterator<Item = &'a [u8]>, panel: &mut [u8]) {
    let ty = const { of_code(TY) };
    let (layout, format) = (Layout::new(ty, cols), const { Format::of(of_code(TY)) });
    for (lane, row) in rows.enumerate() {
        let (side, quants) = panel.split_at_mut(layout.quants_at);
        let sides = side.chunks_exact_mut(format.side);
        let quants = quants.chunks_exact_mut(format.quants * format.groups);
        for ((bytes, side), quants) in row.chunks_exact(ty.block_bytes()).zip(sides).zip(quants) {
            let block = blocks::take_apart(ty, bytes);
            pack_side(ty, &block, lane, side);
            let groups =
                block.codes.chunks_exact(GROUP).zip(quants.chunks_exact_mut(format.quants));
            for (codes, quants) in groups {
                pack_group::<TY>(codes, lane, quants);
            }
        }
    }
}

fn put_16(side: &mut [u8], at: usize, lane: usize, bits: u16) {
    side[at + 2 * lane..][..2].copy_from_slice(&bits.to_le_bytes());
}

fn get_16(side: &[u8], at: usize, lane: usize) -> u16 {
    u16::from_le_bytes([side[at + 2 * lane], side[at + 2 * lane + 1]])
}

fn pack_side(ty: TensorType, block: &Block, lane: usize, side: &mut [u8]) {
    if ty == TensorType::Mxfp4 {
        side[lane] = block.d.bits as u8;
        return;
    }
    put_16(side, 0, lane, block.d.bits);
    match ty {
        TensorType::Q4_1 | TensorType::Q5_1 => put_16(side, 32, lane, block.m.to_bits()),
        TensorType::Q4K | TensorType::Q5K => {
            put_16(side, 32, lane, block.m.to_bits());
            for j in 0..8 {
                side[64 + 16 * j + lane] = block.scales[j].cast_unsigned();
                side[192 + 16 * j + lane] = block.mins[j];
            }
        }
        TensorType::Q2K => {
            put_16(side, 32, lane, block.m.to_bits());
            for (j, (scale, min)) in block.scales.iter().zip(block.mins).enumerate() {
                side[64 + 16 * j + lane] = scale.cast_unsigned() | min << 4;
            }
        }
        TensorType::Q3K | TensorType::Q6K | TensorType::Iq4Xs => {
            for (j, scale) in block.scales[..subs(ty)].iter().enumerate() {
                side[32 + 16 * j + lane] = scale.cast_unsigned();
            }
        }
        _ => {}
    }
}

/// Sub-blocks of a block.
const fn subs(ty: TensorType) -> usize {
    ty.block_elements() / blocks::sub_elements(ty)
}

/// Place of bits `2..` of a code in the quants of a group, for types with pairs of bits: Q2_K and
/// Q3_K have only these, Q6_K has them after its nibbles.
const fn pairs_at(ty: TensorType) -> Option<usize> {
    match ty {
        TensorType::Q2K | TensorType::Q3K => Some(0),
        TensorType::Q6K => Some(256),
        _ => None,
    }
}

/// Place of the single upper bits of codes in the quants of a group, and their position in a code.
const fn bits_at(ty: TensorType) -> Option<(usize, u8)> {
    match ty {
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => Some((256, 4)),
        TensorType::Q3K => Some((128, 2)),
        _ => None,
    }
}

const fn has_nibbles(ty: TensorType) -> bool {
    !matches!(ty, TensorType::Q2K | TensorType::Q3K)
}

fn pack_group<const TY: u32>(codes: &[u8], lane: usize, quants: &mut [u8]) {
    let ty = const { of_code(TY) };
    let quants = &mut quants[..const { Format::of(of_code(TY)).quants }];
    assert!(lane < PANEL, "a lane of a panel");
    for (k, code) in codes.iter().enumerate() {
        let (step, at) = (k / 4, 4 * lane + k % 4);
        if ty == TensorType::Q8_0 {
            quants[step * 64 + at] = *code;
            continue;
        }
        if has_nibbles(ty) {
            quants[step % 4 * 64 + at] |= (code & 15) << (step / 4 * 4);
        }
        if let Some(pairs) = pairs_at(ty) {
            let pair = if has_nibbles(ty) { code >> 4 } else { code & 3 };
            quants[pairs + step / 4 * 64 + at] |= pair << (step % 4 * 2);
        }
        if let Some((bits, position)) = bits_at(ty) {
            quants[bits + at] |= (code >> position) << step;
        }
    }
}

fn unpack_group(ty: TensorType, quants: &[u8], lane: usize, codes: &mut [u8]) {
    for (k, code) in codes.iter_mut().enumerate() {
        let (step, at) = (k / 4, 4 * lane + k % 4);
        if ty == TensorType::Q8_0 {
            *code = quants[step * 64 + at];
            continue;
        }
        *code = if has_nibbles(ty) { quants[step % 4 * 64 + at] >> (step / 4 * 4) & 15 } else { 0 };
        if let Some(pairs) = pairs_at(ty) {
            let pair = quants[pairs + step / 4 * 64 + at] >> (step % 4 * 2) & 3;
            *code |= if has_nibbles(ty) { pair << 4 } else { pair };
        }
        if let Some((bits, position)) = bits_at(ty) {
            *code |= (quants[bits + at] >> step & 1) << position;
        }
    }
}

fn unpack_side(ty: TensorType, side: &[u8], lane: usize, block: &mut Block) {
    if ty == TensorType::Mxfp4 {
        block.d = Scale { bits: u16::from(side[lane]) };
        return;
    }
    block.d = Scale { bits: get_16(side, 0, lane) };
    match ty {
        TensorType::Q4_1 | TensorType::Q5_1 => block.m = f16::from_bits(get_16(side, 32, lane)),
        TensorType::Q4K | TensorType::Q5K => {
            block.m = f16::from_bits(get_16(side, 32, lane));
            for j in 0..8 {
                block.scales[j] = side[64 + 16 * j + lane].cast_signed();
                block.mins[j] = side[192 + 16 * j + lane];
            }
        }
        TensorType::Q2K => {
            block.m = f16::from_bits(get_16(side, 32, lane));
            for (j, (scale, min)) in block.scales.iter_mut().zip(&mut block.mins).enumerate() {
                let both = side[64 + 16 * j + lane];
                (*scale, *min) = ((both & 15).cast_signed(), both >> 4);
            }
        }
        TensorType::Q3K | TensorType::Q6K | TensorType::Iq4Xs => {
            for (j, scale) in block.scales[..subs(ty)].iter_mut().enumerate() {
                *scale = side[32 + 16 * j + lane].cast_signed();
            }
        }
        _ => {}
    }
}

/// Dequantises row `lane` of a panel: bit-identical to [`blocks::dequantize`] of the file's row.
pub(crate) fn gather(ty: TensorType, panel: &[u8], lane: usize, out: &mut [f32]) {
    if !ty.is_quantized() {
        let size = ty.block_bytes();
        for (col, out) in out.iter_mut().enumerate() {
            let number = &panel[(col * PANEL + lane) * size..][..size];
            blocks::dequantize(ty, number, std::slice::from_mut(out));
        }
        return;
    }
    let format = Format::of(ty);
    let (side, quants) = panel.split_at(Layout::new(ty, out.len()).quants_at);
    let sides = side.chunks_exact(format.side);
    let quants = quants.chunks_exact(format.quants * format.groups);
    let mut block = Block::empty();
    for ((out, side), quants) in out.chunks_mut(ty.block_elements()).zip(sides).zip(quants) {
        unpack_side(ty, side, lane, &mut block);
        let groups = block.codes.chunks_exact_mut(GROUP).zip(quants.chunks_exact(format.quants));
        for (codes, quants) in groups {
            unpack_group(ty, quants, lane, codes);
        }
        blocks::put_together(ty, &block, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes in the module's documentation.
    #[test]
    fn panels_take_a_few_bytes_a_block_more_for_types_with_scales_of_6_bits() {
        let cols = 2048;
        for ty in TensorType::ALL {
            let blocks = cols / ty.block_elements();
            let more = match ty {
                TensorType::Q3K | TensorType::Q4K | TensorType::Q5K => 4 * blocks,
                TensorType::Iq4Xs => 2 * blocks,
                _ => 0,
            };
            let in_file = ty.row_bytes(cols).unwrap();
            assert_eq!(Layout::new(ty, cols).bytes, PANEL * (in_file + more), "{ty}");
        }
    }
}
