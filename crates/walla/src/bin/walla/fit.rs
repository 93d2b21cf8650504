//! `walla fit`: whether models fit this machine, with numbers measured on it.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use walla_device::{Device, DeviceError, DeviceInfo, DeviceKind, MemoryUse};
use walla_exec::{ExecError, ExecOptions, Executor, Lockstep, cache_needs};
use walla_model::{Gguf, ModelSpec};
use walla_plan::{CacheLimit, CacheNeeds, CacheSize, defaults};
use walla_types::{Sampling, SeqId};

use crate::Failure;
use crate::args::Fit;
use crate::bench::measure::{self, Run};
use crate::load;

/// Numbers of agents that are measured, up to the given one.
const AGENTS: [u32; 3] = [1, 8, 64];
/// A short run: its steps take as long as longer ones, apart from attention.
const RUN: Run = Run { context: 32, tokens: 8, prefill_rows: 64 };
/// Numbers of agents are not measured if this would take longer.
const MAX_SECONDS: f64 = 30.0;
/// Frames per second of the verdict.
const FRAMES: f64 = 60.0;
/// Tokens per second of an unhurried voice.
const VOICE: f64 = 8.0;

pub fn run(arguments: &Fit) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let mut reports = Vec::new();
    for path in &arguments.models {
        let report = of_model(arguments, path)?;
        if arguments.json {
            reports.push(report.to_json());
        } else {
            report.print(&mut out)?;
        }
    }
    if arguments.json {
        writeln!(out, "{:#}", Value::Array(reports))?;
    } else if arguments.device.device == "auto" {
        let devices = walla_runtime::default_registry().devices();
        let names: Vec<_> = devices.into_iter().map(|(info, _)| info.name).collect();
        writeln!(out, "devices of this machine (--device NAME): {}", names.join(", "))?;
    }
    Ok(())
}

/// One model on this machine.
struct Report {
    model: String,
    architecture: String,
    file_bytes: u64,
    needs: CacheNeeds,
    size: CacheSize,
    result: Result<Fitting, String>,
}

/// A model that fits.
struct Fitting {
    device: DeviceInfo,
    memory: MemoryUse,
    budget_ms: f64,
    measured: Measured,
}

/// Steps of some numbers of agents.
#[derive(Default)]
struct Measured {
    steps: Vec<Step>,
    /// Numbers of agents that take too long, and the seconds that their measurement would take.
    left: Vec<(u32, f64)>,
}

/// Steps of some agents.
struct Step {
    agents: u32,
    ms: f64,
}

fn of_model(arguments: &Fit, path: &Path) -> Result<Report, Failure> {
    let file = load::open_quietly(path)?;
    let model = ModelSpec::from_gguf(&file, arguments.context)
        .map_err(|error| load::named(path, &error))?;
    let device = load::open_device(&arguments.device)?;
    let needs = cache_needs(&model, arguments.kv.into(), arguments.context);
    let size = match arguments.agents {
        Some(agents) => CacheSize::whole(agents, arguments.context, CacheLimit::Options),
        None => default_size(device.info(), needs, file.file_bytes()),
    };
    let options = ExecOptions {
        context_tokens: arguments.context,
        max_rows: size.agents.clamp(RUN.prefill_rows, 512),
        max_outputs: size.agents.min(512),
        max_logits_rows: 0,
        kv_type: arguments.kv.into(),
        ..ExecOptions::default()
    };
    let result =
        match fitting(arguments, path, (&file, &model), (device, options.with_cache(size)))? {
            Ok(fitting) => Ok(fitting),
            Err(refusal) => Err(refusal.to_string()),
        };
    Ok(Report {
        model: path.display().to_string(),
        architecture: model.architecture.to_string(),
        file_bytes: file.file_bytes(),
        needs,
        size,
        result,
    })
}

/// The size that an engine chooses.
fn default_size(device: &DeviceInfo, needs: CacheNeeds, file_bytes: u64) -> CacheSize {
    let is_cpu = device.kind == DeviceKind::Cpu;
    CacheSize::of_device(needs, is_cpu, device.memory_free_bytes, file_bytes)
}

