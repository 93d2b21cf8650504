use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use walla_device::{GpuContext, KvType, Registry};
use walla_model::tokenizer::Tokenizer;
use walla_runtime::{
    AgentSpec, Deadlines, EngineError, EngineOptions, EngineState, EngineStats, ModelCard,
    ModelSource, Pacing, TemplateChoice,
};

use crate::agent::Agent;
use crate::hub::{BoundsMax, Hub};

/// Margin of the bound on agents, for programs that replace many agents at once.
const AGENTS_SPARE: u32 = 1_024;

/// Where a model is and what it may use. Made by [`Engine::open`].
#[derive(Debug)]
#[must_use]
pub struct EngineBuilder {
    options: EngineOptions,
    registry: Option<Registry>,
    asks_max: u32,
    ask_bytes_max: usize,
}

impl EngineBuilder {
    /// Nobody counts frames here, so there is no budget unless somebody sets one.
    fn new(model: ModelSource) -> Self {
        Self::with(EngineOptions { budget: None, ..EngineOptions::new(model) })
    }

    fn with(options: EngineOptions) -> Self {
        Self { options, registry: None, asks_max: 4_096, ask_bytes_max: 16 << 20 }
    }

    /// A chat template instead of the model file's own: `"chatml"`, `"llama3"`, `"gemma"`,
    /// `"mistral"`, or the path of a file with Jinja source. One that does not work fails
    /// [`start`](Self::start).
    ///
    /// Without it a model whose own template is absent or does not work starts, and asks through it
    /// fail with [`ReplyError::NoTemplate`](crate::ReplyError::NoTemplate). [`ModelCard::template`]
    /// has the reason.
    pub fn template(mut self, template: impl Into<TemplateChoice>) -> Self {
        self.options.template = Some(template.into());
        self
    }

