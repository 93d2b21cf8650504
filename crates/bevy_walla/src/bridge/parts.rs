//! Agents as the bridge reads them: their components, the changes of these, and their
//! specification for the engine.

use std::sync::Arc;

use bevy_ecs::change_detection::{ContiguousComponentTicksRef, ContiguousRef, DetectChanges};
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::query::QueryData;
use walla_runtime::{AgentSpec, Detail, ReplyError};
use walla_types::Sampling;

use crate::actions::AgentActions;
use crate::agent::{
    Agent, AgentConstraint, AgentContext, AgentEngine, AgentPriority, AgentReasoning,
    AgentSampling, AgentSeed, LevelOfDetail, ReplyLimits, VoiceRate,
};
use crate::conversation::Conversation;
use crate::fork::ForkOf;
use crate::speech::Speech;

/// An agent with the components that the plugin writes. Disabled agents are included: change
/// detection reports a change only in the frame in which it is new. `Has<Disabled>` lifts Bevy's
/// default query filter.
pub(super) type Agents = (
    Entity,
    AgentParts,
    Has<Disabled>,
    Option<&'static mut Speech>,
    Option<Mut<'static, Conversation>>,
);

/// All components that define an agent for the engine. A component that was removed counts as its
/// default. Each has a summary tick, so that [`AgentPartsContiguousItem::changed_columns`] costs no
/// time per agent.
#[derive(QueryData)]
#[query_data(contiguous(all))]
pub(crate) struct AgentParts {
    agent: Ref<'static, Agent>,
    sampling: Option<Ref<'static, AgentSampling>>,
    seed: Option<Ref<'static, AgentSeed>>,
    voice: Option<Ref<'static, VoiceRate>>,
    priority: Option<Ref<'static, AgentPriority>>,
    detail: Option<Ref<'static, LevelOfDetail>>,
    limits: Option<Ref<'static, ReplyLimits>>,
    context: Option<Ref<'static, AgentContext>>,
    reasoning: Option<Ref<'static, AgentReasoning>>,
    constraint: Option<Ref<'static, AgentConstraint>>,
    actions: Option<Ref<'static, AgentActions>>,
    engine: Option<Ref<'static, AgentEngine>>,
    fork_of: Option<&'static ForkOf>,
    preparing: Option<&'static Preparing>,
}

/// The character of an agent is being loaded: its asks wait, and fail with the failure. Its end
/// changes another component, so that the agent is sent.
#[derive(Component, Clone, Debug, Default)]
pub(crate) struct Preparing {
    pub failure: Option<ReplyError>,
}

/// Components of an agent in [`AgentParts`].
pub(super) const PARTS: usize = 12;

impl<'w> AgentPartsContiguousItem<'w, '_> {
    /// The columns of one table of agents, each `None` if no component in it has changed since the
    /// querying system last ran.
    pub(super) fn changed_columns(self) -> [Option<ContiguousComponentTicksRef<'w>>; PARTS] {
        [
            changed_column(Some(self.agent)),
            changed_column(self.sampling),
            changed_column(self.seed),
            changed_column(self.voice),
            changed_column(self.priority),
            changed_column(self.detail),
            changed_column(self.limits),
            changed_column(self.context),
            changed_column(self.reasoning),
            changed_column(self.constraint),
            changed_column(self.actions),
            changed_column(self.engine),
        ]
    }
}

/// The change ticks of a column; `None` if no component in it has changed since the querying system
/// last ran. A component without a summary tick counts as changed.
pub(super) fn changed_column<'w, T>(
    column: Option<ContiguousRef<'w, T>>,
) -> Option<ContiguousComponentTicksRef<'w>> {
    let (_, ticks) = ContiguousRef::split(column?);
    ticks.summary_tick_is_changed().unwrap_or(true).then_some(ticks)
}

impl AgentPartsItem<'_, '_> {
    /// Whether the agent has changed since the querying system last ran.
    pub(super) fn is_changed(&self) -> bool {
        fn changed<T: Component>(part: &Option<Ref<T>>) -> bool {
            part.as_ref().is_some_and(DetectChanges::is_changed)
        }
        self.agent.is_changed()
            || changed(&self.sampling)
            || changed(&self.seed)
            || changed(&self.voice)
            || changed(&self.priority)
            || changed(&self.limits)
            || changed(&self.context)
            || changed(&self.reasoning)
            || changed(&self.constraint)
            || changed(&self.actions)
            || changed(&self.engine)
    }

