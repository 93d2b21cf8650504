//! Components of an agent: [`Agent`] and the components that it requires.

use std::sync::Arc;
use std::time::Duration;

use bevy_ecs::lifecycle::HookContext;
use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
use bevy_ecs::world::DeferredWorld;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_runtime::{Detail, Route};
use walla_types::TokenId;

use crate::ask::{Ask, asks_written};
use crate::bridge::EngineBridge;
use crate::conversation::Conversation;
use crate::speech::Speech;

pub use crate::fork::{ForkCommands, ForkOf, Simulation};
pub use walla_runtime::{Constraint, ConstraintError, ConstraintKind, ContextPolicy, MatchError};
pub use walla_types::{InvalidSampling, Sampling, SamplingBuilder};

/// An agent of the engine: insert it, then send it an [`Ask`].
///
/// All other properties of the agent are in required components, which are inserted with their
/// defaults: [`AgentSampling`], [`AgentSeed`], [`VoiceRate`], [`AgentPriority`], [`LevelOfDetail`],
/// [`ReplyLimits`], [`AgentContext`], [`AgentReasoning`], and two that the plugin writes,
/// [`Conversation`] and [`Speech`]. All of them can be changed at any time. A change applies from
/// the next reply on; priority, voice rate and level of detail apply at once. Removing one of the
/// first eight sets it to its default. [`AgentConstraint`],
/// [`AgentActions`](crate::AgentActions) and [`AgentEngine`] are optional.
///
/// Removing the component, or despawning the entity, cancels the agent's replies and frees its
/// memory.
///
/// A [`Disabled`](bevy_ecs::entity_disabling::Disabled) agent remains active: it continues its
/// reply, keeps its conversation, and answers asks. An agent that is spawned disabled, for instance
/// in a pool, takes no slot of the engine before its first ask. Disabling components that a game
/// defines itself hide an agent from the plugin: changes made in the meantime are not sent to the
/// engine.
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::prelude::*;
/// fn setup(mut commands: Commands) {
///     commands.spawn((
///         Name::new("Greta"),
///         Agent::persona("You are Greta, the smith of Emberfall. A horseshoe costs 3 silver."),
///         VoiceRate::tokens_per_second(6.0),
///     ));
/// }
/// ```
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq)
)]
#[component(on_remove = agent_removed, summary_tick)]
#[require(
    AgentSampling,
    AgentSeed,
    VoiceRate,
    AgentPriority,
    LevelOfDetail,
    ReplyLimits,
    AgentContext,
    AgentReasoning,
    Conversation,
    Speech
)]
pub struct Agent {
    /// The system text of the conversation. It is encoded as plain text and never becomes a control
    /// token.
    pub persona: String,
}

impl Agent {
    /// An agent with this persona.
    #[must_use]
    pub fn persona(text: impl Into<String>) -> Self {
        Self { persona: text.into() }
    }
}

fn agent_removed(mut world: DeferredWorld, context: HookContext) {
    let asks_before = world.get_resource::<Messages<Ask>>().map_or(0, asks_written);
    if let Some(mut bridge) = world.get_resource_mut::<EngineBridge>() {
        bridge.agent_removed(context.entity, asks_before);
    }
    if let Some(mut speech) = world.get_mut::<Speech>(context.entity) {
        speech.fall_silent();
    }
}

/// Change detection does not report a component that is absent, so its removal counts as a change
/// of [`Agent`]. During a despawn the mark has no effect: the entity is gone before the next
/// system.
pub(crate) fn setting_removed(mut world: DeferredWorld, context: HookContext) {
    if let Some(mut agent) = world.get_mut::<Agent>(context.entity) {
        agent.set_changed();
    }
}

/// Sampling of the agent's tokens. Default: temperature 0.7, top-k 40, top-p 0.95, min-p 0.05.
#[derive(Component, Clone, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentSampling(pub Sampling);

