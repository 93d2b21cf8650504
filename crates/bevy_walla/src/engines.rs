//! The engines of an app with several.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use walla_record::{Player, Recording};
use walla_router::{Router, RouterOptions};
use walla_runtime::{
    Capabilities, Command, Engine, EngineClient, EngineError, EngineOptions, EngineState,
    EngineStats, Event, ModelSource, Pacing, TrySendError, drop_on_thread,
};

use crate::bridge::announce;
use crate::error::WallaError;
use crate::scripted::ScriptedEngine;
use crate::walla::Walla;

pub use walla_router::{EngineStatus, Engines, EnginesError, Health, HealthRules};
pub use walla_runtime::{AfterFailure, ReplyInProgress, Route};

/// Source of an engine, for [`WallaPlugin::new`](crate::WallaPlugin::new), [`EngineSet`] and
/// [`WallaEngines::load`]. It is made from
/// - [`EngineOptions`]: a model. A relative path is resolved as for
///   [`WallaPlugin::model`](crate::WallaPlugin::model).
/// - an [`Engine`] that runs: of another app ([`Walla::engine`]) or of the async API
///   (`walla::Engine::runtime`).
/// - `RemoteOptions` (feature `remote`): a server of the chat completions protocol.
/// - [`ScriptedEngine`]: replies without a model.
/// - [`EngineSetup::replay_from`], [`EngineSetup::client`].
///
/// The default is the demo model (feature `demo`).
///
/// # Examples
/// ```
/// use bevy_walla::EngineOptions;
/// use bevy_walla::engines::EngineSetup;
/// let options = EngineOptions { max_agents: Some(4), ..EngineOptions::model("models/large.gguf") };
/// let large = EngineSetup::from(options);
/// ```
pub struct EngineSetup(Source);

/// Makes a client of an engine of another kind than a local one.
type NewClient = Box<dyn Fn() -> Result<Box<dyn EngineClient>, WallaError> + Send + Sync>;

enum Source {
    /// A model; `None`: none was given, which is reported.
    Options(Option<Box<EngineOptions>>),
    Engine(Engine),
    Client(NewClient, ClientKind),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ClientKind {
    Program,
    #[cfg(feature = "remote")]
    Server,
    Replay,
}

impl EngineSetup {
    /// The clients that `new_client` returns: for other kinds of engines.
    #[must_use]
    pub fn client(new_client: impl Fn() -> Box<dyn EngineClient> + Send + Sync + 'static) -> Self {
        let new_client: NewClient = Box::new(move || Ok(new_client()));
        Self(Source::Client(new_client, ClientKind::Program))
    }

    /// One engine of another kind than a local one.
    fn other(
        kind: ClientKind,
        new_client: impl Fn() -> Result<Box<dyn EngineClient>, WallaError> + Send + Sync + 'static,
    ) -> Self {
        Self(Source::Client(Box::new(new_client), kind))
    }

    /// Replays a recording instead of a model: agents with the recorded personas and asks get the
    /// recorded replies at the recorded frames ([`Player`]). Another ask fails with
    /// [`ReplyError::NotRecorded`](crate::reply::ReplyError::NotRecorded), and a file that cannot
    /// be read is a [`WallaFailed`](crate::WallaFailed) message. A relative path is looked up as
    /// for [`WallaPlugin::model`](crate::WallaPlugin::model). The file is read when the engine
    /// starts.
    ///
    /// # Examples
    /// ```no_run
    /// # use bevy_app::App;
    /// use bevy_walla::engines::EngineSetup;
    /// use bevy_walla::prelude::*;
    /// App::new().add_plugins(WallaPlugin::new(EngineSetup::replay_from("dragon.walla"))).run();
    /// ```
    #[must_use]
    pub fn replay_from(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self::other(ClientKind::Replay, move || player(&path))
    }

    /// Whether it has a pace: it runs a model in this process, or has the recorded one.
    pub(crate) fn is_paced(&self) -> bool {
        !matches!(&self.0, Source::Client(_, kind) if *kind != ClientKind::Replay)
    }

