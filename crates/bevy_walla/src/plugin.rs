use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::schedule::{IntoScheduleConfigs, ScheduleLabel};
use walla_router::{HealthRules, Router, RouterOptions};
use walla_runtime::{
    Deadlines, Engine, EngineClient, EngineOptions, FrameBudget, GpuContext, KvType, ModelSource,
    Pacing, TemplateChoice,
};

use crate::actions::{ActionResult, AgentCalled, CallRefused, ResultRefused, SimulatedCall};
use crate::ask::{Ask, Cancel, CancelHeard};
use crate::bridge::{self, EngineBridge};
use crate::cache_file::{CacheFailed, CacheLoaded, CacheSaved, publish_copies};
use crate::engines::{
    EngineSetup, Source, WallaEngineFailed, WallaEngineReady, WallaEngines, publish_engines,
};
use crate::misuse;
use crate::recording::recorded;
use crate::reply::{
    ReplyDelta, ReplyFailed, ReplyFinished, ReplyReasoning, ReplyScores, ReplyStarted, ReplyToken,
    TurnsDropped,
};
use crate::sentence::ReplySentence;
use crate::settings::WallaSettings;
use crate::systems::{Schedules, WallaSystems};
use crate::trace;
use crate::walla::{Walla, WallaFailed, WallaReady};

/// Adds dialogue to entities with an [`Agent`](crate::Agent).
///
/// The model loads on a dedicated thread while the game starts; asks wait for it. A missing or
/// broken file is a [`WallaFailed`] message, not a panic. The plugin needs no other plugin and no
/// window. Adding it twice to one app is Bevy's usual error for plugins. Two apps in a process may
/// each have an engine or share [one](Self::with_engine).
///
/// Settings of the engine are fields of [`EngineOptions`], as in the async API, with the same names
/// and the same defaults, except for the [`budget`](Self::budget). Fields without a method are set
/// through [`with_options`](Self::with_options).
///
/// # Examples
/// ```no_run
/// # use bevy_app::App;
/// use bevy_walla::prelude::*;
/// App::new()
///     .add_plugins(WallaPlugin::model("assets/qwen3-0.6b-q8_0.gguf").threads(2).max_agents(16))
///     .run();
/// ```
pub struct WallaPlugin {
    source: Source,
    pacing: Pacing,
    /// `None`: a resource that the game has inserted, or the default.
    settings: Option<WallaSettings>,
    schedules: Schedules,
    trace: Option<PathBuf>,
    /// Names of settings that have no effect.
    ignored: Vec<&'static str>,
    /// The name of the default engine.
    default_name: Arc<str>,
    /// Further engines.
    engines: Vec<(Arc<str>, EngineSetup)>,
    /// Agents can choose among engines.
    has_several: bool,
    health: HealthRules,
    record: Option<PathBuf>,
}

impl WallaPlugin {
    /// Uses the model in this GGUF file, on the best device. A relative path is looked up in Bevy's
    /// asset folder (`assets` in the folder that `BEVY_ASSET_ROOT` names, else in that of
    /// `CARGO_MANIFEST_DIR`, else in the program's), then in the folder that contains it, then in
    /// the working directory. So a packaged game finds its model. `AssetServer` is not used.
    #[must_use]
    pub fn model(path: impl Into<PathBuf>) -> Self {
        Self::with_options(EngineOptions::new(ModelSource::Path(path.into())))
    }

    /// Uses a GGUF file inside the program, for instance by `include_bytes!`.
    #[must_use]
    pub fn model_bytes(gguf: &'static [u8]) -> Self {
        Self::with_options(EngineOptions::new(ModelSource::Static(gguf)))
    }

