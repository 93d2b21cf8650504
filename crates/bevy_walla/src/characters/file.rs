//! Files of characters.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bevy_asset::io::Reader;
use bevy_asset::{Asset, AssetLoader, Handle, LoadContext};
use bevy_ecs::prelude::*;
use bevy_ecs::system::SystemParam;
use bevy_reflect::TypePath;
#[cfg(feature = "reflect")]
use bevy_reflect::std_traits::ReflectDefault;
use ron::extensions::Extensions;
use serde::{Deserialize, Deserializer};
use walla_types::Sampling;

use super::LoreFile;
use crate::actions::{ActionPolicy, AgentActions};
use crate::cues::{CueMarks, UnknownCues};

/// Maximum bytes of a file.
const MAX_BYTES: usize = 1 << 20;

/// A character: persona and settings of an agent. A file has the same fields.
#[derive(Asset, Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(
    feature = "reflect",
    derive(bevy_reflect::Reflect),
    reflect(opaque, Default, Clone, Debug, PartialEq)
)]
#[cfg_attr(not(feature = "reflect"), derive(TypePath))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Character {
    /// Who the agent is: [`Agent::persona`](crate::Agent::persona).
    pub persona: String,
    /// Lines in the character's manner, behind the persona. Default: none.
    #[serde(default)]
    pub examples: Vec<String>,
    /// Sampling of tokens ([`AgentSampling`](crate::AgentSampling)): `temperature`, `top_k`,
    /// `top_p`, `min_p`, `repetition_penalty`, `presence_penalty`, `frequency_penalty`.
    #[serde(default, deserialize_with = "sampling")]
    pub sampling: Option<Sampling>,
    /// Seed of random numbers ([`AgentSeed`](crate::AgentSeed)).
    #[serde(default)]
    pub seed: Option<u64>,
    /// Maximum tokens of a reply ([`ReplyLimits`](crate::ReplyLimits)).
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// Strings that end a reply ([`ReplyLimits`](crate::ReplyLimits)).
    #[serde(default)]
    pub stop: Option<Vec<String>>,
    /// Speech rate ([`VoiceRate`](crate::VoiceRate)).
    #[serde(default)]
    pub tokens_per_second: Option<f32>,
    /// The voice, in a game with speech (feature `speech`: `Voice`); in others without effect.
    #[serde(default)]
    pub voice: Option<CharacterVoice>,
    /// Priority ([`AgentPriority`](crate::AgentPriority)).
    #[serde(default)]
    pub priority: Option<i32>,
    /// Name of the engine, in an app with several
    /// ([`AgentEngine`](crate::agent::AgentEngine)).
    #[serde(default)]
    pub engine: Option<String>,
    /// Lets the model reason before it speaks, with at most this many tokens
    /// ([`AgentReasoning`](crate::agent::AgentReasoning)).
    #[serde(default)]
    pub max_reasoning_tokens: Option<u32>,
    /// Paths of lore files. Default: none.
    #[serde(default)]
    pub lore: Vec<String>,
    /// Tags by which the agent reads entries that are not for everyone
    /// ([`AgentKnowledge::reader`](crate::memories::AgentKnowledge::reader)).
    #[serde(default)]
    pub reads: Option<Vec<String>>,
    /// Names of the game's actions ([`AddAction`](crate::AddAction)) that the agent may call, each
    /// with the legal values of its arguments. `Some` and empty: no actions. `None`: the entity's
    /// [`AgentActions`] apply.
    #[serde(default)]
    pub actions: Option<BTreeMap<String, BTreeMap<String, Vec<String>>>>,
    /// When the agent may call them. Default: [`ActionPolicy::Auto`].
    #[serde(default)]
    pub action_policy: Option<ActionPolicy>,
    /// How many replies to results in a row may call them again
    /// ([`AgentActions::max_rounds`]). Default: 8.
    #[serde(default)]
    pub action_rounds: Option<u32>,
    /// The cues that the game knows ([`AgentCues`](crate::cues::AgentCues)), each with words that
    /// mean it besides its name. The persona names the first word of each. `Some` and
    /// empty: each stage direction is a cue. `None`: the entity's `AgentCues` apply.
    #[serde(default)]
    pub cues: Option<BTreeMap<String, Vec<String>>>,
    /// What happens with other stage directions. Default: [`UnknownCues::Drop`].
    #[serde(default)]
    pub unknown_cues: UnknownCues,
    /// The marks of stage directions. Default: all.
    #[serde(default)]
    pub cue_marks: CueMarks,
    /// Whether the agent can write no other stage directions
    /// ([`Cues::constraint`](crate::cues::Cues::constraint)). It calls no
    /// actions then. Default: `false`.
    #[serde(default)]
    pub only_known_cues: bool,
    /// The assets of `lore`, which the loader sets; for a character that is made in code, its lore.
    #[dependency]
    #[serde(skip)]
    pub lore_files: Vec<Handle<LoreFile>>,
}

