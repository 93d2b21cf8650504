use std::path::PathBuf;
use std::time::Duration;

use walla_device::{DeviceError, GpuContext, KvType, RegistryError};
use walla_exec::{ExecError, StepError};
use walla_model::chat::{LoadError, LoadedText, TemplateChoice, TemplateError};
use walla_model::tokenizer::{Tokenizer, VocabularyError};
use walla_model::{Gguf, GgufError, SpecError};

/// Where a model comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A GGUF file. It is read while the model loads, and read again if the CPU takes over from a
    /// lost device ([`EngineOptions::fallback`]); for that the engine keeps it open. The path can
    /// be renamed, replaced or deleted at any time. A program that overwrites or shortens the file
    /// in place while it loads makes the load fail, later it prevents a fallback.
    Path(PathBuf),
    /// A GGUF file inside the program.
    Static(&'static [u8]),
}

impl ModelSource {
    /// Opens the file: its tokenizer, say, without an engine.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(&self) -> Result<Gguf, GgufError> {
        match self {
            Self::Path(path) => Gguf::open(path),
            Self::Static(bytes) => Gguf::from_static(bytes),
        }
    }

    /// The small model that is part of the program: tavern characters and a robot's JSON actions.
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

/// Longest waits for a device, after which an engine gives it up. `None` waits forever.
///
/// A device that exceeds `load` or `step` counts as lost: its memory is leaked, because the device
/// may still write to it, and the [fallback](EngineOptions::fallback) takes over where one exists.
/// Otherwise the engine fails, and every open reply with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Time without progress while a model loads: one tensor, or the preparation of all programs.
    /// Default: 120 s, since a driver may compile kernels at the first start.
    pub load: Option<Duration>,
    /// Time from the launch of a step to its results. Default: 60 s.
    pub step: Option<Duration>,
    /// Time from the start of a reply to its end, without the time that it waited behind other
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

/// How to start an engine.
///
/// # Examples
/// ```
/// use walla_runtime::{EngineOptions, ModelSource};
/// let options = EngineOptions { agents_max: 16, ..EngineOptions::new(ModelSource::Path("smith.gguf".into())) };
/// assert_eq!(options.context_tokens, 1_024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The model.
    pub model: ModelSource,
    /// A chat template instead of the model file's own: a built-in one of the model's family, or a
    /// file. One that does not work is an error at load ([`EngineError::Template`]). Default:
    /// `None`, the file's own. If that one is absent or does not work, the model loads and raw
    /// prompts work; [`ModelCard::template`](crate::ModelCard::template) has the reason.
    pub template: Option<TemplateChoice>,
    /// Which device runs it: `auto`, `cpu`, `cuda:0`. Default: `auto`, the best that opens and that
    /// the model fits; [`ModelCard::fallback_after`](crate::ModelCard::fallback_after) says why a
    /// better one is not taken.
    pub device: String,
    /// Threads that a CPU device may use. Default: `None`, half of the cores, because a game keeps
    /// its own.
    pub threads: Option<u32>,
    /// In which context a GPU device works: one of its own, one on a part of the multiprocessors,
    /// or the program's. Default: its own.
    pub gpu_context: GpuContext,
    /// Tokens of each agent's context, at most those that the model was trained for. Default:
    /// `1_024`, a persona and some twenty turns.
    pub context_tokens: u32,
    /// Agents that can speak at the same time, of all clients together: the slots. Default: `64`.
    pub agents_max: u32,
    /// Whether agents beyond [`agents_max`](Self::agents_max) wait for a slot when they are asked.
    /// Default: `true`. The agent with the highest priority is next, then the one whose ask is the
    /// oldest; after 10 seconds of waiting the age alone counts. It takes a free slot, or that of
    /// the agent that has been idle longest, which is parked and loses its KV cache but not its
    /// conversation.
    ///
    /// `false`: an agent that has a slot keeps it, and an ask of an agent without one fails at once
    /// with [`ReplyError::TooManyAgents`](crate::ReplyError::TooManyAgents) unless a slot is free.
    pub wait_for_slot: bool,
    /// Agents without a slot that the engine keeps, of all clients together. Default: `16_384`:
    /// with 1 KB of persona and conversation each, 24 MB of memory.
    pub agents_parked_max: u32,
    /// Tokens that the KV pool holds for all agents together. Default: `None`, `agents_max *
    /// context_tokens`, so that no agent ever waits for pages. Less saves memory, as few agents
    /// have a full context.
    pub kv_tokens: Option<u32>,
    /// Rows of one step. Default: `128`, all agents and a prompt chunk of as many rows.
    pub rows_max: u32,
    /// Prompt tokens of one step. Default: `64`, so that a long prompt does not stall those who
    /// speak.
    pub prefill_tokens_max: u32,
    /// Capacity of a client's command queue, at least 1. Default: `1_024`.
    pub command_queue: usize,
    /// Capacity of a client's event queue, at least 1; the client's agents pause while it is full.
    /// Default: `4_096`, one second of 64 agents at 60 tokens.
    pub event_queue: usize,
    /// How keys and values are stored. Default: f16. 8 bits halve the cache; a CPU, also one that
    /// takes over from a lost GPU, attends to them by plain Rust, which takes longer than its
    /// vector instructions for f16.
    pub kv_type: KvType,
    /// Device time of one frame: steps that are predicted not to fit are not started. `None`: no
    /// limit. Default: 4,166 µs, a quarter of a 60 Hz frame. It holds for clients that are paced
    /// [per frame](crate::Pacing::PerFrame); [`Engine::set_budget`](crate::Engine::set_budget)
    /// changes it at run time. Zero: no step runs.
    ///
    /// With a budget, loading ends with some steps on scratch sequences (under a second), which say
    /// what steps cost.
    pub budget: Option<Duration>,
    /// Whether the budget also holds for [free-running](crate::Pacing::FreeRunning) clients, in
    /// windows of 1/60 s. Default: `false`. A budget set at run time always does.
    pub budget_free_running: bool,
    /// Device time of one step on a GPU, as far as the budget's predictions reach: what a renderer
    /// on the same GPU waits for at most. `None`: no limit. Default: 2 ms. A CPU's steps are not
    /// cut: the system lets the game in between.
    pub launch_max: Option<Duration>,
    /// Folder in which the costs of steps are kept for each device and model, so that they are
    /// measured once. A file that is damaged or of another build is ignored and replaced. Default:
    /// `None`, they are measured at each load.
    pub cost_cache: Option<PathBuf>,
    /// How the model's tokenizer splits text before merging, overriding `tokenizer.ggml.pre` of the
    /// file: `llama-bpe`, `qwen2` and others
    /// ([`PreTokenizer::NAMES`](walla_model::tokenizer::PreTokenizer::NAMES)). For files that lack
    /// the key ([`ModelCard::warnings`](crate::ModelCard::warnings) reports it) or have a name that
    /// walla does not know. Default: `None`, the file's own.
    pub pre_tokenizer: Option<String>,
    /// Whether the CPU takes over when the device is lost: conversations go on from what the host
    /// knows, each reply where it was. The model is loaded again, so that everybody is silent for
    /// some seconds. The model's file stays open for that. If it was overwritten in place since,
    /// the engine fails with [`EngineError::NotReplaced`]. Default: `true`. Without effect if
    /// `device` is `cpu`.
    pub fallback: bool,
    /// When a device that hangs is given up, and when a reply ends early. Default: see
    /// [`Deadlines`].
    pub deadlines: Deadlines,
    /// Encodes prompts on the device thread instead of a thread of its own, so that steps are the
    /// same in every run. Default: `false`, since a long prompt takes milliseconds to encode. For
    /// tests.
    pub inline_text: bool,
}

