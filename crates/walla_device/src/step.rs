//! The packed input and output blocks of a step, with one layout for host and device.
//!
//! A **step block** is copied to the device in one transfer. It consists of these parts in this
//! order, each aligned to 64 bytes:
//!
//! | part | type | count |
//! |---|---|---|
//! | header | [`StepHeader`] | 1 |
//! | rows | [`StepRow`] | `max_rows` |
//! | outputs | [`OutputRow`] | `max_outputs` |
//! | biases | [`BiasRow`] | `max_biases` |
//! | page tables | `u32` | `max_sequences * pages_per_sequence` |
//!
//! Page tables are last, so that a copy can end after the sequences of the step. Masks of allowed
//! tokens are stored in a separate block, the **mask block**
//! ([`Program::masks`](crate::Program::masks)), which a step without masks need not copy. A
//! **result block** is returned: [`ResultHeader`], [`ResultRow`] × `max_outputs`, [`Candidate`] ×
//! `max_outputs * MAX_CANDIDATES`.
//!
//! All numbers are little-endian, as on every platform that walla supports.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use walla_types::MAX_CANDIDATES;

/// Counts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct StepHeader {
    /// Number of the step, echoed in the result.
    pub step: u64,
    /// Rows in use, at least one. Rows from here to the end of the bucket are padding: devices may
    /// skip them, or run them with page 0.
    pub rows: u32,
    /// Outputs in use.
    pub outputs: u32,
    /// Page tables in use.
    pub sequences: u32,
    /// Biases in use.
    pub biases: u32,
    /// Slot of the result ring to write.
    pub ring_slot: u32,
    /// Masks in use.
    pub masks: u32,
    /// Reserved for future use.
    pub reserved: [u32; 8],
}

/// One token to evaluate. Rows of one sequence are adjacent and have consecutive positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct StepRow {
    /// The token, or [`StepRow::LAST_SAMPLED`].
    pub token: i32,
    /// Position of the token, and the cell of its sequence that stores its key and value.
    pub position: u32,
    /// Sequence of the token.
    pub sequence: u32,
    /// Index of the sequence's page table in the block.
    pub table: u32,
    /// Row of this step with the preceding position, or [`StepRow::NONE`].
    pub previous: i32,
    /// Output of this row, or [`StepRow::NONE`].
    pub output: i32,
    /// [`StepRow::LAST_OF_SEQUENCE`] or 0.
    pub flags: u32,
    /// Reserved for future use.
    pub reserved: u32,
}

impl StepRow {
    /// The token that the sequence sampled last; the device stores it.
    pub const LAST_SAMPLED: i32 = -1;
    /// No row, no output.
    pub const NONE: i32 = -1;
    /// The row is the last one of its sequence in this step.
    pub const LAST_OF_SEQUENCE: u32 = 1;
}

/// One output of a step: its row and its sampling parameters. Values are as in
/// [`Sampling`](walla_types::Sampling).
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct OutputRow {
    /// Row of the step.
    pub row: u32,
    /// Sequence of the row.
    pub sequence: u32,
    /// Position of the row. The sampled token's position, `position + 1`, keys the random number.
    pub position: u32,
    /// [`OutputRow::SAMPLE`] or 0.
    pub flags: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// Recent tokens that penalties count, ending with the row's own token; at most the row's
    /// position + 1 exist.
    pub penalty_window: u32,
    /// Low and high half of the seed.
    pub seed: [u32; 2],
    /// Number of most likely tokens to report.
    pub candidates: u32,
    /// First of this output's biases.
    pub bias_first: u32,
    /// Number of this output's biases.
    pub bias_count: u32,
    /// Index of the mask in the mask block plus 1; 0 allows all tokens.
    pub mask: u32,
    /// Reserved for future use.
    pub reserved: [u32; 2],
}

impl OutputRow {
    /// Sample a token; without this flag the output is logits only.
    pub const SAMPLE: u32 = 1;
}

/// Words of a mask of allowed tokens: one bit per token, lowest bit first. Bits beyond the
/// vocabulary are ignored.
#[must_use]
pub const fn mask_words(vocab: u32) -> usize {
    vocab.div_ceil(u32::BITS) as usize
}

