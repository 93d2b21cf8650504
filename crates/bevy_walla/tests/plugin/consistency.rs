//! The component and the engine hold the same conversation after any sequence of actions, in any
//! schedule and at any progress of the engine.
//!
//! A simulation is a function of its seed and its level. A level is a set of actions ([`game`]).
//! The engine is a model ([`engine_model`]) that advances at random between all schedules. From
//! time to time the game does nothing until the engine is idle, and all conversations are compared.
//!
//! `WALLA_CONSISTENCY_SEEDS=FIRST..END` runs other seeds than the default ones.

mod engine_model;
mod game;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::common::dice::Dice;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::conversation::Turn;
use bevy_walla::engines::{EngineSet, EngineSetup};
use bevy_walla::prelude::*;
use engine_model::EngineModel;
use game::{ALL, Game, Heard, Level, PLAIN, add_game};

/// Default seeds.
const SEEDS: Range<u64> = 0..24;

/// Seeds from `WALLA_CONSISTENCY_SEEDS=FIRST..END`.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("WALLA_CONSISTENCY_SEEDS") else { return SEEDS };
    let range = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.trim().parse().ok()?..end.trim().parse().ok()?));
    range.unwrap_or_else(|| panic!("WALLA_CONSISTENCY_SEEDS is {text:?}, expected FIRST..END"))
}

#[test]
fn asks_cancels_and_pushed_turns() {
    simulate_all(PLAIN);
}

#[test]
fn interruptions() {
    simulate_all(Level { interrupts: true, ..PLAIN });
}

#[test]
fn edited_and_swapped_conversations() {
    simulate_all(Level { edits: true, ..PLAIN });
}

#[test]
fn random_spawns_and_despawns() {
    simulate_all(Level { removes_agents: true, ..PLAIN });
}

#[test]
fn conversations_that_are_taken_and_inserted_again() {
    simulate_all(Level { takes: true, ..PLAIN });
}

#[test]
fn bounded_conversations() {
    simulate_all(Level { interrupts: true, is_bounded: true, ..PLAIN });
}

#[test]
fn everything_at_once() {
    simulate_all(ALL);
}

#[test]
fn everything_at_once_in_bounded_conversations() {
    simulate_all(Level { is_bounded: true, ..ALL });
}

#[test]
fn everything_at_once_behind_a_router() {
    simulate_all(Level { is_routed: true, ..ALL });
}

fn simulate_all(level: Level) {
    for seed in seeds() {
        Simulation::new(seed, level).run();
    }
}

struct Simulation {
    seed: u64,
    level: Level,
    app: App,
    engine: EngineModel,
}

impl Simulation {
    fn new(seed: u64, level: Level) -> Self {
        let mut dice = Dice::new(seed);
        let queue = if dice.one_in(3) { 1 + dice.throw(3) as usize } else { 1_000 };
        let engine = EngineModel::new(Dice::new(seed + 0x1234_5678), queue);
        let max_turns = dice.throw(7) as u32;
        let mut bound = |most| if dice.one_in(2) { 1 + dice.throw(4) as u32 } else { most };
        let settings = WallaSettings {
            max_events_per_frame: bound(1_000),
            max_commands_per_frame: bound(1_000),
            max_asks_per_agent: 12,
            max_conversation_turns: if level.is_bounded { max_turns } else { u32::MAX },
            publish_fragments: true,
            ..WallaSettings::default()
        };
        let mut app = App::new();
        let setup = EngineSetup::client(engine.new_client());
        let plugin = if level.is_routed {
            WallaPlugin::engines(EngineSet::new("default", setup))
        } else {
            WallaPlugin::new(setup)
        };
        app.add_plugins(plugin.settings(settings));
        add_game(&mut app, Game::new(dice, engine.clone(), level));
        Self { seed, level, app, engine }
    }

    fn run(mut self) {
        for _ in 0..3 {
            for _ in 0..20 {
                self.app.update();
            }
            self.quieten();
            self.check_ends();
            self.check_conversations();
        }
    }

