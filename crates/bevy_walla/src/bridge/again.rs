//! Repetitions of the last reply ([`Prompt::Again`]) of agents with a conversation component.
//!
//! The removed turns are kept with the ask, and put back if it ends without an answer.

use bevy_ecs::prelude::*;
use walla_runtime::{Prompt, ReplyError, Turn};

use super::parts::Agents;
use super::{AskContent, EngineBridge, LocalEnd, OpenAsk, Record, is_in_conversation};
use crate::ask::Ask;
use crate::conversation::Conversation;
use crate::settings::WallaSettings;

/// The ask that a repetition becomes, and the turns that it has removed from the conversation.
pub(super) struct Repetition {
    pub ask: Ask,
    pub removed: Vec<Turn>,
}

impl EngineBridge {
    /// The ask that [`Prompt::Again`] repeats, whose reply is removed from the conversation.
    /// `None` for other kinds, and without the component: then the engine does the same.
    pub(super) fn repetition(
        &mut self,
        ask: &Ask,
        agents: &mut Query<Agents>,
        settings: &WallaSettings,
    ) -> Result<Option<Repetition>, ReplyError> {
        if ask.prompt != Prompt::Again || !self.id_by_entity.contains_key(&ask.agent) {
            return Ok(None);
        }
        if let Some(gone) = self.engine_gone() {
            return Err(gone);
        }
        let Ok((.., Some(mut conversation))) = agents.get_mut(ask.agent) else { return Ok(None) };
        // Before anything changes.
        let waiting = self.record_of(ask.agent).map_or(0, |record| record.asks.len());
        if waiting >= settings.max_asks_per_agent as usize {
            return Err(ReplyError::Busy { waiting: waiting as u32 });
        }
        // A reply in progress is repeated as it was asked.
        let open = self.record_of(ask.agent).and_then(|record| {
            let is_open = |ask: &&OpenAsk| !ask.cancel && !ask.outdated && !ask.content.is_aside;
            let last = record.asks.iter().rev().find(is_open)?;
            let AskContent { prompt, speaker, removed, .. } = &*last.content;
            let is_repeated = is_in_conversation(prompt) && removed.is_empty();
            is_repeated.then(|| (prompt.clone(), *speaker))
        });
        if let Some((prompt, speaker)) = open {
            conversation.repeated();
            self.conversation_changed(ask.agent, &conversation);
            let ask = Ask { prompt, speaker, ..ask.clone() };
            return Ok(Some(Repetition { ask, removed: Vec::new() }));
        }
        // A repetition in progress is cancelled: both repeat the same reply.
        if let Some(record) = self.record_of(ask.agent)
            && let Some(at) = record.asks.iter().rposition(OpenAsk::has_removed)
        {
            record.restore_removed(at, &mut conversation);
        }
        let speaker = ask.speaker.or_else(|| conversation.last_speaker());
        let (question, removed) = conversation.take_last_reply().ok_or(ReplyError::NoReply)?;
        self.conversation_changed(ask.agent, &conversation);
        let prompt = Prompt::of_question(question);
        let ask = Ask { prompt, speaker, ..ask.clone() };
        Ok(Some(Repetition { ask, removed }))
    }

    /// Puts back the turns of a repetition that ended without the engine.
    pub(super) fn restore_ended(&mut self, ended: &mut LocalEnd, conversation: &mut Conversation) {
        let removed = std::mem::take(&mut ended.removed);
        let Some(&id) = self.id_by_entity.get(&ended.entity) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        if !removed.is_empty() && conversation.edit() == record.edit {
            conversation.restore(removed, ended.turns_after.into());
            record.needs_resend = true;
            self.resync(id);
        }
    }
}

impl OpenAsk {
    /// Whether it has removed turns that are put back if it ends without an answer.
    pub(super) fn has_removed(&self) -> bool {
        !self.outdated && !self.content.removed.is_empty()
    }
}

impl Record {
    /// Puts back the turns that an ask has removed.
    pub(super) fn restore_removed(&mut self, at: usize, conversation: &mut Conversation) {
        let Some(ask) = self.asks.get_mut(at).filter(|ask| ask.has_removed()) else { return };
        // Taken in any case: in a replaced conversation the turns have no place any more.
        let removed = std::mem::take(&mut ask.content.removed);
        if conversation.edit() == self.edit {
            let unseen = conversation.pushed().wrapping_sub(self.pushed) as usize;
            conversation.restore(removed, usize::from(ask.turns_after) + unseen);
            self.needs_resend = true;
        }
    }
}
