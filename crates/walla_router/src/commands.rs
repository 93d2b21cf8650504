//! Commands of the host.

use std::time::Duration;

use walla_runtime::{
    AgentId, AgentSpec, Ask, CacheError, CacheTicket, Command, Event, FinishReason, History,
    MAX_ASKS_WAITING, ReplyError, ReplyEvent, ReplyId, ReplyInProgress, Usage,
};

use crate::agent::Agent;
use crate::child::{Child, find};
use crate::replies::micros;
use crate::state::State;

impl State {
    /// Whether a command must wait, because the engine that it concerns is behind.
    pub fn is_full(&self, command: &Command) -> bool {
        let Some(agent) = self.agents.get(&command.agent()) else {
            return self.children.iter().any(Child::is_full);
        };
        self.children.iter().any(|child| child.is_full() && agent.is_known_to(child.key))
    }

    pub fn command(&mut self, command: Command, now: Duration) {
        let agent = self.agents.get(&command.agent());
        // A removed agent is kept only for the end of its reply in progress.
        if agent.is_some_and(|agent| agent.is_removed) && !matches!(command, Command::Ask { .. }) {
            return;
        }
        match command {
            Command::AddAgent { agent, spec } => {
                self.agents.entry(agent).or_insert_with(|| Agent::new(spec));
                self.prepare(agent);
            }
            Command::ChangeAgent { agent, spec } => self.change(agent, spec),
            Command::SetDetail { agent: id, detail } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.spec.detail = detail;
                for child in &mut self.children {
                    if agent.is_known_to(child.key) {
                        child.send(Command::SetDetail { agent: id, detail });
                    }
                }
            }
            Command::SetConversation { agent: id, turns } => {
                // First, because turns between the asks belong to the old conversation.
                self.cancel_asks(id, |_| true);
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.replace(turns);
                self.conversation_changed(id);
            }
            Command::EditConversation { agent: id, edit } => {
                self.cancel_asks(id, |_| true);
                let copied = edit.source().and_then(|source| self.agents.get(&source));
                let copied =
                    copied.filter(|source| !source.is_removed).map(|source| source.history.copy());
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.edit(edit, copied);
                self.conversation_changed(id);
            }
            Command::ForkAgent { agent: id, source, spec } => {
                let known = self.agents.get(&source).filter(|source| !source.is_removed);
                let mut copy = match (spec, known) {
                    (Some(spec), _) => Agent::new(spec),
                    (None, Some(source)) => source.copy(),
                    (None, None) => return,
                };
                copy.fork_of = Some(source);
                self.agents.entry(id).or_insert(copy);
                self.prepare(id);
            }
            Command::AppendTurns { agent: id, turns } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                if agent.reply.is_some() || !agent.asks.is_empty() {
                    agent.asks.append_turns(turns, History::MAX_TURNS);
                } else {
                    agent.append(id, turns, &mut self.children);
                }
            }
            Command::CopyCache { agent: id, ticket } => self.copy_cache(id, ticket),
            Command::RemoveAgent { agent: id } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.is_removed = true;
                if let Some(reply) = &mut agent.reply {
                    reply.is_cancelled = true;
                }
                agent.leave(id, &mut self.children, |_| false);
                self.cancel_asks(id, |_| true);
                self.forget_if_done(id);
            }
            Command::Ask { agent: id, reply_id, prompt, options } => {
                let ask = Ask::new(reply_id, prompt, options, micros(now));
                match self.agents.get_mut(&id).filter(|agent| !agent.is_removed) {
                    None => self.fail(id, reply_id, ReplyError::UnknownAgent),
                    Some(agent) if agent.asks.len() >= MAX_ASKS_WAITING => {
                        let waiting = MAX_ASKS_WAITING as u32;
                        self.fail(id, reply_id, ReplyError::Busy { waiting });
                    }
                    Some(agent) => {
                        agent.asks.push(ask);
                        self.begin_asks(id, now);
                    }
                }
            }
            Command::Cancel { agent, reply_id } => self.cancel(agent, reply_id, None),
            Command::CancelHeard { agent, reply_id, heard_bytes } => {
                self.cancel(agent, reply_id, Some(heard_bytes));
            }
        }
    }

    /// Passes a save or a load to the engine of an agent's reply, or to its next engine.
    fn copy_cache(&mut self, id: AgentId, ticket: CacheTicket) {
        let Some(agent) = self.agents.get(&id) else {
            return ticket.fail(CacheError::UnknownAgent);
        };
        if ticket.is_load() && (agent.reply.is_some() || !agent.asks.is_empty()) {
            return ticket.fail(CacheError::Asked);
        }
        let next = agent.spec.route.engine.as_ref().unwrap_or(&self.default).clone();
        let on = agent.reply.as_ref().map(|reply| reply.on).or_else(|| self.key_of(&next));
        let known = on.filter(|key| self.agents.get(&id).is_some_and(|a| a.is_known_to(*key)));
        match known.and_then(|key| self.child(key)) {
            Some(child) => child.send(Command::CopyCache { agent: id, ticket }),
            None => ticket.fail(CacheError::UnknownAgent),
        }
    }

    /// Sends a changed conversation to the engine of an agent's reply, or to its next engine.
    fn conversation_changed(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let on = agent.reply.as_ref().map(|reply| reply.on);
        if let Some(child) = self.children.iter_mut().find(|child| Some(child.key) == on) {
            agent.sync(id, child);
        }
        self.prepare(id);
    }

    fn change(&mut self, id: AgentId, spec: Box<AgentSpec>) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let has_moved = agent.spec.route.engine != spec.route.engine;
        agent.change(spec);
        let in_progress = agent.reply.as_ref().map(|reply| (reply.on, reply.reply_id));
        let Some((on, reply_id)) = in_progress else {
            for child in &mut self.children {
                agent.sync_spec(id, child);
            }
            return self.prepare(id);
        };
        let cancels = agent.spec.route.reply_in_progress == ReplyInProgress::Cancel;
        if let Some(child) = find(&mut self.children, on) {
            agent.sync_spec(id, child);
        }
        if has_moved && cancels {
            self.cancel(id, reply_id, None);
        }
    }

    /// Ends waiting asks as cancelled.
    pub fn cancel_asks(&mut self, id: AgentId, matches: impl Fn(ReplyId) -> bool) -> bool {
        let Some(agent) = self.agents.get_mut(&id) else { return false };
        let cancelled = agent.asks.cancel(matches);
        let (reason, usage) = (FinishReason::Cancelled, Usage::default());
        let what = ReplyEvent::Finished { reason, usage };
        let end = |ask: &Ask| Event { agent: id, reply_id: ask.reply_id, what: what.clone() };
        self.ready.extend(cancelled.iter().map(end));
        self.settle(id);
        !cancelled.is_empty()
    }

    pub fn cancel(&mut self, id: AgentId, reply_id: ReplyId, heard_bytes: Option<u32>) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if let Some(reply) = agent.reply.as_mut().filter(|reply| reply.reply_id == reply_id) {
            reply.is_cancelled = true;
            reply.heard_bytes = reply.heard_bytes.min(heard_bytes.unwrap_or(u32::MAX));
            // A substitute has only a part of the text.
            let command = match heard_bytes.filter(|_| reply.first_token_micros.is_none()) {
                Some(heard_bytes) => Command::CancelHeard { agent: id, reply_id, heard_bytes },
                None => Command::Cancel { agent: id, reply_id },
            };
            let on = reply.on;
            if let Some(child) = self.child(on) {
                child.send(command);
            }
            return;
        }
        if !self.cancel_asks(id, |known| known == reply_id)
            && let Some(heard_bytes) = heard_bytes
            && let Some(agent) = self.agents.get_mut(&id)
        {
            agent.shorten(reply_id, heard_bytes);
            self.prepare(id);
        }
    }

    /// Moves appended turns into the conversation once no ask precedes them.
    pub fn settle(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if agent.reply.is_none() && agent.asks.is_empty() {
            let turns = agent.asks.take_turns_after();
            agent.append(id, turns, &mut self.children);
        }
    }

    pub fn forget_if_done(&mut self, id: AgentId) {
        if self.agents.get(&id).is_some_and(|agent| agent.is_removed && agent.reply.is_none()) {
            self.agents.remove(&id);
        }
    }
}
