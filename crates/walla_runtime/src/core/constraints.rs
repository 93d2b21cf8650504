//! Constrained replies: grammars, masks and forced tokens, computed on worker threads.
//!
//! The matcher of a reply is either with the core, together with the mask of the next draw, or with
//! a worker, which accepts tokens and computes the next mask. Meanwhile the core submits all known
//! tokens of the reply but the last one, because the draw behind it needs the mask. So a late mask
//! delays its reply and changes no token.

mod worker;

use std::sync::Arc;
use std::time::Duration;

use walla_grammar::{Constraint, GrammarStart, Matcher};
use walla_model::chat::Marker;
use walla_types::{TokenId, TokenMask};

pub(super) use self::worker::{Constraints, Grammar};
use self::worker::{Done, Job, JobId, Progress, Work};
use super::Core;
use super::agents::AgentState;
use crate::api::FinishReason;
use crate::engine_core::Emit;

/// The grammar of a reply, or of its open call.
#[derive(Debug)]
pub(super) struct ReplyConstraint {
    scope: Scope,
    state: State,
    /// Jobs of the reply are not started when this is gone.
    waits: Arc<()>,
    /// Time of its latest job.
    took: Option<Duration>,
}

/// The part of a reply that a grammar describes.
#[derive(Clone, Debug)]
enum Scope {
    /// All its speech.
    Speech(Constraint),
    /// Its next call, from here on.
    Call(GrammarStart),
}

#[derive(Debug)]
enum State {
    /// The reply has not begun to speak: draws are not constrained.
    Reasoning,
    /// A worker has the matcher.
    Busy {
        /// Number of its job.
        job: u64,
        /// Steps submitted before the reply began to wait for the mask.
        steps_before: u64,
    },
    /// The mask of the next draw.
    Ready { matcher: Box<Matcher>, mask: Arc<TokenMask> },
}

impl ReplyConstraint {
    fn new(scope: Scope) -> Self {
        Self { scope, state: State::Reasoning, waits: Arc::default(), took: None }
    }

    /// Whether the next draw must wait for its mask.
    pub fn awaits_mask(&self) -> bool {
        matches!(self.state, State::Busy { .. })
    }

    /// The step with this number, counted from 1, has rows of the reply.
    pub fn stepped(&mut self, steps: u64) {
        if let State::Busy { steps_before, .. } = &mut self.state {
            *steps_before = steps;
        }
    }

    /// Whether more than one step was submitted while the reply waited for its mask.
    fn is_late(&self, steps: u64) -> bool {
        matches!(self.state, State::Busy { steps_before, .. } if steps - steps_before > 1)
    }

    /// The mask of the next draw.
    pub fn mask(&self) -> Option<&Arc<TokenMask>> {
        match &self.state {
            State::Ready { mask, .. } => Some(mask),
            State::Reasoning | State::Busy { .. } => None,
        }
    }
}

impl Core {
    /// Begins the constraint of a reply whose prompt is encoded.
    pub(super) fn begin_constraint(&mut self, slot: usize) {
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let requires_call = Self::requires_call(agent);
        let Some(reply) = agent.reply.as_mut() else { return };
        let of_ask = reply.options.constraint.take();
        let scope = match of_ask.or_else(|| agent.spec.constraint.clone()) {
            Some(constraint) => Scope::Speech(constraint),
            None if requires_call => Scope::Call(GrammarStart::Call),
            None => return,
        };
        reply.constraint = Some(ReplyConstraint::new(scope));
        if agent.output.is_speaking() {
            self.start_matcher(slot);
        }
    }

    /// Compiles the grammar, and requests the first mask.
    fn start_matcher(&mut self, slot: usize) {
        let Some(constraint) = self.agents.get(slot).and_then(AgentState::constraint) else {
            return;
        };
        let (grammar, opening) = match constraint.scope.clone() {
            Scope::Speech(constraint) => {
                (Some(Grammar::Speech(constraint)), self.opening_tokens(slot))
            }
            Scope::Call(start @ GrammarStart::Call) => {
                (self.grammar_of_calls(slot, start), self.opening_tokens(slot))
            }
            Scope::Call(start @ GrammarStart::BehindOpen) => {
                (self.grammar_of_calls(slot, start), Vec::new())
            }
        };
        let Some(grammar) = grammar else { return };
        self.request_mask(slot, Work::Begin { grammar, opening });
    }

    /// Constrains the draws of a reply behind its latest token to calls.
    pub(super) fn constrain(&mut self, slot: usize, start: GrammarStart) {
        let reply = self.agents.get_mut(slot).and_then(|agent| agent.reply.as_mut());
        let Some(reply) = reply else { return };
        reply.constraint = Some(ReplyConstraint::new(Scope::Call(start)));
        self.start_matcher(slot);
    }

    /// No call is open any more: draws are free again.
    pub(super) fn free_after_call(&mut self, slot: usize) {
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let Some(reply) = agent.reply.as_mut() else { return };
        let is_of_call = |constraint: &ReplyConstraint| matches!(constraint.scope, Scope::Call(_));
        if reply.constraint.as_ref().is_some_and(is_of_call) {
            reply.constraint = None;
        }
    }

