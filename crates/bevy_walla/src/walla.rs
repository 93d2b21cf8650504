//! The engine's state for the game: [`Walla`], [`WallaReady`] and [`WallaFailed`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use walla_runtime::{
    Engine, EngineClient, EngineStats, FrameBudget, ModelCard, TemplateState, Tokenizer,
    drop_on_thread,
};

use crate::error::WallaError;
use crate::state::WallaState;

/// The engine behind all agents of this app: its state and counters, as of this frame.
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::prelude::*;
/// fn loading_screen(walla: Res<Walla>) {
///     match walla.state() {
///         WallaState::Loading { fraction } => println!("{:.0} %", fraction * 100.0),
///         WallaState::Ready => println!("the tavern is open"),
///         WallaState::Failed(error) => println!("nobody speaks: {error}"),
///     }
/// }
/// ```
#[derive(Resource, Default)]
pub struct Walla {
    engine: Option<Engine>,
    /// The client of this app, which owns the budget.
    client: Option<Arc<dyn EngineClient>>,
    state: WallaState,
    stats: EngineStats,
    host_times: HostTimes,
    asks_waiting: usize,
    events_unknown: u64,
}

impl Walla {
    pub(crate) fn new(engine: Option<Engine>, client: Option<Arc<dyn EngineClient>>) -> Self {
        Self { engine, client, ..Self::default() }
    }

    /// The engine itself. Clone it to share the model with another app
    /// ([`WallaPlugin::new`](crate::WallaPlugin::new)) or with code outside of Bevy
    /// (`walla::Engine::join` for the async API). `None` if it did not start, or if agents reply
    /// from a script.
    #[must_use]
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// The loaded model and its device; `None` until agents can speak.
    #[must_use]
    pub fn model(&self) -> Option<&ModelCard> {
        self.engine.as_ref().and_then(Engine::model)
    }

    /// The model's tokenizer: for [biases](walla_types::LogitBias), [stop
    /// tokens](crate::ReplyLimits::stop_tokens) and [masks](crate::tokens::TokenMask), or to count
    /// the tokens of a persona. `None` until agents can speak, or if they reply from a script.
    ///
    /// # Examples
    /// ```
    /// # use bevy_ecs::prelude::*;
    /// use bevy_walla::prelude::*;
    /// use bevy_walla::tokens::EncodeOptions;
    /// /// Nobody says "computer" in Emberfall.
    /// fn forbid(walla: Res<Walla>, mut agents: Query<&mut AgentSampling>) -> Result {
    ///     let Some(tokenizer) = walla.tokenizer() else { return Ok(()) };
    ///     let tokens = tokenizer.encode(" computer", EncodeOptions::default())?;
    ///     let Some(&first) = tokens.first() else { return Ok(()) };
    ///     for mut sampling in &mut agents {
    ///         sampling.0 = sampling.0.to_builder().bias(first, f32::NEG_INFINITY).build()?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.engine.as_ref().and_then(Engine::tokenizer)
    }

    /// The loading state of the model.
    #[must_use]
    pub fn state(&self) -> &WallaState {
        &self.state
    }

    /// Whether agents can speak now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.is_ready()
    }

    /// Whether the engine failed: no agent will speak.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        matches!(self.state, WallaState::Failed(_))
    }

    /// The engine's counters.
    #[must_use]
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Host time of the plugin's systems in the latest complete frame.
    #[must_use]
    pub fn host_times(&self) -> HostTimes {
        self.host_times
    }

    /// Asks of this app whose reply has not begun, because the model is loading, their agent is
    /// busy, or the engine has no free capacity.
    #[must_use]
    pub fn asks_waiting(&self) -> usize {
        self.asks_waiting
    }

    /// Events since the start that refer to an unknown agent or reply. They are dropped. A number
    /// above zero means a defect of the [`EngineClient`](crate::engine::EngineClient).
    #[must_use]
    pub fn events_unknown(&self) -> u64 {
        self.events_unknown
    }

    /// Changes the device-time budget of each frame, from the next frame on; `None`: no limit. Zero
    /// pauses all agents of the engine in all apps;
    /// [`WallaSettings::paused`](crate::WallaSettings::paused) pauses the agents of this app.
    /// Budget and use are in [`stats().budget`](Self::stats). The engines of an app with several
    /// divide it, on each device by their
    /// [weights](crate::engines::Engines::set_weight). Without an engine (agents from a
    /// script) it has no effect.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use bevy_ecs::prelude::*;
    /// # use bevy_walla::prelude::*;
    /// fn boss_fight(walla: Res<Walla>) {
    ///     walla.set_budget(Duration::from_micros(1_500));
    /// }
    /// ```
    pub fn set_budget(&self, budget: impl Into<FrameBudget>) {
        if let Some(client) = &self.client {
            client.set_budget(budget.into());
        }
    }

    /// Changes the number of tokens that all conversations together may keep in the KV cache, up to
    /// the number that was reserved when the model was loaded. If they hold more, idle agents lose
    /// their cache first, then agents of the lowest priority. Their history is prefilled again when
    /// memory is free. Memory is returned to the system where the device supports it:
    /// `stats().kv_bytes` reports the size, and `pages_refused` the pages for which no memory was
    /// free. Without an engine (agents from a script) it has no effect.
    pub fn set_kv_tokens(&self, tokens: u32) {
        if let Some(engine) = &self.engine {
            engine.set_kv_tokens(tokens);
        }
    }

    /// This client is before the one so far.
    pub(crate) fn set_client(&mut self, client: impl EngineClient) {
        self.client = Some(Arc::new(client));
    }

    /// Changes the default engine of an app with several.
    pub(crate) fn set_engine(&mut self, engine: Option<Engine>) {
        if let Some(former) = std::mem::replace(&mut self.engine, engine) {
            drop_on_thread(former);
        }
    }

    pub(crate) fn update(
        &mut self,
        state: WallaState,
        stats: EngineStats,
        host_times: HostTimes,
        (asks_waiting, events_unknown): (usize, u64),
    ) {
        let (engine, client) = (self.engine.take(), self.client.take());
        *self = Self { engine, client, state, stats, host_times, asks_waiting, events_unknown };
    }
}

