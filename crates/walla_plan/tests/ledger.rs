//! The ledger's errors, commands and guarantees, each in its own test. `ledger_model.rs` checks
//! their combinations.

use walla_plan::{
    Batch, BatchLimits, InvalidLedger, KvCommands, KvLedger, LedgerError, LedgerOptions, Output,
    PageId, TokenInput,
};
use walla_types::{CacheCommand, SeqId, TokenId};

const A: SeqId = SeqId(0);
const B: SeqId = SeqId(1);
const C: SeqId = SeqId(2);

/// Pages of 4 tokens, 8 usable pages, 4 per sequence, 3 sequences.
const OPTIONS: LedgerOptions = LedgerOptions {
    page_tokens: 4,
    pages: 9,
    max_pages_per_sequence: 4,
    max_sequences: 3,
    recurrent: false,
    can_shift: true,
};

fn ledger() -> (KvLedger, KvCommands) {
    (KvLedger::new(OPTIONS).unwrap(), KvCommands::with_capacity(32))
}

fn pages(ids: &[u32]) -> Vec<PageId> {
    ids.iter().map(|&id| PageId(id)).collect()
}

fn moved(
    (from_page, from_cell): (u32, u32),
    (to_page, to_cell): (u32, u32),
    cells: u32,
    turn: i32,
) -> CacheCommand {
    CacheCommand::MoveCells { from_page, from_cell, to_page, to_cell, cells, turn }
}

#[test]
fn impossible_options_are_refused() {
    let too_small = [
        (LedgerOptions { page_tokens: 0, ..OPTIONS }, "page_tokens"),
        (LedgerOptions { pages: 1, ..OPTIONS }, "pages"),
        (LedgerOptions { max_pages_per_sequence: 0, ..OPTIONS }, "max_pages_per_sequence"),
        (LedgerOptions { max_sequences: 0, ..OPTIONS }, "max_sequences"),
    ];
    for (options, name) in too_small {
        let error = KvLedger::new(options).unwrap_err();
        assert_eq!((error.what, error.size), (name, error.min - 1));
    }
    let wide =
        LedgerOptions { max_sequences: u32::MAX, max_pages_per_sequence: 1 << 20, ..OPTIONS };
    let too_large = |options, what, size, max| {
        let expected = InvalidLedger { what, size, min: 1, max };
        assert_eq!(KvLedger::new(options).err(), Some(expected));
    };
    let tables = "page tables: max_sequences * max_pages_per_sequence";
    too_large(wide, tables, u64::from(u32::MAX) << 20, 1 << 28);
    let long = LedgerOptions { page_tokens: 1 << 16, max_pages_per_sequence: 1 << 15, ..OPTIONS };
    let context = "context: page_tokens * max_pages_per_sequence";
    too_large(long, context, 1 << 31, i32::MAX as u64);
    let endless = LedgerOptions { pages: u32::MAX, ..OPTIONS };
    let error = KvLedger::new(endless).unwrap_err();
    assert_eq!((error.what, error.size, error.max), ("pages", u32::MAX.into(), 1 << 28));
}

#[test]
fn pages_are_handed_out_lowest_first_and_never_the_padding_page() {
    let (mut ledger, mut commands) = ledger();
    assert_eq!(ledger.append(A, 5, &mut commands), Ok(0..5));
    assert_eq!(ledger.append(B, 1, &mut commands), Ok(0..1));
    assert_eq!(ledger.append(A, 4, &mut commands), Ok(5..9));
    assert_eq!(ledger.pages(A), pages(&[1, 2, 4]));
    assert_eq!(ledger.pages(B), pages(&[3]));
    assert_eq!((ledger.used_pages(), ledger.free_pages(), ledger.fenced_pages()), (4, 4, 0));
    assert!(commands.is_empty());
}

