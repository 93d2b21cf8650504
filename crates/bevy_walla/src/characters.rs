//! Characters and lore as assets (feature `assets`): persona and settings of an agent in a file.
//!
//! [`WallaCharacterPlugin`] loads them. An entity with a [`CharacterHandle`] becomes an agent of
//! the file; asks wait until it is loaded. A file that changes (Bevy's hot reloading) changes its
//! living agents: replies go on, and conversations stay. A file that cannot be read changes
//! nothing; the error names file, line, column and field.
//!
//! # Files
//! A character is a file in RON, Bevy's format for scenes, with the ending `.character.ron`. Only
//! `persona` is required:
//!
//! ```ron
//! (
//!     persona: "You are Greta, the smith of Emberfall. A horseshoe costs 3 silver.",
//!     examples: ["Hm. Iron is iron.", "Bring coal, then we talk."],
//!     sampling: (temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05),
//!     seed: 7,
//!     max_tokens: 120,
//!     stop: ["\n"],
//!     tokens_per_second: 6.0,
//!     voice: (file: "voices/greta.onnx", speed: 1.1, gain: 0.8, speaker: 0),
//!     priority: 1,
//!     engine: "hero",
//!     max_reasoning_tokens: 200,
//!     lore: ["emberfall.lore"],
//!     reads: ["guards"],
//!     actions: {"sell": {"item": ["horseshoe", "nails"]}, "open_gate": {}},
//!     action_policy: Auto,
//!     action_rounds: 1,
//!     cues: {"smile": ["smiles", "grins"], "sigh": ["sighs"]},
//!     unknown_cues: Drop,
//!     cue_marks: (parentheses: false),
//!     only_known_cues: false,
//! )
//! ```
//!
//! [`Character`] documents the fields. A field that is absent leaves the component of the entity
//! as the game has it. Paths in `lore` count from the folder of the character, or with `/` before
//! them from the asset folder; a lore file has the ending `.lore`
//! ([`Store::from_lore_text`](walla_memory::Store::from_lore_text)) or `.lore.json`.
//!
//! # Examples
//! ```no_run
//! use bevy_app::{TaskPoolPlugin, prelude::*};
//! use bevy_asset::{AssetPlugin, AssetServer};
//! use bevy_ecs::prelude::*;
//! use bevy_walla::characters::{CharacterHandle, WallaCharacterPlugin};
//! use bevy_walla::prelude::*;
//!
//! App::new()
//!     .add_plugins((TaskPoolPlugin::default(), AssetPlugin::default())) // in DefaultPlugins
//!     .add_plugins((WallaPlugin::model("smith.gguf"), WallaCharacterPlugin))
//!     .add_plugins(WallaMemoryPlugin::default()) // for lore
//!     .add_systems(Startup, |server: Res<AssetServer>, mut commands: Commands| {
//!         let greta = server.load("village/greta.character.ron");
//!         commands.spawn(CharacterHandle(greta)).ask("What does a horseshoe cost?");
//!     })
//!     .run();
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use bevy_app::prelude::*;
use bevy_asset::prelude::*;
use bevy_asset::{AssetEventSystems, AssetLoadFailedEvent, LoadState};
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::system::SystemParam;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_runtime::ReplyError;

use crate::actions::AgentActions;
use crate::agent::{
    Agent, AgentConstraint, AgentEngine, AgentPriority, AgentReasoning, AgentSampling, AgentSeed,
    ReplyLimits, VoiceRate,
};
use crate::bridge::{self, Preparing};
use crate::cues::{AgentCues, Cues};
use crate::memories::AgentKnowledge;
use crate::systems::{Schedules, WallaSystems};

mod file;
mod lore;

pub use file::{Character, CharacterError, CharacterLoader, CharacterVoice};
pub use lore::{LoreFile, LoreLoadError, LoreLoader};

/// The character of an entity: it makes the entity an [`Agent`].
///
/// Another handle changes persona and settings, and cancels nothing. Removing it leaves the agent
/// as it is.
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq)
)]
#[require(Agent, Preparing)]
pub struct CharacterHandle(pub Handle<Character>);

