//! Withdraws pages from use, so that a device can unmap their memory.

use walla_types::{CacheCommand, SeqId};

use super::{KvCommands, KvLedger, PageId};

impl KvLedger {
    /// First page that is out of use: the number of pages, unless [`confine`](Self::confine) has
    /// lowered it.
    #[must_use]
    pub fn pages_end(&self) -> u32 {
        self.pool.end()
    }

    /// Withdraws the pages from `end` on, so that a device can release their memory, and returns
    /// withdrawn pages below `end` to use.
    ///
    /// Owned pages at `end` and above are moved below it, limited by free pages and by the capacity
    /// of `commands`. Returns the number of pages that are still owned at `end` and above: call
    /// again after the commands have run, or when pages have become free. After a result of 0
    /// nothing accesses those pages once the commands and the earlier steps have completed.
    ///
    /// # Examples
    /// ```
    /// # use walla_plan::{KvCommands, KvLedger, LedgerOptions, PageId};
    /// # use walla_types::{CacheCommand, SeqId};
    /// # let mut commands = KvCommands::with_capacity(8);
    /// let options = LedgerOptions { page_tokens: 16, pages: 11, ..LedgerOptions::default() };
    /// let mut ledger = KvLedger::new(options)?;
    /// ledger.append(SeqId(0), 3 * 16, &mut commands)?; // pages 1, 2, 3
    /// ledger.append(SeqId(1), 16, &mut commands)?; // page 4
    /// ledger.remove(SeqId(0), .., &mut commands)?;
    /// ledger.retire(1);
    /// ledger.release_up_to(1);
    ///
    /// assert_eq!(ledger.confine(4, &mut commands), 0);
    /// assert_eq!(commands.as_slice(), [CacheCommand::CopyPage { from: 4, to: 3 }]);
    /// assert_eq!(ledger.pages(SeqId(1)), [PageId(3)]);
    /// assert_eq!(ledger.usable_pages(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn confine(&mut self, end: u32, commands: &mut KvCommands) -> u32 {
        self.pool.set_end(end);
        let end = self.pool.end();
        let mut held = 0;
        for page in (end..self.options.pages).map(PageId) {
            if self.pool.owners(page) == 0 {
                continue;
            }
            let below = if commands.free() > 0 { self.pool.take() } else { None };
            let Some(below) = below else {
                held += 1;
                continue;
            };
            commands.push(CacheCommand::CopyPage { from: page.0, to: below.0 });
            self.pool.move_owners(page, below);
            self.replace(page, below);
        }
        held
    }

    /// Replaces a page in every table that contains it.
    fn replace(&mut self, from: PageId, to: PageId) {
        for seq in (0..self.options.max_sequences).map(SeqId) {
            let table = self.table(seq, self.sequences[seq.index()].pages);
            let held = self.tables[table].iter_mut().find(|page| **page == from);
            if let Some(page) = held {
                *page = to;
            }
        }
    }
}
