use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use walla_device::Registry;
use walla_model::tokenizer::Tokenizer;
use walla_record::{Pace, Player, Recorder, Recording, RecordingStatus};
use walla_runtime::Engine as RuntimeEngine;
use walla_runtime::walla_trace::TraceFile;
use walla_runtime::{
    AgentSpec, AskOptions, EngineClient, EngineError, EngineOptions, EngineState, EngineStats,
    FrameBudget, ModelCard, ModelSource, Pacing, Prompt, ReplyError, Score,
};

use walla_embed::{EmbedError, Embedding, Purpose};
use walla_memory::{Recall, RecallClient, RecallOptions};

use crate::agent::Agent;
use crate::dispatcher::{BoundsMax, Dispatcher};

/// Margin of the limit on agents, for programs that replace many agents at once.
const AGENTS_SPARE: u32 = 1_024;

/// Texts for which [`Engine::score`] takes another agent.
const TEXTS_OF_AN_AGENT: usize = 8;

/// Agents of [`Engine::score`] at most. With ten tokens each, they fill steps of 128 rows.
const MAX_SCORING_AGENTS: usize = 16;

/// Default of [`EngineBuilder::max_asks`].
const MAX_ASKS: u32 = 4_096;

/// Default of [`EngineBuilder::max_ask_bytes`].
const MAX_ASK_BYTES: usize = 16 << 20;

/// [Options](EngineOptions) of an engine, and what only this API has. Created by
/// [`Engine::builder`].
#[derive(Debug)]
#[must_use]
pub struct EngineBuilder {
    options: EngineOptions,
    registry: Option<Registry>,
    trace: Option<PathBuf>,
    record_to: Option<PathBuf>,
    max_asks: u32,
    max_ask_bytes: usize,
    recall: RecallOptions,
}

impl EngineBuilder {
    fn new(mut options: EngineOptions) -> Self {
        // A host without frames has no default budget; one that is set applies to this API's
        // agents.
        match options.budget {
            FrameBudget::Auto if !options.budget_free_running => {
                options.budget = FrameBudget::Unlimited;
            }
            budget => options.budget_free_running = budget != FrameBudget::Unlimited,
        }
        Self {
            options,
            registry: None,
            trace: None,
            record_to: None,
            max_asks: MAX_ASKS,
            max_ask_bytes: MAX_ASK_BYTES,
            recall: recall_options(),
        }
    }

    /// Maximum number of open asks, of all agents together: an ask is open until its reply ends.
    /// Default 4,096: each takes about 4 KB and its text, 16 MB in all. Beyond that
    /// [`Agent::try_ask`] returns the text, and [`Agent::ask`] fails with
    /// [`ReplyError::TooManyAsks`](crate::ReplyError::TooManyAsks).
    pub fn max_asks(mut self, asks: u32) -> Self {
        self.max_asks = asks;
        self
    }

    /// Maximum bytes of the prompts of all open asks: text, or 4 per token. Default 16 MiB, 4 KiB
    /// for each of 4,096 asks.
    pub fn max_ask_bytes(mut self, bytes: usize) -> Self {
        self.max_ask_bytes = bytes;
        self
    }