    /// Whether it is a client that the program has made.
    pub(crate) fn is_client(&self) -> bool {
        matches!(self.0, Source::Client(_, ClientKind::Program))
    }

    /// Starts the engine and returns a client of it.
    fn start(&self, pacing: Pacing) -> Result<Box<dyn EngineClient>, WallaError> {
        let (engine, client) = self.start_both(pacing);
        // Without a client it is the last handle, and its drop waits for the engine's thread.
        if client.is_err()
            && let Some(engine) = engine
        {
            drop_on_thread(engine);
        }
        client
    }

    /// Starts the engine, if there is one, and returns a client of it.
    pub(crate) fn start_both(
        &self,
        pacing: Pacing,
    ) -> (Option<Engine>, Result<Box<dyn EngineClient>, WallaError>) {
        let engine = match &self.0 {
            Source::Client(new_client, _) => return (None, new_client()),
            Source::Engine(engine) => engine.clone(),
            Source::Options(options) => match start(options.as_deref()) {
                Ok(engine) => engine,
                Err(error) => return (None, Err(error)),
            },
        };
        match engine.client(pacing) {
            Ok(client) => (Some(engine), Ok(Box::new(client))),
            // It has failed since it was started: the same error as a moment later.
            Err(EngineError::Failed(error)) => (Some(engine), Err(WallaError::Engine(error))),
            Err(error) => (Some(engine), Err(error.into())),
        }
    }
}

/// The engines of an app with several, for [`WallaPlugin::engines`](crate::WallaPlugin::engines).
/// The first one is the default: agents without an [`AgentEngine`](crate::agent::AgentEngine) use
/// it. The resource [`WallaEngines`] loads, replaces and removes engines at run time, also if the
/// set has only one.
///
/// Local engines on one device divide the [budget](EngineOptions::budget) of the default engine by
/// their [weights](Engines::set_weight), and the budgets of the others have no effect; with a
/// default engine that is not made of options, each keeps its own. [`Walla::engine`] is the default
/// engine; [`Walla::stats`] has sums over all. An engine that fails publishes
/// [`WallaEngineFailed`], and the others go on.
///
/// # Examples
/// ```no_run
/// # use bevy_app::App;
/// use bevy_walla::engines::EngineSet;
/// use bevy_walla::prelude::*;
/// let engines = EngineSet::new("crowd", EngineOptions::model("models/crowd.gguf"))
///     .with("hero", EngineOptions::model("models/hero.gguf"));
/// App::new().add_plugins(WallaPlugin::engines(engines)).run();
/// ```
pub struct EngineSet {
    default: (Arc<str>, EngineSetup),
    others: Vec<(Arc<str>, EngineSetup)>,
    health: HealthRules,
}

impl EngineSet {
    /// This default engine.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, setup: impl Into<EngineSetup>) -> Self {
        let default = (name.into(), setup.into());
        Self { default, others: Vec::new(), health: HealthRules::default() }
    }

    /// Adds a further engine.
    #[must_use]
    pub fn with(mut self, name: impl Into<Arc<str>>, setup: impl Into<EngineSetup>) -> Self {
        self.others.push((name.into(), setup.into()));
        self
    }

    /// When an engine is unavailable, so that asks go straight to substitutes. Default: see
    /// [`HealthRules`].
    #[must_use]
    pub fn health(self, health: HealthRules) -> Self {
        Self { health, ..self }
    }

    /// Starts all engines. Returns the default engine, if it is local, and a client of all.
    pub(crate) fn start(
        &self,
        pacing: Pacing,
    ) -> (Option<Engine>, Box<dyn EngineClient>, WallaEngines) {
        let (name, setup) = &self.default;
        let mut options = RouterOptions::new(Arc::clone(name));
        options.health = self.health;
        let router = Router::new(options);
        if let Source::Options(Some(options)) = &setup.0 {
            router.engines().set_budget(options.budget);
        }
        let mut engines =
            WallaEngines { engines: router.engines().clone(), pacing, failed: Vec::new() };
        let (engine, client) = setup.start_both(pacing);
        engines.add(name, client);
        for (name, setup) in &self.others {
            engines.add(name, setup.start(pacing));
        }
        (engine, Box::new(router), engines)
    }
}

