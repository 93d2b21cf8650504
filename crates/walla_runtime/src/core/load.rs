//! Loads a core from options.

use std::sync::Arc;
use std::thread::Thread;

use walla_device::{DeviceInfo, DeviceKind, OpenOptions, Registry};
use walla_exec::{ExecOptions, Executor, Sequences, cache_needs};
use walla_model::{Gguf, ModelSpec};
use walla_plan::defaults::{self, PAGE_TOKENS};
use walla_plan::{CacheLimit, CacheSize, StepCost};
use walla_types::{FNV1A, fnv1a};

use super::agents::Agents;
use super::budget::Budget;
use super::calibrate::Waiting;
use super::clients::Clients;
use super::constraints::Constraints;
use super::cost_file::Key;
use super::encode::PromptEncoder;
use super::in_flight::InFlight;
use super::kv_cache::KvCache;
use super::schedule::Scheduler;
use super::scoring::SCORED_ROWS;
use super::source::Source;
use super::transfers::{self, Transfers};
use super::{Core, MAX_STEPS_AHEAD, calibrate, cost_file};
use crate::api::EngineStats;
use crate::cache_file::Binding;
use crate::clock::Clock;
use crate::engine_core::Progress;
use crate::options::{EngineError, EngineOptions, FrameBudget};
use crate::status::{ModelCard, TextSettings};

/// Selects the best device.
const AUTO: &str = "auto";

impl Core {
    /// Opens the model and [loads](Self::load_from) it.
    #[cfg(test)]
    pub(crate) fn load(
        options: &EngineOptions,
        registry: &Registry,
        clock: &Clock,
        progress: &mut Progress<'_>,
    ) -> Result<Self, EngineError> {
        let (source, file) = Source::open(options)?;
        Self::load_from(&source, &file, options, registry, clock, progress)
    }

    /// Opens the device and loads a model onto it. `progress` receives the completed share, from 0
    /// to 1.
    ///
    /// `auto` is the best device that opens and has enough memory for the model. Devices that were
    /// skipped are reported in the log and in [`ModelCard::fallback_after`].
    ///
    /// # Errors
    /// Errors of file, model, device and options, with the file's path in errors about the file;
    /// [`EngineError::Stopped`] if `progress` breaks.
    pub(crate) fn load_from(
        source: &Source,
        file: &Gguf,
        options: &EngineOptions,
        registry: &Registry,
        clock: &Clock,
        progress: &mut Progress<'_>,
    ) -> Result<Self, EngineError> {
        let mut onto = |device: &str| {
            let loaded = source.load_onto(device, file, options, registry, clock, progress);
            loaded.map_err(|error| error.in_file(&options.model))
        };
        if options.device != AUTO {
            return onto(&options.device);
        }
        for (backend, reason) in registry.absent() {
            tracing::debug!(target: "walla::device", backend, %reason, "no device");
        }
        let mut passed_over: Option<String> = None;
        let mut candidates = registry.candidates(AUTO).into_iter().peekable();
        while let Some(info) = candidates.next() {
            match onto(&info.name) {
                Ok(mut core) => {
                    core.card.fallback_after = passed_over;
                    return Ok(core);
                }
                Err(error) if error.is_of_device() && candidates.peek().is_some() => {
                    tracing::warn!(target: "walla::device", device = %info.name, %error, "passed over for the next best");
                    let before = passed_over.map(|before| before + "; ").unwrap_or_default();
                    passed_over = Some(format!("{before}{}: {error}", info.name));
                }
                Err(error) => return Err(error),
            }
        }
        // No device exists: the registry returns the error.
        onto(AUTO)
    }
}

