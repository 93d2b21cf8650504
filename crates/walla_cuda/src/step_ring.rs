//! Step rings: the host publishes a descriptor ([`StepDescriptor`]) of a step block in pinned
//! memory, and the program copies the block to the device (`kernels/step/step_ring.cuh`).
//!
//! A step then needs one driver call. If its descriptor is published early enough, its block is
//! copied while the previous step still runs. Launches consume descriptors in order. A block whose
//! descriptor cannot be published now is enqueued as a copy.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};
use walla_device::{BufferId, DeviceError, HostId, StreamId};

use crate::driver::{Context, DeviceMemory, PinnedMemory, Stream};
use crate::params::StepRingRef;

/// Threads of the `step_acquire` kernel's block.
pub(crate) const STEP_RING_THREADS: u32 = 1024;

/// Slots of a ring (`RING_SLOTS` in step_ring.cuh): the executor has no more steps in flight.
const RING_SLOTS: u64 = 64;
const WORD_BYTES: usize = 16;
/// Bytes that `step_acquire` reads before it knows the size of the block: `STEP_RING_BATCH` words
/// for each of `STEP_RING_THREADS` threads.
const AHEAD_BYTES_MIN: usize = 4 * 1024 * WORD_BYTES;

/// A step descriptor: a slot of the ring. Layout as in `step_ring.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct StepDescriptor {
    number: u64,
    from: u64,
    words: u64,
    reserved: u64,
}

/// Device-side state of a ring. Layout as in `step_ring.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct StepRingState {
    count: u64,
    ahead: u64,
    words: u64,
    reserved: u64,
}

const _: () = assert!(size_of::<StepDescriptor>() == 32 && size_of::<StepRingState>() == 32);

/// A launch: its stream and ticket.
type Ticket = (StreamId, u64);

/// The step ring of one step block.
#[derive(Debug)]
pub(crate) struct StepRing {
    pub(crate) id: BufferId,
    block: DeviceMemory,
    ring: PinnedMemory,
    taken: DeviceMemory,
    /// Prefetch buffer: a block is copied here before its launch.
    ahead: DeviceMemory,
    /// Value to restore `taken` to after a failed launch: the failed launch may or may not have
    /// consumed its descriptor.
    restored: PinnedMemory,
    pub(crate) is_torn: bool,
    /// Descriptors published so far.
    count: u64,
    /// The launch that consumes, or consumed, the descriptor in each slot.
    launches: [Option<Ticket>; RING_SLOTS as usize],
    /// The latest launch without a descriptor. While it is in flight, it would consume the
    /// descriptor of the next launch.
    pub(crate) without: Option<Ticket>,
    /// Host buffer of the next launch's block, and its words.
    pub(crate) next: Option<(HostId, u64)>,
}

impl StepRing {
    /// Creates a ring for a step block; `zeroed` fills memory with zeros.
    pub(crate) fn create(
        context: &Context,
        (id, block): (BufferId, DeviceMemory),
        zeroed: &dyn Fn(DeviceMemory) -> Result<DeviceMemory, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let ahead_bytes = block.bytes().max(AHEAD_BYTES_MIN);
        Ok(Self {
            id,
            block,
            ring: context
                .allocate_pinned("step ring", RING_SLOTS as usize * size_of::<StepDescriptor>())?,
            taken: zeroed(context.allocate("step ring", size_of::<StepRingState>())?)?,
            ahead: zeroed(context.allocate("step block ahead", ahead_bytes)?)?,
            restored: context.allocate_pinned("step ring", size_of::<StepRingState>())?,
            is_torn: false,
            count: 0,
            launches: [None; RING_SLOTS as usize],
            without: None,
            next: None,
        })
    }

    /// Bytes on the device, without the step block, and in pinned memory.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let device = self.taken.bytes() + self.ahead.bytes();
        let host = self.ring.bytes() + self.restored.bytes();
        (device as u64, host as u64)
    }

    /// Whether the copy of a block of `bytes` bytes reads at most `host_bytes` and fits. Its last,
    /// partial word is copied whole.
    pub(crate) fn fits(&self, bytes: usize, host_bytes: usize) -> bool {
        Self::words(bytes) as usize * WORD_BYTES <= host_bytes.min(self.block.bytes())
    }

    /// Words of a block.
    pub(crate) fn words(bytes: usize) -> u64 {
        bytes.div_ceil(WORD_BYTES) as u64
    }

    /// Addresses for the kernels.
    pub(crate) fn addresses(&self) -> StepRingRef {
        StepRingRef {
            ring: self.ring.address(),
            taken: self.taken.address(),
            ahead: self.ahead.address(),
            block: self.block.address(),
        }
    }

    /// The slot of a descriptor number.
    fn index(number: u64) -> usize {
        (number % RING_SLOTS) as usize
    }

    /// Launches that must have ended before the next descriptor is published: the consumer of the
    /// slot's previous descriptor, and a launch that would consume the new one too early.
    pub(crate) fn before_next(&self) -> impl Iterator<Item = Ticket> {
        [self.launches[Self::index(self.count + 1)], self.without].into_iter().flatten()
    }

    /// Publishes a block of `words` words for a launch. Call directly before the launch.
    pub(crate) fn publish(&mut self, from: u64, words: u64, launch: Ticket) {
        self.count += 1;
        self.launches[Self::index(self.count)] = Some(launch);
        self.word(offset_of!(StepDescriptor, from)).store(from, Ordering::Relaxed);
        self.word(offset_of!(StepDescriptor, words)).store(words, Ordering::Relaxed);
        // The number last: the device reads the other words only if it finds the number.
        self.word(offset_of!(StepDescriptor, number)).store(self.count, Ordering::Release);
    }

    /// Rolls back after a failed launch: withdraws its descriptor.
    pub(crate) fn rollback(&mut self, launch: Ticket) {
        if self.launches[Self::index(self.count)] == Some(launch) {
            self.word(offset_of!(StepDescriptor, number)).store(0, Ordering::Release);
            self.count -= 1;
        }
        self.is_torn = true;
    }

    /// Resync: enqueues a copy that sets the device's count to the host's.
    pub(crate) fn resync(&mut self, context: &Context, stream: Stream) -> Result<(), DeviceError> {
        let taken = StepRingState { count: self.count, ..StepRingState::zeroed() };
        let bytes = bytemuck::bytes_of(&taken);
        self.restored.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        context.upload(stream, (&self.restored, 0), (&self.taken, 0), bytes.len())?;
        self.is_torn = false;
        Ok(())
    }

    /// A word of the latest descriptor.
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.ring.word(Self::index(self.count) * size_of::<StepDescriptor>() + offset)
    }
}

#[test]
fn constants_match_the_kernels() {
    let kernels = crate::kernel_source::KernelSource::read(&["step/step_ring.cuh"]);
    assert_eq!(u64::from(kernels.constant("RING_SLOTS")), RING_SLOTS);
    let threads = kernels.constant("STEP_RING_THREADS");
    assert_eq!(threads, STEP_RING_THREADS);
    let words = (kernels.constant("STEP_RING_BATCH") * threads) as usize;
    assert_eq!(words * WORD_BYTES, AHEAD_BYTES_MIN);
}
