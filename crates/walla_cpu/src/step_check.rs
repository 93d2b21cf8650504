//! Checks every reference in a step block before it is used: a defect of the caller must become an
//! error, never an out-of-bounds read. Pure.

use walla_device::Program;
use walla_device::step::{OutputRow, StepRow, StepView};
use walla_types::{MAX_CANDIDATES, MAX_PENALTY_WINDOW};

use crate::cache::Cache;

/// Checks the block; `reach` is scratch with at least one entry per table of the step.
///
/// # Errors
/// Names the number that is out of range.
pub(crate) fn check(
    step: &StepView<'_>,
    program: &Program,
    cache: &Cache,
    (result_slots, mask_slots): (usize, usize),
    tokens: u32,
    reach: &mut [u32],
) -> Result<(), String> {
    let header = step.header;
    let bounds = [
        ("rows", header.rows, program.max_rows),
        ("outputs", header.outputs, program.max_outputs),
        ("sequences", header.sequences, program.layout.max_sequences),
        ("biases", header.biases, program.layout.max_biases),
    ];
    for (what, count, max) in bounds {
        if count > max {
            return Err(format!("a step has {count} {what}, the maximum is {max}"));
        }
    }
    if header.masks as usize > mask_slots {
        return Err(format!("{} masks, of which {mask_slots} fit", header.masks));
    }
    if header.ring_slot as usize >= result_slots {
        return Err(format!("result slot {} of {result_slots}", header.ring_slot));
    }
    let reach = &mut reach[..header.sequences as usize];
    reach.fill(0);
    for (r, row) in step.rows[..header.rows as usize].iter().enumerate() {
        check_row(row, step, program, cache, tokens).map_err(|why| format!("row {r}: {why}"))?;
        let pages = &mut reach[row.table as usize];
        *pages = (*pages).max(row.position / cache.desc.page_tokens + 1);
    }
    let tables = step.tables.chunks(program.layout.pages_per_sequence as usize);
    for (t, (table, pages)) in tables.zip(reach).enumerate() {
        if let Some(page) = table[..*pages as usize].iter().find(|page| **page >= cache.desc.pages)
        {
            return Err(format!("table {t} has page {page} of {}", cache.desc.pages));
        }
    }
    for (o, output) in step.outputs[..header.outputs as usize].iter().enumerate() {
        check_output(output, step).map_err(|why| format!("output {o}: {why}"))?;
    }
    let mut biases = step.biases[..header.biases as usize].iter();
    match biases.find(|bias| bias.token >= program.vocab) {
        Some(bias) => Err(format!("bias on token {} of {}", bias.token, program.vocab)),
        None => Ok(()),
    }
}

fn check_row(
    row: &StepRow,
    step: &StepView<'_>,
    program: &Program,
    cache: &Cache,
    tokens: u32,
) -> Result<(), String> {
    let (rows, outputs) = (step.header.rows, step.header.outputs);
    let known = u32::try_from(row.token).map_or(row.token == StepRow::LAST_SAMPLED, |t| t < tokens);
    if !known {
        return Err(format!("token {} of {tokens}", row.token));
    }
    let pages = program.layout.pages_per_sequence;
    if row.position >= program.max_context || row.position / cache.desc.page_tokens >= pages {
        return Err(format!("position {} beyond the context", row.position));
    }
    if row.sequence >= cache.desc.max_sequences || row.table >= step.header.sequences {
        return Err(format!("sequence {} or table {} is unknown", row.sequence, row.table));
    }
    let below =
        |index: i32, count: u32| index == -1 || u32::try_from(index).is_ok_and(|i| i < count);
    if !below(row.previous, rows) || !below(row.output, outputs) {
        return Err(format!("previous row {} or output {} is unknown", row.previous, row.output));
    }
    Ok(())
}

fn check_output(output: &OutputRow, step: &StepView<'_>) -> Result<(), String> {
    if output.row >= step.header.rows {
        return Err(format!("row {} is unknown", output.row));
    }
    // Also checks the output's sequence and position, which the row check covers.
    let row = &step.rows[output.row as usize];
    if (output.sequence, output.position) != (row.sequence, row.position) {
        return Err(format!(
            "sequence {} and position {}, its row has {} and {}",
            output.sequence, output.position, row.sequence, row.position
        ));
    }
    let biases_end = output.bias_first.checked_add(output.bias_count);
    if biases_end.is_none_or(|end| end > step.header.biases) {
        return Err(format!("biases {} + {}", output.bias_first, output.bias_count));
    }
    if output.mask > step.header.masks {
        return Err(format!("mask {} of {}", output.mask, step.header.masks));
    }
    if output.candidates > MAX_CANDIDATES || output.penalty_window > MAX_PENALTY_WINDOW {
        return Err("more candidates or a longer penalty window than there can be".to_owned());
    }
    Ok(())
}
