//! The cache of a [`HashDevice`](super::HashDevice): the token and the position of each cell.

use walla_device::step::{OutputRow, ResultRow, StepRow, StepView};
use walla_device::{
    CacheCommand, CacheDesc, CacheImage, CacheLayer, CachePart, ImageNumber, ImagePart, ImageState,
    Program,
};
use walla_types::MAX_PENALTY_WINDOW;

use super::sample::{Sampler, cell_hash, mix, penalty_hash};

/// The contents of a cell, in place of a key and a value.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    token: u32,
    /// Position for which the key is rotated.
    position: i64,
}

/// State of one sequence in addition to its pages.
#[derive(Clone, Debug)]
struct Sequence {
    last: u32,
    recent: Vec<u32>,
    /// State of all recurrent layers: a hash of every token so far.
    recurrent: u64,
}

impl Sequence {
    fn new() -> Self {
        Self { last: 0, recent: vec![0; MAX_PENALTY_WINDOW as usize], recurrent: 0 }
    }
}

/// Bytes of a cell in an image.
const CELL_BYTES: usize = 12;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct HashCache {
    page_tokens: usize,
    page_bytes: u64,
    pages: usize,
    is_recurrent: bool,
    cells: Vec<Cell>,
    sequences: Vec<Sequence>,
}

/// Index of a position in the ring of recent tokens.
fn recent_index(position: u32) -> usize {
    (position % MAX_PENALTY_WINDOW) as usize
}

impl HashCache {
    pub fn new(desc: &CacheDesc) -> Self {
        let cells = desc.pages as usize * desc.page_tokens as usize;
        let is_recurrent = |layer: &CacheLayer| !matches!(layer, CacheLayer::Kv { .. });
        Self {
            page_tokens: desc.page_tokens as usize,
            page_bytes: desc.page_bytes(),
            pages: desc.pages as usize,
            is_recurrent: desc.layers.iter().any(is_recurrent),
            cells: vec![Cell::default(); cells],
            sequences: (0..desc.max_sequences).map(|_| Sequence::new()).collect(),
        }
    }

    /// Bytes of the pages.
    pub fn bytes(&self) -> u64 {
        self.page_bytes * self.pages as u64
    }

    /// Keeps the first `pages` pages; pages that return later contain zeros.
    pub fn resize(&mut self, pages: u32) {
        self.pages = pages as usize;
        let kept = (self.pages * self.page_tokens).min(self.cells.len());
        self.cells[kept..].fill(Cell::default());
    }

    /// The cell of a position; `None` if its page has no memory.
    fn cell(&self, table: &[u32], position: u32) -> Option<usize> {
        let page = *table.get(position as usize / self.page_tokens)? as usize;
        let is_there = page < self.pages;
        is_there.then_some(page * self.page_tokens + position as usize % self.page_tokens)
    }

    /// Appends all rows, then samples for each output. `None` if the block contains an invalid
    /// reference.
    pub fn evaluate(
        &mut self,
        step: &StepView<'_>,
        program: &Program,
        sampler: &Sampler<'_>,
        results: &mut Vec<ResultRow>,
    ) -> Option<()> {
        let pages = program.layout.pages_per_sequence as usize;
        let tables = |row: &StepRow| step.tables.get(row.table as usize * pages..)?.get(..pages);
        let rows = step.rows.get(..step.header.rows as usize)?;
        let mut running = 0;
        // Hashes of the recurrent layers after each row, for outputs.
        let mut states = Vec::new();
        for row in rows {
            let cell = self.cell(tables(row)?, row.position)?;
            let sequence = self.sequences.get_mut(row.sequence as usize)?;
            let token = u32::try_from(row.token).unwrap_or(sequence.last);
            sequence.recent[recent_index(row.position)] = token;
            self.cells[cell] = Cell { token, position: row.position.into() };
            if self.is_recurrent {
                let before =
                    if row.previous == StepRow::NONE { sequence.recurrent } else { running };
                let before = if row.position == 0 { 0 } else { before };
                running = mix(before, u64::from(token));
                states.push(running);
                if row.flags & StepRow::LAST_OF_SEQUENCE != 0 {
                    sequence.recurrent = running;
                }
            }
        }
        for output in step.outputs.get(..step.header.outputs as usize)? {
            let row = rows.get(output.row as usize)?;
            let state = states.get(output.row as usize).copied().unwrap_or(0);
            let context = self.context_hash(tables(row)?, row.position, state)?;
            let recent = &self.sequences.get(output.sequence as usize)?.recent;
            let token_at = |position| recent[recent_index(position)];
            let context = penalty_hash(output, context, token_at);
            if output.flags & OutputRow::SAMPLE == 0 {
                results.push(ResultRow::default());
                continue;
            }
            let result = sampler.draw(output, context);
            self.sequences.get_mut(output.sequence as usize)?.last = result.token;
            results.push(result);
        }
        Some(())
    }

