//! A game with random actions, by seed: every ask ends exactly once, and no state is left over.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::dice::Dice;
use crate::common::*;
use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::Speaker;
use bevy_walla::engine::EngineState;
use bevy_walla::prelude::*;
use bevy_walla::reply::ReplyId;
use bevy_walla::scripted::ScriptedEngine;

/// Terminal events of each reply, and text outside of a reply.
#[derive(Resource, Default)]
struct Ends {
    ends: BTreeMap<ReplyId, u32>,
    begun: BTreeMap<ReplyId, bool>,
    tags: BTreeSet<u64>,
    out_of_order: u32,
}

impl Ends {
    fn ended(&mut self, reply_id: ReplyId, tag: u64) {
        self.tags.insert(tag);
        *self.ends.entry(reply_id).or_default() += 1;
        self.begun.insert(reply_id, false);
    }
}

fn watch(app: &mut App) {
    app.init_resource::<Ends>()
        .add_observer(|e: On<ReplyStarted>, mut ends: ResMut<Ends>| {
            if ends.begun.insert(e.reply_id, true).is_some() {
                ends.out_of_order += 1;
            }
        })
        .add_observer(|e: On<ReplyDelta>, mut ends: ResMut<Ends>| {
            if ends.begun.get(&e.reply_id) != Some(&true) {
                ends.out_of_order += 1;
            }
        })
        .add_observer(|e: On<ReplyFinished>, mut ends: ResMut<Ends>| {
            ends.ended(e.reply_id, e.tag);
        })
        .add_observer(|e: On<ReplyFailed>, mut ends: ResMut<Ends>| ends.ended(e.reply_id, e.tag));
}

/// One random action of a game. Each ask has the next tag.
fn something(app: &mut App, agents: &mut Vec<Entity>, dice: &mut Dice, asked: &mut u64) {
    let mut next = |agent, text| {
        *asked += 1;
        Ask::new(agent, text).with_tag(*asked)
    };
    if agents.is_empty() || dice.throw(12) == 0 {
        agents.push(spawn(app, "A"));
    }
    let which = dice.throw(agents.len() as u64) as usize;
    let agent = agents[which];
    let world = app.world_mut();
    match dice.throw(19) {
        0..=5 => {
            world.trigger(next(agent, "one two three"));
        }
        6 => {
            world.write_message(next(agent, "four"));
            world.write_message(next(agent, "five"));
        }
        7..=8 => world.trigger(Cancel::new(agent)),
        9 => {
            world.despawn(agent);
            agents.swap_remove(which);
        }
        10 => {
            world.entity_mut(agent).remove::<Agent>().insert(Agent::persona("B"));
        }
        11 => {
            world.entity_mut(agent).insert(Agent::persona("C"));
        }
        12 => {
            world.entity_mut(agent).insert(Conversation::default());
        }
        13 => {
            if let Some(mut talk) = world.get_mut::<Conversation>(agent) {
                talk.forget_last_exchange();
            }
        }
        14 => {
            world.entity_mut(agent).remove::<(Speech, AgentSampling)>().insert(Speech::default());
        }
        15 => world.trigger(Cancel::heard(agent, dice.throw(12) as u32)),
        16 => {
            if let Some(mut talk) = world.get_mut::<Conversation>(agent) {
                talk.push(Speaker::User, "It rains.");
                talk.push(Speaker::Agent, "So it does.");
            }
        }
        17 => world.resource_mut::<WallaSettings>().paused = dice.throw(3) == 0,
        _ => {}
    }
}

fn run_random_actions(seed: u64, engine_fails: bool) {
    let mut dice = Dice::new(seed);
    let engine = ScriptedEngine::new(|persona, question| format!("{persona} {question}. So!"))
        .command_queue(1 + dice.throw(8) as usize)
        .starting_in(EngineState::Loading { fraction: 0.0 });
    let settings = WallaSettings {
        max_events_per_frame: 1 + dice.throw(20) as u32,
        max_commands_per_frame: 1 + dice.throw(20) as u32,
        max_asks_per_agent: 1 + dice.throw(12) as u32,
        max_conversation_turns: 2 * dice.throw(4) as u32,
        ..WallaSettings::default()
    };
    let mut app = app_with(WallaPlugin::new(&engine).settings(settings));
    watch(&mut app);
    let (mut agents, mut asked) = (Vec::new(), 0_u64);
    for frame in 0..120 {
        if frame == 20 {
            engine.set_state(EngineState::Ready);
        }
        if engine_fails && frame == 80 {
            engine.set_state(EngineState::Stopped);
        }
        for _ in 0..dice.throw(4) {
            something(&mut app, &mut agents, &mut dice, &mut asked);
        }
        app.update();
    }
    app.world_mut().resource_mut::<WallaSettings>().paused = false;
    // Events in flight arrive, and then no more follow.
    for _ in 0..3_000 {
        app.update();
        if app.world().resource::<Ends>().ends.len() as u64 >= asked {
            break;
        }
    }
    updates(&mut app, 100);
    let ends = app.world().resource::<Ends>();
    assert_eq!(ends.ends.len() as u64, asked, "seed {seed}: every ask has an end");
    assert!(ends.tags.iter().copied().eq(1..=asked), "seed {seed}: its own");
    assert!(ends.ends.values().all(|&count| count == 1), "seed {seed}: and only one");
    assert_eq!(ends.out_of_order, 0, "seed {seed}: text belongs to a reply that has begun");
    for &agent in &agents {
        assert!(speech(&app, agent).is_silent(), "seed {seed}");
        assert_eq!(turns(&app, agent).len() % 2, 0, "seed {seed}: whole exchanges");
    }
    assert_eq!(app.world().resource::<Walla>().asks_waiting(), 0, "seed {seed}");
    if !engine_fails {
        assert_eq!(engine.agents(), agents.len(), "seed {seed}: nobody is left over");
    }
}

#[test]
fn every_ask_ends_once_under_random_actions() {
    (1..=60).for_each(|seed| run_random_actions(seed, false));
}

#[test]
fn every_ask_ends_once_if_the_engine_fails() {
    (1..=60).for_each(|seed| run_random_actions(seed, true));
}
