use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use walla_device::{DeviceInfo, KvType, MemoryUse};
use walla_exec::Executor;
use walla_grammar::CallFormat;
use walla_model::chat::{ChatTemplate, TemplateState};
use walla_model::tokenizer::Tokenizer;
use walla_model::{Gguf, ModelSpec};
use walla_plan::BUCKETS;
use walla_plan::governor::BucketError;
use walla_types::TokenId;

use crate::api::EngineStats;
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
    /// The syntax in which the model calls actions.
    pub call_format: CallFormat,
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
            call_format: text.call_markers.format(),
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
        let mut stats = EngineStats::default();
        let words = fields(&mut stats).into_iter().zip(self.stats.load());
        words.for_each(|(field, word)| field.set(word));
        stats
    }

    /// Called by the device thread only.
    pub(crate) fn set_stats(&self, stats: &EngineStats) {
        let mut stats = *stats;
        self.stats.store(fields(&mut stats).map(Field::word));
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

/// Per bucket: number of steps and three errors.
const ERROR_FIELDS: usize = 4 * BUCKETS.len();

/// A counter that is published as a word.
enum Field<'a> {
    Count(&'a mut u64),
    Number(&'a mut u32),
    Share(&'a mut f32),
    Time(&'a mut Duration),
    Limit(&'a mut Option<Duration>),
}

impl Field<'_> {
    fn word(self) -> u64 {
        match self {
            Self::Count(count) => *count,
            Self::Number(number) => (*number).into(),
            Self::Share(share) => share.to_bits().into(),
            Self::Time(time) => nanos(*time),
            // 0 is also the value of a snapshot before the first round.
            Self::Limit(limit) => limit.map_or(0, |limit| nanos(limit).saturating_add(1)),
        }
    }

    fn set(self, word: u64) {
        match self {
            Self::Count(count) => *count = word,
            Self::Number(number) => *number = word as u32,
            Self::Share(share) => *share = f32::from_bits(word as u32),
            Self::Time(time) => *time = Duration::from_nanos(word),
            Self::Limit(limit) => *limit = word.checked_sub(1).map(Duration::from_nanos),
        }
    }
}

/// Number of fields of [`EngineStats`].
const FIELDS: usize = 42;

/// Every field of the counters: the only list of them, for both directions.
fn fields(stats: &mut EngineStats) -> [Field<'_>; FIELDS] {
    use Field::{Count, Limit, Number, Share, Time};
    let budget = &mut stats.budget;
    [
        Count(&mut stats.tokens),
        Count(&mut stats.prefill_tokens),
        Count(&mut stats.background_tokens),
        Number(&mut stats.background_agents),
        Count(&mut stats.steps),
        Count(&mut stats.steps_done),
        Time(&mut stats.device_time),
        Time(&mut stats.step),
        Number(&mut stats.step_rows),
        Number(&mut stats.agents_active),
        Number(&mut stats.agents),
        Number(&mut stats.agents_parked),
        Number(&mut stats.agents_waiting),
        Number(&mut stats.asks_waiting),
        Number(&mut stats.pages_used),
        Number(&mut stats.pages),
        Count(&mut stats.kv_bytes),
        Number(&mut stats.pages_refused),
        Number(&mut stats.snapshots_used),
        Number(&mut stats.snapshots),
        Count(&mut stats.queue_full),
        Count(&mut stats.driver_calls),
        Count(&mut stats.graph_fallbacks),
        Count(&mut stats.masks),
        Count(&mut stats.masks_late),
        Time(&mut stats.mask_time),
        Count(&mut stats.grammars),
        Count(&mut stats.grammar_bytes),
        Limit(&mut budget.budget),
        Time(&mut budget.used),
        Time(&mut budget.debt),
        Count(&mut budget.frames),
        Count(&mut budget.frames_over),
        Count(&mut budget.frames_overdrawn),
        Time(&mut budget.smallest_step),
        Count(&mut budget.trials),
        Count(&mut budget.frames_skipped),
        Number(&mut budget.prefill_tokens),
        Number(&mut budget.agents_deferred),
        Share(&mut budget.error_p50),
        Share(&mut budget.error_p90),
        Share(&mut budget.error_p99),
    ]
}

/// 2^64 nanoseconds are 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use walla_plan::governor::BudgetStats;

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
