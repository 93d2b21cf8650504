//! Copies of cache contents through host memory.

use walla_device::CachePart;
use walla_doubles::faulty::{Call, Fault, FaultPlan};
use walla_doubles::hash::reference_draw;
use walla_exec::{ExecError, ExecOptions, TRANSFER_BUFFERS};
use walla_plan::PageId;
use walla_types::{Sampling, SeqId};

use crate::rig::{OPTIONS, Rig, ids, is_failed};

const COPIES: ExecOptions = ExecOptions { transfer_bytes: 1, ..OPTIONS };

/// Bytes of a part, through a buffer.
fn read(rig: &mut Rig, buffer: usize, part: &CachePart<'_>, bytes: usize) -> Vec<u8> {
    let executor = &mut rig.sequences.executor;
    executor.read_part(buffer, part).unwrap();
    assert!(!executor.is_transferred(buffer).unwrap(), "a copy takes 100 us");
    rig.clock.advance(1_000);
    assert!(executor.is_transferred(buffer).unwrap());
    let mut found = Vec::new();
    executor.transferred(buffer, bytes, &mut |bytes| found.extend_from_slice(bytes)).unwrap();
    found
}

fn pages(rig: &Rig, seq: u32) -> Vec<u32> {
    rig.sequences.ledger.pages(SeqId(seq)).iter().map(|PageId(page)| *page).collect()
}

#[test]
fn a_sequence_continues_in_pages_that_were_written_from_a_copy() {
    let mut rig = Rig::new(COPIES);
    rig.greedy(0, &[1, 2, 3, 4, 5, 6]).unwrap();
    // Other contents of the same length, which the copy replaces.
    rig.greedy(1, &[60, 50, 40, 30, 20, 10]).unwrap();
    rig.drawn();
    rig.drawn();
    let page_bytes = rig.sequences.executor.cache_image().unwrap().page_bytes();
    for (buffer, (from, to)) in pages(&rig, 0).into_iter().zip(pages(&rig, 1)).enumerate() {
        let bytes = read(&mut rig, buffer, &CachePart::Pages(&[from]), page_bytes);
        let fill = &mut |place: &mut [u8]| place.copy_from_slice(&bytes);
        let executor = &mut rig.sequences.executor;
        executor.write_part(buffer, &CachePart::Pages(&[to]), page_bytes, fill).unwrap();
        assert_eq!(read(&mut rig, 1 - buffer, &CachePart::Pages(&[to]), page_bytes), bytes);
    }
    rig.greedy(1, &[7]).unwrap();
    let text = ids(&[1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rig.drawn(), [reference_draw(&text, &Sampling::greedy(), 320).unwrap()]);
}

#[test]
fn a_buffer_holds_the_largest_part() {
    let rig = Rig::new(COPIES);
    let executor = &rig.sequences.executor;
    let recent = 4 * walla_types::MAX_PENALTY_WINDOW as usize;
    let page_bytes = executor.cache_image().unwrap().page_bytes();
    assert_eq!(executor.transfer_bytes(), recent.max(page_bytes));
    let large = Rig::new(ExecOptions { transfer_bytes: 1 << 20, ..OPTIONS });
    assert_eq!(large.sequences.executor.transfer_bytes(), 1 << 20);
    // One more sequence receives the copies.
    assert_eq!(executor.options().cache_sequences(), OPTIONS.cache_sequences() + 1);
}

#[test]
fn without_buffers_a_copy_is_refused() {
    for (options, buffer) in [(OPTIONS, 0), (COPIES, TRANSFER_BUFFERS)] {
        let mut rig = Rig::new(options);
        let executor = &mut rig.sequences.executor;
        let part = CachePart::Recent { sequence: 0 };
        assert!(matches!(executor.read_part(buffer, &part), Err(ExecError::Options(_))));
        let nothing = &mut |_: &mut [u8]| panic!("no buffer to fill");
        let written = executor.write_part(buffer, &part, 4, nothing);
        assert!(matches!(written, Err(ExecError::Options(_))));
        assert!(executor.is_transferred(buffer).is_err());
    }
    assert!(Rig::new(OPTIONS).sequences.executor.cache_image().is_none());
}

#[test]
fn a_buffer_is_free_after_a_failed_copy() {
    let page = CachePart::Pages(&[1]);
    for call in [Call::ReadCache, Call::WriteCache] {
        let plan = FaultPlan::new(1).fail_call(call, 0, Fault::Failed);
        let mut rig = Rig::with_plan(COPIES, plan);
        let executor = &mut rig.sequences.executor;
        let failed = match call {
            Call::ReadCache => executor.read_part(0, &page),
            _ => executor.write_part(0, &page, 8, &mut |bytes| bytes.fill(1)),
        };
        assert!(failed.is_err_and(|error| is_failed(&error)), "{call:?}");
        assert!(executor.is_transferred(0).unwrap());
        let page_bytes = executor.cache_image().unwrap().page_bytes();
        assert_eq!(read(&mut rig, 0, &page, page_bytes).len(), page_bytes);
    }
}
