//! Saves and loads of caches: the ones that are not sent, and the ones that are not reported.

use bevy_ecs::prelude::*;
use walla_runtime::{AgentId, CacheError, CacheTicket, Command};

use super::EngineBridge;
use super::submit::{NoMore, Outbox};
use crate::cache::CacheCopy;

/// Saves and loads, in the order of the commands.
#[derive(Default)]
pub(super) struct Copies {
    unsent: Vec<(Entity, CacheTicket)>,
    unreported: Vec<CacheCopy>,
}

impl EngineBridge {
    /// Adds a save or a load, which the next submit sends.
    pub(crate) fn copy_cache(&mut self, agent: Entity, ticket: CacheTicket, copy: CacheCopy) {
        self.copies.unsent.push((agent, ticket));
        self.copies.unreported.push(copy);
    }

    /// Whether a save or a load is not reported.
    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.unreported.is_empty()
    }

    /// Removes the copies for which `report` is true.
    pub(crate) fn take_copies(&mut self, mut report: impl FnMut(&CacheCopy) -> bool) {
        self.copies.unreported.retain(|copy| !report(copy));
    }

    /// Lets agents with unsent copies be sent. Of entities that are no agents, the copies fail.
    pub(super) fn queue_copies(&mut self) {
        let mut unsent = std::mem::take(&mut self.copies.unsent);
        unsent.retain(|(entity, ticket)| match self.id_by_entity.get(entity).copied() {
            Some(id) => {
                self.mark_pending(id);
                true
            }
            None => {
                ticket.fail(CacheError::UnknownAgent);
                false
            }
        });
        self.copies.unsent = unsent;
    }

    /// Sends the copies of one agent.
    pub(super) fn send_copies(&mut self, id: AgentId, outbox: &mut Outbox) -> Result<(), NoMore> {
        let Some(record) = self.records.get(&id).filter(|record| !record.is_removed) else {
            return Ok(());
        };
        let (entity, is_added) = (record.entity, record.added);
        // A copy waits until the engine knows its agent.
        while is_added && let Some(at) = self.copies.unsent.iter().position(|(of, _)| *of == entity)
        {
            let (_, ticket) = self.copies.unsent.remove(at);
            self.send(Command::CopyCache { agent: id, ticket }, outbox)?;
        }
        Ok(())
    }

    /// There is no engine: ends all copies that were not sent.
    pub(super) fn give_up_copies(&mut self) {
        self.copies.unsent.clear();
    }
}
