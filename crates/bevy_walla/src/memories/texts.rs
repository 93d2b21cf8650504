//! Texts of turns that agents memorize.

use bevy_ecs::prelude::*;

/// A turn that an agent [memorizes](super::Memorizes), for [`MemoryTexts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryTurn<'a> {
    /// The agent that memorizes.
    pub agent: Entity,
    /// Its [`Name`].
    pub agent_name: Option<&'a str>,
    /// Who said the question ([`Ask::speaker`](crate::Ask::speaker)). `None`: the player, or an
    /// observation.
    pub speaker: Option<Entity>,
    /// The [name](crate::conversation::Turn::name) of the question or of the overheard turn;
    /// otherwise the [`Name`] of the speaker, if it still exists and has one.
    pub speaker_name: Option<&'a str>,
    /// The question of an exchange, if there was one.
    pub question: Option<&'a str>,
    /// The agent's reply, or the observation. Empty: the agent has answered the question with
    /// [cues](crate::cues::AgentCues) alone.
    pub text: &'a str,
}

impl<'a> MemoryTurn<'a> {
    /// A turn without a known speaker.
    pub(super) fn of(
        (agent, agent_name): (Entity, Option<&'a str>),
        question: Option<&'a str>,
        text: &'a str,
    ) -> Self {
        Self { agent, agent_name, speaker: None, speaker_name: None, question, text }
    }
}

/// Texts of [memorized](super::Memorizes) turns: a resource, so that a game can write them in its
/// own language. `None` skips the turn.
///
/// # Examples
/// ```
/// use bevy_walla::memories::MemoryTexts;
/// let texts = MemoryTexts {
///     exchange: |turn| {
///         let question = turn.question?;
///         let speaker = turn.speaker_name.unwrap_or("Der Spieler");
///         Some(format!("{speaker} sagte: „{question}“ Ich sagte: „{}“", turn.text))
///     },
///     ..MemoryTexts::default()
/// };
/// # let _ = texts;
/// ```
#[derive(Resource, Clone, Copy, Debug)]
pub struct MemoryTexts {
    /// The text of an exchange. Default: `The player said: "…" I said: "…"`, with the name of
    /// [another speaker](crate::Ask::with_speaker) in place of the player, or `Someone`; without
    /// `I said` if the reply has no words.
    pub exchange: fn(&MemoryTurn<'_>) -> Option<String>,
    /// The text of an observation. Default: the observation, or `Odo said: "…"` of an overheard
    /// turn.
    pub observation: fn(&MemoryTurn<'_>) -> Option<String>,
}

impl Default for MemoryTexts {
    fn default() -> Self {
        Self {
            exchange: |&MemoryTurn { speaker, speaker_name, question, text, .. }| {
                let stranger = if speaker.is_some() { "Someone" } else { "The player" };
                let speaker = speaker_name.unwrap_or(stranger);
                Some(match question {
                    Some(question) if text.is_empty() => format!("{speaker} said: \"{question}\""),
                    Some(question) => format!("{speaker} said: \"{question}\" I said: \"{text}\""),
                    None => format!("I said: \"{text}\""),
                })
            },
            observation: |turn| {
                Some(match turn.speaker_name {
                    Some(speaker) => format!("{speaker} said: \"{}\"", turn.text),
                    None => turn.text.to_owned(),
                })
            },
        }
    }
}
