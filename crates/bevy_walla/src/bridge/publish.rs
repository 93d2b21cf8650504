use std::sync::Arc;

use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::system::{NonSendMarker, SystemParam};
use walla_runtime::{
    AgentId, Call, Event, FinishReason, InlineText, RefusedCall, ReplyError, ReplyEvent,
    TokenLogprobs, Usage,
};
use walla_trace::Stage;

use super::cues::Separation;
use super::{
    AskContent, AskId, AskStage, EngineBridge, LocalEnd, OpenAsk, Record, Stopwatch,
    is_in_conversation,
};
#[cfg(feature = "actions")]
use crate::action_types::publish_typed;
use crate::actions::{AgentCalled, CallRefused, SimulatedCall};
use crate::conversation::{Conversation, NewExchange, cut_text};
use crate::cues::{AgentCues, ReplyCue};
use crate::error::WallaError;
use crate::fork::Simulation;
use crate::reply::{
    ReplyDelta, ReplyFailed, ReplyFinished, ReplyReasoning, ReplyScores, ReplyStarted, ReplyToken,
    TurnsDropped,
};
use crate::sentence::{ReplySentence, end_of};
use crate::settings::WallaSettings;
use crate::speech::Speech;
use crate::state::WallaState;
use crate::walla::{Walla, WallaFailed, WallaReady};

/// Maximum number of events received at once; the device thread publishes them in batches.
pub(super) const EVENTS_AT_ONCE: u32 = 64;

/// Components that the plugin writes. The game may have removed either. Separate queries, because
/// most events concern the speech alone.
#[derive(SystemParam)]
pub(crate) struct Voices<'w, 's> {
    speeches: Query<'w, 's, &'static mut Speech, Allow<Disabled>>,
    conversations: Query<'w, 's, &'static mut Conversation, Allow<Disabled>>,
    simulations: Query<'w, 's, (), (With<Simulation>, Allow<Disabled>)>,
    cues: Query<'w, 's, &'static AgentCues, Allow<Disabled>>,
}

impl Voices<'_, '_> {
    /// The speech of an agent. A record of a removed agent has none: the entity may be an agent
    /// again, with another record.
    fn speech(&mut self, record: &Record) -> Option<Mut<'_, Speech>> {
        if record.is_removed { None } else { self.speeches.get_mut(record.entity).ok() }
    }

    /// The speech and the conversation of an agent, as in [`Self::speech`].
    fn both(
        &mut self,
        record: &Record,
    ) -> (Option<Mut<'_, Speech>>, Option<Mut<'_, Conversation>>) {
        if record.is_removed {
            return (None, None);
        }
        let Self { speeches, conversations, .. } = self;
        (speeches.get_mut(record.entity).ok(), conversations.get_mut(record.entity).ok())
    }
}

/// Receives the engine's events since the last frame and publishes components, messages and events.
pub(crate) fn publish(
    mut bridge: ResMut<EngineBridge>,
    mut walla: ResMut<Walla>,
    settings: Res<WallaSettings>,
    mut voices: Voices,
    mut out: Announcer,
    _here: NonSendMarker,
) {
    let watch = Stopwatch::start(Stage::Publish);
    let bridge = &mut *bridge;
    bridge.publishes_fragments = settings.publish_fragments;
    // Before the events: a game learns that the engine is ready before the first reply begins.
    bridge.publish_state(&mut walla, &mut out);
    let mut events_left = settings.max_events_per_frame.max(1);
    while events_left > 0
        && let Some(ended) = bridge.local_ends.pop_front()
    {
        events_left -= 1;
        bridge.publish_local_end(ended, &mut voices, &mut out);
    }
    // Taken, because events change the bridge; put back behind the loop, with its capacity.
    let mut inbox = std::mem::take(&mut bridge.inbox);
    while events_left > 0
        && let Some(client) = &bridge.client
    {
        client.try_recv_many(events_left.min(EVENTS_AT_ONCE) as usize, &mut inbox);
        if inbox.is_empty() {
            break;
        }
        events_left -= inbox.len() as u32;
        for event in &mut inbox {
            bridge.apply_event(event, &mut voices, &mut out);
        }
        inbox.clear();
    }
    bridge.inbox = inbox;
    bridge.host_times.publish = watch.read();
}