#[test]
fn refusals_name_what_is_missing() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 16, &mut commands).unwrap();
    ledger.append(B, 12, &mut commands).unwrap();
    ledger.remove(B, 8.., &mut commands).unwrap();
    assert_eq!(
        ledger.append(C, 12, &mut commands),
        Err(LedgerError::NoPages { wanted_pages: 3, free_pages: 1, fenced_pages: 1 })
    );
    assert_eq!(ledger.pages_wanted(C, 12), Ok(3));
    assert_eq!(
        ledger.append(A, 1, &mut commands),
        Err(LedgerError::ContextFull { seq: A, wanted_tokens: 17, context_tokens: 16 })
    );
    assert_eq!(
        ledger.append(A, u32::MAX, &mut commands),
        Err(LedgerError::ContextFull {
            seq: A,
            wanted_tokens: 16 + u64::from(u32::MAX),
            context_tokens: 16
        })
    );
    let stranger = SeqId(3);
    let unknown = LedgerError::UnknownSequence { seq: stranger, max_sequences: 3 };
    assert_eq!(ledger.append(stranger, 1, &mut commands), Err(unknown.clone()));
    assert_eq!(ledger.remove(stranger, .., &mut commands), Err(unknown.clone()));
    assert_eq!(ledger.copy(A, stranger, .., &mut commands), Err(unknown));
    assert_eq!((ledger.len(stranger), ledger.pages(stranger)), (0, &[][..]));
}

#[test]
fn a_freed_page_is_no_capacity_before_its_fence() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 16, &mut commands).unwrap();
    ledger.append(B, 16, &mut commands).unwrap();
    ledger.retire(7);
    ledger.remove(A, .., &mut commands).unwrap();
    assert_eq!(ledger.release_up_to(7), 0, "freed after step 7 was submitted: step 8 may touch it");
    ledger.retire(8);
    assert_eq!(ledger.release_up_to(7), 0);
    let refusal = LedgerError::NoPages { wanted_pages: 1, free_pages: 0, fenced_pages: 4 };
    assert_eq!(ledger.append(C, 1, &mut commands), Err(refusal));
    assert_eq!(ledger.release_up_to(8), 4);
    assert!(ledger.append(C, 1, &mut commands).is_ok());
}

#[test]
fn appends_within_a_reservation_succeed() {
    let (mut ledger, mut commands) = ledger();
    ledger.reserve(A, 16, &mut commands).unwrap();
    assert_eq!((ledger.len(A), ledger.pages(A).len()), (0, 4));
    ledger.append(B, 16, &mut commands).unwrap();
    assert_eq!(ledger.free_pages(), 0);
    for position in 0..16 {
        assert_eq!(ledger.append(A, 1, &mut commands), Ok(position..position + 1));
    }
    ledger.remove(A, 1.., &mut commands).unwrap();
    ledger.reserve(A, 3, &mut commands).unwrap();
    assert_eq!(ledger.pages(A).len(), 1, "a removal gives the reservation back");
}

#[test]
fn a_shared_prefix_costs_its_memory_once() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 10, &mut commands).unwrap();
    ledger.retire(1);
    ledger.copy(A, B, ..8, &mut commands).unwrap();
    ledger.copy(A, C, .., &mut commands).unwrap();
    assert_eq!((ledger.used_pages(), ledger.len(B), ledger.len(C)), (3, 8, 10));
    assert_eq!((ledger.exclusive_pages(A), ledger.exclusive_pages(B)), (0, 0));
    commands.clear();

    // B's pages are full, so it continues in a new page; C's last page is not full, so it is
    // copied.
    ledger.append(B, 1, &mut commands).unwrap();
    assert!(commands.is_empty());
    assert_eq!(ledger.pages_wanted(C, 1), Ok(1));
    ledger.append(C, 1, &mut commands).unwrap();
    assert_eq!(commands.as_slice(), [CacheCommand::CopyPage { from: 3, to: 5 }]);
    // A is now the last owner of the page and writes in place.
    commands.clear();
    ledger.append(A, 1, &mut commands).unwrap();
    assert!(commands.is_empty());
    ledger.assert_consistent();
}

#[test]
fn copies_are_prefixes_into_empty_sequences() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 10, &mut commands).unwrap();
    let unwritten = LedgerError::Unwritten { seq: A, unwritten_tokens: 10 };
    assert_eq!(ledger.copy(A, B, .., &mut commands), Err(unwritten));
    ledger.retire(1);
    let not_prefix = LedgerError::CopyNotPrefix { seq: A, start: 2 };
    assert_eq!(ledger.copy(A, B, 2.., &mut commands), Err(not_prefix));
    ledger.copy(A, B, ..=3, &mut commands).unwrap();
    assert_eq!(ledger.len(B), 4);
    let not_empty = LedgerError::DestinationNotEmpty { seq: B, len: 4 };
    assert_eq!(ledger.copy(A, B, .., &mut commands), Err(not_empty));
    ledger.copy(A, A, .., &mut commands).unwrap();
    ledger.copy(C, B, .., &mut commands).unwrap(); // nothing to copy
    assert_eq!(ledger.len(B), 4);
}

