//! The agents of mode `on`: one engine per launch limit.
//!
//! The limit of an engine is constant. So each limit has a separate engine, and a headless Bevy app
//! with walla's plugin and the agents. All limits alternate in one process under the same
//! conditions. The app of the current turn is updated once per frame, in `PostUpdate` of the
//! scene's app. The other apps are not updated, so their engines get no frames.

use bevy::prelude::*;
use bevy_walla::diagnostics::{EngineStats, HostTimes, ModelCard};
use bevy_walla::engine::Engine;
use bevy_walla::prelude::*;
use walla_examples::fail;

use crate::dialogue::{DialoguePlugin, Talk};

/// One app per launch limit. Its systems run on the main thread.
#[derive(Default)]
pub struct Games(Vec<Game>);

struct Game {
    app: App,
    /// Whether an ask may be open.
    is_open: bool,
}

impl Games {
    /// Adds the app of an engine.
    pub fn add(&mut self, engine: Engine, dialogue: DialoguePlugin) {
        let mut app = App::new();
        app.add_plugins((TaskPoolPlugin::default(), WallaPlugin::new(engine), dialogue))
            .add_observer(|failed: On<WallaFailed>| fail(&failed.error));
        app.finish();
        app.cleanup();
        self.0.push(Game { app, is_open: false });
    }

    /// Runs one frame: only the agents of app `talking` speak.
    pub fn update(&mut self, talking: Option<usize>) {
        for (place, game) in self.0.iter_mut().enumerate() {
            game.update(talking == Some(place));
        }
    }

    /// The engine's counters and host time of walla's systems in the latest frame of an app.
    pub fn counters(&self, place: usize) -> (EngineStats, HostTimes) {
        let walla = self.0.get(place).map(Game::walla);
        walla.map(|walla| (*walla.stats(), walla.host_times())).unwrap_or_default()
    }

    /// The model.
    pub fn model(&self) -> Option<&ModelCard> {
        self.0.first().and_then(|game| game.walla().model())
    }
}

impl Game {
    fn walla(&self) -> &Walla {
        self.app.world().resource::<Walla>()
    }

    fn update(&mut self, talks: bool) {
        if !talks && !self.is_open {
            return;
        }
        self.app.world_mut().resource_mut::<Talk>().0 = talks;
        self.app.update();
        let world = self.app.world_mut();
        let mut speeches = world.query::<&Speech>();
        self.is_open = talks || speeches.iter(world).any(|speech| !speech.is_silent());
    }
}
