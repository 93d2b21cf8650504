use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::system::NonSendMarker;
use bevy_time::{Time, Virtual};
use walla_runtime::{
    AgentId, AgentSpec, Command, FinishReason, MAX_ASKS_WAITING, ReplyError, TrySendError, Turn,
};
use walla_trace::Stage;

use super::parts::AgentParts;
use super::{AskStage, EngineBridge, OpenAsk, PendingChanges, Record, Stopwatch};
use crate::conversation::{Conversation, EditId};
use crate::error::WallaError;
use crate::settings::WallaSettings;
use crate::state::WallaState;

/// Components of agents that are sent to the engine.
pub(super) type Specs<'w, 's> =
    Query<'w, 's, (AgentParts, Option<&'static Conversation>), Allow<Disabled>>;

/// Sends pending changes to the engine, up to its mailbox's capacity, and grants the frame's steps.
pub(crate) fn submit(
    mut bridge: ResMut<EngineBridge>,
    settings: Res<WallaSettings>,
    time: Option<Res<Time<Virtual>>>,
    specs: Specs,
    _here: NonSendMarker,
) {
    let watch = Stopwatch::start(Stage::Submit);
    let bridge = &mut *bridge;
    bridge.frames = bridge.frames.saturating_add(1);
    // Before the frame is granted, so that a pause begins with this frame.
    bridge.pause(is_paused(&settings, time.as_deref()));
    if bridge.failure.is_some() {
        bridge.give_up_copies();
        bridge.give_up_all();
    } else {
        bridge.queue_copies();
        let mut outbox = Outbox { commands_left: settings.max_commands_per_frame.max(1) };
        bridge.send_pending(&mut outbox, &specs);
        // Granting a frame wakes the device thread, so it is skipped if the engine has no use for
        // it.
        if let Some(client) = &bridge.client
            && !bridge.is_paused
            && (bridge.has_background || bridge.is_anything_asked())
        {
            client.frame();
        }
    }
    bridge.host_times.submit = watch.read();
}

/// Begins or ends a pause in a frame in which [`submit`] does not run.
pub(crate) fn pause(
    mut bridge: ResMut<EngineBridge>,
    settings: Res<WallaSettings>,
    time: Option<Res<Time<Virtual>>>,
    _here: NonSendMarker,
) {
    bridge.pause(is_paused(&settings, time.as_deref()));
}

fn is_paused(settings: &WallaSettings, time: Option<&Time<Virtual>>) -> bool {
    settings.paused || (settings.pause_with_time && time.is_some_and(Time::is_paused))
}

/// Number of commands that this frame may still send.
pub(super) struct Outbox {
    commands_left: u32,
}

/// The mailbox accepts no more commands in this frame.
pub(super) struct NoMore;

impl EngineBridge {
    fn pause(&mut self, is_paused: bool) {
        if let Some(client) = &self.client
            && self.is_paused != is_paused
        {
            client.set_paused(is_paused);
            self.is_paused = is_paused;
        }
    }

    fn send_pending(&mut self, outbox: &mut Outbox, specs: &Specs) {
        if let Some(command) = self.held_back.take()
            && self.send(command, outbox).is_err()
        {
            return;
        }
        while let Some(id) = self.pending_agents.pop_front() {
            if self.send_pending_of(id, outbox, specs).is_err() {
                // It keeps its place, and the part that is not sent is still marked as pending.
                self.pending_agents.push_front(id);
                return;
            }
            if let Some(record) = self.records.get_mut(&id) {
                record.pending.queued = false;
            }
            self.forget_if_done(id);
        }
    }

    /// Sends all pending changes of one agent, in the order that the engine requires.
    fn send_pending_of(
        &mut self,
        id: AgentId,
        outbox: &mut Outbox,
        specs: &Specs,
    ) -> Result<(), NoMore> {
        if let Some(preparing) = self.preparing(id, specs) {
            self.send_cancels(id, outbox)?;
            if let Some(failure) = preparing {
                self.end_unsent(id, &failure);
            }
            return Ok(());
        }
        self.send_spec(id, outbox, specs)?;
        self.send_cancels(id, outbox)?;
        self.send_shortened(id, outbox)?;
        self.send_conversation(id, outbox, specs)?;
        self.send_copies(id, outbox)?;
        self.send_asks(id, outbox, specs)?;
        let Some(record) = self.records.get_mut(&id) else { return Ok(()) };
        let removal = std::mem::take(&mut record.pending.removal);
        if removal && record.added {
            self.send(Command::RemoveAgent { agent: id }, outbox)?;
        }
        Ok(())
    }

    /// Whether the agent's character is being loaded, and why it cannot be.
    fn preparing(&self, id: AgentId, specs: &Specs) -> Option<Option<ReplyError>> {
        let record = self.records.get(&id).filter(|record| !record.is_removed)?;
        let (parts, _) = specs.get(record.entity).ok()?;
        Some(parts.preparing()?.failure.clone())
    }

    /// Ends the asks of an agent that were not sent to the engine.
    fn end_unsent(&mut self, id: AgentId, error: &ReplyError) {
        let Some(record) = self.records.get_mut(&id) else { return };
        // Sent asks precede unsent ones.
        let sent = record.asks.iter().take_while(|ask| ask.stage != AskStage::Unsent).count();
        let entity = record.entity;
        self.asks_waiting -= record.asks.len() - sent;
        let unsent = record.asks.drain(sent..);
        self.local_ends.extend(unsent.map(|ask| ask.into_local_end(entity, Err(error.clone()))));
    }

    fn send_spec(&mut self, id: AgentId, outbox: &mut Outbox, specs: &Specs) -> Result<(), NoMore> {
        let Some(record) = self.records.get_mut(&id) else { return Ok(()) };
        let is_detail_wanted = std::mem::take(&mut record.pending.detail);
        if record.is_removed {
            return Ok(());
        }
        let Ok((parts, conversation)) = specs.get(record.entity) else { return Ok(()) };
        if !std::mem::take(&mut record.pending.spec) {
            let detail = parts.detail();
            let is_sent = is_detail_wanted && record.added;
            return if is_sent {
                self.send(Command::SetDetail { agent: id, detail }, outbox)
            } else {
                Ok(())
            };
        }
        let spec = parts.spec();
        let command = if record.added {
            Command::ChangeAgent { agent: id, spec: Box::new(spec) }
        } else {
            // Set before the send: a held-back command is sent first in the next frame, in order.
            record.added = true;
            // The history is a part of the new agent.
            record.pending.conversation = false;
            let history = record.turns_to_send(conversation).unwrap_or_default();
            let spec = Box::new(AgentSpec { turns: history, ..spec });
            let source = parts.fork_of().and_then(|source| self.id_by_entity.get(&source));
            match source.copied() {
                Some(source) => Command::ForkAgent { agent: id, source, spec: Some(spec) },
                None => Command::AddAgent { agent: id, spec },
            }
        };
        self.send(command, outbox)
    }

    fn send_conversation(
        &mut self,
        id: AgentId,
        outbox: &mut Outbox,
        specs: &Specs,
    ) -> Result<(), NoMore> {
        let Some(record) = self.records.get_mut(&id) else { return Ok(()) };
        if record.is_removed || !record.pending.conversation {
            return Ok(());
        }
        let Ok((_, conversation)) = specs.get(record.entity) else { return Ok(()) };
        record.pending.conversation = false;
        let Some(turns) = record.turns_to_send(conversation) else { return Ok(()) };
        self.send(Command::SetConversation { agent: id, turns }, outbox)
    }

    /// Sends the pending cancels: sent asks are cancelled in the engine, unsent ones here.
    fn send_cancels(&mut self, id: AgentId, outbox: &mut Outbox) -> Result<(), NoMore> {
        loop {
            let Some(record) = self.records.get_mut(&id) else { return Ok(()) };
            if !record.pending.asks {
                return Ok(());
            }
            let Some(at) = record.asks.iter().position(|ask| ask.cancel) else { return Ok(()) };
            let Some(ask) = record.asks.get_mut(at) else { return Ok(()) };
            if ask.stage != AskStage::Unsent {
                ask.cancel = false;
                let reply_id = ask.reply_id;
                let command = match record.heard_bytes_of(at) {
                    Some(heard_bytes) => Command::CancelHeard { agent: id, reply_id, heard_bytes },
                    None => Command::Cancel { agent: id, reply_id },
                };
                self.send(command, outbox)?;
            } else if let Some(ask) = record.asks.remove(at) {
                let entity = record.entity;
                // This agent's conversation is sent after its cancels.
                record.resend_when_idle();
                self.asks_waiting -= 1;
                self.local_ends.push_back(ask.into_local_end(entity, Ok(FinishReason::Cancelled)));
            }
        }
    }

    /// Sends as many asks as the engine keeps, and the turns that were pushed before, between and
    /// after them, all in order. The end of each ask triggers sending the next one
    /// ([`EngineBridge::resync`]).
    fn send_asks(&mut self, id: AgentId, outbox: &mut Outbox, specs: &Specs) -> Result<(), NoMore> {
        loop {
            let Some(record) = self.records.get_mut(&id) else { return Ok(()) };
            if let Some(turns) = record.take_turns_due(specs) {
                self.send(Command::AppendTurns { agent: id, turns }, outbox)?;
                continue;
            }
            let unsent = |ask: &OpenAsk| ask.stage == AskStage::Unsent;
            let next = record.asks.iter().take(MAX_ASKS_WAITING).position(unsent);
            let Some(ask) = next.and_then(|at| record.asks.get_mut(at)) else {
                record.pending.asks = false;
                return Ok(());
            };
            // Set before the send, which may hold the command back: it must not be sent twice.
            ask.stage = AskStage::Sent;
            let (reply_id, content) = (ask.reply_id, &mut *ask.content);
            let prompt = content.prompt.clone();
            // The prompt stays for the turn of the exchange, the options are not needed any more.
            let options = std::mem::take(&mut content.options);
            self.send(Command::Ask { agent: id, reply_id, prompt, options }, outbox)?;
        }
    }

    /// Sends a command or, if the mailbox is full, holds it back as the first command of the next
    /// frame. In both cases the order is kept.
    pub(super) fn send(&mut self, command: Command, outbox: &mut Outbox) -> Result<(), NoMore> {
        let Some(client) = &self.client else { return Err(NoMore) };
        match client.try_send(command) {
            Ok(()) => {
                outbox.commands_left = outbox.commands_left.saturating_sub(1);
                if outbox.commands_left == 0 { Err(NoMore) } else { Ok(()) }
            }
            Err(TrySendError::Full(command)) => {
                self.held_back = Some(command);
                Err(NoMore)
            }
            Err(TrySendError::Closed(command)) => {
                self.engine_closed(command);
                Err(NoMore)
            }
        }
    }

    /// The engine is gone: an ask in this command ends here. The next frame ends the rest.
    fn engine_closed(&mut self, command: Command) {
        let state = self.client.as_ref().map(|client| WallaState::from(client.state()));
        if let Some(WallaState::Failed(error)) = state {
            self.failure.get_or_insert(error);
        }
        self.failure.get_or_insert(WallaError::Stopped);
        self.give_up(command);
    }

    /// Ends all asks that were not sent to the engine, and drops all pending changes. The engine
    /// ends the asks that were sent to it.
    fn give_up_all(&mut self) {
        if let Some(command) = self.held_back.take() {
            self.give_up(command);
        }
        let Some(gone) = self.engine_gone() else { return };
        while let Some(id) = self.pending_agents.pop_front() {
            let Some(record) = self.records.get_mut(&id) else { continue };
            record.pending = PendingChanges::default();
            // The engine still ends the sent ones.
            self.end_unsent(id, &gone);
            self.forget_if_done(id);
        }
    }

    /// Ends the ask in a command that cannot be sent any more.
    fn give_up(&mut self, command: Command) {
        let Command::Ask { agent, reply_id, .. } = command else { return };
        let Some(gone) = self.engine_gone() else { return };
        let Some(record) = self.records.get_mut(&agent) else { return };
        let Some(at) = record.asks.iter().position(|ask| ask.reply_id == reply_id) else {
            return;
        };
        let Some(ask) = record.asks.remove(at) else { return };
        let entity = record.entity;
        self.asks_waiting -= 1;
        self.local_ends.push_back(ask.into_local_end(entity, Err(gone)));
    }
}

impl Record {
    /// Number of pushed turns that follow an unsent ask.
    fn turns_behind_asks(&self) -> u32 {
        let unsent = self.asks.iter().find(|ask| ask.stage == AskStage::Unsent);
        unsent.map_or(0, |ask| ask.turns_after.into())
    }

    /// The conversation as the collect system saw it: turns that were pushed later wait for the
    /// next frame.
    ///
    /// `None` if it was replaced since then. The next collection treats this as an edit, even if
    /// the old conversation is back: two conversations can be swapped for the time between.
    fn collected_turns<'a>(&mut self, conversation: &'a Conversation) -> Option<&'a [Turn]> {
        if conversation.edit() != self.edit {
            // No edit has this id, so the next collection sees a new state.
            self.edit = EditId::NONE;
            return None;
        }
        let pushed = conversation.pushed().wrapping_sub(self.pushed);
        let turns = conversation.turns();
        turns.get(..turns.len().saturating_sub(pushed as usize))
    }

    /// The conversation without the turns at its end that have to wait for asks. `None` without
    /// the component, or if it was replaced since the collection: the engine keeps its own.
    fn turns_to_send(&mut self, conversation: Option<&Conversation>) -> Option<Vec<Turn>> {
        self.unsent_turns = self.turns_behind_asks();
        let conversation = conversation?;
        let turns = self.collected_turns(conversation)?;
        self.last_resent_reply = conversation.latest_reply();
        let end = turns.len().saturating_sub(self.unsent_turns as usize);
        turns.get(..end).map(<[Turn]>::to_vec)
    }

    /// Pushed turns that can be sent now; `None` without any.
    fn take_turns_due(&mut self, specs: &Specs) -> Option<Vec<Turn>> {
        let due = self.unsent_turns.saturating_sub(self.turns_behind_asks());
        if due == 0 || self.is_removed || !self.added {
            return None;
        }
        let unsent = self.unsent_turns as usize;
        self.unsent_turns -= due;
        let (_, conversation) = specs.get(self.entity).ok()?;
        // The oldest may have been dropped since: a conversation is bounded.
        let turns = self.collected_turns(conversation?)?;
        let end = turns.len().saturating_sub(self.unsent_turns as usize);
        let begin = turns.len().saturating_sub(unsent);
        (begin < end).then(|| turns[begin..end].to_vec())
    }
}
