use core::ops::{Bound, Range, RangeBounds};

use walla_types::{CacheCommand, Position, SeqId};

use super::pool::PagePool;
use super::{Fence, InvalidLedger, KvCommands, LedgerError, PageId};
use crate::defaults;

/// Sizes and capabilities of a ledger, fixed at construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerOptions {
    /// Tokens per page. Default: [`defaults::PAGE_TOKENS`]. Larger pages waste memory on short
    /// replies (half a page per sequence on average); smaller pages add table lookups to attention.
    pub page_tokens: u32,
    /// Pages of the arena, including the reserved one. Default: `1_025`: 16,384 tokens.
    pub pages: u32,
    /// Maximum pages of one sequence. Default: `128`: a context of 2,048 tokens.
    pub max_pages_per_sequence: u32,
    /// Number of sequences: ids are below it. Default: [`defaults::MAX_SEQUENCES`].
    pub max_sequences: u32,
    /// Whether sequences have recurrent state, which cannot be truncated. Default: `false`.
    pub recurrent: bool,
    /// Whether the device can rotate stored keys, so that tokens can move down. Default: `true`.
    pub can_shift: bool,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        Self {
            page_tokens: defaults::PAGE_TOKENS,
            pages: 1_025,
            max_pages_per_sequence: 128,
            max_sequences: defaults::MAX_SEQUENCES,
            recurrent: false,
            can_shift: true,
        }
    }
}

/// Host-side accounting of KV pages. The [module](crate::kv) explains cells, steps and rules.
///
/// # Examples
/// ```
/// use walla_plan::{KvCommands, KvLedger, LedgerOptions, PageId};
/// use walla_types::{CacheCommand, SeqId};
///
/// let (persona, greta) = (SeqId(0), SeqId(1));
/// let mut ledger = KvLedger::new(LedgerOptions { page_tokens: 4, ..LedgerOptions::default() })?;
/// let mut commands = KvCommands::with_capacity(8);
///
/// ledger.append(persona, 6, &mut commands)?; // a prompt of six tokens
/// ledger.retire(1); // its step is submitted
/// ledger.copy(persona, greta, .., &mut commands)?; // shares both pages
/// assert_eq!(ledger.pages(greta), ledger.pages(persona));
///
/// ledger.append(greta, 1, &mut commands)?; // writes: the half-full page becomes her own
/// assert_eq!(
///     commands.as_slice(),
///     [
///         CacheCommand::CopySequence { from: persona.0, to: greta.0 },
///         CacheCommand::CopyPage { from: 2, to: 3 },
///     ],
/// );
/// assert_eq!(ledger.pages(greta), [PageId(1), PageId(3)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KvLedger {
    pub(super) options: LedgerOptions,
    pub(super) pool: PagePool,
    pub(super) sequences: Vec<Sequence>,
    /// Page tables: `[max_sequences, max_pages_per_sequence]`; each row is filled from the start.
    pub(super) tables: Vec<PageId>,
    /// Number of the current step; `retire` increments it. Separates appended cells that are
    /// written from cells that are not.
    pub(super) step: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    pub(super) tokens: u32,
    /// Pages in the table, including reserved ones.
    pub(super) pages: u32,
    /// Tokens that submitted steps have written, if `append_step` is the current step. Otherwise
    /// all tokens are written.
    pub(super) written: u32,
    append_step: u64,
}

