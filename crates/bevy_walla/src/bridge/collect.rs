use std::borrow::Cow;

use bevy_ecs::change_detection::ContiguousComponentTicksRef;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::query::ROQueryItem;
use bevy_ecs::system::NonSendMarker;
use walla_runtime::{AgentId, FinishReason, Prompt, ReplyError, ReplyId, ResultError, Turn};
use walla_trace::Stage;

use super::again::Repetition;
use super::parts::{AgentPartsItem, Agents, changed_column};
use super::{AskContent, AskId, AskStage, EngineBridge, LocalEnd, OpenAsk, Record, Stopwatch};
use crate::ask::{Ask, Cancel};
use crate::conversation::Conversation;
use crate::settings::WallaSettings;
use crate::speech::{Speech, reply_bytes};

/// Collects new and changed agents, replaced conversations, asks and cancels, and records the
/// pending changes.
pub(crate) fn collect(
    mut bridge: ResMut<EngineBridge>,
    settings: Res<WallaSettings>,
    mut agents: Query<Agents>,
    mut cancels: MessageReader<Cancel>,
    mut asks: MessageReader<Ask>,
    names: Query<&Name, Allow<Disabled>>,
    _here: NonSendMarker,
) {
    let watch = Stopwatch::start(Stage::Collect);
    let bridge = &mut *bridge;
    // First: an agent that is spawned and asked in one frame must be known to its ask.
    bridge.collect_changes(&agents, &settings);
    // A frame without cancels allocates nothing here.
    let cancels = cancels.read_with_id();
    let mut cancels: Vec<_> =
        cancels.map(|(cancel, number)| (bridge.asks_before(number.id), *cancel)).collect();
    // Written ones count as made before all asks. Stable: the others stay in their order.
    cancels.sort_by_key(|(asks_before, _)| *asks_before);
    let mut asks = asks.read_with_id().peekable();
    for (asks_before, cancel) in cancels {
        while let Some((ask, number)) = asks.next_if(|(_, number)| number.id < asks_before) {
            bridge.receive_ask(&named(ask, &names), number.id, &mut agents, &settings);
        }
        let Some(&id) = bridge.id_by_entity.get(&cancel.agent) else { continue };
        if let Some(heard_bytes) = cancel.heard_bytes {
            bridge.shorten_replies(id, heard_bytes, cancel.reply_id, &mut agents);
        }
        bridge.cancel_all(id);
    }
    bridge.cancel_requests.clear();
    for (ask, number) in asks {
        bridge.receive_ask(&named(ask, &names), number.id, &mut agents, &settings);
    }
    // Behind all asks of the frame, which it was for.
    bridge.removed_this_frame.clear();
    bridge.results.heard_this_frame.clear();
    bridge.host_times.collect = watch.read();
}

/// The ask with the [`Name`] of the character that speaks.
fn named<'a>(ask: &'a Ask, names: &Query<&Name, Allow<Disabled>>) -> Cow<'a, Ask> {
    let name = ask.speaker.and_then(|speaker| names.get(speaker).ok());
    match (name, &ask.prompt) {
        (Some(name), Prompt::Chat(_)) => Cow::Owned(ask.clone().with_name(name.as_str())),
        _ => Cow::Borrowed(ask),
    }
}

impl EngineBridge {
    /// Collects the changes of agents and conversations. A table of agents without any change costs
    /// one comparison per component.
    fn collect_changes(&mut self, agents: &Query<Agents>, settings: &WallaSettings) {
        let Ok(tables) = agents.contiguous_iter() else {
            // The game has a disabling component in a sparse set.
            agents.iter().for_each(|agent| self.agent_changes(agent, settings));
            return;
        };
        for (entities, parts, _, _, conversations) in tables {
            let columns = parts.changed_columns();
            let conversations = changed_column(conversations);
            let columns = || columns.iter().chain([&conversations]).flatten();
            if columns().next().is_none() {
                continue;
            }
            let is_changed = |row: usize| columns().any(|ticks| is_row_changed(ticks, row));
            for (_, &entity) in entities.iter().enumerate().filter(|(row, _)| is_changed(*row)) {
                if let Ok(agent) = agents.get(entity) {
                    self.agent_changes(agent, settings);
                }
            }
        }
    }

