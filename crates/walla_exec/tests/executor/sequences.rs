//! Sequences: the ledger and the cache of the device agree.

use walla_doubles::faulty::{Call, Fault, FaultPlan};
use walla_doubles::hash::reference_draw;
use walla_exec::{ExecOptions, StepError};
use walla_types::{Sampling, SeqId, TokenId};

use crate::rig::{OPTIONS, Rig, ids, is_failed};

fn greedy(text: &[u32]) -> TokenId {
    reference_draw(&ids(text), &Sampling::greedy(), 320).unwrap()
}

#[test]
fn failed_cache_ops_are_sent_before_the_next_step() {
    let plan = FaultPlan::new(1).fail_call(Call::Maintain, 0, Fault::Failed);
    let mut rig = Rig::with_plan(OPTIONS, plan);
    rig.greedy(0, &[1, 2, 3, 4, 5, 6]).unwrap();
    rig.drawn();
    let sequences = &mut rig.sequences;
    // The last page of the copy is its own: a cache operation.
    sequences.ledger.copy(SeqId(0), SeqId(1), .., &mut sequences.commands).unwrap();
    while sequences.commands.is_empty() {
        // The page is copied when a sequence writes it.
        sequences.ledger.reserve(SeqId(1), 1, &mut sequences.commands).unwrap();
    }
    let waiting = sequences.commands.as_slice().len();
    assert!(is_failed(&sequences.flush_cache_ops().unwrap_err()));
    assert_eq!(sequences.commands.as_slice().len(), waiting);
    rig.greedy(1, &[7]).unwrap();
    assert!(rig.sequences.commands.is_empty());
    assert_eq!(rig.drawn(), [greedy(&[1, 2, 3, 4, 5, 6, 7])]);
    rig.greedy(0, &[8]).unwrap();
    assert_eq!(rig.drawn(), [greedy(&[1, 2, 3, 4, 5, 6, 8])]);
}

#[test]
fn a_full_cache_refuses_a_batch_and_a_removal_makes_room() {
    // Two pages, and the reserved one.
    let mut rig = Rig::new(ExecOptions { pages: 3, ..OPTIONS });
    rig.greedy(0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let launches = rig.calls.calls(Call::Launch);
    let refused = rig.greedy(1, &[9]);
    assert!(matches!(refused, Err(StepError::Ledger(_))), "{refused:?}");
    assert_eq!(rig.calls.calls(Call::Launch), launches);
    rig.drawn();
    rig.sequences.remove(SeqId(0)).unwrap();
    rig.sequences.free_fenced();
    rig.greedy(1, &[9]).unwrap();
    assert_eq!(rig.drawn(), [greedy(&[9])]);
}

#[test]
fn pages_of_a_removed_sequence_wait_for_the_step_that_reads_them() {
    let mut rig = Rig::new(OPTIONS);
    rig.greedy(0, &[1, 2, 3, 4, 5]).unwrap();
    rig.sequences.remove(SeqId(0)).unwrap();
    rig.greedy(1, &[9]).unwrap();
    assert_eq!(rig.sequences.ledger.fenced_pages(), 2);
    assert_eq!(rig.drawn(), [greedy(&[1, 2, 3, 4, 5])]);
    assert_eq!(rig.drawn(), [greedy(&[9])]);
    assert_eq!(rig.sequences.ledger.fenced_pages(), 0);
    rig.sequences.ledger.assert_consistent();
}

#[test]
fn a_cache_that_shrinks_keeps_its_sequences() {
    let mut rig = Rig::new(OPTIONS);
    for seq in 0..4 {
        rig.greedy(seq, &[seq; 9]).unwrap();
        rig.drawn();
    }
    rig.sequences.remove(SeqId(0)).unwrap();
    rig.sequences.resize(10).unwrap();
    let highest = (1..4).flat_map(|seq| rig.sequences.ledger.pages(SeqId(seq))).max();
    assert!(highest.is_some_and(|page| page.0 <= 10), "{highest:?}");
    assert_eq!(rig.calls.calls(Call::ResizeCache), 1);
    for seq in 1..4 {
        rig.greedy(seq, &[300]).unwrap();
        assert_eq!(rig.drawn(), [greedy(&[[seq; 9].as_slice(), &[300]].concat())]);
    }
    rig.sequences.resize(64).unwrap();
    assert_eq!(rig.calls.calls(Call::ResizeCache), 2);
}

#[test]
fn a_refused_growth_changes_nothing() {
    let plan = FaultPlan::new(1).fail_call(Call::ResizeCache, 1, Fault::Failed);
    let mut rig = Rig::with_plan(OPTIONS, plan);
    rig.sequences.resize(4).unwrap();
    assert!(is_failed(&rig.sequences.resize(64).unwrap_err()));
    rig.greedy(0, &[1; 16]).unwrap();
    rig.drawn();
    let refused = rig.greedy(1, &[1]);
    assert!(matches!(refused, Err(StepError::Ledger(_))), "four pages: {refused:?}");
    rig.sequences.resize(64).unwrap();
    rig.greedy(1, &[1]).unwrap();
    assert_eq!(rig.drawn(), [greedy(&[1])]);
}