impl Source {
    pub(super) fn load_onto(
        &self,
        device: &str,
        file: &Gguf,
        options: &EngineOptions,
        registry: &Registry,
        clock: &Clock,
        progress: &mut Progress<'_>,
    ) -> Result<Core, EngineError> {
        let Self { model, text, context_tokens, .. } = self;
        let context_tokens = *context_tokens;
        let open = OpenOptions {
            threads: options.threads,
            gpu_context: options.gpu_context.clone(),
            ..OpenOptions::default()
        };
        let device = registry.open(device, &open)?;
        let (max_rows, max_prefill_tokens) = step_sizes(options, device.info());
        let size = self.cache_size(options, device.info(), file.file_bytes());
        let exec_options = exec_options(options, model, (context_tokens, size), max_rows);
        let executor = Executor::load(device, file, model, exec_options, progress)?;
        self.check_unchanged()?;
        let mut sequences = Sequences::new(executor)?;
        let wakes = (!options.inline_text).then(std::thread::current);
        let prompts = PromptEncoder::new(Arc::clone(text), wakes.clone())
            .map_err(|error| EngineError::Thread(error.to_string()))?;
        if options.budget != FrameBudget::Unlimited {
            // Another busy thread would falsify the measured costs.
            text.compiler.wait();
        }
        let mut waiting = Waiting { clock, max_step: options.deadlines.step, progress };
        let model_file = (model, file.file_bytes());
        let chunk = max_prefill_tokens.min(sequences.limits().max_tokens);
        let cost = step_cost(options, model_file, chunk, &mut sequences, &mut waiting)?;
        let limits = sequences.limits();
        let info = sequences.executor.device().info();
        tracing::info!(target: "walla::load", device = %info.name, variant = %info.variant, architecture = %model.architecture, "loaded");
        let cache_bytes = sequences.executor.device().memory().cache_bytes;
        tracing::info!(target: "walla::load", agents = size.agents, context_tokens, kv_tokens = size.kv_tokens, cache_bytes, "the cache has {}", size.limit);
        // A device that takes over has a slot for each agent that has one here.
        let _first = self.slots.set(size.agents);
        for reason in info.gpu.iter().flat_map(|gpu| &gpu.kernel_images_refused) {
            tracing::warn!(target: "walla::device", %reason, "a kernel image is not used");
        }
        let driver_calls_of_load = sequences.executor.device().counters().total();
        let is_gpu = info.kind != DeviceKind::Cpu;
        let transfers = self.transfers(&sequences.executor, wakes.clone());
        let kv = KvCache::new(sequences);
        let mut stats = EngineStats::default();
        kv.update_stats(&mut stats);
        Ok(Core {
            card: ModelCard::new(
                file,
                model,
                kv.executor(),
                (context_tokens, self.digest),
                (text, text_settings(options, &kv, context_tokens)),
            ),
            stats,
            model_text: Arc::clone(text),
            clients: Clients::default(),
            agents: Agents::new(
                exec_options.max_sequences as usize,
                (options.max_agents_parked, options.wait_for_slot),
                context_tokens,
            ),
            prompts,
            constraints: Constraints::new(Arc::clone(text), wakes),
            kv,
            scheduler: Scheduler::new(limits),
            budget: Budget::new(options, is_gpu, cost),
            in_flight: InFlight::new(MAX_STEPS_AHEAD as usize + 1, limits.max_outputs as usize),
            transfers,
            deadlines: options.deadlines,
            context_tokens,
            max_prefill_tokens,
            background_prefill: options.background_prefill,
            context_shift: options.context_shift,
            driver_calls_of_load,
            refused: None,
        })
    }
}

impl Source {
    /// Number of slots and size of the KV pool on a device. Settings win over the memory that is
    /// free.
    fn cache_size(
        &self,
        options: &EngineOptions,
        device: &DeviceInfo,
        file_bytes: u64,
    ) -> CacheSize {
        let context_tokens = self.context_tokens;
        let default = || {
            let needs = cache_needs(&self.model, options.kv_type, context_tokens);
            let is_cpu = device.kind == DeviceKind::Cpu;
            CacheSize::of_device(needs, is_cpu, device.memory_free_bytes, file_bytes)
        };
        let mut size = match (options.max_agents, self.slots.get()) {
            (Some(agents), _) => CacheSize::whole(agents, context_tokens, CacheLimit::Options),
            (None, Some(agents)) => CacheSize { agents: *agents, ..default() },
            (None, None) => default(),
        };
        if let Some(kv_tokens) = options.kv_tokens {
            let all = CacheSize::whole(size.agents, context_tokens, CacheLimit::Options);
            size = CacheSize { kv_tokens: kv_tokens.min(all.kv_tokens), ..all };
        }
        size
    }

