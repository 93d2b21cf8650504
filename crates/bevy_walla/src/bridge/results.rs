//! Results of calls: which call they belong to, and when their agent continues.
//!
//! Rules:
//! 1. A result is taken once, if its call is in the agent's conversation, or was made by its reply
//!    in progress. Any other one is refused, with an event that has its text.
//! 2. The agent continues when the reply with the call has ended and each of its calls has a
//!    result, or a certain time after the first result ([`AgentActions::result_wait`]).

use std::time::{Duration, Instant};

use bevy_ecs::entity::EntityHashSet;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
use bevy_ecs::system::{NonSendMarker, SystemParam};
use bevy_time::{Time, Virtual};
use walla_runtime::{
    AgentId, CallId, MAX_EXCHANGES_KNOWN, ResultError, Speaker, Turn, check_result,
};

use super::forward::open_ask;
use super::{AskId, EngineBridge, Record, announce};
use crate::actions::{ActionResult, AgentActions, ResultRefused};
use crate::agent::Agent;
use crate::ask::Ask;
use crate::conversation::Conversation;
use crate::speech::Speech;

/// A reply with calls.
pub(super) struct Acted {
    ask: AskId,
    /// Its calls so far, and whether they have a result.
    calls: Vec<(CallId, bool)>,
    stage: ActedStage,
    /// Time of the first result that the agent has not heard.
    since: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActedStage {
    Speaking,
    Over,
    Cancelled,
}

impl Acted {
    /// Whether the agent continues now. Without `wait` only if all calls have results.
    fn is_due(&self, now: Duration, wait: Option<Duration>) -> bool {
        let Some(since) = self.since else { return false };
        let is_late = wait.is_some_and(|wait| now.saturating_sub(since) >= wait);
        self.stage == ActedStage::Over
            && (is_late || self.calls.iter().all(|(_, is_answered)| *is_answered))
    }
}

/// Agents that hear results.
#[derive(SystemParam)]
pub(crate) struct Hearers<'w, 's> {
    conversations: Query<'w, 's, &'static mut Conversation, Allow<Disabled>>,
    bridge: ResMut<'w, EngineBridge>,
    time: Option<Res<'w, Time<Virtual>>>,
    refused: MessageWriter<'w, ResultRefused>,
    commands: Commands<'w, 's>,
}

impl Hearers<'_, '_> {
    fn now(&self) -> Duration {
        let real = || self.bridge.results.begun.elapsed();
        self.time.as_ref().map_or_else(real, |time| time.elapsed())
    }

