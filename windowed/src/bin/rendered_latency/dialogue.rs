//! Agents of a game that speak continuously during their turn.

use bevy::prelude::*;
use bevy_walla::prelude::*;
use walla_examples::name;

use crate::REPLY_TOKENS;

pub struct DialoguePlugin {
    pub agents: u32,
    pub voice_rate: f32,
}

/// Whether the agents speak.
#[derive(Resource, Default)]
pub struct Talk(pub bool);

/// Their questions, in rotation.
const QUESTIONS: [&str; 4] = [
    "Have you heard any news?",
    "What do you sell?",
    "Do you need any help?",
    "Where were you born?",
];

impl Plugin for DialoguePlugin {
    fn build(&self, app: &mut App) {
        let Self { agents, voice_rate } = *self;
        app.init_resource::<Talk>()
            .add_systems(Startup, move |mut commands: Commands| {
                for place in 0..agents as usize {
                    let name = name(place);
                    commands.spawn((
                        Agent::persona(format!("You are {name}.")),
                        AgentSeed::from_name(&name),
                        Name::new(name),
                        VoiceRate::tokens_per_second(voice_rate),
                        ReplyLimits::tokens(REPLY_TOKENS),
                    ));
                }
            })
            .add_systems(Update, keep_talking.run_if(walla_ready));
    }
}

fn keep_talking(
    talk: Res<Talk>,
    agents: Query<(Entity, &Speech), With<Agent>>,
    mut asked: Local<usize>,
    mut commands: Commands,
) {
    for (agent, speech) in &agents {
        match (talk.0, speech.is_silent()) {
            (true, true) => {
                *asked += 1;
                if let Some(question) = QUESTIONS.get(*asked % QUESTIONS.len()) {
                    commands.ask(agent, *question);
                }
            }
            (false, false) => {
                commands.cancel(agent);
            }
            (true, false) | (false, true) => {}
        }
    }
}
