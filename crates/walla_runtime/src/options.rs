use std::path::PathBuf;
use std::time::Duration;

use walla_device::{DeviceError, GpuContext, KvType, RegistryError};
use walla_exec::{ExecError, StepError};
use walla_model::chat::{LoadError, LoadedText, TemplateChoice, TemplateError};
use walla_model::tokenizer::{Tokenizer, VocabularyError};
use walla_model::{Gguf, GgufError, SpecError, TensorError};
use walla_plan::defaults;

/// Source of a model.
#[derive(Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A GGUF file, or the first part of a split model (then all of this applies to each part). It
    /// is read while the model loads, and again if the CPU takes over from a lost device
    /// ([`EngineOptions::fallback`]); for that purpose the engine keeps it open. The path can be
    /// renamed, replaced or deleted at any time. If another program overwrites or shortens the file
    /// in place, the load fails, or, after the load, a fallback fails.
    Path(PathBuf),
    /// A GGUF file inside the program.
    Static(&'static [u8]),
}

impl ModelSource {
    /// Opens the file, for example for its tokenizer, without an engine.
    ///
    /// # Errors
    /// The defect of the file.
    pub fn open(&self) -> Result<Gguf, GgufError> {
        match self {
            Self::Path(path) => Gguf::open(path),
            Self::Static(bytes) => Gguf::from_static(bytes),
        }
    }

    /// The small model that is built into the program: tavern characters and a robot's JSON
    /// actions.
    #[cfg(feature = "demo")]
    #[must_use]
    pub fn demo() -> Self {
        Self::Static(walla_demo_model::GGUF)
    }
}

impl std::fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(path).finish(),
            Self::Static(bytes) => write!(f, "Static({} bytes)", bytes.len()),
        }
    }
}

/// Device time that one frame may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameBudget {
    /// The default of the device that runs the model: [`defaults::BUDGET_MICROS`] on a GPU,
    /// [`defaults::CPU_BUDGET_MICROS`] on a CPU.
    #[default]
    Auto,
    /// No limit.
    Unlimited,
    /// This time. Zero is a pause.
    Time(Duration),
}

impl FrameBudget {
    /// The limit on a device of this kind.
    #[must_use]
    pub fn of_device(self, is_gpu: bool) -> Option<Duration> {
        match self {
            Self::Auto if is_gpu => Some(micros(defaults::BUDGET_MICROS)),
            Self::Auto => Some(micros(defaults::CPU_BUDGET_MICROS)),
            Self::Unlimited => None,
            Self::Time(time) => Some(time),
        }
    }

    /// The limit on a device of this kind, without the time that other work on the processor has
    /// reserved. An engine on a CPU keeps at least half of its budget; one on a GPU keeps all.
    #[must_use]
    pub fn without(self, reserved: Duration, is_gpu: bool) -> Option<Duration> {
        let total = self.of_device(is_gpu)?;
        Some(if is_gpu { total } else { total.saturating_sub(reserved).max(total / 2) })
    }
}

impl From<Duration> for FrameBudget {
    fn from(time: Duration) -> Self {
        Self::Time(time)
    }
}

/// `None` is [`FrameBudget::Unlimited`].
impl From<Option<Duration>> for FrameBudget {
    fn from(time: Option<Duration>) -> Self {
        time.map_or(Self::Unlimited, Self::Time)
    }
}

/// Maximum waits for a device. After a longer wait the engine gives the device up. `None` waits
/// forever.
///
/// A device that exceeds `load` or `step` counts as lost. Its memory is leaked, because the device
/// may still write to it, and the [fallback](EngineOptions::fallback) takes over if there is one.
/// Otherwise the engine fails, and every open reply with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Time without progress while a model loads: one tensor, or the preparation of all programs.
    /// Default: 120 s, because a driver may compile kernels at the first start.
    pub load: Option<Duration>,
    /// Time from the launch of a step to its results. Default: 60 s.
    pub step: Option<Duration>,
    /// Time from the start of a reply to its end, excluding pauses and the wait behind other
    /// replies of the agent. A reply that exceeds it ends with
    /// [`FinishReason::TimedOut`](crate::FinishReason::TimedOut) and keeps its text. Default:
    /// `None`.
    pub reply: Option<Duration>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            load: Some(Duration::from_secs(120)),
            step: Some(Duration::from_secs(60)),
            reply: None,
        }
    }
}

