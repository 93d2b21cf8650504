use cudarc::driver::sys::{self, CUdeviceptr, CUmemAllocationProp};
use walla_device::DeviceError;

use super::{Context, DeviceMemory};

/// Bytes of one piece of physical memory of an arena that never shrinks. Small enough to be found
/// next to a game's textures, large enough that an arena of 10 GB has 160 pieces.
const PIECE_BYTES: usize = 64 << 20;

/// Approximate number of pieces of a shrinkable block: memory is released in whole pieces of every
/// block.
const PIECES_PER_BLOCK: usize = 16;

/// A reserved range of addresses with memory mapped behind it. Unlike other memory, it outlives the
/// context, which therefore releases it explicitly.
#[derive(Debug)]
pub(super) struct Arena {
    address: CUdeviceptr,
    /// Size of the reserved range.
    bytes: usize,
    /// In address order.
    pieces: Vec<Piece>,
}

/// Addresses that are mapped and unmapped together.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Index of its block, and offset in the block.
    block: usize,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    is_mapped: bool,
}

/// Index of an arena in its context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaId(usize);

/// Memory for several blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// The whole range: consecutive blocks, with gaps if they can shrink.
    pub(crate) whole: DeviceMemory,
    pub(crate) blocks: Vec<DeviceMemory>,
    /// The arena, if memory behind the ends of blocks can be unmapped.
    pub(crate) arena: Option<ArenaId>,
}

/// Result of a resize.
#[derive(Debug, Default)]
pub(crate) struct Resized {
    /// New memory, uninitialised.
    pub(crate) mapped: Vec<DeviceMemory>,
    pub(crate) mapped_bytes: u64,
    pub(crate) unmapped_bytes: u64,
}

/// Kind of physical memory: of this device, not shared with other processes.
pub(super) fn properties(device: sys::CUdevice) -> CUmemAllocationProp {
    // SAFETY: the struct is plain data for which zeros mean "none".
    let mut wanted: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    wanted.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device;
    wanted
}

/// Splits blocks into pieces. Each piece begins at a multiple of `granularity`. `None` if rounding
/// up wastes more than an eighth.
fn pieces_of(blocks: &[usize], granularity: usize) -> Option<(usize, Vec<Piece>)> {
    let stride = |bytes: &usize| bytes.max(&1).next_multiple_of(granularity);
    let whole: usize = blocks.iter().map(stride).sum();
    let wanted: usize = blocks.iter().sum();
    if whole > wanted + wanted / 8 {
        return None;
    }
    let mut pieces = Vec::new();
    let mut address = 0;
    for (block, bytes) in blocks.iter().enumerate() {
        let stride = stride(bytes);
        let step = stride.div_ceil(PIECES_PER_BLOCK).next_multiple_of(granularity);
        for offset in (0..stride).step_by(step) {
            let bytes = step.min(stride - offset);
            pieces.push(Piece { block, offset, address, bytes, is_mapped: false });
            address += bytes as u64;
        }
    }
    Some((whole, pieces))
}

/// Pieces of a range that never shrinks.
fn pieces_of_range(bytes: usize, granularity: usize) -> Vec<Piece> {
    let step = PIECE_BYTES.next_multiple_of(granularity);
    let piece = |offset: usize| {
        let bytes = step.min(bytes - offset);
        Piece { block: 0, offset, address: offset as u64, bytes, is_mapped: false }
    };
    (0..bytes).step_by(step).map(piece).collect()
}