impl KvLedger {
    /// Creates a ledger with all pages free. It does not allocate afterwards.
    ///
    /// # Errors
    /// [`InvalidLedger`] if a size is zero, a context exceeds the range of positions, or the number
    /// of pages or table entries exceeds 2^28.
    pub fn new(options: LedgerOptions) -> Result<Self, InvalidLedger> {
        let LedgerOptions { page_tokens, pages, max_pages_per_sequence, max_sequences, .. } =
            options;
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let tables = product(max_sequences, max_pages_per_sequence);
        let context = product(page_tokens, max_pages_per_sequence);
        let sizes = [
            ("page_tokens", page_tokens.into(), 1, u32::MAX.into()),
            ("pages", pages.into(), 2, 1 << 28),
            ("max_pages_per_sequence", max_pages_per_sequence.into(), 1, u32::MAX.into()),
            ("max_sequences", max_sequences.into(), 1, u32::MAX.into()),
            ("context: page_tokens * max_pages_per_sequence", context, 1, i32::MAX as u64),
            ("page tables: max_sequences * max_pages_per_sequence", tables, 1, 1 << 28),
        ];
        let is_invalid = |&(_, size, min, max): &(_, u64, u64, u64)| size < min || size > max;
        if let Some((what, size, min, max)) = sizes.into_iter().find(is_invalid) {
            return Err(InvalidLedger { what, size, min, max });
        }
        let sequences = max_sequences as usize;
        Ok(Self {
            options,
            pool: PagePool::new(pages),
            sequences: vec![Sequence::default(); sequences],
            tables: vec![PageId::PADDING; sequences * max_pages_per_sequence as usize],
            step: 1,
        })
    }

    /// The options passed to [`new`](Self::new).
    #[must_use]
    pub fn options(&self) -> &LedgerOptions {
        &self.options
    }

    /// Tokens of a sequence, including appended ones; 0 for unknown ids.
    ///
    /// It is also the position of the next token (llama.cpp's `max_seq_pos + 1`).
    #[must_use]
    pub fn len(&self, seq: SeqId) -> u32 {
        self.sequences.get(seq.index()).map_or(0, |sequence| sequence.tokens)
    }

    /// Whether a sequence has no tokens.
    #[must_use]
    pub fn is_empty(&self, seq: SeqId) -> bool {
        self.len(seq) == 0
    }

    /// The page table of a sequence, including reserved pages; empty for unknown ids.
    #[must_use]
    pub fn pages(&self, seq: SeqId) -> &[PageId] {
        self.sequences.get(seq.index()).map_or(&[], |s| &self.tables[self.table(seq, s.pages)])
    }

    /// Maximum number of tokens of a sequence.
    #[must_use]
    pub fn context_tokens(&self) -> u32 {
        self.options.page_tokens * self.options.max_pages_per_sequence
    }

    /// Pages that can be allocated now.
    #[must_use]
    pub fn free_pages(&self) -> u32 {
        self.pool.free_pages()
    }

    /// Pages without an owner that a step in flight may still access.
    #[must_use]
    pub fn fenced_pages(&self) -> u32 {
        self.pool.fenced_pages()
    }

    /// Pages owned by sequences.
    #[must_use]
    pub fn used_pages(&self) -> u32 {
        self.pool.used_pages()
    }

    /// Maximum number of pages that sequences may own together: all except the reserved one, unless
    /// [limited](Self::limit_pages).
    #[must_use]
    pub fn usable_pages(&self) -> u32 {
        self.pool.usable_pages()
    }

