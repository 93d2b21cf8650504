//! Files with the cache of an agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use walla_runtime::{CacheJob, CacheTicket};

use crate::bridge::EngineBridge;

pub use walla_runtime::{CacheError, KvFileError};

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
    /// Saves the cache of an agent, in the background. Observe [`CacheSaved`] and [`CacheFailed`].
    /// An older file is replaced when the new one is complete.
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
    /// ask. Asks that follow wait for it. Observe [`CacheLoaded`] and [`CacheFailed`]. Without a
    /// free slot in the engine, or without free pages, the load fails.
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
    path: Arc<std::path::Path>,
    is_load: bool,
    job: CacheJob,
}

/// The cache of an agent was saved ([`CacheCommands::save_cache`]).
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct CacheSaved {
    /// The agent. May no longer exist.
    #[event_target]
    pub agent: Entity,
    /// The file.
    pub path: Arc<std::path::Path>,
    /// Tokens in the file.
    pub tokens: u32,
    /// Length of the file.
    pub file_bytes: u64,
    /// Time from the command to the end.
    pub elapsed: Duration,
}

/// The cache of an agent was loaded ([`CacheCommands::load_cache`]): its next prompt is evaluated
/// from the first token that differs.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct CacheLoaded {
    /// The agent.
    #[event_target]
    pub agent: Entity,
    /// The file.
    pub path: Arc<std::path::Path>,
    /// Tokens in the file.
    pub tokens: u32,
    /// Length of the file.
    pub file_bytes: u64,
    /// Time from the command to the end.
    pub elapsed: Duration,
}

/// The cache of an agent was not saved or not loaded. The agent speaks as without the file.
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct CacheFailed {
    /// The agent. May no longer exist.
    #[event_target]
    pub agent: Entity,
    /// The file.
    pub path: Arc<std::path::Path>,
    /// A load failed, not a save.
    pub is_load: bool,
    /// The reason.
    pub error: CacheError,
}

/// Publishes the ends of saves and loads.
pub(crate) fn publish_copies(
    mut bridge: ResMut<EngineBridge>,
    mut commands: Commands,
    mut saved: MessageWriter<CacheSaved>,
    mut loaded: MessageWriter<CacheLoaded>,
    mut failed: MessageWriter<CacheFailed>,
    _here: NonSendMarker,
) {
    if !bridge.has_copies() {
        return;
    }
    bridge.take_copies(|CacheCopy { agent, path, is_load, job }| {
        let Some(result) = job.result() else { return false };
        let (agent, path, is_load) = (*agent, Arc::clone(path), *is_load);
        match result {
            Ok(copied) if is_load => {
                let (tokens, file_bytes, elapsed) =
                    (copied.tokens, copied.file_bytes, copied.elapsed);
                let event = CacheLoaded { agent, path, tokens, file_bytes, elapsed };
                loaded.write(event.clone());
                commands.trigger(event);
            }
            Ok(copied) => {
                let (tokens, file_bytes, elapsed) =
                    (copied.tokens, copied.file_bytes, copied.elapsed);
                let event = CacheSaved { agent, path, tokens, file_bytes, elapsed };
                saved.write(event.clone());
                commands.trigger(event);
            }
            Err(error) => {
                let event = CacheFailed { agent, path, is_load, error };
                failed.write(event.clone());
                commands.trigger(event);
            }
        }
        true
    });
}
