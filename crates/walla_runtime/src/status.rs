use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use walla_device::{DeviceInfo, KvType, MemoryUse};
use walla_exec::Executor;
use walla_model::chat::{ChatTemplate, TemplateState};
use walla_model::tokenizer::Tokenizer;
use walla_model::{Gguf, ModelSpec};
use walla_plan::BUCKETS;
use walla_plan::governor::BucketError;
use walla_types::TokenId;

use crate::api::{BudgetStats, EngineStats};
use crate::mailbox::Snapshot;
use crate::model_text::ModelText;
use crate::options::EngineError;

/// State of an engine.
#[derive(Clone, Debug)]
pub enum EngineState {
    /// The model is being loaded; commands wait in their queue.
    Loading {
        /// Completed share of the load, from 0 to 1.
        fraction: f32,
    },
    /// Agents can speak.
    Ready,
    /// The engine could not load or failed later. Every reply requested from it fails.
    Failed(Arc<EngineError>),
    /// The engine was stopped.
    Stopped,
}

impl EngineState {
    /// Whether agents can speak.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }

    /// Whether the engine has ended, so that agents never speak again.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Stopped)
    }
}

/// Options of an engine that its replies depend on, besides the model and the context length:
/// engines with the same ones, the same model and the same kind of device give the same replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextSettings {
    /// Number format of keys and values.
    pub kv_type: KvType,
    /// Tokens of one agent that the KV pool can hold: the context length, unless the pool is
    /// smaller. A longer prompt is shortened.
    pub kv_tokens: u32,
    /// [`EngineOptions::context_shift`](crate::EngineOptions::context_shift).
    pub context_shift: bool,
    /// [`EngineOptions::pre_tokenizer`](crate::EngineOptions::pre_tokenizer).
    pub pre_tokenizer: Option<String>,
    /// [`EngineOptions::template`](crate::EngineOptions::template), by name or path.
    pub template: Option<String>,
}

/// The loaded model and its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCard {
    /// The model's name in the file.
    pub name: Option<String>,
    /// Its architecture, as named in GGUF.
    pub architecture: &'static str,
    /// Layers.
    pub layers: u32,
    /// Size of a token's hidden state.
    pub width: u32,
    /// Tokens in the vocabulary.
    pub vocab: u32,
    /// Context length that the model was trained for, in tokens.
    pub context_train: u32,
    /// Context length per agent in this engine, in tokens.
    pub context_tokens: u32,
    /// Bytes of one agent's recurrent state in all layers; 0 for models without recurrent layers.
    pub state_bytes_per_agent: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Identifies the model file: a hash of metadata, tensor table and samples of the weights.
    pub fingerprint: u64,
    /// Options of the engine that its replies depend on.
    pub settings: TextSettings,
    /// The chat template in use, or the reason why none works. Without a template only raw prompts
    /// work.
    pub template: TemplateState,
    /// Markers of the template that the file stores as ordinary tokens. The engine treats them as
    /// control tokens.
    pub reserved_markers: Vec<TokenId>,
    /// Defects of the file and its chat template that did not prevent loading, one sentence each: a
    /// missing `tokenizer.ggml.pre`, unreadable metadata, markers that are stored as ordinary
    /// tokens, and others.
    pub warnings: Vec<String>,
    /// Whether the model has reasoning markers. If so, reasoning is
    /// [separated](crate::ReplyEvent::Reasoning) from speech.
    pub reasoning: bool,
    /// Whether the chat template has a switch for reasoning:
    /// [`AgentSpec::thinking`](crate::AgentSpec::thinking).
    pub thinking_switch: bool,
    /// The device that runs the model.
    pub device: DeviceInfo,
    /// Memory on that device after loading. Only
    /// [`Engine::set_kv_tokens`](crate::Engine::set_kv_tokens) changes it;
    /// [`EngineStats::kv_bytes`] reports the current size of the KV cache.
    pub memory: MemoryUse,
    /// Reason why the device is not the engine's first one, or not the best one for `auto`. `None`
    /// if it is.
    pub fallback_after: Option<String>,
}

