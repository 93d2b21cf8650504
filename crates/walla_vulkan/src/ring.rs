//! Small works that the host describes in play: a ring of descriptions in host memory, each with a
//! command buffer that is recorded once. So nothing is recorded in play.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use walla_device::{CacheCommand, DeviceError};

use crate::driver::{Commands, Context, Dispatch, Memory, Pipeline, Place};
use crate::params::Address;
use crate::shaders::Shaders;

/// A description that a shader reads.
pub(crate) trait Work: Pod {
    /// The shader.
    const SHADER: &'static str;
    /// Its workgroups.
    const GROUPS: u32;
    /// Descriptions that may be in flight.
    const SLOTS: usize;
}

/// Rows of words to copy (`kernels/vulkan/copy.slang`).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Transfer {
    from: Address,
    to: Address,
    words: u32,
    rows: u32,
    from_stride: u32,
    to_stride: u32,
}

impl Work for Transfer {
    const SHADER: &'static str = "copy";
    const GROUPS: u32 = 32;
    const SLOTS: usize = 256;
}

impl Transfer {
    /// A copy of contiguous bytes; memory has whole words.
    pub(crate) fn of(from: Address, to: Address, bytes: usize) -> Self {
        let words = bytes.div_ceil(4) as u32;
        Self { from, to, words, rows: 1, from_stride: words, to_stride: words }
    }
}

/// An operation of a cache (`kernels/vulkan/cache_op.slang`).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CacheOp {
    cache: Address,
    kind: u32,
    from: u32,
    from_cell: u32,
    to: u32,
    to_cell: u32,
    cells: u32,
    turn: i32,
    reserved: u32,
}

impl Work for CacheOp {
    const SHADER: &'static str = "cache_op";
    const GROUPS: u32 = 64;
    const SLOTS: usize = 1024;
}

impl CacheOp {
    pub(crate) fn of(cache: Address, command: &CacheCommand) -> Self {
        let none = Self { cache, ..Self::zeroed() };
        match *command {
            CacheCommand::CopyPage { from, to } => Self { kind: 0, from, to, ..none },
            CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, turn } => {
                let (from, to) = (from_page, to_page);
                Self { kind: 1, from, from_cell, to, to_cell, cells, turn, ..none }
            }
            CacheCommand::ShiftRecent { sequence, from, end, turn } => {
                Self { kind: 2, from, from_cell: end, to: sequence, turn, ..none }
            }
            CacheCommand::CopySequence { from, to } => Self { kind: 3, from, to, ..none },
            CacheCommand::ClearSequence { sequence } => Self { kind: 4, to: sequence, ..none },
        }
    }
}

/// A copy of a page from or to an image (`kernels/vulkan/cache_image.slang`).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PageImage {
    pub(crate) cache: Address,
    pub(crate) image: Address,
    pub(crate) page: u32,
    /// Of the page in the image, and the number of pages.
    pub(crate) index: u32,
    pub(crate) count: u32,
    pub(crate) to_cache: u32,
}

impl Work for PageImage {
    const SHADER: &'static str = "cache_image";
    const GROUPS: u32 = 64;
    const SLOTS: usize = 1024;
}

/// The dispatch of a work, by its index in an array of descriptions.
pub(crate) fn dispatch<W: Work>(pipeline: Pipeline, works: &Memory, index: usize) -> Dispatch {
    let address = works.address() + (index * size_of::<W>()) as u64;
    let (groups, push) = ([W::GROUPS, 1, 1], address.to_le_bytes().to_vec());
    Dispatch { pipeline, groups, push, waits: true }
}

/// The ring of one kind of work.
#[derive(Debug)]
pub(crate) struct Ring<W> {
    memory: Memory,
    /// Command buffer of each slot, and the ticket of its latest use.
    slots: Vec<(Commands, u64)>,
    next: usize,
    work: PhantomData<W>,
}

impl<W: Work> Ring<W> {
    /// Records the works of all slots.
    pub(crate) fn new(context: &mut Context, shaders: &mut Shaders) -> Result<Self, DeviceError> {
        let memory = context.allocate("work", W::SLOTS * size_of::<W>(), Place::Host)?;
        let pipeline = shaders.get(context, W::SHADER, &[])?;
        let mut slots = Vec::with_capacity(W::SLOTS);
        for slot in 0..W::SLOTS {
            slots.push((context.record(&[dispatch::<W>(pipeline, &memory, slot)], None)?, 0));
        }
        Ok(Self { memory, slots, next: 0, work: PhantomData })
    }

    /// Checks that `count` works fit.
    ///
    /// # Errors
    /// [`DeviceError::HostInFlight`] if too many are in flight, [`DeviceError::Invalid`] if they
    /// never fit.
    pub(crate) fn reserve(&self, context: &mut Context, count: usize) -> Result<(), DeviceError> {
        if count > W::SLOTS {
            let (slots, shader) = (W::SLOTS, W::SHADER);
            return Err(DeviceError::Invalid(format!(
                "{count} works of {shader}: at most {slots}"
            )));
        }
        let last = (self.next + count.max(1) - 1) % W::SLOTS;
        match context.has_reached(self.slots[last].1)? {
            true => Ok(()),
            // The descriptions are no host buffer of the caller.
            false => Err(DeviceError::HostInFlight { host: u32::MAX }),
        }
    }

    /// The commands of a work that has room. The submission of this ticket must contain them.
    pub(crate) fn add(&mut self, context: &mut Context, work: &W, ticket: u64) -> Commands {
        let range = self.next * size_of::<W>()..(self.next + 1) * size_of::<W>();
        context.host_mut(&self.memory, range).copy_from_slice(bytemuck::bytes_of(work));
        let slot = &mut self.slots[self.next];
        slot.1 = ticket;
        self.next = (self.next + 1) % W::SLOTS;
        slot.0
    }
}
