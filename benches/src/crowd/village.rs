//! The inhabitants and their scenes.

use std::error::Error;

use serde_json::json;
use walla_grammar::Constraint;
use walla_runtime::{ActionSet, ActionSpec, Actions, AgentId, AgentSpec, AskOptions, Prompt};
use walla_types::Sampling;

use super::scenes::Scenes;

/// Speech tokens of a reply.
const REPLY_TOKENS: u32 = 24;

const TRADES: [&str; 8] =
    ["smith", "miller", "guard", "baker", "ferryman", "weaver", "shepherd", "brewer"];

const FACTS: [&str; 4] = [
    "The bridge over the river is closed since the storm.",
    "A horseshoe costs two coins, and an axe costs nine.",
    "The inn has a room, but the soup is thin.",
    "Wolves were seen near the sheep last week.",
];

fn spec(persona: String, seed: u64, max_reply_tokens: u32) -> Result<AgentSpec, Box<dyn Error>> {
    let sampling = Sampling::builder().temperature(0.7).seed(seed).build()?;
    Ok(AgentSpec { sampling, max_reply_tokens, ..AgentSpec::new(persona) })
}

/// Agents of a crowd; no two have the same persona.
pub fn crowd(
    scenes: &mut Scenes<'_>,
    agents: usize,
    reply_tokens: u32,
) -> Result<Vec<AgentId>, Box<dyn Error>> {
    let agent = |number: usize| {
        let trade = TRADES[number % TRADES.len()];
        let fact = FACTS[number / TRADES.len() % FACTS.len()];
        let persona = format!(
            "Number {number}: you are a {trade} of Emberfall. {fact} You answer in one short sentence."
        );
        scenes.spawn(spec(persona, number as u64, reply_tokens)?)
    };
    (0..agents).map(agent).collect()
}

/// Asks all of them in one frame.
pub fn ask_crowd(
    scenes: &mut Scenes<'_>,
    crowd: &[AgentId],
    question: &str,
) -> Result<(), Box<dyn Error>> {
    let ask = |agent: &AgentId| (*agent, Prompt::Chat(question.into()));
    let asks: Vec<_> = crowd.iter().map(ask).collect();
    scenes.ask(&asks, &AskOptions::default())?;
    Ok(())
}

/// The characters that are not of the crowd.
pub struct Cast {
    smith: AgentId,
    guard: AgentId,
    elder: AgentId,
    companion: AgentId,
    gossips: [AgentId; 2],
}

impl Cast {
    pub fn new(scenes: &mut Scenes<'_>) -> Result<Self, Box<dyn Error>> {
        let give = json!({
            "type": "object",
            "properties": {
                "item": {"enum": ["horseshoe", "nails", "sword"]},
                "count": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["item", "count"],
            "additionalProperties": false,
        });
        let give = ActionSpec::new("give", "Hands an item over the counter.", &give)?;
        let smith = "You are Greta, the smith of Emberfall. A horseshoe costs 2 coins, nails 1, a sword 30. If the \
                     customer wants to buy, you hand the item over.";
        let smith = AgentSpec {
            actions: Some(Actions::new(ActionSet::new([give])?)),
            ..spec(smith.into(), 100, REPLY_TOKENS)?
        };
        let guard = "You are Odo, the guard at the gate of Emberfall. Nobody may enter after dark without a letter.";
        let elder = "You are Marta, the elder of Emberfall. You give quests to travellers.";
        let companion = "You are Wren, a ranger who travels with the player. You know the woods and like short answers.";
        let [one, other] = ["Pip, the baker", "Jory, the ferryman"].map(|name| {
            format!("You are {name} of Emberfall. You love to gossip about your neighbours. One sentence at a time.")
        });
        Ok(Self {
            smith: scenes.spawn(smith)?,
            guard: scenes.spawn(spec(guard.into(), 101, REPLY_TOKENS)?)?,
            elder: scenes.spawn(spec(elder.into(), 102, 60)?)?,
            companion: scenes.spawn(spec(companion.into(), 103, 40)?)?,
            gossips: [
                scenes.spawn(spec(one, 104, REPLY_TOKENS)?)?,
                scenes.spawn(spec(other, 105, REPLY_TOKENS)?)?,
            ],
        })
    }

    /// Twelve replies, one at a time.
    pub fn singles(&self, scenes: &mut Scenes<'_>) -> Result<(), Box<dyn Error>> {
        for number in 0..12 {
            let agent = [self.companion, self.guard, self.elder, self.gossips[0]][number % 4];
            scenes.say(agent, "Tell me about this village.", &AskOptions::default())?;
        }
        Ok(())
    }

    /// Sales through an action.
    pub fn shop(&self, scenes: &mut Scenes<'_>) -> Result<(), Box<dyn Error>> {
        for text in ["What do you sell?", "I buy a horseshoe.", "And three nails, please."] {
            let heard = scenes.say(self.smith, text, &AskOptions::default())?;
            if heard.calls > 0 {
                scenes.answer(self.smith, "Sold.", heard.calls)?;
            }
        }
        Ok(())
    }

    /// Decisions among three.
    pub fn guard(&self, scenes: &mut Scenes<'_>) -> Result<(), Box<dyn Error>> {
        let choice = Constraint::choice(["open the gate", "refuse", "call the captain"]);
        let options = AskOptions { constraint: Some(choice), ..AskOptions::default() };
        for text in ["Let me in!", "I have a letter.", "I pay you five coins."] {
            scenes.say(self.guard, text, &options)?;
        }
        Ok(())
    }

    /// Quests as JSON.
    pub fn quest(&self, scenes: &mut Scenes<'_>, count: usize) -> Result<(), Box<dyn Error>> {
        let quest = r#"{
            "type": "object",
            "properties": {
                "title": {"type": "string", "maxLength": 40},
                "kind": {"enum": ["fetch", "escort", "hunt"]},
                "reward": {"type": "integer", "minimum": 1, "maximum": 99}
            },
            "required": ["title", "kind", "reward"],
            "additionalProperties": false
        }"#;
        let constraint = Some(Constraint::json_schema(quest));
        let options = AskOptions { constraint, ..AskOptions::default() };
        for _ in 0..count {
            scenes.say(self.elder, "Do you have a quest for me?", &options)?;
        }
        Ok(())
    }

    /// A conversation with one character.
    pub fn companion(&self, scenes: &mut Scenes<'_>) -> Result<(), Box<dyn Error>> {
        let texts = [
            "Where are we?",
            "What is behind that hill?",
            "Did you hear that noise?",
            "I am hungry.",
            "Tell me about your home.",
            "Shall we rest here?",
        ];
        for text in texts {
            scenes.say(self.companion, text, &AskOptions::default())?;
        }
        Ok(())
    }

    /// Two characters talk to each other.
    pub fn gossip(&self, scenes: &mut Scenes<'_>) -> Result<(), Box<dyn Error>> {
        let mut text = "Have you heard about the miller?".to_owned();
        for turn in 0..8 {
            let heard = scenes.say(self.gossips[turn % 2], &text, &AskOptions::default())?;
            text = if heard.text.is_empty() { "Tell me more.".into() } else { heard.text };
        }
        Ok(())
    }
}
