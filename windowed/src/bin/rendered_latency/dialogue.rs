//! Agents of a game that speak continuously during their turn.

use bevy::prelude::*;
use bevy_walla::ask::Prompt;
use bevy_walla::prelude::*;
use bevy_walla::tokens::EncodeOptions;
use walla_examples::{fail, name};

use crate::REPLY_TOKENS;

#[derive(Clone, Copy)]
pub struct DialoguePlugin {
    pub agents: u32,
    pub voice_rate: f32,
    /// Tokens of each prompt; `None`: questions of a conversation, with long replies.
    pub prompt_tokens: Option<u32>,
}

/// Whether the agents speak.
#[derive(Resource, Default)]
pub struct Talk(pub bool);

/// The questions.
#[derive(Resource)]
enum Asks {
    /// Short questions of a conversation, in rotation. Most of the work is decode.
    Chat { asked: usize },
    /// Raw prompts of random words: none is in the cache. Most of the work is prefill.
    Prompts { tokens: u32, words: Vec<Word>, random: u64 },
}

/// A word with a leading space.
struct Word {
    text: String,
    tokens: u32,
}

/// Tokens of a reply to a raw prompt.
pub const PROMPT_REPLY_TOKENS: u32 = 2;

const QUESTIONS: [&str; 4] = [
    "Have you heard any news?",
    "What do you sell?",
    "Do you need any help?",
    "Where were you born?",
];

impl Plugin for DialoguePlugin {
    fn build(&self, app: &mut App) {
        let Self { agents, voice_rate, prompt_tokens } = *self;
        let reply_tokens = prompt_tokens.map_or(REPLY_TOKENS, |_| PROMPT_REPLY_TOKENS);
        app.init_resource::<Talk>()
            .insert_resource(Asks::new(prompt_tokens))
            .add_systems(Startup, move |mut commands: Commands| {
                for place in 0..agents as usize {
                    let name = name(place);
                    commands.spawn((
                        Agent::persona(format!("You are {name}.")),
                        AgentSeed::from_name(&name),
                        Name::new(name),
                        VoiceRate::tokens_per_second(voice_rate),
                        ReplyLimits::tokens(reply_tokens),
                    ));
                }
            })
            .add_systems(Update, (count_tokens, keep_talking).chain().run_if(walla_ready));
    }
}

impl Asks {
    fn new(prompt_tokens: Option<u32>) -> Self {
        match prompt_tokens {
            None => Self::Chat { asked: 0 },
            Some(tokens) => Self::Prompts { tokens, words: Vec::new(), random: 1 },
        }
    }

    fn next(&mut self, agent: Entity) -> Ask {
        match self {
            Self::Chat { asked } => {
                *asked += 1;
                let question = QUESTIONS.get(*asked % QUESTIONS.len()).copied();
                Ask::new(agent, question.unwrap_or_default())
            }
            Self::Prompts { tokens, words, random } => {
                Ask::new(agent, Prompt::Raw(prompt(*tokens, words, random)))
            }
        }
    }
}

/// Random words with at least this number of tokens in total.
fn prompt(tokens: u32, words: &[Word], random: &mut u64) -> String {
    let mut text = String::new();
    let mut left = tokens;
    while left > 0 && !words.is_empty() {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let Some(word) = words.get((*random >> 33) as usize % words.len()) else { break };
        text.push_str(&word.text);
        left = left.saturating_sub(word.tokens);
    }
    text
}

/// Counts the tokens of 1,000 words, once.
fn count_tokens(walla: Res<Walla>, mut asks: ResMut<Asks>) {
    let Asks::Prompts { words, .. } = &mut *asks else { return };
    let Some(tokenizer) = walla.tokenizer().filter(|_| words.is_empty()) else { return };
    let syllables = ["ba", "de", "ki", "lo", "mu", "na", "re", "si", "to", "vu"];
    for first in syllables {
        for second in syllables {
            for third in syllables {
                let text = format!(" {first}{second}{third}");
                let encoded = tokenizer.encode(&text, EncodeOptions::default());
                let tokens = encoded.unwrap_or_else(|error| fail(error)).len() as u32;
                words.push(Word { text, tokens });
            }
        }
    }
}

fn keep_talking(
    talk: Res<Talk>,
    agents: Query<(Entity, &Speech), With<Agent>>,
    mut asks: ResMut<Asks>,
    mut commands: Commands,
) {
    for (agent, speech) in &agents {
        match (talk.0, speech.is_silent()) {
            (true, true) => {
                let ask = asks.next(agent);
                commands.trigger(ask);
            }
            (false, false) => {
                commands.cancel(agent);
            }
            (true, false) | (false, true) => {}
        }
    }
}
