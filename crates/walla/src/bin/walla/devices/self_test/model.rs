//! The demo model.

use std::ops::ControlFlow;
use std::time::Instant;

use serde_json::json;
use walla::ModelSource;
use walla_device::{Device, KvType};
use walla_exec::{Evaluator, ExecOptions, Executor, Lockstep};
use walla_model::tokenizer::{EncodeOptions, Tokenizer};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{Batch, Output, TokenInput};
use walla_types::{Sampling, SeqId, TokenId};

use super::{MAX_DIFFERENCE, MIN_SAME, Report, difference, exact, rounded, seconds};
use crate::Failure;
use crate::bench::measure::{self, Measured, Run};

/// Prompts of different lengths.
const PROMPTS: [&str; 4] = [
    "Halt!",
    "Who are you, and what do you want in this town?",
    "The guard looks at the gate. It has been closed since the bells rang, and nobody may pass",
    "Once upon a time there was a smith who lived at the end of the road to the mountains. One",
];
/// Steps of one row for each prompt, then steps whose tokens are drawn.
const STEPS: usize = 8;
const DRAWS: usize = 16;
/// Agents of the timed steps.
const AGENTS: [u32; 2] = [1, 16];
const RUN: Run = Run { context: 64, tokens: 16, prefill_rows: 64 };

/// Results of a device.
struct Found {
    load_seconds: serde_json::Value,
    /// Logits of all tokens of the prompts, then of the steps.
    rows: Vec<Vec<f32>>,
    /// The most probable tokens behind the prompts and steps.
    tokens: Vec<Vec<TokenId>>,
    drawn: Vec<u32>,
    /// Whether a prompt alone has the same bits.
    is_same_alone: bool,
}

/// Compares a device with the exact CPU.
pub fn compare(
    report: &mut Report,
    open: &dyn Fn() -> Result<Box<dyn Device>, Failure>,
    model: &ModelSource,
) -> Result<(), Failure> {
    let file = model.open()?;
    for (kv_type, name) in [(KvType::F16, "f16"), (KvType::Q8, "q8")] {
        let wanted = evaluate(exact()?, &file, kv_type, None)?;
        let found = evaluate(open()?, &file, kv_type, Some(&wanted))?;
        let apart = difference(&found.rows, &wanted.rows);
        let count =
            |same: &dyn Fn(usize) -> bool, all| (0..all).filter(|index| same(*index)).count();
        let (found_tokens, wanted_tokens) = (found.tokens.concat(), wanted.tokens.concat());
        let same = count(&|index| found_tokens[index] == wanted_tokens[index], wanted_tokens.len());
        let draws = wanted.drawn.len();
        let same_draws = count(&|index| found.drawn.get(index) == wanted.drawn.get(index), draws);
        if kv_type == KvType::F16 {
            report.add("seconds to load the model", found.load_seconds);
        }
        let of = |same, all| json!(format!("{same} of {all}"));
        report.add(
            format!("largest difference of {} logits, {name}", wanted.rows.len()),
            rounded(f64::from(apart)),
        );
        report.add(format!("same most probable tokens, {name}"), of(same, wanted_tokens.len()));
        report.add(format!("same drawn tokens, {name}"), of(same_draws, draws));
        report.check(apart <= MAX_DIFFERENCE, || format!("{name}: logits differ by {apart}"));
        report.check(same as f32 >= MIN_SAME * wanted_tokens.len() as f32, || {
            format!("{name}: other tokens are most probable")
        });
        report.check(same_draws as f32 >= MIN_SAME * draws as f32, || {
            format!("{name}: other tokens are drawn")
        });
        report.check(found.is_same_alone, || format!("{name}: a row depends on other rows"));
    }
    Ok(())
}

fn load(
    device: Box<dyn Device>,
    file: &Gguf,
    options: ExecOptions,
) -> Result<(Executor, ModelSpec), Failure> {
    let model = ModelSpec::from_gguf(file, options.context_tokens)?;
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    Ok((Executor::load(device, file, &model, options.with_full_pages(), go_on)?, model))
}

