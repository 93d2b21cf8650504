//! Actions: separates the calls of a reply from its speech, delivers them, and constrains them.
//!
//! From the opening delimiter of a call on, draws are constrained to valid calls
//! ([`constraints`](super::constraints)). A draw that was launched ahead of the delimiter's result
//! is discarded and made again with the mask. So the tokens do not depend on the time at which
//! results are read.

use walla_grammar::{
    ActionSet, CallError, CallReader, GrammarOptions, GrammarStart, MalformedCall, ParsedCall,
    Piece, check,
};
use walla_types::TokenId;

use super::Core;
use super::agents::{AgentState, Asked};
use super::constraints::Grammar;
use crate::api::{
    ActionPolicy, AgentId, Call, CallId, Event, MAX_CALL_BYTES, RefusedCall, ReplyEvent, ReplyId,
    Turn,
};
use crate::reply_parts::{Part, ReplyParts};

/// Maximum number of calls of one grammar.
const MAX_GRAMMAR_CALLS: u32 = 16;

/// Receives a reply: keeps its speech and its actions for the conversation, and passes events to
/// the host.
pub(super) struct Delivery<'a> {
    agent: AgentId,
    reply_id: ReplyId,
    speech: &'a mut String,
    actions: &'a mut Vec<Turn>,
    calls_ended: &'a mut u32,
    output: &'a mut ReplyParts,
    calls: Option<&'a mut CallReader>,
    /// The actions that may be called.
    set: Option<&'a ActionSet>,
    /// Calls of the reply, at most.
    max_calls: u32,
    /// The reply has failed or was cancelled, so an unfinished call is not delivered.
    is_cut: bool,
    send: &'a mut dyn FnMut(Event),
    /// A stop string is complete.
    pub stopped: bool,
    /// A call exceeded its length.
    pub is_too_long: bool,
    /// A call was opened.
    pub has_opened: bool,
    /// A call has ended.
    pub has_ended: bool,
}

impl<'a> Delivery<'a> {
    /// `None` if the agent has no reply in progress.
    pub fn new(agent: &'a mut AgentState, send: &'a mut dyn FnMut(Event)) -> Option<Self> {
        let AgentState { id, spec, output, calls, reply, .. } = agent;
        let reply = reply.as_mut()?;
        let may_have_calls = reply.may_have_calls();
        let set = spec.actions.as_ref().map(|actions| &actions.set);
        Some(Self {
            agent: *id,
            reply_id: reply.reply_id,
            speech: &mut reply.speech,
            actions: &mut reply.actions,
            calls_ended: &mut reply.calls_ended,
            output,
            calls: calls.as_deref_mut().filter(|_| may_have_calls),
            set: set.filter(|_| reply.policy != Some(ActionPolicy::Off)),
            max_calls: spec.actions.as_ref().map_or(1, |actions| actions.max_calls.max(1)),
            is_cut: false,
            send,
            stopped: false,
            is_too_long: false,
            has_opened: false,
            has_ended: false,
        })
    }

    /// Takes a token with its text.
    pub fn push(&mut self, token: TokenId, bytes: &[u8]) {
        match self.calls.take() {
            Some(calls) if calls.is_open() || self.output.is_speaking() => {
                calls.push(token, bytes, &mut |piece| self.take(piece));
                self.calls = Some(calls);
            }
            calls => {
                self.calls = calls;
                self.take(Piece::Speech(token, bytes));
            }
        }
    }

    /// Takes the text that was held back, because the reply has ended.
    pub fn finish(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
        if let Some(calls) = self.calls.take() {
            calls.finish(&mut |piece| self.take(piece));
        }
        self.with_output(|output, say| output.finish(say));
    }