    /// Uses a server of the chat completions protocol: vLLM, SGLang, llama.cpp's server,
    /// `walla serve` and others ([`remote`](crate::remote), feature `remote`). Agents, asks, events
    /// and saved conversations are the same as with a model in this process. Options that cannot be
    /// used are a [`WallaFailed`] message.
    ///
    /// # Examples
    /// ```no_run
    /// # use bevy_app::App;
    /// use bevy_walla::prelude::*;
    /// use bevy_walla::remote::{ApiKey, Dialect, RemoteOptions};
    /// let mut options = RemoteOptions::new("https://inference.example.com/v1", "qwen3-32b");
    /// options.key = Some(ApiKey::from_env("INFERENCE_KEY"));
    /// options.dialect = Dialect::Vllm;
    /// App::new().add_plugins(WallaPlugin::remote(options)).run();
    /// ```
    #[cfg(feature = "remote")]
    #[must_use]
    pub fn remote(options: walla_remote::RemoteOptions) -> Self {
        Self::new(Source::Remote(Box::new(options)))
    }

    /// Uses these engine options.
    #[must_use]
    pub fn with_options(options: EngineOptions) -> Self {
        Self::new(Source::Options(Box::new(options)))
    }

    /// Uses a running engine, shared with other apps or with code outside of Bevy: an engine of
    /// another plugin ([`Walla::engine`]), or of the async API (`walla::Engine::runtime`). All
    /// share the model and run in one batch. Each has its own agents and can end without the
    /// others.
    ///
    /// The settings of this plugin that apply are [`steps_per_frame`](Self::steps_per_frame),
    /// [`free_running`](Self::free_running), [`schedules`](Self::schedules),
    /// [`settings`](Self::settings) and [`trace`](Self::trace). All others are settings of the
    /// engine, which its first owner has made: they have no effect and are logged as a warning.
    /// That includes the [`budget`](Self::budget), which an engine of the async API lacks by
    /// default. [`Walla::set_budget`] sets it for all owners. An owner that runs freely, as the
    /// async API does, lifts a budget of the options while its agents speak, but not one that was
    /// set at run time.
    ///
    /// # Examples
    /// ```ignore
    /// let engine = walla::Engine::open("smith.gguf").budget(Duration::from_millis(4)).start().await?;
    /// let runtime = engine.runtime().ok_or("not a local engine")?;
    /// app.add_plugins(WallaPlugin::with_engine(runtime.clone()));
    /// ```
    #[must_use]
    pub fn with_engine(engine: Engine) -> Self {
        Self::new(Source::Engine(engine))
    }

    /// Uses the clients that `new_client` returns, for instance of a
    /// [`ScriptedEngine`](crate::scripted::ScriptedEngine) in a test. Settings of the engine, and
    /// the pacing, have no effect and are logged as a warning.
    #[must_use]
    pub fn with_engine_client(
        new_client: impl Fn() -> Box<dyn EngineClient> + Send + Sync + 'static,
    ) -> Self {
        Self::new(Source::EngineClient(Box::new(new_client)))
    }

    /// Adds a further engine. Agents choose it by their [`AgentEngine`](crate::AgentEngine)
    /// component, others use the engine of this plugin, which is named `default`
    /// ([`default_name`](Self::default_name)). With several engines the resource
    /// [`WallaEngines`](crate::WallaEngines) loads, replaces and unloads engines at run time.
    ///
    /// The [pacing](Self::steps_per_frame) is that of the plugin. Local engines on one device
    /// divide the [budget](Self::budget) of this plugin's engine by their
    /// [weights](crate::WallaEngines::set_weight), and a budget in the setup has no effect; with a
    /// default engine that is not made of options, each keeps its own.
    /// [`Walla::engine`](crate::Walla::engine) is the default engine;
    /// [`Walla::stats`](crate::Walla::stats) has sums over all. An engine that fails publishes
    /// [`WallaEngineFailed`](crate::WallaEngineFailed), and the others go on.
    ///
    /// # Examples
    /// ```no_run
    /// # use bevy_app::App;
    /// use bevy_walla::prelude::*;
    /// use bevy_walla::EngineSetup;
    /// App::new()
    ///     .add_plugins(
    ///         WallaPlugin::model("models/crowd.gguf")
    ///             .engine("hero", EngineSetup::model("models/hero.gguf")),
    ///     )
    ///     .run();
    /// ```
    #[must_use]
    pub fn engine(mut self, name: impl Into<Arc<str>>, setup: impl Into<EngineSetup>) -> Self {
        self.engines.push((name.into(), setup.into()));
        self.several_engines()
    }

