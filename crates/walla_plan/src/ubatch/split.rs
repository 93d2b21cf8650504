use super::{Row, UBatch};
use crate::batch::{BatchLimits, CheckedBatch, NONE, SequenceSlot};
use crate::output::OutputMap;

/// Reusable storage of a [`Split`].
#[derive(Clone, Debug)]
pub struct Splitter {
    /// Remaining tokens of each sequence of the batch, in the order of first appearance.
    cursors: Vec<Cursor>,
    /// Sequences that the current micro-batch takes.
    chosen: Vec<u32>,
}

/// Remaining tokens of one sequence.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Batch index of the next token, or [`NONE`].
    next: u32,
    /// Tokens taken.
    taken: u32,
    /// Tokens left.
    left: u32,
    /// Micro-batch that took the last token (counted from 1), and the token's row in it.
    last: (u32, u32),
    /// Last micro-batch that chose the sequence.
    chosen_by: u32,
}

impl Splitter {
    /// Storage for batches of these limits.
    #[must_use]
    pub fn new(limits: BatchLimits) -> Self {
        let sequences = limits.max_batch_sequences as usize;
        Self { cursors: Vec::with_capacity(sequences), chosen: Vec::with_capacity(sequences) }
    }

    fn start(&mut self, slots: &[SequenceSlot]) {
        let cursor = |slot: &SequenceSlot| Cursor {
            next: slot.first,
            taken: 0,
            left: slot.tokens,
            last: (0, 0),
            chosen_by: 0,
        };
        self.cursors.clear();
        self.cursors.extend(slots.iter().map(cursor));
    }
}

impl<'a> CheckedBatch<'a> {
    /// Starts to split the batch. Output rows are assigned as tokens are taken, and recorded in
    /// `outputs`.
    #[must_use]
    pub fn split(self, splitter: &'a mut Splitter, outputs: &'a mut OutputMap) -> Split<'a> {
        splitter.start(self.slots());
        outputs.start(self);
        let left = self.len();
        Split { batch: self, splitter, outputs, first_unused: 0, left, ubatch: 0 }
    }
}

/// Splits a batch, one micro-batch per call. Different kinds of split can be mixed.
///
/// Every method fills `ubatch` with up to `max_rows` rows (at least 1, at most its capacity) and
/// returns `false` when no token is left. All splits take the tokens of one sequence in ascending
/// positions. The preceding tokens of a row are therefore in the cache or in the same micro-batch.
///
/// # Examples
/// Agents 0, 1, 3 and 4 decode, agent 7 prefills. Holes in the active set cost nothing:
/// ```
/// use walla_plan::{
///     Batch, BatchLimits, KvCommands, KvLedger, LedgerOptions, Output, OutputMap, Splitter, TokenInput, UBatch,
/// };
/// use walla_types::{SeqId, TokenId};
///
/// let limits = BatchLimits::new(32_000, 8, 64);
/// let mut ledger = KvLedger::new(LedgerOptions { max_sequences: 8, ..LedgerOptions::default() })?;
/// let mut batch = Batch::new(limits);
/// for id in 0..10 {
///     batch.push(TokenInput::Id(TokenId(id)), None, SeqId(7), Output::None)?;
/// }
/// for seq in [0, 1, 3, 4].map(SeqId) {
///     ledger.append(seq, 5, &mut KvCommands::with_capacity(0))?; // spoke before
///     batch.push(TokenInput::LastSampled, None, seq, Output::Sample)?;
/// }
/// let (mut splitter, mut outputs) = (Splitter::new(limits), OutputMap::new(limits));
/// let mut ubatch = UBatch::with_capacity(64);
/// let mut split = batch.check(&ledger)?.split(&mut splitter, &mut outputs);
/// assert!(split.ragged(64, &mut ubatch));
/// assert_eq!((ubatch.len(), ubatch.runs().len()), (14, 5));
/// assert_eq!(ubatch.runs()[4].seq, SeqId(7)); // last, whatever the batch's order
/// assert!(!split.ragged(64, &mut ubatch)); // one pass
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Split<'a> {
    batch: CheckedBatch<'a>,
    splitter: &'a mut Splitter,
    outputs: &'a mut OutputMap,
    /// All tokens before this index are taken.
    first_unused: u32,
    left: u32,
    /// Micro-batches started so far.
    ubatch: u32,
}

