//! The ledger against a naive model: lists of tokens, and a memory that executes every command.
//!
//! A cell of the memory stores the written token and the position for which its key is rotated.
//! After each step, every sequence read through its page table must equal the model's list, with
//! keys rotated for the current positions.

use std::collections::BTreeMap;

use proptest::prelude::*;
use walla_plan::{Fence, KvCommands, KvLedger, LedgerError, LedgerOptions, PageId};
use walla_types::{CacheCommand, SeqId};

const SEQUENCES: u32 = 4;

#[derive(Clone, Debug)]
enum Operation {
    Append { seq: u32, tokens: u32 },
    Reserve { seq: u32, tokens: u32 },
    Remove { seq: u32, start: u32, len: u32 },
    RemoveAndShift { seq: u32, start: u32, len: u32 },
    Copy { source: u32, destination: u32, len: u32 },
    Limit { pages: u32 },
    Confine { end: u32 },
    EndStep { lag: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let seq = || 0..SEQUENCES;
    prop_oneof![
        6 => (seq(), 0u32..12).prop_map(|(seq, tokens)| Append { seq, tokens }),
        1 => (seq(), 0u32..12).prop_map(|(seq, tokens)| Reserve { seq, tokens }),
        3 => (seq(), 0u32..30, 0u32..30).prop_map(|(seq, start, len)| Remove { seq, start, len }),
        3 => (seq(), 0u32..30, 0u32..12)
            .prop_map(|(seq, start, len)| RemoveAndShift { seq, start, len }),
        3 => (seq(), seq(), 0u32..40)
            .prop_map(|(source, destination, len)| Copy { source, destination, len }),
        1 => prop_oneof![0u32..12, Just(u32::MAX)].prop_map(|pages| Limit { pages }),
        1 => prop_oneof![2u32..20, Just(u32::MAX)].prop_map(|end| Confine { end }),
        6 => (0u64..3).prop_map(|lag| EndStep { lag }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stored {
    token: u64,
    rotated_to: i64,
}

struct World {
    ledger: KvLedger,
    commands: KvCommands,
    model: Vec<Vec<u64>>,
    /// First token of each sequence that the current step appends.
    appended_from: Vec<usize>,
    memory: Vec<Option<Stored>>,
    /// Pages that lost their last owner, with the step in which they did.
    freed_in_step: BTreeMap<PageId, Fence>,
    released_up_to: Fence,
    step: Fence,
    next_token: u64,
}

impl World {
    fn new(options: LedgerOptions) -> Self {
        let cells = (options.pages * options.page_tokens) as usize;
        Self {
            ledger: KvLedger::new(options).unwrap(),
            commands: KvCommands::with_capacity(40),
            model: vec![Vec::new(); SEQUENCES as usize],
            appended_from: vec![usize::MAX; SEQUENCES as usize],
            memory: vec![None; cells],
            freed_in_step: BTreeMap::new(),
            released_up_to: 0,
            step: 1,
            next_token: 0,
        }
    }

    fn owned(&self) -> Vec<PageId> {
        let all = (0..SEQUENCES).flat_map(|seq| self.ledger.pages(SeqId(seq)).iter().copied());
        all.collect()
    }

    fn cell(&self, seq: SeqId, position: usize) -> usize {
        let page_tokens = self.ledger.options().page_tokens as usize;
        let page = self.ledger.pages(seq)[position / page_tokens];
        page.index() * page_tokens + position % page_tokens
    }

    /// Applies an operation to ledger and model; returns whether the ledger accepted it.
    fn apply(&mut self, operation: &Operation) -> bool {
        let before = self.owned();
        let frozen = (self.model.clone(), self.commands.as_slice().len(), before.clone());
        let used_before = self.ledger.used_pages();
        let result = self.call(operation);
        let most = used_before.max(self.ledger.usable_pages());
        assert!(self.ledger.used_pages() <= most, "{operation:?} takes a page beyond the limit");
        if result.is_err() {
            assert_eq!(frozen.1, self.commands.as_slice().len(), "a refusal emitted commands");
            assert_eq!(frozen.2, self.owned(), "a refusal changed pages");
        }
        self.check_fences(&before);
        for (index, tokens) in self.model.iter().enumerate() {
            assert_eq!(self.ledger.len(SeqId(index as u32)) as usize, tokens.len());
        }
        self.ledger.assert_consistent();
        result.is_ok()
    }

    fn call(&mut self, operation: &Operation) -> Result<(), LedgerError> {
        let (ledger, commands) = (&mut self.ledger, &mut self.commands);
        match *operation {
            Operation::Append { seq, tokens } => {
                let list = &mut self.model[seq as usize];
                let range = ledger.append(SeqId(seq), tokens, commands)?;
                assert_eq!(range, list.len() as u32..list.len() as u32 + tokens);
                let from = &mut self.appended_from[seq as usize];
                *from = (*from).min(list.len());
                list.extend((self.next_token..).take(tokens as usize));
                self.next_token += u64::from(tokens);
            }
            Operation::Reserve { seq, tokens } => {
                ledger.reserve(SeqId(seq), tokens, commands)?;
                assert_eq!(ledger.pages_wanted(SeqId(seq), tokens), Ok(0));
            }
            Operation::Remove { seq, start, len } => {
                ledger.remove(SeqId(seq), start..start + len, commands)?;
                drain(&mut self.model[seq as usize], start, len);
            }
            Operation::RemoveAndShift { seq, start, len } => {
                ledger.remove_and_shift(SeqId(seq), start..start + len, commands)?;
                drain(&mut self.model[seq as usize], start, len);
            }
            Operation::Copy { source, destination, len } => {
                ledger.copy(SeqId(source), SeqId(destination), ..len, commands)?;
                let from = &self.model[source as usize];
                let prefix = from[..(len as usize).min(from.len())].to_vec();
                if source != destination && !prefix.is_empty() {
                    self.model[destination as usize] = prefix;
                }
            }
            Operation::Limit { pages } => {
                let over = ledger.limit_pages(pages);
                assert_eq!(over, ledger.used_pages().saturating_sub(ledger.usable_pages()));
                assert!(
                    ledger.usable_pages() <= pages
                        && ledger.usable_pages() < ledger.options().pages
                );
            }
            Operation::Confine { end } => {
                let held = ledger.confine(end, commands);
                let above = |page: &&PageId| page.0 >= end;
                let tables = (0..SEQUENCES).flat_map(|seq| ledger.pages(SeqId(seq)));
                let owned: std::collections::BTreeSet<_> = tables.filter(above).collect();
                assert_eq!(held as usize, owned.len());
                assert!(ledger.usable_pages() < ledger.pages_end());
            }
            Operation::EndStep { lag } => self.end_step(lag),
        }
        for (from, list) in self.appended_from.iter_mut().zip(&self.model) {
            // Removed before it was ever written.
            if *from != usize::MAX {
                *from = (*from).min(list.len());
            }
        }
        Ok(())
    }

    /// Runs the commands, then the forward pass, then passes old fences.
    fn end_step(&mut self, lag: u64) {
        for command in self.commands.as_slice() {
            run(*command, &mut self.memory, self.ledger.options().page_tokens as usize);
        }
        self.commands.clear();
        for seq in (0..SEQUENCES).map(SeqId) {
            let from = std::mem::replace(&mut self.appended_from[seq.index()], usize::MAX);
            for position in from..self.model[seq.index()].len().max(from) {
                let cell = self.cell(seq, position);
                let token = self.model[seq.index()][position];
                self.memory[cell] = Some(Stored { token, rotated_to: position as i64 });
            }
        }
        self.assert_memory();
        self.ledger.retire(self.step);
        self.released_up_to = self.released_up_to.max(self.step.saturating_sub(lag));
        self.ledger.release_up_to(self.released_up_to);
        self.step += 1;
    }

    fn assert_memory(&self) {
        for seq in (0..SEQUENCES).map(SeqId) {
            for (position, &token) in self.model[seq.index()].iter().enumerate() {
                let expected = Stored { token, rotated_to: position as i64 };
                let found = self.memory[self.cell(seq, position)];
                assert_eq!(found, Some(expected), "sequence {seq}, position {position}");
            }
        }
    }

    /// A page that was freed in step s is allocated again only after the fence of s has passed.
    fn check_fences(&mut self, before: &[PageId]) {
        let after = self.owned();
        for page in &after {
            if let Some(fence) = self.freed_in_step.remove(page) {
                assert!(fence <= self.released_up_to, "{page:?} reused before fence {fence}");
            }
        }
        for page in before.iter().filter(|page| !after.contains(page)) {
            self.freed_in_step.insert(*page, self.step);
        }
    }
}

fn drain(list: &mut Vec<u64>, start: u32, len: u32) {
    let end = ((start + len) as usize).min(list.len());
    list.drain((start as usize).min(end)..end);
}

/// Executes a command as a device would.
fn run(command: CacheCommand, memory: &mut [Option<Stored>], page_tokens: usize) {
    let cell = |page: u32, cell: u32| page as usize * page_tokens + cell as usize;
    match command {
        CacheCommand::CopyPage { from, to } => {
            assert_ne!(from, to);
            let from = cell(from, 0);
            memory.copy_within(from..from + page_tokens, cell(to, 0));
        }
        CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, turn } => {
            assert!(cells > 0 && turn < 0);
            assert!((from_cell.max(to_cell) + cells) as usize <= page_tokens, "crosses its page");
            let (from, to) = (cell(from_page, from_cell), cell(to_page, to_cell));
            memory.copy_within(from..from + cells as usize, to);
            for stored in memory[to..to + cells as usize].iter_mut().flatten() {
                stored.rotated_to += i64::from(turn);
            }
        }
        CacheCommand::ShiftRecent { from, end, turn, .. } => {
            assert!(from < end && i64::from(from) >= -i64::from(turn));
        }
        CacheCommand::CopySequence { from, to } => assert_ne!(from, to),
        CacheCommand::ClearSequence { .. } => panic!("only recurrent state is cleared"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn page_contents_match_the_ledger(
        page_tokens in 1u32..6,
        pages in 2u32..24,
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        let options = LedgerOptions {
            page_tokens,
            pages,
            max_pages_per_sequence: 8,
            max_sequences: SEQUENCES,
            recurrent: false,
            can_shift: true,
        };
        let mut world = World::new(options);
        for operation in &operations {
            world.apply(operation);
        }
        world.end_step(0);
        // After all fences have passed and without a limit, no page is leaked.
        world.ledger.limit_pages(u32::MAX);
        world.ledger.confine(u32::MAX, &mut world.commands);
        for seq in (0..SEQUENCES).map(SeqId) {
            world.ledger.remove(seq, .., &mut world.commands).unwrap();
        }
        world.ledger.retire(world.step);
        world.ledger.release_up_to(world.step);
        prop_assert_eq!(world.ledger.free_pages(), pages - 1);
    }
}

#[test]
fn the_model_reaches_every_successful_operation() {
    // Ensures that the property test also accepts operations.
    use Operation::*;
    let options = LedgerOptions {
        page_tokens: 4,
        pages: 32,
        max_sequences: SEQUENCES,
        max_pages_per_sequence: 8,
        ..LedgerOptions::default()
    };
    let mut world = World::new(options);
    let script = [
        Append { seq: 0, tokens: 22 },
        EndStep { lag: 1 },
        Copy { source: 0, destination: 1, len: 22 },
        Reserve { seq: 1, tokens: 3 },
        RemoveAndShift { seq: 0, start: 6, len: 8 },
        EndStep { lag: 1 },
        Copy { source: 0, destination: 2, len: 9 },
        RemoveAndShift { seq: 2, start: 1, len: 3 },
        RemoveAndShift { seq: 1, start: 5, len: 4 },
        Append { seq: 2, tokens: 5 },
        EndStep { lag: 0 },
        Remove { seq: 2, start: 4, len: 30 },
        EndStep { lag: 0 },
    ];
    for operation in &script {
        assert!(world.apply(operation), "{operation:?} was refused");
    }
}
