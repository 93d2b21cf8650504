//! Weights on their way to the device: repacked into pinned memory while the piece before them is copied.

use walla_device::{DeviceError, MatrixDesc, StreamPriority};

use crate::driver::{Context, DeviceMemory, Event, PinnedMemory, Stream};
use crate::params::WeightRef;
use crate::repack::{self, TILE_ROWS, Tile, TileBytes};

/// Bytes of one of the two pieces of pinned memory: large enough that a copy runs at the bus's speed.
const PIECE_BYTES: usize = 8 << 20;

/// A loading stream with two pieces of pinned memory, used in turn.
#[derive(Debug)]
pub(crate) struct Staging {
    stream: Stream,
    pieces: [(PinnedMemory, Event); 2],
    turn: usize,
}

impl Staging {
    pub(crate) fn create(context: &Context) -> Result<Self, DeviceError> {
        let piece = || Ok((context.allocate_pinned(PIECE_BYTES)?, context.create_event()?));
        Ok(Self {
            stream: context.create_stream(StreamPriority::Low)?,
            pieces: [piece()?, piece()?],
            turn: 0,
        })
    }

    /// Pinned bytes held.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.pieces.iter().map(|(memory, _)| memory.bytes() as u64).sum()
    }

    /// Copies plain bytes to device memory. Returns when the bytes have been read, not when they have arrived.
    pub(crate) fn copy(
        &mut self,
        context: &Context,
        bytes: &[u8],
        to: &DeviceMemory,
    ) -> Result<(), DeviceError> {
        for (i, part) in bytes.chunks(PIECE_BYTES).enumerate() {
            let piece = self.free_piece(context)?;
            let (memory, event) = &mut self.pieces[piece];
            memory.as_mut_slice()[..part.len()].copy_from_slice(part);
            context.upload(self.stream, (memory, 0), (to, i * PIECE_BYTES), part.len())?;
            context.record(self.stream, *event)?;
        }
        Ok(())
    }

    /// Repacks a matrix and copies it to new device memory.
    pub(crate) fn matrix(
        &mut self,
        context: &Context,
        desc: &MatrixDesc<'_>,
        bytes: &[u8],
    ) -> Result<(WeightRef, DeviceMemory), DeviceError> {
        let (row_bytes, layout, kind) = shape(desc, bytes)?;
        let offsets = plane_offsets(&layout, (desc.rows as usize).div_ceil(TILE_ROWS));
        let memory = context.allocate(desc.name, offsets[4])?;
        let tiles_max = (PIECE_BYTES / layout.total()).max(1);
        if layout.total() > PIECE_BYTES {
            let what = format!("rows of {} numbers ({})", desc.cols, desc.name);
            return Err(DeviceError::Unsupported { device: "cuda".to_owned(), what });
        }
        for (i, part) in bytes.chunks(tiles_max * TILE_ROWS * row_bytes).enumerate() {
            let piece = self.free_piece(context)?;
            let (pinned, event) = &mut self.pieces[piece];
            let tiles = (part.len() / row_bytes).div_ceil(TILE_ROWS);
            repack_piece(desc, &layout, part, pinned.as_mut_slice());
            let mut from = 0;
            for (plane, offset) in layout.planes.iter().zip(offsets) {
                let to = offset + i * tiles_max * plane;
                if *plane > 0 {
                    let length = plane * tiles;
                    context.upload(self.stream, (pinned, from), (&memory, to), length)?;
                }
                from += plane * tiles_max;
            }
            context.record(self.stream, *event)?;
        }
        let at = |plane: usize| match layout.planes[plane] {
            0 => 0,
            _ => memory.address() + offsets[plane] as u64,
        };
        let weight = WeightRef {
            quants: at(0),
            high: at(1),
            scales: at(2),
            supers: at(3),
            rows: desc.rows,
            cols: layout.cols as u32,
            kind,
            reserved: 0,
        };
        Ok((weight, memory))
    }

    /// The piece whose turn it is, once its last copy is done.
    fn free_piece(&mut self, context: &Context) -> Result<usize, DeviceError> {
        self.turn = (self.turn + 1) % 2;
        while !context.event_is_complete(self.pieces[self.turn].1)? {
            std::thread::yield_now();
        }
        Ok(self.turn)
    }
}

/// Checks a matrix against its bytes: bytes of a row, planes of a tile, code of the type.
fn shape(desc: &MatrixDesc<'_>, bytes: &[u8]) -> Result<(usize, TileBytes, u32), DeviceError> {
    let cols = desc.cols as usize;
    let known = TileBytes::of(desc.ty, cols).zip(repack::kind(desc.ty));
    let Some((layout, kind)) = known else {
        let what = format!("{} with {} columns of {}", desc.name, cols, desc.ty);
        return Err(DeviceError::Unsupported { device: "cuda".to_owned(), what });
    };
    let row_bytes = desc.ty.row_bytes(cols).unwrap_or_default();
    let wanted = row_bytes.checked_mul(desc.rows as usize);
    if row_bytes == 0 || desc.rows == 0 || wanted != Some(bytes.len()) {
        return Err(DeviceError::Invalid(format!(
            "{}: {} x {} of {} are not {} bytes",
            desc.name,
            desc.rows,
            cols,
            desc.ty,
            bytes.len()
        )));
    }
    Ok((row_bytes, layout, kind))
}

/// Where the planes start, each at a multiple of 256 bytes, and where the last one ends.
fn plane_offsets(layout: &TileBytes, tiles: usize) -> [usize; 5] {
    let mut offsets = [0; 5];
    for plane in 0..4 {
        offsets[plane + 1] = (offsets[plane] + layout.planes[plane] * tiles).next_multiple_of(256);
    }
    offsets
}

/// Repacks some rows into one piece of pinned memory: plane after plane, each with room for as many tiles as a piece takes.
fn repack_piece(desc: &MatrixDesc<'_>, layout: &TileBytes, bytes: &[u8], piece: &mut [u8]) {
    let tiles_max = (PIECE_BYTES / layout.total()).max(1);
    let row_bytes = desc.ty.row_bytes(desc.cols as usize).unwrap_or(1);
    let is_padded = layout.cols > desc.cols as usize;
    let [quants, high, scales, _] = layout.planes.map(|plane| plane * tiles_max);
    let (quants, rest) = piece.split_at_mut(quants);
    let (high, rest) = rest.split_at_mut(high);
    let (scales, supers) = rest.split_at_mut(scales);
    for (t, rows) in bytes.chunks(TILE_ROWS * row_bytes).enumerate() {
        let [q, h, s, u] = layout.planes.map(|plane| t * plane..(t + 1) * plane);
        let planes = [&mut quants[q], &mut high[h], &mut scales[s], &mut supers[u]];
        let mut tile = Tile { ty: desc.ty, planes };
        if is_padded || rows.len() < TILE_ROWS * row_bytes {
            tile.planes.iter_mut().for_each(|plane| plane.fill(0));
        }
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            tile.put_row(r, row);
        }
    }
}
