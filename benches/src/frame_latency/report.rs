//! Results as files: `summary.json`, `table.md`, a `.hgrm` for each distribution.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use walla_benches::output;

use crate::args::{Arguments, Mode};
use crate::cell::Cell;
use crate::event::Met;
use crate::measure::{Times, rounded};
use crate::parts::Facts;
use crate::run::{Frame, Outcome};
use crate::voices::Heard;

/// All results.
pub struct Results<'a> {
    pub arguments: &'a Arguments,
    pub facts: &'a Facts,
    pub outcomes: &'a [Outcome],
}

/// Statistics of a cell.
pub struct Summary {
    pub interval: Times,
    pub work: Times,
    pub side: Times,
    pub device: Times,
    /// Frames that began more than 1.5 periods after the previous one.
    pub stutters: usize,
    /// Fraction of frames with device time over the budget: by arrival of results, and as accounted
    /// by the engine.
    pub over_budget: f64,
    pub over_budget_engine: Option<f64>,
    pub tokens_per_second: f64,
    pub late_share: f64,
}

impl Summary {
    pub fn of(outcome: &Outcome) -> Self {
        let Outcome { cell, frames, heard, elapsed, .. } = outcome;
        let share = |count: usize| count as f64 / frames.len().max(1) as f64;
        let late = |frame: &&Frame| frame.interval > cell.period() * 3 / 2;
        let over = |frame: &&Frame| frame.device > cell.budget;
        let engine = cell.mode.is_governed().then(|| {
            let frames = outcome.counted(|stats| stats.budget.frames);
            outcome.counted(|stats| stats.budget.frames_over) as f64 / frames.max(1) as f64
        });
        Self {
            interval: outcome.times(|frame| frame.interval),
            work: outcome.times(|frame| frame.work),
            side: outcome.times(|frame| frame.side),
            device: outcome.times(|frame| frame.device),
            stutters: frames.iter().filter(late).count(),
            over_budget: share(frames.iter().filter(over).count()),
            over_budget_engine: engine,
            tokens_per_second: heard.tokens as f64 / elapsed.as_secs_f64().max(1e-9),
            late_share: heard.tokens_late as f64 / heard.tokens.max(1) as f64,
        }
    }
}

/// Whether the device time is known: llama.cpp does not report it.
pub fn has_device_time(cell: &Cell) -> bool {
    !matches!(cell.mode, Mode::Off | Mode::Llama)
}