    /// Writes a trace to this file, for <https://ui.perfetto.dev>: activity of the device thread
    /// and the device over time. The file ends shortly after the last handle of the engine is
    /// dropped. An error is logged, and the engine starts without a trace. `WALLA_TRACE=file.json`
    /// in the environment has the same effect without a rebuild.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.trace = Some(path.into());
        self
    }

    /// Records the session of this engine's agents to a file ([`record`](crate::record)): for
    /// reports of defects, for replays with `walla replay FILE`, and for tests with
    /// [`Engine::replay_from`]. It contains personas and conversations. An existing recording is
    /// replaced. A recording that fails later ends with a warning, and the session continues
    /// ([`Engine::recorder`]).
    pub fn record_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.record_to = Some(path.into());
        self
    }

    /// Replaces the registry of devices that walla was built with.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Settings of the engine's [memories](Engine::recall). Default: those of [`RecallOptions`],
    /// without a budget of the embedding model. With a [budget](EngineOptions::budget) of the
    /// engine, give the model one too ([`RecallOptions::embed_budget`]). Its frames follow at
    /// intervals of [`RecallOptions::frame_time`], here 1/60 s by default.
    pub fn recall(mut self, options: RecallOptions) -> Self {
        self.recall = options;
        if self.recall.embed_budget.is_some() {
            // Nothing else grants the model its budget: this engine has no frames of a host.
            self.recall.frame_time.get_or_insert(FRAME_TIME);
        }
        self
    }

    /// Loads the model on a dedicated thread and waits until it is ready.
    ///
    /// # Errors
    /// An error of the options; [`EngineError::NotLoaded`] with an error of the file or the device.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the load without waiting for it.
    pub async fn start(self) -> Result<Engine, EngineError> {
        self.start_with_progress(|_| {}).await
    }

    /// Like [`start`](Self::start); `progress` receives the fraction loaded, from 0 to 1, on the
    /// caller's task.
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
        let (engine, mut loaded) = self.launch()?;
        while let Some(fraction) = loaded.recv().await {
            progress(fraction);
        }
        match engine.state() {
            EngineState::Ready => {
                // The event loop may not have seen the last fraction.
                progress(1.0);
                Ok(engine)
            }
            EngineState::Failed(error) => Err(EngineError::NotLoaded(error)),
            EngineState::Stopped | EngineState::Loading { .. } => Err(EngineError::Stopped),
        }
    }

    /// Begins to load. The channel has the loaded share. The returned engine has the only handle
    /// besides the event loop's: dropping it never waits.
    fn launch(self) -> Result<(Engine, UnboundedReceiver<f32>), EngineError> {
        let bounds = bounds(&self.options, self.max_asks, self.max_ask_bytes);
        let trace = self.trace.and_then(TraceFile::start_or_log);
        let engine = match self.registry {
            Some(registry) => walla_runtime::Engine::start_with(self.options, registry)?,
            None => walla_runtime::Engine::start(self.options)?,
        };
        let client = engine.client(Pacing::FreeRunning).map_err(|error| match error {
            // The load has already failed.
            EngineError::Failed(error) => EngineError::NotLoaded(error),
            error => error,
        })?;
        // The recorder is behind the memories, so that a replay needs none.
        let (client, recorder) = recorded(client, self.record_to)?;
        let recall = Recall::new(self.recall).client_of(client);
        Engine::connect(recall, bounds, trace, recorder)
    }
}

/// Default time between the frames of an embedding model.
const FRAME_TIME: Duration = Duration::from_nanos(1_000_000_000 / 60);

/// The default of a host without frames.
fn recall_options() -> RecallOptions {
    RecallOptions { embed_budget: None, ..RecallOptions::default() }
}

/// The client, in a recorder if there is a path.
fn recorded(
    client: impl EngineClient,
    path: Option<PathBuf>,
) -> Result<(Box<dyn EngineClient>, Option<RecordingStatus>), EngineError> {
    let Some(path) = path else { return Ok((Box::new(client), None)) };
    let recorder = Recorder::new(path, client);
    let recorder = recorder.map_err(|error| EngineError::Recording(error.to_string()))?;
    let status = recorder.status();
    Ok((Box::new(recorder), Some(status)))
}

fn bounds(options: &EngineOptions, asks: u32, ask_bytes: usize) -> BoundsMax {
    // If a device does not choose fewer.
    let slots = options.max_agents.unwrap_or(walla_plan::defaults::MAX_SEQUENCES);
    let max_parked = options.max_agents_parked;
    // A dropped agent counts until the engine has removed it. The engine has its own limit; this
    // one bounds the queue before it.
    let agents = slots.saturating_add(max_parked).saturating_mul(2).saturating_add(AGENTS_SPARE);
    BoundsMax { asks, ask_bytes: ask_bytes as u64, agents, slots }
}

/// A model on a device, ready to speak. Clones share it. It stops when the last clone, agent and
/// reply are dropped.
///
/// Dropping the last of them does not block: device and memory are released a little later.
/// [`stop`](Self::stop) waits for the release.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) dispatcher: Arc<Dispatcher>,
    recorder: Option<RecordingStatus>,
}

