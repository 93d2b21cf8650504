//! Validation of batches, splits, and the output map.

use walla_plan::{
    Batch, BatchError, BatchLimits, KvCommands, KvLedger, LedgerOptions, Output, OutputError,
    OutputMap, Splitter, TokenInput, UBatch,
};
use walla_types::{SeqId, TokenId};

const LIMITS: BatchLimits = BatchLimits::new(100, 8, 16);

fn ledger_with(lengths: &[u32]) -> KvLedger {
    let options = LedgerOptions { max_sequences: 8, ..LedgerOptions::default() };
    let mut ledger = KvLedger::new(options).unwrap();
    for (seq, &tokens) in lengths.iter().enumerate() {
        ledger.append(SeqId(seq as u32), tokens, &mut KvCommands::with_capacity(0)).unwrap();
    }
    ledger.retire(1);
    ledger
}

fn id(token: u32) -> TokenInput {
    TokenInput::Id(TokenId(token))
}

fn push(batch: &mut Batch, seq: u32, output: Output) -> u32 {
    batch.push(id(1), None, SeqId(seq), output).unwrap()
}

fn check_error(batch: &mut Batch, ledger: &KvLedger) -> BatchError {
    batch.check(ledger).map(|_| ()).expect_err("the batch should be refused")
}

#[test]
fn an_empty_batch_is_refused() {
    assert_eq!(check_error(&mut Batch::new(LIMITS), &ledger_with(&[])), BatchError::Empty);
}

#[test]
fn a_token_is_checked_when_it_is_pushed() {
    let mut batch = Batch::new(LIMITS);
    let out_of_vocabulary = batch.push(id(100), None, SeqId(0), Output::None);
    let expected = BatchError::TokenOutOfVocabulary { index: 0, token: TokenId(100), vocab: 100 };
    assert_eq!(out_of_vocabulary, Err(expected));
    let out_of_range = batch.push(id(99), None, SeqId(8), Output::None);
    let expected = BatchError::SequenceOutOfRange { index: 0, seq: SeqId(8), max_sequences: 8 };
    assert_eq!(out_of_range, Err(expected));
    assert!(batch.is_empty());

    for _ in 0..16 {
        push(&mut batch, 0, Output::None);
    }
    let one_more = batch.push(id(0), None, SeqId(0), Output::None);
    assert_eq!(one_more, Err(BatchError::Full { max_tokens: 16 }));
    batch.clear();
    assert_eq!(push(&mut batch, 0, Output::None), 0);
}

#[test]
fn positions_go_on_where_the_cache_ends() {
    let ledger = ledger_with(&[5, 0, 7]);
    let mut batch = Batch::new(LIMITS);
    batch.push(id(1), Some(5), SeqId(0), Output::None).unwrap();
    batch.push(id(1), None, SeqId(2), Output::None).unwrap();
    batch.push(id(1), None, SeqId(0), Output::None).unwrap();
    batch.push(id(1), Some(0), SeqId(1), Output::None).unwrap();
    batch.push(id(1), Some(7), SeqId(0), Output::None).unwrap();
    let checked = batch.check(&ledger).unwrap();
    let positions: Vec<_> = (0..checked.len()).map(|index| checked.position(index)).collect();
    assert_eq!(positions, [5, 7, 6, 0, 7]);
    let sequences: Vec<_> = checked.sequences().collect();
    assert_eq!(sequences, [(SeqId(0), 3), (SeqId(2), 1), (SeqId(1), 1)]);
}

#[test]
fn gaps_and_repeats_are_told_apart() {
    let ledger = ledger_with(&[5]);
    let cases = [
        (
            vec![Some(6)],
            BatchError::PositionGap { index: 0, seq: SeqId(0), position: 6, expected: 5 },
        ),
        (
            vec![Some(5), Some(7)],
            BatchError::PositionGap { index: 1, seq: SeqId(0), position: 7, expected: 6 },
        ),
        (
            vec![Some(4)],
            BatchError::PositionRepeat { index: 0, seq: SeqId(0), position: 4, expected: 5 },
        ),
        (
            vec![None, Some(5)],
            BatchError::PositionRepeat { index: 1, seq: SeqId(0), position: 5, expected: 6 },
        ),
    ];
    for (positions, expected) in cases {
        let mut batch = Batch::new(LIMITS);
        for position in positions {
            batch.push(id(1), position, SeqId(0), Output::None).unwrap();
        }
        assert_eq!(check_error(&mut batch, &ledger), expected);
    }
}

#[test]
fn one_bad_sequence_can_be_taken_out() {
    let ledger = ledger_with(&[5, 5]);
    let mut batch = Batch::new(LIMITS);
    push(&mut batch, 0, Output::Sample);
    batch.push(id(1), Some(99), SeqId(1), Output::Sample).unwrap();
    assert!(batch.check(&ledger).is_err());
    batch.remove_sequence(SeqId(1));
    assert_eq!(batch.check(&ledger).unwrap().len(), 1);
}