    /// Prepares for further engines at run time ([`WallaEngines`](crate::WallaEngines)), also if
    /// this plugin has only one. Without it, and without [`engine`](Self::engine), agents use the
    /// only engine directly.
    #[must_use]
    pub fn several_engines(mut self) -> Self {
        self.has_several = true;
        self
    }

    /// Name of the plugin's engine among several. Default: `default`.
    #[must_use]
    pub fn default_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.default_name = name.into();
        self
    }

    /// When an engine of several is unavailable, so that asks go straight to substitutes. Default:
    /// see [`HealthRules`].
    #[must_use]
    pub fn health(mut self, rules: HealthRules) -> Self {
        self.health = rules;
        self
    }

    /// Replaces the model file's chat template: `"chatml"`, `"llama3"`, `"gemma"`, `"mistral"`, or
    /// the path of a file with Jinja source. A template that does not work is a [`WallaFailed`]
    /// message.
    ///
    /// Without this setting, a model whose own template is absent or does not work is loaded, and
    /// asks fail with [`ReplyError::NoTemplate`](crate::ReplyError::NoTemplate). [`WallaReady`]
    /// contains the reason.
    #[must_use]
    pub fn template(self, template: impl Into<TemplateChoice>) -> Self {
        let template = Some(template.into());
        self.change("template", |options| options.template = template)
    }

    /// The device that runs the model: `auto`, `cpu`, `cuda:0`. Default: `auto`.
    #[must_use]
    pub fn device(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.change("device", |options| options.device = name)
    }

    /// Threads that a CPU device may use. Default: half of the cores.
    #[must_use]
    pub fn threads(self, threads: u32) -> Self {
        self.change("threads", |options| options.threads = Some(threads))
    }

    /// The context of a GPU device: a dedicated one (the default), one with a share of the
    /// multiprocessors (`GpuContext::Share { percent: 25 }`: the rest is always free for the
    /// renderer), or an existing context of the program. A feature that the driver or platform
    /// lacks is not an error: `walla devices` reports it.
    #[must_use]
    pub fn gpu_context(self, context: impl Into<GpuContext>) -> Self {
        let context = context.into();
        self.change("gpu_context", |options| options.gpu_context = context)
    }

    /// Number of agents that can speak at the same time; their memory is reserved when the model
    /// loads. More agents share the slots, unless [`wait_for_slot`](Self::wait_for_slot) is off.
    /// Default: `64`, on a CPU by its free memory ([`EngineOptions::max_agents`]).
    #[must_use]
    pub fn max_agents(self, agents: u32) -> Self {
        self.change("max_agents", |options| options.max_agents = Some(agents))
    }

    /// Whether an agent beyond [`max_agents`](Self::max_agents) waits for a slot when it is asked,
    /// by priority and then by age of the ask, or fails at once. Default: `true`;
    /// `walla.stats().agents_waiting` counts them.
    #[must_use]
    pub fn wait_for_slot(self, waits: bool) -> Self {
        self.change("wait_for_slot", |options| options.wait_for_slot = waits)
    }

    /// Maximum number of agents beyond [`max_agents`](Self::max_agents) that the engine keeps.
    /// Default: `16_384`.
    #[must_use]
    pub fn max_agents_parked(self, agents: u32) -> Self {
        self.change("max_agents_parked", |options| options.max_agents_parked = agents)
    }

    /// Tokens of each agent's context. Default: `1_024`.
    #[must_use]
    pub fn context_tokens(self, tokens: u32) -> Self {
        self.change("context_tokens", |options| options.context_tokens = tokens)
    }

    /// Maximum tokens of all agents' conversations in the KV cache. Default: every agent's whole
    /// context. [`Walla::set_kv_tokens`] changes it at run time, up to this number.
    #[must_use]
    pub fn kv_tokens(self, tokens: u32) -> Self {
        self.change("kv_tokens", |options| options.kv_tokens = Some(tokens))
    }

    /// Snapshots of the state of recurrent layers (LFM 2, Qwen 3.5):
    /// [`EngineOptions::state_snapshots`](walla_runtime::EngineOptions::state_snapshots). Default:
    /// as many as agents in at most 256 MiB.
    #[must_use]
    pub fn state_snapshots(self, snapshots: u32) -> Self {
        self.change("state_snapshots", |options| options.state_snapshots = Some(snapshots))
    }

    /// Number format of the KV cache. Default: f16.
    #[must_use]
    pub fn kv_type(self, kv_type: KvType) -> Self {
        self.change("kv_type", |options| options.kv_type = kv_type)
    }

    /// Maximum prompt tokens of one step. Default: `64` on a CPU, 64 to 448 on a GPU. Longer chunks
    /// prefill faster and delay the decode of other agents.
    #[must_use]
    pub fn max_prefill_tokens(self, tokens: u32) -> Self {
        self.change("max_prefill_tokens", |options| options.max_prefill_tokens = Some(tokens))
    }

    /// The tokenizer's pre-tokenizer, instead of the file's: for files without `tokenizer.ggml.pre`
    /// ([`ModelCard::warnings`](crate::ModelCard::warnings) reports it) or with a name that walla
    /// does not know. Default: the file's.
    #[must_use]
    pub fn pre_tokenizer(self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.change("pre_tokenizer", |options| options.pre_tokenizer = Some(name))
    }

    /// Device time that each frame may use. Work that is predicted not to fit is not started.
    /// `None`: no limit. Default: [`FrameBudget::Auto`]. [`Walla::set_budget`] changes it at run
    /// time.
    #[must_use]
    pub fn budget(self, budget: impl Into<FrameBudget>) -> Self {
        let budget = budget.into();
        self.change("budget", |options| options.budget = budget)
    }

    /// Unused budget that earlier frames may leave to a frame, in frames:
    /// [`EngineOptions::budget_carry`]. Default: 3 on a CPU, 0 on a GPU.
    #[must_use]
    pub fn budget_carry(self, frames: u32) -> Self {
        self.change("budget_carry", |options| options.budget_carry = Some(frames))
    }

    /// Whether agents that are not asked are prepared in device time and KV pages that nothing else
    /// uses, so that only the question is evaluated at an ask:
    /// [`EngineOptions::background_prefill`]. Default: `true`.
    #[must_use]
    pub fn background_prefill(self, prepares: bool) -> Self {
        self.change("background_prefill", |options| options.background_prefill = prepares)
    }

    /// [`EngineOptions::prepare_constraints`]. Default: `true`.
    #[must_use]
    pub fn prepare_constraints(self, prepares: bool) -> Self {
        self.change("prepare_constraints", |options| options.prepare_constraints = prepares)
    }

    /// Whether keys of a shortened conversation are shifted instead of being evaluated again, which
    /// is an approximation: [`EngineOptions::context_shift`]. Default: `false`.
    #[must_use]
    pub fn context_shift(self, shifts: bool) -> Self {
        self.change("context_shift", |options| options.context_shift = shifts)
    }

    /// Maximum predicted device time of one step on a GPU. A renderer on the same GPU waits for
    /// this time at most. `None`: no limit. Default: 4 ms. See [`EngineOptions::max_launch`].
    #[must_use]
    pub fn max_launch(self, time: impl Into<Option<Duration>>) -> Self {
        let time = time.into();
        self.change("max_launch", |options| options.max_launch = time)
    }

    /// A folder that caches measured costs of steps, so that a [budget](Self::budget) needs no
    /// measurement at the next start. Default: none.
    #[must_use]
    pub fn cost_cache(self, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        self.change("cost_cache", |options| options.cost_cache = Some(folder))
    }

    /// Whether the CPU takes over when the device is lost: [`EngineOptions::fallback`]. Default:
    /// `true`.
    #[must_use]
    pub fn fallback(self, takes_over: bool) -> Self {
        self.change("fallback", |options| options.fallback = takes_over)
    }

    /// When a hung device is declared lost, and when a reply ends early. Default: see
    /// [`Deadlines`].
    #[must_use]
    pub fn deadlines(self, deadlines: Deadlines) -> Self {
        self.change("deadlines", |options| options.deadlines = deadlines)
    }

    /// Steps that each frame grants the engine; a step is at most one token of each agent. Default:
    /// `1`, which at 60 frames a second is far faster than speech. Minimum: `0` counts as `1`.
    #[must_use]
    pub fn steps_per_frame(self, steps: u32) -> Self {
        self.paced("steps_per_frame", Pacing::PerFrame { steps: steps.max(1) })
    }

    /// Runs the engine as fast as the device allows, independently of frames: for tools and robots
    /// that do not share the device.
    #[must_use]
    pub fn free_running(self) -> Self {
        self.paced("free_running", Pacing::FreeRunning)
    }

    /// Schedules of the plugin: [`WallaSystems::Publish`](crate::WallaSystems::Publish) runs in
    /// `publish`, [`Collect`](crate::WallaSystems::Collect) and
    /// [`Submit`](crate::WallaSystems::Submit) run in `submit`. If both are the same schedule, the
    /// sets run in this order. Default: [`PreUpdate`] and [`PostUpdate`].
    ///
    /// For the engine, each run of `submit` is one frame: it grants
    /// [`steps_per_frame`](Self::steps_per_frame) and the [`budget`](Self::budget) of one frame.
    /// The bounds of a frame in [`WallaSettings`] apply to one run, and [`Walla::host_times`] is
    /// the host time of one run.
    ///
    /// With schedules of the fixed main loop (Bevy's `TimePlugin`):
    /// - Set a budget that fits the fixed time step. The default is for 60 Hz: on a GPU it is 42 %
    ///   of a time step of 10 ms, on a CPU 83 %.
    /// - Grants do not accumulate. If several time steps run in one update, the device thread may
    ///   see them as one grant, and budgets of a frame do not add up.
    /// - In an update without a time step, nothing is granted, published or sent. Asks, also those
    ///   that are written as messages, wait for the next time step.
    /// - While `Time<Virtual>` is paused, no time step runs. Replies stop, and asks and cancels
    ///   wait. Set [`WallaSettings::pause_with_time`] for these schedules, so that the engine
    ///   counts the time as a pause of this app. Otherwise, after one second without frames, the
    ///   engine treats the app as stalled ([`Pacing`](crate::engine::Pacing)): other clients of
    ///   the engine can take the KV pages of its agents, and a reply can end as
    ///   [`TimedOut`](crate::FinishReason::TimedOut).
    ///
    /// Other schedules have to run at least in every second update, because Bevy drops messages
    /// that are older.
    ///
    /// # Examples
    /// A robot with a control loop of 100 Hz:
    /// ```no_run
    /// # use std::time::Duration;
    /// # use bevy_app::prelude::*;
    /// use bevy_walla::prelude::*;
    /// App::new().add_plugins(
    ///     WallaPlugin::model("robot.gguf")
    ///         .schedules(FixedPreUpdate, FixedPostUpdate)
    ///         .budget(Duration::from_millis(2)),
    /// );
    /// ```
    #[must_use]
    pub fn schedules(mut self, publish: impl ScheduleLabel, submit: impl ScheduleLabel) -> Self {
        self.schedules = Schedules::new(publish, submit);
        self
    }

    /// Bounds of the plugin's work in a frame. Replaces a resource [`WallaSettings`] that was
    /// inserted before the plugin. Default: this resource, otherwise [`WallaSettings::default`].
    #[must_use]
    pub fn settings(mut self, settings: WallaSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Writes a trace of every frame to this file, for <https://ui.perfetto.dev>: activity of the
    /// host, the device thread and the device over time ([`walla_trace::TraceFile`]).
    /// `WALLA_TRACE=file.json` in the environment has the same effect without a rebuild.
    #[must_use]
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.trace = Some(path.into());
        self
    }

    /// Records the session of this app to a file ([`record`](crate::record)), for reports of
    /// defects, cutscenes and tests: all that the app asks, and every token. An existing recording
    /// is replaced. It contains personas
    /// and conversations. The resource [`WallaRecording`](crate::WallaRecording) has its state. A
    /// recording that fails ends with a warning in the log, and the game goes on.
    ///
    /// With one local engine, `walla replay FILE --model MODEL` repeats the session and compares
    /// every token. With other engines a recording can be [played](Self::recording) only.
    #[must_use]
    pub fn record(mut self, path: impl Into<PathBuf>) -> Self {
        self.record = Some(path.into());
        self
    }

    /// Plays a recording instead of a model: agents with the recorded personas and asks get the
    /// recorded replies at the recorded frames ([`Player`](crate::record::Player)). Another ask
    /// fails with [`ReplyError::NotRecorded`](crate::ReplyError::NotRecorded), and a file that
    /// cannot be read is a [`WallaFailed`] message. A relative path is looked up as for
    /// [`model`](Self::model). The file is read when the plugin is added.
    ///
    /// # Examples
    /// ```no_run
    /// # use bevy_app::App;
    /// use bevy_walla::prelude::*;
    /// App::new().add_plugins(WallaPlugin::recording("cutscenes/dragon.walla")).run();
    /// ```
    #[must_use]
    pub fn recording(path: impl Into<PathBuf>) -> Self {
        Self::new(Source::Recording(path.into()))
    }

    /// The options of the engine, with all settings so far. `None` if the plugin starts no engine:
    /// [`with_engine`](Self::with_engine), [`with_engine_client`](Self::with_engine_client).
    #[must_use]
    pub fn options(&self) -> Option<&EngineOptions> {
        match &self.source {
            Source::Options(options) => Some(options),
            _ => None,
        }
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            pacing: Pacing::default(),
            settings: None,
            schedules: Schedules::default(),
            trace: None,
            ignored: Vec::new(),
            default_name: "default".into(),
            engines: Vec::new(),
            has_several: false,
            health: HealthRules::default(),
            record: None,
        }
    }

    /// Changes a setting of an engine that the plugin starts.
    fn change(mut self, setting: &'static str, change: impl FnOnce(&mut EngineOptions)) -> Self {
        match &mut self.source {
            Source::Options(options) => change(options),
            #[cfg(not(feature = "demo"))]
            Source::Nothing => {} // the missing model is reported
            #[cfg(feature = "remote")]
            Source::Remote(_) => self.ignored.push(setting),
            Source::Engine(_) | Source::EngineClient(_) | Source::Recording(_) => {
                self.ignored.push(setting);
            }
        }
        self
    }

    /// Changes the pacing of a client that the plugin creates.
    fn paced(mut self, setting: &'static str, pacing: Pacing) -> Self {
        match &self.source {
            #[cfg(feature = "remote")]
            Source::Remote(_) => self.ignored.push(setting),
            Source::EngineClient(_) | Source::Recording(_) => self.ignored.push(setting),
            _ => self.pacing = pacing,
        }
        self
    }

    /// Adds the resources of the engine, or of several.
    fn add_engines(&self, app: &mut App) {
        let (engine, client) = self.source.start(self.pacing);
        if !self.has_several {
            let client = recorded(app, self.record.as_deref(), client);
            app.insert_resource(EngineBridge::new(client)).insert_resource(Walla::new(engine));
            return;
        }
        let mut options = RouterOptions::new(Arc::clone(&self.default_name));
        options.health = self.health;
        let router = Router::new(options);
        if let Some(options) = self.options() {
            router.engines().set_budget(options.budget);
        }
        let mut engines = WallaEngines::new(router.engines().clone(), self.pacing);
        engines.add(&self.default_name, client);
        for (name, setup) in &self.engines {
            engines.add(name, setup.start(self.pacing));
        }
        let client = recorded(app, self.record.as_deref(), Ok(Box::new(router)));
        app.insert_resource(EngineBridge::new(client))
            .insert_resource(Walla::new(engine))
            .insert_resource(engines)
            .add_message::<WallaEngineReady>()
            .add_message::<WallaEngineFailed>();
    }
}