/// Options of an engine: the only ones, which the plugin (`WallaPlugin::new`), the async API
/// (`Engine::start`) and [`Engine::start`](crate::Engine::start) take. Defaults that other crates
/// share are in [`walla_plan::defaults`].
///
/// Options of this crate are structs with public fields. They are not `#[non_exhaustive]`, because
/// that would forbid `..EngineOptions::model(path)`: a program that uses this syntax, as it should,
/// accepts new fields. Enums that can grow, and structs that only walla creates, are
/// `#[non_exhaustive]`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use walla_runtime::EngineOptions;
/// let options = EngineOptions {
///     max_agents: Some(16),
///     budget: Duration::from_millis(2).into(),
///     ..EngineOptions::model("smith.gguf")
/// };
/// assert_eq!(options.context_tokens, 1_024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The model.
    pub model: ModelSource,
    /// Chat template that replaces the model file's: a built-in template of the model's family
    /// (`Some("chatml".into())`, `llama3`, `gemma`, `mistral`), or a file with Jinja source. If it
    /// does not work, the load fails with [`EngineError::Template`]. Default: `None`, the file's
    /// template. If that template is absent or does not work, the model loads and raw prompts work;
    /// [`ModelCard::template`](crate::ModelCard::template) has the reason.
    pub template: Option<TemplateChoice>,
    /// Device that runs the model: `auto`, `cpu`, `cuda:0`, `vulkan:0`. Default: `auto`, the best
    /// device that opens and has enough memory for the model. With a name the load fails if this
    /// device is absent.
    /// [`ModelCard::fallback_after`](crate::ModelCard::fallback_after) reports why a better device
    /// was not used.
    pub device: String,
    /// Threads that a CPU device may use. Default: `None`, half of the cores; the game uses the
    /// others.
    pub threads: Option<u32>,
    /// Context of a GPU device: a new one, a new one on a part of the multiprocessors, or the
    /// program's context. Default: a new one.
    pub gpu_context: GpuContext,
    /// Context length per agent in tokens, limited to the context that the model was trained for.
    /// Default: `1_024`, a persona and some twenty turns.
    pub context_tokens: u32,
    /// Agents of all clients that can speak at the same time: the number of slots. Default: `None`:
    /// `64`; on a CPU fewer, at least 4, if the [KV pool](Self::kv_tokens) of this default is too
    /// small for 64 agents with a quarter of their context each, or if their recurrent states take
    /// more than half of the memory for it.
    pub max_agents: Option<u32>,
    /// Whether agents beyond [`max_agents`](Self::max_agents) wait for a slot when they are asked.
    /// Default: `true`. Slots are assigned by priority, then by the age of the ask; after 10
    /// seconds of waiting only the age counts. The agent takes a free slot, or the slot of the
    /// agent that has been idle longest. That agent is parked and loses its KV cache but not its
    /// conversation.
    ///
    /// `false`: an agent that has a slot keeps it. An ask of an agent without a slot fails at once
    /// with [`ReplyError::TooManyAgents`](crate::ReplyError::TooManyAgents) unless a slot is free.
    pub wait_for_slot: bool,
    /// Maximum number of agents without a slot that the engine keeps, over all clients. Default:
    /// `16_384`: with 1 KB of persona and conversation each, 24 MB of memory.
    pub max_agents_parked: u32,
    /// KV pool capacity in tokens, shared by all agents. Default: `None`,
    /// `max_agents * context_tokens`, so that no agent ever waits for pages. A smaller pool saves
    /// memory, because few agents have a full context: on a CPU, if `max_agents` is `None` too, the
    /// pool takes an eighth of the memory that is free next to the model, at most 512 MiB, and at
    /// least four full contexts, because the game shares the memory (256 MiB on systems other than
    /// Linux, whose free memory is not known). Replies do not depend on it. The load's log and
    /// `walla fit` report the choice. The memory is reserved and written at load, so that no step
    /// waits for it: a cache that does not fit is an error of the load.
    pub kv_tokens: Option<u32>,
    /// Snapshots of the state of recurrent layers (LFM 2, Qwen 3.5). They let agents share the
    /// beginning of their prompts, and continue after a change of the conversation's end without an
    /// evaluation from the start. Each takes the device memory of one agent's state
    /// ([`ModelCard::state_bytes_per_agent`](crate::ModelCard::state_bytes_per_agent)). No effect
    /// on other models. Default: `None`, as many as agents in at most 256 MiB, at least 1.
    pub state_snapshots: Option<u32>,
    /// Maximum rows of a step. Default: `None`: 64 agents and a prefill chunk, `128` on a CPU and,
    /// by the number of multiprocessors, `128` to `512` on a GPU ([`defaults::max_gpu_rows`]).
    pub max_rows: Option<u32>,
    /// Maximum prefill tokens of a step. Default: `None`: the rows that 64 agents leave, at least
    /// `64`, so that a long prompt does not stall agents that speak.
    pub max_prefill_tokens: Option<u32>,
    /// Capacity of a client's command queue, at least 1. Default: `1_024`.
    pub command_queue: usize,
    /// Capacity of a client's event queue, at least 1; the client's agents pause while it is full.
    /// Default: `4_096`, one second of 64 agents at 60 tokens.
    pub event_queue: usize,
    /// Storage type of keys and values. Default: f16. 8 bits halve the cache. A CPU, including one
    /// that takes over from a lost GPU, computes attention over 8 bits in plain Rust, which is
    /// slower than its vector instructions for f16.
    pub kv_type: KvType,
    /// Device-time budget of one frame: steps that are predicted to exceed it are not started.
    /// Default: [`FrameBudget::Auto`]. It applies to clients that are paced
    /// [per frame](crate::Pacing::PerFrame);
    /// [`Engine::set_budget`](crate::Engine::set_budget) changes it at run time. Zero: no step
    /// runs, for free-running clients neither. In the async API, whose host has no frames, `Auto`
    /// is no limit, and a time applies in each 1/60 s.
    ///
    /// On a CPU it limits the processor time of the device's thread: time in which the operating
    /// system runs other threads on its core does not count.
    ///
    /// With a budget, loading ends with some steps on scratch sequences (under a second) that
    /// measure step costs.
    pub budget: FrameBudget,
    /// Unused budget that earlier frames may leave to a frame, in frames, at most
    /// [`MAX_CARRY_FRAMES`]. A frame can then run a step that is longer than its budget; the mean
    /// over some frames stays within the budget. Prompts are evaluated in larger chunks, which cost
    /// less per token. Default: `None`, [`defaults::CPU_CARRY_FRAMES`] on a CPU and 0 on a GPU,
    /// where a renderer waits for steps.
    pub budget_carry: Option<u32>,
    /// Whether agents that are not asked are prepared: in device time and KV pages that nothing
    /// else uses, persona and conversation are evaluated before the next ask, and the oldest turns
    /// of a full context are dropped and the rest is evaluated again. Then only the question's
    /// tokens are evaluated at an ask. Replies are the same with and without it. Default: `true`.
    pub background_prefill: bool,
    /// Whether the tables with which constraints and calls of actions are masked are prepared while
    /// the model is loaded, on a thread, for vocabularies of at least 16,384 tokens. For 150,000
    /// tokens that takes 0.3 to 0.5 s of processor time and 45 MB
    /// ([`EngineStats::grammar_bytes`](crate::EngineStats::grammar_bytes)). Default: `true`. With
    /// `false` the first constrained reply waits for them: for programs without constraints and
    /// actions.
    pub prepare_constraints: bool,
    /// Whether the keys of a shortened conversation are shifted to their new positions instead of
    /// being evaluated again. That costs one step instead of hundreds of tokens, but it is an
    /// approximation: the kept turns were evaluated while the dropped ones were visible, so replies
    /// differ from the replies without this option, and depend on the contents of the cache. No
    /// other agent shares shifted tokens. Models with recurrent layers are evaluated again.
    /// Default: `false`.
    pub context_shift: bool,
    /// Whether the budget also applies to [free-running](crate::Pacing::FreeRunning) clients, in
    /// windows of 1/60 s. Default: `false`; the async API sets it with a budget. A budget set at
    /// run time always applies to them.
    pub budget_free_running: bool,
    /// Maximum predicted device time of one step on a GPU, for clients that are paced per frame,
    /// with a budget or without, and for free-running clients that keep to a budget. A renderer on
    /// the same GPU waits for this time at most. Short steps evaluate fewer prompt tokens per
    /// millisecond. `None`: no limit. Default: 4 ms. It does not limit steps of a CPU, because the
    /// operating system can preempt them.
    pub max_launch: Option<Duration>,
    /// Folder that caches measured step costs per device and model. A file that is damaged or from
    /// another build is ignored and replaced. Default: `None`, costs are measured at each load.
    pub cost_cache: Option<PathBuf>,
    /// Name of the tokenizer's pre-tokenizer, which splits text before merging. It overrides
    /// `tokenizer.ggml.pre` of the file: `llama-bpe`, `qwen2` and others
    /// (`PreTokenizer::NAMES` of crate `walla_model`). For files that lack the key
    /// ([`ModelCard::warnings`](crate::ModelCard::warnings) reports it) or whose name walla does
    /// not know. Default: `None`, the file's value.
    pub pre_tokenizer: Option<String>,
    /// Whether the CPU takes over when the device is lost. Conversations continue from the host's
    /// copy, and each reply from its position. All agents are silent for some seconds while the
    /// model is loaded again. The model file stays open for this purpose. If it was overwritten in
    /// place, the engine fails with [`EngineError::NotReplaced`]. Default: `true`. No effect if
    /// `device` is `cpu`.
    pub fallback: bool,
    /// Time limits for a device that hangs and for replies. Default: see [`Deadlines`].
    pub deadlines: Deadlines,
    /// Encodes prompts on the device thread, so that steps are the same in every run of a test.
    #[doc(hidden)]
    pub inline_text: bool,
}