impl Split<'_> {
    /// The rows of the outputs that were taken so far.
    #[must_use]
    pub fn outputs(&self) -> &OutputMap {
        self.outputs
    }

    /// Tokens that no micro-batch has taken yet.
    #[must_use]
    pub fn tokens_left(&self) -> u32 {
        self.left
    }

    /// Takes the next tokens in batch order. O(rows), plus O(tokens) once if other splits left
    /// holes.
    pub fn simple(&mut self, max_rows: u32, ubatch: &mut UBatch) -> bool {
        let rows = self.start(max_rows, ubatch);
        self.skip_used();
        let mut index = self.first_unused;
        while ubatch.len() < rows && index < self.batch.len() {
            if !self.is_used(index) {
                self.take(self.batch.link(index).slot, ubatch);
            }
            index += 1;
        }
        !ubatch.is_empty()
    }

    /// Takes the same number of tokens from each chosen sequence: the number that the shortest one
    /// has left, limited by the free rows.
    ///
    /// Sequences are chosen in the batch order of their next tokens, at most `max_rows` of them.
    /// O(tokens left).
    pub fn equal(&mut self, max_rows: u32, ubatch: &mut UBatch) -> bool {
        let rows = self.start(max_rows, ubatch);
        self.choose(rows);
        let chosen = self.splitter.chosen.len() as u32; // at most `rows`
        let shortest = self.splitter.chosen.iter().map(|&slot| self.cursor(slot).left).min();
        let Some(shortest) = shortest else { return false };
        for place in 0..chosen as usize {
            let slot = self.splitter.chosen[place];
            for _ in 0..shortest.min(rows / chosen) {
                self.take(slot, ubatch);
            }
        }
        true
    }

    /// Takes sequences with a single token left first, then chunks of the others. The rows of a
    /// sequence are adjacent. Both groups are in the order of first appearance, and only the last
    /// chunk is cut to fit. One pass takes the whole batch if it fits. O(sequences + rows).
    pub fn ragged(&mut self, max_rows: u32, ubatch: &mut UBatch) -> bool {
        let rows = self.start(max_rows, ubatch);
        // Decode rows first: the chunk of a prompt must not displace them.
        let sequences = self.splitter.cursors.len() as u32; // at most `max_batch_sequences`
        for slot in 0..sequences {
            if ubatch.len() == rows {
                break;
            }
            if self.cursor(slot).left == 1 {
                self.take(slot, ubatch);
            }
        }
        for slot in 0..sequences {
            let free = rows - ubatch.len();
            if free == 0 || self.left == 0 {
                break;
            }
            for _ in 0..self.cursor(slot).left.min(free) {
                self.take(slot, ubatch);
            }
        }
        !ubatch.is_empty()
    }

    /// Chooses the sequences of an equal split.
    fn choose(&mut self, max_sequences: u32) {
        self.skip_used();
        self.splitter.chosen.clear();
        for index in self.first_unused..self.batch.len() {
            let slot = self.batch.link(index).slot;
            let cursor = &mut self.splitter.cursors[slot as usize];
            let is_used = self.batch.link(index).rank < cursor.taken;
            if is_used || cursor.chosen_by == self.ubatch {
                continue;
            }
            cursor.chosen_by = self.ubatch;
            self.splitter.chosen.push(slot);
            if self.splitter.chosen.len() as u32 == max_sequences {
                break;
            }
        }
    }

    /// Starts a micro-batch and returns its maximum number of rows.
    fn start(&mut self, max_rows: u32, ubatch: &mut UBatch) -> u32 {
        ubatch.start(self.outputs.rows(), self.outputs.logits_rows());
        self.ubatch += 1;
        max_rows.clamp(1, ubatch.capacity)
    }

    /// Moves the next token of a sequence to the micro-batch. The sequence must have one.
    fn take(&mut self, slot: u32, ubatch: &mut UBatch) {
        let cursor = self.cursor(slot);
        let batch_index = cursor.next;
        let link = self.batch.link(batch_index);
        let output = link.output;
        let (output_row, logits_row) = self.outputs.add(batch_index, output);
        let previous = (cursor.last.0 == self.ubatch).then_some(cursor.last.1);
        let row = Row {
            batch_index,
            token: self.batch.token(batch_index),
            position: link.position,
            seq: self.batch.seq(batch_index),
            previous,
            is_last: true,
            output,
            output_row,
            logits_row,
        };
        let number = ubatch.add(row);
        let cursor = &mut self.splitter.cursors[slot as usize];
        cursor.next = link.next;
        cursor.taken += 1;
        cursor.left -= 1;
        cursor.last = (self.ubatch, number);
        self.left -= 1;
        debug_assert_eq!(link.next == NONE, cursor.left == 0);
    }

    fn cursor(&self, slot: u32) -> Cursor {
        self.splitter.cursors[slot as usize]
    }

    /// Tokens of a sequence are taken in order: a token is used if its rank is below the number
    /// taken.
    fn is_used(&self, index: u32) -> bool {
        let link = self.batch.link(index);
        link.rank < self.cursor(link.slot).taken
    }

    fn skip_used(&mut self) {
        while self.first_unused < self.batch.len() && self.is_used(self.first_unused) {
            self.first_unused += 1;
        }
    }
}
