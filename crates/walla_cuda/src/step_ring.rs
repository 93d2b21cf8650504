//! Step rings: the host publishes a descriptor ([`StepDescriptor`]) of a step block in pinned
//! memory, and the program copies the block to the device (`kernels/step/step_ring.cuh`).
//!
//! A step then needs one driver call. If its descriptor is published early enough, its block is
//! copied while the previous step still runs. Launches consume descriptors in order. A block whose
//! descriptor cannot be published now is enqueued as a copy.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{Pod, Zeroable};
use walla_device::{BufferId, DeviceError, GraphId, HostId, Program, StreamId};

use crate::device::CudaDevice;
use crate::driver::{Context, DeviceMemory, PinnedMemory, Stream};
use crate::params::StepRingRef;
use crate::resources::{Resources, unknown};

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
    id: BufferId,
    block: DeviceMemory,
    ring: PinnedMemory,
    taken: DeviceMemory,
    /// Prefetch buffer: a block is copied here before its launch.
    ahead: DeviceMemory,
    /// Value to restore `taken` to after a failed launch: the failed launch may or may not have
    /// consumed its descriptor.
    restored: PinnedMemory,
    is_torn: bool,
    /// Descriptors published so far.
    count: u64,
    /// The launch that consumes, or consumed, the descriptor in each slot.
    launches: [Option<Ticket>; RING_SLOTS as usize],
    /// The latest launch without a descriptor. While it is in flight, it would consume the
    /// descriptor of the next launch.
    without: Option<Ticket>,
    /// Host buffer of the next launch's block, and its words.
    next: Option<(HostId, u64)>,
}

impl StepRing {
    /// Creates a ring for a step block; `zeroed` fills memory with zeros.
    fn create(
        context: &Context,
        (id, block): (BufferId, DeviceMemory),
        zeroed: &dyn Fn(DeviceMemory) -> Result<DeviceMemory, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let ahead_bytes = block.bytes().max(AHEAD_BYTES_MIN);
        Ok(Self {
            id,
            block,
            ring: context
                .allocate_pinned("posts", RING_SLOTS as usize * size_of::<StepDescriptor>())?,
            taken: zeroed(context.allocate("posts", size_of::<StepRingState>())?)?,
            ahead: zeroed(context.allocate("step block ahead", ahead_bytes)?)?,
            restored: context.allocate_pinned("posts", size_of::<StepRingState>())?,
            is_torn: false,
            count: 0,
            launches: [None; RING_SLOTS as usize],
            without: None,
            next: None,
        })
    }

    /// Addresses for the kernels.
    pub(crate) fn place(&self) -> StepRingRef {
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
    fn before_next(&self) -> impl Iterator<Item = Ticket> {
        [self.launches[Self::index(self.count + 1)], self.without].into_iter().flatten()
    }

    /// Publishes a block of `words` words for a launch. Call directly before the launch.
    fn post(&mut self, from: u64, words: u64, launch: Ticket) {
        self.count += 1;
        self.launches[Self::index(self.count)] = Some(launch);
        self.word(offset_of!(StepDescriptor, from)).store(from, Ordering::Relaxed);
        self.word(offset_of!(StepDescriptor, words)).store(words, Ordering::Relaxed);
        self.word(offset_of!(StepDescriptor, number)).store(self.count, Ordering::Release);
    }

    /// Rolls back after a failed launch: withdraws its descriptor.
    fn rollback(&mut self, launch: Ticket) {
        if self.launches[Self::index(self.count)] == Some(launch) {
            self.word(offset_of!(StepDescriptor, number)).store(0, Ordering::Release);
            self.count -= 1;
        }
        self.is_torn = true;
    }

    /// Resync: enqueues a copy that sets the device's count to the host's.
    fn resync(&mut self, context: &Context, stream: Stream) -> Result<(), DeviceError> {
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

impl Resources {
    /// Index of the ring of a step block.
    pub(crate) fn posts_of(&self, block: BufferId) -> Option<usize> {
        self.step_ring.iter().position(|step_ring| step_ring.id == block)
    }
}

impl CudaDevice {
    /// Index of the ring of a program's step block; creates the ring if necessary.
    pub(crate) fn prepare_posts(&mut self, program: &Program) -> Result<usize, DeviceError> {
        let index = self.resources.step_ring.len();
        if let Some(known) = self.resources.posts_of(program.step) {
            return Ok(known);
        }
        let block = *self.resources.buffer(program.step)?;
        let zeroed = |memory| self.zeroed(memory);
        let step_ring = StepRing::create(&self.context, (program.step, block), &zeroed)?;
        self.used.workspace_bytes += (step_ring.taken.bytes() + step_ring.ahead.bytes()) as u64;
        self.used.host_bytes += (step_ring.ring.bytes() + step_ring.restored.bytes()) as u64;
        self.resources.step_ring.push(step_ring);
        Ok(index)
    }

    /// Defers an upload to the next launch of a program that reads `to`. Returns false if the
    /// upload must be enqueued as a copy.
    pub(crate) fn defer_upload(
        &mut self,
        from: HostId,
        to: BufferId,
        bytes: usize,
    ) -> Result<bool, DeviceError> {
        let resources = &self.resources;
        let host_bytes = resources.host(from)?.memory.bytes();
        let Some(index) = resources.posts_of(to).filter(|_| !self.context.is_lost()) else {
            return Ok(false);
        };
        let step_ring = &resources.step_ring[index];
        let words = bytes.div_ceil(WORD_BYTES);
        // The last, partial word is copied whole.
        let fits = words * WORD_BYTES <= host_bytes.min(step_ring.block.bytes());
        let has_ended = |(stream, ticket)| resources.has_reached(stream, ticket);
        let is_put_off = fits && step_ring.before_next().all(has_ended);
        self.resources.step_ring[index].next = is_put_off.then_some((from, words as u64));
        Ok(is_put_off)
    }

    /// Publishes the deferred upload, if any, and enqueues the program.
    pub(crate) fn launch_posted(
        &mut self,
        stream: StreamId,
        graph: GraphId,
    ) -> Result<(), DeviceError> {
        let (raw, ticket) = self.resources.ticket(stream)?;
        let program = self.resources.programs.get(graph.0 as usize);
        let index = program.ok_or_else(|| unknown(&graph))?.step_ring;
        let step_ring = &mut self.resources.step_ring[index];
        if step_ring.is_torn {
            step_ring.resync(&self.context, raw)?;
        }
        match step_ring.next.take() {
            None => step_ring.without = Some((stream, ticket)),
            Some((host, words)) => {
                let from = self.resources.hosts[host.0 as usize].memory.address();
                step_ring.post(from, words, (stream, ticket));
                self.resources.copy_enqueued(host, stream, ticket);
            }
        }
        let launched = self.enqueue_program(raw, graph);
        if launched.is_err() {
            self.resources.step_ring[index].rollback((stream, ticket));
        }
        launched
    }
}

#[test]
fn constants_are_those_of_the_kernels() {
    let kernels = crate::kernel_source::KernelSource::read(&["step/step_ring.cuh"]);
    assert_eq!(u64::from(kernels.constant("RING_SLOTS")), RING_SLOTS);
    let threads = kernels.constant("STEP_RING_THREADS");
    assert_eq!(threads, crate::lower::STEP_RING_THREADS);
    let words = (kernels.constant("STEP_RING_BATCH") * threads) as usize;
    assert_eq!(words * WORD_BYTES, AHEAD_BYTES_MIN);
}