/// A sentence of a reply.
pub(super) struct Sentence<'a> {
    pub text: &'a str,
    pub end_bytes: u32,
    pub is_fragment: bool,
}

/// End of a reply, for its text.
#[derive(Clone, Copy)]
struct End {
    /// The model ended the reply, perhaps without text. A reply with only reasoning is not an
    /// answer.
    is_finished: bool,
    /// The text may end within a sentence.
    is_cut: bool,
    /// Publish a truncated sentence.
    publishes_fragment: bool,
}

/// How the engine has ended an ask.
type Outcome = Result<(FinishReason, Usage), ReplyError>;

impl End {
    /// `publishes_fragments`: a copy of `WallaSettings::publish_fragments`.
    fn new(outcome: &Outcome, publishes_fragments: bool) -> Self {
        let Ok((reason, usage)) = outcome else {
            let publishes_fragment = publishes_fragments;
            return Self { is_finished: false, is_cut: true, publishes_fragment };
        };
        let is_complete = *reason != FinishReason::Cancelled;
        Self {
            // Reasoning without any speech is not an answer, here as in the engine.
            is_finished: is_complete && usage.reasoning_tokens == 0,
            is_cut: matches!(
                reason,
                FinishReason::Cancelled
                    | FinishReason::Length
                    | FinishReason::CallLimit
                    | FinishReason::ReasoningLength
                    | FinishReason::ContextFull
                    | FinishReason::TimedOut
            ),
            publishes_fragment: is_complete || publishes_fragments,
        }
    }
}

/// Outputs to the game.
#[derive(SystemParam)]
pub(crate) struct Announcer<'w, 's> {
    pub(super) commands: Commands<'w, 's>,
    ready: MessageWriter<'w, WallaReady>,
    failed: MessageWriter<'w, WallaFailed>,
    reply_started: MessageWriter<'w, ReplyStarted>,
    pub(super) reply_delta: MessageWriter<'w, ReplyDelta>,
    pub(super) reply_cue: MessageWriter<'w, ReplyCue>,
    reply_reasoning: MessageWriter<'w, ReplyReasoning>,
    reply_sentence: MessageWriter<'w, ReplySentence>,
    reply_token: MessageWriter<'w, ReplyToken>,
    reply_scores: MessageWriter<'w, ReplyScores>,
    called: MessageWriter<'w, AgentCalled>,
    simulated: MessageWriter<'w, SimulatedCall>,
    call_refused: MessageWriter<'w, CallRefused>,
    turns_dropped: MessageWriter<'w, TurnsDropped>,
    reply_finished: MessageWriter<'w, ReplyFinished>,
    reply_failed: MessageWriter<'w, ReplyFailed>,
}

impl Announcer<'_, '_> {
    pub(super) fn said(
        &mut self,
        agent: Entity,
        AskId { reply_id, tag }: AskId,
        sentence: Sentence<'_>,
    ) {
        let mut text = InlineText::new();
        text.push(sentence.text); // never truncated: the splitter's sentences are not longer
        let Sentence { end_bytes, is_fragment, .. } = sentence;
        let spoken = ReplySentence { agent, reply_id, tag, text, end_bytes, is_fragment };
        announce(&mut self.commands, &mut self.reply_sentence, spoken);
    }

    fn called(&mut self, agent: Entity, AskId { reply_id, tag }: AskId, call: Arc<Call>) {
        let called = AgentCalled { agent, reply_id, tag, call };
        #[cfg(feature = "actions")]
        {
            let called = called.clone();
            self.commands.queue(move |world: &mut World| publish_typed(world, &called));
        }
        announce(&mut self.commands, &mut self.called, called);
    }