#[test]
fn the_middle_is_removed_only_with_a_shift() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 10, &mut commands).unwrap();
    let refusal = LedgerError::MiddleRemoval { seq: A, range: 2..5, len: 10 };
    assert_eq!(ledger.remove(A, 2..5, &mut commands), Err(refusal));
    let unwritten = LedgerError::Unwritten { seq: A, unwritten_tokens: 10 };
    assert_eq!(ledger.remove_and_shift(A, 2..5, &mut commands), Err(unwritten));
    ledger.retire(1);
    ledger.remove_and_shift(A, 2..5, &mut commands).unwrap();
    assert_eq!(ledger.len(A), 7);
    assert_eq!(
        commands.as_slice(),
        [
            moved((2, 1), (1, 2), 2, -3),
            moved((2, 3), (2, 0), 1, -3),
            moved((3, 0), (2, 1), 2, -3),
            CacheCommand::ShiftRecent { sequence: 0, from: 5, end: 10, turn: -3 },
        ]
    );
    assert_eq!(ledger.pages(A), pages(&[1, 2]));
}

#[test]
fn whole_pages_are_remapped_instead_of_copied() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 14, &mut commands).unwrap();
    ledger.retire(1);
    ledger.remove_and_shift(A, 4..8, &mut commands).unwrap();
    let turned = |page, cells| moved((page, 0), (page, 0), cells, -4);
    let recent = CacheCommand::ShiftRecent { sequence: 0, from: 8, end: 14, turn: -4 };
    assert_eq!(commands.as_slice(), [turned(3, 4), turned(4, 2), recent]);
    assert_eq!(ledger.pages(A), pages(&[1, 3, 4]));
    assert_eq!(ledger.fenced_pages(), 1);
}

#[test]
fn shifts_are_refused_for_models_without_shift() {
    let mut ledger = KvLedger::new(LedgerOptions { can_shift: false, ..OPTIONS }).unwrap();
    let mut commands = KvCommands::with_capacity(32);
    ledger.append(A, 10, &mut commands).unwrap();
    ledger.retire(1);
    let refusal = Err(LedgerError::CannotShift { seq: A });
    assert_eq!(ledger.remove_and_shift(A, 2..5, &mut commands), refusal);
    assert_eq!(ledger.remove_and_shift(A, 5.., &mut commands), Ok(()), "a tail needs no shift");
}

#[test]
fn recurrent_state_is_kept_whole_or_removed() {
    let mut ledger = KvLedger::new(LedgerOptions { recurrent: true, ..OPTIONS }).unwrap();
    let mut commands = KvCommands::with_capacity(32);
    ledger.append(A, 10, &mut commands).unwrap();
    ledger.retire(1);
    let refusal = Err(LedgerError::Recurrent { seq: A });
    assert_eq!(ledger.remove(A, 5.., &mut commands), refusal);
    assert_eq!(ledger.remove(A, ..5, &mut commands), refusal);
    assert_eq!(ledger.remove_and_shift(A, 2..5, &mut commands), refusal);
    assert_eq!(ledger.copy(A, B, ..5, &mut commands), refusal);
    assert!(commands.is_empty());

    ledger.copy(A, B, .., &mut commands).unwrap();
    ledger.remove(A, .., &mut commands).unwrap();
    ledger.remove(C, .., &mut commands).unwrap(); // C is empty
    let expected = [
        CacheCommand::CopySequence { from: 0, to: 1 },
        CacheCommand::ClearSequence { sequence: 0 },
    ];
    assert_eq!(commands.as_slice(), expected);
}