/// The content of a file was applied to an agent, for the first time or after a change: an event on
/// the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Clone, Debug, PartialEq))]
pub struct CharacterApplied {
    /// The agent.
    #[event_target]
    pub agent: Entity,
}

/// Loads [`Character`]s and [`LoreFile`]s, and applies them to agents. It needs Bevy's
/// `AssetPlugin` and [`WallaPlugin`](crate::WallaPlugin) before it, and for lore
/// [`WallaMemoryPlugin`](crate::WallaMemoryPlugin).
#[derive(Clone, Copy, Debug, Default)]
pub struct WallaCharacterPlugin;

impl Plugin for WallaCharacterPlugin {
    fn build(&self, app: &mut App) {
        app.init_asset::<Character>()
            .init_asset::<LoreFile>()
            .init_asset_loader::<CharacterLoader>()
            .init_asset_loader::<LoreLoader>()
            .init_resource::<lore::LoreFiles>();
        #[cfg(feature = "reflect")]
        app.register_type::<CharacterHandle>()
            .register_type::<CharacterApplied>()
            .register_asset_reflect::<Character>();
        let schedules = Schedules::of(app);
        let systems = (apply_characters, lore::send_lore).chain();
        // In front of the asks of the frame.
        let systems = systems.after(AssetEventSystems).before(bridge::collect);
        schedules.add_submit_systems(app, systems.in_set(WallaSystems::Collect));
    }
}

/// The character that was applied to an agent.
#[derive(Component, Clone)]
struct Applied(Arc<Character>);

/// An agent with a character.
type OfCharacter = (
    Entity,
    Ref<'static, CharacterHandle>,
    Option<&'static Applied>,
    Option<(&'static mut Preparing, &'static mut Agent)>,
);

/// Changes of characters.
#[derive(SystemParam)]
struct Changes<'w, 's> {
    loads: MessageReader<'w, 's, AssetEvent<Character>>,
    failures: MessageReader<'w, 's, AssetLoadFailedEvent<Character>>,
    handles: Query<'w, 's, (), (Changed<CharacterHandle>, Allow<Disabled>)>,
}

fn apply_characters(
    mut changes: Changes,
    characters: Res<Assets<Character>>,
    server: Res<AssetServer>,
    actions: file::KnownActions,
    mut agents: Query<OfCharacter, Allow<Disabled>>,
    mut commands: Commands,
) {
    let loads = changes.loads.read().filter_map(|change| match change {
        AssetEvent::Added { id } | AssetEvent::Modified { id } => Some(*id),
        _ => None,
    });
    let loaded: HashSet<_> = loads.collect();
    // The asset server has logged them.
    let failed: HashSet<_> = changes.failures.read().map(|failed| failed.id).collect();
    if loaded.is_empty() && failed.is_empty() && changes.handles.is_empty() {
        return;
    }
    for (agent, handle, applied, preparing) in &mut agents {
        let id = handle.0.id();
        let is_new = handle.is_changed() || loaded.contains(&id);
        if let Some(character) = characters.get(id) {
            if !is_new {
                continue; // also if the file is damaged now: the earlier content stays
            }
            let mut commands = commands.entity(agent);
            let old = applied.map(|applied| &*applied.0);
            apply(&mut commands, character, old, &actions);
            commands.insert(Applied(Arc::new(character.clone()))).remove::<Preparing>();
            commands.trigger(|agent| CharacterApplied { agent });
        } else if let Some((mut preparing, mut marked)) = preparing
            && (is_new || failed.contains(&id))
        {
            // Asks end with the error until the file is corrected.
            preparing.failure = match server.load_state(id) {
                LoadState::Failed(error) => {
                    Some(ReplyError::NoCharacter { reason: error.to_string().into() })
                }
                _ => None,
            };
            // Its asks are looked at again.
            marked.set_changed();
        }
    }
}

/// Sets a component; to its default if only the earlier character had set it.
fn set<C: Component + Default + PartialEq>(
    agent: &mut EntityCommands,
    new: Option<C>,
    old: Option<C>,
) {
    if new != old {
        agent.insert(new.unwrap_or_default());
    }
}