impl ModelCard {
    pub(crate) fn new(
        file: &Gguf,
        model: &ModelSpec,
        executor: &Executor,
        (context_tokens, fingerprint): (u32, u64),
        (text, settings): (&ModelText, TextSettings),
    ) -> Self {
        Self {
            name: model.name.clone(),
            architecture: model.architecture.name(),
            layers: model.layers.len() as u32,
            width: model.width as u32,
            vocab: model.vocab as u32,
            context_train: model.context_train,
            context_tokens,
            state_bytes_per_agent: (model.state_numbers_per_sequence() * size_of::<f32>()) as u64,
            file_bytes: file.file_bytes(),
            fingerprint,
            settings,
            template: (*text.state).clone(),
            reserved_markers: text.reserved_markers.clone(),
            warnings: text.warnings.clone(),
            reasoning: text.reasoning.is_some(),
            thinking_switch: text.template.as_ref().is_some_and(ChatTemplate::has_thinking_switch),
            device: executor.device().info().clone(),
            memory: executor.device().memory(),
            fallback_after: None,
        }
    }

    /// The device in a few words: `cpu`, or `cpu (fallback after: …)`.
    #[must_use]
    pub fn device_line(&self) -> String {
        let name = &self.device.name;
        match &self.fallback_after {
            Some(reason) => format!("{name} (fallback after: {reason})"),
            None => name.clone(),
        }
    }
}

const LOADING: u32 = 0;
const READY: u32 = 1;
const FAILED: u32 = 2;
const STOPPED: u32 = 3;

/// State of the device thread for hosts. Only that thread writes it; any thread reads it without
/// waiting.
///
/// One word holds the phase (high half) and the loaded share (low half, bits of an f32), so that
/// they are consistent. Card and failure are set before the phase that implies them.
#[derive(Debug)]
pub(crate) struct Status {
    word: AtomicU64,
    failure: OnceLock<Arc<EngineError>>,
    card: OnceLock<ModelCard>,
    /// Card of the fallback, if the first device was lost.
    card_of_fallback: OnceLock<ModelCard>,
    tokenizer: OnceLock<Arc<Tokenizer>>,
    stats: Snapshot<FIELDS>,
    budget: Snapshot<BUDGET_FIELDS>,
    errors: Snapshot<ERROR_FIELDS>,
}

impl Status {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(word(LOADING, 0.0)),
            failure: OnceLock::new(),
            card: OnceLock::new(),
            card_of_fallback: OnceLock::new(),
            tokenizer: OnceLock::new(),
            stats: Snapshot::new(),
            budget: Snapshot::new(),
            errors: Snapshot::new(),
        }
    }

    pub(crate) fn set_fraction(&self, fraction: f32) {
        // `clamp` keeps NaN, which hosts should never see.
        let fraction = if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
        self.word.store(word(LOADING, fraction), Ordering::Release);
    }

    pub(crate) fn set_ready(&self, card: ModelCard, tokenizer: Option<Arc<Tokenizer>>) {
        if let Some(tokenizer) = tokenizer {
            let _first = self.tokenizer.set(tokenizer); // a fallback has the same
        }
        // At most two cards are set, because a fallback has no further fallback.
        if let Err(card) = self.card.set(card) {
            let _second = self.card_of_fallback.set(card);
        }
        self.word.store(word(READY, 1.0), Ordering::Release);
    }

    pub(crate) fn set_failed(&self, error: EngineError) {
        let _first = self.failure.set(Arc::new(error));
        self.word.store(word(FAILED, 0.0), Ordering::Release);
    }

    pub(crate) fn set_stopped(&self) {
        self.word.store(word(STOPPED, 0.0), Ordering::Release);
    }

    pub(crate) fn state(&self) -> EngineState {
        let word = self.word.load(Ordering::Acquire);
        match ((word >> 32) as u32, self.failure.get()) {
            (LOADING, _) => EngineState::Loading { fraction: f32::from_bits(word as u32) },
            (READY, _) => EngineState::Ready,
            (FAILED, Some(error)) => EngineState::Failed(Arc::clone(error)),
            _ => EngineState::Stopped,
        }
    }

    pub(crate) fn card(&self) -> Option<&ModelCard> {
        self.card_of_fallback.get().or(self.card.get())
    }

    pub(crate) fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.tokenizer.get()
    }

    pub(crate) fn stats(&self) -> EngineStats {
        decode(self.stats.load(), decode_budget(self.budget.load()))
    }

    /// Called by the device thread only.
    pub(crate) fn set_stats(&self, stats: &EngineStats) {
        self.stats.store(encode(stats));
        self.budget.store(encode_budget(&stats.budget));
    }
}