impl EngineOptions {
    /// Default options for this model.
    #[must_use]
    pub fn new(model: ModelSource) -> Self {
        Self {
            model,
            template: None,
            device: "auto".to_owned(),
            threads: None,
            gpu_context: GpuContext::default(),
            context_tokens: defaults::CONTEXT_TOKENS,
            max_agents: None,
            wait_for_slot: true,
            max_agents_parked: 16_384,
            kv_tokens: None,
            state_snapshots: None,
            max_rows: None,
            max_prefill_tokens: None,
            command_queue: 1_024,
            event_queue: 4_096,
            kv_type: KvType::default(),
            budget: FrameBudget::Auto,
            budget_carry: None,
            background_prefill: true,
            prepare_constraints: true,
            context_shift: false,
            budget_free_running: false,
            max_launch: Some(micros(defaults::MAX_LAUNCH_MICROS)),
            cost_cache: None,
            pre_tokenizer: None,
            fallback: true,
            deadlines: Deadlines::default(),
            inline_text: false,
        }
    }

    /// Default options for the model in this GGUF file.
    #[must_use]
    pub fn model(path: impl Into<PathBuf>) -> Self {
        Self::new(ModelSource::Path(path.into()))
    }

    /// Default options for the [small model](ModelSource::demo) that is built into the program.
    #[cfg(feature = "demo")]
    #[must_use]
    pub fn demo() -> Self {
        Self::new(ModelSource::demo())
    }

