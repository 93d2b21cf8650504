//! The component and the engine hold the same conversation after any sequence of actions, in any
//! schedule and at any progress of the engine.
//!
//! A story is a function of its seed and its level. A level is a set of actions. The engine is a
//! model ([`EngineModel`]) that advances at random between all schedules. From time to time the
//! game does nothing until the engine is idle, and all conversations are compared.
//!
//! `WALLA_CONSISTENCY_SEEDS=FIRST..END` runs other seeds than the default ones.

mod common;
#[path = "common/engine_model.rs"]
mod engine_model;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bevy_app::prelude::*;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_walla::GenerationId;
use bevy_walla::prelude::*;
use common::dice::Dice;
use engine_model::EngineModel;

/// Default seeds.
const SEEDS: Range<u64> = 0..60;

/// Seeds from `WALLA_CONSISTENCY_SEEDS=FIRST..END`.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("WALLA_CONSISTENCY_SEEDS") else { return SEEDS };
    let range = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.trim().parse().ok()?..end.trim().parse().ok()?));
    range.unwrap_or_else(|| panic!("WALLA_CONSISTENCY_SEEDS is {text:?}, expected FIRST..END"))
}

/// Actions of a story. Asks, cancels, pushed turns and pauses are always among them.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    interrupts: bool,
    /// Conversations are edited, replaced, copied and swapped.
    edits: bool,
    /// Agents are removed, replaced and disabled.
    removes_agents: bool,
    /// Conversations are taken from their agents and inserted again.
    takes: bool,
    /// Conversations have few turns. The engine then has more.
    is_bounded: bool,
}

const PLAIN: Level = Level {
    interrupts: false,
    edits: false,
    removes_agents: false,
    takes: false,
    is_bounded: false,
};
const ALL: Level =
    Level { interrupts: true, edits: true, removes_agents: true, takes: true, is_bounded: false };

#[test]
fn asks_cancels_and_pushed_turns() {
    stories(PLAIN);
}

#[test]
fn interruptions() {
    stories(Level { interrupts: true, ..PLAIN });
}

#[test]
fn edited_and_swapped_conversations() {
    stories(Level { edits: true, ..PLAIN });
}

#[test]
fn agents_that_come_and_go() {
    stories(Level { removes_agents: true, ..PLAIN });
}

#[test]
fn conversations_that_are_taken_and_inserted_again() {
    stories(Level { takes: true, ..PLAIN });
}

#[test]
fn bounded_conversations() {
    stories(Level { interrupts: true, is_bounded: true, ..PLAIN });
}

#[test]
fn everything_at_once() {
    stories(ALL);
}

#[test]
fn everything_at_once_in_bounded_conversations() {
    stories(Level { is_bounded: true, ..ALL });
}

fn stories(level: Level) {
    for seed in seeds() {
        Story::new(seed, level).run();
    }
}

/// What the game has heard of its asks.
#[derive(Resource, Default)]
struct Heard {
    ends: BTreeMap<GenerationId, u32>,
    tags: BTreeSet<u64>,
    texts: BTreeMap<GenerationId, String>,
    sentences: Vec<SentenceSpoken>,
}

impl Heard {
    fn ended(&mut self, generation: GenerationId, tag: u64) {
        *self.ends.entry(generation).or_default() += 1;
        self.tags.insert(tag);
    }

    fn spoken(&mut self, sentence: SentenceSpoken) {
        let text = self.texts.get(&sentence.generation).map_or("", String::as_str);
        let before = text.get(..sentence.end_bytes as usize).unwrap_or_default();
        assert!(before.trim_end().ends_with(&*sentence.text), "{sentence:?} of {text:?}");
        self.sentences.push(sentence);
    }
}

fn listen(app: &mut App) {
    app.init_resource::<Heard>()
        .add_observer(|e: On<ReplyFinished>, mut heard: ResMut<Heard>| {
            heard.ended(e.generation, e.tag);
        })
        .add_observer(|e: On<ReplyFailed>, mut heard: ResMut<Heard>| {
            heard.ended(e.generation, e.tag);
        })
        .add_observer(|e: On<ReplyDelta>, mut heard: ResMut<Heard>| {
            heard.texts.entry(e.generation).or_default().push_str(&e.text);
        })
        .add_observer(|e: On<SentenceSpoken>, mut heard: ResMut<Heard>| heard.spoken(*e));
}

/// Adds the game to every place of a frame.
fn act_everywhere(app: &mut App) {
    use WallaSystems::{Collect, Publish, Submit};
    app.add_systems(First, act)
        .add_systems(PreUpdate, (act.before(Publish), act.after(Publish)))
        .add_systems(Update, act)
        .add_systems(PostUpdate, act.before(Collect))
        .add_systems(PostUpdate, act.after(Collect).before(Submit))
        .add_systems(PostUpdate, act.after(Submit))
        .add_systems(Last, act);
}

