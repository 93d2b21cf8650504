//! The peer, if it is installed: its `llama-batched-bench` on the same file and device.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use walla_device::{DeviceInfo, DeviceKind};

use crate::Failure;
use crate::args::Bench;

/// Its numbers for one number of agents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Theirs {
    pub agents: u32,
    pub step_ms: f64,
    pub prefill_tokens_per_second: f64,
}

pub fn run(
    program: &Path,
    arguments: &Bench,
    context: u32,
    device: &DeviceInfo,
) -> Result<Vec<Theirs>, Failure> {
    let agents_max = arguments.agents.iter().max().copied().unwrap_or(1);
    let cells = agents_max * (context + arguments.tokens) + 64;
    let agents: Vec<_> = arguments.agents.iter().map(u32::to_string).collect();
    let mut command = Command::new(program);
    command
        .arg("-m")
        .arg(&arguments.model)
        .args(["-c", &cells.to_string()])
        .args(["-npp", &context.to_string()])
        .args(["-ntg", &arguments.tokens.to_string()])
        .args(["-npl", &agents.join(",")])
        .args(["--output-format", "jsonl"]);
    match device.kind {
        DeviceKind::Cpu => {
            let threads = device.threads.to_string();
            command.args(["-ngl", "0", "-t", &threads, "-tb", &threads]);
        }
        // All layers on the GPU.
        DeviceKind::Cuda => {
            command.args(["-ngl", "999"]);
        }
    }
    command.args(arguments.llama_args.split_whitespace());
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let complained = String::from_utf8_lossy(&output.stderr);
        let last = complained.lines().last().unwrap_or_default();
        return Err(format!("{}: {}: {last}", program.display(), output.status).into());
    }
    Ok(parse(&said))
}

/// One row of numbers a line; other lines are talk.
fn parse(said: &str) -> Vec<Theirs> {
    let rows = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let theirs = rows.filter_map(|row| {
        let steps = row["tg"].as_f64().filter(|steps| *steps > 0.0)?;
        Some(Theirs {
            agents: u32::try_from(row["pl"].as_u64()?).ok()?,
            step_ms: row["t_tg"].as_f64()? * 1e3 / steps,
            prefill_tokens_per_second: row["speed_pp"].as_f64()?,
        })
    });
    theirs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_talk_is_not() {
        let said = "main: n_kv_max = 4096\n\
            {\"pp\": 128, \"tg\": 64, \"pl\": 4, \"t_pp\": 0.5, \"speed_pp\": 1024.0, \"t_tg\": 0.128, \"speed_tg\": 2000.0}\n\
            {\"pp\": 128}\n";
        let expected = Theirs { agents: 4, step_ms: 2.0, prefill_tokens_per_second: 1024.0 };
        assert_eq!(parse(said), [expected]);
    }
}