    fn finished(&mut self, agent: Entity, AskId { reply_id, tag }: AskId, outcome: Outcome) {
        let Self { commands, .. } = self;
        match outcome {
            Ok((reason, usage)) => {
                let finished = ReplyFinished { agent, reply_id, tag, reason, usage };
                announce(commands, &mut self.reply_finished, finished);
            }
            Err(error) => {
                let failed = ReplyFailed { agent, reply_id, tag, error };
                announce(commands, &mut self.reply_failed, failed);
            }
        }
    }
}

/// Publishes an event in both forms: as a message, and for observers.
pub(crate) fn announce<E>(commands: &mut Commands, messages: &mut MessageWriter<E>, event: E)
where
    E: Message + Clone + for<'t> bevy_ecs::event::Event<Trigger<'t>: Default>,
{
    messages.write(event.clone());
    commands.trigger(event);
}

impl EngineBridge {
    /// Publishes once that the engine is ready, or that it failed.
    fn publish_state(&mut self, walla: &mut Walla, out: &mut Announcer) {
        let state = match (&self.failure, &self.client) {
            (Some(failure), _) => WallaState::Failed(failure.clone()),
            (None, Some(client)) => client.state().into(),
            (None, None) => WallaState::Failed(WallaError::Stopped),
        };
        match &state {
            WallaState::Ready if !self.was_ready => {
                self.was_ready = true;
                let ready =
                    WallaReady { template: walla.model().map(|model| model.template.clone()) };
                announce(&mut out.commands, &mut out.ready, ready);
            }
            WallaState::Failed(error) if !walla.is_failed() => {
                if self.client.is_none() {
                    // The engine, which reports its other errors, did not begin.
                    tracing::error!(target: "walla::load", %error, "there is no engine");
                }
                self.failure = Some(error.clone());
                let failed = WallaFailed { error: error.clone() };
                announce(&mut out.commands, &mut out.failed, failed);
            }
            _ => {}
        }
        let stats = self.client.as_ref().map(|client| client.stats()).unwrap_or_default();
        self.has_background = stats.background_agents > 0;
        walla.update(state, stats, self.host_times, (self.asks_waiting, self.events_unknown));
    }

    /// Publishes the end of an ask that was not sent to the engine.
    fn publish_local_end(&mut self, mut ended: LocalEnd, voices: &mut Voices, out: &mut Announcer) {
        if !ended.removed.is_empty()
            && let Ok(mut conversation) = voices.conversations.get_mut(ended.entity)
        {
            self.restore_ended(&mut ended, &mut conversation);
        }
        let LocalEnd { entity, ask, outcome, .. } = ended;
        if let Ok(speech) = voices.speeches.get_mut(entity) {
            let record = self.id_by_entity.get(&entity).and_then(|id| self.records.get(id));
            Speech::end_unbegun(speech, record.is_some_and(Record::is_asked_more));
        }
        out.finished(entity, ask, outcome.map(|reason| (reason, Usage::default())));
    }

