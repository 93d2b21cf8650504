//! Checks of programs and texts, and the memory of activations.

use walla_device::{DeviceError, Linear, MatrixId, VectorId};

use super::{EncoderProgram, LayerNorm};
use crate::forward::attention::QUERIES;
use crate::matrix::Matrix;
use crate::memory::Bytes;
use crate::operands::PANEL;
use crate::quantize::GROUP;
use crate::sync::Mutex;
use crate::workspace::{Sizes, Workspace};

/// Slots of the workspace: the hidden state, the results of attention, the feed-forward network.
pub(super) const STATE: usize = 0;
pub(super) const ATTENDED: usize = 1;
pub(super) const HIDDEN: usize = 2;

/// Memory of a program, as numbers of elements.
#[derive(Clone, Debug)]
pub(super) struct EncoderSizes {
    shared: Sizes,
    /// Keys and values of a head: f16.
    halves: usize,
    /// Queries and results of a block of queries: f32.
    queries: usize,
    /// Scores of a block of queries, or of one query and one value in f32.
    scores: usize,
}

impl EncoderSizes {
    /// Bytes for `workers` workers; saturates on overflow.
    pub(super) fn bytes(&self, workers: usize) -> u64 {
        let floats = self.queries.saturating_mul(2).saturating_add(self.scores).saturating_mul(4);
        let worker = self.halves.saturating_mul(4).saturating_add(floats).saturating_mul(workers);
        self.shared.bytes(workers).saturating_add(worker as u64)
    }
}

/// Scratch memory of one worker for one head of one text.
pub(super) struct HeadSpace {
    pub keys: Bytes,
    pub values: Bytes,
    pub queries: Bytes,
    pub scores: Bytes,
    pub out: Bytes,
}

impl HeadSpace {
    fn new(sizes: &EncoderSizes) -> Result<Self, DeviceError> {
        let room = |count: usize, size| Bytes::zeroed("activations", count.saturating_mul(size));
        Ok(Self {
            keys: room(sizes.halves, 2)?,
            values: room(sizes.halves, 2)?,
            queries: room(sizes.queries, 4)?,
            scores: room(sizes.scores, 4)?,
            out: room(sizes.queries, 4)?,
        })
    }
}

/// A checked program with its memory.
pub(super) struct Prepared {
    pub program: EncoderProgram,
    pub workspace: Workspace,
    pub heads: Vec<Mutex<HeadSpace>>,
}

impl Prepared {
    pub(super) fn new(
        program: EncoderProgram,
        sizes: EncoderSizes,
        workers: usize,
    ) -> Result<Self, DeviceError> {
        let heads = (0..workers).map(|_| HeadSpace::new(&sizes).map(Mutex::new));
        let heads = heads.collect::<Result<_, _>>()?;
        Ok(Self { program, workspace: Workspace::new(sizes.shared, workers)?, heads })
    }

    /// Checks the texts of a call.
    pub(super) fn check(&self, texts: &[&[u32]], matrices: &[Matrix]) -> Result<(), DeviceError> {
        let rows_of = |id: MatrixId| matrices[id.0 as usize].rows;
        let (vocab, context) = (rows_of(self.program.tokens), rows_of(self.program.positions));
        let rows = texts.iter().fold(0, |rows: usize, text| rows.saturating_add(text.len()));
        let max_rows = self.program.max_rows as usize;
        if rows > max_rows {
            return Err(DeviceError::Invalid(format!("{rows} rows, at most {max_rows}")));
        }
        for text in texts {
            if !(1..=context).contains(&text.len()) {
                let tokens = text.len();
                return Err(DeviceError::Invalid(format!(
                    "a text of {tokens} tokens of {context}"
                )));
            }
            if let Some(token) = text.iter().find(|token| **token as usize >= vocab) {
                return Err(DeviceError::Invalid(format!("token {token} of {vocab}")));
            }
        }
        Ok(())
    }
}

