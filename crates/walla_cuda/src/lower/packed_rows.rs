//! Packed rows of x (kernels/gemm/packed_activations.cuh): by the kernel that produces the rows, if
//! possible, even as the next norm's input; otherwise by `pack`.

use walla_device::{DeviceError, Norm, Slot};

use super::operands::{Input, Normed};
use super::tiling::GROUP_ROWS;
use super::{Area, Lowering, gemm_sm90};
use crate::params::{Address, GatherParams, PackParams, PackedRef};
use crate::repack;

/// Rows without a norm are scaled by this factor before they are rounded to f16, so that
/// activations up to 4 million stay finite.
const PROJECT_SCALE: f32 = 1.0 / 64.0;

/// Maximum bytes of packed rows.
pub(super) fn packed_bytes(rows: u32, cols: u32) -> usize {
    let rows = rows.next_multiple_of(GROUP_ROWS) as usize;
    2 * rows * (cols as usize).next_multiple_of(repack::SEGMENT)
}

/// Row capacity of a group: 8 if WGMMA kernels may multiply them. For padded rows it is the same in
/// all programs, so that no program overwrites another's padding, which must stay zero.
pub(super) fn group_rows(rows: u32, width: u32) -> u32 {
    if width.is_multiple_of(repack::SEGMENT as u32) {
        if rows < gemm_sm90::ROWS_MIN { rows.max(1) } else { GROUP_ROWS }
    } else {
        GROUP_ROWS
    }
}

/// Sums of squares per row: one for each tile that contributes, padded with zeros to a multiple of
/// four.
fn squares_count(width: u32) -> u32 {
    width.div_ceil(repack::TILE_ROWS as u32).next_multiple_of(4)
}

/// Describes packed rows at an address.
fn packed(rows: Address, (max_rows, width): (u32, u32), is_normed: bool) -> PackedRef {
    PackedRef {
        rows,
        segments: width.div_ceil(repack::SEGMENT as u32),
        scale: if is_normed { 1.0 } else { PROJECT_SCALE },
        group_rows: group_rows(max_rows, width),
        reserved: 0,
    }
}

/// Describes packed rows without a norm, in whole groups for any number of rows.
pub(super) fn padded(rows: Address, width: u32) -> PackedRef {
    PackedRef { group_rows: GROUP_ROWS, ..packed(rows, (GROUP_ROWS, width), false) }
}

impl Lowering<'_> {
    /// The packed rows for a product: packed by an earlier kernel, or by one that is launched now.
    pub(super) fn operand(&mut self, input: &Input) -> Result<Normed, DeviceError> {
        if let Some(normed) = self.normed.filter(|normed| input.is(normed)) {
            return Ok(normed);
        }
        let (norm, eps) = input.norm.unwrap_or_default();
        let operand = |rows| Normed {
            slot: input.slot,
            norm,
            rows,
            pack_factors: 0,
            squares: None,
            has_factors: false,
        };
        if let Some(rows) = input.packed {
            return Ok(operand(rows));
        }
        let is_normed = input.norm.is_some();
        let area = if is_normed { Area::PackedNormed } else { Area::Packed };
        let rows = self.packed_rows(area, input.width, is_normed);
        let pack_factors = if is_normed { self.factors(self.factors) } else { 0 };
        let params = PackParams {
            x: input.x,
            norm,
            packed: rows,
            factors: pack_factors,
            width: input.width,
            eps,
        };
        let grid = [self.program.max_rows, 1, 1];
        self.launch(("pack", "pack"), grid, 256, &params)?;
        let operand = Normed { pack_factors, ..operand(rows) };
        // Further products of the same norm read these rows instead of packing them again.
        if is_normed {
            self.normed = Some(operand);
        }
        Ok(operand)
    }

    /// The packed rows that a projection writes for the next norm.
    pub(super) fn next_normed(&mut self, slot: Slot, norm: &Norm) -> Result<Normed, DeviceError> {
        let (_, width) = self.slot(slot)?;
        let count = squares_count(width);
        let squares_bytes = 4 * self.program.max_rows as usize * count as usize;
        Ok(Normed {
            slot,
            norm: self.resources.vector(norm.weight)?.memory.address(),
            rows: self.packed_rows(Area::PackedNormed, width, true),
            pack_factors: self.factors(self.factors),
            squares: Some((self.workspace.at(Area::Squares, squares_bytes), count)),
            has_factors: false,
        })
    }

    /// The packed rows that `add_norm` writes for the next norm, with their exact factors.
    pub(super) fn exactly_normed(
        &mut self,
        slot: Slot,
        norm: &Norm,
    ) -> Result<Normed, DeviceError> {
        Ok(Normed { squares: None, ..self.next_normed(slot, norm)? })
    }

    /// Address of the norm factors of rows. There are two buffers in alternation, since one is read
    /// while the other is written.
    pub(super) fn factors(&mut self, second: bool) -> Address {
        let area = if second { Area::OtherFactors } else { Area::Factors };
        self.workspace.at(area, 4 * self.program.max_rows as usize)
    }

    /// Packed rows in an area.
    pub(super) fn packed_rows(&mut self, area: Area, width: u32, is_normed: bool) -> PackedRef {
        let rows = self.program.max_rows;
        let at = self.workspace.at(area, packed_bytes(rows, width));
        packed(at, (rows, width), is_normed)
    }

    /// Gathers the rows that outputs refer to into contiguous rows.
    pub(super) fn gather(&mut self, input: &Input, x: &Normed) -> Result<Normed, DeviceError> {
        let (squares, squares_count) = x.squares.unwrap_or_default();
        let max_rows = self.program.max_rows;
        let squares_bytes = 4 * max_rows as usize * squares_count as usize;
        let squares_to = self.workspace.at(Area::GatheredSquares, squares_bytes);
        let factors_bytes = 4 * input.rows as usize;
        let pack_factors_to = self.workspace.at(Area::GatheredPackFactors, factors_bytes);
        let at = self.workspace.at(Area::Gathered, packed_bytes(max_rows, input.width));
        let shape = (input.rows, input.width);
        let rows = PackedRef { scale: x.rows.scale, ..packed(at, shape, true) };
        let gathered = Normed {
            rows,
            pack_factors: if squares == 0 { x.pack_factors } else { pack_factors_to },
            squares: x.squares.map(|(_, count)| (squares_to, count)),
            ..*x
        };
        let params = GatherParams {
            step: self.step()?,
            from: x.rows,
            to: rows,
            squares,
            squares_to,
            pack_factors: x.pack_factors,
            pack_factors_to,
            squares_count,
            rows_last: max_rows - 1,
        };
        self.launch(("gather", "gather"), [input.rows, 1, 1], 256, &params)?;
        Ok(gathered)
    }
}