    /// Tokens that open a block of reasoning, if the agent may reason before it speaks.
    fn opening_tokens(&self, slot: usize) -> Vec<TokenId> {
        let Some(agent) = self.agents.get(slot) else { return Vec::new() };
        let has_spoken = agent.output.speech_tokens() > 0 || agent.output.reasoning_tokens() > 0;
        match &self.model_text.reasoning {
            Some(markers) if agent.spec.thinking && agent.is_chat && !has_spoken => {
                markers.opening_tokens().collect()
            }
            _ => Vec::new(),
        }
    }

    fn request_mask(&mut self, slot: usize, work: Work) {
        let Some(agent) = self.agents.get_mut(slot) else { return };
        let (id, allowed) = (agent.id, agent.spec.sampling.allowed_tokens().cloned());
        let Some(reply) = agent.reply.as_mut() else { return };
        let Some(constraint) = reply.constraint.as_mut() else { return };
        let number = self.constraints.next_number();
        constraint.state = State::Busy { job: number, steps_before: self.stats.steps };
        let job_id = JobId { agent: id, reply_id: reply.reply_id, number };
        let before = match &work {
            Work::Begin { .. } => None,
            Work::Continue { .. } => constraint.took,
        };
        let waits = Arc::downgrade(&constraint.waits);
        if let Err(error) =
            self.constraints.submit(Job { id: job_id, waits, before, work, allowed })
        {
            self.fail(slot, error);
        }
    }

    /// A token of a constrained reply was sampled, and its text emitted.
    pub(super) fn sampled_under_constraint(&mut self, slot: usize, token: TokenId) {
        let Self { agents, model_text, .. } = self;
        let Some(agent) = agents.get_mut(slot) else { return };
        let is_speaking = agent.output.is_speaking();
        let Some(reply) = agent.reply.as_mut() else { return };
        let Some(constraint) = reply.constraint.as_mut() else { return };
        let markers = model_text.reasoning.as_ref();
        let opens = matches!(markers.and_then(|m| m.of_token(token)), Some(Marker::Open(_)));
        match std::mem::replace(&mut constraint.state, State::Reasoning) {
            State::Ready { matcher, .. } if !opens => {
                self.request_mask(slot, Work::Continue { matcher, token });
            }
            // The block of reasoning is closed.
            State::Reasoning if is_speaking => self.start_matcher(slot),
            // A block of reasoning was opened.
            State::Ready { .. } | State::Reasoning => {}
            busy @ State::Busy { .. } => constraint.state = busy,
        }
    }

    /// Takes masks from the workers. Returns `true` if there were any.
    pub(super) fn collect_masks(&mut self, now_micros: u64, emit: &mut Emit<'_>) -> bool {
        let mut any = false;
        while let Some(Done { id, result, took }) = self.constraints.collect() {
            any = true;
            self.stats.mask_time += took;
            let Some(slot) = self.agents.slot_of(id.agent) else { continue };
            let waits = |agent: &&mut AgentState| {
                let is_reply = agent.reply.as_ref().is_some_and(|r| r.reply_id == id.reply_id);
                let is_of_job =
                    |state: &State| matches!(state, State::Busy { job, .. } if *job == id.number);
                is_reply && agent.constraint().is_some_and(|of| is_of_job(&of.state))
            };
            let Some(agent) = self.agents.get_mut(slot).filter(waits) else { continue };
            let client = agent.client;
            let reply = agent.reply.as_mut();
            if let Some(constraint) = reply.and_then(|reply| reply.constraint.as_mut()) {
                // A compilation does not predict the masks.
                let is_first = constraint.took.is_none();
                constraint.took = Some(if is_first { Duration::ZERO } else { took });
            }
            match result {
                Ok(progress) => {
                    let now_micros = self.clients.now_micros(client, now_micros);
                    self.take_mask(slot, progress, now_micros, emit);
                }
                Err(error) => self.fail(slot, error),
            }
        }
        any
    }

    fn take_mask(&mut self, slot: usize, progress: Progress, now_micros: u64, emit: &mut Emit<'_>) {
        let Progress { matcher, forced, mask } = progress;
        let constraint = self.agents.get(slot).and_then(AgentState::constraint);
        let is_late = constraint.is_some_and(|constraint| constraint.is_late(self.stats.steps));
        self.stats.masks += 1;
        self.stats.masks_late += u64::from(is_late);
        if !self.take_forced(slot, &forced, now_micros, emit) {
            return;
        }
        let Some(mask) = mask else {
            return self.grammar_has_ended(slot, now_micros);
        };
        self.prepare_draw(slot);
        let reply = self.agents.get_mut(slot).and_then(|agent| agent.reply.as_mut());
        if let Some(constraint) = reply.and_then(|reply| reply.constraint.as_mut()) {
            constraint.state = State::Ready { matcher, mask };
        }
    }

    fn grammar_has_ended(&mut self, slot: usize, now_micros: u64) {
        let scope = self.agents.get(slot).and_then(AgentState::constraint).map(|c| c.scope.clone());
        match scope {
            Some(Scope::Speech(_)) => self.finish(slot, FinishReason::EndOfTurn, now_micros),
            Some(Scope::Call(_)) => {
                self.free_after_call(slot);
                self.prepare_draw(slot);
            }
            None => {}
        }
    }

    /// Lets the next step draw behind the last known token. That token was evaluated before, if a
    /// draw that was launched ahead was discarded.
    fn prepare_draw(&mut self, slot: usize) {
        let Some(agent) = self.agents.get(slot) else { return };
        if self.missing_tokens(slot, agent) == 0 {
            let tokens = agent.sequence.tokens().to_vec();
            self.keep_prefix(slot, &tokens);
        }
    }
}