    /// Reads the tokenizer that an engine with these options uses, without an engine: markers of
    /// the [template](Self::template) are control tokens, and the chosen
    /// [pre-tokenizer](Self::pre_tokenizer) applies.
    ///
    /// # Errors
    /// [`EngineError::File`] with the file's defect, [`EngineError::Template`] if the chosen
    /// template does not work.
    pub fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        let Self { model, template, pre_tokenizer, .. } = self;
        let read = || -> Result<_, EngineError> {
            let text =
                LoadedText::from_gguf(&model.open()?, template.as_ref(), pre_tokenizer.as_deref())?;
            Ok(text.tokenizer)
        };
        read().map_err(|error| error.in_file(model))
    }

    /// # Errors
    /// [`EngineError::Option`] for a number out of range.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let carry_frames = self.budget_carry.unwrap_or(0) as usize;
        let bounds = [
            ("context_tokens", self.context_tokens as usize, 1..=1 << 20),
            ("max_agents", self.max_agents.unwrap_or(1) as usize, 1..=65_536),
            ("max_rows", self.max_rows.unwrap_or(1) as usize, 1..=512),
            ("state_snapshots", self.state_snapshots.unwrap_or(0) as usize, 0..=65_536),
            ("max_prefill_tokens", self.max_prefill_tokens.unwrap_or(1) as usize, 1..=512),
            ("command_queue", self.command_queue, 1..=MAX_QUEUE),
            ("event_queue", self.event_queue, 1..=MAX_QUEUE),
            ("max_agents_parked", self.max_agents_parked as usize, 0..=MAX_AGENTS_PARKED),
            ("budget_carry", carry_frames, 0..=MAX_CARRY_FRAMES as usize),
        ];
        for (option, value, range) in bounds {
            if !range.contains(&value) {
                let (min, max) = (*range.start(), *range.end());
                return Err(EngineError::Option { option, value, min, max });
            }
        }
        Ok(())
    }
}

