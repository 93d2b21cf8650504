//! Files with the cache of an agent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use walla_runtime::{CacheJob, CacheTicket};

use crate::bridge::{EngineBridge, announce};

pub use walla_runtime::{CacheCopied, CacheError, KvFileError};

/// Files with the caches of agents, as methods of [`Commands`].
///
/// A file has the keys and values of the tokens that are evaluated for the agent, with its persona
/// and its conversation: an agent that loads it before its first ask evaluates only its question.
/// It does not replace the saved [`Conversation`](crate::Conversation), and it is useful for one
/// model file, one kind of device and one setting of
/// [`EngineOptions::kv_type`](crate::EngineOptions::kv_type) only. For anything else the load
/// fails, and the agent speaks as without the file.
///
/// The checksum of a file detects accidents, not attacks: a program that can write the file can
/// change the memories of this agent, as with a saved conversation. Other agents are unaffected.
pub trait CacheCommands {
    /// Saves the cache of an agent, in the background. Observe [`CacheEnded`]. An older file is
    /// replaced when the new one is complete.
    ///
    /// Save when the agent is silent: the engine then first prepares its next prompt, for up to a
    /// second.
    ///
    /// # Examples
    /// ```
    /// # use bevy_ecs::prelude::*;
    /// use bevy_walla::cache::CacheCommands;
    /// use bevy_walla::prelude::*;
    /// fn save(agents: Query<(Entity, &Name), With<Agent>>, mut commands: Commands) {
    ///     for (agent, name) in &agents {
    ///         commands.save_cache(agent, format!("saves/{name}.kv"));
    ///     }
    /// }
    /// /// Load it with the conversation, before the first ask.
    /// fn restore(greta: (Agent, Conversation), mut commands: Commands) {
    ///     let agent = commands.spawn(greta).id();
    ///     commands.load_cache(agent, "saves/Greta.kv");
    /// }
    /// ```
    fn save_cache(&mut self, agent: Entity, path: impl Into<PathBuf>);

    /// Loads the cache of an agent, in the background, while it is silent: best before its first
    /// ask. Asks that follow wait for it. Observe [`CacheEnded`]. Without a free slot in the
    /// engine, or without free pages, the load fails.
    fn load_cache(&mut self, agent: Entity, path: impl Into<PathBuf>);
}

impl CacheCommands for Commands<'_, '_> {
    fn save_cache(&mut self, agent: Entity, path: impl Into<PathBuf>) {
        let path = path.into();
        self.queue(move |world: &mut World| copy(world, agent, path, CacheTicket::save));
    }

    fn load_cache(&mut self, agent: Entity, path: impl Into<PathBuf>) {
        let path = path.into();
        self.queue(move |world: &mut World| copy(world, agent, path, CacheTicket::load));
    }
}

fn copy(
    world: &mut World,
    agent: Entity,
    path: PathBuf,
    ticket: fn(PathBuf) -> (CacheTicket, CacheJob),
) {
    let Some(mut bridge) = world.get_resource_mut::<EngineBridge>() else { return };
    let (ticket, job) = ticket(path.clone());
    let (path, is_load) = (path.into(), ticket.is_load());
    bridge.copy_cache(agent, ticket, CacheCopy { agent, path, is_load, job });
}

/// A save or a load that has not been reported.
pub(crate) struct CacheCopy {
    agent: Entity,
    path: Arc<Path>,
    is_load: bool,
    job: CacheJob,
}

/// A save or a load of an agent's cache has ended ([`CacheCommands`]). After a load the next prompt
/// is evaluated from the first token that differs; after a failure the agent speaks as without the
/// file.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct CacheEnded {
    /// The agent. May no longer exist.
    #[event_target]
    pub agent: Entity,
    /// The file.
    pub path: Arc<Path>,
    /// It was a load, not a save.
    pub is_load: bool,
    /// Counts and time, or the reason of the failure.
    pub result: Result<CacheCopied, CacheError>,
}

/// Publishes the ends of saves and loads.
pub(crate) fn publish_copies(
    mut bridge: ResMut<EngineBridge>,
    mut commands: Commands,
    mut ended: MessageWriter<CacheEnded>,
    _here: NonSendMarker,
) {
    if !bridge.has_copies() {
        return;
    }
    bridge.take_copies(|CacheCopy { agent, path, is_load, job }| {
        let Some(result) = job.result() else { return false };
        let (agent, path, is_load) = (*agent, Arc::clone(path), *is_load);
        announce(&mut commands, &mut ended, CacheEnded { agent, path, is_load, result });
        true
    });
}