impl AgentSampling {
    /// Always the likeliest token: for robots and for tests.
    #[must_use]
    pub fn greedy() -> Self {
        Self(Sampling::greedy())
    }
}

impl From<Sampling> for AgentSampling {
    fn from(sampling: Sampling) -> Self {
        Self(sampling)
    }
}

/// Seed of the agent's random numbers, added to the seed of its [`AgentSampling`]. Default: `0`.
///
/// Two agents with the same persona, conversation, sampling and seed give the same replies. Give
/// each member of a crowd a different seed.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq, Hash)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentSeed(pub u64);

impl AgentSeed {
    /// Hashes a name to a seed, the same on every machine (64-bit FNV-1a).
    #[must_use]
    pub const fn from_name(name: &str) -> Self {
        Self(walla_types::fnv1a(walla_types::FNV1A, name.as_bytes()))
    }
}

/// Speech rate of the agent, in tokens per second: a deadline that the planner tries to meet, not a
/// maximum. Default: none; the agent then decodes as fast as its turn in the batch allows.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct VoiceRate(Option<f32>);

impl VoiceRate {
    /// No deadline.
    pub const NONE: Self = Self(None);

    /// A rate in tokens per second: calm speech is about 4, a fast reader takes 10.
    ///
    /// A rate that is not a positive number sets no deadline.
    #[must_use]
    pub fn tokens_per_second(rate: f32) -> Self {
        Self(Self(Some(rate)).get())
    }

    /// The rate in tokens per second, if a deadline is set.
    #[must_use]
    pub fn get(self) -> Option<f32> {
        self.0.filter(|rate| rate.is_finite() && *rate > 0.0)
    }
}

/// Agents of higher priority are scheduled first if not all fit in a frame. Default: `0`.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq, Hash)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentPriority(pub i32);

/// Importance of an agent within a frame. 0: every step that its voice rate needs. 1: at most one
/// step per frame. 2 and more: at most one step per frame, from device time that other agents leave
/// unused. Default: `0`.
///
/// A change applies at once, also within a reply. Set it directly, or let
#[cfg_attr(feature = "lod", doc = "[`WallaLodPlugin`](crate::WallaLodPlugin)")]
#[cfg_attr(not(feature = "lod"), doc = "`WallaLodPlugin` (feature `lod`)")]
/// set it by distance.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq, Hash)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct LevelOfDetail(pub u8);

impl LevelOfDetail {
    /// The engine's level of detail.
    #[must_use]
    pub const fn detail(self) -> Detail {
        match self.0 {
            0 => Detail::Full,
            1 => Detail::Reduced,
            _ => Detail::Background,
        }
    }
}

/// Limits of a reply.
#[derive(Component, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct ReplyLimits {
    /// Maximum tokens of one reply, without reasoning. Default: `256`, about a minute of speech.
    pub max_tokens: u32,
    /// Strings that end the speech of a reply; the reply ends before the string. Default: none.
    pub stop_strings: Vec<String>,
    /// Tokens that end the speech of a reply, in addition to the model's end-of-turn tokens.
    /// Default: none.
    #[cfg_attr(feature = "reflect", reflect(ignore, clone))]
    pub stop_tokens: Vec<TokenId>,
}

impl ReplyLimits {
    /// At most `max_tokens` tokens.
    #[must_use]
    pub fn tokens(max_tokens: u32) -> Self {
        Self { max_tokens, ..Self::default() }
    }

    /// Adds `text` to the stop strings.
    #[must_use]
    pub fn stop_at(mut self, text: impl Into<String>) -> Self {
        self.stop_strings.push(text.into());
        self
    }
}

impl Default for ReplyLimits {
    fn default() -> Self {
        Self { max_tokens: 256, stop_strings: Vec::new(), stop_tokens: Vec::new() }
    }
}

/// Policy for a conversation that exceeds the agent's context. Default: the oldest turns are
/// dropped from the prompt, the persona stays. The [`Conversation`] component keeps all turns.
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq, Hash)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentContext(pub ContextPolicy);

