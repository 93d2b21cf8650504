use cudarc::driver::sys::{self, CUdeviceptr, CUmemAllocationProp};
use walla_device::DeviceError;

use super::{Context, DeviceMemory};

/// Bytes of one piece of physical memory: small enough to find room for beside a game's textures, large enough that an
/// arena of 10 GB is 160 of them.
const PIECE_BYTES: usize = 64 << 20;

/// A range of addresses of its own with memory behind it. Unlike other memory it outlives the context, which therefore gives it back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    address: CUdeviceptr,
    /// Reserved.
    bytes: usize,
    /// From the start on, what has memory behind it.
    mapped_bytes: usize,
}

/// What kind of physical memory: of this device, not shared with other processes.
pub(super) fn properties(device: sys::CUdevice) -> CUmemAllocationProp {
    // SAFETY: the struct is plain data for which zeros mean "none".
    let mut wanted: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    wanted.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device;
    wanted
}

impl Context {
    /// Allocates device memory as one range of virtual addresses over pieces of physical memory, where the device and this context can:
    /// large ranges then need no room in one piece. Elsewhere (a context that shares the GPU with graphics, for one) it is plain
    /// memory. The ceiling holds for both.
    pub(crate) fn allocate_arena(
        &self,
        what: &str,
        bytes: usize,
    ) -> Result<DeviceMemory, DeviceError> {
        let granularity = self.gpu().facts.vmm_granularity_bytes;
        let Some(granularity) = granularity.and_then(|g| usize::try_from(g).ok()) else {
            return self.allocate(what, bytes);
        };
        let whole = bytes.max(1).next_multiple_of(granularity.max(1));
        let free_bytes = self.memory_left_bytes()?;
        if whole as u64 > free_bytes {
            // What is left below the ceiling may still do without rounding up.
            return self.allocate(what, bytes);
        }
        match self.map_arena(whole, granularity) {
            Ok(arena) => {
                self.arenas.borrow_mut().push(arena);
                self.allocated_bytes.set(self.allocated_bytes.get() + whole as u64);
                Ok(DeviceMemory::new(arena.address, bytes.max(1).next_multiple_of(256).min(whole)))
            }
            Err(lost) if lost.is_lost() => Err(lost),
            Err(_) => self.allocate(what, bytes),
        }
    }

    /// Reserves addresses and puts memory behind all of them, or gives everything back.
    fn map_arena(&self, bytes: usize, granularity: usize) -> Result<Arena, DeviceError> {
        self.enter()?;
        let mut arena = Arena { address: 0, bytes, mapped_bytes: 0 };
        // SAFETY: the address lives through the call; every entry point of virtual memory was probed with its granularity.
        let result = unsafe { sys::cuMemAddressReserve(&raw mut arena.address, bytes, 0, 0, 0) };
        self.check("cuMemAddressReserve", result)?;
        let piece_bytes = PIECE_BYTES.next_multiple_of(granularity);
        while arena.mapped_bytes < bytes {
            let piece = piece_bytes.min(bytes - arena.mapped_bytes);
            if let Err(error) = self.map_piece(&arena, piece) {
                arena.give_back();
                return Err(error);
            }
            arena.mapped_bytes += piece;
        }
        let access = sys::CUmemAccessDesc {
            location: properties(self.gpu().device).location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the whole range is mapped; the description lives through the call.
        let result = unsafe { sys::cuMemSetAccess(arena.address, bytes, &raw const access, 1) };
        self.check("cuMemSetAccess", result).inspect_err(|_| arena.give_back())?;
        Ok(arena)
    }

    /// Puts physical memory behind the next addresses.
    fn map_piece(&self, arena: &Arena, bytes: usize) -> Result<(), DeviceError> {
        self.count(|c| &mut c.allocations);
        let wanted = properties(self.gpu().device);
        let mut handle = 0;
        // SAFETY: both live through the call.
        let result = unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const wanted, 0) };
        self.check("cuMemCreate", result)?;
        let at = arena.address + arena.mapped_bytes as u64;
        // SAFETY: the range is reserved, not mapped yet, and as long as the memory.
        let mapped = unsafe { sys::cuMemMap(at, bytes, 0, handle, 0) };
        // SAFETY: the handle was just made; the mapping keeps the memory until it is undone.
        let released = unsafe { sys::cuMemRelease(handle) };
        self.check("cuMemMap", mapped)?;
        self.check("cuMemRelease", released)
    }
}

impl Arena {
    /// Gives memory and addresses back. Nothing that uses them runs any more.
    pub(super) fn give_back(self) {
        if self.mapped_bytes > 0 {
            // SAFETY: this much was mapped from the start on.
            let _ = unsafe { sys::cuMemUnmap(self.address, self.mapped_bytes) };
        }
        // SAFETY: the whole range was reserved, and nothing is mapped any more; after a fault the driver may refuse, then the end of
        // the process frees it.
        let _ = unsafe { sys::cuMemAddressFree(self.address, self.bytes) };
    }
}
