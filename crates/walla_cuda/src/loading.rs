//! Weight loading: worker threads repack parts of a matrix into pinned memory while earlier parts
//! are copied to the device.
//!
//! Pieces of pinned memory circulate: free, filled by a worker, copied by the device, free again.
//! Their number is fixed, so memory is bounded for a matrix of any size; each piece has one owner
//! at a time. A worker reads a part from the source into a buffer, which is at most as large as a
//! piece, before it takes a piece. A source error therefore loses no piece.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use walla_device::{DeviceError, MatrixDesc, StreamPriority, WeightSource};
use walla_types::TensorType;

use crate::driver::{Context, DeviceMemory, Event, PinnedMemory, Stream};
use crate::params::WeightRef;
use crate::parts::{Buffers, Parts, shape};
use crate::repack::{self, Layout, Scaling, TILE_ROWS, Tile};

/// Bytes of a piece of pinned memory. Copying it takes some 40 us at bus speed, many times the cost
/// of enqueueing the copy. A row of tiles of 32,768 F32 columns fits.
const PIECE_BYTES: usize = 2 << 20;

/// Smallest part worth a thread: a thread takes some 30 us to start, and 256 KiB take 150 us and
/// more to repack.
const PART_BYTES_MIN: usize = 256 << 10;

/// Maximum repacking threads: eight saturate the bus (0.3 to 1.7 GB/s each), and a game uses its
/// other cores while a model loads.
const MAX_WORKERS: usize = 8;

/// Pieces in addition to one per worker: they are being copied.
const PIECES_COPYING: usize = 4;

/// How long the copying thread waits for a filled piece before it polls for completed copies.
const LOOK_AFTER: Duration = Duration::from_micros(50);

/// Smallest table that stays in host memory if it is only looked up: a step reads one row for each
/// of its rows, some KB each over the bus, and a game needs the device memory for other things.
const HOST_TABLE_BYTES_MIN: usize = 64 << 20;

/// How weights are loaded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadSettings {
    /// Repacking threads. Default: half of the cores.
    pub(crate) threads: Option<usize>,
    /// Size from which tables stay in host memory. Default: [`HOST_TABLE_BYTES_MIN`].
    pub(crate) host_table_bytes_min: Option<usize>,
}

/// Memory that holds a matrix, which kernels read at its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixMemory {
    pub(crate) memory: DeviceMemory,
    /// Whether it is pinned memory of the host.
    pub(crate) is_on_host: bool,
}

/// Pinned memory and the event behind the copy that last read it.
#[derive(Debug)]
struct Piece {
    memory: PinnedMemory,
    copied: Event,
}

/// A loading stream with pieces of pinned memory.
#[derive(Debug)]
pub(crate) struct Staging {
    stream: Stream,
    workers: usize,
    host_table_bytes_min: usize,
    free: Vec<Piece>,
    /// In copy order.
    copying: VecDeque<Piece>,
    host_bytes: u64,
    buffers: Buffers,
}