/// The voice of a character.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CharacterVoice {
    /// The ONNX file of a Piper voice. A relative path counts from the asset folder, from the
    /// folder that contains it, or from the working directory: it is no asset.
    pub file: String,
    /// Speed, relative to the voice's own, from 0.25 to 4. Default: 1.
    #[serde(default = "one", deserialize_with = "speed")]
    pub speed: f32,
    /// Factor of its loudness, from 0 to 16. Default: 1.
    #[serde(default = "one", deserialize_with = "gain")]
    pub gain: f32,
    /// Speaker of a voice with several. Default: 0.
    #[serde(default)]
    pub speaker: u32,
}

fn one() -> f32 {
    1.0
}

fn speed<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    in_range(from, 0.25..=4.0, "a speed from 0.25 to 4")
}

fn gain<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    in_range(from, 0.0..=16.0, "a factor from 0 to 16")
}

fn in_range<'de, D: Deserializer<'de>>(
    from: D,
    range: RangeInclusive<f32>,
    expected: &str,
) -> Result<f32, D::Error> {
    let number = f32::deserialize(from)?;
    let is_legal = range.contains(&number);
    let wrong = || serde::de::Error::custom(format!("{number} is not {expected}"));
    if is_legal { Ok(number) } else { Err(wrong()) }
}

/// Sampling in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplingFile {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
}

fn sampling<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Sampling>, D::Error> {
    let Some(file) = Option::<SamplingFile>::deserialize(from)? else { return Ok(None) };
    let default = Sampling::default();
    let sampling = Sampling::builder()
        .temperature(file.temperature.unwrap_or(default.temperature()))
        .top_k(file.top_k.unwrap_or(default.top_k()))
        .top_p(file.top_p.unwrap_or(default.top_p()))
        .min_p(file.min_p.unwrap_or(default.min_p()))
        .repetition_penalty(file.repetition_penalty.unwrap_or(default.repetition_penalty()))
        .presence_penalty(file.presence_penalty.unwrap_or(default.presence_penalty()))
        .frequency_penalty(file.frequency_penalty.unwrap_or(default.frequency_penalty()));
    sampling.build().map(Some).map_err(serde::de::Error::custom)
}

/// Why a file is no character. Bevy's message adds the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CharacterError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file is longer than 1 MiB.
    #[error("{0} bytes, at most {MAX_BYTES}")]
    TooLong(usize),
    /// The content: correct it at this place.
    #[error("line {line}, column {column}{}: {reason}", in_field(.field))]
    Content {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Path of the field, such as `sampling.top_k`; empty outside any field.
        field: String,
        /// The defect.
        reason: String,
    },
    /// A path of a lore file: correct it.
    #[error("field `lore`: {path:?} is no path of an asset: {reason}")]
    Lore {
        /// As in the file.
        path: String,
        /// The defect.
        reason: String,
    },
}

fn in_field(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!(", field `{field}`") }
}