    /// Publishes an event. The event is not moved: a processor cannot forward the stores of a copy
    /// to loads at other offsets, so such loads wait for all earlier stores and their cache misses.
    fn apply_event(&mut self, event: &mut Event, voices: &mut Voices, out: &mut Announcer) {
        let of_event = |ask: &OpenAsk| ask.reply_id == event.reply_id;
        let Some((record, at)) = self.records.get_mut(&event.agent).and_then(|record| {
            // Nearly always the oldest ask.
            let is_first = record.asks.front().is_some_and(of_event);
            let at = if is_first { 0 } else { record.asks.iter().position(of_event)? };
            Some((record, at))
        }) else {
            self.events_unknown += 1;
            return;
        };
        let (agent, reply_id) = (record.entity, event.reply_id);
        match &mut event.what {
            &mut ReplyEvent::Started { prompt_tokens } => {
                let tag = record.tag_of(at);
                record.begin_cues(at, voices.cues.get(agent).ok());
                let mut speech = voices.speech(record).filter(|_| !record.is_aside(at));
                self.asks_waiting -= usize::from(record.started(at, speech.as_deref_mut()));
                let started = ReplyStarted { agent, reply_id, tag, prompt_tokens };
                announce(&mut out.commands, &mut out.reply_started, started);
            }
            ReplyEvent::Delta { text, tokens } => {
                let mut speech = voices.speech(record).filter(|_| !record.is_aside(at));
                if record.cues.is_some() {
                    let delta = Ok((&**text, *tokens));
                    return record.push_separated(at, delta, speech.as_deref_mut(), out);
                }
                let tag = record.tag_of(at);
                let delta = || ReplyDelta { agent, reply_id, tag, text: *text, tokens: *tokens };
                out.reply_delta.write(delta());
                out.commands.trigger(delta());
                let say = |s: Sentence| out.said(agent, AskId { reply_id, tag }, s);
                record.push_text(at, text, speech.as_deref_mut(), say);
            }
            ReplyEvent::Reasoning { text, tokens } => {
                let (text, tokens) = (*text, *tokens);
                let tag = record.tag_of(at);
                let reasoning = ReplyReasoning { agent, reply_id, tag, text, tokens };
                announce(&mut out.commands, &mut out.reply_reasoning, reasoning);
            }
            ReplyEvent::Call(call) => {
                let Some(ask) = record.asks.get(at).map(OpenAsk::id) else { return };
                record.actions.push(call.turn());
                let (id, name) = (call.id, std::mem::take(&mut call.name));
                let arguments = std::mem::take(&mut call.arguments);
                let call = Arc::new(Call { id, name, arguments });
                // The engine may still deliver calls of a reply that the game has replaced.
                let is_current =
                    record.asks.get(at).is_some_and(|ask| !ask.outdated && !ask.content.is_aside);
                if is_current {
                    record.remember_call(ask, id);
                }
                if voices.simulations.contains(agent) {
                    let AskId { reply_id, tag } = ask;
                    let called = SimulatedCall { agent, reply_id, tag, call };
                    announce(&mut out.commands, &mut out.simulated, called);
                } else {
                    out.called(agent, ask, call);
                }
            }
            ReplyEvent::CallRefused(refused) => {
                let tag = record.tag_of(at);
                let RefusedCall { id, call } = &**refused;
                let (text, reason) = (call.text.clone(), call.error.to_string());
                let refused = CallRefused { agent, id: *id, tag, text, reason };
                announce(&mut out.commands, &mut out.call_refused, refused);
            }
            ReplyEvent::Token(logprobs) => {
                let candidates = std::mem::take(&mut logprobs.candidates);
                let logprobs = Arc::new(TokenLogprobs { candidates, ..**logprobs });
                let tag = record.tag_of(at);
                let drawn = ReplyToken { agent, reply_id, tag, logprobs };
                announce(&mut out.commands, &mut out.reply_token, drawn);
            }
            ReplyEvent::Score(score) => {
                if let Some(ask) = record.asks.get_mut(at) {
                    ask.content.scores.push(*score);
                }
            }
            &mut ReplyEvent::Finished { reason, usage } => {
                if reason == FinishReason::Scored {
                    let tag = record.tag_of(at);
                    let scores = record.asks.get_mut(at).map(|ask| &mut ask.content.scores);
                    let scores = scores.map(std::mem::take).unwrap_or_default().into();
                    let scores = ReplyScores { agent, reply_id, tag, scores };
                    announce(&mut out.commands, &mut out.reply_scores, scores);
                }
                self.finish_ask((event.agent, at), Ok((reason, usage)), voices, out);
            }
            ReplyEvent::Failed(error) => {
                self.finish_ask((event.agent, at), Err(error.clone()), voices, out);
            }
            _ => {} // details for recordings
        }
    }

