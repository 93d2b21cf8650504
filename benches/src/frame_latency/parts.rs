//! Parts of a long run, written by `--part` and read by `--merge`, so that runs that are cut by a
//! time limit give one result.
//!
//! `part.json` contains every frame (in nanoseconds) and every count of the finished cells, and the
//! machine's facts. Merging adds the frames of equal cells, like rounds of one run, and measures
//! nothing.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use bevy_walla::diagnostics::{BudgetStats, EngineStats};
use serde_json::{Value, json};
use walla_benches::machine::Power;
use walla_benches::output;

use crate::args::Mode;
use crate::cell::Cell;
use crate::event::Met;
use crate::fields::{Found, count, list, number, pairs, text, time};
use crate::first_token::Asks;
use crate::measure::Times;
use crate::run::{Bucket, Frame, Outcome};
use crate::voices::Heard;

/// File name in the folder of a part.
pub const FILE: &str = "part.json";

/// Data of a part besides its cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub machine: Value,
    pub model: String,
    pub voice_rate: f32,
}

pub fn write(folder: &Path, facts: &Facts, outcomes: &[Outcome]) -> std::io::Result<()> {
    let part = json!({
        "machine": facts.machine,
        "model": facts.model,
        "voice_rate": facts.voice_rate,
        "cells": outcomes.iter().map(outcome_json).collect::<Vec<_>>(),
    });
    output::replace(&folder.join(FILE), format!("{part}\n"))
}

/// Reads parts and adds equal cells, in the order of the folders.
///
/// # Errors
/// A folder without a valid part, or a part with another machine, commit, model or voice rate.
pub fn read(folders: &[impl AsRef<Path>]) -> Found<(Facts, Vec<Outcome>)> {
    let mut all: Option<Facts> = None;
    let mut outcomes = Vec::new();
    let mut machines = Vec::new();
    for folder in folders {
        let path = folder.as_ref().join(FILE);
        let named = |error: Box<dyn Error>| format!("{}: {error}", path.display());
        let (facts, cells) = read_one(&path).map_err(named)?;
        if let Some(first) = &all {
            same(first, &facts).map_err(|error| named(error.into()))?;
        }
        machines.push(facts.machine.clone());
        all.get_or_insert(facts);
        cells.into_iter().for_each(|outcome| Outcome::collect(&mut outcomes, outcome));
    }
    let mut facts = all.ok_or("no folder was named")?;
    facts.machine["parts"] = Value::Array(machines);
    Ok((facts, outcomes))
}

fn read_one(path: &Path) -> Found<(Facts, Vec<Outcome>)> {
    let part: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let facts = Facts {
        machine: part["machine"].clone(),
        model: text(&part["model"])?.to_owned(),
        voice_rate: number(&part["voice_rate"])? as f32,
    };
    let cells = list(&part["cells"])?.iter().map(outcome_of).collect::<Found<_>>()?;
    Ok((facts, cells))
}

fn same(first: &Facts, other: &Facts) -> Result<(), String> {
    for fact in ["processor", "cores", "gpu", "commit"] {
        let (a, b) = (&first.machine[fact], &other.machine[fact]);
        if a != b {
            return Err(format!("its {fact} is {b}, the first part's is {a}"));
        }
    }
    if (&first.model, first.voice_rate) != (&other.model, other.voice_rate) {
        return Err("another model or voice rate than the first part's".to_owned());
    }
    Ok(())
}

fn outcome_json(outcome: &Outcome) -> Value {
    let Outcome { cell, frames, heard, elapsed, power, met, buckets, .. } = outcome;
    let column = |part: fn(&Frame) -> Duration| {
        frames.iter().map(|frame| nanos(part(frame))).collect::<Vec<u64>>()
    };
    json!({
        "mode": cell.mode.name(),
        "device": cell.device,
        "rate_hz": cell.rate,
        "agents": cell.agents,
        "budget_nanos": nanos(cell.budget),
        "load_nanos": nanos(cell.load),
        "interval": column(|frame| frame.interval),
        "work": column(|frame| frame.work),
        "work_p99": outcome.work_p99.iter().copied().map(nanos).collect::<Vec<_>>(),
        "side": column(|frame| frame.side),
        "device_time": column(|frame| frame.device),
        "elapsed_nanos": nanos(*elapsed),
        "tokens": heard.tokens,
        "tokens_late": heard.tokens_late,
        "replies": heard.replies,
        "replies_failed": heard.replies_failed,
        "error": heard.error,
        "first_token": heard.first_token.counts(),
        "asks": heard.asks.to_json(),
        "gaps": heard.gaps.to_vec(),
        "engine": outcome.stats.last().map(|(_, last)| engine_json(outcome, last)),
        "buckets": buckets.iter().map(|bucket| bucket.to_json()).collect::<Vec<_>>(),
        "power": power.to_json(),
        "prefill_event": met.as_ref().map(Met::to_json),
    })
}