#[test]
fn the_context_ends_a_sequence() {
    let options =
        LedgerOptions { page_tokens: 4, max_pages_per_sequence: 1, ..LedgerOptions::default() };
    let mut ledger = KvLedger::new(options).unwrap();
    ledger.append(SeqId(0), 3, &mut KvCommands::with_capacity(0)).unwrap();
    let mut batch = Batch::new(LIMITS);
    push(&mut batch, 0, Output::None);
    assert!(batch.check(&ledger).is_ok());
    push(&mut batch, 0, Output::None);
    let expected = BatchError::ContextFull { index: 1, seq: SeqId(0), context_tokens: 4 };
    assert_eq!(check_error(&mut batch, &ledger), expected);
}

#[test]
fn the_device_keeps_one_sampled_token_per_sequence() {
    let ledger = ledger_with(&[5]);
    let mut batch = Batch::new(LIMITS);
    batch.push(TokenInput::LastSampled, None, SeqId(0), Output::Sample).unwrap();
    push(&mut batch, 0, Output::Sample);
    assert!(batch.check(&ledger).is_ok());

    batch.push(TokenInput::LastSampled, None, SeqId(0), Output::Sample).unwrap();
    let expected = BatchError::LastSampledNotFirst { index: 2, seq: SeqId(0) };
    assert_eq!(check_error(&mut batch, &ledger), expected);

    batch.clear();
    batch.push(TokenInput::LastSampled, None, SeqId(1), Output::Sample).unwrap();
    let expected = BatchError::NothingSampled { index: 0, seq: SeqId(1) };
    assert_eq!(check_error(&mut batch, &ledger), expected);
}

#[test]
fn sequences_outputs_and_logits_are_bounded() {
    let ledger = ledger_with(&[]);
    let limits = BatchLimits { max_batch_sequences: 2, max_outputs: 2, max_logits: 1, ..LIMITS };
    let mut batch = Batch::new(limits);
    push(&mut batch, 4, Output::SampleAndLogits);
    push(&mut batch, 6, Output::Sample);
    assert!(batch.check(&ledger).is_ok());

    push(&mut batch, 5, Output::None);
    let expected = BatchError::TooManySequences { index: 2, seq: SeqId(5), max_batch_sequences: 2 };
    assert_eq!(check_error(&mut batch, &ledger), expected);

    batch.truncate(2);
    push(&mut batch, 4, Output::Sample);
    let expected = BatchError::TooManyOutputs { index: 2, max_outputs: 2 };
    assert_eq!(check_error(&mut batch, &ledger), expected);

    batch.clear();
    push(&mut batch, 4, Output::Logits);
    push(&mut batch, 4, Output::Logits);
    let expected = BatchError::TooManyLogits { index: 1, max_logits: 1 };
    assert_eq!(check_error(&mut batch, &ledger), expected);
}

#[test]
fn unspecified_output_is_the_last_token() {
    let ledger = ledger_with(&[]);
    let mut batch = Batch::new(LIMITS);
    for _ in 0..3 {
        push(&mut batch, 0, Output::Unsaid);
    }
    let outputs = |batch: &mut Batch| {
        let checked = batch.check(&ledger).unwrap();
        (0..checked.len()).map(|index| checked.output(index)).collect::<Vec<_>>()
    };
    assert_eq!(outputs(&mut batch), [Output::None, Output::None, Output::Sample]);
    // A prefill chunk requests no output and gets none.
    push(&mut batch, 0, Output::None);
    assert_eq!(outputs(&mut batch), [Output::None; 4]);
}