impl Engine {
    /// Loads the model of these options on a dedicated thread and waits until it is ready.
    /// Settings that only this API has are in [`Engine::builder`].
    ///
    /// # Errors
    /// As [`EngineBuilder::start`].
    ///
    /// # Cancel safety
    /// Dropping the future aborts the load without waiting for it.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use walla::{Engine, EngineOptions};
    /// let small = Engine::start(EngineOptions::model("smith.gguf")).await?;
    /// let options = EngineOptions { threads: Some(2), ..EngineOptions::model("dragon.gguf") };
    /// let large = Engine::start(options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start(options: EngineOptions) -> Result<Self, EngineError> {
        Self::builder(options).start().await
    }

    /// An engine with these options and further settings.
    pub fn builder(options: EngineOptions) -> EngineBuilder {
        EngineBuilder::new(options)
    }

    /// Joins a running engine, which another owner has started: for instance the plugin of
    /// `bevy_walla` (`Walla::engine`). Both share the model and run in one batch, and each has its
    /// own agents. While the engine loads, asks wait for it.
    ///
    /// The engine keeps the settings that it was started with.
    /// [`max_asks`](EngineBuilder::max_asks) and [`max_ask_bytes`](EngineBuilder::max_ask_bytes)
    /// have their defaults.
    ///
    /// # Errors
    /// [`EngineError::Failed`] or [`EngineError::Stopped`] if the engine has ended,
    /// [`EngineError::TooManyClients`] beyond 16 owners.
    ///
    /// # Examples
    /// ```no_run
    /// # fn run(engine: walla::RuntimeEngine) -> Result<(), Box<dyn std::error::Error>> {
    /// // In Bevy: let engine = walla.engine().ok_or("no engine")?.clone();
    /// let narrator = walla::Engine::join(engine)?.agent("You tell stories about a tavern.");
    /// # Ok(())
    /// # }
    /// ```
    pub fn join(engine: RuntimeEngine) -> Result<Self, EngineError> {
        Self::with_client(engine.client(Pacing::FreeRunning)?)
    }

    /// An engine of any kind, by a client of it: a remote engine, or one that a program implements.
    /// Agents of other clients are not affected.
    ///
    /// [`max_asks`](EngineBuilder::max_asks) and [`max_ask_bytes`](EngineBuilder::max_ask_bytes)
    /// have their defaults.
    ///
    /// # Errors
    /// [`EngineError::Thread`] if no thread can be started.
    pub fn with_client(client: impl EngineClient) -> Result<Self, EngineError> {
        let defaults = EngineOptions::new(ModelSource::Static(&[]));
        let bounds = bounds(&defaults, MAX_ASKS, MAX_ASK_BYTES);
        let recall = Recall::new(recall_options()).client(client);
        Self::connect(recall, bounds, None, None).map(|(engine, _loaded)| engine)
    }

    /// Starts the event loop of a client.
    fn connect(
        recall: RecallClient,
        bounds: BoundsMax,
        trace: Option<TraceFile>,
        recorder: Option<RecordingStatus>,
    ) -> Result<(Self, UnboundedReceiver<f32>), EngineError> {
        let (dispatcher, loaded) = Dispatcher::start(recall, bounds, trace)
            .map_err(|error| EngineError::Thread(error.to_string()))?;
        Ok((Self { dispatcher: Arc::new(dispatcher), recorder }, loaded))
    }

    /// Replays a recording instead of a model: agents with the recorded personas and asks get the
    /// recorded replies, at the recorded times ([`Player`](crate::record::Player)). Another ask
    /// fails with [`ReplyError::NotRecorded`](crate::ReplyError::NotRecorded).
    ///
    /// # Errors
    /// [`EngineError::Recording`] if the file is no readable recording, [`EngineError::Thread`].
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = walla::Engine::replay_from("session.walla")?;
    /// let robot = engine.agent("You are a courier robot.");
    /// let reply = robot.ask("Bring this to the kitchen.").finish().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn replay_from(path: impl AsRef<Path>) -> Result<Self, EngineError> {
        let recording = Recording::open(path);
        let recording = recording.map_err(|error| EngineError::Recording(error.to_string()))?;
        Self::with_client(Player::new(recording).pace(Pace::Time).client())
    }

    /// State of the recording that [`EngineBuilder::record_to`] has begun.
    #[must_use]
    pub fn recorder(&self) -> Option<&RecordingStatus> {
        self.recorder.as_ref()
    }

    /// The local engine without this API, to share the model with a Bevy app. Agents of both run in
    /// one batch, and either can end without the other. `None` for a remote engine.
    ///
    /// - The app's plugin has no effect on settings of the engine. An app that needs a
    ///   [budget](EngineOptions::budget) sets it here, or at run time: an engine of this API has
    ///   none by default.
    /// - Agents of this API run freely, agents of the app by its frames.
    /// - The returned handle keeps the engine alive. The drop of the last handle waits up to 300 ms
    ///   for the device; handles of this API never wait.
    ///
    /// # Examples
    /// ```ignore
    /// let budget = Duration::from_millis(4).into();
    /// let engine = Engine::start(EngineOptions { budget, ..EngineOptions::model("smith.gguf") }).await?;
    /// let runtime = engine.runtime().ok_or("a remote engine")?;
    /// app.add_plugins(WallaPlugin::new(runtime.clone()));
    /// let narrator = engine.agent("You tell stories about a tavern.");
    /// ```
    #[must_use]
    pub fn runtime(&self) -> Option<&RuntimeEngine> {
        self.dispatcher.client().local()
    }

    /// Adds an agent with this persona and default settings.
    #[must_use]
    pub fn agent(&self, persona: impl Into<String>) -> Agent {
        self.agent_with(AgentSpec::new(persona))
    }

    /// Adds an agent.
    #[must_use]
    pub fn agent_with(&self, spec: AgentSpec) -> Agent {
        Agent::new(Arc::clone(&self.dispatcher), spec)
    }

    /// How probable each of these texts is behind a raw prompt, in the order of the texts: for
    /// evaluation, or a choice without a character. The prompt is evaluated once, and each text
    /// costs its own tokens. [`Agent::score`] scores answers of a character, and describes the
    /// rules and errors.
    ///
    /// # Errors
    /// As for [`Agent::score`].
    ///
    /// # Cancel safety
    /// Dropping the future cancels the work.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run(engine: walla::Engine) -> Result<(), walla::ReplyError> {
    /// let scores = engine.score("The capital of France is", [" Paris", " Rome", " a city"]).await?;
    /// for score in scores {
    ///     println!("{}: {} in {} tokens", score.index, score.log_probability, score.tokens);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn score(
        &self,
        prompt: impl Into<String>,
        texts: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Vec<Score>, ReplyError> {
        let prompt = Prompt::Raw(prompt.into());
        let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
        // An agent evaluates one text at a time: several agents fill the steps, and share the
        // evaluated prompt.
        let agents = texts.len().div_ceil(TEXTS_OF_AN_AGENT).clamp(1, MAX_SCORING_AGENTS);
        let size = texts.len().div_ceil(agents).max(1);
        // Scores of the part from this text on.
        let ask = |agent: &Agent, from: usize| {
            let part = texts.iter().skip(from).take(size);
            agent.ask_with(prompt.clone(), AskOptions::score(part))
        };
        let first = self.agent("");
        let reply = ask(&first, 0);
        let begin = |from| {
            let agent = self.agent("");
            (from, ask(&agent, from), agent)
        };
        let others: Vec<_> = (size..texts.len()).step_by(size).map(begin).collect();
        let mut scores = reply.scores().await?;
        for (before, reply, _agent) in others {
            let part = match reply.scores().await {
                // Without a slot that it could wait for, an agent that has one does its work.
                Err(ReplyError::TooManyAgents { .. }) => ask(&first, before).scores().await?,
                part => part?,
            };
            let of_all = |score: Score| Score { index: before as u32 + score.index, ..score };
            scores.extend(part.into_iter().map(of_all));
        }
        Ok(scores)
    }

    /// The memories of this engine's agents: [`Recall::update`] sends the changes of a
    /// [`Memory`](crate::memory::Memory), [`Agent::set_recall`] states who knows it. Entries are
    /// found by words and meaning, with the model inside the program (feature `minilm`, English) or
    /// that of [`Recall::set_embedder`] or [`Recall::load_embedder`].
    ///
    /// # Examples
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use walla::memory::{AgentRecall, Entry, Memory};
    ///
    /// let engine = walla::Engine::start(walla::EngineOptions::model("qwen3-0.6b-q8_0.gguf")).await?;
    /// let mut lore = Memory::from_lore_text(&std::fs::read_to_string("lore.txt")?)?;
    /// let mut memory = Memory::default();
    /// memory.add(Entry::new("The player owes 3 silver."))?;
    /// engine.recall().update(&mut lore)?;
    /// engine.recall().update(&mut memory)?;
    /// let greta = engine.agent("You are Greta, the smith.");
    /// greta.set_recall(Some(AgentRecall::new([memory.key(), lore.key()])));
    /// println!("{}", greta.ask("Do I owe you anything?").finish().await?.text);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn recall(&self) -> &Recall {
        let recall = self.dispatcher.client().recall();
        // Only here, so that programs without memories do not contain the model.
        #[cfg(feature = "minilm")]
        recall.use_minilm();
        recall
    }

    /// Sets the game time of later asks, from which the ages of memories are counted. Default: 0.
    pub fn set_memory_time(&self, now: Duration) {
        self.dispatcher.client().set_now(now);
    }

    /// The vector of a text, from the embedding model of the [memories](Self::recall), which must
    /// be loaded. It is computed on the CPU, on a thread of low priority, within
    /// [`RecallOptions::embed_budget`].
    ///
    /// # Errors
    /// [`EmbedError::NoModel`] without a model; otherwise see [`EmbedError`].
    pub async fn embed(
        &self,
        text: impl Into<String>,
        purpose: Purpose,
    ) -> Result<Embedding, EmbedError> {
        let vectors = self.embed_all(vec![text.into()], purpose).await?;
        vectors.into_iter().next().ok_or(EmbedError::Stopped)
    }

    /// The vectors of texts, in their order, as [`embed`](Self::embed). Any number of texts is
    /// divided into batches.
    ///
    /// # Errors
    /// As [`embed`](Self::embed); indices of texts count from the first.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the texts that were not computed yet.
    pub async fn embed_all(
        &self,
        texts: Vec<String>,
        purpose: Purpose,
    ) -> Result<Vec<Embedding>, EmbedError> {
        let embedder = self.dispatcher.client().recall().embedder().ok_or(EmbedError::NoModel)?;
        embedder.embed(texts, purpose).await
    }

    /// The loaded model and its device.
    #[must_use]
    pub fn model(&self) -> Option<&ModelCard> {
        self.dispatcher.client().model()
    }

    /// The model's tokenizer: for biases, [stop tokens](walla_runtime::AgentSpec::stop_tokens),
    /// [masks](crate::TokenMask), [prompts of tokens](crate::Prompt::Tokens), or to count the
    /// tokens of a text. [`EngineOptions::tokenizer`] returns it without an engine.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.runtime().and_then(RuntimeEngine::tokenizer)
    }

    /// Changes the device time that all agents together may use in each 1/60 s, from the next one
    /// on; `None`: no limit. Zero pauses all agents at once: see [`set_paused`](Self::set_paused).
    pub fn set_budget(&self, budget: impl Into<FrameBudget>) {
        self.dispatcher.client().set_budget(budget.into());
    }

    /// Pauses or resumes all agents; a pause does not change the replies. In a pause no step runs
    /// and the device thread sleeps. Asks queue; cancels and dropped agents take effect at once.
    /// The duration of a pause does not count in [`Usage`](crate::Usage).
    pub fn set_paused(&self, is_paused: bool) {
        self.dispatcher.client().set_paused(is_paused);
    }

    /// Changes the maximum tokens of all agents' conversations in the KV cache, up to the number
    /// reserved at the start. The history of an evicted agent is prefilled again later; no text is
    /// lost.
    pub fn set_kv_tokens(&self, tokens: u32) {
        if let Some(engine) = self.runtime() {
            engine.set_kv_tokens(tokens);
        }
    }

    /// Counters, for diagnostics.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.dispatcher.client().stats()
    }

    /// State of the engine.
    #[must_use]
    pub fn state(&self) -> EngineState {
        self.dispatcher.client().state()
    }

    /// Stops the engine for all its owners, and waits until its device and memory are released:
    /// before another model is loaded, or at the end of a program. Replies that have not ended fail
    /// with [`ReplyError::EngineGone`](crate::ReplyError::EngineGone).
    ///
    /// If the device hangs for ever, this never returns.
    ///
    /// # Cancel safety
    /// Once polled, the engine stops even if the future is dropped.
    pub async fn stop(&self) {
        self.dispatcher.client().stop();
        self.dispatcher.ended().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Agents of this API have no budget unless one is set.
    #[test]
    fn only_a_budget_that_is_set_applies() {
        let time = FrameBudget::Time(Duration::from_millis(3));
        let options = EngineOptions::model("m.gguf");
        for (budget, is_forced, expected) in [
            (FrameBudget::Auto, false, (FrameBudget::Unlimited, false)),
            (FrameBudget::Auto, true, (FrameBudget::Auto, true)),
            (FrameBudget::Unlimited, true, (FrameBudget::Unlimited, false)),
            (time, false, (time, true)),
        ] {
            let set = EngineOptions { budget, budget_free_running: is_forced, ..options.clone() };
            let (budget, budget_free_running) = expected;
            let expected = EngineOptions { budget, budget_free_running, ..options.clone() };
            assert_eq!(Engine::builder(set).options, expected);
        }
    }
}