const fn micros(micros: u32) -> Duration {
    Duration::from_micros(micros as u64)
}

/// Upper bound of [`EngineOptions::max_agents_parked`].
const MAX_AGENTS_PARKED: usize = 1 << 20;

/// Maximum of [`EngineOptions::budget_carry`]: half a second at 60 Hz.
pub const MAX_CARRY_FRAMES: u32 = 30;

/// Upper bound of a client's queues: 2^20 events of some 100 bytes are 100 MiB.
const MAX_QUEUE: usize = 1 << 20;

/// An error of a part of the engine, for its message.
type Source = Box<dyn std::error::Error + Send + Sync>;

/// Reason why an engine did not start or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Choose another value.
    #[error("option {option} is {value}, expected {min}..={max}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The value given.
        value: usize,
        /// The minimum.
        min: usize,
        /// The maximum.
        max: usize,
    },
    /// The model file cannot be used: it is not a readable GGUF file, or walla does not support its
    /// model, tokenizer or a tensor. Choose another file.
    #[error("{}{source}", path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default())]
    File {
        /// The model file. `None` for a model in the program, or if the source names it.
        path: Option<PathBuf>,
        /// The defect.
        source: Source,
    },
    /// The chosen chat template does not work: choose another [`EngineOptions::template`], or
    /// `None` for the model file's template.
    #[error("the chosen chat template {template} does not work: {reason}")]
    Template {
        /// Its name or path.
        template: String,
        /// The reason.
        reason: TemplateError,
    },
    /// No device opened, the model does not fit on it, or it failed. Another device may work.
    #[error(transparent)]
    Device(Source),
    /// The device was lost and the CPU could not take over: start another engine. If the model file
    /// was overwritten in place, `reason` is [`EngineError::File`].
    #[error("{lost}; the CPU cannot take over: {reason}")]
    NotReplaced {
        /// The error of the lost device.
        lost: Box<EngineError>,
        /// Why the CPU cannot take over.
        reason: Box<EngineError>,
    },
    /// The model loaded on the fallback device differs from the first one: a defect in walla.
    #[error("the model loaded after the device was lost differs from the first one")]
    OtherModel,
    /// Inconsistent internal state of the engine: a defect in walla.
    #[error(transparent)]
    Internal(Source),
    /// The operating system could not start a thread.
    #[error("a thread cannot be started: {0}")]
    Thread(String),
    /// The session cannot be recorded, or the recording cannot be read.
    #[error("{0}")]
    Recording(String),
    /// A host could not start the engine. The reason.
    #[error("{0}")]
    NotStarted(String),
    /// The engine has the maximum number of clients: drop or share one.
    #[error("an engine serves at most {max_clients} clients")]
    TooManyClients {
        /// The limit.
        max_clients: u32,
    },
    /// The device thread panicked: a defect in walla. Start another engine.
    #[error("the device thread panicked: {0}")]
    Panicked(String),
    /// This process is a fork of the one that started the engine and lacks its threads: start
    /// another engine here.
    #[error("the engine's threads belong to the process that this one was forked from")]
    Forked,
    /// The engine was stopped: start another.
    #[error("the engine was stopped")]
    Stopped,
    /// The model could not be loaded, so the engine never ran: see the inner error.
    #[error("the model cannot be loaded: {0}")]
    NotLoaded(std::sync::Arc<EngineError>),
    /// The engine has failed: start another.
    #[error("the engine has failed: {0}")]
    Failed(std::sync::Arc<EngineError>),
}