    /// Name of the engine that the agent demands.
    pub(super) fn engine_name(&self) -> Option<&Arc<str>> {
        self.engine.as_ref()?.0.engine.as_ref()
    }

    /// Whether its level of detail has changed since the querying system last ran.
    pub(super) fn is_detail_changed(&self) -> bool {
        self.detail.as_ref().is_some_and(DetectChanges::is_changed)
    }

    /// The engine's level of detail of the agent.
    pub(super) fn detail(&self) -> Detail {
        self.detail.as_ref().map_or(Detail::Full, |level| level.detail())
    }

    /// The engine's description of the agent, without a history.
    pub(super) fn spec(&self) -> AgentSpec {
        let sampling = self.sampling.as_ref().map(|s| s.0.clone()).unwrap_or_default();
        let seed = self.seed.as_ref().map_or(0, |s| s.0);
        let limits = self.limits.as_deref().cloned().unwrap_or_default();
        let reasoning = self.reasoning.as_deref().copied().unwrap_or_default();
        AgentSpec {
            sampling: with_seed(sampling, seed),
            max_reply_tokens: limits.max_tokens,
            thinking: reasoning.thinking,
            max_reasoning_tokens: reasoning.max_tokens,
            voice_rate: self.voice.as_ref().and_then(|v| v.get()),
            priority: self.priority.as_ref().map_or(0, |p| p.0),
            detail: self.detail(),
            context_policy: self.context.as_ref().map(|c| c.0).unwrap_or_default(),
            stop_strings: limits.stop_strings,
            stop_tokens: limits.stop_tokens,
            constraint: self.constraint.as_ref().map(|c| c.0.clone()),
            actions: self.actions.as_ref().map(|actions| actions.for_engine()),
            route: self.engine.as_ref().map(|engine| engine.0.clone()).unwrap_or_default(),
            // The turns are sent by the caller, which knows the turns that the engine has.
            ..AgentSpec::new(self.agent.persona.clone())
        }
    }

    /// Whether its character is being loaded.
    pub(super) fn preparing(&self) -> Option<&Preparing> {
        self.preparing
    }

    /// The agent that it begins as a copy of.
    pub(super) fn fork_of(&self) -> Option<Entity> {
        self.fork_of.map(|source| source.0)
    }

    /// Maximum tokens of one reply.
    pub(super) fn max_reply_tokens(&self) -> u32 {
        self.limits.as_ref().map_or_else(|| ReplyLimits::default().max_tokens, |l| l.max_tokens)
    }
}

fn with_seed(sampling: Sampling, seed: u64) -> Sampling {
    if seed == 0 {
        return sampling;
    }
    let seed = sampling.seed().wrapping_add(seed);
    // A sampling is valid with any seed.
    sampling.to_builder().seed(seed).build().unwrap_or(sampling)
}

#[cfg(test)]
mod tests {
    use walla_runtime::{ContextPolicy, Route};

    use super::*;

    #[test]
    fn components_define_the_spec() {
        let mut world = World::new();
        let sampling = Sampling::builder().temperature(0.5).seed(40).build().unwrap();
        world.spawn((
            Agent::persona("p"),
            AgentSampling(sampling.clone()),
            AgentSeed(2),
            VoiceRate::tokens_per_second(6.0),
            AgentPriority(3),
            LevelOfDetail(1),
            ReplyLimits::tokens(9).stop_at("\n"),
            AgentContext(ContextPolicy::Refuse),
            AgentReasoning::thinking(77),
            AgentEngine::named("cloud").or("local", None),
        ));
        let spec = world.query::<AgentParts>().single(&world).unwrap().spec();
        let expected = AgentSpec {
            sampling: sampling.to_builder().seed(42).build().unwrap(),
            max_reply_tokens: 9,
            thinking: true,
            max_reasoning_tokens: 77,
            voice_rate: Some(6.0),
            priority: 3,
            detail: Detail::Reduced,
            context_policy: ContextPolicy::Refuse,
            stop_strings: vec!["\n".to_owned()],
            route: Route::engine("cloud").or("local", None),
            ..AgentSpec::new("p")
        };
        assert_eq!(spec, expected);
    }

    #[test]
    fn removed_components_count_as_defaults() {
        let mut world = World::new();
        let agent = world.spawn(Agent::persona("p")).id();
        world
            .entity_mut(agent)
            .remove::<(AgentSampling, ReplyLimits, VoiceRate, AgentSeed, AgentReasoning)>();
        let spec = world.query::<AgentParts>().single(&world).unwrap().spec();
        assert_eq!(spec, AgentSpec::new("p"));
    }
}
