//! `walla devices`.

mod self_test;

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::ControlFlow;

use serde_json::{Map, Value, json};
use walla::ModelSource;
use walla_device::{Device, DeviceInfo, GpuFacts, GraphFallbacks, LaunchMode, OpenOptions};
use walla_exec::{ExecOptions, Executor};
use walla_model::ModelSpec;

use crate::Failure;
use crate::args::Devices;

pub fn run(arguments: &Devices) -> Result<(), Failure> {
    if arguments.self_test {
        return self_test::run(arguments, demo().as_ref());
    }
    let registry = walla_runtime::default_registry();
    let mut reports = Vec::new();
    for (listed, score) in registry.devices() {
        let gpu_context = arguments.share.gpu_context();
        let open = OpenOptions { gpu_context, ..OpenOptions::default() };
        let opened = arguments.verbose.then(|| registry.open(&listed.name, &open));
        reports.push(match opened {
            Some(Ok(device)) => Report::opened(device, score),
            Some(Err(error)) => {
                Report { failure: Some(error.to_string()), ..Report::new(listed, score) }
            }
            None => Report::new(listed, score),
        });
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let list: Vec<Value> = reports.iter().map(Report::to_json).collect();
        writeln!(out, "{}", Value::Array(list))?;
        return Ok(());
    }
    for report in &reports {
        writeln!(out, "{}", report.to_text(arguments.verbose))?;
    }
    for (name, reason) in registry.absent() {
        writeln!(out, "{name}: none ({reason})")?;
    }
    Ok(())
}

/// Report of one device.
struct Report {
    info: DeviceInfo,
    score: i32,
    /// Driver calls made to open it, by kind, if it was opened.
    calls: Option<Vec<(&'static str, u64)>>,
    /// Its programs, if it was opened and this build has the demo model.
    programs: Option<Programs>,
    /// Why it could not be opened.
    failure: Option<String>,
}

impl Report {
    fn new(info: DeviceInfo, score: i32) -> Self {
        Self { info, score, calls: None, programs: None, failure: None }
    }

    fn opened(device: Box<dyn Device>, score: i32) -> Self {
        let calls = device.counters().named();
        let info = device.info().clone();
        let programs = demo().map(|model| Programs::of(device, &model));
        let (programs, failure) = match programs.transpose() {
            Ok(programs) => (programs, None),
            Err(failure) => (None, Some(failure.to_string())),
        };
        Self { calls: Some(calls.to_vec()), programs, failure, ..Self::new(info, score) }
    }

    fn to_text(&self, is_verbose: bool) -> String {
        let info = &self.info;
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let mut text = format!("{}: {}, kernels {}", info.name, info.description, info.variant);
        if let Some(bytes) = info.memory_total_bytes {
            text += &format!(", {:.1} GiB", gib(bytes));
        }
        if let Some(bytes) = info.memory_free_bytes {
            text += &format!(" ({:.1} free)", gib(bytes));
        }
        text += &format!(", score {}", self.score);
        if info.threads > 0 {
            text += &format!(", {} threads", info.threads);
        }
        if let Some(gpu) = &info.gpu {
            describe(&mut text, gpu);
        }
        for (name, value) in info.facts.iter().filter(|_| is_verbose) {
            let _ = write!(text, "\n  {name}: {value}");
        }
        if let Some(calls) = &self.calls {
            let made = calls.iter().filter(|(_, count)| *count > 0);
            let made: Vec<_> = made.map(|(name, count)| format!("{name} {count}")).collect();
            if !made.is_empty() {
                text += &format!("\n  opening it called: {}", made.join(", "));
            }
        }
        if let Some(programs) = &self.programs {
            programs.describe(&mut text);
        }
        if let Some(reason) = &self.failure {
            text += &format!("\n  does not open: {reason}");
        }
        text
    }

    fn to_json(&self) -> Value {
        let info = &self.info;
        let calls = self.calls.as_ref().map(|calls| {
            calls
                .iter()
                .map(|(name, count)| ((*name).to_owned(), json!(count)))
                .collect::<Map<_, _>>()
        });
        let facts = info.facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
        json!({
            "name": info.name,
            "kind": format!("{:?}", info.kind).to_lowercase(),
            "description": info.description,
            "variant": info.variant,
            "threads": info.threads,
            "memory_total_bytes": info.memory_total_bytes,
            "memory_free_bytes": info.memory_free_bytes,
            "score": self.score,
            "gpu": info.gpu.as_ref().map(gpu_to_json),
            "facts": facts.collect::<Map<_, _>>(),
            "calls_of_opening": calls,
            "programs": self.programs.as_ref().map(Programs::to_json),
            "failure": self.failure,
        })
    }
}

#[cfg(feature = "demo")]
#[expect(clippy::unnecessary_wraps, reason = "other builds have none")]
fn demo() -> Option<ModelSource> {
    Some(ModelSource::demo())
}

#[cfg(not(feature = "demo"))]
fn demo() -> Option<ModelSource> {
    None
}

/// How a device runs the programs of the demo model: as graphs, or op by op with reasons.
struct Programs {
    graphs: usize,
    /// The device's reasons, each with the number of programs.
    op_by_op: Vec<(String, usize)>,
    fallbacks: GraphFallbacks,
}

impl Programs {
    fn of(device: Box<dyn Device>, model: &ModelSource) -> Result<Self, Failure> {
        let file = model.open()?;
        let options = ExecOptions {
            max_sequences: 4,
            max_rows: 8,
            context_tokens: 64,
            ..ExecOptions::default()
        };
        let model = ModelSpec::from_gguf(&file, options.context_tokens)?;
        let go_on = &mut |_: f32| ControlFlow::Continue(());
        let executor = Executor::load(device, &file, &model, options.with_full_pages(), go_on)?;
        let mut programs = Self {
            graphs: 0,
            op_by_op: Vec::new(),
            fallbacks: executor.device().graph_fallbacks(),
        };
        for bucket in executor.buckets() {
            let LaunchMode::Eager(reason) = &bucket.mode else {
                programs.graphs += 1;
                continue;
            };
            match programs.op_by_op.iter_mut().find(|(known, _)| known == reason) {
                Some((_, count)) => *count += 1,
                None => programs.op_by_op.push((reason.clone(), 1)),
            }
        }
        Ok(programs)
    }