impl fmt::Debug for Walla {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Walla");
        debug.field("engine", &self.engine).field("state", &self.state);
        debug.field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// The model is loaded and agents begin to answer. Published once, as an event and as a message.
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::prelude::*;
/// fn check_template(ready: On<WallaReady>) {
///     if let Some(template) = ready.template.as_ref().filter(|template| !template.is_usable()) {
///         eprintln!("no agent can be asked: {template}");
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Event, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct WallaReady {
    /// The chat template of the model, or the reason why none works: then asks fail with
    /// [`ReplyError::NoTemplate`](crate::reply::ReplyError::NoTemplate). `None` for agents from a
    /// script.
    pub template: Option<TemplateState>,
}

/// The engine failed: no agent will speak, every ask fails, and the game continues. Published once,
/// as an event and as a message.
#[derive(Clone, Debug, Event, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(opaque, Event, Message, Clone, Debug))]
pub struct WallaFailed {
    /// The reason.
    pub error: WallaError,
}

/// A run condition: agents can speak now.
///
/// ```
/// # use bevy_app::prelude::*;
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::prelude::*;
/// # fn open_the_doors() {}
/// # App::new().
/// add_systems(Update, open_the_doors.run_if(walla_ready));
/// ```
#[must_use]
pub fn walla_ready(walla: Option<Res<Walla>>) -> bool {
    walla.is_some_and(|walla| walla.is_ready())
}

/// Host time of the plugin's systems in the latest frame, without the game's observers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTimes {
    /// [`WallaSystems::Publish`](crate::WallaSystems::Publish).
    pub publish: Duration,
    /// [`WallaSystems::Collect`](crate::WallaSystems::Collect).
    pub collect: Duration,
    /// [`WallaSystems::Submit`](crate::WallaSystems::Submit).
    pub submit: Duration,
}

impl HostTimes {
    /// Sum of all three.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.publish + self.collect + self.submit
    }
}
