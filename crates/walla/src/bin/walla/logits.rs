//! `walla logits`: every position of every sequence, evaluated as one batch.

use std::io::{Seek, SeekFrom, Write};

use serde_json::json;
use walla_exec::{Evaluator, ExecOptions};
use walla_model::ModelSpec;
use walla_types::{SeqId, TokenId};

use crate::Failure;
use crate::args::Logits;
use crate::load;
use crate::output::Target;

/// Maximum rows of logits per step: bounds the memory for large vocabularies.
const MAX_ROWS: u32 = 64;

pub fn run(arguments: &Logits) -> Result<(), Failure> {
    // Refused before the weights are loaded, which can take long.
    let target = Target::new(&arguments.out, &[&arguments.model])?;
    let file = load::open(&arguments.model)?;
    let sequences: Vec<Vec<TokenId>> =
        arguments.tokens.iter().map(|list| list.0.iter().copied().map(TokenId).collect()).collect();
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(1);
    let context_tokens = u32::try_from(longest)?;
    let spec = |context| {
        ModelSpec::from_gguf(&file, context).map_err(|error| load::named(&arguments.model, &error))
    };
    let model = match arguments.context {
        Some(context) => spec(context)?,
        None => spec(spec(u32::MAX)?.context_train)?,
    };
    if let Some(token) = sequences.iter().flatten().find(|token| token.0 as usize >= model.vocab) {
        let vocab = model.vocab;
        return Err(format!("token {token} is outside the vocabulary of {vocab} tokens").into());
    }
    let options = ExecOptions {
        max_sequences: u32::try_from(sequences.len())?,
        context_tokens,
        max_rows: MAX_ROWS,
        max_outputs: MAX_ROWS,
        max_logits_rows: MAX_ROWS,
        kv_type: arguments.kv.into(),
        ..ExecOptions::default()
    };
    let options = options.with_full_pages();
    let executor = load::executor(&arguments.model, &file, &model, &arguments.device, options)?;
    let mut evaluator = Evaluator::new(executor)?;

    // Rows are computed in the order of the steps and written at their position in the order of the
    // sequences.
    let mut output = target.create()?;
    let row_bytes = model.vocab as u64 * size_of::<f32>() as u64;
    let first_rows: Vec<u64> = sequences
        .iter()
        .scan(0, |next, sequence| Some(std::mem::replace(next, *next + sequence.len() as u64)))
        .collect();
    let rows: usize = sequences.iter().map(Vec::len).sum();
    let mut write = |sequence: usize, position: usize, row: &[f32]| -> std::io::Result<()> {
        output.file.seek(SeekFrom::Start((first_rows[sequence] + position as u64) * row_bytes))?;
        let bytes: Vec<u8> = row.iter().flat_map(|number| number.to_le_bytes()).collect();
        output.file.write_all(&bytes)
    };
    let mut written = Ok(());
    let inputs: Vec<(SeqId, &[TokenId])> =
        sequences.iter().enumerate().map(|(id, s)| (SeqId(id as u32), s.as_slice())).collect();
    evaluator.append(&inputs, &mut |sequence, position, row| {
        if written.is_ok() {
            written = write(sequence, position, row);
        }
    })?;
    written.and_then(|()| output.finish()).map_err(|error| target.failed(&error))?;
    let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
    let shape = json!({
        "rows": rows,
        "cols": model.vocab,
        "sequences": lengths,
        "dtype": "f32le",
        "out": arguments.out.display().to_string(),
        "device": evaluator.sequences().executor.device().info().name,
    });
    writeln!(std::io::stdout(), "{shape}")?;
    Ok(())
}
