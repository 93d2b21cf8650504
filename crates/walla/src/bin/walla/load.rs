//! Opens models and engines for most verbs, with a progress bar for long loads.

use std::fmt::Display;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use walla::{Engine, EngineError, EngineOptions, TemplateChoice};
use walla_device::Device;
use walla_exec::{ExecError, ExecOptions, Executor};
use walla_model::tokenizer::Tokenizer;
use walla_model::{Gguf, ModelSpec};
use walla_types::environment;

use crate::Failure;
use crate::args::{DeviceArgs, EngineArgs, PreArgs};
use crate::note::note;

/// Opens a model file. Errors begin with its name, and harmless defects are warnings.
pub fn open(path: &Path) -> Result<Gguf, Failure> {
    let file = open_quietly(path)?;
    warn(file.warnings());
    Ok(file)
}

/// Opens a model file without its warnings.
pub fn open_quietly(path: &Path) -> Result<Gguf, Failure> {
    Gguf::open(path).map_err(|error| named(path, &error))
}

/// A file's tokenizer, with its warnings.
pub fn tokenizer(path: &Path, pre: &PreArgs) -> Result<Tokenizer, Failure> {
    let file = open(path)?;
    let tokenizer = Tokenizer::from_gguf_with(&file, pre.pre.as_deref());
    let tokenizer = tokenizer.map_err(|error| named(path, &error))?;
    warn(tokenizer.warnings());
    Ok(tokenizer)
}

/// Prints warnings to standard error, one per line.
pub fn warn<W: Display>(warnings: impl IntoIterator<Item = W>) {
    for warning in warnings {
        note!("walla: warning: {warning}");
    }
}

/// Prefixes an error with the name of its file.
pub fn named(path: &Path, error: &dyn std::error::Error) -> Failure {
    let (name, text) = (path.display().to_string(), error.to_string());
    let prefix = format!("{name}: ");
    if text.starts_with(&prefix) || text.contains(&format!(" {prefix}")) {
        text.into()
    } else {
        format!("{prefix}{text}").into()
    }
}

/// An error of a start, with the name of the model file.
fn not_started(path: Option<&Path>, error: &EngineError) -> Failure {
    match (path, error) {
        (None, error) | (_, error @ EngineError::Recording(_)) => error.to_string().into(),
        (Some(path), EngineError::NotLoaded(reason)) => {
            format!("the model cannot be loaded: {}", named(path, &**reason)).into()
        }
        (Some(path), error) => named(path, error),
    }
}

/// Loads a model onto a device, with a progress bar on a terminal.
pub fn executor(
    path: &Path,
    file: &Gguf,
    model: &ModelSpec,
    device: &DeviceArgs,
    options: ExecOptions,
) -> Result<Executor, Failure> {
    try_executor(file, model, open_device(device)?, options).map_err(|error| named(path, &error))
}

/// Opens a device.
pub fn open_device(device: &DeviceArgs) -> Result<Box<dyn Device>, Failure> {
    Ok(walla_runtime::default_registry().open(&device.device, &device.open_options())?)
}

/// As [`executor`], on a device that is open.
pub fn try_executor(
    file: &Gguf,
    model: &ModelSpec,
    device: Box<dyn Device>,
    options: ExecOptions,
) -> Result<Executor, ExecError> {
    let bar = bar();
    let progress = &mut |share: f32| {
        bar.set_position((share * 1_000.0) as u64);
        ControlFlow::Continue(())
    };
    let executor = Executor::load(device, file, model, options, progress);
    bar.finish_and_clear();
    executor
}

/// A progress bar on standard error; hidden if that is not a terminal.
pub fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1_000);
    if let Ok(style) = ProgressStyle::with_template("loading {bar:40} {percent:>3} %") {
        bar.set_style(style);
    }
    bar
}

/// An engine for this many agents, with a progress bar while it loads.
pub async fn engine(
    path: Option<&Path>,
    EngineArgs { pre, budget, device }: &EngineArgs,
    (agents, context_tokens): (u32, u32),
    template: Option<&TemplateChoice>,
    record: Option<&Path>,
) -> Result<Engine, Failure> {
    let options = EngineOptions {
        template: template.cloned(),
        device: device.device.clone(),
        threads: device.threads,
        gpu_context: device.share.gpu_context(),
        context_tokens,
        max_agents: Some(agents),
        max_prefill_tokens: Some(128),
        budget: (*budget).into(),
        pre_tokenizer: pre.pre.clone(),
        cost_cache: cache_folder(),
        ..path.map_or_else(demo, |path| Ok(EngineOptions::model(path)))?
    };
    let mut builder = Engine::builder(options);
    if let Some(path) = record {
        builder = builder.record_to(path);
    }
    let bar = bar();
    let engine =
        builder.start_with_progress(|share| bar.set_position((share * 1_000.0) as u64)).await;
    bar.finish_and_clear();
    let engine = engine.map_err(|error| not_started(path, &error))?;
    if let Some(card) = engine.model() {
        if std::io::stderr().is_terminal() {
            note!("walla: device {}", card.device_line());
        }
        warn(&card.warnings);
    }
    Ok(engine)
}

/// Awaits the work of an engine, then shuts it down: closes its device and completes a trace. A
/// hung device does not block the program's exit.
pub async fn until_done<T>(engine: &Engine, work: impl Future<Output = T>) -> T {
    let result = work.await;
    let _in_time = tokio::time::timeout(Duration::from_secs(5), engine.stop()).await;
    result
}

/// From now on, waits until the process is asked to end: by Ctrl-C, or by SIGTERM, as services are.
#[cfg(unix)]
pub fn asked_to_end() -> std::io::Result<impl Future<Output = std::io::Result<()>>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    })
}

#[cfg(not(unix))]
pub fn asked_to_end() -> std::io::Result<impl Future<Output = std::io::Result<()>>> {
    Ok(tokio::signal::ctrl_c())
}

/// Runs a verb on this thread.
pub fn block_on(verb: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(verb);
    // A blocked read of standard input must not keep the program alive.
    runtime.shutdown_background();
    result
}

/// The user's cache folder for measurements; `None` if the system does not define one.
fn cache_folder() -> Option<PathBuf> {
    environment::user_cache_folder().map(|folder| folder.join("walla"))
}

#[cfg(feature = "demo")]
pub fn demo() -> Result<EngineOptions, Failure> {
    Ok(EngineOptions::demo())
}

#[cfg(not(feature = "demo"))]
pub fn demo() -> Result<EngineOptions, Failure> {
    Err("this build has no demo model: name a GGUF file".into())
}