impl Staging {
    pub(crate) fn create(context: &Context, settings: LoadSettings) -> Result<Self, DeviceError> {
        let LoadSettings { threads, host_table_bytes_min } = settings;
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        let workers = threads.unwrap_or_else(|| cores() / 2).clamp(1, MAX_WORKERS);
        let piece = |_| {
            let memory = context.allocate_pinned("pieces of weights", PIECE_BYTES)?;
            Ok(Piece { memory, copied: context.create_event()? })
        };
        let free = (0..workers + PIECES_COPYING).map(piece).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            stream: context.create_stream(StreamPriority::Low)?,
            workers,
            host_table_bytes_min: host_table_bytes_min.unwrap_or(HOST_TABLE_BYTES_MIN),
            host_bytes: free.iter().map(|piece| piece.memory.bytes() as u64).sum(),
            copying: VecDeque::with_capacity(free.len()),
            free,
            buffers: Buffers::default(),
        })
    }

    /// Frees the buffers used only for loading weights. The next matrix allocates them again.
    pub(crate) fn release_buffers(&mut self) {
        self.buffers = Buffers::default();
    }

    /// Pinned bytes held.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.host_bytes
    }

    /// Copies plain bytes to device memory. Returns when the bytes have been read; the copy may
    /// still be in flight.
    pub(crate) fn copy(
        &mut self,
        context: &Context,
        bytes: &[u8],
        to: &DeviceMemory,
    ) -> Result<(), DeviceError> {
        for (i, part) in bytes.chunks(PIECE_BYTES).enumerate() {
            let mut piece = self.free_piece(context)?;
            piece.memory.as_mut_slice()[..part.len()].copy_from_slice(part);
            context.upload(self.stream, (&piece.memory, 0), (to, i * PIECE_BYTES), part.len())?;
            self.sent(context, piece)?;
        }
        Ok(())
    }

    /// Repacks a matrix and copies it to new device memory, or a large table that is only looked up
    /// to pinned memory. Returns when the bytes have been read; the copy may still be in flight.
    pub(crate) fn matrix(
        &mut self,
        context: &Context,
        desc: &MatrixDesc<'_>,
        source: &dyn WeightSource,
    ) -> Result<(WeightRef, MatrixMemory), DeviceError> {
        let (row_bytes, layout, kind) = shape(desc, source.bytes())?;
        let tiles_all = (desc.rows as usize).div_ceil(TILE_ROWS);
        let tile_bytes = layout.tile_bytes();
        let max_tiles = PIECE_BYTES / tile_bytes;
        if max_tiles == 0 {
            let what = format!("rows of {} numbers ({})", desc.cols, desc.name);
            return Err(DeviceError::Unsupported { device: "cuda".to_owned(), what });
        }
        let (memory, pinned) = self.allocate(context, desc, tiles_all * tile_bytes)?;
        let pinned = pinned.map(RefCell::new);
        // A small matrix is divided evenly, but not into parts too small for a thread.
        let tiles_min = PART_BYTES_MIN.div_ceil(tile_bytes);
        let tiles = tiles_all.div_ceil(self.workers).max(tiles_min).min(max_tiles);
        // Taken, because `load_parts` borrows all of `self`. Put back before its error is returned.
        let buffers = std::mem::take(&mut self.buffers);
        // No type takes more bytes in the file than in a tile, so a part is at most as large as a
        // piece.
        let part_bytes = tiles * TILE_ROWS * row_bytes;
        let parts = Parts { source, part_bytes, buffers: &buffers };
        let upload = |i: usize, piece: &PinnedMemory, stream: Stream| {
            let bytes = tiles.min(tiles_all - i * tiles) * tile_bytes;
            let start = i * tiles * tile_bytes;
            match &pinned {
                Some(pinned) => {
                    let mut pinned = pinned.borrow_mut();
                    let target = &mut pinned.as_mut_slice()[start..start + bytes];
                    target.copy_from_slice(piece.slice(0..bytes));
                    Ok(())
                }
                None => context.upload(stream, (piece, 0), (&memory, start), bytes),
            }
        };
        let loaded = self.load_parts(context, (desc, &layout), &parts, &upload);
        self.buffers = buffers;
        let weight = WeightRef {
            records: memory.address(),
            rows: desc.rows,
            cols: (layout.segments * repack::SEGMENT) as u32,
            kind,
            scale: loaded?.found,
        };
        Ok((weight, MatrixMemory { memory, is_on_host: pinned.is_some() }))
    }

    /// Memory for a repacked matrix. A table is in device memory if the system cannot pin its
    /// bytes.
    fn allocate(
        &self,
        context: &Context,
        desc: &MatrixDesc<'_>,
        bytes: usize,
    ) -> Result<(DeviceMemory, Option<PinnedMemory>), DeviceError> {
        if !desc.usage.multiply && bytes >= self.host_table_bytes_min {
            match context.allocate_pinned(desc.name, bytes) {
                Ok(pinned) => return Ok((pinned.mapped(), Some(pinned))),
                Err(DeviceError::OutOfMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((context.allocate(desc.name, bytes)?, None))
    }

    /// Repacks and copies all parts of a matrix.
    fn load_parts(
        &mut self,
        context: &Context,
        (desc, layout): (&MatrixDesc<'_>, &Layout),
        parts: &Parts<'_>,
        upload: &dyn Fn(usize, &PinnedMemory, Stream) -> Result<(), DeviceError>,
    ) -> Result<Scaling, DeviceError> {
        let scaling = Scaling::of(desc.ty, self.largest(desc.ty, parts)?);
        let repack =
            |part: &[u8], piece: &mut [u8]| repack_part(desc, layout, scaling, part, piece);
        let stream = self.stream;
        self.parts(context, parts, &repack, &|i, piece| upload(i, piece, stream))?;
        Ok(scaling)
    }

    /// [`repack::largest`] of all parts, computed by several threads.
    fn largest(&self, ty: TensorType, parts: &Parts<'_>) -> Result<f32, DeviceError> {
        let count = parts.count();
        if !repack::is_scaled(ty) {
            return Ok(0.0);
        }
        if count <= 1 {
            return parts.largest(ty, 0..count);
        }
        let each = count.div_ceil(self.workers);
        thread::scope(|scope| {
            let mut largest = Ok(0.0_f32);
            let threads: Vec<_> = (0..count)
                .step_by(each)
                .map(|first| first..count.min(first + each))
                .map(|some| (some.clone(), spawn(scope, move || parts.largest(ty, some))))
                .collect();
            for (some, thread) in threads {
                // If no thread was spawned, this thread does the work.
                let found = match thread {
                    Some(thread) => thread.join().unwrap_or_else(|_panic| Err(died())),
                    None => parts.largest(ty, some),
                };
                // Join all threads, even after an error.
                largest = largest.and_then(|largest| Ok(largest.max(found?)));
            }
            largest
        })
    }

    /// Passes every part through `repack` (on worker threads, in any order) and `upload` (on this
    /// thread).
    fn parts(
        &mut self,
        context: &Context,
        parts: &Parts<'_>,
        repack: &Repack<'_>,
        upload: &Upload<'_>,
    ) -> Result<(), DeviceError> {
        let workers = self.workers.min(parts.count());
        if workers <= 1 {
            return self.parts_alone(context, parts, repack, upload);
        }
        let (give, free) = mpsc::channel();
        let (fill, filled) = mpsc::channel();
        let free = Mutex::new(free);
        let next = AtomicUsize::new(0);
        let copied = thread::scope(|scope| {
            let worker = |_| {
                let (fill, free, next) = (fill.clone(), &free, &next);
                spawn(scope, move || work(parts, next, free, &fill, repack))
            };
            let workers: Vec<_> = (0..workers).filter_map(worker).collect();
            // The remaining senders are the workers', so a disconnect shows that all have ended.
            // Dropping `give` ends waiting workers.
            drop(fill);
            let copied = match workers.is_empty() {
                true => self.parts_alone(context, parts, repack, upload),
                false => self.copy_filled(context, parts.count(), &give, &filled, upload),
            };
            drop(give);
            // Join all workers, so that a panic of a worker becomes an error of this load instead
            // of a panic of this thread.
            let panics = workers.into_iter().filter_map(|worker| worker.join().err()).count();
            if panics > 0 { Err(died()) } else { copied }
        });
        // Recover the pieces still in the channels, after an error too.
        self.free.extend(filled.try_iter().flatten().map(|(_, piece)| piece));
        if let Ok(free) = free.into_inner() {
            self.free.extend(free.try_iter());
        }
        copied
    }

    /// The same on this thread only.
    fn parts_alone(
        &mut self,
        context: &Context,
        parts: &Parts<'_>,
        repack: &Repack<'_>,
        upload: &Upload<'_>,
    ) -> Result<(), DeviceError> {
        let mut buffer = parts.buffers.take();
        for i in 0..parts.count() {
            let part = parts.source.read(parts.range(i), &mut buffer)?;
            let mut piece = self.free_piece(context)?;
            repack(part, piece.memory.as_mut_slice());
            upload(i, &piece.memory)?;
            self.sent(context, piece)?;
        }
        parts.buffers.give_back(buffer);
        Ok(())
    }

    /// Sends free pieces to the workers and enqueues copies of filled pieces, until all parts are
    /// enqueued.
    fn copy_filled(
        &mut self,
        context: &Context,
        parts: usize,
        give: &Sender<Piece>,
        filled: &Receiver<Filled>,
        upload: &Upload<'_>,
    ) -> Result<(), DeviceError> {
        let mut enqueued = 0;
        while enqueued < parts {
            self.reclaim(context)?;
            for piece in self.free.drain(..) {
                // The send fails only when every worker has ended, which `filled` reports below.
                let _unwanted = give.send(piece);
            }
            match filled.recv_timeout(LOOK_AFTER) {
                Ok(piece) => {
                    let (i, piece) = piece?;
                    upload(i, &piece.memory)?;
                    self.sent(context, piece)?;
                    enqueued += 1;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(died()),
            }
        }
        Ok(())
    }

    /// Records an event behind the copies that read a piece.
    fn sent(&mut self, context: &Context, piece: Piece) -> Result<(), DeviceError> {
        context.record(self.stream, piece.copied)?;
        self.copying.push_back(piece);
        Ok(())
    }

    /// Recovers the pieces whose copies have completed.
    fn reclaim(&mut self, context: &Context) -> Result<(), DeviceError> {
        // Copies of one stream end in order: if the first has not ended, no later one has.
        while let Some(piece) = self.copying.front() {
            if !context.event_is_complete(piece.copied)? {
                break;
            }
            self.free.extend(self.copying.pop_front());
        }
        Ok(())
    }

    /// Returns a free piece; waits for one if necessary.
    fn free_piece(&mut self, context: &Context) -> Result<Piece, DeviceError> {
        loop {
            if let Some(piece) = self.free.pop() {
                return Ok(piece);
            }
            if self.copying.is_empty() {
                let reason = "no pinned memory is left after an error".to_owned();
                return Err(DeviceError::Failed { call: "load_matrix", reason });
            }
            thread::yield_now();
            self.reclaim(context)?;
        }
    }
}

/// Starts a thread; `None` if the system cannot create one.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<thread::ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().name("walla-repack".to_owned()).spawn_scoped(scope, work).ok()
}

/// The error for a thread that panicked or ended early.
fn died() -> DeviceError {
    let reason = "a thread that repacks weights died".to_owned();
    DeviceError::Failed { call: "load_matrix", reason }
}

/// Fills pinned memory with a part of a matrix.
type Repack<'a> = dyn Fn(&[u8], &mut [u8]) + Sync + 'a;

/// Enqueues the copies of the numbered part.
type Upload<'a> = dyn Fn(usize, &PinnedMemory) -> Result<(), DeviceError> + 'a;

/// A part's number and its filled piece, or the error of reading the part.
type Filled = Result<(usize, Piece), DeviceError>;

/// Reads and repacks parts until all are done or the copying thread has ended.
fn work(
    parts: &Parts<'_>,
    next: &AtomicUsize,
    free: &Mutex<Receiver<Piece>>,
    fill: &Sender<Filled>,
    repack: &Repack<'_>,
) {
    let mut buffer = parts.buffers.take();
    loop {
        let i = next.fetch_add(1, Ordering::Relaxed);
        if i >= parts.count() {
            break;
        }
        let part = match parts.source.read(parts.range(i), &mut buffer) {
            Ok(part) => part,
            Err(error) => {
                // The receiver returns the first error; later ones have no reader.
                let _first = fill.send(Err(error));
                break;
            }
        };
        let piece = free.lock().ok().and_then(|free| free.recv().ok());
        let Some(mut piece) = piece else { break };
        repack(part, piece.memory.as_mut_slice());
        if fill.send(Ok((i, piece))).is_err() {
            break;
        }
    }
    parts.buffers.give_back(buffer);
}

/// Repacks some rows into one piece of pinned memory, tile by tile.
fn repack_part(
    desc: &MatrixDesc<'_>,
    layout: &Layout,
    scaling: Scaling,
    bytes: &[u8],
    piece: &mut [u8],
) {
    let row_bytes = desc.ty.row_bytes(desc.cols as usize).unwrap_or(1);
    let is_padded = !(desc.cols as usize).is_multiple_of(repack::SEGMENT);
    let tiles = piece.chunks_exact_mut(layout.tile_bytes());
    for (rows, bytes) in bytes.chunks(TILE_ROWS * row_bytes).zip(tiles) {
        if is_padded || rows.len() < TILE_ROWS * row_bytes {
            bytes.fill(0);
        }
        let mut tile = Tile { ty: desc.ty, layout, scaling, bytes };
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            tile.put_row(r, row);
        }
    }
}
