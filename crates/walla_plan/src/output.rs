//! Maps the tokens of a batch to rows of the output buffer.

use crate::batch::{BatchLimits, CheckedBatch, Output};

/// Reason why an index has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputError {
    /// The index is past the end of the batch, or a negative index counts back past the first
    /// output.
    #[error("index {index} is out of range: {tokens} tokens, {outputs} outputs")]
    OutOfRange {
        /// The given index.
        index: i32,
        /// Tokens of the batch.
        tokens: u32,
        /// Outputs of the batch.
        outputs: u32,
    },
    /// The token was pushed without an output. Request one in `Batch::push`.
    #[error("the token at index {index} is not an output")]
    NotAnOutput {
        /// The given index.
        index: i32,
    },
    /// The token was pushed without logits. Request them in `Batch::push`.
    #[error("no logits were requested for the output at index {index}")]
    NoLogits {
        /// The given index.
        index: i32,
    },
    /// No micro-batch has taken the token yet.
    #[error("the output at index {index} has no row yet")]
    NoRowYet {
        /// The given index.
        index: i32,
    },
}

/// Rows, numbered in the order in which tokens are split. Indexed by batch index and by row.
#[derive(Clone, Debug)]
struct Rows {
    /// Row of each token of the batch, −1 for none.
    of_index: Vec<i32>,
    /// Batch index of each row.
    index_of: Vec<u32>,
}

impl Rows {
    fn new(max_tokens: u32, max_rows: u32) -> Self {
        let of_index = Vec::with_capacity(max_tokens as usize);
        Self { of_index, index_of: Vec::with_capacity(max_rows as usize) }
    }

    fn clear(&mut self, tokens: u32) {
        self.index_of.clear();
        self.of_index.clear();
        self.of_index.resize(tokens as usize, -1);
    }

    fn len(&self) -> u32 {
        self.index_of.len() as u32 // at most the tokens of a batch
    }

    #[inline]
    fn add(&mut self, index: u32) -> u32 {
        let row = self.len();
        self.of_index[index as usize] = row as i32;
        self.index_of.push(index);
        row
    }
}

/// Batch index → row of the output buffers (llama.cpp's `output_ids`).
///
/// There are two buffers: one row per output (sampled token, log-probability, candidates), and one
/// row of `vocab` logits per output with logits. Rows are numbered from 0 for each batch, in the
/// order in which [`Split`](crate::Split) takes tokens.
///
/// A negative index counts the batch's outputs from the end: −1 is the last output. This applies to
/// every method that takes an index.
///
/// # Examples
/// Sequences of 3 and 7 tokens, the last token of each is an output, split into equal parts:
/// ```
/// use walla_plan::{
///     Batch, BatchLimits, KvLedger, LedgerOptions, Output, OutputError, OutputMap, Splitter, TokenInput, UBatch,
/// };
/// use walla_types::{SeqId, TokenId};
///
/// let limits = BatchLimits::new(32_000, 2, 16);
/// let ledger = KvLedger::new(LedgerOptions { max_sequences: 2, ..LedgerOptions::default() })?;
/// let mut batch = Batch::new(limits);
/// for (seq, tokens) in [(SeqId(0), 3), (SeqId(1), 7)] {
///     for i in 0..tokens {
///         let output = if i + 1 == tokens { Output::SampleAndLogits } else { Output::None };
///         batch.push(TokenInput::Id(TokenId(i)), None, seq, output)?;
///     }
/// }
/// let (mut splitter, mut outputs) = (Splitter::new(limits), OutputMap::new(limits));
/// let mut ubatch = UBatch::with_capacity(16);
/// let mut split = batch.check(&ledger)?.split(&mut splitter, &mut outputs);
///
/// assert!(split.equal(16, &mut ubatch)); // three tokens of each
/// assert_eq!(ubatch.len(), 6);
/// assert!(split.equal(16, &mut ubatch));
/// assert_eq!(ubatch.len(), 4);
/// assert!(!split.equal(16, &mut ubatch));
///
/// assert_eq!(outputs.out_ids(), [2, 9]);
/// assert_eq!((outputs.row(2)?, outputs.row(9)?, outputs.row(-1)?), (0, 1, 1));
/// assert_eq!(outputs.row(3), Err(OutputError::NotAnOutput { index: 3 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutputMap {
    outputs: Rows,
    logits: Rows,
    /// Requested output of each token of the batch.
    requested: Vec<Output>,
    /// Batch indices of all outputs, ascending. Negative indices count in this list.
    output_indices: Vec<u32>,
}