    /// Runs frames without actions until nothing is under way.
    fn quieten(&mut self) {
        self.app.world_mut().resource_mut::<Game>().is_quiet = true;
        self.app.world_mut().resource_mut::<WallaSettings>().paused = false;
        let mut frames_idle = 0;
        for _ in 0..3_000 {
            let commands = self.engine.commands_received();
            self.app.update();
            // The plugin sends at least one command per frame until none is pending.
            let is_idle = self.engine.is_idle()
                && self.engine.commands_received() == commands
                && self.has_heard_all_ends();
            frames_idle = if is_idle { frames_idle + 1 } else { 0 };
            if frames_idle == 4 {
                self.app.world_mut().resource_mut::<Game>().is_quiet = false;
                return;
            }
        }
        let heard = self.world().resource::<Heard>();
        self.fail(&format!("no end of it; ends of {:?}", heard.tags));
    }

    fn has_heard_all_ends(&self) -> bool {
        let (game, heard) = (self.world().resource::<Game>(), self.world().resource::<Heard>());
        heard.tags.iter().copied().eq(1..=game.asked)
    }

    /// Each ask has ended once, and nothing of it is left over.
    fn check_ends(&self) {
        let (game, heard) = (self.world().resource::<Game>(), self.world().resource::<Heard>());
        if heard.ends.values().any(|&count| count != 1) {
            self.fail(&format!("an ask ended more than once: {:?}", heard.ends));
        }
        if self.world().resource::<Walla>().asks_waiting() != 0 {
            self.fail("asks wait although each has ended");
        }
        let mut speeches = game.agents.iter().filter_map(|&a| self.world().get::<Speech>(a));
        if !speeches.all(Speech::is_silent) {
            self.fail("an agent speaks although each ask has ended");
        }
    }

    fn check_conversations(&self) {
        let mut in_engine = self.engine.conversations();
        for &agent in &self.world().resource::<Game>().agents {
            let Some(persona) = self.world().get::<Agent>(agent).map(|a| &a.persona) else {
                continue;
            };
            let copy = in_engine.remove(persona);
            let talk = self.world().get::<Conversation>(agent);
            match (talk, copy) {
                (Some(talk), Some(copy)) => self.compare(talk.turns(), &copy),
                // The engine remembers.
                (None, _) => {}
                // An agent that is spawned disabled is sent with its first ask.
                (Some(_), None) if self.level.removes_agents => {}
                (Some(_), None) => self.fail(&format!("the engine does not know {agent}")),
            }
        }
        if !in_engine.is_empty() {
            self.fail(&format!("the engine knows agents that are gone: {in_engine:?}"));
        }
    }

    fn compare(&self, talk: &[Turn], copy: &[Turn]) {
        let is_equal = if self.level.is_bounded {
            // The engine has at least the turns that the component has, and none twice.
            let mut rest = copy.iter();
            let whole: Vec<_> = copy.iter().map(|turn| &turn.text).filter(is_whole).collect();
            talk.iter().all(|turn| rest.any(|other| other == turn))
                && whole.len() == whole.iter().collect::<BTreeSet<_>>().len()
        } else {
            talk == copy
        };
        if !is_equal {
            let texts = |turns: &[Turn]| turns.iter().map(|t| t.text.clone()).collect::<Vec<_>>();
            self.fail(&format!("component: {:?}\nengine: {:?}", texts(talk), texts(copy)));
        }
    }

    fn world(&self) -> &World {
        self.app.world()
    }

    fn fail(&self, message: &str) -> ! {
        let Self { seed, level, engine, .. } = self;
        let log = engine.log();
        panic!("{log}\n{message}\nWALLA_CONSISTENCY_SEEDS={seed}..{} {level:?}", seed + 1);
    }
}

/// Whether no other turn has this text: it is a question, a pushed turn, or a reply that was not
/// cut.
fn is_whole(text: &&String) -> bool {
    text.starts_with(['p', 'q']) || text.ends_with('.')
}
