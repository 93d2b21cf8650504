use std::path::PathBuf;
use std::sync::Arc;

use bevy_app::prelude::*;
use bevy_ecs::schedule::ScheduleLabel;
use walla_runtime::{EngineOptions, Pacing};

use crate::actions::{ActionResult, AgentCalled, CallRefused, ResultRefused, SimulatedCall};
use crate::ask::{Ask, Cancel};
use crate::bridge::{self, EngineBridge};
use crate::cache::{CacheEnded, publish_copies};
use crate::cues::ReplyCue;
use crate::engines::{
    EngineSet, EngineSetup, WallaEngineFailed, WallaEngineReady, publish_engines,
};
use crate::error::WallaError;
use crate::recording::recorded;
use crate::reply::{
    ReplyDelta, ReplyFailed, ReplyFinished, ReplyReasoning, ReplyScores, ReplyStarted, ReplyToken,
    TurnsDropped,
};
use crate::sentence::ReplySentence;
use crate::settings::WallaSettings;
use crate::systems::Schedules;
use crate::trace;
use crate::walla::{Walla, WallaFailed, WallaReady};

/// Adds dialogue to entities with an [`Agent`](crate::Agent).
///
/// The model loads on a dedicated thread while the game starts; asks wait for it. A missing or
/// broken file is a [`WallaFailed`] message, not a panic. The plugin needs no other plugin and no
/// window. Adding it twice to one app is Bevy's usual error for plugins. Two apps in a process may
/// each have an engine or share one ([`EngineSetup`]).
///
/// The plugin has the settings of the app. Settings of the engine are [`EngineOptions`], as in the
/// async API, with the same defaults except for the [budget](EngineOptions::budget).
///
/// # Examples
/// ```no_run
/// # use bevy_app::App;
/// use bevy_walla::prelude::*;
/// let options = EngineOptions {
///     threads: Some(2),
///     max_agents: Some(16),
///     ..EngineOptions::model("assets/qwen3-0.6b-q8_0.gguf")
/// };
/// App::new().add_plugins(WallaPlugin::new(options)).run();
/// ```
pub struct WallaPlugin {
    engines: EnginesOfApp,
    /// `None`: the default.
    pacing: Option<Pacing>,
    /// `None`: a resource that the game has inserted, or the default.
    settings: Option<WallaSettings>,
    schedules: Schedules,
    trace: Option<PathBuf>,
    record_to: Option<PathBuf>,
}

/// One engine, which agents use directly, or several, among which they can choose.
enum EnginesOfApp {
    One(EngineSetup),
    Several(EngineSet),
}

impl WallaPlugin {
    /// Uses this engine: [`EngineOptions`], a server (feature `remote`),
    /// an engine that runs already, a recording, a script ([`EngineSetup`]).
    #[must_use]
    pub fn new(engine: impl Into<EngineSetup>) -> Self {
        Self::of(EnginesOfApp::One(engine.into()))
    }

    /// Uses the model in this GGUF file with the default options, on the best device. A relative
    /// path is looked up in Bevy's asset folder (`assets` in the folder that `BEVY_ASSET_ROOT`
    /// names, else in that of `CARGO_MANIFEST_DIR`, else in the program's), then in the folder that
    /// contains it, then in the working directory. So a packaged game finds its model.
    /// `AssetServer` is not used.
    #[must_use]
    pub fn model(path: impl Into<PathBuf>) -> Self {
        Self::new(EngineOptions::model(path))
    }

    /// Uses several engines. Agents choose theirs by their
    /// [`AgentEngine`](crate::agent::AgentEngine) component.
    #[must_use]
    pub fn engines(engines: EngineSet) -> Self {
        Self::of(EnginesOfApp::Several(engines))
    }

    /// Steps of local engines: a number that each frame grants, or as fast as the device allows
    /// ([`Pacing::FreeRunning`], for tools and robots that do not share the device). A step is at
    /// most one token of each agent. Default: one step per frame, which at 60 frames a second is
    /// far faster than speech; `0` steps count as `1`. A replay has the pace of its recording. An
    /// app whose only engine is on a server fails with [`WallaError::NotPaced`].
    #[must_use]
    pub fn pacing(mut self, pacing: Pacing) -> Self {
        self.pacing = Some(match pacing {
            Pacing::PerFrame { steps } => Pacing::PerFrame { steps: steps.max(1) },
            Pacing::FreeRunning => pacing,
        });
        self
    }

