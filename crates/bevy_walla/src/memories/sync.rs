//! Sends memories and settings to the service, before the asks of a frame.

use bevy_app::prelude::*;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::IntoScheduleConfigs;
use bevy_ecs::system::SystemParam;
use bevy_time::{Time, Virtual};
use walla_memory::{MemoryKey, Recall, RecallClient};

use super::memorized::Memorized;
use super::{AgentKnowledge, AgentLore, AgentMemory, Lore, MemoryService, MemoryTime};
use crate::agent::Agent;
use crate::bridge::{self, EngineBridge};
use crate::systems::{Schedules, WallaSystems};

/// Adds what works before the engine's plugin is there.
pub(super) fn add_observers(app: &mut App) {
    app.init_resource::<Removed>().add_observer(memory_removed).add_observer(knowledge_removed);
}

pub(super) fn add_systems(app: &mut App, schedules: Schedules, has_manual_time: bool) {
    if !has_manual_time {
        // Once in each update, also if the plugin runs in fixed time steps.
        app.add_systems(PreUpdate, advance_time.before(WallaSystems::Publish));
    }
    schedules.add_submit_systems(
        app,
        send_memories.after(bridge::collect).in_set(WallaSystems::Collect),
    );
}

fn advance_time(time: Option<Res<Time<Virtual>>>, mut now: ResMut<MemoryTime>) {
    if let Some(time) = time
        && !time.delta().is_zero()
    {
        // A saved game may have any time.
        now.0 = now.0.saturating_add(time.delta());
    }
}

/// Entities that have lost a component since the last sending. Bevy forgets removals after two
/// updates, in which the system need not run.
#[derive(Resource, Default)]
pub(super) struct Removed(Vec<Entity>);

fn memory_removed(removed: On<Remove<AgentMemory>>, mut entities: ResMut<Removed>) {
    entities.0.push(removed.entity);
}

fn knowledge_removed(removed: On<Remove<AgentKnowledge>>, mut entities: ResMut<Removed>) {
    entities.0.push(removed.entity);
}

/// An agent with memories.
type Knowing = (
    Entity,
    Option<&'static mut AgentMemory>,
    &'static AgentKnowledge,
    Option<&'static AgentLore>,
    Option<&'static Memorized>,
);

/// Agents whose memories may have changed.
type Changes = (
    With<Agent>,
    Or<(
        Changed<AgentMemory>,
        Changed<AgentKnowledge>,
        Changed<AgentLore>,
        Changed<Memorized>,
        Added<Agent>,
    )>,
    Allow<Disabled>,
);

/// All agents with memories.
type All = (With<Agent>, Allow<Disabled>);

/// Agents with memories, in the order of their appearance here.
#[derive(SystemParam)]
pub(super) struct Agents<'w, 's> {
    queries: ParamSet<'w, 's, (Query<'w, 's, Knowing, Changes>, Query<'w, 's, Knowing, All>)>,
    removed: ResMut<'w, Removed>,
    /// The lore that they know.
    lore: Local<'s, Option<MemoryKey>>,
    /// Agents that could not be sent in the last frame.
    later: Local<'s, Vec<Entity>>,
}

pub(super) fn send_memories(
    service: Res<MemoryService>,
    bridge: Res<EngineBridge>,
    now: Res<MemoryTime>,
    mut lore: ResMut<Lore>,
    mut agents: Agents,
) {
    let Some(client) = &service.client else { return };
    service.recall().set_now(now.0);
    // Another resource may have been inserted. Sending is no change for the game.
    let is_sent = service.recall().update(&mut lore.bypass_change_detection().0);
    if let Err(error) = is_sent {
        tracing::debug!(target: "walla::memory", %error, "lore is sent later");
    }
    let key = (!lore.is_empty()).then(|| lore.key());
    // Only then all agents are visited: a change within the lore keeps its key.
    let is_lore_new = *agents.lore != key;
    *agents.lore = key;
    let sender = Sender { recall: service.recall(), client, bridge: &bridge, lore: key };
    let mut again = std::mem::take(&mut *agents.later);
    let mut later = Vec::new();
    if is_lore_new {
        again.clear();
        later.extend(agents.queries.p1().iter_mut().filter_map(|agent| sender.send(agent)));
    } else {
        later.extend(agents.queries.p0().iter_mut().filter_map(|agent| sender.send(agent)));
    }
    again.append(&mut agents.removed.0);
    for entity in again {
        match agents.queries.p1().get_mut(entity) {
            Ok(agent) => later.extend(sender.send(agent)),
            Err(_) => sender.forget(entity),
        }
    }
    // An agent may be in both lists.
    later.sort_unstable();
    later.dedup();
    *agents.later = later;
}

struct Sender<'a> {
    recall: &'a Recall,
    client: &'a RecallClient,
    bridge: &'a EngineBridge,
    lore: Option<MemoryKey>,
}

impl Sender<'_> {
    /// Sends the memory of an agent and the settings of its search. Returns the agent if that must
    /// be repeated.
    fn send(
        &self,
        (agent, memory, knowledge, lore, memorized): (
            Entity,
            Option<Mut<AgentMemory>>,
            &AgentKnowledge,
            Option<&AgentLore>,
            Option<&Memorized>,
        ),
    ) -> Option<Entity> {
        let mut memories = Vec::with_capacity(2);
        let mut is_sent = true;
        if let Some(mut memory) = memory {
            let sent = self.recall.update(&mut memory.bypass_change_detection().0);
            is_sent = sent.is_ok();
            memories.push(memory.key());
        }
        memories.extend(self.lore.filter(|_| knowledge.reads_lore));
        memories.extend(lore.iter().flat_map(|lore| &lore.0));
        let recall = (!memories.is_empty())
            .then(|| knowledge.recall(memories, memorized.map_or(0, Memorized::recent)));
        // It becomes known with its first change or ask, in the same frame.
        let Some(id) = self.bridge.agent_id(agent) else { return Some(agent) };
        self.client.set_agent(id, recall);
        (!is_sent).then_some(agent)
    }

    /// The agent knows nothing any more.
    fn forget(&self, agent: Entity) {
        if let Some(id) = self.bridge.agent_id(agent) {
            self.client.set_agent(id, None);
        }
    }
}