impl Default for WallaPlugin {
    /// Uses the small demo model (feature `demo`). Without the feature no model is available, and
    /// the engine fails with a [`WallaFailed`] message.
    fn default() -> Self {
        #[cfg(feature = "demo")]
        return Self::with_options(EngineOptions::new(ModelSource::demo()));
        #[cfg(not(feature = "demo"))]
        Self::new(Source::Nothing)
    }
}

impl Plugin for WallaPlugin {
    fn build(&self, app: &mut App) {
        if !self.ignored.is_empty() {
            let settings = self.ignored.join(", ");
            tracing::warn!(
                target: "walla::load",
                settings,
                "settings of WallaPlugin without effect: its engine is not local, or was started by another owner"
            );
        }
        trace::add(app, self.trace.as_deref());
        self.add_engines(app);
        app.add_message::<Ask>()
            .add_message::<Cancel>()
            .add_message::<CancelHeard>()
            .add_message::<WallaReady>()
            .add_message::<WallaFailed>()
            .add_message::<ReplyStarted>()
            .add_message::<ReplyDelta>()
            .add_message::<ReplyReasoning>()
            .add_message::<ReplySentence>()
            .add_message::<ReplyToken>()
            .add_message::<ReplyScores>()
            .add_message::<AgentCalled>()
            .add_message::<CallRefused>()
            .add_message::<SimulatedCall>()
            .add_message::<ActionResult>()
            .add_message::<ResultRefused>()
            .add_message::<TurnsDropped>()
            .add_message::<ReplyFinished>()
            .add_message::<ReplyFailed>()
            .add_message::<CacheSaved>()
            .add_message::<CacheLoaded>()
            .add_message::<CacheFailed>()
            .add_observer(bridge::forward_action_result)
            .add_observer(bridge::forward_ask)
            .add_observer(bridge::forward_cancel)
            .add_observer(bridge::forward_cancel_heard);
        match &self.settings {
            Some(settings) => app.insert_resource(settings.clone()),
            None => app.init_resource::<WallaSettings>(),
        };
        app.insert_resource(self.schedules);
        self.schedules.add_systems(app);
        self.schedules.add_publish_system(app, publish_copies);
        if self.has_several {
            self.schedules.add_publish_system(app, publish_engines);
        } else {
            let warn = misuse::warn_of_unused_routes.in_set(WallaSystems::Collect);
            self.schedules.add_submit_systems(app, warn);
        }
        #[cfg(feature = "actions")]
        {
            let warn = misuse::warn_of_untyped_actions.in_set(WallaSystems::Collect);
            self.schedules.add_submit_systems(app, warn);
        }
        #[cfg(feature = "reflect")]
        crate::reflect::register_types(app);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_recorded() {
        let of_engine = |plugin: WallaPlugin| plugin.device("cpu").steps_per_frame(2).threads(1);
        let scripted = crate::scripted::ScriptedEngine::new(|_, _| String::new());
        let scripted = WallaPlugin::with_engine_client(scripted.new_client());
        assert_eq!(of_engine(scripted).ignored, ["device", "steps_per_frame", "threads"]);
        let engine = Engine::start(EngineOptions::new(ModelSource::Static(&[]))).unwrap();
        let shared = of_engine(WallaPlugin::with_engine(engine)).budget(None);
        assert_eq!(shared.ignored, ["device", "threads", "budget"]);
        assert!(shared.options().is_none());
        let own = of_engine(WallaPlugin::model("m.gguf"));
        assert!(own.ignored.is_empty());
        assert_eq!(own.options().map(|options| options.threads), Some(Some(1)));
    }

    #[test]
    fn a_frame_grants_at_least_one_step() {
        let pacing = |steps| WallaPlugin::model("m.gguf").steps_per_frame(steps).pacing;
        let granted = [0, 1, 3].map(pacing);
        assert_eq!(granted, [1, 1, 3].map(|steps| Pacing::PerFrame { steps }));
    }
}
