//! Copies of agents.

use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};

mod copy;

/// Marks a new agent as a copy of another one: insert it together with
/// [`Agent`](crate::Agent), or before it. [`ForkCommands::fork_agent`] does that.
///
/// The engine then shares the evaluated tokens of both, as far as they begin equally: the copy's
/// first reply evaluates only its question. Afterwards the component has no effect and may stay.
/// Without a free slot in the engine, or on another engine, the copy evaluates its conversation as
/// any new agent.
#[derive(Component, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Clone, Debug, PartialEq))]
pub struct ForkOf(#[entities] pub Entity);

/// Marks an agent whose calls are not real: they are events of the type
/// [`SimulatedCall`](crate::actions::SimulatedCall), so no observer of real calls runs. Copies of
/// it are simulations too.
///
/// Use it for an action that an agent *would* take: [`ForkCommands::simulate_agent`].
#[derive(Component, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq)
)]
pub struct Simulation;

/// Copies of agents, as methods of [`Commands`].
pub trait ForkCommands {
    /// Spawns a copy of an agent: the same persona, settings, conversation and memory, and a
    /// separate future. A reply in progress and waiting asks are not copied, nor are components of
    /// the game.
    ///
    /// Copies with the same [`AgentSeed`](crate::AgentSeed) answer the same question with the same
    /// words: give the copy another seed for another branch. If the agent is gone when the command
    /// runs, the entity stays empty, and asks of it fail with
    /// [`ReplyError::UnknownAgent`](crate::reply::ReplyError::UnknownAgent).
    ///
    /// # Examples
    /// ```
    /// # use bevy_ecs::prelude::*;
    /// use bevy_walla::agent::ForkCommands;
    /// use bevy_walla::prelude::*;
    /// /// What would Greta say if the player lied?
    /// fn branch(greta: Single<Entity, With<Agent>>, mut commands: Commands) {
    ///     let other = commands.fork_agent(*greta);
    ///     commands.entity(other).insert(AgentSeed(2));
    ///     commands.ask(other, "I have paid already.");
    /// }
    /// ```
    fn fork_agent(&mut self, agent: Entity) -> Entity;

    /// As [`fork_agent`](Self::fork_agent), as a [`Simulation`]: a call of the copy sells nothing.
    /// The calls of an ordinary copy are as real as the calls of any agent.
    fn simulate_agent(&mut self, agent: Entity) -> Entity;
}
