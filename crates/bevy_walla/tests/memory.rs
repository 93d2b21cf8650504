//! The component and the engine hold the same conversation after any sequence of edits: an agent
//! that begins with a copy of the component has the same prompt.

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::agent::Sampling;
use bevy_walla::ask::Cancel;
use bevy_walla::conversation::Speaker;
use bevy_walla::options::ModelSource;
use bevy_walla::prelude::*;
use bevy_walla::tokens::{TokenId, TokenMask};
use common::dice::Dice;
use common::*;
use walla_doubles::synth::{self, Mixture, Model};

fn model() -> &'static [u8] {
    static MODEL: OnceLock<Vec<u8>> = OnceLock::new();
    let shape = Model { context_train: 2_048, ..Model::TINY };
    MODEL.get_or_init(|| synth::write(&shape, Mixture::Q8_0, 7, Vec::new()).unwrap())
}

/// Answers every question with ten words.
fn guest(app: &mut App, conversation: Conversation) -> Entity {
    let words = TokenMask::allow(Model::TINY.vocab, (256..297).map(TokenId)).unwrap();
    let sampling = Sampling::builder().allowed_tokens(Arc::new(words)).build().unwrap();
    let parts = (Agent::persona("A guest."), AgentSampling(sampling), ReplyLimits::tokens(10));
    app.world_mut().spawn((parts, conversation)).id()
}

/// The prompts of replies, by agent: the latest counts.
#[derive(Resource, Default)]
struct Prompts(BTreeMap<Entity, u32>);

fn something(app: &mut App, agent: Entity, asked: &mut usize, dice: &mut Dice) {
    let world = app.world_mut();
    match dice.throw(12) {
        0..=3 => {
            let question = ["Who?", "What is it?", "Why?"][dice.throw(3) as usize];
            world.trigger(Ask::new(agent, question));
            *asked += 1;
        }
        4 | 5 => world.get_mut::<Conversation>(agent).unwrap().push(Speaker::User, "It rains."),
        6 => world.trigger(Cancel::new(agent)),
        7 | 8 => world.trigger(Cancel::heard(agent, dice.throw(30) as u32)),
        9 => world.resource_mut::<WallaSettings>().paused = dice.throw(2) == 0,
        10 if dice.throw(8) == 0 => world.get_mut::<Conversation>(agent).unwrap().clear(),
        _ => {}
    }
}

fn simulate(seed: u64) {
    let mut dice = Dice::new(seed);
    let settings = WallaSettings {
        max_commands_per_frame: 1 + dice.throw(6) as u32,
        max_asks_per_agent: u32::MAX,
        ..WallaSettings::default()
    };
    let options = EngineOptions {
        device: "cpu".into(),
        threads: Some(1),
        max_agents: Some(2),
        context_tokens: 2_048,
        ..EngineOptions::new(ModelSource::Static(model()))
    };
    let mut app = app_with(WallaPlugin::new(options).settings(settings));
    app.init_resource::<Prompts>().add_observer(
        |began: On<ReplyStarted>, mut prompts: ResMut<Prompts>| {
            prompts.0.insert(began.agent, began.prompt_tokens);
        },
    );
    let agents = [(); 3].map(|()| guest(&mut app, Conversation::default()));
    let mut asked = 0;
    for _ in 0..80 {
        let agent = agents[dice.throw(3) as usize];
        something(&mut app, agent, &mut asked, &mut dice);
        if dice.throw(3) > 0 {
            app.update();
        }
        std::thread::sleep(Duration::from_micros(dice.throw(1_500)));
    }
    app.world_mut().resource_mut::<WallaSettings>().paused = false;
    run_until(&mut app, |app| log(app).ends() == asked);
    for agent in agents {
        let talk = app.world().get::<Conversation>(agent).unwrap().clone();
        let copy = guest(&mut app, talk);
        let before = turns(&app, agent);
        for agent in [agent, copy] {
            ask(&mut app, agent, "And now?");
        }
        asked += 2;
        run_until(&mut app, |app| log(app).ends() == asked);
        let prompts = &app.world().resource::<Prompts>().0;
        assert_eq!(prompts[&agent], prompts[&copy], "seed {seed}: {before:?}");
        assert_eq!(turns(&app, agent), turns(&app, copy), "seed {seed}");
        app.world_mut().despawn(copy);
    }
    assert_eq!(log(&app).only("failed"), Vec::<&str>::new(), "seed {seed}");
}

#[test]
fn engine_history_matches_the_conversation() {
    (1..=20).for_each(simulate);
}