    /// Adds a result to the agent's conversation, or refuses it. Returns the ask that lets the
    /// agent go on speaking, if it does so at once.
    fn take(&mut self, result: &ActionResult) -> Option<Ask> {
        let now = self.now();
        let mut conversation = self.conversations.get_mut(result.agent).ok();
        if let Err(reason) = self.bridge.check_result(result, conversation.as_deref()) {
            let ActionResult { agent, id, text } = result.clone();
            let refused = ResultRefused { agent, id, text, reason };
            announce(&mut self.commands, &mut self.refused, refused);
            return None;
        }
        self.bridge.know_acted(result, conversation.as_deref());
        if let Some(conversation) = &mut conversation {
            conversation.push_turn(Turn::result(result.id, result.text.clone()));
        }
        self.bridge.result_added(result, now)
    }
}

/// Takes a result that was triggered.
pub(crate) fn forward_action_result(
    result: On<ActionResult>,
    mut results: ResMut<Messages<ActionResult>>,
    mut hearers: Hearers,
) {
    let result = result.event();
    hearers.bridge.results.taken.push(results.write(result.clone()).id);
    if let Some(ask) = hearers.take(result) {
        hearers.commands.trigger(ask);
    }
}

/// Takes results that a system wrote as messages, and lets agents go on that have waited.
pub(crate) fn take_result_messages(
    mut results: MessageReader<ActionResult>,
    mut hearers: Hearers,
    actions: Query<&AgentActions, Allow<Disabled>>,
    mut asks: ResMut<Messages<Ask>>,
    mut speeches: Query<&mut Speech, (With<Agent>, Allow<Disabled>)>,
    _here: NonSendMarker,
) {
    for (result, number) in results.read_with_id() {
        if hearers.bridge.results.forget_taken(number.id) {
            continue;
        }
        if let Some(ask) = hearers.take(result) {
            open_ask(ask, &mut asks, &mut speeches);
        }
    }
    let now = hearers.now();
    let wait_of =
        |agent| actions.get(agent).map_or(AgentActions::RESULT_WAIT, AgentActions::current_wait);
    hearers.bridge.go_on(now, wait_of, |ask| open_ask(ask, &mut asks, &mut speeches));
}

/// Results of this frame, and agents that wait for more.
pub(super) struct Results {
    /// Messages of results that an observer has taken.
    taken: Vec<usize>,
    /// Agents that go on speaking after results of this frame.
    pub heard_this_frame: EntityHashSet,
    /// Agents with results that they have not heard.
    waiting: Vec<Entity>,
    begun: Instant,
}

impl Default for Results {
    fn default() -> Self {
        let (taken, waiting) = (Vec::new(), Vec::new());
        Self { taken, heard_this_frame: EntityHashSet::default(), waiting, begun: Instant::now() }
    }
}

impl Results {
    /// Whether an observer has taken this message, for the last time.
    fn forget_taken(&mut self, id: usize) -> bool {
        let at = self.taken.iter().position(|taken| *taken == id);
        at.map(|at| self.taken.swap_remove(at)).is_some()
    }
}

impl EngineBridge {
    /// Whether a result can be taken.
    fn check_result(
        &self,
        result: &ActionResult,
        conversation: Option<&Conversation>,
    ) -> Result<(), ResultError> {
        let id = result.id;
        let record = self.id_by_entity.get(&result.agent).and_then(|id| self.records.get(id));
        let acted = record.and_then(|record| record.acted_of(id));
        if acted.is_some_and(|acted| acted.stage == ActedStage::Cancelled) {
            return Err(ResultError::Cancelled(id));
        }
        let known = acted.and_then(|acted| acted.calls.iter().find(|(call, _)| *call == id));
        let by_reply = match known {
            None => Err(ResultError::Unknown(id)),
            Some((_, true)) => Err(ResultError::Repeated(id)),
            Some((_, false)) => Ok(()),
        };
        let Some(conversation) = conversation else { return by_reply };
        match check_result(conversation.turns(), id) {
            // The calls of a reply in progress become turns when it ends.
            Err(ResultError::Unknown(_))
                if acted.is_some_and(|acted| acted.stage == ActedStage::Speaking)
                    && record.is_some_and(|record| record.edit == conversation.edit()) =>
            {
                by_reply
            }
            checked => checked,
        }
    }

    /// Remembers the calls of a reply that are only in the conversation, as after a load.
    fn know_acted(&mut self, result: &ActionResult, conversation: Option<&Conversation>) {
        let Some(conversation) = conversation else { return };
        let Some(record) = self.record_of(result.agent) else { return };
        if record.acted_of(result.id).is_some() {
            return;
        }
        let reply_id = result.id.reply_id;
        let of_reply = |turn: &&Turn| turn.speaker == Speaker::Action;
        let calls = conversation.turns().iter().filter(of_reply).filter_map(|turn| turn.call);
        let calls = calls.filter(|call| call.reply_id == reply_id);
        let calls = calls.map(|call| (call, check_result(conversation.turns(), call).is_err()));
        let (ask, calls) = (AskId { reply_id, tag: 0 }, calls.collect());
        record.push_acted(Acted { ask, calls, stage: ActedStage::Over, since: None });
    }

    /// A result became a turn. Returns the ask that lets the agent go on speaking, if it does so at
    /// once.
    fn result_added(&mut self, result: &ActionResult, now: Duration) -> Option<Ask> {
        let record = self.record_of(result.agent);
        // Without a record there is nothing to wait for.
        let mut tag = Some(0);
        if let Some(record) = record
            && let Some(acted) = record.acted_of_mut(result.id)
        {
            let its = acted.calls.iter_mut().filter(|(call, _)| *call == result.id);
            its.for_each(|(_, is_answered)| *is_answered = true);
            acted.since.get_or_insert(now);
            tag = record.hear(now, None);
        }
        let Some(tag) = tag else {
            if !self.results.waiting.contains(&result.agent) {
                self.results.waiting.push(result.agent);
            }
            return None;
        };
        // Several results of one frame lead to one reply.
        let is_first = self.results.heard_this_frame.insert(result.agent);
        is_first.then(|| Ask::resume(result.agent).with_tag(tag))
    }