    /// `auto` (the default: the best device), `cpu` or `cuda:0`.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.options.device = name.into();
        self
    }

    /// Threads that a CPU device may use. Default: half of the cores.
    pub fn threads(mut self, threads: u32) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// In which context a GPU device works: one of its own (the default), one on a part of the
    /// multiprocessors, or one that the program has already.
    pub fn gpu_context(mut self, context: impl Into<GpuContext>) -> Self {
        self.options.gpu_context = context.into();
        self
    }

    /// Tokens that one agent's conversation may have. Default 1,024; the model's own limit caps it.
    pub fn context_tokens(mut self, tokens: u32) -> Self {
        self.options.context_tokens = tokens;
        self
    }

    /// Agents that can speak at the same time; their memory is reserved when the model loads. More
    /// agents take turns. Default 64.
    pub fn agents_max(mut self, agents: u32) -> Self {
        self.options.agents_max = agents;
        self
    }

    /// Whether an agent beyond [`agents_max`](Self::agents_max) waits for a slot when it is asked
    /// (the default), or fails at once with
    /// [`ReplyError::TooManyAgents`](crate::ReplyError::TooManyAgents):
    /// [`EngineOptions::wait_for_slot`].
    pub fn wait_for_slot(mut self, waits: bool) -> Self {
        self.options.wait_for_slot = waits;
        self
    }

    /// Agents beyond [`agents_max`](Self::agents_max) that the engine keeps. Default 16,384:
    /// [`EngineOptions::agents_parked_max`].
    pub fn agents_parked_max(mut self, agents: u32) -> Self {
        self.options.agents_parked_max = agents;
        self
    }

    /// Maximum number of open asks, of all agents together: an ask is open until its reply ends.
    /// Default 4,096: each takes some 4 KB and its text, 16 MB in all. Beyond that
    /// [`Agent::try_ask`] returns the text, and [`Agent::ask`] fails with
    /// [`ReplyError::TooManyAsks`](crate::ReplyError::TooManyAsks).
    pub fn asks_max(mut self, asks: u32) -> Self {
        self.asks_max = asks;
        self
    }

    /// Bytes that the prompts of all open asks may have together: text, or 4 for each token.
    /// Default 16 MiB, 4 KiB for each of 4,096 asks.
    pub fn ask_bytes_max(mut self, bytes: usize) -> Self {
        self.ask_bytes_max = bytes;
        self
    }

    /// Tokens that all agents' conversations together keep on the device. Default: every agent's
    /// whole context.
    pub fn kv_tokens(mut self, tokens: u32) -> Self {
        self.options.kv_tokens = Some(tokens);
        self
    }

    /// Prompt tokens of one step, at most. Default 64: longer chunks read prompts faster and make
    /// speaking agents wait longer.
    pub fn prefill_tokens_max(mut self, tokens: u32) -> Self {
        self.options.prefill_tokens_max = tokens;
        self
    }

    /// How keys and values are stored. Default f16.
    pub fn kv_type(mut self, kv_type: KvType) -> Self {
        self.options.kv_type = kv_type;
        self
    }

    /// Device time that all agents together may use in each 1/60 s: what is left is the host's.
    /// Default: no limit, the engine works as fast as the device goes. [`Engine::set_budget`]
    /// changes it later.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.options.budget = Some(budget);
        self.options.budget_free_running = true;
        self
    }

    /// A folder in which measured costs of steps are kept, so that a [budget](Self::budget) needs
    /// no measuring at the next start.
    pub fn cost_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.cost_cache = Some(folder.into());
        self
    }

    /// When a device that hangs is given up, and when a reply ends early. Default: see
    /// [`Deadlines`].
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.options.deadlines = deadlines;
        self
    }

    /// How the model's tokenizer splits text before merging, overriding the file: for files without
    /// `tokenizer.ggml.pre` ([`ModelCard::warnings`](crate::ModelCard::warnings) reports it) or
    /// with a name that walla does not know. Default: the file's own.
    pub fn pre_tokenizer(mut self, name: impl Into<String>) -> Self {
        self.options.pre_tokenizer = Some(name.into());
        self
    }

    /// Devices to choose from, instead of those that walla was built with.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// The model's tokenizer, for [stop tokens](walla_runtime::AgentSpec::stop_tokens),
    /// [masks](crate::TokenMask) and [prompts of tokens](crate::Prompt::Tokens): needs no engine.
    /// It honours [`template`](Self::template) and [`pre_tokenizer`](Self::pre_tokenizer).
    ///
    /// Reads the vocabulary from the file and blocks meanwhile: nothing to do in play.
    ///
    /// # Errors
    /// [`EngineError::InFile`] with the file's path and its defect, [`EngineError::File`] if the
    /// path cannot be read as a file, [`EngineError::Template`] if the chosen
    /// [`template`](Self::template) does not work.
    pub fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        self.options.tokenizer()
    }

    /// Loads the model on a thread of its own and waits until it is ready.
    ///
    /// # Errors
    /// What is wrong with the options, the file or the device.
    ///
    /// # Cancel safety
    /// Dropping the future stops the load, and does not wait for that.
    pub async fn start(self) -> Result<Engine, EngineError> {
        self.start_with_progress(|_| {}).await
    }

    /// Like [`start`](Self::start); `progress` hears the share done, from 0 to 1, on the caller's
    /// task.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Cancel safety
    /// As [`start`](Self::start).
    pub async fn start_with_progress(
        self,
        mut progress: impl FnMut(f32),
    ) -> Result<Engine, EngineError> {
        let (hub, mut loaded) = self.launch()?;
        while let Some(fraction) = loaded.recv().await {
            progress(fraction);
        }
        match hub.engine().state() {
            EngineState::Ready => {
                progress(1.0);
                Ok(Engine { hub: Arc::new(hub) })
            }
            EngineState::Failed(error) => Err(EngineError::Failed(error)),
            EngineState::Stopped | EngineState::Loading { .. } => Err(EngineError::Stopped),
        }
    }

    /// Begins to load. What comes back holds the only handle but the pump's: dropping it never
    /// waits.
    fn launch(self) -> Result<(Hub, UnboundedReceiver<f32>), EngineError> {
        let slots = self.options.agents_max;
        // A dropped agent counts until the engine has removed it. The engine has a bound of its
        // own; this one limits the queue before it.
        let agents = slots.saturating_add(self.options.agents_parked_max).saturating_mul(2);
        let bounds = BoundsMax {
            asks: self.asks_max,
            ask_bytes: self.ask_bytes_max as u64,
            agents: agents.saturating_add(AGENTS_SPARE),
            slots,
        };
        let engine = match self.registry {
            Some(registry) => walla_runtime::Engine::start_with(self.options, registry)?,
            None => walla_runtime::Engine::start(self.options)?,
        };
        let client = engine.client(Pacing::FreeRunning)?;
        Hub::start(client, bounds).map_err(|error| EngineError::Thread(error.to_string()))
    }
}

