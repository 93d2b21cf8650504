//! Converts a micro-batch to a step block.

use std::sync::Arc;

use walla_device::step::{BiasRow, OutputRow, StepRow, StepViewMut};
use walla_plan::{KvLedger, Row, TokenInput, UBatch};
use walla_types::{Sampling, TokenId, TokenMask};

use crate::error::ExecError;
use crate::masks::StepMask;

/// How the token behind a row is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The sampling parameters. Their mask is not used.
    pub sampling: &'a Sampling,
    /// Tokens that may be drawn; `None`: all.
    pub mask: Option<&'a Arc<TokenMask>>,
    /// Seed of the draw; `None`: of the sampling parameters.
    pub seed: Option<u64>,
    /// The token that is drawn, for its log-probability; the other fields are not used then.
    /// Another token is drawn only if the logit of this one is negative infinity.
    pub forced: Option<TokenId>,
}

impl<'a> From<&'a Sampling> for Draw<'a> {
    /// A draw with the mask of the sampling parameters.
    fn from(sampling: &'a Sampling) -> Self {
        Self { sampling, mask: sampling.allowed_tokens(), seed: None, forced: None }
    }
}

/// The draw of a row with an output; `None` for rows that only want logits.
pub type DrawOf<'a> = dyn Fn(&Row) -> Option<Draw<'a>> + 'a;

/// Added to the logit of a forced token: more than any difference of logits.
const FORCED_BIAS: f32 = 1e30;

/// Returns the number of biases of a micro-batch's outputs, and whether any output requests
/// candidates. Collects each of their masks once. Refuses a mask that allows no token of the
/// vocabulary.
pub(crate) fn extras(
    ubatch: &UBatch,
    draw: &DrawOf<'_>,
    vocab: u32,
    masks: &mut Vec<StepMask>,
) -> Result<(u32, bool), ExecError> {
    let (mut biases, mut candidates) = (0, false);
    for row in ubatch.rows().iter().filter(|row| row.output.samples()) {
        let Some(Draw { sampling, mask, forced, .. }) = draw(row) else { continue };
        if forced.is_some() {
            biases += 1;
            continue;
        }
        biases += sampling.biases().len() as u32;
        candidates |= sampling.candidates() > 0;
        if let Some(mask) = mask
            && place_of(masks, mask).is_none()
        {
            if !mask.allows_some_of(vocab) {
                return Err(ExecError::NothingAllowed { seq: row.seq, vocab });
            }
            masks.push(StepMask { mask: Arc::clone(mask), place: 0 });
        }
    }
    Ok((biases, candidates))
}

/// Place of a mask. Masks are compared by pointer: comparing their contents would take longer than
/// copying.
fn place_of(masks: &[StepMask], mask: &Arc<TokenMask>) -> Option<u32> {
    masks.iter().find(|other| Arc::ptr_eq(&other.mask, mask)).map(|other| other.place)
}

/// Writes rows, outputs, biases and page tables. Outputs are numbered from the micro-batch's first
/// output row.
pub(crate) fn fill(
    view: &mut StepViewMut<'_>,
    ubatch: &UBatch,
    ledger: &KvLedger,
    pages_per_sequence: usize,
    draw: &DrawOf<'_>,
    masks: &[StepMask],
) {
    let first_output = ubatch.output_rows().start;
    for (table, run) in ubatch.runs().iter().enumerate() {
        let pages = ledger.pages(run.seq);
        let entries = &mut view.tables[table * pages_per_sequence..][..pages.len()];
        for (entry, page) in entries.iter_mut().zip(pages) {
            *entry = page.0;
        }
        let rows = run.first_row as usize..(run.first_row + run.rows) as usize;
        for (row, planned) in view.rows[rows.clone()].iter_mut().zip(&ubatch.rows()[rows]) {
            *row = step_row(planned, table as u32, first_output);
        }
    }
    let mut biases = 0;
    for (index, row) in ubatch.rows().iter().enumerate() {
        let Some(output) = row.output_row else { continue };
        let place = &mut view.outputs[(output - first_output) as usize];
        let Some(Draw { sampling, mask, seed, forced }) =
            draw(row).filter(|_| row.output.samples())
        else {
            *place = logits_only(row, index as u32);
            continue;
        };
        if let Some(token) = forced {
            *place = forced_row(row, index as u32, biases);
            view.biases[biases as usize] = BiasRow { token: token.0, bias: FORCED_BIAS };
            biases += 1;
            continue;
        }
        *place = output_row(row, index as u32, sampling, biases);
        let seed = seed.unwrap_or(sampling.seed());
        place.seed = [seed as u32, (seed >> 32) as u32];
        place.mask = mask.and_then(|mask| place_of(masks, mask)).map_or(0, |place| place + 1);
        for bias in sampling.biases() {
            view.biases[biases as usize] = BiasRow { token: bias.token.0, bias: bias.bias };
            biases += 1;
        }
    }
}

fn logits_only(row: &Row, index: u32) -> OutputRow {
    OutputRow { row: index, sequence: row.seq.0, position: row.position, ..OutputRow::default() }
}

/// A greedy draw with one bias.
fn forced_row(row: &Row, index: u32, bias_first: u32) -> OutputRow {
    OutputRow {
        flags: OutputRow::SAMPLE,
        top_p: 1.0,
        repetition_penalty: 1.0,
        bias_first,
        bias_count: 1,
        ..logits_only(row, index)
    }
}

fn step_row(row: &Row, table: u32, first_output: u32) -> StepRow {
    let index = |number: Option<u32>| number.map_or(StepRow::NONE, |number| number as i32);
    StepRow {
        token: match row.token {
            TokenInput::Id(token) => token.0 as i32,
            TokenInput::LastSampled => StepRow::LAST_SAMPLED,
        },
        position: row.position,
        sequence: row.seq.0,
        table,
        previous: index(row.previous),
        output: index(row.output_row.map(|output| output - first_output)),
        flags: if row.is_last { StepRow::LAST_OF_SEQUENCE } else { 0 },
        reserved: 0,
    }
}

fn output_row(row: &Row, index: u32, sampling: &Sampling, bias_first: u32) -> OutputRow {
    OutputRow {
        row: index,
        sequence: row.seq.0,
        position: row.position,
        flags: OutputRow::SAMPLE,
        temperature: sampling.temperature(),
        top_k: sampling.top_k(),
        top_p: sampling.top_p(),
        min_p: sampling.min_p(),
        repetition_penalty: sampling.repetition_penalty(),
        presence_penalty: sampling.presence_penalty(),
        frequency_penalty: sampling.frequency_penalty(),
        penalty_window: if sampling.has_penalties() { sampling.penalty_window() } else { 0 },
        seed: [0; 2],
        candidates: sampling.candidates(),
        bias_first,
        bias_count: sampling.biases().len() as u32,
        mask: 0,
        reserved: [0; 2],
    }
}
