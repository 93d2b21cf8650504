//! Memory: parts of large allocations, which live as long as their context.

use std::ops::Range;
use std::ptr::NonNull;

use ash::vk;
use walla_device::DeviceError;

use super::context::{Context, failed};
use super::exit;

/// Least bytes of an allocation: a driver may allow no more than 4,096 of them.
const DEVICE_BYTES: u64 = 32 << 20;
const HOST_BYTES: u64 = 4 << 20;
/// Each part begins at a multiple of this.
const ALIGN: u64 = 256;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the device.
    Device,
    /// In the host's memory, which shaders reach too.
    Host,
}

/// A part of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    arena: usize,
    offset: u64,
    bytes: usize,
    address: u64,
}

impl Memory {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// An allocation.
pub(super) struct Arena {
    place: Place,
    memory: vk::DeviceMemory,
    buffer: vk::Buffer,
    address: u64,
    mapped: Option<NonNull<u8>>,
    bytes: u64,
    used: u64,
}

// SAFETY: the mapped memory is the arena's alone, and its context has one owner.
unsafe impl Send for Arena {}

impl Arena {
    pub(super) fn destroy(&self, device: &ash::Device) {
        // SAFETY: no work uses it: the context waits before.
        unsafe { device.destroy_buffer(self.buffer, None) };
        // SAFETY: as above; this unmaps it too.
        unsafe { device.free_memory(self.memory, None) };
    }
}

impl Context {
    /// Allocates memory. Its contents are undefined.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub(crate) fn allocate(
        &mut self,
        what: &str,
        bytes: usize,
        place: Place,
    ) -> Result<Memory, DeviceError> {
        self.refuse_lost()?;
        let wanted = (bytes.max(1) as u64).next_multiple_of(ALIGN);
        let has_room = |arena: &Arena| arena.place == place && arena.bytes - arena.used >= wanted;
        let index = match self.arenas.iter().position(has_room) {
            Some(index) => index,
            None => self.add_arena(what, wanted, place)?,
        };
        let arena = &mut self.arenas[index];
        let offset = arena.used;
        arena.used += wanted;
        Ok(Memory { arena: index, offset, bytes, address: arena.address + offset })
    }

