//! Output as a table and as JSON.

use std::io::{Result, Write};

use serde_json::{Map, Value, json};
use walla_device::DeviceInfo;

use super::Measured;
use super::llama::Theirs;
use crate::args::Bench;

pub fn heading(
    out: &mut impl Write,
    arguments: &Bench,
    context: u32,
    device: &DeviceInfo,
    (bytes_per_second, load_seconds): (f64, f64),
) -> Result<()> {
    let threads = match device.threads {
        0 => String::new(),
        threads => format!(", {threads} threads"),
    };
    let model = arguments.model.display();
    writeln!(out, "{model}")?;
    writeln!(
        out,
        "{} ({}) {}{threads}, {:.1} GB/s measured read, loaded in {load_seconds:.2} s",
        device.name,
        device.description,
        device.variant,
        bytes_per_second / 1e9
    )?;
    writeln!(
        out,
        "context {context}, read {} tokens a step; {} steps launched ahead, as many awaited",
        arguments.prefill_rows, arguments.tokens
    )?;
    writeln!(
        out,
        "{:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>8} {:>9} {:>7} {:>11} {:>14} {:>9}",
        "agents",
        "p50 ms",
        "mean ms",
        "p10 ms",
        "p90 ms",
        "awaited ms",
        "device ms",
        "gap us",
        "submit us",
        "calls",
        "tokens/s",
        "prefill tok/s",
        "of floor"
    )
}

pub fn row(out: &mut impl Write, agents: u32, measured: &Measured, floor_ms: f64) -> Result<()> {
    let step_ms = measured.step_ms.quantile(0.5);
    writeln!(
        out,
        "{agents:>7} {step_ms:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>10.3} {:>10.3} {:>8.1} {:>9.1} {:>7.1} {:>11.1} {:>14.1} {:>8.0}%",
        measured.step_ms.mean(),
        measured.step_ms.quantile(0.1),
        measured.step_ms.quantile(0.9),
        measured.awaited_ms.quantile(0.5),
        measured.device_ms.quantile(0.5),
        measured.gap_us.quantile(0.5),
        measured.submit_us.quantile(0.5),
        // Without queries: a waiting host polls in a loop, while a game polls once per frame.
        (measured.calls.total() - measured.calls.event_queries - measured.calls.stream_queries)
            as f64
            / f64::from(measured.steps),
        f64::from(agents) / step_ms * 1e3,
        measured.prefill_tokens_per_second,
        100.0 * floor_ms / step_ms,
    )?;
    out.flush()
}

pub fn to_json(agents: u32, context: u32, measured: &Measured, floor_ms: f64) -> Value {
    let step_ms = &measured.step_ms;
    let p50 = step_ms.quantile(0.5);
    let per_step = |(name, count): (&str, u64)| {
        (name.replace(' ', "_"), json!(count as f64 / f64::from(measured.steps)))
    };
    let calls: Map<_, _> =
        measured.calls.named().into_iter().filter(|(_, count)| *count > 0).map(per_step).collect();
    json!({
        "agents": agents,
        "context": context,
        "step_ms_min": step_ms.quantile(0.0),
        "step_ms_p10": step_ms.quantile(0.1),
        "step_ms_p50": p50,
        "step_ms_mean": step_ms.mean(),
        "step_ms_p90": step_ms.quantile(0.9),
        "step_ms_p99": step_ms.quantile(0.99),
        "awaited_ms_p50": measured.awaited_ms.quantile(0.5),
        "device_ms_p50": measured.device_ms.quantile(0.5),
        "gap_us_p50": measured.gap_us.quantile(0.5),
        "gap_us_p90": measured.gap_us.quantile(0.9),
        "submit_us_p50": measured.submit_us.quantile(0.5),
        "submit_us_p90": measured.submit_us.quantile(0.9),
        "calls_per_step": calls,
        "tokens_per_second": f64::from(agents) / p50 * 1e3,
        "prefill_tokens_per_second": measured.prefill_tokens_per_second,
        "floor_ms": floor_ms,
        "share_of_floor": floor_ms / p50,
    })
}

/// Compares both by means, since llama.cpp reports only the total time of its steps.
pub fn beside(out: &mut impl Write, rows: &mut [Value], theirs: &[Theirs]) -> Result<()> {
    writeln!(
        out,
        "{:>7} {:>13} {:>12} {:>7} {:>19} {:>10}",
        "agents", "walla mean ms", "llama.cpp ms", "ratio", "walla prefill tok/s", "llama.cpp"
    )?;
    for row in rows {
        let Some(agents) = row["agents"].as_u64() else { continue };
        let Some(their) = theirs.iter().find(|their| u64::from(their.agents) == agents) else {
            writeln!(out, "{agents:>7} llama.cpp gave no number")?;
            continue;
        };
        let ours = row["step_ms_mean"].as_f64().unwrap_or_default();
        let prefill = row["prefill_tokens_per_second"].as_f64().unwrap_or_default();
        let ratio = their.step_ms / ours;
        writeln!(
            out,
            "{agents:>7} {ours:>13.3} {:>12.3} {ratio:>6.2}x {prefill:>19.0} {:>10.0}",
            their.step_ms, their.prefill_tokens_per_second
        )?;
        row["llama_cpp"] = json!({
            "step_ms": their.step_ms,
            "prefill_tokens_per_second": their.prefill_tokens_per_second,
            "ratio": ratio,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_compared_with_means() {
        let ours = json!({"agents": 4, "step_ms_p50": 1.0, "step_ms_mean": 2.0, "prefill_tokens_per_second": 9.0});
        let theirs = Theirs { agents: 4, step_ms: 2.0, prefill_tokens_per_second: 3.0 };
        let (mut rows, mut out) = ([ours, json!({"agents": 5})], Vec::new());
        beside(&mut out, &mut rows, &[theirs]).unwrap();
        assert_eq!(rows[0]["llama_cpp"]["ratio"], 1.0);
        let said = String::from_utf8(out).unwrap();
        assert!(said.contains("1.00x") && said.contains("5 llama.cpp gave no number"), "{said}");
    }
}
