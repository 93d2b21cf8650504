use walla_types::SeqId;

use super::{KvLedger, PageId};

impl KvLedger {
    /// Checks every invariant of the ledger, for tests and debug builds. O(pages of all tables).
    ///
    /// # Panics
    /// If the ledger is inconsistent, which is a bug in the ledger.
    pub fn assert_consistent(&self) {
        let mut owners = vec![0u32; self.pool.pages() as usize];
        owners[PageId::PADDING.index()] = 1;
        for seq in (0..self.options.max_sequences).map(SeqId) {
            self.assert_table(seq, &mut owners);
        }
        for (page, &count) in owners.iter().enumerate() {
            let booked = self.pool.owners(PageId(page as u32));
            assert_eq!(booked, count, "page {page} is booked for {booked} owners, {count} hold it");
        }
        for page in self.pool.unowned() {
            let owners = &mut owners[page.index()];
            assert_eq!(*owners, 0, "page {page:?} is owned and free, or free twice");
            *owners = 1;
        }
        assert!(owners.iter().all(|&count| count > 0), "a page is neither owned nor free");
    }

    fn assert_table(&self, seq: SeqId, owners: &mut [u32]) {
        let sequence = self.sequences[seq.index()];
        let needed = sequence.tokens.div_ceil(self.options.page_tokens);
        assert!(sequence.pages >= needed, "sequence {seq} has fewer pages than its tokens need");
        assert!(sequence.pages <= self.options.max_pages_per_sequence);
        let row = &self.tables[self.table(seq, self.options.max_pages_per_sequence)];
        let (used, rest) = row.split_at(sequence.pages as usize);
        for (index, page) in used.iter().enumerate() {
            assert_ne!(*page, PageId::PADDING, "sequence {seq} owns the padding page");
            assert!(!used[..index].contains(page), "sequence {seq} holds page {page:?} twice");
            owners[page.index()] += 1;
        }
        for page in &used[needed as usize..] {
            assert_eq!(self.pool.owners(*page), 1, "a reserved page of {seq} is shared");
        }
        assert!(rest.iter().all(|page| *page == PageId::PADDING), "stale entries behind {seq}");
    }
}
