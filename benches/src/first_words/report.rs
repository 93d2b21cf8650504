//! A line of the table, and the same as JSON.

use serde_json::{Value, json};
use walla_benches::game::Values;

use super::scenes::Row;

/// Header of the table.
pub const HEADER: &str = "\
| budget, ms | scene | asks | first token p50 / p99 / longest, ms | last of a round, ms | prompt tokens evaluated, \
mean | slowest: waiting + encoding + prefill + decode, ms | device time p50 / p99, ms | frames over | frame work p99, \
ms (added) |
|---|---|---|---|---|---|---|---|---|---|";

pub fn line(budget: &str, row: &Row, alone: &Values) -> String {
    let parts = row.slowest.first_token;
    let [waiting, encoding, prefill, decode] =
        [parts.waiting_micros, parts.encoding_micros, parts.prefill_micros, parts.decode_micros]
            .map(|micros| micros as f64 / 1e3);
    let added = row.work.percentile(99.0) - alone.percentile(99.0);
    let late = if !row.late.is_empty() {
        format!(" speech late by {:.0} ms at most", row.late.max())
    } else {
        String::new()
    };
    format!(
        "| {budget} | {} | {} | {:.1} / {:.1} / {:.1} | {:.0} | {:.0} | {waiting:.1} + {encoding:.1} + {prefill:.1} + \
         {decode:.1} | {:.2} / {:.2} | {} of {} | {:.2} ({added:+.2}) |{late}",
        row.scene,
        row.first_token.len(),
        row.first_token.percentile(50.0),
        row.first_token.percentile(99.0),
        row.first_token.max(),
        row.last.max(),
        row.evaluated.mean(),
        row.device.percentile(50.0),
        row.device.percentile(99.0),
        row.frames.1,
        row.frames.0,
        row.work.percentile(99.0),
    )
}

pub fn json(budget: &str, row: &Row, alone: &Values) -> Value {
    let parts = row.slowest.first_token;
    json!({
        "budget_ms": budget,
        "scene": row.scene,
        "asks": row.first_token.len(),
        "first_token_ms": {
            "p50": row.first_token.percentile(50.0),
            "p99": row.first_token.percentile(99.0),
            "max": row.first_token.max(),
        },
        "last_of_a_round_ms": row.last.max(),
        "prompt_tokens_evaluated": { "mean": row.evaluated.mean(), "max": row.evaluated.max() },
        "slowest_micros": {
            "waiting": parts.waiting_micros, "encoding": parts.encoding_micros,
            "prefill": parts.prefill_micros, "decode": parts.decode_micros,
        },
        "device_ms": { "p50": row.device.percentile(50.0), "p99": row.device.percentile(99.0), "max": row.device.max() },
        "frames": row.frames.0,
        "frames_over": row.frames.1,
        "frame_work_ms": { "p50": row.work.percentile(50.0), "p99": row.work.percentile(99.0) },
        "frame_work_ms_alone": { "p50": alone.percentile(50.0), "p99": alone.percentile(99.0) },
        "frame_work_ms_p99_added": row.work.percentile(99.0) - alone.percentile(99.0),
        "speech_late_ms": {
            "tokens": row.late.len(), "max": row.late.max(), "over_a_frame": row.late.above(17.0),
        },
    })
}