    /// Limits the pages that sequences may own together to `pages` (at most the pages of the
    /// arena). Returns the number of pages currently owned above the limit.
    ///
    /// No page is taken from a sequence: above the limit, no page is allocated. The caller chooses
    /// which sequence to preempt.
    ///
    /// # Examples
    /// ```
    /// # use walla_plan::{KvCommands, KvLedger, LedgerOptions};
    /// # use walla_types::SeqId;
    /// # let mut commands = KvCommands::with_capacity(8);
    /// let options = LedgerOptions { page_tokens: 16, pages: 11, ..LedgerOptions::default() };
    /// let mut ledger = KvLedger::new(options)?;
    /// ledger.append(SeqId(0), 6 * 16, &mut commands)?;
    /// assert_eq!(ledger.limit_pages(4), 2);
    /// assert_eq!(ledger.free_pages(), 0);
    /// ledger.limit_pages(u32::MAX); // all of them again
    /// assert_eq!(ledger.free_pages(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit_pages(&mut self, pages: u32) -> u32 {
        self.pool.limit(pages);
        self.used_pages().saturating_sub(self.usable_pages())
    }

    /// Pages owned by this sequence alone: removing it frees them (after a fence).
    #[must_use]
    pub fn exclusive_pages(&self, seq: SeqId) -> u32 {
        let exclusive = self.pages(seq).iter().filter(|page| !self.pool.is_shared(**page));
        exclusive.count() as u32 // at most `max_pages_per_sequence`
    }

    /// Free pages that an [`append`](Self::append) of `tokens` tokens would allocate.
    ///
    /// # Errors
    /// [`LedgerError::UnknownSequence`], [`LedgerError::ContextFull`].
    pub fn pages_wanted(&self, seq: SeqId, tokens: u32) -> Result<u32, LedgerError> {
        let growth = self.growth(seq, tokens)?;
        Ok(growth.pages())
    }

    /// Reserves pages for `tokens` more tokens. A following `append` of the same number cannot
    /// fail, unless the sequence is copied or truncated in between.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
    pub fn reserve(
        &mut self,
        seq: SeqId,
        tokens: u32,
        commands: &mut KvCommands,
    ) -> Result<(), LedgerError> {
        let growth = self.growth(seq, tokens)?;
        if growth.copied.is_some() {
            self.refuse_commands(1, commands)?;
        }
        let wanted_pages = growth.pages();
        // Last refusal: from here on the operation changes the ledger (rule 1).
        self.refuse_pages(wanted_pages)?;

        let row = self.table(seq, self.options.max_pages_per_sequence).start;
        if let Some(index) = growth.copied {
            let from = self.tables[row + index];
            let to = self.take_page();
            self.tables[row + index] = to;
            self.pool.drop_owner(from);
            commands.push(CacheCommand::CopyPage { from: from.0, to: to.0 });
        }
        let first = self.sequences[seq.index()].pages as usize;
        for index in first..first + growth.new_pages as usize {
            self.tables[row + index] = self.take_page();
        }
        self.sequences[seq.index()].pages += growth.new_pages;
        Ok(())
    }

    /// Appends `tokens` tokens that this step's forward pass will write. Returns their positions.
    ///
    /// Emits at most one command: a copy of the last page, if it is partly filled and shared.
    ///
    /// # Errors
    /// [`LedgerError::UnknownSequence`], [`LedgerError::ContextFull`], [`LedgerError::NoPages`],
    /// [`LedgerError::CommandsFull`].
    pub fn append(
        &mut self,
        seq: SeqId,
        tokens: u32,
        commands: &mut KvCommands,
    ) -> Result<Range<Position>, LedgerError> {
        self.reserve(seq, tokens, commands)?;
        Ok(self.append_unchecked(seq, tokens))
    }

    /// Adds tokens whose pages are reserved. Returns their positions.
    pub(super) fn append_unchecked(&mut self, seq: SeqId, tokens: u32) -> Range<Position> {
        let step = self.step;
        let sequence = &mut self.sequences[seq.index()];
        // The first append of this step: earlier tokens were written by submitted steps.
        if sequence.append_step != step {
            sequence.written = sequence.tokens;
            sequence.append_step = step;
        }
        let start = sequence.tokens;
        sequence.tokens += tokens;
        start..sequence.tokens
    }

    /// Closes a step that has been submitted. `fence` passes when the device has completed it.
    ///
    /// Pages freed since the last call wait for this fence. A fence below an earlier one is treated
    /// as the earlier one.
    pub fn retire(&mut self, fence: Fence) {
        self.pool.retire(fence);
        self.step += 1;
    }

    /// Frees pages whose fence is at most `fence`. Returns their number.
    pub fn release_up_to(&mut self, fence: Fence) -> u32 {
        self.pool.release_up_to(fence)
    }

    /// Pages needed to append `tokens` tokens.
    pub(super) fn growth(&self, seq: SeqId, tokens: u32) -> Result<Growth, LedgerError> {
        let sequence = self.sequence(seq)?;
        let wanted_tokens = u64::from(sequence.tokens) + u64::from(tokens);
        let context_tokens = self.context_tokens();
        if wanted_tokens > u64::from(context_tokens) {
            return Err(LedgerError::ContextFull { seq, wanted_tokens, context_tokens });
        }
        let page_tokens = self.options.page_tokens;
        // Every decoding sequence takes this path in every step. The common case, a last page with
        // free cells, avoids the division.
        let room = sequence.pages * page_tokens;
        let beyond = (sequence.tokens + tokens).saturating_sub(room);
        let new_pages = if beyond > 0 { beyond.div_ceil(page_tokens) } else { 0 };
        // Only a partly filled page can be shared and written: full pages are not written again,
        // and reserved pages are never shared.
        let last = sequence.pages.saturating_sub(1);
        let is_behind = sequence.tokens < last * page_tokens;
        let index = if is_behind { sequence.tokens / page_tokens } else { last };
        let page = index * page_tokens..(index + 1) * page_tokens;
        let writes_partial =
            tokens > 0 && sequence.tokens > page.start && sequence.tokens < page.end;
        let index = index as usize;
        let shared = writes_partial && self.pool.is_shared(self.pages(seq)[index]);
        Ok(Growth { new_pages, copied: shared.then_some(index) })
    }

    pub(super) fn sequence(&self, seq: SeqId) -> Result<Sequence, LedgerError> {
        let max_sequences = self.options.max_sequences;
        let unknown = LedgerError::UnknownSequence { seq, max_sequences };
        self.sequences.get(seq.index()).copied().ok_or(unknown)
    }

    /// Indices of the first `pages` entries of an existing sequence's table row.
    pub(super) fn table(&self, seq: SeqId, pages: u32) -> Range<usize> {
        let start = seq.index() * self.options.max_pages_per_sequence as usize;
        start..start + pages as usize
    }

    /// Takes a page. [`refuse_pages`](Self::refuse_pages) has checked that one is free.
    pub(super) fn take_page(&mut self) -> PageId {
        let page = self.pool.take();
        debug_assert!(
            page.is_some(),
            "free pages are counted before an operation changes anything"
        );
        page.unwrap_or(PageId::PADDING)
    }

    /// Refuses to read the first `tokens` tokens of a sequence if the current step writes some of
    /// them.
    pub(super) fn refuse_unwritten(&self, seq: SeqId, tokens: u32) -> Result<(), LedgerError> {
        let sequence = self.sequence(seq)?;
        if sequence.append_step == self.step && sequence.written < tokens {
            let unwritten_tokens = sequence.tokens - sequence.written;
            return Err(LedgerError::Unwritten { seq, unwritten_tokens });
        }
        Ok(())
    }

    pub(super) fn refuse_pages(&self, wanted_pages: u32) -> Result<(), LedgerError> {
        let free_pages = self.free_pages();
        if wanted_pages > free_pages {
            let fenced_pages = self.pool.coming_pages();
            return Err(LedgerError::NoPages { wanted_pages, free_pages, fenced_pages });
        }
        Ok(())
    }

    pub(super) fn refuse_commands(
        &self,
        wanted: usize,
        commands: &KvCommands,
    ) -> Result<(), LedgerError> {
        let free = commands.free();
        if wanted > free { Err(LedgerError::CommandsFull { wanted, free }) } else { Ok(()) }
    }
}

/// Pages that an append allocates.
pub(super) struct Growth {
    new_pages: u32,
    /// Table index of a page to copy before it is written.
    pub(super) copied: Option<usize>,
}

impl Growth {
    pub(super) fn pages(&self) -> u32 {
        self.new_pages + u32::from(self.copied.is_some())
    }
}

/// The intersection of a range with `0..len`.
pub(super) fn clip(range: impl RangeBounds<Position>, len: u32) -> Range<Position> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    start.min(len)..end.min(len)
}