/// In the place of an engine that could not start. The reason.
struct NotStarted(Arc<EngineError>);

impl NotStarted {
    fn boxed(error: &WallaError) -> Box<dyn EngineClient> {
        Box::new(Self(Arc::new(EngineError::NotStarted(error.to_string()))))
    }
}

impl EngineClient for NotStarted {
    fn try_send(&self, command: Command) -> Result<(), TrySendError<Command>> {
        Err(TrySendError::Closed(command))
    }

    fn try_recv(&self) -> Option<Event> {
        None
    }

    fn frame(&self) {}

    fn state(&self) -> EngineState {
        EngineState::Failed(Arc::clone(&self.0))
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CHAT
    }

    fn stop(&self) {}
}

impl Default for EngineSetup {
    fn default() -> Self {
        #[cfg(feature = "demo")]
        return EngineOptions::demo().into();
        #[cfg(not(feature = "demo"))]
        Self(Source::Options(None))
    }
}

impl From<EngineOptions> for EngineSetup {
    fn from(options: EngineOptions) -> Self {
        Self(Source::Options(Some(Box::new(options))))
    }
}

/// A server of the chat completions protocol: vLLM, SGLang, llama.cpp's server, `walla serve` and
/// others. Agents, asks, events and saved conversations are the same as with a model in this
/// process. Options that cannot be used are a [`WallaFailed`](crate::WallaFailed) message.
///
/// ```no_run
/// # use bevy_app::App;
/// use bevy_walla::prelude::*;
/// use bevy_walla::remote::{ApiKey, Dialect, RemoteOptions};
/// let mut options = RemoteOptions::new("https://inference.example.com/v1", "qwen3-32b");
/// options.key = Some(ApiKey::from_env("INFERENCE_KEY"));
/// options.dialect = Dialect::Vllm;
/// App::new().add_plugins(WallaPlugin::new(options)).run();
/// ```
#[cfg(feature = "remote")]
impl From<walla_remote::RemoteOptions> for EngineSetup {
    fn from(options: walla_remote::RemoteOptions) -> Self {
        Self::other(ClientKind::Server, move || {
            let engine = walla_remote::RemoteEngine::start(options.clone());
            let engine = engine.map_err(|error| WallaError::Remote(error.to_string()))?;
            Ok(Box::new(engine.client()))
        })
    }
}

/// Shares a running engine with other apps or with code outside of Bevy. All share the model and
/// run in one batch. Each has its own agents and can end without the others.
///
/// The engine keeps the options of its first owner. That includes the budget, which an engine of
/// the async API lacks by default; [`Walla::set_budget`] sets it for all owners. An owner that runs
/// freely, as the async API does, lifts a budget of the options while its agents speak, but not one
/// that was set at run time.
///
/// ```ignore
/// let budget = Duration::from_millis(4).into();
/// let engine = walla::Engine::start(EngineOptions { budget, ..EngineOptions::model("smith.gguf") }).await?;
/// let runtime = engine.runtime().ok_or("not a local engine")?;
/// app.add_plugins(WallaPlugin::new(runtime.clone()));
/// ```
impl From<Engine> for EngineSetup {
    fn from(engine: Engine) -> Self {
        Self(Source::Engine(engine))
    }
}

impl From<&ScriptedEngine> for EngineSetup {
    fn from(engine: &ScriptedEngine) -> Self {
        Self::client(engine.new_client())
    }
}

/// A client that plays a recording.
fn player(path: &Path) -> Result<Box<dyn EngineClient>, WallaError> {
    let recording = Recording::open(resolve_model(path)?);
    let recording = recording.map_err(|error| WallaError::Recording(Arc::new(error)))?;
    Ok(Box::new(Player::new(recording).client()))
}