    fn with_output<T>(
        &mut self,
        take: impl FnOnce(&mut ReplyParts, &mut crate::reply_parts::Say<'_>) -> T,
    ) -> T {
        let Self { agent, reply_id, speech, output, send, .. } = self;
        let (agent, reply_id) = (*agent, *reply_id);
        take(output, &mut |part, text, tokens| {
            if part == Part::Speech {
                speech.push_str(&text);
            }
            send(Event { agent, reply_id, what: part.event(text, tokens) });
        })
    }

    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Speech(token, bytes) => {
                self.stopped |= self.with_output(|output, say| output.push(token, bytes, say));
            }
            Piece::Opened => {
                self.has_opened = true;
                self.with_output(|output, say| output.interrupt(say));
            }
            Piece::Call(call) => self.take_call(call),
        }
    }

    fn take_call(&mut self, call: Result<ParsedCall, MalformedCall>) {
        let id = CallId { reply_id: self.reply_id, index: *self.calls_ended };
        *self.calls_ended += 1;
        self.has_ended = true;
        let call = call.and_then(|call| match self.set {
            Some(set) if !self.is_cut && id.index < self.max_calls => check(set, call),
            Some(_) if self.is_cut => Err(call.refused(CallError::Unfinished)),
            _ => {
                let error = CallError::NotAllowed { name: call.name.clone() };
                Err(call.refused(error))
            }
        });
        let what = match call {
            Ok(call) => {
                let ParsedCall { name, arguments, .. } = call;
                let call = Call { id, name, arguments };
                self.actions.push(call.turn());
                ReplyEvent::Call(Box::new(call))
            }
            Err(call) => {
                self.is_too_long |= matches!(call.error, CallError::TooLong { .. });
                ReplyEvent::CallRefused(Box::new(RefusedCall { id, call }))
            }
        };
        let Self { agent, reply_id, .. } = *self;
        (self.send)(Event { agent, reply_id, what });
    }
}

impl Core {
    /// Begins to separate the calls of a reply in a conversation, if its agent has actions.
    pub(super) fn begin_calls(&mut self, slot: usize) {
        let Self { agents, model_text, .. } = self;
        let Some(agent) = agents.get_mut(slot) else { return };
        let Some(reply) = agent.reply.as_ref() else { return };
        let is_question = !matches!(reply.asked, Some(Asked::Conversation));
        let policy = agent.history.call_policy(&agent.spec, &reply.options, is_question);
        agent.history.begin_reply(is_question);
        let AgentState { spec, reply, calls, is_chat, .. } = agent;
        let Some(policy) = policy.ok().flatten().filter(|_| *is_chat) else { return };
        let Some(reply) = reply.as_mut() else { return };
        reply.policy = Some(policy);
        if policy == ActionPolicy::Off {
            reply.speech_mask = model_text.speech_mask(spec.sampling.allowed_tokens());
        }
        let calls = calls.get_or_insert_with(|| Box::new(CallReader::new(model_text.call_markers)));
        let actions = spec.actions.as_ref();
        let max_bytes = actions.map_or(MAX_CALL_BYTES, |actions| actions.max_call_bytes);
        let unmarked = actions.map(|actions| (actions.set.clone(), actions.unmarked));
        calls.begin(max_bytes as usize, unmarked);
    }

    /// Whether the agent's reply must begin with a call.
    pub(super) fn requires_call(agent: &AgentState) -> bool {
        agent.reply.as_ref().is_some_and(|reply| reply.policy == Some(ActionPolicy::Required))
    }

    /// The grammar of the next calls of an agent's reply.
    pub(super) fn grammar_of_calls(&self, slot: usize, start: GrammarStart) -> Option<Grammar> {
        let agent = self.agents.get(slot)?;
        let (reply, actions) = (agent.reply.as_ref()?, agent.spec.actions.as_ref()?);
        let left = actions.max_calls.saturating_sub(reply.calls_ended);
        let max_calls = left.clamp(1, MAX_GRAMMAR_CALLS);
        let behind = match start {
            GrammarStart::BehindOpen => agent.calls.as_ref()?.behind()?.to_vec(),
            GrammarStart::Call => Vec::new(),
        };
        Some(Grammar::Calls {
            markers: self.model_text.call_markers,
            set: actions.set.clone(),
            options: GrammarOptions { start, max_calls },
            behind,
        })
    }

    /// A call was opened by the latest token: later draws are constrained. Draws in flight are
    /// discarded.
    pub(super) fn constrain_open_call(&mut self, slot: usize) {
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let calls = agent.reply_calls().filter(|calls| calls.is_open());
        let has_grammar = calls.is_some_and(|calls| calls.behind().is_some());
        let Some(reply) = agent.reply.as_mut() else { return };
        if !has_grammar || reply.constraint.is_some() || reply.policy == Some(ActionPolicy::Off) {
            return;
        }
        agent.sequence.forget_in_flight();
        self.constrain(slot, GrammarStart::BehindOpen);
    }

    /// Whether the reply in progress has made all its calls.
    pub(super) fn has_made_all_calls(agent: &AgentState) -> bool {
        let limits = agent.reply.as_ref().zip(agent.spec.actions.as_ref());
        limits.is_some_and(|(reply, actions)| {
            reply.calls_ended > 0 && reply.calls_ended >= actions.max_calls
        })
    }
}