/// A logit bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct BiasRow {
    /// Token.
    pub token: u32,
    /// Added to its logit.
    pub bias: f32,
}

/// Header of a result block: identifies its step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ResultHeader {
    /// [`StepHeader::step`].
    pub step: u64,
    /// [`StepHeader::outputs`].
    pub outputs: u32,
    /// Time between the two clock readings below in which the device's thread did not run, in
    /// microseconds. 0 on devices that nothing preempts.
    pub preempted_micros: u32,
    /// The device's clock at the program's start, in nanoseconds from an arbitrary origin. A host
    /// that polls once per frame cannot time a step itself.
    pub begin_nanos: u64,
    /// The device's clock at the sampler's end.
    pub end_nanos: u64,
    /// [`StepHeader::step`] + 1. A device that writes results directly into host memory
    /// ([`Device::create_mapped`](crate::Device::create_mapped)) writes it last; 0 before.
    pub done: u64,
    /// Reserved for future use.
    pub reserved_too: [u32; 6],
}

impl ResultHeader {
    /// Time that the device worked on the step, in nanoseconds; 0 if it is unknown.
    #[must_use]
    pub fn device_nanos(&self) -> u64 {
        let wall_nanos = self.end_nanos.saturating_sub(self.begin_nanos);
        wall_nanos.saturating_sub(u64::from(self.preempted_micros) * 1_000)
    }
}

/// Result of one sampled output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct ResultRow {
    /// The sampled token.
    pub token: u32,
    /// [`ResultRow::SAMPLED`], [`ResultRow::NOT_FINITE`].
    pub flags: u32,
    /// Natural logarithm of the token's probability under the model alone (before biases,
    /// penalties, temperature and truncation).
    pub log_probability: f32,
    /// Number of candidates reported.
    pub candidates: u32,
}

impl ResultHeader {
    /// Byte offset of [`done`](Self::done).
    pub const DONE_OFFSET: usize = std::mem::offset_of!(Self, done);
}

impl ResultRow {
    /// A token was sampled.
    pub const SAMPLED: u32 = 1;
    /// Some logit is NaN, or all are negative infinity: no token was sampled.
    pub const NOT_FINITE: u32 = 2;
}

/// One of the most likely tokens under the model alone, in descending order of probability; among
/// equals the lower id is first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Candidate {
    /// Token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub log_probability: f32,
}

// The kernels' sources assert the same sizes.
const _: () = assert!(size_of::<StepHeader>() == 64);
const _: () = assert!(size_of::<StepRow>() == 32);
const _: () = assert!(size_of::<OutputRow>() == 80);
const _: () = assert!(size_of::<BiasRow>() == 8);
const _: () = assert!(size_of::<ResultHeader>() == 64);
const _: () = assert!(size_of::<ResultRow>() == 16);
const _: () = assert!(size_of::<Candidate>() == 8);

/// Capacities of the blocks; they determine the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepLayout {
    /// Rows of the largest bucket.
    pub max_rows: u32,
    /// Outputs of the largest bucket.
    pub max_outputs: u32,
    /// Biases of all outputs together.
    pub max_biases: u32,
    /// Sequences of one step.
    pub max_sequences: u32,
    /// Entries of one page table.
    pub pages_per_sequence: u32,
}