impl Character {
    /// A character with default settings.
    #[must_use]
    pub fn new(persona: impl Into<String>) -> Self {
        Self { persona: persona.into(), ..Self::default() }
    }

    /// Reads the text of a file. Its lore is not loaded.
    ///
    /// # Errors
    /// [`CharacterError::Content`] or [`CharacterError::TooLong`].
    pub fn from_ron(text: &str) -> Result<Self, CharacterError> {
        if text.len() > MAX_BYTES {
            return Err(CharacterError::TooLong(text.len()));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let options = ron::Options::default().with_default_extension(Extensions::IMPLICIT_SOME);
        let content = |error: ron::error::SpannedError, field: String| {
            let (at, reason) = (error.span.start, error.code.to_string());
            CharacterError::Content { line: at.line, column: at.col, field, reason }
        };
        let mut reader = ron::Deserializer::from_str_with_options(text, &options)
            .map_err(|error| content(error, String::new()))?;
        let read = serde_path_to_error::deserialize(&mut reader);
        let character = read.map_err(|error| {
            let field = error.path().to_string();
            let field = if field == "." { String::new() } else { field };
            content(reader.span_error(error.into_inner()), field)
        })?;
        reader.end().map_err(|error| content(reader.span_error(error), String::new()))?;
        Ok(character)
    }
}

/// Reads a whole file as text.
pub(super) async fn read_text(reader: &mut dyn Reader) -> Result<String, std::io::Error> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await?;
    let invalid = |_| std::io::Error::new(std::io::ErrorKind::InvalidData, "not UTF-8");
    String::from_utf8(bytes).map_err(invalid)
}

/// Loads `.character.ron`.
#[derive(Clone, Copy, Debug, Default, TypePath)]
pub struct CharacterLoader;

impl AssetLoader for CharacterLoader {
    type Asset = Character;
    type Error = CharacterError;
    type Settings = ();

    async fn load(
        &self,
        reader: &mut dyn Reader,
        (): &(),
        context: &mut LoadContext<'_>,
    ) -> Result<Character, CharacterError> {
        let mut character = Character::from_ron(&read_text(reader).await?)?;
        for path in &character.lore {
            let wrong = |error: bevy_asset::ParseAssetPathError| CharacterError::Lore {
                path: path.clone(),
                reason: error.to_string(),
            };
            let path = context.path().resolve_embed_str(path).map_err(wrong)?;
            character.lore_files.push(context.load(path));
        }
        Ok(character)
    }

    fn extensions(&self) -> &[&str] {
        &["character.ron"]
    }
}

/// The actions of the game, by name.
#[derive(SystemParam)]
pub(super) struct KnownActions<'w> {
    #[cfg(feature = "actions")]
    types: Option<Res<'w, crate::action_types::ActionTypes>>,
    #[cfg(not(feature = "actions"))]
    _none: std::marker::PhantomData<&'w ()>,
}

impl KnownActions<'_> {
    /// The component of a character.
    pub fn of(&self, character: &Character) -> Option<AgentActions> {
        let named = character.actions.as_ref()?;
        let mut actions = AgentActions::new().policy(character.action_policy.unwrap_or_default());
        if let Some(rounds) = character.action_rounds {
            actions = actions.max_rounds(rounds);
        }
        for (name, choices) in named {
            match self.spec(name) {
                Some(spec) => actions.add(spec),
                None => tracing::error!(
                    target: "walla::load", action = %name,
                    "the game has no action of this name (add_action): the character cannot call it"
                ),
            }
            for (argument, values) in choices {
                actions.set_choices_of(name, argument, values);
            }
        }
        Some(actions)
    }

    #[cfg(feature = "actions")]
    fn spec(&self, name: &str) -> Option<crate::actions::ActionSpec> {
        self.types.as_ref()?.spec(name)
    }

    #[cfg(not(feature = "actions"))]
    fn spec(&self, _name: &str) -> Option<crate::actions::ActionSpec> {
        None
    }
}
