use std::sync::PoisonError;

use walla_device::{DeviceError, RopeDesc};
use walla_types::RopePairs;

use crate::experts::{Block, Choice};
use crate::memory::{Bytes, copied, filled};
use crate::quantize::Group;
use crate::sync::Mutex;

/// Rotary position embedding.
pub(crate) struct Rope {
    pub frequencies: Vec<f32>,
    pub magnitude: f32,
    pub pairs: RopePairs,
}

impl Rope {
    pub(crate) fn new(desc: &RopeDesc<'_>) -> Result<Self, DeviceError> {
        let frequencies = copied("a rotation", desc.frequencies)?;
        Ok(Self { frequencies, magnitude: desc.magnitude, pairs: desc.pairs })
    }
}

/// Memory that the programs of a device need between their ops, as numbers of elements. All
/// programs share one workspace, because one executor runs them sequentially.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Elements of each slot.
    pub slots: Vec<usize>,
    /// Elements of normalised inputs.
    pub normed: usize,
    /// Rounded groups of inputs.
    pub groups: usize,
    /// Elements of joined products.
    pub product: usize,
    /// Mixtures of experts.
    pub experts: ExpertSizes,
    /// Queries, keys and values of DeltaNet.
    pub convolved: usize,
    /// Cosines and sines of each rope, two elements per pair and row; 0 for unused ropes.
    pub rotations: Vec<usize>,
    /// Attention scores of one worker.
    pub scores: usize,
    /// The widest row of weights or page of keys: scratch of one worker.
    pub row: usize,
    /// Logits of one row.
    pub vocab: usize,
    /// Rows of a step.
    pub rows: usize,
    /// Page tables of a step.
    pub tables: usize,
}

/// Memory that mixtures of experts need, as numbers of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpertSizes {
    /// Chosen experts of all rows.
    pub choices: usize,
    /// Rows that use each expert.
    pub counts: usize,
    /// Blocks of rows with the same expert.
    pub blocks: usize,
    /// Inputs of all blocks.
    pub inputs: usize,
    /// Activations of all blocks.
    pub hidden: usize,
}

/// Raises numbers to at least another value's.
macro_rules! raise {
    ($own:ident, $other:ident, $($field:ident),*) => {
        $($own.$field = $own.$field.max($other.$field);)*
    };
}

impl ExpertSizes {
    fn bytes(&self) -> usize {
        let numbers = self.inputs.saturating_add(self.hidden).saturating_add(self.counts);
        let choices = self.choices.saturating_mul(size_of::<Choice>());
        let blocks = self.blocks.saturating_mul(size_of::<Block>());
        numbers.saturating_mul(size_of::<f32>()).saturating_add(choices).saturating_add(blocks)
    }

    /// The elementwise maximum.
    pub(crate) fn union(&mut self, other: &Self) {
        raise!(self, other, choices, counts, blocks, inputs, hidden);
    }
}

impl Sizes {
    /// Bytes of a workspace for `workers` workers; saturates on overflow.
    pub(crate) fn bytes(&self, workers: usize) -> u64 {
        let worker =
            self.scores.saturating_add(self.row).saturating_add(self.vocab.saturating_mul(2));
        let shared = self.slots.iter().chain(&self.rotations).copied();
        let shared = shared.chain([
            self.normed,
            self.product,
            self.convolved,
            worker.saturating_mul(workers),
        ]);
        let floats = shared.fold(0, usize::saturating_add).saturating_mul(size_of::<f32>());
        let floats = floats.saturating_add(self.experts.bytes());
        floats.saturating_add(self.groups.saturating_mul(size_of::<Group>())) as u64
    }

    /// The elementwise maximum.
    pub(crate) fn union(&mut self, other: &Self) {
        let longest = |a: &mut Vec<usize>, b: &[usize]| {
            a.resize(a.len().max(b.len()), 0);
            a.iter_mut().zip(b).for_each(|(a, b)| *a = (*a).max(*b));
        };
        longest(&mut self.slots, &other.slots);
        longest(&mut self.rotations, &other.rotations);
        self.experts.union(&other.experts);
        raise!(self, other, normed, groups, product, convolved, scores, row, vocab, rows, tables);
    }
}

