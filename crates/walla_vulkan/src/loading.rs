//! Loads weights: reads rows in parts, repacks them, and copies them through host memory.

use walla_device::{DeviceError, MatrixDesc, WeightSource};

use crate::driver::{Context, Memory, Place};
use crate::repack::{BLOCK, Kind, Row, positions};
use crate::resources::Matrix;

/// Bytes of the host memory that copies pass through.
const STAGING_BYTES: usize = 8 << 20;

/// Host memory for copies to the device, made at the first of them.
#[derive(Debug, Default)]
pub(crate) struct Staging(Option<Memory>);

impl Staging {
    /// Copies bytes to the start of device memory and what follows it.
    pub(crate) fn copy(
        &mut self,
        context: &mut Context,
        bytes: &[u8],
        (to, offset): (&Memory, usize),
    ) -> Result<(), DeviceError> {
        let staging = match self.0 {
            Some(staging) => staging,
            None => *self.0.insert(context.allocate("copies", STAGING_BYTES, Place::Host)?),
        };
        for (index, part) in bytes.chunks(STAGING_BYTES).enumerate() {
            context.host_mut(&staging, 0..part.len()).copy_from_slice(part);
            let offset = offset + index * STAGING_BYTES;
            context.copy_now((&staging, 0), (to, offset), part.len())?;
        }
        Ok(())
    }

    /// Loads a matrix.
    pub(crate) fn matrix(
        &mut self,
        context: &mut Context,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<Matrix, DeviceError> {
        let MatrixDesc { name, rows, cols, ty, usage } = *desc;
        let (height, width) = (rows as usize, cols as usize);
        let unsupported = || {
            let what = format!("{name}: {cols} columns of {}", ty.name());
            DeviceError::Unsupported { device: context.gpu().name.clone(), what }
        };
        let kind = Kind::of(ty).ok_or_else(unsupported)?;
        let row_bytes = ty.row_bytes(width).ok_or_else(unsupported)?;
        if !kind.is_quantized() && !width.is_multiple_of(2) {
            return Err(unsupported());
        }
        let bytes = height.checked_mul(row_bytes);
        if bytes != Some(source.bytes()) {
            let why = format!("{name} has {} bytes, expected {bytes:?}", source.bytes());
            return Err(DeviceError::Invalid(why));
        }
        let blocks = positions(width / BLOCK);
        let words = if kind.is_quantized() { blocks * kind.words() } else { row_bytes / 4 };
        // Shaders count words with 32 bits.
        if height.saturating_mul(words) > u32::MAX as usize {
            return Err(unsupported());
        }
        let is_quantized = kind.is_quantized();
        let words_of_row = words + if is_quantized { blocks + 1 } else { 0 };
        let weights = context.allocate(name, height * words_of_row * 4, Place::Device)?;
        let (of_blocks, of_rows) = (height * words * 4, height * (words + blocks) * 4);
        // Whole rows, so that a part is at most the staging memory.
        let rows_of_part = (STAGING_BYTES / (words.max(1) * 4)).clamp(1, height.max(1));
        let mut buffer = Vec::new();
        for first in (0..height).step_by(rows_of_part) {
            let count = rows_of_part.min(height - first);
            let range = first * row_bytes..(first + count) * row_bytes;
            let bytes = source.read(range, &mut buffer)?;
            if !is_quantized {
                self.copy(context, bytes, (&weights, first * row_bytes))?;
                continue;
            }
            let mut packed = vec![0_u32; count * words];
            let mut block_factors = vec![0_u32; count * blocks];
            let mut scales = vec![0.0_f32; count];
            let outs = packed.chunks_exact_mut(words.max(1));
            let outs = outs.zip(block_factors.chunks_exact_mut(blocks.max(1))).zip(&mut scales);
            for (bytes, ((words, factors), scale)) in bytes.chunks_exact(row_bytes).zip(outs) {
                Row { words, factors, scale }.put(ty, bytes);
            }
            let cast = |words: &[u32]| bytemuck::cast_slice::<_, u8>(words).to_vec();
            self.copy(context, &cast(&packed), (&weights, first * words * 4))?;
            self.copy(context, &cast(&block_factors), (&weights, of_blocks + first * blocks * 4))?;
            self.copy(context, bytemuck::cast_slice(&scales), (&weights, of_rows + first * 4))?;
        }
        Ok(Matrix { name: name.to_owned(), kind, rows, cols, usage, weights })
    }
}
