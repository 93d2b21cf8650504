//! The game of a simulation: random actions in every place of a frame.

use std::collections::{BTreeMap, BTreeSet};

use bevy_app::prelude::*;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_walla::actions::{AgentCalled, CallId};
use bevy_walla::agent::ForkCommands;
use bevy_walla::ask::{Cancel, Prompt};
use bevy_walla::conversation::Speaker;
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyId;

use super::engine_model::EngineModel;
use crate::common::dice::Dice;

/// Actions of a simulation. Asks, cancels, pushed turns and pauses are always among them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Level {
    pub interrupts: bool,
    /// Conversations are edited, replaced, copied and swapped.
    pub edits: bool,
    /// Agents are removed, replaced and disabled.
    pub removes_agents: bool,
    /// Conversations are taken from their agents and inserted again.
    pub takes: bool,
    /// Conversations have few turns. The engine then has more.
    pub is_bounded: bool,
    /// The engine is one of several.
    pub is_routed: bool,
}

pub const PLAIN: Level = Level {
    interrupts: false,
    edits: false,
    removes_agents: false,
    takes: false,
    is_bounded: false,
    is_routed: false,
};
pub const ALL: Level =
    Level { interrupts: true, edits: true, removes_agents: true, takes: true, ..PLAIN };

/// Events of the asks that the game has received.
#[derive(Resource, Default)]
pub struct Heard {
    pub ends: BTreeMap<ReplyId, u32>,
    pub tags: BTreeSet<u64>,
    texts: BTreeMap<ReplyId, String>,
    sentences: Vec<ReplySentence>,
    called: Vec<(Entity, CallId)>,
}

impl Heard {
    fn ended(&mut self, reply_id: ReplyId, tag: u64) {
        *self.ends.entry(reply_id).or_default() += 1;
        // A result for an agent that was replaced has no tag.
        if tag > 0 {
            self.tags.insert(tag);
        }
    }

    fn spoken(&mut self, sentence: ReplySentence) {
        let text = self.texts.get(&sentence.reply_id).map_or("", String::as_str);
        let before = text.get(..sentence.end_bytes as usize).unwrap_or_default();
        assert!(before.trim_end().ends_with(&*sentence.text), "{sentence:?} of {text:?}");
        self.sentences.push(sentence);
    }
}

fn listen(app: &mut App) {
    app.init_resource::<Heard>()
        .add_observer(|e: On<ReplyFinished>, mut heard: ResMut<Heard>| {
            heard.ended(e.reply_id, e.tag);
        })
        .add_observer(|e: On<ReplyFailed>, mut heard: ResMut<Heard>| {
            heard.ended(e.reply_id, e.tag);
        })
        .add_observer(|e: On<AgentCalled>, mut heard: ResMut<Heard>| {
            heard.called.push((e.agent, e.call.id));
        })
        .add_observer(|e: On<ReplyDelta>, mut heard: ResMut<Heard>| {
            heard.texts.entry(e.reply_id).or_default().push_str(&e.text);
        })
        .add_observer(|e: On<ReplySentence>, mut heard: ResMut<Heard>| heard.spoken(*e));
}

/// Adds the game to every place of a frame.
pub fn add_game(app: &mut App, game: Game) {
    listen(app);
    app.insert_resource(game);
    act_everywhere(app);
}

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
pub struct Game {
    dice: Dice,
    engine: EngineModel,
    actions: Vec<Action>,
    pub agents: Vec<Entity>,
    /// Conversations without an agent.
    taken: Vec<(Entity, Conversation)>,
    pub asked: u64,
    pushed: u64,
    named: u64,
    /// The game does nothing until the engine is idle.
    pub is_quiet: bool,
}

/// An action and its name.
type Action = (&'static str, fn(&mut Game, &mut World, Entity));

const ALWAYS: &[Action] = &[
    ("ask", Game::ask),
    ("ask", Game::ask),
    ("ask", Game::ask),
    ("ask by message", Game::ask_by_message),
    ("ask raw", Game::ask_raw),
    ("ask to continue", Game::ask_to_continue),
    ("answer a call", Game::answer_call),
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
    ("rewind", Game::rewind),
    ("edit a turn", Game::edit_turn),
    ("ask again", Game::ask_again),
    ("ask again", Game::ask_again),
    ("fork", Game::fork),
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
    pub fn new(dice: Dice, engine: EngineModel, level: Level) -> Self {
        Self {
            dice,
            engine,
            actions: actions(level),
            agents: Vec::new(),
            taken: Vec::new(),
            asked: 0,
            pushed: 0,
            named: 0,
            is_quiet: false,
        }
    }

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
        Ask::new(agent, format!("q{}", self.asked)).with_tag(self.asked)
    }

    fn ask(&mut self, world: &mut World, agent: Entity) {
        world.trigger(self.next_ask(agent));
    }

    fn ask_by_message(&mut self, world: &mut World, agent: Entity) {
        world.write_message(self.next_ask(agent));
    }

    fn ask_raw(&mut self, world: &mut World, agent: Entity) {
        let ask = self.next_ask(agent);
        world.trigger(Ask { prompt: Prompt::Raw(ask.prompt.text().into()), ..ask });
    }

    fn ask_to_continue(&mut self, world: &mut World, agent: Entity) {
        self.asked += 1;
        world.trigger(Ask::resume(agent).with_tag(self.asked));
    }

    /// Gives a result, also to an agent that has not acted.
    fn answer_call(&mut self, world: &mut World, agent: Entity) {
        let called = &world.resource::<Heard>().called;
        let id = called.iter().rev().find(|(of, _)| *of == agent).map(|(_, id)| *id);
        let Some(id) = id else { return };
        self.pushed += 1;
        let text = format!("r{}", self.pushed);
        world.trigger(ActionResult { agent, id, text });
    }

    fn cancel(&mut self, world: &mut World, agent: Entity) {
        if self.dice.one_in(4) {
            world.write_message(Cancel::new(agent));
        } else {
            world.trigger(Cancel::new(agent));
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
        let interrupt = Cancel::heard(agent, heard_bytes);
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
            world.trigger(Cancel::heard_until(sentence));
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

    fn rewind(&mut self, world: &mut World, agent: Entity) {
        if let Some(mut talk) = world.get_mut::<Conversation>(agent) {
            let before = talk.turns().len();
            let removed = talk.rewind(self.dice.throw(4) as usize);
            assert_eq!(talk.turns().len() + removed.len(), before);
        }
    }

    fn edit_turn(&mut self, world: &mut World, agent: Entity) {
        self.pushed += 1;
        let text = format!("e{}", self.pushed);
        if let Some(mut talk) = world.get_mut::<Conversation>(agent) {
            talk.set_text(self.dice.throw(6) as usize, text);
        }
    }

    fn ask_again(&mut self, world: &mut World, agent: Entity) {
        self.asked += 1;
        world.trigger(Ask::again(agent).with_seed(self.asked).with_tag(self.asked));
    }

    /// A copy under another persona, by which it is found in the engine.
    fn fork(&mut self, world: &mut World, agent: Entity) {
        if self.agents.len() < 4 {
            let copy = world.commands().fork_agent(agent);
            world.flush();
            let persona = self.new_agent();
            world.entity_mut(copy).insert(persona);
            self.agents.push(copy);
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