/// Splits a batch completely; returns the batch indices of each micro-batch.
fn split_all(
    batch: &mut Batch,
    ledger: &KvLedger,
    outputs: &mut OutputMap,
    take: impl Fn(&mut walla_plan::Split<'_>, &mut UBatch) -> bool,
) -> Vec<Vec<u32>> {
    let mut splitter = Splitter::new(*batch.limits());
    let mut ubatch = UBatch::with_capacity(batch.limits().max_tokens);
    let mut split = batch.check(ledger).unwrap().split(&mut splitter, outputs);
    let mut all = Vec::new();
    while take(&mut split, &mut ubatch) {
        all.push(ubatch.rows().iter().map(|row| row.batch_index).collect());
    }
    assert_eq!(split.tokens_left(), 0);
    all
}

/// Sequences of 3 and 7 tokens; the last token of each is an output.
fn three_and_seven() -> Batch {
    let mut batch = Batch::new(LIMITS);
    for (seq, tokens) in [(0, 3), (1, 7)] {
        for index in 0..tokens {
            let output = if index + 1 == tokens { Output::Logits } else { Output::None };
            push(&mut batch, seq, output);
        }
    }
    batch
}

#[test]
fn three_and_seven_tokens_are_split_in_equal_parts() {
    let (ledger, mut outputs) = (ledger_with(&[]), OutputMap::new(LIMITS));
    let parts = split_all(&mut three_and_seven(), &ledger, &mut outputs, |s, u| s.equal(16, u));
    assert_eq!(parts, [vec![0, 1, 2, 3, 4, 5], vec![6, 7, 8, 9]]);
    assert_eq!(outputs.out_ids(), [2, 9]);
    assert_eq!((outputs.row(2), outputs.row(9)), (Ok(0), Ok(1)));
}

#[test]
fn an_index_maps_to_its_row_or_an_error() {
    let (ledger, mut outputs) = (ledger_with(&[]), OutputMap::new(LIMITS));
    let mut batch = three_and_seven();
    push(&mut batch, 2, Output::Sample);
    split_all(&mut batch, &ledger, &mut outputs, |s, u| s.ragged(16, u));
    // Ragged takes the single token of sequence 2 first; negative indices still count in batch
    // order.
    assert_eq!(outputs.out_ids(), [10, 2, 9]);
    assert_eq!((outputs.row(-1), outputs.row(-2), outputs.row(-3)), (Ok(0), Ok(2), Ok(1)));
    assert_eq!((outputs.logits_row(-2), outputs.logits_row(2)), (Ok(1), Ok(0)));
    let out_of_range = |index| Err(OutputError::OutOfRange { index, tokens: 11, outputs: 3 });
    assert_eq!(outputs.row(11), out_of_range(11));
    assert_eq!(outputs.row(-4), out_of_range(-4));
    assert_eq!(outputs.row(i32::MIN), out_of_range(i32::MIN));
    assert_eq!(outputs.row(0), Err(OutputError::NotAnOutput { index: 0 }));
    assert_eq!(outputs.logits_row(-1), Err(OutputError::NoLogits { index: -1 }));
}

#[test]
fn a_token_that_is_not_split_off_has_no_row_yet() {
    let (ledger, mut outputs) = (ledger_with(&[]), OutputMap::new(LIMITS));
    let (mut splitter, mut ubatch) = (Splitter::new(LIMITS), UBatch::with_capacity(16));
    let mut batch = three_and_seven();
    batch.check(&ledger).unwrap().split(&mut splitter, &mut outputs).equal(16, &mut ubatch);
    assert_eq!((ubatch.output_rows(), ubatch.logits_rows()), (0..1, 0..1));
    assert_eq!(outputs.row(9), Err(OutputError::NoRowYet { index: 9 }));
}

#[test]
fn holes_in_the_active_set_cost_nothing() {
    let ledger = ledger_with(&[9; 8]);
    let mut outputs = OutputMap::new(LIMITS);
    let mut batch = Batch::new(LIMITS);
    for seq in [0, 1, 3, 4] {
        push(&mut batch, seq, Output::Sample);
    }
    let ragged = split_all(&mut batch, &ledger, &mut outputs, |s, u| s.ragged(16, u));
    assert_eq!(ragged, [vec![0, 1, 2, 3]]);
}

#[test]
fn rows_of_interleaved_sequences_are_marked() {
    let (ledger, mut outputs) = (ledger_with(&[4, 4]), OutputMap::new(LIMITS));
    let (mut splitter, mut ubatch) = (Splitter::new(LIMITS), UBatch::with_capacity(16));
    let mut batch = Batch::new(LIMITS);
    for seq in [0, 1, 0, 0, 1] {
        push(&mut batch, seq, Output::None);
    }
    let mut split = batch.check(&ledger).unwrap().split(&mut splitter, &mut outputs);
    assert!(split.simple(4, &mut ubatch));
    let seen: Vec<_> =
        ubatch.rows().iter().map(|row| (row.position, row.previous, row.is_last)).collect();
    let expected = [(4, None, false), (4, None, true), (5, Some(0), false), (6, Some(2), true)];
    assert_eq!(seen, expected);
    assert_eq!(ubatch.runs().len(), 3);
    // For the next micro-batch the preceding token is in the cache.
    assert!(split.simple(4, &mut ubatch));
    assert_eq!((ubatch.rows()[0].previous, ubatch.rows()[0].is_last), (None, true));
}

#[test]
fn adjacent_rows_of_a_sequence_are_one_run() {
    let (ledger, mut outputs) = (ledger_with(&[4, 4, 4]), OutputMap::new(LIMITS));
    let (mut splitter, mut ubatch) = (Splitter::new(LIMITS), UBatch::with_capacity(16));
    let mut batch = Batch::new(LIMITS);
    for seq in [0, 1, 1, 2] {
        push(&mut batch, seq, Output::None);
    }
    let mut split = batch.check(&ledger).unwrap().split(&mut splitter, &mut outputs);
    assert!(split.simple(16, &mut ubatch));
    assert_eq!(ubatch.runs().len(), 3);
    let mut split = batch.check(&ledger).unwrap().split(&mut splitter, &mut outputs);
    assert!(split.ragged(16, &mut ubatch));
    assert_eq!(ubatch.runs().len(), 3);
}

#[test]
fn a_ragged_chunk_is_cut_to_fit() {
    let (ledger, mut outputs) = (ledger_with(&[0, 9]), OutputMap::new(LIMITS));
    let mut batch = Batch::new(LIMITS);
    for seq in [0, 0, 0, 2, 2, 2, 1] {
        push(&mut batch, seq, Output::None);
    }
    let parts = split_all(&mut batch, &ledger, &mut outputs, |s, u| s.ragged(5, u));
    assert_eq!(parts, [vec![6, 0, 1, 2, 3], vec![4, 5]]);
}