impl EngineError {
    /// Adds the model file's path to an error about the file, unless its message already contains
    /// it.
    pub(crate) fn in_file(self, model: &ModelSource) -> Self {
        match (self, model) {
            (Self::File { path: None, source }, ModelSource::Path(path)) => {
                let of_file = source.downcast_ref().and_then(GgufError::path);
                let named = of_file.or_else(|| source.downcast_ref().and_then(TensorError::path));
                Self::File { path: named.is_none().then(|| path.clone()), source }
            }
            (error, _) => error,
        }
    }

    /// Whether the device failed, so that another device may work.
    pub(crate) fn is_of_device(&self) -> bool {
        let Self::Device(source) = self else { return false };
        source.downcast_ref().is_none_or(|error| matches!(error, RegistryError::Device(_)))
    }
}

impl From<GgufError> for EngineError {
    fn from(error: GgufError) -> Self {
        Self::File { path: None, source: error.into() }
    }
}

impl From<SpecError> for EngineError {
    fn from(error: SpecError) -> Self {
        Self::File { path: None, source: error.into() }
    }
}

impl From<VocabularyError> for EngineError {
    fn from(error: VocabularyError) -> Self {
        Self::File { path: None, source: error.into() }
    }
}

impl From<RegistryError> for EngineError {
    fn from(error: RegistryError) -> Self {
        Self::Device(error.into())
    }
}

impl From<DeviceError> for EngineError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error.into())
    }
}

impl From<LoadError> for EngineError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Vocabulary(error) => error.into(),
            LoadError::Template { template, reason } => Self::Template { template, reason },
        }
    }
}

impl From<ExecError> for EngineError {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::Stopped => Self::Stopped,
            ExecError::Device(error) => error.into(),
            ExecError::Tensor(error) => Self::File { path: None, source: error.into() },
            error => Self::Internal(error.into()),
        }
    }
}

impl From<StepError> for EngineError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Exec(error) => error.into(),
            error => Self::Internal(error.into()),
        }
    }
}
