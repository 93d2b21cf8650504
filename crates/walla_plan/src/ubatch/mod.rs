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
}

/// Rows for one forward pass. The caller owns the storage and reuses it.
#[derive(Clone, Debug)]
pub struct UBatch {
    rows: Vec<Row>,
    runs: Vec<Run>,
    capacity: u32,
    output_rows: Range<u32>,
    logits_rows: Range<u32>,
}

impl UBatch {
    /// An empty micro-batch with a capacity of `max_rows` rows (at least 1).
    #[must_use]
    pub fn with_capacity(max_rows: u32) -> Self {
        let capacity = max_rows.max(1);
        Self {
            rows: Vec::with_capacity(capacity as usize),
            runs: Vec::with_capacity(capacity as usize),
            capacity,
            output_rows: 0..0,
            logits_rows: 0..0,
        }
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

    fn start(&mut self, output_rows: u32, logits_rows: u32) {
        self.rows.clear();
        self.runs.clear();
        self.output_rows = output_rows..output_rows;
        self.logits_rows = logits_rows..logits_rows;
    }

    /// Adds a row and returns its index.
    #[inline]
    fn add(&mut self, row: Row) -> u32 {
        let number = self.len();
        if let Some(previous) = row.previous {
            self.rows[previous as usize].is_last = false;
        }
        match self.runs.last_mut() {
            Some(run) if run.seq == row.seq => run.rows += 1,
            _ => self.runs.push(Run { seq: row.seq, first_row: number, rows: 1 }),
        }
        self.output_rows.end += u32::from(row.output_row.is_some());
        self.logits_rows.end += u32::from(row.logits_row.is_some());
        self.rows.push(row);
        number
    }
}