impl Results<'_> {
    /// The game alone at the same rate.
    pub fn alone(&self, cell: &Cell) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| {
            let other = &outcome.cell;
            other.mode == Mode::Off && other.rate == cell.rate && other.device == cell.device
        })
    }

    /// Writes all files except the plots.
    pub fn write(&self) -> io::Result<()> {
        let out = &self.arguments.out;
        let cells: Vec<Value> = self.outcomes.iter().map(|outcome| self.to_json(outcome)).collect();
        let Facts { machine, model, .. } = self.facts;
        let summary = json!({ "machine": machine, "model": model, "cells": cells });
        output::replace(&out.join("summary.json"), format!("{summary:#}\n"))?;
        output::replace(&out.join("table.md"), self.table() + &self.notes())?;
        for outcome in self.outcomes {
            let summary = Summary::of(outcome);
            let write = |what: &str, times: &Times| {
                let name = format!("{}.{what}.hgrm", outcome.cell.slug());
                output::replace(&out.join(name), times.to_hgrm())
            };
            write("work", &summary.work)?;
            write("interval", &summary.interval)?;
            if has_device_time(&outcome.cell) {
                write("device", &summary.device)?;
            }
        }
        Ok(())
    }

    /// Sorted differences of the p99 of the frames' work to the game alone in the same round, in
    /// milliseconds. Background load that lasts longer than a round is in both values.
    fn more_by_round(&self, outcome: &Outcome) -> Vec<f64> {
        let alone = self.alone(&outcome.cell).filter(|_| outcome.cell.mode != Mode::Off);
        let alone = alone.map(|alone| alone.work_p99.as_slice()).unwrap_or_default();
        let millis = |time: &Duration| time.as_secs_f64() * 1e3;
        let pairs = outcome.work_p99.iter().zip(alone);
        let mut more: Vec<f64> = pairs.map(|(its, alone)| millis(its) - millis(alone)).collect();
        more.sort_by(f64::total_cmp);
        more
    }

    fn to_json(&self, outcome: &Outcome) -> Value {
        let (cell, summary) = (&outcome.cell, Summary::of(outcome));
        let millis = |time: Duration| rounded(time.as_secs_f64() * 1e3);
        let alone = self.alone(cell).map(Summary::of);
        let more = |share: f64| {
            let alone = alone.as_ref()?;
            Some(rounded(summary.work.millis(share) - alone.work.millis(share)))
        };
        let device = has_device_time(cell).then(|| {
            json!({
                "per_frame_ms": summary.device.to_json(),
                "budget_ms": millis(cell.budget),
                "over_budget_share": rounded(summary.over_budget),
                "over_budget_share_as_booked": summary.over_budget_engine.map(rounded),
            })
        });
        json!({
            "mode": cell.mode.name(),
            "device": cell.device,
            "rate_hz": cell.rate,
            "agents": cell.agents,
            "frames": outcome.frames.len(),
            "host_load_ms": millis(cell.load),
            "frame_work_ms": summary.work.to_json(),
            "frame_work_more_than_alone_ms": {
                "p50": more(0.5),
                "p99": more(0.99),
                "p99_of_each_round": self.more_by_round(outcome).into_iter().map(rounded).collect::<Vec<_>>(),
            },
            "frame_interval_ms": summary.interval.to_json(),
            "stutters": summary.stutters,
            "frame_side_ms": summary.side.to_json(),
            "device_time": device,
            "tokens": outcome.heard.tokens,
            "tokens_per_second": rounded(summary.tokens_per_second),
            "deadline_misses_share": rounded(summary.late_share),
            "voice_rate": self.facts.voice_rate,
            "replies": outcome.heard.replies,
            "replies_failed": outcome.heard.replies_failed,
            "first_error": outcome.heard.error,
            "first_token_ms": outcome.heard.first_token.to_json(),
            "first_token_parts": outcome.heard.asks.summary(),
            "engine": engine_json(outcome),
            "power": outcome.power.to_json(),
            "prefill_event": outcome.met.as_ref().map(Met::to_json),
        })
    }

    /// The table as Markdown.
    pub fn table(&self) -> String {
        let mut table = "| mode | device | Hz | agents | frame work p50 / p99 / p99.9 ms | p99 more than alone | stutters | frame side p99 µs | \
             device p50 / p99 ms | budget | frames within | tokens late | tokens/s | first token p50 / p99 / max ms | \
             slowest 1 %: waiting + encoding + prefill + decode + host ms | prompt tokens cached / evaluated, median (max) | background tokens |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        for outcome in self.outcomes {
            let _ = writeln!(table, "{}", self.row(outcome));
        }
        table
    }

    /// Results that do not fit in the table, one per line: frames over the budget, differences by
    /// round, failed replies, power and memory of a GPU, and the effect of a new agent.
    pub fn notes(&self) -> String {
        let mut notes = String::new();
        for outcome in self.outcomes {
            let mut note = |text: &str| {
                let _ = write!(notes, "\n- {}: {text}.", outcome.cell);
            };
            if outcome.cell.mode.is_governed() {
                let over = outcome.counted(|stats| stats.budget.frames_over);
                let frames = outcome.counted(|stats| stats.budget.frames);
                note(&format!("{over} of {frames} frames over their budget"));
            }
            let more = self.more_by_round(outcome);
            if let ([least, .., most], Some(median)) = (&more[..], median(&more)) {
                let rounds = more.len();
                note(&format!(
                    "p99 of a round is {median:+.2} ms more than the game alone's, the median of {rounds} rounds ({least:+.2} to {most:+.2} ms)"
                ));
            }
            let Heard { replies, replies_failed, error, .. } = &outcome.heard;
            if *replies_failed > 0 {
                let reason = error.as_deref().unwrap_or("no reason given");
                note(&format!(
                    "{replies_failed} of {replies} replies failed, the first because: {reason}"
                ));
            }
            if let Some((mean, max)) = outcome.power.watts {
                let mib = outcome.power.memory_mib.unwrap_or(f64::NAN);
                note(&format!("{mean:.0} W, {max:.0} W at most, {mib:.0} MiB of the GPU in use"));
            }
            if let Some(met) = &outcome.met {
                note(&met.to_string());
            }
        }
        if !notes.is_empty() {
            notes.push('\n');
        }
        notes
    }

    fn row(&self, outcome: &Outcome) -> String {
        let (cell, summary) = (&outcome.cell, Summary::of(outcome));
        let work = &summary.work;
        let alone = self.alone(cell).map(Summary::of);
        let more = alone.map(|alone| work.millis(0.99) - alone.work.millis(0.99));
        let is_off = cell.mode == Mode::Off;
        let unless = |nothing: bool, text: String| if nothing { "–".to_owned() } else { text };
        let has_device = has_device_time(cell);
        let within = summary.over_budget_engine.map(|over| 1.0 - over);
        let is_silent = outcome.heard.tokens == 0;
        let Heard { first_token: first, asks, .. } = &outcome.heard;
        let dash = || "–".to_owned();
        let cells = [
            cell.mode.name().to_owned(),
            cell.device.clone(),
            cell.rate.to_string(),
            cell.agents.to_string(),
            format!(
                "{:.2} / {:.2} / {:.2}",
                work.millis(0.5),
                work.millis(0.99),
                work.millis(0.999)
            ),
            more.filter(|_| !is_off).map_or_else(|| "–".into(), |more| format!("{more:+.2} ms")),
            format!("{} of {}", summary.stutters, outcome.frames.len()),
            unless(!has_device, format!("{:.0}", summary.side.micros(0.99))),
            unless(
                !has_device,
                format!("{:.2} / {:.2}", summary.device.millis(0.5), summary.device.millis(0.99)),
            ),
            unless(!cell.mode.is_governed(), format!("{:.2} ms", cell.budget.as_secs_f64() * 1e3)),
            within.map_or_else(|| "–".into(), |within| format!("{:.2} %", within * 100.0)),
            unless(is_silent, format!("{:.2} %", summary.late_share * 100.0)),
            unless(is_off, format!("{:.0}", summary.tokens_per_second)),
            unless(
                is_silent,
                format!(
                    "{:.0} / {:.0} / {:.0}",
                    first.millis(0.5),
                    first.millis(0.99),
                    first.millis(1.0)
                ),
            ),
            asks.slowest().map_or_else(dash, |slowest| {
                slowest.parts_ms.map(|ms| format!("{ms:.0}")).join(" + ")
            }),
            asks.cached_tokens().zip(asks.evaluated_tokens()).map_or_else(
                dash,
                |(cached, evaluated)| {
                    format!(
                        "{} ({}) / {} ({})",
                        cached.median, cached.max, evaluated.median, evaluated.max
                    )
                },
            ),
            unless(!has_device, outcome.counted(|stats| stats.background_tokens).to_string()),
        ];
        format!("| {} |", cells.join(" | "))
    }
}