/// A model on a device, ready to speak. Clones share it; it stops when the last clone, agent and
/// reply are gone.
///
/// Dropping the last of them does not wait for that: device and memory are given back a little
/// later. [`stop`](Self::stop) waits.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) hub: Arc<Hub>,
}

impl Engine {
    /// A model file (GGUF).
    pub fn open(path: impl Into<PathBuf>) -> EngineBuilder {
        EngineBuilder::new(ModelSource::Path(path.into()))
    }

    /// The small model that comes with walla: tavern characters and a robot's JSON actions.
    #[cfg(feature = "demo")]
    pub fn demo() -> EngineBuilder {
        EngineBuilder::new(ModelSource::demo())
    }

    /// A model file that is part of the program.
    pub fn from_static(bytes: &'static [u8]) -> EngineBuilder {
        EngineBuilder::new(ModelSource::Static(bytes))
    }

    /// An engine with these options, as `bevy_walla` takes them. A [budget](EngineOptions::budget)
    /// holds here only with [`budget_free_running`](EngineOptions::budget_free_running), which
    /// [`EngineBuilder::budget`] sets.
    pub fn with_options(options: EngineOptions) -> EngineBuilder {
        EngineBuilder::with(options)
    }

    /// Adds an agent with this persona and defaults for all else.
    #[must_use]
    pub fn agent(&self, persona: impl Into<String>) -> Agent {
        self.agent_with(AgentSpec::new(persona))
    }

    /// Adds an agent.
    #[must_use]
    pub fn agent_with(&self, spec: AgentSpec) -> Agent {
        Agent::new(Arc::clone(&self.hub), spec)
    }

    /// What was loaded, and onto what.
    #[must_use]
    pub fn model(&self) -> Option<&ModelCard> {
        self.hub.engine().model()
    }

    /// The model's tokenizer: for biases, [stop tokens](walla_runtime::AgentSpec::stop_tokens),
    /// [masks](crate::TokenMask), [prompts of tokens](crate::Prompt::Tokens), or to count what a
    /// text takes of a context. [`EngineBuilder::tokenizer`] has it without an engine.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.hub.engine().tokenizer()
    }

    /// Changes the device time that all agents together may use in each 1/60 s, from the next one
    /// on; `None`: no limit. Zero pauses all agents at once: see [`set_paused`](Self::set_paused).
    pub fn set_budget(&self, budget: Option<Duration>) {
        self.hub.engine().set_budget(budget);
    }

    /// Pauses all agents, or lets them go on with the same tokens. In a pause no step runs and the
    /// device thread sleeps; asks queue, cancels and dropped agents count at once. The time of a
    /// pause does not count in [`Usage`](crate::Usage).
    pub fn set_paused(&self, is_paused: bool) {
        self.hub.set_paused(is_paused);
    }

    /// Changes how many tokens all agents' conversations together keep on the device, up to what
    /// was reserved at the start. Who has to make way reads its history again later; no word is
    /// lost.
    pub fn set_kv_tokens(&self, tokens: u32) {
        self.hub.engine().set_kv_tokens(tokens);
    }

    /// Counters, for diagnostics.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.hub.engine().stats()
    }

    /// How the engine is.
    #[must_use]
    pub fn state(&self) -> EngineState {
        self.hub.engine().state()
    }

    /// Stops the engine for all that have a part in it, and waits until its device and memory are
    /// given back: before another model takes their place, or at the end of a program. Replies that
    /// have not ended fail with [`ReplyError::EngineGone`](crate::ReplyError::EngineGone).
    ///
    /// A device that hangs never ends, and this waits as long.
    ///
    /// # Cancel safety
    /// Once it was polled, the engine stops whether or not somebody waits.
    pub async fn stop(&self) {
        self.hub.engine().stop();
        self.hub.ended().await;
    }
}