/// At most one action, then up to three steps of the engine.
fn act(world: &mut World) {
    world.resource_scope(|world, mut game: Mut<Game>| {
        if !game.is_quiet && game.dice.one_in(3) {
            game.act(world);
        }
        for _ in 0..game.dice.throw(4) {
            game.engine.step();
        }
    });
}

#[derive(Resource)]
struct Game {
    dice: Dice,
    engine: EngineModel,
    actions: Vec<Action>,
    agents: Vec<Entity>,
    /// Conversations without an agent.
    taken: Vec<(Entity, Conversation)>,
    asked: u64,
    pushed: u64,
    named: u64,
    /// The game does nothing until the engine is idle.
    is_quiet: bool,
}

/// An action and its name.
type Action = (&'static str, fn(&mut Game, &mut World, Entity));

const ALWAYS: &[Action] = &[
    ("ask", Game::ask),
    ("ask", Game::ask),
    ("ask", Game::ask),
    ("ask by message", Game::ask_by_message),
    ("ask raw", Game::ask_raw),
    ("cancel", Game::cancel),
    ("push", Game::push),
    ("push", Game::push),
    ("pause", Game::pause),
];
const INTERRUPTS: &[Action] = &[
    ("interrupt", Game::interrupt),
    ("interrupt", Game::interrupt),
    ("interrupt after a sentence", Game::interrupt_after_sentence),
];
const EDITS: &[Action] = &[
    ("clear", Game::clear),
    ("forget", Game::forget),
    ("insert a copy", Game::insert_copy),
    ("swap by insertion", Game::swap_by_insertion),
    ("swap in place", Game::swap_in_place),
    ("swap in place", Game::swap_in_place),
];
const REMOVALS: &[Action] = &[
    ("despawn", Game::despawn),
    ("replace the agent", Game::replace_agent),
    ("change the agent", Game::change_agent),
    ("disable or enable", Game::disable_or_enable),
];
const TAKES: &[Action] =
    &[("take or put back", Game::take_or_put_back), ("take or put back", Game::take_or_put_back)];

fn actions(level: Level) -> Vec<Action> {
    let groups = [
        (true, ALWAYS),
        (level.interrupts, INTERRUPTS),
        (level.edits, EDITS),
        (level.removes_agents, REMOVALS),
        (level.takes, TAKES),
    ];
    groups.iter().filter(|(is_in, _)| *is_in).flat_map(|(_, group)| *group).copied().collect()
}

impl Game {
    fn act(&mut self, world: &mut World) {
        if self.agents.is_empty() || (self.agents.len() < 3 && self.dice.one_in(6)) {
            let agent = self.new_agent();
            self.agents.push(world.spawn(agent).id());
        }
        let Some(&agent) = self.dice.pick(&self.agents) else { return };
        let Some(&(name, action)) = self.dice.pick(&self.actions) else { return };
        self.engine.note(format!("{name}: {agent}"));
        action(self, world, agent);
    }

    /// An agent with its own persona, by which it is found in the engine.
    fn new_agent(&mut self) -> Agent {
        self.named += 1;
        Agent::persona(format!("A{}", self.named))
    }

    fn next_ask(&mut self, agent: Entity) -> Ask {
        self.asked += 1;
        Ask::new(agent, format!("q{}", self.asked)).tagged(self.asked)
    }

    fn ask(&mut self, world: &mut World, agent: Entity) {
        world.trigger(self.next_ask(agent));
    }

    fn ask_by_message(&mut self, world: &mut World, agent: Entity) {
        world.write_message(self.next_ask(agent));
    }

    fn ask_raw(&mut self, world: &mut World, agent: Entity) {
        world.trigger(self.next_ask(agent).raw());
    }

    fn cancel(&mut self, world: &mut World, agent: Entity) {
        if self.dice.one_in(4) {
            world.write_message(Cancel { agent });
        } else {
            world.trigger(Cancel { agent });
        }
    }

    fn push(&mut self, world: &mut World, agent: Entity) {
        let Some(mut talk) = world.get_mut::<Conversation>(agent) else { return };
        for speaker in [Speaker::Observation, Speaker::Agent] {
            self.pushed += 1;
            talk.push(speaker, format!("p{}", self.pushed));
            if self.dice.one_in(2) {
                break;
            }
        }
    }

    fn pause(&mut self, world: &mut World, _: Entity) {
        world.resource_mut::<WallaSettings>().paused = self.dice.one_in(2);
    }

    fn interrupt(&mut self, world: &mut World, agent: Entity) {
        let Some(&heard_bytes) = self.dice.pick(&[0, 1, 2, 5, 9, 99]) else { return };
        let interrupt = Interrupt::at(agent, heard_bytes);
        if self.dice.one_in(4) {
            world.write_message(interrupt);
        } else {
            world.trigger(interrupt);
        }
    }

    fn interrupt_after_sentence(&mut self, world: &mut World, agent: Entity) {
        let sentences = &world.resource::<Heard>().sentences;
        let of_agent = sentences.iter().rev().filter(|sentence| sentence.agent == agent);
        let latest: Vec<_> = of_agent.take(4).copied().collect();
        if let Some(sentence) = self.dice.pick(&latest) {
            world.trigger(Interrupt::after(sentence));
        }
    }

    fn clear(&mut self, world: &mut World, agent: Entity) {
        if let Some(mut talk) = world.get_mut::<Conversation>(agent) {
            talk.clear();
        }
    }

    fn forget(&mut self, world: &mut World, agent: Entity) {
        if let Some(mut talk) = world.get_mut::<Conversation>(agent) {
            talk.forget_last_exchange();
        }
    }

    fn insert_copy(&mut self, world: &mut World, agent: Entity) {
        if let Some(talk) = world.get::<Conversation>(agent).cloned() {
            world.entity_mut(agent).insert(talk);
        }
    }

    fn swap_by_insertion(&mut self, world: &mut World, agent: Entity) {
        let Some(other) = self.partner(world, agent) else { return };
        let taken = [agent, other].map(|agent| world.entity_mut(agent).take::<Conversation>());
        let [Some(first), Some(second)] = taken else { return };
        world.entity_mut(agent).insert(second);
        world.entity_mut(other).insert(first);
    }

    fn swap_in_place(&mut self, world: &mut World, agent: Entity) {
        let Some(other) = self.partner(world, agent) else { return };
        let [mut first, mut second] = world.entity_mut([agent, other]);
        let talks = (first.get_mut::<Conversation>(), second.get_mut::<Conversation>());
        let (Some(mut first), Some(mut second)) = talks else { return };
        std::mem::swap(&mut *first, &mut *second);
    }

    /// Another agent, if both have conversations.
    fn partner(&mut self, world: &World, agent: Entity) -> Option<Entity> {
        let other = *self.dice.pick(&self.agents)?;
        let have_talks = [agent, other].map(|agent| world.get::<Conversation>(agent).is_some());
        (other != agent && have_talks == [true; 2]).then_some(other)
    }

    fn despawn(&mut self, world: &mut World, agent: Entity) {
        world.despawn(agent);
        self.agents.retain(|&other| other != agent);
        self.taken.retain(|&(of, _)| of != agent);
    }

    fn replace_agent(&mut self, world: &mut World, agent: Entity) {
        world.entity_mut(agent).remove::<Agent>().insert(self.new_agent());
    }

    fn change_agent(&mut self, world: &mut World, agent: Entity) {
        world.entity_mut(agent).insert(self.new_agent());
    }

    fn disable_or_enable(&mut self, world: &mut World, agent: Entity) {
        let mut entity = world.entity_mut(agent);
        if entity.contains::<Disabled>() {
            entity.remove::<Disabled>();
        } else {
            entity.insert(Disabled);
        }
    }

    fn take_or_put_back(&mut self, world: &mut World, agent: Entity) {
        if let Some(at) = self.taken.iter().position(|&(of, _)| of == agent) {
            let (_, talk) = self.taken.remove(at);
            world.entity_mut(agent).insert(talk);
        } else if let Some(talk) = world.entity_mut(agent).take::<Conversation>() {
            self.taken.push((agent, talk));
        }
    }
}

struct Story {
    seed: u64,
    level: Level,
    app: App,
    engine: EngineModel,
}

impl Story {
    fn new(seed: u64, level: Level) -> Self {
        let mut dice = Dice::new(seed);
        let queue = if dice.one_in(3) { 1 + dice.throw(3) as usize } else { 1_000 };
        let engine = EngineModel::new(Dice::new(seed + 0x1234_5678), queue);
        let mut bound = |most| if dice.one_in(2) { 1 + dice.throw(4) as u32 } else { most };
        let settings = WallaSettings {
            events_per_frame_max: bound(1_000),
            commands_per_frame_max: bound(1_000),
            asks_per_agent_max: 12,
            conversation_turns_max: if level.is_bounded { bound(6) } else { u32::MAX },
            publish_fragments: true,
            ..WallaSettings::default()
        };
        let mut app = App::new();
        app.add_plugins(WallaPlugin::with_engine_client(engine.connector()).settings(settings));
        listen(&mut app);
        act_everywhere(&mut app);
        app.insert_resource(Game {
            dice,
            engine: engine.clone(),
            actions: actions(level),
            agents: Vec::new(),
            taken: Vec::new(),
            asked: 0,
            pushed: 0,
            named: 0,
            is_quiet: false,
        });
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