    /// Ends an agent's ask at this index, and publishes its end.
    fn finish_ask(
        &mut self,
        (id, at): (AgentId, usize),
        outcome: Outcome,
        voices: &mut Voices,
        out: &mut Announcer,
    ) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let Some(ending) = record.asks.get(at) else { return };
        let (ask, has_started) = (OpenAsk::id(ending), ending.stage == AskStage::Started);
        let agent = record.entity;
        // Another ask may have the text that is held: one that waits can end before it.
        if record.cues.is_some() && has_started {
            let mut speech = voices.speech(record);
            // A reply that has failed is cut off.
            let reason = outcome.as_ref().map_or(FinishReason::Cancelled, |(reason, _)| *reason);
            record.push_separated(at, Err(reason), speech.as_deref_mut(), out);
        }
        let end = End::new(&outcome, self.publishes_fragments);
        let say = |s: Sentence| out.said(agent, ask, s);
        let has_begun = record.end(at, voices, end, say);
        // Behind the end of the exchange: the turns of its calls are in the conversation now.
        record.reply_acted(ask, matches!(outcome, Ok((FinishReason::Cancelled, _))));
        // Asked before the end is published, so that the agent is not silent between them.
        if let Some(ask) = self.heard_all(id) {
            out.commands.trigger(ask);
        }
        // An ask that has begun was subtracted at its begin.
        self.asks_waiting -= usize::from(!has_begun);
        if let Ok((_, Usage { dropped_turns: turns @ 1.., .. })) = outcome {
            let dropped = TurnsDropped { agent, reply_id: ask.reply_id, turns };
            announce(&mut out.commands, &mut out.turns_dropped, dropped);
        }
        out.finished(agent, ask, outcome);
        self.resync(id);
    }

    /// Resynchronises after the end of an ask: removes the record of an agent that is gone, sends
    /// an ask that now has capacity, and sends the conversation if the engine's copy may differ.
    pub(super) fn resync(&mut self, id: AgentId) {
        self.forget_if_done(id);
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.asks.back().is_some_and(|ask| ask.stage == AskStage::Unsent) {
            record.pending.asks = true;
            self.mark_pending(id);
        } else if record.resend_when_idle() {
            self.mark_pending(id);
        }
    }
}

impl Record {
    fn tag_of(&self, at: usize) -> u64 {
        self.asks.get(at).map_or(0, |ask| ask.tag)
    }

    pub(super) fn is_aside(&self, at: usize) -> bool {
        self.asks.get(at).is_some_and(|ask| ask.content.is_aside)
    }

    /// Marks an ask as started. Returns whether it had been waiting.
    fn started(&mut self, at: usize, speech: Option<&mut Speech>) -> bool {
        let Some(ask) = self.asks.get_mut(at) else { return false };
        let waited = std::mem::replace(&mut ask.stage, AskStage::Started) != AskStage::Started;
        // A former reply may have failed within a sentence.
        self.sentences.clear();
        self.sentence_end = 0;
        self.actions.clear();
        // An ask that was cancelled before it began: the engine is sent 0 as well.
        self.heard_bytes = if ask.is_shortened { 0 } else { u32::MAX };
        if let Some(speech) = speech {
            speech.begin(ask.content.prompt.text());
        }
        waited
    }

    /// Whether a reply that ends is an answer. It is none if it failed or was cancelled before its
    /// first text, or if the player heard nothing.
    fn is_answered(&self, at: usize, end: End, heard_bytes: Option<u32>) -> bool {
        let Some(ask) = self.asks.get(at).filter(|ask| ask.stage == AskStage::Started) else {
            return false;
        };
        let heard = heard_bytes.map_or(usize::MAX, |bytes| bytes as usize);
        let has_spoken = ask.turn.floor_char_boundary(heard) > 0 || !self.actions.is_empty();
        (end.is_finished && heard_bytes.is_none()) || has_spoken
    }