const fn align(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

impl StepLayout {
    /// Byte offset of the rows.
    #[must_use]
    pub const fn rows_offset(&self) -> usize {
        align(size_of::<StepHeader>())
    }

    /// Byte offset of the outputs.
    #[must_use]
    pub const fn outputs_offset(&self) -> usize {
        align(self.rows_offset() + self.max_rows as usize * size_of::<StepRow>())
    }

    /// Byte offset of the biases.
    #[must_use]
    pub const fn biases_offset(&self) -> usize {
        align(self.outputs_offset() + self.max_outputs as usize * size_of::<OutputRow>())
    }

    /// Byte offset of the page tables.
    #[must_use]
    pub const fn tables_offset(&self) -> usize {
        align(self.biases_offset() + self.max_biases as usize * size_of::<BiasRow>())
    }

    /// Bytes of the step block up to the end of `sequences` page tables: the size of a step's
    /// upload.
    #[must_use]
    pub const fn bytes_with(&self, sequences: u32) -> usize {
        self.tables_offset()
            + sequences as usize * self.pages_per_sequence as usize * size_of::<u32>()
    }

    /// Bytes of the whole step block.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        align(self.bytes_with(self.max_sequences))
    }

    /// Byte offset of the result rows in a result block.
    #[must_use]
    pub const fn result_rows_offset(&self) -> usize {
        align(size_of::<ResultHeader>())
    }

    /// Byte offset of the candidates in a result block.
    #[must_use]
    pub const fn candidates_offset(&self) -> usize {
        align(self.result_rows_offset() + self.max_outputs as usize * size_of::<ResultRow>())
    }

    /// Bytes of one result block: the stride of the ring.
    #[must_use]
    pub const fn result_bytes(&self) -> usize {
        let candidates = self.max_outputs as usize * MAX_CANDIDATES as usize;
        align(self.candidates_offset() + candidates * size_of::<Candidate>())
    }

    /// Bytes of the result rows without candidates: the size of a download without candidates.
    #[must_use]
    pub const fn result_bytes_without_candidates(&self) -> usize {
        self.candidates_offset()
    }

    /// Places of the parts of a step block, in the order of the module's table.
    fn step_parts(&self) -> Option<[Range<usize>; 5]> {
        Some([
            place::<StepHeader>(0, 1)?,
            place::<StepRow>(self.rows_offset(), self.max_rows)?,
            place::<OutputRow>(self.outputs_offset(), self.max_outputs)?,
            place::<BiasRow>(self.biases_offset(), self.max_biases)?,
            place::<u32>(
                self.tables_offset(),
                self.max_sequences.checked_mul(self.pages_per_sequence)?,
            )?,
        ])
    }

    /// The same for a result block.
    fn result_parts(&self) -> Option<[Range<usize>; 3]> {
        let candidates = self.max_outputs.checked_mul(MAX_CANDIDATES)?;
        Some([
            place::<ResultHeader>(0, 1)?,
            place::<ResultRow>(self.result_rows_offset(), self.max_outputs)?,
            place::<Candidate>(self.candidates_offset(), candidates)?,
        ])
    }
}

/// The place of `count` entries; `None` if it is beyond all addresses.
fn place<T>(offset: usize, count: u32) -> Option<Range<usize>> {
    Some(offset..offset.checked_add((count as usize).checked_mul(size_of::<T>())?)?)
}

fn part<T: Pod>(bytes: &[u8]) -> Option<&[T]> {
    bytemuck::try_cast_slice(bytes).ok()
}

fn part_mut<T: Pod>(bytes: &mut [u8]) -> Option<&mut [T]> {
    bytemuck::try_cast_slice_mut(bytes).ok()
}

/// Read access to a step block.
#[derive(Clone, Copy, Debug)]
pub struct StepView<'a> {
    /// Counts.
    pub header: &'a StepHeader,
    /// All rows, including unused ones.
    pub rows: &'a [StepRow],
    /// All outputs, including unused ones.
    pub outputs: &'a [OutputRow],
    /// All biases, including unused ones.
    pub biases: &'a [BiasRow],
    /// `[max_sequences, pages_per_sequence]`.
    pub tables: &'a [u32],
}

impl<'a> StepView<'a> {
    /// Splits a step block into its parts. `None` if it is shorter than the layout or not aligned
    /// to 64 bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8], layout: &StepLayout) -> Option<Self> {
        let [header, rows, outputs, biases, tables] =
            layout.step_parts()?.map(|place| bytes.get(place));
        Some(Self {
            header: bytemuck::try_from_bytes(header?).ok()?,
            rows: part(rows?)?,
            outputs: part(outputs?)?,
            biases: part(biases?)?,
            tables: part(tables?)?,
        })
    }
}

/// Write access to a step block.
#[derive(Debug)]
pub struct StepViewMut<'a> {
    /// Counts.
    pub header: &'a mut StepHeader,
    /// All rows.
    pub rows: &'a mut [StepRow],
    /// All outputs.
    pub outputs: &'a mut [OutputRow],
    /// All biases.
    pub biases: &'a mut [BiasRow],
    /// `[max_sequences, pages_per_sequence]`.
    pub tables: &'a mut [u32],
}