    fn transfers(&self, executor: &Executor, wakes: Option<Thread>) -> Transfers {
        let exec_options = executor.options();
        let frequencies = self.model.ropes.iter().flat_map(|rope| {
            let all = rope.frequencies.iter().chain([&rope.magnitude]);
            all.map(|number| number.to_bits().to_le_bytes())
        });
        let binding = executor.cache_image().map(|image| Binding {
            model: self.digest,
            rotation: frequencies.fold(FNV1A, |hash, bytes| fnv1a(hash, &bytes)),
            architecture: self.model.architecture.name().to_owned(),
            kv_type: exec_options.kv_type,
            image: image.clone(),
            vocab: executor.vocab(),
            context_tokens: exec_options.context_tokens,
            chunk_pages: (transfers::CHUNK_BYTES / image.page_bytes().max(1)).max(1) as u32,
        });
        let seq = exec_options.max_sequences + exec_options.max_snapshots;
        Transfers::new(binding, seq, wakes)
    }
}

fn text_settings(options: &EngineOptions, kv: &KvCache, context_tokens: u32) -> TextSettings {
    TextSettings {
        kv_type: options.kv_type,
        kv_tokens: kv.capacity_tokens().min(context_tokens),
        context_shift: options.context_shift,
        pre_tokenizer: options.pre_tokenizer.clone(),
        template: options.template.as_ref().map(ToString::to_string),
    }
}

/// Step costs, read from the cache or measured. `None` without a budget.
fn step_cost(
    options: &EngineOptions,
    (model, file_bytes): (&ModelSpec, u64),
    chunk: u32,
    sequences: &mut Sequences,
    waiting: &mut Waiting<'_, '_>,
) -> Result<Option<StepCost>, EngineError> {
    if options.budget == FrameBudget::Unlimited {
        return Ok(None);
    }
    let Some(folder) = &options.cost_cache else {
        return Ok(calibrate::calibrate(sequences, chunk, waiting)?);
    };
    let key = Key::new(model, file_bytes, &sequences.executor);
    if let Some(cost) = cost_file::load(folder, &key) {
        return Ok(Some(cost));
    }
    let cost = calibrate::calibrate(sequences, chunk, waiting)?;
    if let Some(cost) = &cost {
        cost_file::save(folder, &key, cost);
    }
    Ok(cost)
}

/// Maximum rows and prompt tokens of a step on a device.
fn step_sizes(options: &EngineOptions, device: &DeviceInfo) -> (u32, u32) {
    let gpu = device.gpu.as_ref().map(|gpu| defaults::max_gpu_rows(gpu.multiprocessors_used));
    let rows = options.max_rows.or(gpu).unwrap_or(defaults::MAX_ROWS).max(1);
    let rest = rows.saturating_sub(defaults::MAX_SEQUENCES).max(defaults::MAX_PREFILL_TOKENS);
    (rows, options.max_prefill_tokens.unwrap_or(rest).clamp(1, rows))
}

/// Maximum device memory of snapshots by default.
const MAX_SNAPSHOT_BYTES: usize = 256 << 20;

/// Number of snapshots of recurrent states.
fn snapshots(options: &EngineOptions, model: &ModelSpec, agents: u32) -> u32 {
    let bytes = model.state_numbers_per_sequence() * size_of::<f32>();
    let fitting = MAX_SNAPSHOT_BYTES.checked_div(bytes).unwrap_or(0).max(1);
    let default = fitting.min(agents as usize) as u32; // at most the agents
    if model.is_recurrent() { options.state_snapshots.unwrap_or(default) } else { 0 }
}

fn exec_options(
    options: &EngineOptions,
    model: &ModelSpec,
    (context_tokens, size): (u32, CacheSize),
    max_rows: u32,
) -> ExecOptions {
    let max_agents = size.agents.max(1);
    let options = ExecOptions {
        max_snapshots: snapshots(options, model, max_agents),
        transfer_bytes: transfers::CHUNK_BYTES as u32,
        context_tokens,
        page_tokens: PAGE_TOKENS,
        max_rows,
        max_outputs: max_agents.max(SCORED_ROWS).min(max_rows),
        max_logits_rows: 0,
        // Every agent can have a separate mask.
        max_masks: max_agents.min(max_rows),
        mapped_results: true,
        kv_type: options.kv_type,
        ring: MAX_STEPS_AHEAD + 1,
        ..ExecOptions::default()
    };
    options.with_cache(CacheSize { agents: max_agents, ..size })
}