/// Loads the model and measures its steps, or returns why the device refuses it.
fn fitting(
    arguments: &Fit,
    path: &Path,
    (file, model): (&Gguf, &ModelSpec),
    (device, options): (Box<dyn Device>, ExecOptions),
) -> Result<Result<Fitting, DeviceError>, Failure> {
    let executor = match load::try_executor(file, model, device, options) {
        Ok(executor) => executor,
        Err(ExecError::Device(refusal)) if !refusal.is_lost() => return Ok(Err(refusal)),
        Err(error) => return Err(load::named(path, &error)),
    };
    let device = executor.device().info().clone();
    let memory = executor.device().memory();
    let budget = arguments.budget.map(|budget| budget.as_secs_f64() * 1e3);
    let budget_ms = budget.unwrap_or_else(|| default_budget_ms(&device));
    let measured = measured(executor, options.max_sequences, model)?;
    Ok(Ok(Fitting { device, memory, budget_ms, measured }))
}

fn measured(executor: Executor, max_agents: u32, model: &ModelSpec) -> Result<Measured, Failure> {
    let mut lockstep = Lockstep::new(executor, Vec::new(), Sampling::greedy())?;
    let counts = AGENTS.into_iter().filter(|&agents| agents < max_agents).chain([max_agents]);
    let (mut all, mut last) = (Measured::default(), None);
    for agents in counts {
        let seconds = expected_seconds(last, agents);
        if seconds > MAX_SECONDS {
            all.left.push((agents, seconds));
            continue;
        }
        let begin = Instant::now();
        let active = (0..agents).map(SeqId).collect();
        let its = measure::measure(&mut lockstep, active, RUN, model)?;
        all.steps.push(Step { agents, ms: its.step_ms.quantile(0.5) });
        last = Some((agents, begin.elapsed().as_secs_f64()));
    }
    Ok(all)
}

impl Measured {
    fn left_agents(&self) -> Vec<u32> {
        self.left.iter().map(|(agents, _)| *agents).collect()
    }
}

/// The seconds of a measurement, from a number of agents that was measured and its seconds.
fn expected_seconds(measured: Option<(u32, f64)>, agents: u32) -> f64 {
    measured.map_or(0.0, |(its, seconds)| seconds * f64::from(agents) / f64::from(its))
}

fn default_budget_ms(device: &DeviceInfo) -> f64 {
    let micros = match device.kind {
        DeviceKind::Cpu => defaults::CPU_BUDGET_MICROS,
        DeviceKind::Cuda | DeviceKind::Vulkan => defaults::BUDGET_MICROS,
    };
    f64::from(micros) / 1e3
}

impl Step {
    /// Steps per second that a budget allows at 60 frames per second: a longer step takes the
    /// budget of several frames.
    fn per_second(&self, budget_ms: f64) -> f64 {
        FRAMES * (budget_ms / self.ms.max(1e-6)).min(1.0)
    }

    fn verdict(&self, budget_ms: f64) -> String {
        let rate = self.per_second(budget_ms);
        if self.ms <= budget_ms {
            return "a step in every frame".to_owned();
        }
        let frames = (self.ms / budget_ms).ceil();
        if rate >= VOICE {
            format!("a step takes the budget of {frames} frames")
        } else {
            format!("too slow to speak: a step takes the budget of {frames} frames")
        }
    }
}