impl Context {
    /// Allocates device memory for several blocks. If device and context support it, this is one
    /// range of virtual addresses over pieces of physical memory: large ranges then need no
    /// contiguous physical memory, and the ends of large blocks can be unmapped. Otherwise (for
    /// example in a context that shares the GPU with graphics) it is plain memory. The memory
    /// ceiling holds for both.
    pub(crate) fn allocate_blocks(
        &self,
        what: &str,
        blocks: &[usize],
    ) -> Result<Blocks, DeviceError> {
        let bytes: usize = blocks.iter().sum();
        let granularity = self.gpu().facts.vmm_granularity_bytes;
        let Some(granularity) = granularity.and_then(|g| usize::try_from(g).ok()) else {
            return self.plain_blocks(what, blocks);
        };
        let granularity = granularity.max(1);
        let free_bytes = self.memory_left_bytes()?;
        let parted = pieces_of(blocks, granularity).filter(|(w, _)| *w as u64 <= free_bytes);
        let can_shrink = parted.is_some();
        let whole = bytes.max(1).next_multiple_of(granularity);
        let (whole, pieces) =
            parted.unwrap_or_else(|| (whole, pieces_of_range(whole, granularity)));
        if whole as u64 > free_bytes {
            // The memory left below the ceiling may suffice without rounding up.
            return self.plain_blocks(what, blocks);
        }
        let arena = match self.map_arena(whole, pieces) {
            Ok(arena) => arena,
            Err(lost) if lost.is_lost() => return Err(lost),
            Err(_) => return self.plain_blocks(what, blocks),
        };
        self.allocated_bytes.set(self.allocated_bytes.get() + whole as u64);
        let memory = DeviceMemory::new(arena.address, whole);
        let mut found = parts(memory, blocks);
        if can_shrink {
            let first = |block| arena.pieces.iter().find(|piece| piece.block == block);
            let firsts = (0..blocks.len()).filter_map(first).zip(blocks);
            let blocks = firsts.map(|(piece, bytes)| DeviceMemory::new(piece.address, *bytes));
            found.blocks = blocks.collect();
            found.arena = Some(ArenaId(self.arenas.borrow().len()));
        }
        self.arenas.borrow_mut().push(arena);
        Ok(found)
    }

    fn plain_blocks(&self, what: &str, blocks: &[usize]) -> Result<Blocks, DeviceError> {
        Ok(parts(self.allocate(what, blocks.iter().sum())?, blocks))
    }

    /// Reserves addresses and maps memory behind all of them, or releases everything.
    fn map_arena(&self, bytes: usize, pieces: Vec<Piece>) -> Result<Arena, DeviceError> {
        self.enter()?;
        let mut arena = Arena { address: 0, bytes, pieces };
        // SAFETY: the address lives through the call; every entry point of virtual memory was
        // probed with its granularity.
        let result = unsafe { sys::cuMemAddressReserve(&raw mut arena.address, bytes, 0, 0, 0) };
        self.check("cuMemAddressReserve", result)?;
        for piece in &mut arena.pieces {
            piece.address += arena.address;
        }
        for i in 0..arena.pieces.len() {
            if let Err(error) = self.map_piece(&mut arena.pieces[i]) {
                arena.give_back();
                return Err(error);
            }
        }
        self.allow(arena.address, bytes).inspect_err(|_| arena.give_back())?;
        Ok(arena)
    }

    /// Maps physical memory behind a piece's addresses. They are inaccessible until
    /// [`allow`](Self::allow).
    fn map_piece(&self, piece: &mut Piece) -> Result<(), DeviceError> {
        self.count(|c| &mut c.allocations);
        let wanted = properties(self.gpu().device);
        let mut handle = 0;
        // SAFETY: both live through the call.
        let result =
            unsafe { sys::cuMemCreate(&raw mut handle, piece.bytes, &raw const wanted, 0) };
        self.check("cuMemCreate", result)?;
        // SAFETY: the range is reserved, not mapped now, and as long as the memory.
        let mapped = unsafe { sys::cuMemMap(piece.address, piece.bytes, 0, handle, 0) };
        // SAFETY: the handle was just made; the mapping keeps the memory until it is undone.
        let released = unsafe { sys::cuMemRelease(handle) };
        self.check("cuMemMap", mapped)?;
        piece.is_mapped = true;
        self.check("cuMemRelease", released)
    }