    /// The ask that lets an agent go on speaking whose reply has ended now, if each of its calls
    /// has a result.
    pub(super) fn heard_all(&mut self, id: AgentId) -> Option<Ask> {
        let record = self.records.get_mut(&id).filter(|record| !record.is_removed)?;
        let tag = record.hear(Duration::ZERO, None)?;
        Some(Ask::resume(record.entity).with_tag(tag))
    }

    /// Lets the agents go on that have waited long enough.
    fn go_on(
        &mut self,
        now: Duration,
        wait_of: impl Fn(Entity) -> Duration,
        mut ask: impl FnMut(Ask),
    ) {
        let mut waiting = std::mem::take(&mut self.results.waiting);
        waiting.retain(|&agent| {
            let Some(record) = self.record_of(agent) else { return false };
            let heard = record.hear(now, Some(wait_of(agent)));
            let waits = record.acted.iter().any(|acted| acted.since.is_some());
            if let Some(tag) = heard
                && self.results.heard_this_frame.insert(agent)
            {
                ask(Ask::resume(agent).with_tag(tag));
            }
            waits
        });
        self.results.waiting = waiting;
    }

    /// A cancel: the results of calls of the reply in progress are refused from now on, and the
    /// agent does not go on after earlier results.
    pub(super) fn cancel_results(&mut self, agent: Entity) {
        // A later result in this frame leads to a separate reply.
        self.results.heard_this_frame.remove(&agent);
        let Some(record) = self.record_of(agent) else { return };
        for acted in &mut record.acted {
            acted.since = None;
            if acted.stage == ActedStage::Speaking {
                acted.stage = ActedStage::Cancelled;
            }
        }
    }
}

impl Record {
    fn acted_of(&self, id: CallId) -> Option<&Acted> {
        self.acted.iter().find(|acted| acted.ask.reply_id == id.reply_id)
    }

    fn acted_of_mut(&mut self, id: CallId) -> Option<&mut Acted> {
        self.acted.iter_mut().find(|acted| acted.ask.reply_id == id.reply_id)
    }

    /// Marks the results as heard for which the agent continues now. Returns the tag of the latest
    /// ask that led to their calls.
    fn hear(&mut self, now: Duration, wait: Option<Duration>) -> Option<u64> {
        let mut tag = None;
        for acted in self.acted.iter_mut().filter(|acted| acted.is_due(now, wait)) {
            acted.since = None;
            tag = Some(acted.ask.tag);
        }
        tag
    }

    fn push_acted(&mut self, acted: Acted) {
        if self.acted.len() >= MAX_EXCHANGES_KNOWN {
            self.acted.pop_front();
        }
        self.acted.push_back(acted);
    }

    /// Remembers a call of the reply in progress, for its result.
    pub(super) fn remember_call(&mut self, ask: AskId, id: CallId) {
        match self.acted_of_mut(id) {
            Some(acted) => acted.calls.push((id, false)),
            None => {
                let stage = ActedStage::Speaking;
                self.push_acted(Acted { ask, calls: vec![(id, false)], stage, since: None });
            }
        }
    }

    /// The reply has ended.
    pub(super) fn reply_acted(&mut self, ask: AskId, is_cancelled: bool) {
        let of_reply = |acted: &&mut Acted| acted.ask.reply_id == ask.reply_id;
        if let Some(acted) = self.acted.iter_mut().find(of_reply)
            && acted.stage == ActedStage::Speaking
        {
            acted.stage = if is_cancelled { ActedStage::Cancelled } else { ActedStage::Over };
        }
    }

    /// Forgets the calls that are not in an edited conversation.
    pub(super) fn keep_acted(&mut self, conversation: &Conversation) {
        self.acted.retain(|acted| {
            let mut calls = conversation.turns().iter().filter_map(|turn| turn.call);
            acted.stage != ActedStage::Speaking
                && calls.any(|call| call.reply_id == acted.ask.reply_id)
        });
    }
}