impl Status {
    /// Called by the device thread only.
    pub(crate) fn set_errors(&self, errors: &[BucketError; BUCKETS.len()]) {
        let mut numbers = [0; ERROR_FIELDS];
        for (numbers, of) in numbers.chunks_exact_mut(4).zip(errors) {
            let [p50, p90, p99] = [of.p50, of.p90, of.p99].map(|part| part.to_bits().into());
            numbers.copy_from_slice(&[of.steps, p50, p90, p99]);
        }
        self.errors.store(numbers);
    }

    /// Prediction errors of the buckets that have been measured.
    pub(crate) fn errors(&self) -> Vec<BucketError> {
        let numbers = self.errors.load();
        let each = BUCKETS.into_iter().zip(numbers.chunks_exact(4));
        let of_bucket = |(bucket, numbers): (u32, &[u64])| BucketError {
            bucket,
            steps: numbers[0],
            p50: f32::from_bits(numbers[1] as u32),
            p90: f32::from_bits(numbers[2] as u32),
            p99: f32::from_bits(numbers[3] as u32),
        };
        each.map(of_bucket).filter(|of| of.steps > 0).collect()
    }
}

fn word(phase: u32, fraction: f32) -> u64 {
    u64::from(phase) << 32 | u64::from(fraction.to_bits())
}

/// Number of fields of [`EngineStats`], without its budget.
const FIELDS: usize = 28;

fn encode(stats: &EngineStats) -> [u64; FIELDS] {
    let EngineStats {
        tokens,
        prefill_tokens,
        background_tokens,
        background_agents,
        steps,
        steps_done,
        device_time,
        step,
        step_rows,
        agents_active,
        agents,
        agents_parked,
        agents_waiting,
        asks_waiting,
        pages_used,
        pages,
        kv_bytes,
        pages_refused,
        snapshots_used,
        snapshots,
        queue_full,
        driver_calls,
        graph_fallbacks,
        masks,
        masks_late,
        mask_time,
        grammars,
        grammar_bytes,
        budget: _,
    } = *stats;
    [
        tokens,
        prefill_tokens,
        background_tokens,
        background_agents.into(),
        steps,
        steps_done,
        nanos(device_time),
        nanos(step),
        step_rows.into(),
        agents_active.into(),
        agents.into(),
        agents_parked.into(),
        agents_waiting.into(),
        asks_waiting.into(),
        pages_used.into(),
        pages.into(),
        pages_refused.into(),
        snapshots_used.into(),
        snapshots.into(),
        kv_bytes,
        queue_full,
        driver_calls,
        graph_fallbacks,
        masks,
        masks_late,
        nanos(mask_time),
        grammars,
        grammar_bytes,
    ]
}

fn decode(values: [u64; FIELDS], budget: BudgetStats) -> EngineStats {
    let [
        tokens,
        prefill_tokens,
        background_tokens,
        background_agents,
        steps,
        steps_done,
        device_nanos,
        step_nanos,
        rest @ ..,
        kv_bytes,
        queue_full,
        driver_calls,
        graph_fallbacks,
        masks,
        masks_late,
        mask_nanos,
        grammars,
        grammar_bytes,
    ] = values;
    let [step_rows, agents_active, agents, agents_parked, agents_waiting, rest @ ..] =
        rest.map(|v| v as u32);
    let [asks_waiting, pages_used, pages, pages_refused, snapshots_used, snapshots] = rest;
    EngineStats {
        tokens,
        prefill_tokens,
        background_tokens,
        background_agents: background_agents as u32,
        steps,
        steps_done,
        device_time: Duration::from_nanos(device_nanos),
        step: Duration::from_nanos(step_nanos),
        step_rows,
        agents_active,
        agents,
        agents_parked,
        agents_waiting,
        asks_waiting,
        pages_used,
        pages,
        kv_bytes,
        pages_refused,
        snapshots_used,
        snapshots,
        queue_full,
        driver_calls,
        graph_fallbacks,
        masks,
        masks_late,
        mask_time: Duration::from_nanos(mask_nanos),
        grammars,
        grammar_bytes,
        budget,
    }
}

/// Number of fields of [`BudgetStats`].
const BUDGET_FIELDS: usize = 14;

/// Per bucket: number of steps and three errors.
const ERROR_FIELDS: usize = 4 * BUCKETS.len();

/// Encodes a missing budget. 0 is also the value of a snapshot before the first round.
const NO_BUDGET: u64 = 0;

