use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;
use walla_runtime::{AgentId, ReplyError};
use walla_trace::Stage as Mark;

use super::{Hub, OpenAsk, Record, Stage, Stopwatch};
use crate::agent::{AgentParts, AgentPartsItem};
use crate::ask::{Ask, Cancel};
use crate::conversation::{Conversation, EditId};
use crate::settings::WallaSettings;
use crate::speech::{Speech, reply_bytes};

/// An agent with what it carries along for the plugin to write, disabled or not: changes are seen in the frame in which they are new,
/// or never.
type Agents = (
    Entity,
    AgentParts,
    Has<Disabled>,
    Option<&'static mut Speech>,
    Option<&'static mut Conversation>,
);

/// Sees new and changed agents, replaced conversations, asks and cancels, and notes what the engine must be told.
pub(crate) fn collect(
    mut hub: ResMut<Hub>,
    settings: Res<WallaSettings>,
    mut agents: Query<Agents>,
    mut cancels: MessageReader<Cancel>,
    mut asks: MessageReader<Ask>,
    _here: NonSendMarker,
) {
    let watch = Stopwatch::start(Mark::Collect);
    let hub = &mut *hub;
    for (entity, parts, is_disabled, _, conversation) in &mut agents {
        if parts.is_changed() {
            hub.agent_changed(entity, &parts, is_disabled, conversation.as_deref(), &settings);
        } else if parts.is_detail_changed() {
            hub.detail_changed(entity);
        }
        if let Some(conversation) = conversation
            && conversation.is_changed()
        {
            hub.conversation_changed(entity, conversation.edit());
        }
    }
    let mut asks = asks.read_with_id().peekable();
    for (cancel, number) in cancels.read_with_id() {
        let asks_before = hub.asks_before(number);
        while let Some((ask, _)) = asks.next_if(|(_, number)| number.id < asks_before) {
            hub.take(ask, &mut agents, &settings);
        }
        if let Some(&id) = hub.of_entity.get(&cancel.agent) {
            hub.cancel_all(id);
        }
    }
    hub.hushes.clear();
    for (ask, _) in asks {
        hub.take(ask, &mut agents, &settings);
    }
    hub.cost.collect = watch.read();
}

impl Hub {
    fn agent_changed(
        &mut self,
        entity: Entity,
        parts: &AgentPartsItem,
        is_disabled: bool,
        conversation: Option<&Conversation>,
        settings: &WallaSettings,
    ) {
        let known = self.of_entity.get(&entity).copied();
        let Some(id) = known.or_else(|| self.agent_appeared(entity, conversation, settings)) else {
            return;
        };
        let Some(record) = self.records.get_mut(&id) else { return };
        record.wants.spec = true;
        record.reply_bytes = reply_bytes(parts.reply_tokens_max());
        // Who is spawned disabled, as a pool is, takes no room at the engine until asked something.
        if record.added || !is_disabled {
            self.want(id);
        }
    }

    fn detail_changed(&mut self, entity: Entity) {
        let Some(&id) = self.of_entity.get(&entity) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.added {
            record.wants.detail = true;
            self.want(id);
        }
    }

    /// None without an engine: its asks fail before they need an agent.
    fn agent_appeared(
        &mut self,
        entity: Entity,
        conversation: Option<&Conversation>,
        settings: &WallaSettings,
    ) -> Option<AgentId> {
        let id = self.link.as_ref()?.new_agent();
        let edit = conversation.map_or(EditId::NONE, Conversation::edit);
        self.of_entity.insert(entity, id);
        self.records.insert(id, Record::new(entity, edit, settings.asks_per_agent_max as usize));
        Some(id)
    }

    /// The change tick moves with the plugin's own turns as well; the number of the edit tells.
    fn conversation_changed(&mut self, entity: Entity, edit: EditId) {
        let Some(&id) = self.of_entity.get(&entity) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.edit == edit {
            return;
        }
        record.edit = edit;
        for ask in &mut record.asks {
            ask.outdated = true;
        }
        // Who is not added yet will be with the conversation of that moment.
        if record.added {
            record.wants.conversation = true;
            self.want(id);
        }
        self.cancel_all(id);
    }

    /// Opens an ask, or ends it at once.
    fn take(&mut self, ask: &Ask, agents: &mut Query<Agents>, settings: &WallaSettings) {
        match self.asked(ask, settings) {
            Ok((reply_bytes, open_asks)) => {
                let Ok((.., speech, conversation)) = agents.get_mut(ask.agent) else { return };
                if let Some(mut speech) = speech {
                    speech.asked(reply_bytes);
                }
                if let Some(mut conversation) = conversation {
                    let turns_max = settings.conversation_turns_max as usize;
                    let conversation = conversation.bypass_change_detection();
                    conversation.reserve_exchanges(open_asks, turns_max);
                }
            }
            Err(error) => {
                let generation = self.new_generation();
                self.end_here(ask.agent, (generation, ask.tag), Err(error));
            }
        }
    }

    /// Opens an ask; returns the bytes to reserve for its reply and the number of open asks.
    fn asked(&mut self, ask: &Ask, settings: &WallaSettings) -> Result<(usize, usize), ReplyError> {
        if let Some(gone) = self.engine_gone() {
            return Err(gone);
        }
        let Some(&id) = self.of_entity.get(&ask.agent) else {
            return Err(ReplyError::UnknownAgent);
        };
        let generation = self.new_generation();
        let Some(record) = self.records.get_mut(&id) else { return Err(ReplyError::UnknownAgent) };
        let waiting = record.asks.len();
        if waiting >= settings.asks_per_agent_max as usize {
            return Err(ReplyError::Busy { waiting: waiting as u32 });
        }
        record.asks.push_back(OpenAsk {
            generation,
            tag: ask.tag,
            question: ask.text.as_str().into(),
            kind: ask.kind,
            turn: String::with_capacity(record.reply_bytes),
            stage: Stage::Unsent,
            cancel: false,
            outdated: false,
        });
        self.asks_waiting += 1;
        record.wants.asks = true;
        let reserved = (record.reply_bytes, record.asks.len());
        self.want(id);
        Ok(reserved)
    }
}