fn mb(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

impl Report {
    fn print(&self, out: &mut impl Write) -> Result<(), Failure> {
        let (CacheSize { agents, kv_tokens, limit }, needs) = (self.size, self.needs);
        let context = needs.context_tokens;
        writeln!(
            out,
            "{}: {}, {} in the file",
            self.model,
            self.architecture,
            mb(self.file_bytes)
        )?;
        let CacheNeeds { kv_bytes_per_token, state_bytes_per_agent, .. } = needs;
        writeln!(
            out,
            "  {kv_bytes_per_token} B a token and {state_bytes_per_agent} B of state an agent: {} for \
             {agents} agents of {context} tokens that share {kv_tokens}: {limit}",
            mb(kv_bytes_per_token * u64::from(kv_tokens)
                + state_bytes_per_agent * u64::from(agents)),
        )?;
        let fitting = match &self.result {
            Ok(fitting) => fitting,
            Err(refusal) => {
                writeln!(out, "  does not fit: {refusal}\n")?;
                return Ok(());
            }
        };
        let Fitting { device, memory, budget_ms, measured: Measured { steps, left } } = fitting;
        let total = memory.weight_bytes + memory.cache_bytes + memory.workspace_bytes;
        let free = device.memory_free_bytes.map(|bytes| format!(" of {} free", mb(bytes)));
        writeln!(
            out,
            "  {}: {}{} (weights {}, cache {}, workspace {}){}",
            device.name,
            mb(total),
            free.unwrap_or_default(),
            mb(memory.weight_bytes),
            mb(memory.cache_bytes),
            mb(memory.workspace_bytes),
            match memory.host_table_bytes {
                0 => String::new(),
                bytes => format!(", and {} of the host's memory for embeddings", mb(bytes)),
            },
        )?;
        writeln!(
            out,
            "  agents   ms a step   tokens/s each   with {budget_ms:.2} ms a frame at 60 fps"
        )?;
        for step in steps {
            let rate = step.per_second(*budget_ms);
            writeln!(
                out,
                "  {:6} {:11.2} {:15.1}   {}",
                step.agents,
                step.ms,
                rate,
                step.verdict(*budget_ms)
            )?;
        }
        for (agents, seconds) in left {
            writeln!(
                out,
                "  {agents:6} agents: not measured, this would take about {seconds:.0} s"
            )?;
        }
        writeln!(out)?;
        Ok(())
    }

    fn to_json(&self) -> Value {
        let mut report = json!({
            "model": self.model,
            "architecture": self.architecture,
            "file_bytes": self.file_bytes,
            "agents": self.size.agents,
            "context_tokens": self.needs.context_tokens,
            "kv_tokens": self.size.kv_tokens,
            "size_of_cache": self.size.limit.to_string(),
            "kv_bytes_per_token": self.needs.kv_bytes_per_token,
            "state_bytes_per_agent": self.needs.state_bytes_per_agent,
            "fits": self.result.is_ok(),
        });
        let more = match &self.result {
            Err(refusal) => json!({"reason": refusal}),
            Ok(fitting) => json!({
                "device": fitting.device.name,
                "memory_free_bytes": fitting.device.memory_free_bytes,
                "weight_bytes": fitting.memory.weight_bytes,
                "cache_bytes": fitting.memory.cache_bytes,
                "workspace_bytes": fitting.memory.workspace_bytes,
                "host_table_bytes": fitting.memory.host_table_bytes,
                "budget_ms": fitting.budget_ms,
                "steps": fitting.measured.steps.iter().map(|step| json!({
                    "agents": step.agents,
                    "step_ms": step.ms,
                    "tokens_per_second_each": step.per_second(fitting.budget_ms),
                    "fits_a_frame": step.ms <= fitting.budget_ms,
                })).collect::<Vec<_>>(),
                "agents_not_measured": fitting.measured.left_agents(),
            }),
        };
        if let (Value::Object(report), Value::Object(more)) = (&mut report, more) {
            report.extend(more);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_proportional_to_the_agents() {
        assert_eq!(expected_seconds(None, 4000), 0.0);
        assert_eq!(expected_seconds(Some((64, 2.0)), 4000), 125.0);
    }

    #[test]
    fn a_long_step_takes_the_budget_of_several_frames() {
        let step = |ms| Step { agents: 8, ms };
        assert_eq!(step(4.0).per_second(8.0), 60.0);
        assert_eq!(step(4.0).verdict(8.0), "a step in every frame");
        assert_eq!(step(24.0).per_second(8.0), 20.0);
        assert_eq!(step(24.0).verdict(8.0), "a step takes the budget of 3 frames");
        assert_eq!(
            step(80.0).verdict(8.0),
            "too slow to speak: a step takes the budget of 10 frames"
        );
    }
}
