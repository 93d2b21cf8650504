//! Removal from the middle of a sequence: later cells move down, and their keys are rotated back.

use core::ops::{Range, RangeBounds};

use walla_types::{CacheCommand, Position, SeqId};

use super::ledger::clip;
use super::{KvCommands, KvLedger, LedgerError, PageId};

/// A checked removal of `gap` from the middle of a sequence of `len` tokens.
#[derive(Clone, Copy, Debug)]
struct Closing {
    seq: SeqId,
    /// First cell to write.
    start: u32,
    /// Cells by which the later tokens move down.
    gap: u32,
    /// Tokens of the sequence afterwards.
    len: u32,
    page_tokens: u32,
}

impl Closing {
    /// Whether cells keep their slots, so that whole pages can be swapped in the table.
    fn keeps_slots(self) -> bool {
        self.gap.is_multiple_of(self.page_tokens)
    }

    /// Distance in pages between a cell's old and new page, if slots are kept.
    fn gap_pages(self) -> u32 {
        self.gap / self.page_tokens
    }

    /// Table indices (after the removal) of pages that receive cells.
    fn written_pages(self) -> Range<u32> {
        self.start / self.page_tokens..self.len.div_ceil(self.page_tokens)
    }

    /// Whether the first written page also keeps cells in front of the gap.
    fn splits_a_page(self) -> bool {
        !self.start.is_multiple_of(self.page_tokens)
    }

    /// Change of positions.
    fn turn(self) -> i32 {
        -(self.gap as i32) // a context is at most `i32::MAX` tokens
    }

    fn move_cells(
        self,
        (from, from_cell): (PageId, u32),
        (to, to_cell): (PageId, u32),
        cells: u32,
    ) -> CacheCommand {
        let (from_page, to_page, turn) = (from.0, to.0, self.turn());
        CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, turn }
    }
}

impl KvLedger {
    /// Removes tokens anywhere in a sequence. Tokens after the range move down to close the gap,
    /// and their keys are rotated back by its length. Later tokens behave as if the removed
    /// positions had never existed (llama.cpp: `seq_rm(p0, p1)`, then `seq_add(p1, -1, p0 - p1)`).
    ///
    /// This is an approximation, which makes it cheap: moved tokens keep the values that were
    /// computed while the removed tokens were visible. If the range's length is a multiple of
    /// `page_tokens`, pages are swapped in the table and only keys are rotated in place; otherwise
    /// cells move. Pages with other owners are replaced by copies before they are written. Emits at
    /// most two commands for each page that it writes, and two more.
    ///
    /// # Errors
    /// [`LedgerError::UnknownSequence`]; if tokens follow the range: [`LedgerError::Recurrent`],
    /// [`LedgerError::CannotShift`], [`LedgerError::Unwritten`], [`LedgerError::NoPages`],
    /// [`LedgerError::CommandsFull`].
    ///
    /// # Examples
    /// A context shift that keeps a system prompt of 32 tokens:
    /// ```
    /// # use walla_plan::{KvCommands, KvLedger, LedgerOptions};
    /// # use walla_types::SeqId;
    /// # let mut ledger = KvLedger::new(LedgerOptions { page_tokens: 32, ..LedgerOptions::default() })?;
    /// # let mut commands = KvCommands::with_capacity(256);
    /// ledger.append(SeqId(0), 100, &mut commands)?;
    /// ledger.retire(1);
    /// ledger.remove_and_shift(SeqId(0), 32..64, &mut commands)?;
    /// assert_eq!(ledger.len(SeqId(0)), 68);
    /// assert_eq!(commands.as_slice().len(), 3); // two pages of keys rotated in place, recent tokens renumbered
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_and_shift(
        &mut self,
        seq: SeqId,
        range: impl RangeBounds<Position>,
        commands: &mut KvCommands,
    ) -> Result<(), LedgerError> {
        let len = self.sequence(seq)?.tokens;
        let range = clip(range, len);
        if range.is_empty() || range.end == len {
            return self.remove(seq, range, commands);
        }
        if self.options.recurrent {
            return Err(LedgerError::Recurrent { seq });
        }
        if !self.options.can_shift {
            return Err(LedgerError::CannotShift { seq });
        }
        self.refuse_unwritten(seq, len)?;
        let gap = range.end - range.start;
        let page_tokens = self.options.page_tokens;
        let closing = Closing { seq, start: range.start, gap, len: len - gap, page_tokens };
        self.refuse_pages(self.shared_pages_written(closing))?;
        self.refuse_commands(2 * closing.written_pages().len() + 2, commands)?;

        if closing.keeps_slots() {
            self.close_by_pages(closing, commands);
        } else {
            self.close_by_cells(closing, commands);
        }
        let (sequence, turn) = (seq.0, closing.turn());
        commands.push(CacheCommand::ShiftRecent { sequence, from: range.end, end: len, turn });
        self.cut_to(seq, closing.len);
        Ok(())
    }

