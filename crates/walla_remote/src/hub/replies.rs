//! Replies: the begin of a request, its progress and its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;
use tokio::task;
use walla_runtime::{
    AgentId, Ask, Call, CallId, FinishReason, History, InlineText, MAX_DELTA_BYTES, Prompt,
    RefusedCall, ReplyError, ReplyEvent, ReplyId, Usage,
};

use super::prepare::prepare;
use super::{Hub, bytes_of};
use crate::agent::Reply;
use crate::http::{Progress, Reporter};
use crate::parts::{End, Part};

impl Hub {
    /// Begins the request of the agent that is next.
    pub(super) fn begin_next(&mut self, mut permit: OwnedSemaphorePermit) {
        while let Some((place, id)) = self.waiting.pop_first() {
            let now_micros = self.now_micros();
            let Some(agent) = self.agents.get_mut(&id) else { continue };
            debug_assert_eq!(agent.place, Some(place));
            agent.place = None;
            let Some(ask) = agent.next_ask() else { continue };
            match self.begin(id, ask, permit, now_micros) {
                Some(unused) => permit = unused,
                None => return,
            }
        }
    }

    /// Begins a request. Returns the permit if the ask has ended at once.
    fn begin(
        &mut self,
        id: AgentId,
        mut ask: Ask,
        permit: OwnedSemaphorePermit,
        now_micros: u64,
    ) -> Option<OwnedSemaphorePermit> {
        let Some(agent) = self.agents.get_mut(&id) else { return Some(permit) };
        // Before the prompt is taken out: the same number is subtracted at the end.
        let (reply_id, arrived_micros, bytes) = (ask.reply_id, ask.arrived_micros, bytes_of(&ask));
        let prompt = std::mem::replace(&mut ask.prompt, Prompt::Continue);
        let applied = agent.history.apply(prompt, History::MAX_TURNS).map_err(ReplyEvent::Failed);
        let prepared = applied.and_then(|prompt| {
            ask.prompt = prompt;
            prepare(&self.server, id, agent, &ask)
        });
        let (body, rules, prompt_tokens) = match prepared {
            Ok(prepared) => prepared,
            Err(end) => {
                // A repetition has taken the last reply out of the conversation.
                agent.history.restore_reply();
                agent.settle();
                self.asks_open -= 1;
                self.ask_bytes -= bytes;
                if let ReplyEvent::Finished { .. } = end {
                    self.emit(id, reply_id, ReplyEvent::Started { prompt_tokens: 0 });
                }
                self.emit(id, reply_id, end);
                self.place(id);
                return Some(permit);
            }
        };
        let question = ask.prompt.into_question();
        agent.history.begin_reply(question.is_some());
        let reporter = Reporter { agent: id, reply_id, sender: self.reporter.clone() };
        let server = Arc::clone(&self.server);
        let request = self.tasks.spawn(async move {
            let _permit = permit;
            // The receiver is gone only if the hub has ended.
            let _gone = server.reply(body.into(), rules, &reporter).await;
        });
        self.of_task.insert(request.id(), (id, reply_id));
        agent.reply = Some(Reply {
            reply_id,
            question,
            speech: String::new(),
            actions: Vec::new(),
            calls: 0,
            is_aside: ask.options.is_aside(),
            has_reasoned: false,
            heard_bytes: u32::MAX,
            is_started: false,
            prompt_tokens,
            arrived_micros,
            begun_micros: now_micros,
            first_micros: None,
            bytes,
            request,
        });
        None
    }

    pub(super) fn task_ended(&mut self, ended: Result<(task::Id, ()), task::JoinError>) {
        let (task, is_panic) = match &ended {
            Ok((task, ())) => (*task, false),
            Err(error) => (error.id(), error.is_panic()),
        };
        let Some((agent, reply_id)) = self.of_task.remove(&task) else { return };
        if is_panic && self.reply_mut(agent, reply_id).is_some() {
            let reason = "a task of the remote engine panicked: a defect in walla";
            self.fail(agent, ReplyError::EngineGone(reason.into()));
        }
    }

    fn reply_mut(&mut self, agent: AgentId, reply_id: ReplyId) -> Option<&mut Reply> {
        let reply = self.agents.get_mut(&agent)?.reply.as_mut()?;
        Some(reply).filter(|reply| reply.reply_id == reply_id)
    }

