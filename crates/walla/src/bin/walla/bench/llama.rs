//! Comparison with llama.cpp, if installed: its `llama-batched-bench` on the same file and device.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use walla_device::{DeviceInfo, DeviceKind};

use crate::Failure;
use crate::args::{Bench, Kv};

/// llama.cpp's result for one number of agents.
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
    let mut command = Command::new(program);
    command.arg("-m").arg(&arguments.model);
    command.args(options(arguments, context, device));
    if device.kind == DeviceKind::Cpu {
        // A GPU build would still run prompts on a GPU.
        command.env("CUDA_VISIBLE_DEVICES", "");
    }
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let complained = String::from_utf8_lossy(&output.stderr);
        let last = complained.lines().last().unwrap_or_default();
        return Err(format!("{}: {}: {last}", program.display(), output.status).into());
    }
    Ok(parse(&said))
}

/// Options for the same work on the same device, followed by the caller's own.
fn options(arguments: &Bench, context: u32, device: &DeviceInfo) -> Vec<String> {
    let max_agents = arguments.agents.iter().max().copied().unwrap_or(1);
    let cells = max_agents * (context + arguments.tokens) + 64;
    let agents: Vec<_> = arguments.agents.iter().map(u32::to_string).collect();
    let cache = match arguments.kv {
        Kv::F16 => "f16",
        Kv::F32 => "f32",
        Kv::Q8 => "q8_0",
    };
    let mut options = vec![
        ("-c", cells.to_string()),
        ("-npp", context.to_string()),
        ("-ntg", arguments.tokens.to_string()),
        ("-npl", agents.join(",")),
        ("-ctk", cache.to_owned()),
        ("-ctv", cache.to_owned()),
        ("--output-format", "jsonl".to_owned()),
    ];
    match device.kind {
        DeviceKind::Cpu => {
            let threads = device.threads.to_string();
            options.extend([("-ngl", "0".into()), ("-t", threads.clone()), ("-tb", threads)]);
        }
        // All layers, and only on this GPU: by default it uses all GPUs.
        DeviceKind::Cuda | DeviceKind::Vulkan => {
            let place = device.name.rsplit(':').next().unwrap_or_default().to_owned();
            options.extend([("-ngl", "999".into()), ("-sm", "none".into()), ("-mg", place)]);
        }
    }
    let ours = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    ours.chain(arguments.llama_args.split_whitespace().map(str::to_owned)).collect()
}

/// Each line of JSON is a row; other lines are ignored.
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
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Verb};

    /// The options that it gets for a command line of `walla bench`.
    fn told(line: &str, kind: DeviceKind, name: &str) -> String {
        let line =
            ["walla", "bench", "m.gguf", "--llama", "peer"].into_iter().chain(line.split(' '));
        let Verb::Bench(bench) = Arguments::try_parse_from(line).unwrap().verb else { panic!() };
        let device = DeviceInfo {
            name: name.into(),
            kind,
            description: String::new(),
            variant: String::new(),
            threads: 3,
            memory_total_bytes: None,
            memory_free_bytes: None,
            gpu: None,
            facts: Vec::new(),
        };
        options(&bench, 128, &device).join(" ")
    }

    #[test]
    fn arguments_request_the_same_work_and_device() {
        let line = "--agents 1,4 --tokens 8 --kv q8";
        let on_cpu = told(line, DeviceKind::Cpu, "cpu");
        assert_eq!(
            on_cpu,
            "-c 608 -npp 128 -ntg 8 -npl 1,4 -ctk q8_0 -ctv q8_0 --output-format jsonl -ngl 0 -t 3 -tb 3"
        );
        let on_gpu = told("--agents 1 --llama-args=-fa", DeviceKind::Cuda, "cuda:1");
        assert!(on_gpu.ends_with("-ngl 999 -sm none -mg 1 -fa"), "{on_gpu}");
        assert!(on_gpu.contains("-ctk f16 -ctv f16"), "{on_gpu}");
        assert!(told("--kv f32", DeviceKind::Cpu, "cpu").contains("-ctk f32 -ctv f32"));
    }

    #[test]
    fn result_rows_are_parsed_and_log_lines_ignored() {
        let said = "main: n_kv_max = 4096\n\
            {\"pp\": 128, \"tg\": 64, \"pl\": 4, \"t_pp\": 0.5, \"speed_pp\": 1024.0, \"t_tg\": 0.128, \"speed_tg\": 2000.0}\n\
            {\"pp\": 128}\n";
        let expected = Theirs { agents: 4, step_ms: 2.0, prefill_tokens_per_second: 1024.0 };
        assert_eq!(parse(said), [expected]);
    }
}