/// Starts an engine with an absolute path of the model.
fn start(options: Option<&EngineOptions>) -> Result<Engine, WallaError> {
    let mut options = options.ok_or(WallaError::NoModel)?.clone();
    if let ModelSource::Path(path) = &options.model {
        options.model = ModelSource::Path(resolve_model(path)?);
    }
    Ok(Engine::start(options)?)
}

/// Folders that relative paths are resolved against, in this order: Bevy's asset folder, the folder
/// that contains it, and the working directory.
///
/// Bevy's asset folder is `assets` in the folder that `BEVY_ASSET_ROOT` names, otherwise in that of
/// `CARGO_MANIFEST_DIR` (set by `cargo run`), otherwise in the program's folder. This is the rule
/// of
/// `bevy_asset::io::file::FileAssetReader::get_base_path` with the default of `AssetPlugin`.
fn bases() -> Vec<PathBuf> {
    let of_variable = |name| std::env::var_os(name).map(PathBuf::from);
    let of_program = || Some(std::env::current_exe().ok()?.parent()?.to_owned());
    let root = of_variable("BEVY_ASSET_ROOT")
        .or_else(|| of_variable("CARGO_MANIFEST_DIR"))
        .or_else(of_program);
    let assets = root.as_ref().map(|root| root.join("assets"));
    let bases = assets.into_iter().chain(root).chain(std::env::current_dir().ok());
    bases.filter_map(|base| std::path::absolute(base).ok()).collect()
}

/// The absolute path of a model file.
pub(crate) fn resolve_model(path: &Path) -> Result<PathBuf, WallaError> {
    resolve(path, &bases())
}

fn resolve(path: &Path, bases: &[PathBuf]) -> Result<PathBuf, WallaError> {
    if path.is_absolute() {
        return Ok(path.to_owned()); // the engine reports a missing file
    }
    // With the separator of the system, for messages.
    let path: PathBuf = path.components().collect();
    let mut tried: Vec<PathBuf> = Vec::new();
    for candidate in bases.iter().map(|base| base.join(&path)) {
        if candidate.is_file() {
            return Ok(candidate);
        }
        if !tried.contains(&candidate) {
            tried.push(candidate);
        }
    }
    Err(WallaError::ModelNotFound { tried })
}