impl<'a> StepViewMut<'a> {
    /// Splits a step block into its parts. `None` if it is shorter than the layout or not aligned
    /// to 64 bytes.
    #[must_use]
    pub fn new(bytes: &'a mut [u8], layout: &StepLayout) -> Option<Self> {
        let [header, rows, outputs, biases, tables] =
            bytes.get_disjoint_mut(layout.step_parts()?).ok()?;
        Some(Self {
            header: bytemuck::try_from_bytes_mut(header).ok()?,
            rows: part_mut(rows)?,
            outputs: part_mut(outputs)?,
            biases: part_mut(biases)?,
            tables: part_mut(tables)?,
        })
    }
}

/// Read access to a result block.
#[derive(Clone, Copy, Debug)]
pub struct ResultView<'a> {
    /// Identifies the step.
    pub header: &'a ResultHeader,
    /// All result rows, including unused ones.
    pub rows: &'a [ResultRow],
    /// `[max_outputs, MAX_CANDIDATES]`; empty if the block ends before the candidates.
    pub candidates: &'a [Candidate],
}

impl<'a> ResultView<'a> {
    /// Splits a result block into its parts. `None` if it is shorter than the layout's rows or not
    /// aligned to 64 bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8], layout: &StepLayout) -> Option<Self> {
        let [header, rows, candidates] = layout.result_parts()?.map(|place| bytes.get(place));
        Some(Self {
            header: bytemuck::try_from_bytes(header?).ok()?,
            rows: part(rows?)?,
            // A download without candidates ends before them.
            candidates: candidates.and_then(part).unwrap_or_default(),
        })
    }
}

/// Write access to a result block.
#[derive(Debug)]
pub struct ResultViewMut<'a> {
    /// Identifies the step.
    pub header: &'a mut ResultHeader,
    /// All result rows.
    pub rows: &'a mut [ResultRow],
    /// `[max_outputs, MAX_CANDIDATES]`.
    pub candidates: &'a mut [Candidate],
}

impl<'a> ResultViewMut<'a> {
    /// Splits a result block into its parts. `None` if it is shorter than the layout or not aligned
    /// to 64 bytes.
    #[must_use]
    pub fn new(bytes: &'a mut [u8], layout: &StepLayout) -> Option<Self> {
        let [header, rows, candidates] = bytes.get_disjoint_mut(layout.result_parts()?).ok()?;
        Some(Self {
            header: bytemuck::try_from_bytes_mut(header).ok()?,
            rows: part_mut(rows)?,
            candidates: part_mut(candidates)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: StepLayout = StepLayout {
        max_rows: 3,
        max_outputs: 5,
        max_biases: 7,
        max_sequences: 4,
        pages_per_sequence: 9,
    };

    #[repr(C, align(64))]
    struct Aligned([u8; 8192]);

    #[test]
    fn written_steps_are_read_back() {
        let mut block = Aligned([0; 8192]);
        let view = StepViewMut::new(&mut block.0, &LAYOUT).unwrap();
        view.header.rows = 2;
        view.rows[2].position = 11;
        view.outputs[4].top_k = 40;
        view.biases[6].token = 5;
        view.tables[35] = 77;
        let view = StepView::new(&block.0, &LAYOUT).unwrap();
        assert_eq!((view.header.rows, view.rows[2].position), (2, 11));
        assert_eq!((view.outputs[4].top_k, view.biases[6].token, view.tables[35]), (40, 5, 77));
    }

    #[test]
    fn short_or_unaligned_blocks_are_refused() {
        let block = Aligned([0; 8192]);
        assert!(StepView::new(&block.0[..LAYOUT.bytes_with(4)], &LAYOUT).is_some());
        assert!(StepView::new(&block.0[..LAYOUT.bytes_with(4) - 1], &LAYOUT).is_none());
        assert!(StepView::new(&block.0[1..], &LAYOUT).is_none());
        assert!(ResultView::new(&block.0[..100], &LAYOUT).is_none());
    }
}