/// The median of sorted numbers: for an even number, the mean of the two in the middle.
fn median(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    let upper = sorted.get(half)?;
    if sorted.len() % 2 == 1 {
        return Some(*upper);
    }
    Some(sorted.get(half.checked_sub(1)?)?.midpoint(*upper))
}

fn engine_json(outcome: &Outcome) -> Option<Value> {
    let (_, last) = outcome.stats.last()?;
    Some(json!({
        "steps": outcome.counted(|stats| stats.steps_done),
        "tokens": outcome.counted(|stats| stats.tokens),
        "prefill_tokens": outcome.counted(|stats| stats.prefill_tokens),
        "background_tokens": outcome.counted(|stats| stats.background_tokens),
        "frames_booked": outcome.counted(|stats| stats.budget.frames),
        "frames_over": outcome.counted(|stats| stats.budget.frames_over),
        "frames_overdrawn": outcome.counted(|stats| stats.budget.frames_overdrawn),
        "frames_skipped": outcome.counted(|stats| stats.budget.frames_skipped),
        "prediction_error_p50": rounded(f64::from(last.budget.error_p50)),
        "prediction_error_p90": rounded(f64::from(last.budget.error_p90)),
        "prediction_error_p99": rounded(f64::from(last.budget.error_p99)),
        "prediction_error_by_bucket": outcome.buckets.iter().map(|bucket| bucket.to_json()).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use bevy_walla::diagnostics::EngineStats;
    use clap::Parser;
    use walla_benches::machine::Power;

    use super::*;
    use crate::first_token::tests::usage;

    #[test]
    fn the_median_of_an_even_count_averages_the_middle_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(median(&[1.0, 2.0, 7.0]), Some(2.0));
        assert_eq!(median(&[0.0, 1.0, 2.0, 9.0]), Some(1.5));
    }

    fn outcome(mode: Mode, agents: usize, heard: Heard, work_p99: &[u64]) -> Outcome {
        let (budget, load) = (Duration::from_millis(4), Duration::from_millis(8));
        Outcome {
            cell: Cell { mode, device: "cpu".into(), rate: 60, agents, budget, load },
            frames: vec![Frame { interval: budget, work: load, side: budget, device: budget }],
            work_p99: work_p99.iter().copied().map(Duration::from_millis).collect(),
            heard,
            elapsed: Duration::from_secs(1),
            stats: Vec::new(),
            buckets: Vec::new(),
            power: Power::default(),
            met: None,
        }
    }

    /// The report of some outcomes: table and notes.
    fn page(outcomes: &[Outcome]) -> String {
        let arguments = Arguments::parse_from(["frame_latency"]);
        let model = "a model".into();
        let facts = Facts { machine: Value::Null, model, voice_rate: 6.0 };
        let results = Results { arguments: &arguments, facts: &facts, outcomes };
        results.table() + &results.notes()
    }

    #[test]
    fn failed_replies_are_reported_and_missing_values_are_dashes() {
        let error = Some("status 400: no slot is free".into());
        let failed = Heard { replies: 5, replies_failed: 5, error, ..Heard::default() };
        let page = page(&[outcome(Mode::Llama, 2, failed, &[9])]);
        assert!(page.contains("| – | 0 of 1 | – | – | – | – | – | 0 | – |"), "{page}");
        let note = "5 of 5 replies failed, the first because: status 400: no slot is free.";
        assert!(page.contains(note), "{page}");
    }

    #[test]
    fn the_slowest_asks_have_their_parts_and_prompts_their_tokens() {
        let mut heard = Heard { tokens: 9, ..Heard::default() };
        for (ms, waiting) in [(20, 0), (320, 300)] {
            heard.first_token.add(Duration::from_millis(ms));
            heard.asks.add(Duration::from_millis(ms), &usage([waiting, 1, 2, 3], 30, 12));
        }
        let mut outcome = outcome(Mode::Walla, 2, heard, &[9]);
        let stats = EngineStats { background_tokens: 340, ..EngineStats::default() };
        outcome.stats = vec![(EngineStats::default(), stats)];
        let page = page(&[outcome]);
        let row = "| 20 / 320 / 320 | 300 + 1 + 2 + 3 + 14 | 30 (30) / 12 (12) | 340 |";
        assert!(page.contains(row), "{page}");
    }

    #[test]
    fn every_row_has_all_columns() {
        let heard = || Heard::default();
        let page = page(&[
            outcome(Mode::Off, 0, heard(), &[9]),
            outcome(Mode::Walla, 2, heard(), &[9]),
            outcome(Mode::Llama, 2, heard(), &[9]),
        ]);
        let columns = |line: &str| line.matches('|').count();
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 5);
        assert!(rows.iter().all(|row| columns(row) == columns(rows[0])), "{page}");
    }

    #[test]
    fn modes_without_a_budget_have_no_budget_adherence() {
        let heard = Heard { tokens: 9, ..Heard::default() };
        let page = page(&[outcome(Mode::Blocking, 2, heard, &[9])]);
        assert!(page.contains("| 4.00 / 4.00 | – | – | 0.00 % | 9 |"), "{page}");
    }

    #[test]
    fn rounds_are_compared_with_the_baseline() {
        let alone = outcome(Mode::Off, 0, Heard::default(), &[10, 10, 10, 10]);
        let walla = outcome(Mode::Walla, 2, Heard::default(), &[10, 19, 12, 11]);
        let page = page(&[alone, walla]);
        let note =
            "is +1.50 ms more than the game alone's, the median of 4 rounds (+0.00 to +9.00 ms)";
        assert!(page.contains(note), "{page}");
    }
}
