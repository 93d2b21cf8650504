use bevy_app::prelude::*;

use crate::ask::{self, Ask, Cancel};
use crate::error::WallaError;
use crate::hub::Hub;
use crate::link::Link;
use crate::reply::{
    ReplyDelta, ReplyFailed, ReplyFinished, ReplyStarted, SentenceSpoken, TokenDrawn,
};
use crate::settings::WallaSettings;
use crate::systems;
use crate::walla::{Walla, WallaFailed, WallaReady};

/// Makes entities with an [`Agent`](crate::Agent) speak.
pub struct WallaPlugin {
    source: Source,
    settings: WallaSettings,
}

enum Source {
    Nothing,
    Link(Box<dyn Fn() -> Box<dyn Link> + Send + Sync>),
}

impl WallaPlugin {
    /// Agents speak through links of your own, for instance those of a
    /// [`ScriptedEngine`](crate::scripted::ScriptedEngine) in a test.
    #[must_use]
    pub fn with_link(linker: impl Fn() -> Box<dyn Link> + Send + Sync + 'static) -> Self {
        Self::new(Source::Link(Box::new(linker)))
    }

    /// Bounds of the plugin's work.
    #[must_use]
    pub fn settings(mut self, settings: WallaSettings) -> Self {
        self.settings = settings;
        self
    }

    fn new(source: Source) -> Self {
        Self { source, settings: WallaSettings::default() }
    }

    fn link(&self) -> Result<Box<dyn Link>, WallaError> {
        match &self.source {
            Source::Nothing => Err(WallaError::NoModel),
            Source::Link(linker) => Ok(linker()),
        }
    }
}

impl Default for WallaPlugin {
    fn default() -> Self {
        Self::new(Source::Nothing)
    }
}

impl Plugin for WallaPlugin {
    fn build(&self, app: &mut App) {
        app.insert_resource(Hub::new(self.link()))
            .insert_resource(self.settings.clone())
            .init_resource::<Walla>()
            .add_message::<Ask>()
            .add_message::<Cancel>()
            .add_message::<WallaReady>()
            .add_message::<WallaFailed>()
            .add_message::<ReplyStarted>()
            .add_message::<ReplyDelta>()
            .add_message::<SentenceSpoken>()
            .add_message::<TokenDrawn>()
            .add_message::<ReplyFinished>()
            .add_message::<ReplyFailed>()
            .add_observer(ask::forward_ask)
            .add_observer(ask::forward_cancel);
        systems::add_systems(app);
    }
}
