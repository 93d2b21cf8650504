use walla_device::Program;

use crate::params::Address;

/// An area of the workspace, in the order of their offsets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Area {
    /// Products that a later kernel of the same op reads.
    Products,
    /// Packed rows for tensor cores that no producing kernel packs itself.
    Packed,
    /// Packed rows, as a norm's input.
    PackedNormed,
    /// Sums of squares of `PackedNormed`: `[rows, squares_count]` f32.
    Squares,
    /// Packed rows that outputs refer to, with their squares and the factors used for packing.
    Gathered,
    GatheredSquares,
    GatheredPackFactors,
    /// The factors of two norms in alternation: `[rows]` f32 each.
    Factors,
    OtherFactors,
    /// Split-K workspace.
    SplitSums,
    /// Arrival counters of the split-K workspace: zero between launches.
    SplitArrivals,
    /// Packed rows that attention writes. Separate areas keep padding zero, since widths differ.
    PackedAttention,
    /// Packed rows that gates write.
    PackedHidden,
    /// Packed rows that `mixer_gate` writes.
    PackedMixed,
    /// Partial results of attention.
    Partials,
    /// Arrival counters of attention: zero between launches.
    Arrivals,
    /// Number of items, and arrived blocks of `experts_route`: zero between launches.
    ExpertsCounts,
    ExpertsItems,
    ExpertsList,
    ExpertsChosen,
    ExpertsWeights,
    /// Factors of rows of x.
    ExpertsFactors,
    /// Packed rows, one per choice.
    ExpertsHidden,
    /// Products, one row per choice.
    ExpertsResults,
    SampleScores,
    SampleStats,
    SampleGroups,
    SampleLikely,
    /// Counter of completed outputs: zero between steps.
    SampleArrivals,
}

const AREAS: usize = Area::SampleArrivals as usize + 1;

/// Memory that programs need between their kernels. Programs that are prepared together share it.
/// It is initialised with zeros.
///
/// Programs are lowered twice: first without memory, which only finds the size of each area, then
/// with the addresses. So the sizes are the ones that the kernels use.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// `[rows, width]` f32 each.
    slots: Vec<Block>,
    areas: [Block; AREAS],
}

/// Part of a workspace.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    address: Address,
    /// Maximum of all programs.
    bytes: usize,
}

impl Workspace {
    /// The slots of the programs, and areas whose sizes are not known yet.
    pub(crate) fn new(programs: &[Program]) -> Self {
        let mut slots = Vec::new();
        for program in programs {
            slots.resize(slots.len().max(program.slots.len()), Block::default());
            for (block, slot) in slots.iter_mut().zip(&program.slots) {
                let bytes = 4 * slot.width as usize * program.max_rows as usize;
                block.bytes = bytes.max(block.bytes);
            }
        }
        Self { slots, areas: [Block::default(); AREAS] }
    }

    /// Assigns addresses from `start` on. Returns the bytes of all blocks.
    pub(crate) fn place(&mut self, start: Address) -> usize {
        let mut bytes = 0;
        for block in self.slots.iter_mut().chain(&mut self.areas) {
            block.address = start + bytes as u64;
            bytes += block.bytes.next_multiple_of(256);
        }
        bytes
    }

    /// Address of a slot.
    pub(super) fn slot(&self, index: usize) -> Option<Address> {
        self.slots.get(index).map(|block| block.address)
    }

    /// Address of an area. A kernel uses its first `bytes` bytes.
    pub(super) fn at(&mut self, area: Area, bytes: usize) -> Address {
        let block = &mut self.areas[area as usize];
        block.bytes = bytes.max(block.bytes);
        block.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_have_the_largest_size_used_and_are_apart() {
        let mut workspace = Workspace::new(&[]);
        for (area, bytes) in [(Area::Products, 300), (Area::Packed, 1), (Area::Products, 7)] {
            workspace.at(area, bytes);
        }
        assert_eq!(workspace.place(0), 512 + 256);
        assert_eq!(workspace.place(1 << 20), 512 + 256);
        assert_eq!(workspace.at(Area::Products, 300), 1 << 20);
        assert_eq!(workspace.at(Area::Packed, 1), (1 << 20) + 512);
        assert_eq!(workspace.place(0), 512 + 256, "the second pass changes nothing");
    }
}
