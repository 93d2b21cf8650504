//! Micro-batches: the rows of one forward pass.

mod split;

pub use split::{Split, Splitter};

use core::ops::Range;

use walla_types::{Position, SeqId};

use crate::batch::{Output, TokenInput};

/// One token of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index in the batch.
    pub batch_index: u32,
    /// The token.
    pub token: TokenInput,
    /// Its position.
    pub position: Position,
    /// Its sequence.
    pub seq: SeqId,
    /// Row of this micro-batch with the preceding position of the same sequence. `None` if that
    /// position is in the cache or this is position 0.
    pub previous: Option<u32>,
    /// Whether this is the sequence's last row in this micro-batch.
    pub is_last: bool,
    /// Requested output; never [`Output::Unsaid`].
    pub output: Output,
    /// Output row in the batch's output buffer, if the token is an output.
    pub output_row: Option<u32>,
    /// Row in the batch's logits buffer, if the token has logits.
    pub logits_row: Option<u32>,
}

/// Adjacent rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The sequence.
    pub seq: SeqId,
    /// First row.
    pub first_row: u32,
    /// Rows, at least 1; their positions are consecutive.
    pub rows: u32,
    /// Position of the first row.
    pub first_position: Position,
}

/// Rows for one forward pass. The caller owns the storage and reuses it.
#[derive(Clone, Debug)]
pub struct UBatch {
    rows: Vec<Row>,
    runs: Vec<Run>,
    capacity: u32,
    decode_rows: u32,
    output_rows: Range<u32>,
    logits_rows: Range<u32>,
}

impl UBatch {
    /// An empty micro-batch with a capacity of `rows_max` rows (at least 1).
    #[must_use]
    pub fn with_capacity(rows_max: u32) -> Self {
        let capacity = rows_max.max(1);
        Self {
            rows: Vec::with_capacity(capacity as usize),
            runs: Vec::with_capacity(capacity as usize),
            capacity,
            decode_rows: 0,
            output_rows: 0..0,
            logits_rows: 0..0,
        }
    }

    /// Maximum number of rows.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The rows grouped into runs, in row order: every row is in exactly one run. After an equal or
    /// ragged split each sequence has one run.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.rows.len() as u32 // at most `capacity`
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Leading rows whose sequence has no other row left in the batch: the rows for a decode
    /// kernel. A ragged split puts all such sequences first. Other splits count only the leading
    /// rows that satisfy the condition.
    #[must_use]
    pub fn decode_rows(&self) -> u32 {
        self.decode_rows
    }

    /// The batch's output rows that this micro-batch fills.
    #[must_use]
    pub fn output_rows(&self) -> Range<u32> {
        self.output_rows.clone()
    }

    /// The batch's logits rows that this micro-batch fills.
    #[must_use]
    pub fn logits_rows(&self) -> Range<u32> {
        self.logits_rows.clone()
    }

    /// Batch indices of the rows.
    pub fn batch_indices(&self) -> impl ExactSizeIterator<Item = u32> {
        self.rows.iter().map(|row| row.batch_index)
    }

    fn start(&mut self, output_rows: u32, logits_rows: u32) {
        self.rows.clear();
        self.runs.clear();
        self.decode_rows = 0;
        self.output_rows = output_rows..output_rows;
        self.logits_rows = logits_rows..logits_rows;
    }

    /// Adds a row and returns its index. `is_decode`: the row is the only one left of its sequence.
    #[inline]
    fn add(&mut self, row: Row, is_decode: bool) -> u32 {
        let number = self.len();
        if let Some(previous) = row.previous {
            self.rows[previous as usize].is_last = false;
        }
        match self.runs.last_mut() {
            Some(run) if run.seq == row.seq => run.rows += 1,
            _ => {
                let (seq, first_position) = (row.seq, row.position);
                self.runs.push(Run { seq, first_row: number, rows: 1, first_position });
            }
        }
        if is_decode && self.decode_rows == number {
            self.decode_rows += 1;
        }
        self.output_rows.end += u32::from(row.output_row.is_some());
        self.logits_rows.end += u32::from(row.logits_row.is_some());
        self.rows.push(row);
        number
    }
}
