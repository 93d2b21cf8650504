//! Ids of agents and replies.
//!
//! Ids are unique in a process only. They are written as differences to the previous id of their
//! kind, without a table, and numbered from 0 when they are read.

use std::collections::HashMap;

use walla_runtime::{AgentId, ReplyId};

use super::wire::{Defect, Reader, Writer};

/// The previous ids of a writer or a reader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    agent: u64,
    reply: u64,
}

impl Ids {
    pub fn put_agent(&mut self, writer: &mut Writer<'_>, AgentId(agent): AgentId) {
        writer.signed(agent.wrapping_sub(self.agent) as i64);
        self.agent = agent;
    }

    pub fn put_reply(&mut self, writer: &mut Writer<'_>, ReplyId(reply): ReplyId) {
        writer.signed(reply.wrapping_sub(self.reply) as i64);
        self.reply = reply;
    }

    pub fn get_agent(&mut self, reader: &mut Reader<'_>) -> Result<AgentId, Defect> {
        self.agent = self.agent.wrapping_add(reader.signed()? as u64);
        Ok(AgentId(self.agent))
    }

    pub fn get_reply(&mut self, reader: &mut Reader<'_>) -> Result<ReplyId, Defect> {
        self.reply = self.reply.wrapping_add(reader.signed()? as u64);
        Ok(ReplyId(self.reply))
    }
}

/// Numbers ids in the order of their appearance: agents from 0, replies from 1, because 0 is
/// [`ReplyId::NONE`].
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    agents: HashMap<AgentId, AgentId>,
    replies: HashMap<ReplyId, ReplyId>,
}

impl Numbers {
    pub fn agent(&mut self, agent: &mut AgentId) {
        let next = AgentId(self.agents.len() as u64);
        *agent = *self.agents.entry(*agent).or_insert(next);
    }

    pub fn reply(&mut self, reply_id: &mut ReplyId) {
        if *reply_id != ReplyId::NONE {
            let next = ReplyId(self.replies.len() as u64 + 1);
            *reply_id = *self.replies.entry(*reply_id).or_insert(next);
        }
    }
}