/// The engines of an app with several: [`WallaPlugin::engines`](crate::WallaPlugin::engines)
/// inserts this resource. Engines can be loaded, replaced and unloaded while the app runs.
///
/// # Examples
/// A large model for the time in which a boss exists. Asks wait for an engine that loads: the time
/// limit lets the substitute answer until then.
/// ```
/// # use bevy_app::App;
/// # use bevy_ecs::prelude::*;
/// use std::time::Duration;
/// use bevy_walla::agent::AgentEngine;
/// use bevy_walla::engines::{EngineSet, ReplyInProgress, WallaEngineFailed, WallaEngines};
/// use bevy_walla::prelude::*;
/// # use bevy_walla::engine::EngineState;
/// # use bevy_walla::scripted::ScriptedEngine;
/// fn boss_appears(mut engines: ResMut<WallaEngines>, mut commands: Commands) -> Result {
///     engines.load("boss", EngineOptions::model("models/boss.gguf"))?;
///     // After half a second without output, and if it has failed, the default engine answers.
///     let route = AgentEngine::named("boss").or("default", Duration::from_millis(500));
///     commands.spawn((Agent::persona("You are the dragon."), route));
///     Ok(())
/// }
/// fn no_boss(failed: On<WallaEngineFailed>) {
///     eprintln!("{}: {}", failed.name, failed.error);
/// }
/// fn boss_dies(engines: Res<WallaEngines>) -> Result {
///     engines.remove("boss", ReplyInProgress::Finish)?;
///     Ok(())
/// }
/// # use bevy_ecs::system::RunSystemOnce;
/// # fn answer(app: &mut App) -> String {
/// #     let mut dragons = app.world_mut().query_filtered::<Entity, With<AgentEngine>>();
/// #     let dragon = dragons.single(app.world()).unwrap();
/// #     app.world_mut().trigger(Ask::new(dragon, "Who are you?"));
/// #     loop {
/// #         app.update();
/// #         if app.world().get::<Speech>(dragon).is_some_and(Speech::is_silent) { break }
/// #         std::thread::sleep(Duration::from_millis(1));
/// #     }
/// #     app.world().get::<Conversation>(dragon).unwrap().last_reply().unwrap_or("").to_owned()
/// # }
/// # let small = ScriptedEngine::new(|_, _| "Small.".into());
/// # let boss = ScriptedEngine::new(|_, _| "Boss.".into());
/// # let plugin = WallaPlugin::engines(EngineSet::new("default", &small));
/// # let mut app = App::new();
/// # app.add_plugins(plugin).add_observer(no_boss);
/// # // The file does not exist.
/// # let ran: Result = app.world_mut().run_system_once(boss_appears).unwrap();
/// # ran.unwrap();
/// # assert_eq!(answer(&mut app), "Small.");
/// # let ran: Result = app.world_mut().run_system_once(boss_dies).unwrap();
/// # ran.unwrap();
/// # // It loads, and is loaded.
/// # boss.set_state(EngineState::Loading { fraction: 0.5 });
/// # app.world_mut().resource_mut::<WallaEngines>().load("boss", &boss).unwrap();
/// # assert_eq!(answer(&mut app), "Small.");
/// # boss.set_state(EngineState::Ready);
/// # assert_eq!(answer(&mut app), "Boss.");
/// ```
#[derive(Resource, Debug)]
pub struct WallaEngines {
    engines: Engines,
    pacing: Pacing,
    /// Engines that did not start.
    failed: Vec<(Arc<str>, WallaError)>,
}

impl WallaEngines {
    /// Adds an engine of the plugin. An error is published in the first frame.
    fn add(&mut self, name: &Arc<str>, client: Result<Box<dyn EngineClient>, WallaError>) {
        let client = self.reported(name, client);
        if let Err(error) = self.engines.add(Arc::clone(name), client) {
            self.failed.push((Arc::clone(name), WallaError::Name(error.to_string())));
        }
    }

    /// The client; without one, a client in its place. The error is published.
    fn reported(
        &mut self,
        name: &Arc<str>,
        client: Result<Box<dyn EngineClient>, WallaError>,
    ) -> Box<dyn EngineClient> {
        client.unwrap_or_else(|error| {
            let client = NotStarted::boxed(&error);
            self.failed.push((Arc::clone(name), error));
            client
        })
    }

    /// Loads an engine, on a separate thread. Asks of agents that name it wait for it. Then
    /// [`WallaEngineReady`] or [`WallaEngineFailed`] follows: each failure is an event, also a
    /// missing file that is found at once. An engine that has failed stays in the list until it is
    /// [removed](Engines::remove); asks of its agents fail or go to their substitute.
    ///
    /// # Errors
    /// The name is in use or empty.
    pub fn load(
        &mut self,
        name: impl Into<Arc<str>>,
        setup: impl Into<EngineSetup>,
    ) -> Result<(), EnginesError> {
        let (name, setup) = (name.into(), setup.into());
        let loaded = if name.is_empty() {
            Err(EnginesError::NoName)
        } else if self.get(&name).is_some() {
            Err(EnginesError::Exists(name))
        } else {
            let client = setup.start(self.pacing);
            let client = self.reported(&name, client);
            self.engines.add(name, client)
        };
        // It may own the last handle of an engine.
        drop_on_thread(setup);
        loaded
    }