fn engine_json(outcome: &Outcome, last: &EngineStats) -> Value {
    json!({
        "steps_done": outcome.counted(|stats| stats.steps_done),
        "tokens": outcome.counted(|stats| stats.tokens),
        "prefill_tokens": outcome.counted(|stats| stats.prefill_tokens),
        "background_tokens": outcome.counted(|stats| stats.background_tokens),
        "frames": outcome.counted(|stats| stats.budget.frames),
        "frames_over": outcome.counted(|stats| stats.budget.frames_over),
        "frames_overdrawn": outcome.counted(|stats| stats.budget.frames_overdrawn),
        "frames_skipped": outcome.counted(|stats| stats.budget.frames_skipped),
        "error_p50": last.budget.error_p50,
        "error_p90": last.budget.error_p90,
        "error_p99": last.budget.error_p99,
    })
}

fn outcome_of(part: &Value) -> Found<Outcome> {
    let cell = Cell {
        mode: Mode::named(text(&part["mode"])?).ok_or("an unknown mode")?,
        device: text(&part["device"])?.to_owned(),
        rate: count(&part["rate_hz"])? as u32,
        agents: count(&part["agents"])? as usize,
        budget: time(&part["budget_nanos"])?,
        load: time(&part["load_nanos"])?,
    };
    let column = |name: &str| list(&part[name])?.iter().map(time).collect::<Found<Vec<_>>>();
    let (interval, work) = (column("interval")?, column("work")?);
    let (side, device) = (column("side")?, column("device_time")?);
    if [work.len(), side.len(), device.len()] != [interval.len(); 3] {
        return Err("columns of different lengths".into());
    }
    let frame =
        |i: usize| Frame { interval: interval[i], work: work[i], side: side[i], device: device[i] };
    let mut heard = Heard {
        tokens: count(&part["tokens"])?,
        tokens_late: count(&part["tokens_late"])?,
        replies: count(&part["replies"])?,
        replies_failed: count(&part["replies_failed"])?,
        error: part["error"].as_str().map(str::to_owned),
        first_token: Times::from_counts(&pairs(&part["first_token"])?),
        asks: Asks::of(&part["asks"])?,
        ..Heard::default()
    };
    for (gap, value) in heard.gaps.iter_mut().zip(list(&part["gaps"])?) {
        *gap = count(value)?;
    }
    let engine = &part["engine"];
    let stats = if engine.is_null() {
        Vec::new()
    } else {
        vec![(EngineStats::default(), stats_of(engine)?)]
    };
    let met = &part["prefill_event"];
    Ok(Outcome {
        cell,
        frames: (0..interval.len()).map(frame).collect(),
        work_p99: column("work_p99")?,
        heard,
        elapsed: time(&part["elapsed_nanos"])?,
        stats,
        buckets: list(&part["buckets"])?.iter().filter_map(Bucket::of).collect(),
        power: Power::of(&part["power"]),
        met: (!met.is_null()).then(|| Met::of(met)).transpose()?,
    })
}

fn stats_of(engine: &Value) -> Found<EngineStats> {
    let budget = BudgetStats {
        frames: count(&engine["frames"])?,
        frames_over: count(&engine["frames_over"])?,
        frames_overdrawn: count(&engine["frames_overdrawn"])?,
        frames_skipped: count(&engine["frames_skipped"])?,
        error_p50: number(&engine["error_p50"])? as f32,
        error_p90: number(&engine["error_p90"])? as f32,
        error_p99: number(&engine["error_p99"])? as f32,
        ..BudgetStats::default()
    };
    Ok(EngineStats {
        steps_done: count(&engine["steps_done"])?,
        tokens: count(&engine["tokens"])?,
        prefill_tokens: count(&engine["prefill_tokens"])?,
        background_tokens: count(&engine["background_tokens"])?,
        budget,
        ..EngineStats::default()
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