/// Sets an optional component; removes it if only the earlier character had set it.
fn replace<C: Component + PartialEq>(agent: &mut EntityCommands, new: Option<C>, old: Option<C>) {
    match new {
        Some(new) if old.as_ref() != Some(&new) => _ = agent.insert(new),
        None if old.is_some() => _ = agent.remove::<C>(),
        _ => {}
    }
}

fn apply(
    agent: &mut EntityCommands,
    new: &Character,
    old: Option<&Character>,
    actions: &file::KnownActions,
) {
    let persona = new.full_persona();
    if old.is_none_or(|old| old.full_persona() != persona) {
        agent.insert(Agent::persona(persona));
    }
    let none = Character::default();
    let old = old.unwrap_or(&none);
    let sampling = |of: &Character| of.sampling.clone().map(AgentSampling);
    set(agent, sampling(new), sampling(old));
    set(agent, new.seed.map(AgentSeed), old.seed.map(AgentSeed));
    set(agent, new.limits(), old.limits());
    let rate = |of: &Character| of.tokens_per_second.map(VoiceRate::tokens_per_second);
    set(agent, rate(new), rate(old));
    set(agent, new.priority.map(AgentPriority), old.priority.map(AgentPriority));
    let engine = |of: &Character| of.engine.as_deref().map(AgentEngine::named);
    set(agent, engine(new), engine(old));
    let reasoning = |of: &Character| of.max_reasoning_tokens.map(AgentReasoning::thinking);
    set(agent, reasoning(new), reasoning(old));
    set(agent, new.knowledge(), old.knowledge());
    replace(agent, new.cues().map(AgentCues), old.cues().map(AgentCues));
    replace(agent, new.constraint(), old.constraint());
    #[cfg(feature = "speech")]
    replace(agent, new.voice(), old.voice());
    let settings = (&new.actions, new.action_policy, new.action_rounds);
    if settings != (&old.actions, old.action_policy, old.action_rounds) {
        match actions.of(new) {
            Some(actions) => agent.insert(actions),
            None => agent.remove::<AgentActions>(),
        };
    }
}

impl Character {
    /// The persona with the example lines and the cues.
    fn full_persona(&self) -> String {
        let mut text = self.persona.clone();
        if !self.examples.is_empty() {
            text.push_str("\n\nYou speak like this:");
            self.examples.iter().for_each(|line| text.extend(["\n- ", line]));
        }
        if let Some(cues) = self.cues().and_then(|cues| cues.instruction()) {
            text.extend(["\n\n", &cues]);
        }
        text
    }

    fn limits(&self) -> Option<ReplyLimits> {
        if self.max_tokens.is_none() && self.stop.is_none() {
            return None;
        }
        let default = ReplyLimits::default();
        Some(ReplyLimits {
            max_tokens: self.max_tokens.unwrap_or(default.max_tokens),
            stop_strings: self.stop.clone().unwrap_or_default(),
            ..default
        })
    }

    #[cfg(feature = "speech")]
    fn voice(&self) -> Option<crate::voice::Voice> {
        let CharacterVoice { file, speed, gain, speaker } = self.voice.as_ref()?;
        let voice = crate::voice::Voice::file(file.as_str());
        Some(crate::voice::Voice { speed: *speed, gain: *gain, speaker: *speaker, ..voice })
    }

    fn cues(&self) -> Option<Cues> {
        let known = self.cues.as_ref()?;
        let cues = Cues::new().unknown(self.unknown_cues).marks(self.cue_marks);
        Some(known.iter().fold(cues, |cues, (name, words)| cues.with_cue(name, words)))
    }

    fn constraint(&self) -> Option<AgentConstraint> {
        self.cues().filter(|_| self.only_known_cues).map(|cues| AgentConstraint(cues.constraint()))
    }

    /// With lore or tags, the agent searches at its asks.
    fn knowledge(&self) -> Option<AgentKnowledge> {
        if self.lore_files.is_empty() && self.reads.is_none() {
            return None;
        }
        Some(AgentKnowledge::reader(self.reads.iter().flatten().map(String::as_str)))
    }
}