    fn agent_changes(
        &mut self,
        (entity, parts, is_disabled, _, conversation): ROQueryItem<Agents>,
        settings: &WallaSettings,
    ) {
        if parts.is_changed() {
            self.agent_changed(entity, &parts, is_disabled, conversation.as_deref(), settings);
        } else if parts.is_detail_changed() {
            self.detail_changed(entity);
        }
        if let Some(conversation) = conversation
            && conversation.is_changed()
        {
            self.conversation_changed(entity, &conversation);
        }
    }

    fn agent_changed(
        &mut self,
        entity: Entity,
        parts: &AgentPartsItem,
        is_disabled: bool,
        conversation: Option<&Conversation>,
        settings: &WallaSettings,
    ) {
        let known = self.id_by_entity.get(&entity).copied();
        let Some(id) = known.or_else(|| self.agent_appeared(entity, conversation, settings)) else {
            return;
        };
        let Some(record) = self.records.get_mut(&id) else { return };
        record.pending.spec = true;
        // Known before the ask reserves it: a delta must not allocate.
        record.reply_bytes = reply_bytes(parts.max_reply_tokens());
        // An agent that is spawned disabled, as in a pool, takes no slot of the engine before its
        // first ask.
        if record.added || !is_disabled {
            self.mark_pending(id);
        }
    }

    fn detail_changed(&mut self, entity: Entity) {
        let Some(&id) = self.id_by_entity.get(&entity) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.added {
            record.pending.detail = true;
            self.mark_pending(id);
        }
    }

    /// Returns `None` without an engine: its asks fail before they need an agent.
    fn agent_appeared(
        &mut self,
        entity: Entity,
        conversation: Option<&Conversation>,
        settings: &WallaSettings,
    ) -> Option<AgentId> {
        self.client.as_ref()?;
        let id = AgentId::unique();
        let record = Record::new(entity, conversation, settings.max_asks_per_agent as usize);
        self.id_by_entity.insert(entity, id);
        self.records.insert(id, record);
        Some(id)
    }

    /// The plugin's own turns trigger change detection as well. The edit and the number of pushed
    /// turns distinguish them from the game's changes.
    pub(super) fn conversation_changed(&mut self, entity: Entity, conversation: &Conversation) {
        let Some(&id) = self.id_by_entity.get(&entity) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        let pushed = conversation.pushed().wrapping_sub(record.pushed);
        record.pushed = conversation.pushed();
        if record.edit == conversation.edit() {
            if pushed > 0 {
                self.turns_pushed(id, pushed);
            }
            return;
        }
        record.edit = conversation.edit();
        record.unsent_turns = 0;
        record.shortened.clear();
        record.keep_acted(conversation);
        for ask in &mut record.asks {
            ask.outdated = true;
        }
        // An agent that is added later is sent with its conversation at that time.
        if record.added {
            record.pending.conversation = true;
            self.mark_pending(id);
        }
        // Rule 3: their replies belong to the conversation that is gone.
        self.cancel_all(id);
    }