    /// Schedules of the plugin: [`WallaSystems::Publish`](crate::WallaSystems::Publish) runs in
    /// `publish`, [`Collect`](crate::WallaSystems::Collect) and
    /// [`Submit`](crate::WallaSystems::Submit) run in `submit`. If both are the same schedule, the
    /// sets run in this order. Default: [`PreUpdate`] and [`PostUpdate`].
    ///
    /// For the engine, each run of `submit` is one frame: it grants
    /// [steps](Self::pacing) and [budget](EngineOptions::budget) of one frame.
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
    ///   [`TimedOut`](crate::reply::FinishReason::TimedOut).
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
    /// let budget = Duration::from_millis(2).into();
    /// let options = EngineOptions { budget, ..EngineOptions::model("robot.gguf") };
    /// App::new().add_plugins(WallaPlugin::new(options).schedules(FixedPreUpdate, FixedPostUpdate));
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
    /// is replaced. It contains personas and conversations. The resource
    /// [`WallaRecorder`](crate::WallaRecorder) has its state. A recording that fails ends with a
    /// warning in the log, and the game continues.
    ///
    /// With one local engine, `walla replay FILE --model MODEL` repeats the session and compares
    /// every token. With other engines [`EngineSetup::replay_from`] can replay it only.
    #[must_use]
    pub fn record_to(mut self, path: impl Into<PathBuf>) -> Self {
        self.record_to = Some(path.into());
        self
    }

    fn of(engines: EnginesOfApp) -> Self {
        Self {
            engines,
            pacing: None,
            settings: None,
            schedules: Schedules::default(),
            trace: None,
            record_to: None,
        }
    }

    /// Adds the resources of the engine, or of several.
    fn add_engines(&self, app: &mut App) {
        let pacing = self.pacing.unwrap_or_default();
        // A client that the game has made may lead to several engines.
        let is_alone = matches!(&self.engines, EnginesOfApp::One(setup) if !setup.is_client());
        let (engine, client) = match &self.engines {
            EnginesOfApp::One(setup) if self.pacing.is_some() && !setup.is_paced() => {
                (None, Err(WallaError::NotPaced))
            }
            EnginesOfApp::One(setup) => setup.start_both(pacing),
            EnginesOfApp::Several(set) => {
                let (engine, router, engines) = set.start(pacing);
                app.insert_resource(engines)
                    .add_message::<WallaEngineReady>()
                    .add_message::<WallaEngineFailed>();
                (engine, Ok(router))
            }
        };
        let client = recorded(app, self.record_to.as_deref(), client).map(Arc::from);
        app.insert_resource(Walla::new(engine, client.as_ref().ok().cloned()))
            .insert_resource(EngineBridge::new(client, is_alone));
    }
}

impl Default for WallaPlugin {
    /// Uses the small demo model (feature `demo`). Without the feature no model is available, and
    /// the engine fails with a [`WallaFailed`] message.
    fn default() -> Self {
        Self::new(EngineSetup::default())
    }
}

impl Plugin for WallaPlugin {
    fn build(&self, app: &mut App) {
        trace::add(app, self.trace.as_deref());
        self.add_engines(app);
        app.add_message::<Ask>()
            .add_message::<Cancel>()
            .add_message::<WallaReady>()
            .add_message::<WallaFailed>()
            .add_message::<ReplyStarted>()
            .add_message::<ReplyDelta>()
            .add_message::<ReplyCue>()
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
            .add_message::<CacheEnded>()
            .add_observer(bridge::forward_action_result)
            .add_observer(bridge::forward_ask)
            .add_observer(bridge::forward_cancel);
        match &self.settings {
            Some(settings) => app.insert_resource(settings.clone()),
            None => app.init_resource::<WallaSettings>(),
        };
        let others = app.world().get_resource::<Schedules>();
        if others.is_some_and(|others| *others != self.schedules) {
            tracing::warn!("plugins of walla before WallaPlugin have the default schedules");
        }
        app.insert_resource(self.schedules);
        self.schedules.add_systems(app);
        self.schedules.add_publish_system(app, publish_copies);
        if matches!(self.engines, EnginesOfApp::Several(_)) {
            self.schedules.add_publish_system(app, publish_engines);
        }
        #[cfg(feature = "actions")]
        {
            use bevy_ecs::schedule::IntoScheduleConfigs;
            let collect = crate::systems::WallaSystems::Collect;
            let warn = crate::action_types::warn_of_untyped_actions.in_set(collect);
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
    fn a_frame_grants_at_least_one_step() {
        let pacing = |steps| WallaPlugin::default().pacing(Pacing::PerFrame { steps }).pacing;
        let granted = [0, 1, 3].map(pacing);
        assert_eq!(granted, [1, 1, 3].map(|steps| Some(Pacing::PerFrame { steps })));
    }
}
