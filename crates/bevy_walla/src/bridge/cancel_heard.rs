//! Replies that are shortened to their heard part: the component and the engine keep the same text.

use bevy_ecs::prelude::*;
use walla_runtime::{AgentId, Command, MAX_EXCHANGES_KNOWN, ReplyId};

use super::parts::Agents;
use super::submit::{NoMore, Outbox};
use super::{AskStage, EngineBridge, Record};

impl EngineBridge {
    /// Shortens the given reply to its heard part, and removes later replies, which were not heard.
    /// The caller cancels all asks of the agent.
    pub(super) fn shorten_replies(
        &mut self,
        id: AgentId,
        heard_bytes: u32,
        reply_id: Option<ReplyId>,
        agents: &mut Query<Agents>,
    ) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let begun = record.asks.iter().find(|ask| ask.stage == AskStage::Started);
        let begun = begun.map(|ask| ask.reply_id);
        let is_named = |of: ReplyId| reply_id.is_none_or(|named| named == of);
        if begun.is_some_and(is_named) {
            // A second interruption cannot lengthen a text that the first one has cut.
            record.heard_bytes = record.heard_bytes.min(heard_bytes);
        } else {
            record.heard_bytes = 0;
            let conversation = agents.get_mut(record.entity).ok().and_then(|(.., talk)| talk);
            match (conversation, reply_id) {
                (Some(mut talk), _) => {
                    let (mut heard_bytes, mut unheard) = (heard_bytes, None);
                    for reply_id in talk.replies_from(reply_id) {
                        if talk.shorten_reply(reply_id, heard_bytes) {
                            unheard.get_or_insert(reply_id);
                        }
                        record.shorten(reply_id, heard_bytes);
                        heard_bytes = 0;
                    }
                    unheard.into_iter().for_each(|first| talk.set_unheard_from(first));
                }
                (None, Some(reply_id)) => record.shorten(reply_id, heard_bytes),
                (None, None) => {}
            }
        }
        for ask in &mut record.asks {
            ask.is_shortened = true;
        }
        self.mark_pending(id);
    }

    /// Sends the shortened lengths of replies that have ended.
    pub(super) fn send_shortened(
        &mut self,
        id: AgentId,
        outbox: &mut Outbox,
    ) -> Result<(), NoMore> {
        loop {
            let Some(record) = self.records.get_mut(&id) else { return Ok(()) };
            let Some((reply_id, heard_bytes)) = record.shortened.pop() else { return Ok(()) };
            if record.added {
                let command = Command::CancelHeard { agent: id, reply_id, heard_bytes };
                self.send(command, outbox)?;
            }
        }
    }
}

impl Record {
    pub(super) fn shorten(&mut self, reply_id: ReplyId, heard_bytes: u32) {
        if self.last_resent_reply.is_some_and(|latest| reply_id <= latest) {
            self.pending.conversation = true;
        } else if let Some((_, heard)) = self.shortened.iter_mut().find(|(of, _)| *of == reply_id) {
            *heard = heard_bytes.min(*heard);
        } else if self.shortened.len() < MAX_EXCHANGES_KNOWN {
            // The engine stores no more exchanges.
            self.shortened.push((reply_id, heard_bytes));
        }
    }

    /// Heard bytes of an ask's reply, if it is shortened to them.
    pub(super) fn heard_bytes_of(&self, at: usize) -> Option<u32> {
        let ask = self.asks.get(at).filter(|ask| ask.is_shortened)?;
        Some(if ask.stage == AskStage::Started { self.heard_bytes } else { 0 })
    }
}
