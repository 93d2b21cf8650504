use walla_device::Program;

use crate::params::Address;

/// An area of the workspace, in the order of their offsets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Area {
    /// Products that a later dispatch of the same op reads.
    Products,
    /// Packed rows, their factors, and rows that are not packed.
    Words,
    Factors,
    Plain,
    /// Packed rows that one op writes for the next one, and their factors.
    OutWords,
    OutFactors,
    /// Spans of attention.
    Partials,
    /// Of mixtures of experts: choices, and products of each of them.
    Choices,
    ExpertsGate,
    ExpertsUp,
    Convolved,
    SampleScores,
    SampleStats,
    SampleLikely,
    /// Zero between steps.
    SampleBins,
}

const AREAS: usize = Area::SampleBins as usize + 1;

/// A part of the workspace.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    address: Address,
    /// The most that a program needs.
    bytes: usize,
}

/// Memory that programs need between their dispatches, and the structs of each. Programs that are
/// prepared together share the first.
///
/// Programs are lowered twice: first without memory, which only finds the sizes, then with the
/// addresses.
#[derive(Debug)]
pub(crate) struct Workspace {
    slots: Vec<Block>,
    areas: [Block; AREAS],
    /// Of each program, in order.
    constants: Vec<Block>,
    /// Number of programs lowered in this pass.
    lowered: usize,
    start: Address,
}

impl Workspace {
    pub(crate) fn new(programs: &[Program]) -> Self {
        let mut slots = Vec::new();
        for program in programs {
            slots.resize(slots.len().max(program.slots.len()), Block::default());
            for (block, slot) in slots.iter_mut().zip(&program.slots) {
                let bytes = 4 * slot.width as usize * program.max_rows as usize;
                block.bytes = bytes.max(block.bytes);
            }
        }
        let constants = Vec::new();
        Self { slots, areas: [Block::default(); AREAS], constants, lowered: 0, start: 0 }
    }

    /// Assigns addresses from `start` on, for the next pass. Returns the bytes of all parts.
    pub(crate) fn place(&mut self, start: Address) -> usize {
        (self.start, self.lowered) = (start, 0);
        let mut bytes = 0;
        let parts = self.slots.iter_mut().chain(&mut self.areas).chain(&mut self.constants);
        for block in parts {
            block.address = start + bytes as u64;
            bytes += block.bytes.next_multiple_of(256);
        }
        bytes.max(256)
    }

    /// Whether addresses are known.
    pub(super) fn is_placed(&self) -> bool {
        self.start != 0
    }

    /// The next program is lowered.
    pub(super) fn begin(&mut self) {
        if self.constants.len() == self.lowered {
            self.constants.push(Block::default());
        }
    }

    /// Address of the structs of the program.
    pub(super) fn constants(&self) -> Address {
        self.constants.get(self.lowered).map_or(0, |block| block.address)
    }

    /// The program is lowered; its structs have `bytes` bytes. Returns their offset.
    pub(super) fn end(&mut self, bytes: usize) -> usize {
        let Some(block) = self.constants.get_mut(self.lowered) else { return 0 };
        block.bytes = bytes;
        self.lowered += 1;
        (block.address - self.start.min(block.address)) as usize
    }

    /// Address of a slot.
    pub(super) fn slot(&self, index: usize) -> Address {
        self.slots.get(index).map_or(0, |block| block.address)
    }

    /// Address of an area. The op uses its first `bytes` bytes.
    pub(super) fn at(&mut self, area: Area, bytes: usize) -> Address {
        let block = &mut self.areas[area as usize];
        block.bytes = bytes.max(block.bytes);
        block.address
    }
}