/// Evaluates the prompts and steps. The steps take the tokens of `wanted`, so that one
/// difference does not lead to others.
fn evaluate(
    device: Box<dyn Device>,
    file: &Gguf,
    kv_type: KvType,
    wanted: Option<&Found>,
) -> Result<Found, Failure> {
    let options = ExecOptions {
        max_sequences: PROMPTS.len() as u32,
        context_tokens: 128,
        max_rows: 64,
        max_outputs: 64,
        max_logits_rows: 64,
        kv_type,
        ..ExecOptions::default()
    };
    let begin = Instant::now();
    let (executor, _) = load(device, file, options)?;
    let load_seconds = seconds(begin.elapsed());
    let mut evaluator = Evaluator::new(executor)?;
    let tokenizer = Tokenizer::from_gguf(file)?;
    let encode = |prompt| tokenizer.encode(prompt, EncodeOptions::default());
    let prompts = PROMPTS.into_iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let mut inputs = prompts.clone();
    let (mut rows, mut tokens) = (Vec::new(), Vec::new());
    for step in 0..=STEPS {
        let (these, last) = append(&mut evaluator, &inputs)?;
        rows.extend(these);
        let next = wanted.map_or(&last, |wanted| &wanted.tokens[step]);
        inputs = next.iter().map(|token| vec![*token]).collect();
        tokens.push(last);
    }
    let drawn = draw(&mut evaluator, &inputs, wanted.map(|wanted| wanted.drawn.as_slice()))?;
    for seq in 0..PROMPTS.len() as u32 {
        evaluator.sequences().remove(SeqId(seq))?;
    }
    evaluator.sequences().free_fenced();
    let (alone, _) = append(&mut evaluator, &prompts[..1])?;
    let bits = |rows: &[Vec<f32>]| rows.concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let is_same_alone = bits(&alone) == bits(&rows[..alone.len()]);
    Ok(Found { load_seconds, rows, tokens, drawn, is_same_alone })
}

/// Appends tokens to each sequence. Returns the logits behind each, and the most probable tokens
/// at the ends.
fn append(
    evaluator: &mut Evaluator,
    tokens: &[Vec<TokenId>],
) -> Result<(Vec<Vec<f32>>, Vec<TokenId>), Failure> {
    let inputs: Vec<_> = (0..).map(SeqId).zip(tokens.iter().map(Vec::as_slice)).collect();
    let mut rows: Vec<Vec<Vec<f32>>> = vec![Vec::new(); tokens.len()];
    evaluator.append(&inputs, &mut |sequence, _, row| rows[sequence].push(row.to_vec()))?;
    let most_probable = |row: &Vec<f32>| {
        let best = (0..).zip(row).max_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(TokenId(0), |(token, _)| TokenId(token))
    };
    let last = rows.iter().map(|rows| rows.last().map_or(TokenId(0), most_probable)).collect();
    Ok((rows.concat(), last))
}

/// Draws tokens for all sequences, which continue with the tokens of `wanted`.
fn draw(
    evaluator: &mut Evaluator,
    first: &[Vec<TokenId>],
    wanted: Option<&[u32]>,
) -> Result<Vec<u32>, Failure> {
    let sampling = Sampling::builder().temperature(0.9).top_k(40).top_p(0.95).min_p(0.02);
    let sampling = sampling.repetition_penalty(1.1).seed(7).build()?;
    let sequences = evaluator.sequences();
    let mut batch = Batch::new(sequences.limits());
    let mut inputs: Vec<u32> = first.concat().iter().map(|token| token.0).collect();
    let mut drawn = Vec::new();
    for _ in 0..DRAWS {
        batch.clear();
        for (seq, token) in (0..).map(SeqId).zip(&inputs) {
            batch.push(TokenInput::Id(TokenId(*token)), None, seq, Output::Sample)?;
        }
        sequences.submit(&mut batch, &|_| Some((&sampling).into()))?;
        let start = drawn.len();
        while let Some(completed) = sequences.wait()? {
            sequences.executor.read_results(completed, &mut |view| {
                drawn.extend(view.rows.iter().take(inputs.len()).map(|row| row.token));
            })?;
            sequences.release(completed);
        }
        let next = wanted.unwrap_or(&drawn);
        inputs = next[start..start + inputs.len()].to_vec();
    }
    Ok(drawn)
}

/// Times steps.
pub fn time(
    report: &mut Report,
    device: Box<dyn Device>,
    model: &ModelSource,
) -> Result<(), Failure> {
    let file = model.open()?;
    let [.., most] = AGENTS;
    let options = ExecOptions {
        max_sequences: most,
        context_tokens: RUN.max_context(),
        max_rows: RUN.prefill_rows,
        max_outputs: most,
        max_logits_rows: 0,
        ..ExecOptions::default()
    };
    let (executor, model) = load(device, &file, options)?;
    let mut lockstep = Lockstep::new(executor, Vec::new(), Sampling::greedy())?;
    for agents in AGENTS {
        let active = (0..agents).map(SeqId).collect();
        let measured = measure::measure(&mut lockstep, active, RUN, &model)?;
        let of = format!("of {agents} agent{}", if agents == 1 { "" } else { "s" });
        let Measured { step_ms, awaited_ms, prefill_tokens_per_second, .. } = measured;
        report.add(format!("ms a step {of}"), rounded(step_ms.quantile(0.5)));
        report.add(format!("ms an awaited step {of}"), rounded(awaited_ms.quantile(0.5)));
        report.add(format!("prompt tokens per second {of}"), rounded(prefill_tokens_per_second));
    }
    Ok(())
}