/// Whether a model reasons before it speaks, and for how long. It has an effect only on models with
/// reasoning markers. Reasoning is never spoken; [`ReplyReasoning`](crate::reply::ReplyReasoning)
/// carries it.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq, Hash)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentReasoning {
    /// Enables reasoning if the chat template has a switch for it
    /// ([`ModelCard::thinking_switch`](crate::diagnostics::ModelCard::thinking_switch)). Default:
    /// `false`, since it takes seconds.
    pub thinking: bool,
    /// Maximum tokens of reasoning in one reply; [`ReplyLimits`] does not count them. At the limit
    /// the engine closes the reasoning block, and the model speaks. Default: `512`.
    pub max_tokens: u32,
}

impl AgentReasoning {
    /// Enables reasoning if the template has a switch for it, with at most this many tokens.
    #[must_use]
    pub fn thinking(max_tokens: u32) -> Self {
        Self { thinking: true, max_tokens }
    }
}

impl Default for AgentReasoning {
    fn default() -> Self {
        Self { thinking: false, max_tokens: 512 }
    }
}

/// Condition on the text of the agent's replies, from the next reply on: a JSON schema, a regular
/// expression, a choice or a grammar. The reply ends where the grammar ends, and then finishes with
/// [`FinishReason::EndOfTurn`](crate::reply::FinishReason::EndOfTurn); with another reason it is
/// cut. Without the component, replies are free.
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::agent::Constraint;
/// use bevy_walla::prelude::*;
/// fn setup(mut commands: Commands) {
///     commands.spawn((
///         Agent::persona("You guard the gate. Do you open it for the player?"),
///         AgentConstraint(Constraint::choice(["open", "refuse"])),
///     ));
/// }
/// ```
#[derive(Component, Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Clone, Debug, PartialEq, Hash)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentConstraint(pub Constraint);

/// The engine of an agent, in an app with several
/// ([`WallaPlugin::engines`](crate::WallaPlugin::engines)). Without the component, or with its
/// default, it is the default engine. A change applies from the next reply on, and the conversation
/// stays. In an app with one engine, asks of an agent that names one fail with
/// [`ReplyError::NoEngine`](crate::reply::ReplyError::NoEngine).
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::agent::AgentEngine;
/// use bevy_walla::prelude::*;
/// fn setup(mut commands: Commands) {
///     // A remote engine; the local one takes over what it does not begin within 800 ms.
///     let engine = AgentEngine::named("cloud").or("default", Duration::from_millis(800));
///     commands.spawn((Agent::persona("You are Greta."), engine));
/// }
/// ```
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
#[component(on_remove = setting_removed, summary_tick)]
pub struct AgentEngine(pub Route);

impl AgentEngine {
    /// The engine with this name.
    #[must_use]
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self(Route::engine(name))
    }

    /// With this substitute, which takes over an ask without output after `max_first_token`
    /// ([`Route::or`]).
    #[must_use]
    pub fn or(
        self,
        substitute: impl Into<Arc<str>>,
        max_first_token: impl Into<Option<Duration>>,
    ) -> Self {
        Self(self.0.or(substitute, max_first_token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_requires_its_components() {
        let mut world = World::new();
        let greta = world.spawn(Agent::persona("You are Greta.")).id();
        let entity = world.entity(greta);
        assert!(entity.contains::<AgentSampling>() && entity.contains::<ReplyLimits>());
        assert!(entity.contains::<Conversation>() && entity.contains::<Speech>());
        world.despawn(greta); // without a plugin the hook does nothing
    }

    #[test]
    fn an_invalid_voice_rate_is_none() {
        for rate in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(VoiceRate::tokens_per_second(rate), VoiceRate::NONE);
        }
    }

    #[test]
    fn names_give_different_seeds() {
        assert_ne!(AgentSeed::from_name("Greta"), AgentSeed::from_name("Odo"));
    }
}