    fn push_text(
        &mut self,
        at: usize,
        text: &str,
        speech: Option<&mut Speech>,
        mut say: impl FnMut(Sentence<'_>),
    ) {
        if let Some(speech) = speech {
            speech.push_text(text);
        }
        let Self { asks, sentences, sentence_end, .. } = self;
        let Some(ask) = asks.get_mut(at).filter(|ask| !ask.content.is_aside) else { return };
        ask.turn.push_str(text);
        sentences.push(text, |text| {
            *sentence_end = end_of(text, &ask.turn, *sentence_end);
            say(Sentence { text, end_bytes: *sentence_end as u32, is_fragment: false });
        });
    }

    /// Closes an ask and adds the exchange to the conversation, if the agent has one. Returns
    /// whether the reply had begun.
    ///
    /// A reply that failed or was cancelled before its first text is not an exchange, here as in
    /// the engine: it would be an example of an empty answer.
    fn end(
        &mut self,
        at: usize,
        voices: &mut Voices,
        end: End,
        mut say: impl FnMut(Sentence<'_>),
    ) -> bool {
        let (speech, mut conversation) = voices.both(self);
        let speech = speech.filter(|_| !self.is_aside(at));
        let heard_bytes = self.heard_bytes_of(at);
        let is_answered = self.is_answered(at, end, heard_bytes);
        if let Some(conversation) = conversation.as_mut().filter(|_| !is_answered) {
            self.restore_removed(at, conversation);
        }
        // Before the question whether more was asked, which must not count this one.
        let Some(mut ask) = self.asks.remove(at) else { return true };
        let asked_more = self.is_asked_more();
        if ask.stage != AskStage::Started {
            self.needs_resend = true;
            if let Some(speech) = speech {
                Speech::end_unbegun(speech, asked_more);
            }
            return false;
        }
        let is_fragment = end.is_cut && !self.sentences.is_at_end();
        let (begin, cues) = (self.sentence_end, self.cues.as_deref());
        self.sentences.finish(|text| {
            if !is_fragment || end.publishes_fragment {
                let spoken_bytes = end_of(text, cues.map_or(&ask.turn, Separation::speech), begin);
                let end_bytes = cues.map_or(spoken_bytes, |cues| cues.reply_bytes(spoken_bytes));
                let end_bytes = end_bytes as u32;
                say(Sentence { text, end_bytes, is_fragment });
            }
        });
        if let Some(mut speech) = speech {
            speech.end(asked_more);
        }
        if let Some(heard_bytes) = heard_bytes {
            cut_text(&mut ask.turn, heard_bytes);
            if ask.cancel {
                // The reply ended before the cancel was sent: the engine cuts it now.
                self.shorten(ask.reply_id, heard_bytes);
            }
        }
        let actions = std::mem::take(&mut self.actions);
        // The engine may have received the conversation without these actions since.
        self.needs_resend |= heard_bytes.is_some() && !actions.is_empty();
        // Raw text is not part of a conversation, here as in the engine.
        if let Some(mut conversation) = conversation
            && is_in_conversation(&ask.content.prompt)
            && !ask.content.is_aside
            && !ask.outdated
            && is_answered
        {
            if conversation.edit() != self.edit {
                // Replaced and not collected yet, or swapped with another until the collection.
                self.needs_resend = true;
                return true;
            }
            let unseen = conversation.pushed().wrapping_sub(self.pushed) as usize;
            let turns_after = usize::from(ask.turns_after) + unseen;
            let AskContent { prompt, speaker, .. } = *ask.content;
            let question = prompt.into_question();
            let exchange = NewExchange { question, speaker, reply: ask.turn, actions };
            conversation.add_exchange(ask.reply_id, exchange, turns_after);
        }
        true
    }
}