/// Memory of mixtures of experts.
#[derive(Default)]
pub(crate) struct ExpertSpace {
    pub choices: Bytes,
    pub counts: Bytes,
    pub blocks: Bytes,
    pub inputs: Bytes,
    pub hidden: Bytes,
}

impl ExpertSpace {
    fn new(sizes: &ExpertSizes) -> Result<Self, DeviceError> {
        let room = |count: usize, size| Bytes::zeroed("activations", count.saturating_mul(size));
        Ok(Self {
            choices: room(sizes.choices, size_of::<Choice>())?,
            counts: room(sizes.counts, size_of::<u32>())?,
            blocks: room(sizes.blocks, size_of::<Block>())?,
            inputs: room(sizes.inputs, size_of::<f32>())?,
            hidden: room(sizes.hidden, size_of::<f32>())?,
        })
    }
}

/// Scratch memory of one worker.
#[derive(Default)]
pub(crate) struct Scratch {
    pub scores: Bytes,
    pub row: Bytes,
    /// A row of logits with biases and penalties.
    pub logits: Bytes,
    /// Token ids that truncation keeps.
    pub ids: Vec<u32>,
}

/// Activations and scratch memory.
#[derive(Default)]
pub(crate) struct Workspace {
    pub sizes: Sizes,
    pub slots: Vec<Bytes>,
    pub normed: Bytes,
    pub groups: Bytes,
    pub product: Bytes,
    pub experts: ExpertSpace,
    pub convolved: Bytes,
    pub rotations: Vec<Bytes>,
    pub workers: Vec<Mutex<Scratch>>,
    /// Highest page index of each table that a row reaches, for checks.
    pub reach: Vec<u32>,
    pub held_bytes: u64,
}

impl Workspace {
    pub(crate) fn new(sizes: Sizes, workers: usize) -> Result<Self, DeviceError> {
        // The same function gives the size that the memory budget has admitted.
        let held_bytes = sizes.bytes(workers);
        let floats =
            |numbers: usize| Bytes::zeroed("activations", numbers.saturating_mul(size_of::<f32>()));
        let slots = sizes.slots.iter().map(|n| floats(*n)).collect::<Result<_, _>>()?;
        let rotations = sizes.rotations.iter().map(|n| floats(*n)).collect::<Result<_, _>>()?;
        let (normed, product) = (floats(sizes.normed)?, floats(sizes.product)?);
        let groups = sizes.groups.saturating_mul(size_of::<Group>());
        let groups = Bytes::zeroed("activations", groups)?;
        let mut all = Vec::new();
        for _ in 0..workers {
            let (scores, row) = (floats(sizes.scores)?, floats(sizes.row)?);
            let (logits, ids) = (floats(sizes.vocab)?, filled("candidates", sizes.vocab, 0)?);
            all.push(Mutex::new(Scratch { scores, row, logits, ids }));
        }
        let experts = ExpertSpace::new(&sizes.experts)?;
        let convolved = floats(sizes.convolved)?;
        let reach = filled("page tables", sizes.tables, 0)?;
        Ok(Self {
            sizes,
            slots,
            normed,
            groups,
            product,
            experts,
            convolved,
            rotations,
            workers: all,
            reach,
            held_bytes,
        })
    }

    /// Runs `work` with the scratch memory of a worker. The lock is free: a worker runs one tile at
    /// a time.
    pub(crate) fn with_scratch<R>(
        workers: &[Mutex<Scratch>],
        worker: usize,
        work: impl FnOnce(&mut Scratch) -> R,
    ) -> R {
        work(&mut workers[worker].lock().unwrap_or_else(PoisonError::into_inner))
    }
}
