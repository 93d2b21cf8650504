//! Invariants of every split of every batch.

use std::collections::BTreeMap;

use proptest::prelude::*;
use walla_plan::{
    Batch, BatchLimits, KvCommands, KvLedger, LedgerOptions, Output, OutputMap, Splitter,
    TokenInput, UBatch,
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

#[derive(Clone, Copy, Debug)]
enum Kind {
    Simple,
    Equal,
    Ragged,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn every_split_takes_every_token_once_and_in_order(
        tokens in prop::collection::vec((0u32..8, 0u8..4), 1..16),
        lengths in prop::collection::vec(0u32..40, 8),
        kinds in prop::collection::vec(
            (prop_oneof![Just(Kind::Simple), Just(Kind::Equal), Just(Kind::Ragged)], 1u32..12),
            16,
        ),
    ) {
        let ledger = ledger_with(&lengths);
        let mut batch = Batch::new(LIMITS);
        for &(seq, output) in &tokens {
            let outputs = [Output::None, Output::Sample, Output::Logits, Output::SampleAndLogits];
            let (token, output) = (TokenInput::Id(TokenId(1)), outputs[output as usize]);
            batch.push(token, None, SeqId(seq), output).unwrap();
        }
        let mut outputs = OutputMap::new(LIMITS);
        let (mut splitter, mut ubatch) = (Splitter::new(LIMITS), UBatch::with_capacity(16));
        let checked = batch.check(&ledger).unwrap();
        let mut split = checked.split(&mut splitter, &mut outputs);
        let mut seen = Vec::new();
        let mut next: BTreeMap<SeqId, u32> = BTreeMap::new();
        for (kind, max_rows) in kinds {
            let left = split.tokens_left();
            let any = match kind {
                Kind::Simple => split.simple(max_rows, &mut ubatch),
                Kind::Equal => split.equal(max_rows, &mut ubatch),
                Kind::Ragged => split.ragged(max_rows, &mut ubatch),
            };
            prop_assert_eq!(any, left > 0);
            prop_assert!(ubatch.len() <= max_rows);
            prop_assert_eq!(split.tokens_left(), left - ubatch.len());
            if let Kind::Simple | Kind::Ragged = kind {
                prop_assert_eq!(ubatch.len(), left.min(max_rows), "these leave no room unused");
            }
            check_ubatch(kind, &ubatch, &mut next, &ledger)?;
            seen.extend(ubatch.rows().iter().map(|row| row.batch_index));
        }
        let order = seen.clone();
        seen.sort_unstable();
        prop_assert!(seen.iter().copied().eq(0..tokens.len() as u32));
        // Output rows are numbered in split order, and only outputs have rows.
        let wanted = |index: &&u32| checked.output(**index).is_output();
        prop_assert!(order.iter().filter(wanted).eq(outputs.out_ids()));
    }
}

fn check_ubatch(
    kind: Kind,
    ubatch: &UBatch,
    next: &mut BTreeMap<SeqId, u32>,
    ledger: &KvLedger,
) -> Result<(), TestCaseError> {
    let mut last: BTreeMap<SeqId, u32> = BTreeMap::new();
    for (number, row) in ubatch.rows().iter().enumerate() {
        let position = next.entry(row.seq).or_insert_with(|| ledger.len(row.seq));
        prop_assert_eq!(row.position, *position);
        *position += 1;
        prop_assert_eq!(row.previous, last.insert(row.seq, number as u32));
        prop_assert_eq!(row.output.is_output(), row.output_row.is_some());
        prop_assert_eq!(row.output.has_logits(), row.logits_row.is_some());
    }
    for (number, row) in ubatch.rows().iter().enumerate() {
        prop_assert_eq!(row.is_last, last[&row.seq] == number as u32);
    }
    let rows_of_runs: u32 = ubatch.runs().iter().map(|run| run.rows).sum();
    prop_assert_eq!(rows_of_runs, ubatch.len());
    if !matches!(kind, Kind::Simple) {
        prop_assert_eq!(ubatch.runs().len(), last.len(), "one run a sequence");
    }
    if matches!(kind, Kind::Equal) {
        prop_assert!(ubatch.runs().windows(2).all(|two| two[0].rows == two[1].rows));
    }
    Ok(())
}