    /// Loads an engine in the place of another. The old one answers until the new one is ready; if
    /// that fails, the old one stays, and [`WallaEngineFailed`] has the reason. To hold only one in
    /// memory, remove the old one first.
    ///
    /// # Errors
    /// No engine has this name.
    pub fn replace(
        &mut self,
        name: &str,
        setup: impl Into<EngineSetup>,
    ) -> Result<(), EnginesError> {
        let setup = setup.into();
        let replaced = if self.get(name).is_none() {
            Err(EnginesError::Unknown(name.into()))
        } else {
            let client = setup.start(self.pacing);
            let client = self.reported(&name.into(), client);
            self.engines.replace(name, client)
        };
        drop_on_thread(setup);
        replaced
    }
}

/// The handle of the engines, which is independent of Bevy. A change of it applies at once, so asks
/// of the same frame, which are sent in [`WallaSystems::Submit`](crate::WallaSystems::Submit),
/// follow it.
impl Deref for WallaEngines {
    type Target = Engines;

    fn deref(&self) -> &Engines {
        &self.engines
    }
}

/// An engine of several is ready: loaded, or in the place of the one that it replaces. A remote
/// engine is ready at once, before its server has answered. Published as an event and as a message.
#[derive(Clone, Debug, PartialEq, Eq, Event, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct WallaEngineReady {
    /// Its name.
    pub name: Arc<str>,
}

/// An engine of several has failed. Asks of its agents fail or go to their substitute. An engine
/// that was to replace another one is gone, and the other one stays. Published as an event and as a
/// message.
#[derive(Clone, Debug, Event, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Message, Clone, Debug))]
pub struct WallaEngineFailed {
    /// Its name.
    pub name: Arc<str>,
    /// The reason.
    pub error: WallaError,
}

/// Publishes changes of the engines.
pub(crate) fn publish_engines(
    mut engines: ResMut<WallaEngines>,
    mut walla: ResMut<Walla>,
    mut ready: MessageWriter<WallaEngineReady>,
    mut failed: MessageWriter<WallaEngineFailed>,
    mut commands: Commands,
) {
    let engines = engines.bypass_change_detection();
    let mut fail = |name, error, commands: &mut Commands| {
        announce(commands, &mut failed, WallaEngineFailed { name, error });
    };
    for (name, error) in engines.failed.drain(..) {
        fail(name, error, &mut commands);
    }
    let changes = engines.engines.take_changes();
    if changes.is_empty() {
        return;
    }
    for (name, state) in changes {
        match state {
            EngineState::Ready => announce(&mut commands, &mut ready, WallaEngineReady { name }),
            // Published above, with its own error.
            EngineState::Failed(error) if matches!(*error, EngineError::NotStarted(_)) => {}
            EngineState::Failed(error) => fail(name, WallaError::Engine(error), &mut commands),
            EngineState::Loading { .. } | EngineState::Stopped => {}
        }
    }
    let default = engines.engines.default_name();
    // A new engine may have the name of the default one.
    walla.set_engine(engines.engines.local(&default));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_found_in_the_asset_folder_first() {
        let folder = tempfile::tempdir().unwrap();
        let [assets, work] = ["assets", "work"].map(|name| folder.path().join(name));
        for (base, names) in
            [(&assets, ["both.gguf", "assets.gguf"]), (&work, ["both.gguf", "work.gguf"])]
        {
            std::fs::create_dir(base).unwrap();
            for name in names {
                std::fs::write(base.join(name), "").unwrap();
            }
        }
        let bases = [assets.clone(), work.clone()];
        let found = |name: &str| resolve(Path::new(name), &bases).ok();
        assert_eq!(found("both.gguf"), Some(assets.join("both.gguf")));
        assert_eq!(found("assets.gguf"), Some(assets.join("assets.gguf")));
        assert_eq!(found("work.gguf"), Some(work.join("work.gguf")));
        let absolute = work.join("missing.gguf");
        assert_eq!(resolve(&absolute, &bases).ok(), Some(absolute));
        let error = resolve(Path::new("missing.gguf"), &bases).unwrap_err().to_string();
        for base in [assets, work] {
            let path = base.join("missing.gguf");
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