impl OutputMap {
    /// An empty map with capacity for a batch of these limits.
    #[must_use]
    pub fn new(limits: BatchLimits) -> Self {
        let BatchLimits { max_tokens, max_outputs, max_logits, .. } = limits;
        Self {
            outputs: Rows::new(max_tokens, max_outputs),
            logits: Rows::new(max_tokens, max_logits),
            requested: Vec::with_capacity(max_tokens as usize),
            output_indices: Vec::with_capacity(max_outputs as usize),
        }
    }

    pub(crate) fn start(&mut self, batch: CheckedBatch<'_>) {
        self.outputs.clear(batch.len());
        self.logits.clear(batch.len());
        self.requested.clear();
        self.output_indices.clear();
        self.requested.extend(batch.tokens().map(|(_, link)| link.output));
        let outputs = self.requested.iter().enumerate().filter(|(_, output)| output.is_output());
        self.output_indices.extend(outputs.map(|(index, _)| index as u32));
    }

    /// Assigns the output row and the logits row of a token, if it has them.
    #[inline]
    pub(crate) fn add(&mut self, index: u32, output: Output) -> (Option<u32>, Option<u32>) {
        let row = output.is_output().then(|| self.outputs.add(index));
        let logits = output.has_logits().then(|| self.logits.add(index));
        (row, logits)
    }

    /// Output rows assigned so far.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.outputs.len()
    }

    /// Logits rows assigned so far.
    #[must_use]
    pub fn logits_rows(&self) -> u32 {
        self.logits.len()
    }

    /// Batch index of each output row (llama.cpp's `out_ids`).
    #[must_use]
    pub fn out_ids(&self) -> &[u32] {
        &self.outputs.index_of
    }

    /// Output row of the token at a batch index.
    ///
    /// # Errors
    /// [`OutputError::OutOfRange`], [`OutputError::NotAnOutput`], [`OutputError::NoRowYet`].
    pub fn row(&self, index: i32) -> Result<u32, OutputError> {
        let (place, _) = self.resolve(index)?;
        row_of(&self.outputs, place, index)
    }

    /// Logits row of a token with logits (llama.cpp's `llama_get_logits_ith`).
    ///
    /// # Errors
    /// The errors of [`row`](Self::row), and [`OutputError::NoLogits`].
    pub fn logits_row(&self, index: i32) -> Result<u32, OutputError> {
        let (place, output) = self.resolve(index)?;
        if output.has_logits() {
            row_of(&self.logits, place, index)
        } else {
            Err(OutputError::NoLogits { index })
        }
    }

    /// Resolves a (possibly negative) index to the batch index and the requested output of the
    /// token.
    fn resolve(&self, index: i32) -> Result<(usize, Output), OutputError> {
        let (tokens, outputs) = (self.requested.len(), self.output_indices.len());
        let place = match usize::try_from(index) {
            Ok(place) => Some(place),
            Err(_) => outputs
                .checked_sub(index.unsigned_abs() as usize)
                .and_then(|nth| self.output_indices.get(nth))
                .map(|&place| place as usize),
        };
        let out_of_range =
            OutputError::OutOfRange { index, tokens: tokens as u32, outputs: outputs as u32 };
        let place = place.ok_or(out_of_range)?;
        let output = *self.requested.get(place).ok_or(out_of_range)?;
        if output.is_output() {
            Ok((place, output))
        } else {
            Err(OutputError::NotAnOutput { index })
        }
    }
}

fn row_of(rows: &Rows, place: usize, index: i32) -> Result<u32, OutputError> {
    u32::try_from(rows.of_index[place]).map_err(|_| OutputError::NoRowYet { index })
}