    fn describe(&self, text: &mut String) {
        let single: usize = self.op_by_op.iter().map(|(_, count)| count).sum();
        let _ = write!(
            text,
            "\n  programs of the demo model: {} are graphs, {single} are launched op by op ({})",
            self.graphs, self.fallbacks
        );
        for (reason, count) in &self.op_by_op {
            let _ = write!(text, "\n    {count}: {reason}");
        }
    }

    fn to_json(&self) -> Value {
        let counts = self.fallbacks.named();
        let counts = counts.iter().map(|(name, count)| ((*name).to_owned(), json!(count)));
        let reasons = self.op_by_op.iter().map(|(reason, count)| json!([reason, count]));
        json!({
            "graphs": self.graphs,
            "op_by_op": reasons.collect::<Vec<_>>(),
            "graph_fallbacks": counts.collect::<Map<_, _>>(),
        })
    }
}

/// Facts about a GPU, for troubleshooting.
fn describe(text: &mut String, gpu: &GpuFacts) {
    let (major, minor) = gpu.compute_capability;
    let (driver_major, driver_minor) =
        (gpu.driver_version / 1_000, gpu.driver_version % 1_000 / 10);
    let kib = |bytes: u64| bytes / 1_024;
    let vmm = gpu.vmm_granularity_bytes;
    let vmm = vmm.map_or("no VMM".to_owned(), |bytes| format!("VMM in {} KiB", kib(bytes)));
    let graphs = gpu.graphs_off.as_ref();
    let graphs = graphs.map_or("on".to_owned(), |reason| format!("off ({reason})"));
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n  compute capability {major}.{minor}, {} SMs, {} threads a warp, {} KiB shared a block ({} KiB opt-in), {} MiB L2, {vmm}\
         \n  CUDA driver {driver_major}.{driver_minor}, kernel image {}, graphs {graphs}, programmatic launch {}",
        gpu.multiprocessors,
        gpu.warp_threads,
        kib(gpu.shared_bytes_per_block),
        kib(gpu.shared_bytes_per_block_optin),
        kib(gpu.l2_bytes) / 1_024,
        gpu.kernel_image,
        if gpu.programmatic_launch { "on" } else { "off" },
    );
    if !gpu.context.is_empty() {
        let _ = write!(text, "\n  context: {}", gpu.context);
    }
    let _ = write!(
        text,
        "\n  parts of its multiprocessors (green contexts): {}\n  CUDA in Graphics: {}",
        gpu.green_contexts, gpu.graphics_contexts
    );
    if gpu.runs_display {
        text.push_str("\n  a display may be on it: kernels that run for seconds are ended");
    }
    for reason in &gpu.kernel_images_refused {
        let _ = write!(text, "\n  kernel image refused: {reason}");
    }
}

fn gpu_to_json(gpu: &GpuFacts) -> Value {
    json!({
        "compute_capability": format!("{}.{}", gpu.compute_capability.0, gpu.compute_capability.1),
        "multiprocessors": gpu.multiprocessors,
        "warp_threads": gpu.warp_threads,
        "shared_bytes_per_block": gpu.shared_bytes_per_block,
        "shared_bytes_per_block_optin": gpu.shared_bytes_per_block_optin,
        "vmm_granularity_bytes": gpu.vmm_granularity_bytes,
        "l2_bytes": gpu.l2_bytes,
        "driver_version": gpu.driver_version,
        "programmatic_launch": gpu.programmatic_launch,
        "kernel_image": gpu.kernel_image,
        "kernel_images_refused": gpu.kernel_images_refused,
        "graphs_off": gpu.graphs_off,
        "context": (!gpu.context.is_empty()).then_some(&gpu.context),
        "multiprocessors_used": (!gpu.context.is_empty()).then_some(gpu.multiprocessors_used),
        "green_contexts": gpu.green_contexts.to_string(),
        "graphics_contexts": gpu.graphics_contexts.to_string(),
        "runs_display": gpu.runs_display,
    })
}
