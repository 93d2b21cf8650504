//! Agents that speak continuously, through the plugin.

use std::sync::Arc;
use std::time::Instant;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_walla::agent::Sampling;
use bevy_walla::prelude::*;
use bevy_walla::reply::SpeechState;
use bevy_walla::tokens::{TokenMask, Tokenizer};

use crate::voices::Voices;

/// Personas, selected by place modulo eight.
const PERSONAS: [&str; 8] = [
    "You are Greta, the smith of Emberfall. You are cheerful. A horseshoe costs 3 silver. A sword costs 40 silver.",
    "You are Odo, the innkeeper of Emberfall. You sell ale for 1 silver and a bed for 4 silver. Your dog is called Biscuit.",
    "You are Mirelle, a herbalist. You sell willow bark for 2 silver. You need someone to bring 6 blue mushrooms from the cave.",
    "You are Anselm, the monk of Emberfall. You are 61 years old. You lost your silver key in the ash garden.",
    "You are Voss, the guard of Emberfall. You are suspicious. Two wagons came through the north gate at night.",
    "You are Tamsin, a fur trader from Ashford. A fox pelt costs 8 silver. Your mule is called Duke.",
    "You are Pip, an errand boy. You are 10 years old. You have a frog named Gob. You are afraid of thunder.",
    "You are Hesper, the weaver. You are 89 years old. You were born in Dunmere. A wool blanket costs 6 silver.",
];

/// Questions, in rotation.
const QUESTIONS: [&str; 6] = [
    "Who are you?",
    "What do you sell?",
    "Have you heard any news?",
    "Where were you born?",
    "Do you need any help?",
    "What are you afraid of?",
];

pub fn persona(place: usize) -> &'static str {
    PERSONAS[place % PERSONAS.len()]
}

pub fn question(turn: usize) -> &'static str {
    QUESTIONS[turn % QUESTIONS.len()]
}

/// An agent's place.
#[derive(Component)]
pub struct Place {
    pub place: usize,
    turns: usize,
}

/// Spawns the agents and keeps them talking.
pub fn add_talk(app: &mut App, agents: usize, reply_tokens: u32, voice_rate: f32) {
    app.add_systems(Startup, move |mut commands: Commands| {
        for place in 0..agents {
            let parts = (
                Place { place, turns: 0 },
                Agent::persona(persona(place)),
                AgentSeed(place as u64),
                ReplyLimits::tokens(reply_tokens),
                VoiceRate::tokens_per_second(voice_rate),
            );
            commands.spawn(parts);
        }
    })
    .add_systems(Update, open)
    .add_observer(heard)
    .add_observer(|end: On<ReplyFinished>, places: Query<&Place>, mut voices: ResMut<Voices>| {
        if let Ok(place) = places.get(end.agent) {
            voices.finished(place.place, &end.usage);
        }
        ended(end.agent, None, &places, voices);
    })
    .add_observer(|end: On<ReplyFailed>, places: Query<&Place>, voices: ResMut<Voices>| {
        ended(end.agent, Some(end.error.to_string()), &places, voices);
    });
}

/// Sends an ask to every silent agent: at first, and again when a reply has ended.
fn open(
    mut agents: Query<(Entity, &mut Place, &Speech)>,
    mut voices: ResMut<Voices>,
    walla: Res<Walla>,
    mut commands: Commands,
) {
    if !walla.is_ready() {
        return;
    }
    for (agent, mut place, speech) in &mut agents {
        if speech.state() == SpeechState::Silent {
            let turn = place.place + place.turns;
            place.turns += 1;
            voices.asked(place.place, Instant::now());
            commands.ask(agent, question(turn));
        }
    }
}

/// Restricts all agents to digits, before their first ask.
pub fn speak_digits(app: &mut App) {
    app.add_systems(PreUpdate, restrict_to_digits);
}

#[derive(Component)]
struct Restricted;

fn restrict_to_digits(
    agents: Query<(Entity, &Place), Without<Restricted>>,
    walla: Res<Walla>,
    mut voices: ResMut<Voices>,
    mut commands: Commands,
) {
    let Some(tokenizer) = walla.tokenizer() else { return };
    if agents.is_empty() {
        return;
    }
    let digits = digits(tokenizer);
    for (agent, place) in &agents {
        let mut agent = commands.entity(agent);
        agent.insert(Restricted);
        match &digits {
            Some(sampling) => _ = agent.insert(sampling.clone()),
            None => voices.ended(place.place, Some("the tokenizer joins digits".into())),
        }
    }
}

/// Sampling of digits that the tokenizer reads one by one, in any order.
fn digits(tokenizer: &Tokenizer) -> Option<AgentSampling> {
    let encode = |text: &str| tokenizer.encode_untrusted(text).ok();
    let texts = ('0'..='9').map(|digit| digit.to_string());
    let tokens: Vec<_> = texts
        .map(|text| encode(&text))
        .collect::<Option<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    let (all, twice) = (encode("0123456789")?, encode("00112233445566778899")?);
    let is_apart = tokens == all && twice.len() == 20 && tokens.len() == 10;
    let mask = TokenMask::allow(tokenizer.vocab_size() as u32, tokens).ok()?;
    let sampling = Sampling::builder().allowed_tokens(Arc::new(mask)).build().ok()?;
    is_apart.then_some(AgentSampling(sampling))
}

fn heard(delta: On<ReplyDelta>, places: Query<&Place>, mut voices: ResMut<Voices>) {
    if let Ok(place) = places.get(delta.agent) {
        voices.heard(place.place, delta.tokens, Instant::now());
    }
}

fn ended(agent: Entity, error: Option<String>, places: &Query<&Place>, mut voices: ResMut<Voices>) {
    if let Ok(place) = places.get(agent) {
        voices.ended(place.place, error);
    }
}