    /// Gives the device access to mapped addresses.
    fn allow(&self, address: CUdeviceptr, bytes: usize) -> Result<(), DeviceError> {
        let access = sys::CUmemAccessDesc {
            location: properties(self.gpu().device).location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the whole range is mapped; the description lives through the call.
        let result = unsafe { sys::cuMemSetAccess(address, bytes, &raw const access, 1) };
        self.check("cuMemSetAccess", result)
    }

    /// Keeps memory mapped only behind the first `kept` bytes of each block. No enqueued work may
    /// touch the rest.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if there is not enough memory to map the missing pieces. No
    /// piece has been added then; pieces beyond `kept` stay unmapped.
    pub(crate) fn resize_arena(
        &self,
        arena: ArenaId,
        what: &str,
        kept: &[usize],
    ) -> Result<Resized, DeviceError> {
        self.enter()?;
        let mut arenas = self.arenas.borrow_mut();
        let Some(arena) = arenas.get_mut(arena.0) else { return Ok(Resized::default()) };
        let is_wanted = |piece: &Piece| kept.get(piece.block).is_none_or(|k| piece.offset < *k);
        let missing = |piece: &&Piece| !piece.is_mapped && is_wanted(piece);
        let wanted_bytes: u64 =
            arena.pieces.iter().filter(missing).map(|piece| piece.bytes as u64).sum();
        let mut resized = Resized::default();
        // Released first, so that the same memory can serve the pieces that are mapped next.
        for piece in arena.pieces.iter_mut().filter(|piece| piece.is_mapped && !is_wanted(piece)) {
            piece.unmap();
            resized.unmapped_bytes += piece.bytes as u64;
        }
        let allocated_bytes = self.allocated_bytes.get() - resized.unmapped_bytes;
        self.allocated_bytes.set(allocated_bytes);
        if wanted_bytes == 0 {
            return Ok(resized);
        }
        let free_bytes = self.memory_left_bytes()?;
        let refused =
            || DeviceError::OutOfMemory { what: what.to_owned(), wanted_bytes, free_bytes };
        if wanted_bytes > free_bytes {
            return Err(refused());
        }
        for i in 0..arena.pieces.len() {
            let piece = &mut arena.pieces[i];
            if piece.is_mapped || !is_wanted(piece) {
                continue;
            }
            let mapped =
                self.map_piece(piece).and_then(|()| self.allow(piece.address, piece.bytes));
            let memory = DeviceMemory::new(piece.address, piece.bytes);
            match mapped {
                Ok(()) => resized.mapped.push(memory),
                Err(lost) if lost.is_lost() => return Err(lost),
                Err(_) => {
                    piece.unmap();
                    let is_new = |piece: &&mut Piece| {
                        resized.mapped.iter().any(|memory| memory.address() == piece.address)
                    };
                    arena.pieces.iter_mut().filter(is_new).for_each(Piece::unmap);
                    return Err(refused());
                }
            }
        }
        resized.mapped_bytes = wanted_bytes;
        self.allocated_bytes.set(allocated_bytes + wanted_bytes);
        Ok(resized)
    }
}

/// Consecutive blocks in one allocation.
fn parts(whole: DeviceMemory, blocks: &[usize]) -> Blocks {
    let mut rest = whole;
    let blocks = blocks.iter().map(|bytes| rest.take(*bytes)).collect();
    Blocks { whole, blocks, arena: None }
}

impl Piece {
    /// Releases the memory; the addresses stay reserved.
    fn unmap(&mut self) {
        if self.is_mapped {
            // SAFETY: exactly this range was mapped at once, and nothing that runs touches it;
            // after a fault the driver may refuse, then the end of the process frees it.
            let _ = unsafe { sys::cuMemUnmap(self.address, self.bytes) };
            self.is_mapped = false;
        }
    }
}

impl Arena {
    /// Releases memory and addresses. Nothing that uses them runs any more.
    pub(super) fn give_back(&mut self) {
        self.pieces.iter_mut().for_each(Piece::unmap);
        // SAFETY: the whole range was reserved, and nothing is mapped any more; after a fault the
        // driver may refuse, then the end of the process frees it.
        let _ = unsafe { sys::cuMemAddressFree(self.address, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn large_blocks_are_mapped_from_separate_pieces() {
        let (whole, pieces) = pieces_of(&[64 * MIB, 33 * MIB, 64 * MIB], 2 * MIB).unwrap();
        assert_eq!(whole, (64 + 34 + 64) * MIB);
        assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<usize>(), whole);
        let mut end = 0;
        for piece in &pieces {
            assert_eq!(piece.address, end, "no gaps");
            assert!(piece.bytes.is_multiple_of(2 * MIB) && piece.offset.is_multiple_of(2 * MIB));
            end += piece.bytes as u64;
        }
        assert_eq!(pieces.iter().filter(|piece| piece.block == 0).count(), 16);
        // 34 MiB in pieces of 4 MiB: a sixteenth, rounded up.
        assert_eq!(pieces.iter().filter(|piece| piece.block == 1).count(), 9);
    }

    #[test]
    fn small_blocks_share_their_pieces() {
        assert!(pieces_of(&[MIB; 16], 2 * MIB).is_none());
        let pieces = pieces_of_range(130 * MIB, 2 * MIB);
        assert_eq!(pieces.iter().map(|piece| piece.bytes / MIB).collect::<Vec<_>>(), [64, 64, 2]);
    }
}