    /// Records turns that were pushed after all asks so far.
    fn turns_pushed(&mut self, id: AgentId, turns: u32) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let most = u16::try_from(turns).unwrap_or(u16::MAX);
        for ask in &mut record.asks {
            ask.turns_after = ask.turns_after.saturating_add(most);
        }
        // An agent that is added later is sent with its conversation at that time.
        if record.added {
            record.unsent_turns = record.unsent_turns.saturating_add(turns);
            self.mark_pending(id);
        }
    }

    pub(super) fn record_of(&mut self, agent: Entity) -> Option<&mut Record> {
        self.records.get_mut(self.id_by_entity.get(&agent)?)
    }

    /// Opens an ask, or ends it at once.
    fn receive_ask(
        &mut self,
        ask: &Ask,
        number: usize,
        agents: &mut Query<Agents>,
        settings: &WallaSettings,
    ) {
        // Also of an ask that fails: `agent_removed` compares with it.
        self.asks_read = number + 1;
        if self.removed_this_frame.get(&ask.agent).is_some_and(|asks_before| number < *asks_before)
        {
            return self.end_unopened(ask, Ok(FinishReason::Cancelled), agents);
        }
        if self.is_alone
            && let Ok((_, parts, ..)) = agents.get(ask.agent)
            && let Some(name) = parts.engine_name()
        {
            let error = ReplyError::NoEngine { name: name.clone() };
            return self.end_unopened(ask, Err(error), agents);
        }
        // Before the ask is opened: it must not repeat itself.
        let (again, removed) = match self.repetition(ask, agents, settings) {
            Ok(Some(Repetition { ask, removed })) => (Some(ask), removed),
            Ok(None) => (None, Vec::new()),
            Err(error) => return self.end_unopened(ask, Err(error), agents),
        };
        let ask = again.as_ref().unwrap_or(ask);
        match self.open_ask(ask, removed, settings) {
            Ok((reply_bytes, open_asks)) => {
                let Ok((.., speech, conversation)) = agents.get_mut(ask.agent) else { return };
                if let Some(mut speech) = speech.filter(|_| !ask.options.is_aside()) {
                    speech.asked(reply_bytes);
                }
                if let Some(mut conversation) = conversation {
                    let max_turns = settings.max_conversation_turns as usize;
                    // Reserving memory for its turns is no change of the game.
                    let conversation = conversation.bypass_change_detection();
                    let has_dropped = conversation.reserve_exchanges(open_asks, max_turns);
                    let turns = conversation.turns().len();
                    // It looks at all asks of the agent.
                    if has_dropped && let Some(record) = self.record_of(ask.agent) {
                        record.turns_dropped(turns);
                    }
                }
            }
            Err(error) => self.end_unopened(ask, Err(error), agents),
        }
    }

    /// Ends an ask that was not opened. Without other asks the agent is silent again.
    fn end_unopened(
        &mut self,
        ask: &Ask,
        end: Result<FinishReason, ReplyError>,
        agents: &mut Query<Agents>,
    ) {
        let waiting = self.record_of(ask.agent).is_some_and(|record| !record.asks.is_empty());
        if let Ok((.., Some(speech), _)) = agents.get_mut(ask.agent) {
            Speech::end_unbegun(speech, waiting);
        }
        let id = AskId { reply_id: ReplyId::unique(), tag: ask.tag };
        let (entity, removed, turns_after) = (ask.agent, Vec::new(), 0);
        self.local_ends.push_back(LocalEnd { entity, ask: id, outcome: end, removed, turns_after });
    }

    /// Opens an ask; returns the bytes to reserve for its reply and the number of open asks.
    fn open_ask(
        &mut self,
        ask: &Ask,
        removed: Vec<Turn>,
        settings: &WallaSettings,
    ) -> Result<(usize, usize), ReplyError> {
        if let Some(gone) = self.engine_gone() {
            return Err(gone);
        }
        let Some(&id) = self.id_by_entity.get(&ask.agent) else {
            return Err(ReplyError::UnknownAgent);
        };
        // The conversation component gets results as `ActionResult`s.
        if let Prompt::Results(results) = &ask.prompt
            && let Some(first) = results.first()
        {
            return Err(ReplyError::Result(ResultError::Unknown(first.id)));
        }
        let reply_id = ReplyId::unique();
        let Some(record) = self.records.get_mut(&id) else { return Err(ReplyError::UnknownAgent) };
        let waiting = record.asks.len();
        if waiting >= settings.max_asks_per_agent as usize {
            return Err(ReplyError::Busy { waiting: waiting as u32 });
        }
        record.asks.push_back(OpenAsk {
            reply_id,
            tag: ask.tag,
            content: Box::new(AskContent {
                prompt: ask.prompt.clone(),
                is_aside: ask.options.is_aside(),
                speaker: ask.speaker,
                options: ask.options.clone(),
                removed,
                scores: Vec::new(),
            }),
            turn: String::with_capacity(record.reply_bytes),
            stage: AskStage::Unsent,
            cancel: false,
            outdated: false,
            is_shortened: false,
            turns_after: 0,
        });
        self.asks_waiting += 1;
        record.pending.asks = true;
        let reserved = (record.reply_bytes, record.asks.len());
        self.mark_pending(id);
        Ok(reserved)
    }
}

fn is_row_changed(ticks: &ContiguousComponentTicksRef, row: usize) -> bool {
    let changed = ticks.changed().get(row);
    changed.is_some_and(|tick| tick.is_newer_than(ticks.last_run(), ticks.this_run()))
}

impl Record {
    /// The oldest turns of the conversation were dropped; this many are left. Pushed turns are the
    /// last ones, so no more than these can still be counted.
    fn turns_dropped(&mut self, turns_left: usize) {
        self.unsent_turns = self.unsent_turns.min(u32::try_from(turns_left).unwrap_or(u32::MAX));
        let most = u16::try_from(turns_left).unwrap_or(u16::MAX);
        for ask in &mut self.asks {
            ask.turns_after = ask.turns_after.min(most);
        }
    }
}