#[test]
fn the_removal_of_recurrent_state_needs_a_command() {
    let mut ledger = KvLedger::new(LedgerOptions { recurrent: true, ..OPTIONS }).unwrap();
    let mut commands = KvCommands::with_capacity(2);
    for seq in [A, B, C] {
        ledger.append(seq, 5, &mut commands).unwrap();
    }
    ledger.remove(A, .., &mut commands).unwrap();
    ledger.remove(C, .., &mut commands).unwrap();
    assert_eq!([A, B, C].map(|seq| ledger.len(seq)), [0, 5, 0]);
    let full = LedgerError::CommandsFull { wanted: 1, free: 0 };
    assert_eq!(ledger.remove(B, .., &mut commands), Err(full));
    assert_eq!(ledger.len(B), 5);
}

#[test]
fn a_full_command_list_refuses_before_anything_changes() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 10, &mut commands).unwrap();
    ledger.retire(1);
    let mut no_room = KvCommands::with_capacity(0);
    assert!(matches!(
        ledger.remove_and_shift(A, 2..5, &mut no_room),
        Err(LedgerError::CommandsFull { free: 0, .. })
    ));
    ledger.copy(A, B, .., &mut commands).unwrap();
    let full = LedgerError::CommandsFull { wanted: 1, free: 0 };
    assert_eq!(ledger.append(B, 1, &mut no_room), Err(full));
    assert_eq!((ledger.len(A), ledger.len(B), ledger.used_pages()), (10, 10, 3));
}

#[test]
fn fenced_pages_of_an_error_exclude_pages_beyond_the_limit() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 12, &mut commands).unwrap();
    ledger.append(B, 16, &mut commands).unwrap();
    ledger.remove(B, .., &mut commands).unwrap();
    let coming =
        |ledger: &mut KvLedger| match ledger.append(C, 16, &mut KvCommands::with_capacity(0)) {
            Err(LedgerError::NoPages { wanted_pages: 4, free_pages: 0..4, fenced_pages }) => {
                fenced_pages
            }
            other => panic!("{other:?}"),
        };
    assert_eq!((ledger.free_pages(), coming(&mut ledger)), (1, 4));
    ledger.limit_pages(6);
    assert_eq!((ledger.free_pages(), coming(&mut ledger)), (0, 3));
    ledger.limit_pages(2);
    assert_eq!((ledger.free_pages(), coming(&mut ledger)), (0, 0), "more is owned than may be");
    ledger.limit_pages(u32::MAX);
    ledger.confine(6, &mut commands); // pages 6 and 7 are behind the fence, and 8 was free
    assert_eq!((ledger.free_pages(), coming(&mut ledger)), (0, 2));
    assert_eq!(ledger.fenced_pages(), 4, "as ever");
}

#[test]
fn a_batch_gets_all_of_its_pages_or_none() {
    let (mut ledger, mut commands) = ledger();
    ledger.append(A, 6, &mut commands).unwrap();
    ledger.retire(1);
    ledger.copy(A, B, .., &mut commands).unwrap();
    commands.clear();
    let mut batch = Batch::new(BatchLimits::new(10, 3, 32));
    let fill = |batch: &mut Batch, wants: [(SeqId, u32); 2]| {
        batch.clear();
        for (seq, tokens) in wants {
            for _ in 0..tokens {
                batch.push(TokenInput::Id(TokenId(1)), None, seq, Output::None).unwrap();
            }
        }
    };
    // C needs four pages, B two and a copy: one more than the six free pages.
    fill(&mut batch, [(C, 16), (B, 9)]);
    let checked = batch.check(&ledger).unwrap();
    let refusal = LedgerError::NoPages { wanted_pages: 7, free_pages: 6, fenced_pages: 0 };
    assert_eq!(ledger.reserve_batch(checked, &mut commands), Err(refusal));
    assert_eq!((ledger.len(C), ledger.pages(C).len(), ledger.free_pages()), (0, 0, 6));

    fill(&mut batch, [(C, 12), (B, 9)]);
    let checked = batch.check(&ledger).unwrap();
    let full = LedgerError::CommandsFull { wanted: 1, free: 0 };
    assert_eq!(ledger.reserve_batch(checked, &mut KvCommands::with_capacity(0)), Err(full));
    ledger.reserve_batch(checked, &mut commands).unwrap();
    assert_eq!((ledger.len(C), ledger.free_pages(), commands.as_slice().len()), (0, 0, 1));
    ledger.append_reserved(checked);
    assert_eq!((ledger.len(C), ledger.len(B), commands.as_slice().len()), (12, 15, 1));
    ledger.assert_consistent();
}
