//! Sends memories and settings to the service, before the asks of a frame.

use bevy_app::prelude::*;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::schedule::IntoScheduleConfigs;
use bevy_time::{Time, Virtual};

use super::{Knowledge, Lore, Memory, MemoryService, MemoryTime};
use crate::agent::Agent;
use crate::bridge::{self, EngineBridge};
use crate::systems::{Schedules, WallaSystems};

pub(super) fn add_systems(app: &mut App, schedules: Schedules, has_manual_time: bool) {
    if !has_manual_time {
        schedules.add_submit_systems(
            app,
            advance_time.before(bridge::collect).in_set(WallaSystems::Collect),
        );
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
        now.0 += time.delta();
    }
}

/// An agent with memories.
type Knowing = (Entity, Option<&'static mut Memory>, &'static Knowledge);

/// Agents whose memories may have changed.
type Changes =
    (With<Agent>, Or<(Changed<Memory>, Changed<Knowledge>, Added<Agent>)>, Allow<Disabled>);

pub(super) fn send_memories(
    service: Res<MemoryService>,
    bridge: Res<EngineBridge>,
    now: Res<MemoryTime>,
    mut lore: ResMut<Lore>,
    mut agents: ParamSet<(Query<Knowing, Changes>, Query<Knowing, (With<Agent>, Allow<Disabled>)>)>,
    (mut no_memory, mut no_knowledge): (RemovedComponents<Memory>, RemovedComponents<Knowledge>),
    mut lore_key: Local<Option<walla_recall::MemoryKey>>,
    mut again: Local<Vec<Entity>>,
) {
    service.client.set_now(now.0);
    // Another resource may have been inserted. Sending is no change for the game.
    let is_sent = service.recall().update(&mut lore.bypass_change_detection().0);
    if let Err(error) = is_sent {
        tracing::debug!(target: "walla::memory", %error, "lore is sent later");
    }
    let key = (!lore.is_empty()).then(|| lore.key());
    let is_lore_new = *lore_key != key;
    *lore_key = key;
    let send = |(agent, memory, knowledge): (Entity, Option<Mut<Memory>>, &Knowledge)| {
        let mut memories = Vec::with_capacity(2);
        let mut is_sent = Ok(());
        if let Some(mut memory) = memory {
            is_sent = service.recall().update(&mut memory.bypass_change_detection().0);
            memories.push(memory.key());
        }
        memories.extend(key.filter(|_| knowledge.reads_lore));
        let recall = (!memories.is_empty()).then(|| knowledge.recall(memories));
        let is_known = match bridge.agent_id(agent) {
            Some(id) => {
                service.client.set_agent(id, recall);
                true
            }
            // It becomes known with its first ask, in the same frame.
            None => false,
        };
        is_sent.is_ok() && is_known
    };
    let mut later = Vec::new();
    if is_lore_new {
        again.clear();
        for agent in &mut agents.p1() {
            let entity = agent.0;
            if !send(agent) {
                later.push(entity);
            }
        }
    } else {
        for entity in again.drain(..) {
            if let Ok(agent) = agents.p1().get_mut(entity)
                && !send(agent)
            {
                later.push(entity);
            }
        }
        for agent in &mut agents.p0() {
            let entity = agent.0;
            if !send(agent) {
                later.push(entity);
            }
        }
    }
    for entity in no_memory.read().chain(no_knowledge.read()) {
        match agents.p1().get_mut(entity) {
            Ok(agent) => {
                if !send(agent) {
                    later.push(entity);
                }
            }
            Err(_) => {
                if let Some(id) = bridge.agent_id(entity) {
                    service.client.set_agent(id, None);
                }
            }
        }
    }
    later.sort_unstable();
    later.dedup();
    *again = later;
}