    /// A hash of every cell that is visible to a row.
    fn context_hash(&self, table: &[u32], position: u32, state: u64) -> Option<u64> {
        (0..=position).try_fold(state, |hash, position| {
            let Cell { token, position } = *self.cells.get(self.cell(table, position)?)?;
            Some(cell_hash(hash, token, position))
        })
    }

    /// A cell is a token and a position; the state of all recurrent layers is one hash.
    pub fn image(&self) -> CacheImage {
        let number = ImageNumber::Bytes(CELL_BYTES as u32);
        let part = ImagePart { heads: 1, numbers: 1, number, cells_last: false };
        let state = ImageState { bytes: 8, number: ImageNumber::Bytes(8) };
        CacheImage {
            layout: "hash 1",
            page_tokens: self.page_tokens as u32,
            parts: vec![part],
            states: if self.is_recurrent { vec![state] } else { Vec::new() },
        }
    }

    /// Bytes of a part, if it exists.
    pub fn read(&self, part: &CachePart<'_>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        match *part {
            CachePart::Pages(pages) => {
                for page in pages {
                    let first = *page as usize * self.page_tokens;
                    for cell in self.cells.get(first..first + self.page_tokens)? {
                        bytes.extend_from_slice(&cell.token.to_le_bytes());
                        bytes.extend_from_slice(&cell.position.to_le_bytes());
                    }
                }
            }
            CachePart::State { sequence, .. } => {
                let state = self.sequences.get(sequence as usize)?.recurrent;
                bytes.extend_from_slice(&state.to_le_bytes());
            }
            CachePart::Recent { sequence } => {
                let recent = &self.sequences.get(sequence as usize)?.recent;
                recent.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
            }
        }
        Some(bytes)
    }

    /// Writes a part. `None` if it does not exist, or if there are too few bytes.
    pub fn write(&mut self, part: &CachePart<'_>, bytes: &[u8]) -> Option<()> {
        match *part {
            CachePart::Pages(pages) => {
                let mut cells = bytes.chunks_exact(CELL_BYTES);
                for page in pages {
                    let first = *page as usize * self.page_tokens;
                    for to in self.cells.get_mut(first..first + self.page_tokens)? {
                        let (token, position) = cells.next()?.split_first_chunk()?;
                        let position = i64::from_le_bytes(position.try_into().ok()?);
                        *to = Cell { token: u32::from_le_bytes(*token), position };
                    }
                }
            }
            CachePart::State { sequence, .. } => {
                let state = u64::from_le_bytes(*bytes.first_chunk()?);
                self.sequences.get_mut(sequence as usize)?.recurrent = state;
            }
            CachePart::Recent { sequence } => {
                let recent = &mut self.sequences.get_mut(sequence as usize)?.recent;
                for (to, token) in recent.iter_mut().zip(bytes.chunks_exact(4)) {
                    *to = u32::from_le_bytes(token.try_into().ok()?);
                }
            }
        }
        Some(())
    }

    /// Runs one command. `None` if it refers to cells or sequences that do not exist.
    pub fn run_cache_ops(&mut self, command: CacheCommand) -> Option<()> {
        match command {
            CacheCommand::CopyPage { from, to } => {
                let first = from as usize * self.page_tokens;
                let end = first + self.page_tokens;
                let to = to as usize * self.page_tokens;
                (end.max(to + self.page_tokens) <= self.cells.len()).then_some(())?;
                self.cells.copy_within(first..end, to);
            }
            CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, turn } => {
                let at = |page: u32, cell: u32| page as usize * self.page_tokens + cell as usize;
                let (from, to) = (at(from_page, from_cell), at(to_page, to_cell));
                let cells = cells as usize;
                (from.max(to) + cells <= self.cells.len()).then_some(())?;
                self.cells.copy_within(from..from + cells, to);
                let moved = self.cells[to..to + cells].iter_mut();
                moved.for_each(|cell| cell.position += i64::from(turn));
            }
            CacheCommand::ShiftRecent { sequence, from, end, turn } => {
                let recent = &mut self.sequences.get_mut(sequence as usize)?.recent;
                let before = recent.clone();
                for position in from.max(end.saturating_sub(MAX_PENALTY_WINDOW))..end {
                    let moved = position.checked_add_signed(turn)?;
                    recent[recent_index(moved)] = before[recent_index(position)];
                }
            }
            CacheCommand::CopySequence { from, to } => {
                let copy = self.sequences.get(from as usize)?.clone();
                *self.sequences.get_mut(to as usize)? = copy;
            }
            CacheCommand::ClearSequence { sequence } => {
                *self.sequences.get_mut(sequence as usize)? = Sequence::new();
            }
        }
        Some(())
    }
}