impl EngineOptions {
    /// Defaults for all but the model.
    #[must_use]
    pub fn new(model: ModelSource) -> Self {
        Self {
            model,
            template: None,
            device: "auto".to_owned(),
            threads: None,
            gpu_context: GpuContext::default(),
            context_tokens: 1_024,
            agents_max: 64,
            wait_for_slot: true,
            agents_parked_max: 16_384,
            kv_tokens: None,
            rows_max: 128,
            prefill_tokens_max: 64,
            command_queue: 1_024,
            event_queue: 4_096,
            kv_type: KvType::default(),
            budget: Some(DEFAULT_BUDGET),
            budget_free_running: false,
            launch_max: Some(Duration::from_millis(2)),
            cost_cache: None,
            pre_tokenizer: None,
            fallback: true,
            deadlines: Deadlines::default(),
            inline_text: false,
        }
    }

    /// Reads the tokenizer that an engine with these options has, without an engine: with the
    /// markers of the [template](Self::template) as control tokens, and with the chosen
    /// [pre-tokenizer](Self::pre_tokenizer).
    ///
    /// # Errors
    /// [`EngineError::InFile`] with the file's path and its defect, [`EngineError::File`] if the
    /// path cannot be read as a file, [`EngineError::Template`] if the chosen template does not
    /// work.
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
    /// [`EngineError::Option`] for numbers that cannot work.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let bounds = [
            ("context_tokens", self.context_tokens as usize, 1 << 20),
            ("agents_max", self.agents_max as usize, 65_536),
            ("rows_max", self.rows_max as usize, 512),
            ("prefill_tokens_max", self.prefill_tokens_max as usize, 512),
            ("command_queue", self.command_queue, QUEUE_MAX),
            ("event_queue", self.event_queue, QUEUE_MAX),
        ];
        for (option, value, max) in bounds {
            if value == 0 || value > max {
                return Err(EngineError::Option { option, value, max });
            }
        }
        // None is a choice here.
        let (option, value) = ("agents_parked_max", self.agents_parked_max as usize);
        if value > AGENTS_PARKED_MAX {
            return Err(EngineError::Option { option, value, max: AGENTS_PARKED_MAX });
        }
        Ok(())
    }
}