    /// Bytes of the GPU's memory that are free for this process; `None` if the driver does not
    /// report it.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.library.free_bytes(&self.gpu)
    }

    fn add_arena(&mut self, what: &str, wanted: u64, place: Place) -> Result<usize, DeviceError> {
        let _call = exit::call();
        let least = if place == Place::Device { DEVICE_BYTES } else { HOST_BYTES };
        let left = left(self.max_bytes, self.used_bytes, self.free_bytes());
        let out_of_memory = |free_bytes| DeviceError::OutOfMemory {
            what: what.to_owned(),
            wanted_bytes: wanted,
            free_bytes,
        };
        if place == Place::Device && wanted > left {
            return Err(out_of_memory(left));
        }
        // More than the GPU has is refused as such by the driver.
        let limit = self.gpu.max_allocation_bytes;
        if wanted > limit && wanted <= self.gpu.memory_bytes {
            let what = format!("{wanted} bytes in one piece for {what}: at most {limit}");
            return Err(DeviceError::Unsupported { device: self.gpu.name.clone(), what });
        }
        let bytes = wanted.max(least.min(left));
        let info = vk::BufferCreateInfo::default().size(bytes).usage(
            vk::BufferUsageFlags::STORAGE_BUFFER
                | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
                | vk::BufferUsageFlags::TRANSFER_SRC
                | vk::BufferUsageFlags::TRANSFER_DST,
        );
        // SAFETY: the struct lives until the call ends.
        let buffer = unsafe { self.device.create_buffer(&info, None) };
        let refused = |free: Option<u64>, call, error| match error {
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                out_of_memory(free.unwrap_or_default())
            }
            error => failed(call, error),
        };
        let buffer = buffer.map_err(|error| refused(self.free_bytes(), "vkCreateBuffer", error))?;
        // SAFETY: the buffer is this device's.
        let needs = unsafe { self.device.get_buffer_memory_requirements(buffer) };
        let memory = self.allocate_for(&needs, place);
        let bound = memory.and_then(|memory| {
            // SAFETY: the memory has the size and a type that the buffer needs.
            let bound = unsafe { self.device.bind_buffer_memory(buffer, memory, 0) };
            bound.map(|()| memory)
        });
        let memory = match bound {
            Ok(memory) => memory,
            Err(error) => {
                // SAFETY: nothing uses the buffer yet.
                unsafe { self.device.destroy_buffer(buffer, None) };
                return Err(refused(self.free_bytes(), "vkAllocateMemory", error));
            }
        };
        self.counters.allocations += 1;
        let mapped = match place {
            Place::Device => None,
            Place::Host => {
                let flags = vk::MemoryMapFlags::empty();
                // SAFETY: the memory is visible to the host, and not mapped yet.
                let mapped = unsafe { self.device.map_memory(memory, 0, vk::WHOLE_SIZE, flags) };
                NonNull::new(self.check("vkMapMemory", mapped)?.cast())
            }
        };
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: the buffer was created for it, and is bound.
        let address = unsafe { self.device.get_buffer_device_address(&info) };
        if place == Place::Device {
            self.used_bytes += bytes;
        }
        self.arenas.push(Arena { place, memory, buffer, address, mapped, bytes, used: 0 });
        Ok(self.arenas.len() - 1)
    }

    fn allocate_for(
        &self,
        needs: &vk::MemoryRequirements,
        place: Place,
    ) -> Result<vk::DeviceMemory, vk::Result> {
        use vk::MemoryPropertyFlags as Flags;
        let coherent = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        // In order of preference.
        let wanted: [Flags; 2] = match place {
            Place::Device => [Flags::DEVICE_LOCAL, Flags::empty()],
            Place::Host => [coherent | Flags::HOST_CACHED, coherent],
        };
        let types = self.memory_types.memory_types_as_slice();
        let find = |flags: &Flags| {
            let allowed = |index: usize| needs.memory_type_bits >> index & 1 == 1;
            types
                .iter()
                .enumerate()
                .position(|(index, its)| allowed(index) && its.property_flags.contains(*flags))
        };
        let index = wanted.iter().find_map(find).ok_or(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY)?;
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(index as u32)
            .push_next(&mut flags);
        // SAFETY: the type is one of the device's, and addresses are enabled.
        unsafe { self.device.allocate_memory(&info, None) }
    }

    /// Buffer and offset of memory, for copies.
    pub(super) fn place_of(&self, memory: &Memory) -> (vk::Buffer, u64) {
        (self.arenas[memory.arena].buffer, memory.offset)
    }

    fn host_pointer(&self, memory: &Memory) -> Option<NonNull<u8>> {
        let mapped = self.arenas.get(memory.arena)?.mapped?;
        // SAFETY: the part is inside of the mapped allocation.
        Some(unsafe { mapped.add(memory.offset as usize) })
    }

    /// The whole of some host memory; `None` for memory of the device.
    fn all(&self, memory: &Memory) -> Option<&[u8]> {
        let start = self.host_pointer(memory)?;
        // SAFETY: mapped for the context's life, inside of the allocation; bytes have any value.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), memory.bytes) })
    }

    /// A part of host memory to read; empty if it is no such part. The caller checks that no work
    /// in flight writes it.
    pub(crate) fn host(&self, memory: &Memory, range: Range<usize>) -> &[u8] {
        self.all(memory).and_then(|all| all.get(range)).unwrap_or_default()
    }

    /// A part of host memory to write, as [`host`](Self::host).
    pub(crate) fn host_mut(&mut self, memory: &Memory, range: Range<usize>) -> &mut [u8] {
        let Some(start) = self.host_pointer(memory) else { return &mut [] };
        // SAFETY: as in `all`; the context is borrowed mutably, so no other slice exists.
        let all = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), memory.bytes) };
        all.get_mut(range).unwrap_or_default()
    }
}

/// Bytes that may be allocated on the device: the rest of a declared ceiling, or the driver's
/// free memory for this process.
fn left(max_bytes: Option<u64>, used_bytes: u64, free_bytes: Option<u64>) -> u64 {
    match max_bytes {
        Some(max_bytes) => max_bytes.saturating_sub(used_bytes),
        None => free_bytes.unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_counts_this_device_and_a_budget_all_of_the_process() {
        assert_eq!(left(Some(10), 4, Some(3)), 6);
        assert_eq!(left(Some(10), 12, None), 0);
        assert_eq!(left(None, 4, Some(3)), 3);
        assert_eq!(left(None, 4, None), u64::MAX);
    }
}
