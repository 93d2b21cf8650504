//! The components that a copy of an agent gets.

use bevy_ecs::prelude::*;

use super::{ForkCommands, ForkOf, Simulation};
use crate::actions::AgentActions;
use crate::agent::{
    Agent, AgentConstraint, AgentContext, AgentEngine, AgentPriority, AgentReasoning,
    AgentSampling, AgentSeed, LevelOfDetail, ReplyLimits, VoiceRate,
};
use crate::conversation::Conversation;
use crate::cues::AgentCues;
use crate::memories::{AgentKnowledge, AgentMemory, Memorizes};

impl ForkCommands for Commands<'_, '_> {
    fn fork_agent(&mut self, agent: Entity) -> Entity {
        queue_fork(self, agent, ())
    }

    fn simulate_agent(&mut self, agent: Entity) -> Entity {
        queue_fork(self, agent, Simulation)
    }
}

fn queue_fork(commands: &mut Commands<'_, '_>, agent: Entity, with: impl Bundle) -> Entity {
    let copy = commands.spawn(with).id();
    commands.queue(move |world: &mut World| fork(world, agent, copy));
    copy
}

/// The parts of an agent that its copies have too.
type Parts = (
    (Agent, AgentSampling, AgentSeed, VoiceRate, AgentPriority, LevelOfDetail, ReplyLimits),
    (AgentContext, AgentReasoning, AgentConstraint, AgentActions, AgentEngine, AgentCues),
    (Simulation, Conversation, AgentKnowledge, AgentMemory, Memorizes),
);

fn fork(world: &mut World, source: Entity, copy: Entity) {
    if world.get::<Agent>(source).is_none() {
        tracing::warn!(%source, "no agent to copy");
        return;
    }
    if let Ok(mut copy) = world.get_entity_mut(copy) {
        copy.insert(ForkOf(source));
    }
    // Observers of `ForkOf` may have despawned either.
    if world.get_entity(copy).is_ok()
        && let Ok(mut source) = world.get_entity_mut(source)
    {
        // The speech and the list of memorized turns begin empty.
        source.clone_with_opt_in(copy, |parts| {
            parts.without_required_components(|parts| {
                parts.allow::<Parts>();
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use walla_runtime::{Speaker, Turn};

    use super::*;
    use crate::speech::Speech;

    #[test]
    fn a_copy_has_the_parts_of_the_agent_and_no_others() {
        let mut world = World::new();
        let talk = Conversation::new([Turn::new(Speaker::User, "q")]);
        let source = world.spawn((Agent::persona("p"), AgentSeed(5), LevelOfDetail(2), talk)).id();
        world.entity_mut(source).insert((Memorizes::default(), Name::new("Greta"), Simulation));
        world.entity_mut(source).remove::<ReplyLimits>();
        world.get_mut::<Speech>(source).unwrap().asked(9);
        let copy = world.commands().fork_agent(source);
        world.flush();
        let [source, copy] = [source, copy].map(|agent| world.entity(agent));
        assert_eq!(copy.get::<ForkOf>(), Some(&ForkOf(source.id())));
        assert_eq!(copy.get::<Agent>(), source.get::<Agent>());
        assert_eq!(copy.get::<AgentSeed>(), source.get::<AgentSeed>());
        assert_eq!(copy.get::<LevelOfDetail>(), source.get::<LevelOfDetail>());
        assert_eq!(copy.get::<Conversation>(), source.get::<Conversation>());
        assert_ne!(
            copy.get::<Conversation>().map(Conversation::edit),
            source.get::<Conversation>().map(Conversation::edit)
        );
        assert_eq!(copy.get::<ReplyLimits>(), Some(&ReplyLimits::default()));
        assert!(copy.contains::<Memorizes>() && copy.contains::<AgentMemory>());
        assert!(copy.contains::<Simulation>() && !copy.contains::<Name>());
        let is_silent = |agent: EntityRef| agent.get::<Speech>().is_some_and(Speech::is_silent);
        assert!(is_silent(copy) && !is_silent(source));
    }

    /// Either may be gone when the command runs, or within it.
    #[test]
    fn a_copy_of_a_despawned_agent_or_to_a_despawned_entity_is_none() {
        for (source_goes, within) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut world = World::new();
            let source = world.spawn(Agent::persona("p")).id();
            let copy = world.spawn_empty().id();
            let gone = if source_goes { source } else { copy };
            if within {
                world.add_observer(move |_: On<Insert<ForkOf>>, mut commands: Commands| {
                    commands.entity(gone).despawn();
                });
            } else {
                world.despawn(gone);
            }
            fork(&mut world, source, copy);
            world.flush();
            assert!(world.get_entity(gone).is_err());
            let agents = world.query::<&Agent>().iter(&world).count();
            assert_eq!(agents, usize::from(!source_goes));
        }
    }
}