fn encode_budget(stats: &BudgetStats) -> [u64; BUDGET_FIELDS] {
    let BudgetStats {
        budget,
        used,
        debt,
        frames,
        frames_over,
        frames_overdrawn,
        smallest_step,
        trials,
        frames_skipped,
        prefill_tokens,
        agents_deferred,
        error_p50,
        error_p90,
        error_p99,
    } = *stats;
    [
        budget.map_or(NO_BUDGET, |budget| nanos(budget).saturating_add(1)),
        nanos(used),
        nanos(debt),
        frames,
        frames_over,
        frames_overdrawn,
        nanos(smallest_step),
        trials,
        frames_skipped,
        prefill_tokens.into(),
        agents_deferred.into(),
        error_p50.to_bits().into(),
        error_p90.to_bits().into(),
        error_p99.to_bits().into(),
    ]
}

fn decode_budget(values: [u64; BUDGET_FIELDS]) -> BudgetStats {
    let [budget, used, debt, frames, frames_over, frames_overdrawn, rest @ ..] = values;
    let [smallest_step, trials, frames_skipped, rest @ ..] = rest;
    let [prefill_tokens, agents_deferred, error_p50, error_p90, error_p99] = rest.map(|v| v as u32);
    BudgetStats {
        budget: budget.checked_sub(1).map(Duration::from_nanos),
        used: Duration::from_nanos(used),
        debt: Duration::from_nanos(debt),
        frames,
        frames_over,
        frames_overdrawn,
        smallest_step: Duration::from_nanos(smallest_step),
        trials,
        frames_skipped,
        prefill_tokens,
        agents_deferred,
        error_p50: f32::from_bits(error_p50),
        error_p90: f32::from_bits(error_p90),
        error_p99: f32::from_bits(error_p99),
    }
}

/// 2^64 nanoseconds are 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_counters_round_trip() {
        let stats = EngineStats {
            tokens: u64::MAX,
            prefill_tokens: 2,
            background_tokens: 27,
            background_agents: 26,
            steps: 3,
            steps_done: 2,
            device_time: Duration::from_micros(7),
            step: Duration::from_micros(4),
            step_rows: 5,
            agents_active: 6,
            agents: 7,
            agents_parked: 30,
            agents_waiting: 31,
            asks_waiting: 8,
            pages_used: u32::MAX,
            pages: 10,
            kv_bytes: u64::MAX - 2,
            pages_refused: 29,
            snapshots_used: 35,
            snapshots: 36,
            queue_full: 11,
            driver_calls: u64::MAX - 1,
            graph_fallbacks: 28,
            masks: 32,
            masks_late: 33,
            mask_time: Duration::from_micros(34),
            grammars: 37,
            grammar_bytes: u64::MAX - 3,
            budget: BudgetStats {
                budget: Some(Duration::from_micros(12)),
                used: Duration::from_micros(13),
                debt: Duration::from_micros(14),
                frames: u64::MAX,
                frames_over: 16,
                frames_overdrawn: 17,
                smallest_step: Duration::from_micros(37),
                trials: 38,
                frames_skipped: 18,
                prefill_tokens: 19,
                agents_deferred: 20,
                error_p50: 0.21,
                error_p90: 0.22,
                error_p99: f32::INFINITY,
            },
        };
        let status = Status::new();
        assert_eq!(status.stats(), EngineStats::default());
        status.set_stats(&stats);
        assert_eq!(status.stats(), stats);
    }

    #[test]
    fn errors_of_measured_buckets_round_trip() {
        let status = Status::new();
        assert_eq!(status.errors(), []);
        let mut errors = [BucketError::default(); BUCKETS.len()];
        errors[3] = BucketError { bucket: 4, steps: 9, p50: 0.01, p90: 0.1, p99: 0.2 };
        status.set_errors(&errors);
        assert_eq!(status.errors(), [errors[3]]);
    }

    #[test]
    fn the_fraction_is_a_number_from_0_to_1() {
        let status = Status::new();
        for (given, seen) in [(0.25, 0.25), (7.0, 1.0), (-1.0, 0.0), (f32::NAN, 0.0)] {
            status.set_fraction(given);
            let EngineState::Loading { fraction } = status.state() else { panic!("loading") };
            assert_eq!(fraction, seen);
        }
    }

    #[test]
    fn a_failure_has_a_reason_and_a_stop_is_no_failure() {
        let status = Status::new();
        status.set_failed(EngineError::Panicked("why".into()));
        let EngineState::Failed(error) = status.state() else { panic!("failed") };
        assert!(error.to_string().contains("why"));
        let status = Status::new();
        status.set_stopped();
        assert!(matches!(status.state(), EngineState::Stopped));
    }
}
