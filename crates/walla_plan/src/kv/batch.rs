//! Batch operations: applied to all sequences of a batch, or to none.

use super::{KvCommands, KvLedger, LedgerError};
use crate::batch::CheckedBatch;

impl KvLedger {
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
}
