//! Sequence operations: removal and copy (llama.cpp's memory API on pages). Batch operations: for
//! all sequences of a batch, or for none.

use core::ops::RangeBounds;

use walla_types::{CacheCommand, Position, SeqId};

use super::ledger::clip;
use super::{KvCommands, KvLedger, LedgerError, PageId};
use crate::batch::CheckedBatch;

impl KvLedger {
    /// Removes the tail of a sequence, or the whole sequence. Reserved pages are released too.
    ///
    /// The range is clipped to the existing tokens. An empty range changes nothing, except that a
    /// sequence without tokens releases its reserved pages. To remove tokens from the middle, use
    /// [`remove_and_shift`](Self::remove_and_shift). A recurrent sequence can only be removed as a
    /// whole, which emits [`CacheCommand::ClearSequence`].
    ///
    /// # Errors
    /// [`LedgerError::UnknownSequence`], [`LedgerError::MiddleRemoval`],
    /// [`LedgerError::Recurrent`], [`LedgerError::CommandsFull`].
    ///
    /// # Examples
    /// ```
    /// # use walla_plan::{KvCommands, KvLedger, LedgerOptions};
    /// # use walla_types::SeqId;
    /// # let mut ledger = KvLedger::new(LedgerOptions::default())?;
    /// # let mut commands = KvCommands::with_capacity(8);
    /// ledger.append(SeqId(0), 100, &mut commands)?;
    /// ledger.remove(SeqId(0), 40.., &mut commands)?; // rewinds to 40 tokens
    /// assert_eq!(ledger.len(SeqId(0)), 40);
    /// ledger.remove(SeqId(0), .., &mut commands)?; // llama.cpp's seq_rm(0, -1, -1)
    /// assert!(ledger.is_empty(SeqId(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(
        &mut self,
        seq: SeqId,
        range: impl RangeBounds<Position>,
        commands: &mut KvCommands,
    ) -> Result<(), LedgerError> {
        let len = self.sequence(seq)?.tokens;
        let range = clip(range, len);
        if range == (0..len) {
            if self.options.recurrent && len > 0 {
                self.refuse_commands(1, commands)?;
                commands.push(CacheCommand::ClearSequence { sequence: seq.0 });
            }
            self.cut_to(seq, 0);
            return Ok(());
        }
        if range.is_empty() {
            return Ok(());
        }
        if self.options.recurrent {
            return Err(LedgerError::Recurrent { seq });
        }
        if range.end < len {
            return Err(LedgerError::MiddleRemoval { seq, range, len });
        }
        self.cut_to(seq, range.start);
        Ok(())
    }

    /// Shares the prefix `range` (which starts at 0) of `source` with the empty sequence
    /// `destination`.
    ///
    /// Both sequences then own the same pages. The first one that writes to a partly filled page
    /// gets a copy of it ([`CacheCommand::CopyPage`], emitted by [`append`](Self::append)). Pages
    /// that the destination had reserved are released. A persona's prompt is thus evaluated and
    /// stored once for any number of agents. Copying a sequence to itself does nothing, as in
    /// llama.cpp.
    /// Emits [`CacheCommand::CopySequence`]. A recurrent sequence can only be copied as a whole.
    ///
    /// # Errors
    /// [`LedgerError::UnknownSequence`], [`LedgerError::CopyNotPrefix`],
    /// [`LedgerError::DestinationNotEmpty`], [`LedgerError::Unwritten`] if the current step appends
    /// some of the tokens, [`LedgerError::Recurrent`], [`LedgerError::CommandsFull`].
    pub fn copy(
        &mut self,
        source: SeqId,
        destination: SeqId,
        range: impl RangeBounds<Position>,
        commands: &mut KvCommands,
    ) -> Result<(), LedgerError> {
        let from = self.sequence(source)?;
        let to = self.sequence(destination)?;
        let range = clip(range, from.tokens);
        if source == destination || range.is_empty() {
            return Ok(());
        }
        if range.start > 0 {
            return Err(LedgerError::CopyNotPrefix { seq: source, start: range.start });
        }
        if to.tokens > 0 {
            return Err(LedgerError::DestinationNotEmpty { seq: destination, len: to.tokens });
        }
        // Commands run before the forward pass that writes these cells.
        self.refuse_unwritten(source, range.end)?;
        if self.options.recurrent && range.end < from.tokens {
            return Err(LedgerError::Recurrent { seq: source });
        }
        self.refuse_commands(1, commands)?;
        commands.push(CacheCommand::CopySequence { from: source.0, to: destination.0 });
        self.share_prefix(source, destination, range.end);
        Ok(())
    }

    /// Appends tokens whose cells the caller has written outside of a step, for example from a
    /// file, in [reserved](Self::reserve) pages.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn append_written(
        &mut self,
        seq: SeqId,
        tokens: u32,
        commands: &mut KvCommands,
    ) -> Result<(), LedgerError> {
        let positions = self.append(seq, tokens, commands)?;
        self.sequences[seq.index()].written = positions.end;
        Ok(())
    }

    /// [`reserve`](Self::reserve)s the pages of every sequence of a batch, or none.
    ///
    /// A partly filled page that several sequences of the batch share is counted once per sequence,
    /// although the last one keeps the page. When pages run out, a batch can therefore be refused
    /// although separate calls would just fit.
    ///
    /// # Errors
    /// [`LedgerError::NoPages`] and [`LedgerError::CommandsFull`] refer to all sequences together;
    /// other errors to the first sequence that is refused.
    pub fn reserve_batch(
        &mut self,
        batch: CheckedBatch<'_>,
        commands: &mut KvCommands,
    ) -> Result<(), LedgerError> {
        // All are counted first, so that a refusal changes nothing (rule 1).
        let (mut pages, mut copies) = (0, 0);
        for (seq, tokens) in batch.sequences() {
            let growth = self.growth(seq, tokens)?;
            pages += growth.pages();
            copies += usize::from(growth.copied.is_some());
        }
        if pages == 0 && copies == 0 {
            return Ok(());
        }
        self.refuse_pages(pages)?;
        self.refuse_commands(copies, commands)?;
        for (seq, tokens) in batch.sequences() {
            self.reserve(seq, tokens, commands)?;
        }
        Ok(())
    }

    /// Appends every token of a batch after [`reserve_batch`](Self::reserve_batch). Nothing may be
    /// appended, copied or truncated in between. Checks nothing again and cannot fail.
    pub fn append_reserved(&mut self, batch: CheckedBatch<'_>) {
        for (seq, tokens) in batch.sequences() {
            debug_assert!(
                self.growth(seq, tokens).is_ok_and(|growth| growth.pages() == 0),
                "room is reserved first"
            );
            self.append_unchecked(seq, tokens);
        }
    }

    /// Truncates an existing sequence and releases every page that the rest does not need.
    pub(super) fn cut_to(&mut self, seq: SeqId, tokens: u32) {
        let pages = self.sequences[seq.index()].pages;
        let kept = tokens.div_ceil(self.options.page_tokens);
        let row = self.table(seq, pages);
        for index in row.start + kept as usize..row.end {
            self.pool.drop_owner(self.tables[index]);
            self.tables[index] = PageId::PADDING;
        }
        let sequence = &mut self.sequences[seq.index()];
        sequence.tokens = tokens;
        sequence.written = sequence.written.min(tokens);
        sequence.pages = kept;
    }

    /// Makes an existing empty sequence an owner of the pages of another sequence's first `tokens`
    /// tokens.
    fn share_prefix(&mut self, source: SeqId, destination: SeqId, tokens: u32) {
        self.cut_to(destination, 0); // releases pages that the destination has reserved
        let pages = tokens.div_ceil(self.options.page_tokens);
        let from = self.table(source, pages);
        let to = self.table(destination, pages).start;
        for (offset, index) in from.enumerate() {
            let page = self.tables[index];
            self.pool.share(page);
            self.tables[to + offset] = page;
        }
        let sequence = &mut self.sequences[destination.index()];
        sequence.tokens = tokens;
        sequence.written = tokens;
        sequence.pages = pages;
    }
}