/// Checks a program; returns the memory that it needs.
pub(super) fn sizes(
    program: &EncoderProgram,
    matrices: &[Matrix],
    vectors: &[Vec<f32>],
) -> Result<EncoderSizes, DeviceError> {
    let check = Check { matrices, vectors };
    let tokens = check.matrix("tokens", program.tokens)?;
    let (width, rows) = (tokens.cols, program.max_rows as usize);
    let heads = program.heads as usize;
    if rows == 0 || heads == 0 || !width.is_multiple_of(heads) {
        let what = format!("{rows} rows, {heads} heads for a width of {width}");
        return Err(DeviceError::Invalid(what));
    }
    let tables = [Some(program.tokens), Some(program.positions), program.types];
    for table in tables.into_iter().flatten() {
        let table = check.matrix("a table", table)?;
        if table.cols != width || !table.usage.gather {
            return Err(DeviceError::Invalid(format!("a table of {} columns", table.cols)));
        }
    }
    check.norm(&program.norm, width)?;
    let context = check.matrix("positions", program.positions)?.rows;
    let mut all = Sizes { rows, row: width, ..Sizes::default() };
    let (mut max_hidden, mut product) = (0, 0);
    for layer in &program.layers {
        for part in &layer.attention {
            check.linear(part, (width, width))?;
        }
        check.linear(&layer.output, (width, width))?;
        let hidden = check.matrix("up", layer.up.matrix)?.rows;
        check.linear(&layer.up, (hidden, width))?;
        check.linear(&layer.down, (width, hidden))?;
        check.norm(&layer.attention_norm, width)?;
        check.norm(&layer.output_norm, width)?;
        max_hidden = hidden.max(max_hidden);
        product = width.next_multiple_of(PANEL).saturating_mul(3);
    }
    let of_rows = |numbers: usize| rows.saturating_mul(numbers);
    all.slots = vec![of_rows(width), of_rows(width), of_rows(max_hidden)];
    all.product = of_rows(product);
    all.groups = of_rows(width.max(max_hidden)) / GROUP;
    all.row = width.max(max_hidden);
    let (dim, text) = (width / heads, context.min(rows).next_multiple_of(16));
    Ok(EncoderSizes {
        shared: all,
        halves: text.saturating_mul(dim),
        queries: QUERIES.saturating_mul(dim),
        scores: QUERIES.saturating_mul(text),
    })
}

/// Access to checked weights.
struct Check<'a> {
    matrices: &'a [Matrix],
    vectors: &'a [Vec<f32>],
}

impl Check<'_> {
    fn matrix(&self, what: &str, id: MatrixId) -> Result<&Matrix, DeviceError> {
        let unknown = || DeviceError::Invalid(format!("{what}: matrix {} is unknown", id.0));
        self.matrices.get(id.0 as usize).ok_or_else(unknown)
    }

    fn vector(&self, id: VectorId, len: usize) -> Result<(), DeviceError> {
        match self.vectors.get(id.0 as usize) {
            Some(vector) if vector.len() == len => Ok(()),
            found => {
                let found = found.map(Vec::len);
                let what = format!("vector {} has the length {found:?}, expected {len}", id.0);
                Err(DeviceError::Invalid(what))
            }
        }
    }

    fn linear(&self, linear: &Linear, (rows, cols): (usize, usize)) -> Result<(), DeviceError> {
        let matrix = self.matrix("a projection", linear.matrix)?;
        if (matrix.rows, matrix.cols) != (rows, cols) || !matrix.usage.multiply {
            let what = format!("a matrix of {} x {}, {rows} x {cols}", matrix.rows, matrix.cols);
            return Err(DeviceError::Invalid(what));
        }
        linear.bias.map_or(Ok(()), |bias| self.vector(bias, rows))
    }

    fn norm(&self, norm: &LayerNorm, width: usize) -> Result<(), DeviceError> {
        self.vector(norm.weight, width)?;
        self.vector(norm.bias, width)
    }
}