    pub(super) fn progress(&mut self, agent: AgentId, reply_id: ReplyId, progress: Progress) {
        let now_micros = self.now_micros();
        let Some(reply) = self.reply_mut(agent, reply_id) else { return };
        match progress {
            Progress::Accepted => {
                reply.is_started = true;
                let prompt_tokens = reply.prompt_tokens;
                self.emit(agent, reply_id, ReplyEvent::Started { prompt_tokens });
            }
            Progress::Part(part) => {
                reply.first_micros.get_or_insert(now_micros);
                self.part(agent, reply_id, part);
            }
            Progress::Ended(Ok(end)) => self.finish(agent, end.reason, Some(end)),
            Progress::Ended(Err(error)) => {
                let server = Arc::clone(self.server.name());
                self.fail(agent, ReplyError::Remote { server, error });
            }
        }
    }

    fn part(&mut self, agent: AgentId, reply_id: ReplyId, part: Part) {
        let Some(reply) = self.reply_mut(agent, reply_id) else { return };
        match part {
            Part::Speech(text) => {
                reply.speech.push_str(&text);
                self.channels.counts.tokens.fetch_add(1, Ordering::Relaxed);
                let delta = |text, tokens| ReplyEvent::Delta { text, tokens };
                self.emit_text(agent, reply_id, &text, delta);
            }
            Part::Reasoning(text) => {
                reply.has_reasoned = true;
                self.channels.counts.tokens.fetch_add(1, Ordering::Relaxed);
                let delta = |text, tokens| ReplyEvent::Reasoning { text, tokens };
                self.emit_text(agent, reply_id, &text, delta);
            }
            Part::Token(token) => self.emit(agent, reply_id, ReplyEvent::Token(Box::new(token))),
            Part::Call(call) => {
                let id = CallId { reply_id, index: reply.calls };
                reply.calls += 1;
                let what = match call {
                    Ok(call) => {
                        let call = Call { id, name: call.name, arguments: call.arguments };
                        reply.actions.push(call.turn());
                        ReplyEvent::Call(Box::new(call))
                    }
                    Err(call) => ReplyEvent::CallRefused(Box::new(RefusedCall { id, call })),
                };
                self.emit(agent, reply_id, what);
            }
        }
    }

    /// Emits a text in pieces of whole characters. The first one counts as a token.
    fn emit_text(
        &mut self,
        agent: AgentId,
        reply_id: ReplyId,
        text: &str,
        delta: impl Fn(InlineText<MAX_DELTA_BYTES>, u32) -> ReplyEvent,
    ) {
        // A server sends about one token in an event; its own counts come at the end.
        let (mut rest, mut tokens) = (text, 1);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(MAX_DELTA_BYTES));
            let mut inline = InlineText::new();
            inline.push(piece);
            self.emit(agent, reply_id, delta(inline, std::mem::take(&mut tokens)));
            rest = behind;
        }
    }

    pub(super) fn finish(&mut self, id: AgentId, reason: FinishReason, end: Option<End>) {
        // A reply that the model ended is an answer, also without text.
        let is_finished = reason != FinishReason::Cancelled;
        let Some((reply_id, mut usage)) = self.end_reply(id, is_finished) else { return };
        if let Some(end) = end {
            if end.prompt_tokens > 0 {
                usage.prompt_tokens = end.prompt_tokens;
            }
            usage.cached_tokens = end.cached_tokens;
            usage.reply_tokens = end.reply_tokens;
            usage.reasoning_tokens = end.reasoning_tokens;
        }
        self.emit(id, reply_id, ReplyEvent::Finished { reason, usage });
    }

    fn fail(&mut self, id: AgentId, error: ReplyError) {
        if let Some((reply_id, _)) = self.end_reply(id, false) {
            self.emit(id, reply_id, ReplyEvent::Failed(error));
        }
    }

    /// Takes the reply in progress from its agent, whose next ask can begin.
    fn end_reply(&mut self, id: AgentId, is_finished: bool) -> Option<(ReplyId, Usage)> {
        let now_micros = self.now_micros();
        let agent = self.agents.get_mut(&id)?;
        let reply = agent.reply.as_ref()?;
        let reply_id = reply.reply_id;
        reply.request.abort();
        self.asks_open -= 1;
        self.ask_bytes -= reply.bytes;
        let usage = agent.end_reply(is_finished, now_micros)?;
        self.place(id);
        Some((reply_id, usage))
    }
}