/// A quarter of a frame at 60 Hz.
const DEFAULT_BUDGET: Duration =
    Duration::from_micros(walla_plan::governor::DEFAULT_BUDGET_MICROS as u64);

/// Bound of [`EngineOptions::agents_parked_max`].
const AGENTS_PARKED_MAX: usize = 1 << 20;

/// Bound of a client's queues: 2^20 events of some 100 bytes are 100 MiB.
const QUEUE_MAX: usize = 1 << 20;

/// Why an engine did not start or did not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Choose another value.
    #[error("option {option} is {value}, expected 1..={max}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What was asked for.
        value: usize,
        /// The largest that works.
        max: usize,
    },
    /// The file is not a GGUF file that can be read.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The file holds no model that walla runs.
    #[error(transparent)]
    Model(#[from] SpecError),
    /// The file's tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] VocabularyError),
    /// The chosen chat template does not work: choose another
    /// [`EngineOptions::template`], or none for the model file's own.
    #[error("the chosen chat template {template} does not work: {reason}")]
    Template {
        /// Its name or path.
        template: String,
        /// Why.
        reason: TemplateError,
    },
    /// Any of the errors above, or a tensor that cannot be used, with the path of the model file.
    #[error("{path}: {source}", path = path.display())]
    InFile {
        /// The model file.
        path: PathBuf,
        /// Its defect.
        source: Box<Self>,
    },
    /// No device opened: see the inner error for what to do.
    #[error(transparent)]
    Open(#[from] RegistryError),
    /// The model does not fit the device, or the device failed: see the inner error for what to do.
    #[error(transparent)]
    Exec(ExecError),
    /// The device was lost and the CPU could not take over: start another engine. If the model file
    /// was overwritten in place, `reason` is [`EngineError::File`].
    #[error("{lost}; the CPU cannot take over: {reason}")]
    NotReplaced {
        /// How the device was lost.
        lost: Box<EngineError>,
        /// Why the CPU cannot take over.
        reason: Box<EngineError>,
    },
    /// The device that took over from a lost one has another model: a defect in walla.
    #[error("the model that was loaded after the device was lost is another one")]
    OtherModel,
    /// The engine's own book-keeping disagrees with itself: a defect in walla.
    #[error(transparent)]
    Step(StepError),
    /// The system gives no thread.
    #[error("no thread: {0}")]
    Thread(String),
    /// All places for clients are taken: drop one, or share one.
    #[error("{clients_max} clients are the most that an engine serves")]
    TooManyClients {
        /// The limit.
        clients_max: u32,
    },
    /// The device thread panicked: a defect in walla. Start another engine.
    #[error("the device thread panicked: {0}")]
    Panicked(String),
    /// This process is a fork of the one that started the engine, without its threads: start
    /// another engine here.
    #[error("the engine's threads belong to the process that this one was forked from")]
    Forked,
    /// The engine was stopped: start another.
    #[error("the engine was stopped")]
    Stopped,
    /// The engine has failed: start another.
    #[error("the engine has failed: {0}")]
    Failed(std::sync::Arc<EngineError>),
}

impl EngineError {
    /// Adds the model file's path to an error about the file, unless its message has the path
    /// already.
    pub(crate) fn in_file(self, model: &ModelSource) -> Self {
        let has_path = match &self {
            Self::File(error) => error.path().is_some(),
            Self::Model(_) | Self::Tokenizer(_) => false,
            Self::Exec(ExecError::Tensor(error)) => error.path().is_some(),
            _ => true, // not about the file
        };
        match model {
            ModelSource::Path(path) if !has_path => {
                Self::InFile { path: path.clone(), source: Box::new(self) }
            }
            _ => self,
        }
    }

    /// Whether the device is what failed, so that another one may do.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(
            self,
            Self::Open(RegistryError::Device(_))
                | Self::Exec(ExecError::Device(_))
                | Self::Step(StepError::Exec(ExecError::Device(_)))
        )
    }
}

impl From<LoadError> for EngineError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Vocabulary(error) => Self::Tokenizer(error),
            LoadError::Template { template, reason } => Self::Template { template, reason },
        }
    }
}

impl From<ExecError> for EngineError {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::Stopped => Self::Stopped,
            error => Self::Exec(error),
        }
    }
}

impl From<StepError> for EngineError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Exec(error) => error.into(),
            error => Self::Step(error),
        }
    }
}

impl From<DeviceError> for EngineError {
    fn from(error: DeviceError) -> Self {
        Self::Exec(error.into())
    }
}