    /// Pages with other owners that closing the gap would write: the number of free pages needed.
    fn shared_pages_written(&self, closing: Closing) -> u32 {
        let pages = self.pages(closing.seq);
        // If pages are swapped, the rotated page comes from a higher index; a split page stays.
        let stays = |index: u32| {
            !closing.keeps_slots()
                || (closing.splits_a_page() && index == closing.written_pages().start)
        };
        let shared = |index: &u32| {
            let from = if stays(*index) { *index } else { *index + closing.gap_pages() };
            self.pool.is_shared(pages[from as usize])
        };
        closing.written_pages().filter(shared).count() as u32 // at most `max_pages_per_sequence`
    }

    /// Closes a gap of whole pages: cells keep their slots.
    fn close_by_pages(&mut self, closing: Closing, commands: &mut KvCommands) {
        let row = self.table(closing.seq, 0).start;
        let pages = closing.written_pages();
        let page_tokens = closing.page_tokens;
        let mut first = pages.start;
        if closing.splits_a_page() {
            let slot = closing.start % page_tokens;
            let from = self.tables[row + (first + closing.gap_pages()) as usize];
            let to = self.own_page_with_copy(row + first as usize, commands);
            let cells = (page_tokens - slot).min(closing.len - closing.start);
            commands.push(closing.move_cells((from, slot), (to, slot), cells));
            first += 1;
        }
        for index in first..pages.end {
            // A swap keeps each page in the row exactly once. The pages of the gap end up after the
            // remaining ones, where they are truncated.
            let to = row + index as usize;
            self.tables.swap(to, to + closing.gap_pages() as usize);
            let from = self.tables[to];
            let page = self.own_page(to);
            let cells = page_tokens.min(closing.len - index * page_tokens);
            commands.push(closing.move_cells((from, 0), (page, 0), cells));
        }
    }

    /// Closes any other gap. Cells move one page at a time in ascending order, so that no cell is
    /// read after it was written.
    fn close_by_cells(&mut self, closing: Closing, commands: &mut KvCommands) {
        let row = self.table(closing.seq, 0).start;
        let page_tokens = closing.page_tokens;
        for index in closing.written_pages() {
            let place = row + index as usize;
            let old = self.tables[place];
            let keeps_cells = closing.splits_a_page() && index == closing.written_pages().start;
            let page = if keeps_cells {
                self.own_page_with_copy(place, commands)
            } else {
                self.own_page(place)
            };
            let mut cell = closing.start.max(index * page_tokens);
            let end = closing.len.min((index + 1) * page_tokens);
            while cell < end {
                let source = cell + closing.gap;
                let (source_page, slot) = (source / page_tokens, source % page_tokens);
                let from_page = if source_page == index {
                    old
                } else {
                    self.tables[row + source_page as usize]
                };
                let cells = (end - cell).min(page_tokens - slot);
                let to = (page, cell % page_tokens);
                commands.push(closing.move_cells((from_page, slot), to, cells));
                cell += cells;
            }
        }
    }

    /// Makes the page at a table index exclusive. Its cells will be overwritten.
    fn own_page(&mut self, place: usize) -> PageId {
        let old = self.tables[place];
        if !self.pool.is_shared(old) {
            return old;
        }
        let page = self.take_page();
        self.tables[place] = page;
        self.pool.drop_owner(old);
        page
    }

    /// Makes the page at a table index exclusive and keeps its cells.
    fn own_page_with_copy(&mut self, place: usize, commands: &mut KvCommands) -> PageId {
        let from = self.tables[place];
        let to = self.own_page(place);
        if from != to {
            commands.push(CacheCommand::CopyPage { from: from.0, to: to.0 });
        }
        to
    }
}
