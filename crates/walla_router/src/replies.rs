//! Asks and replies: the engine of each ask, the move to a substitute, and the end.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use walla_runtime::{
    AfterFailure, AgentId, Ask, AskOptions, Command, Event, FinishReason, FirstTokenTimes, Prompt,
    ReplyError, ReplyEvent, ReplyId, Usage,
};

use crate::agent::Reply;
use crate::child::{Key, find};
use crate::health::is_of_engine;
use crate::state::State;

/// Maximum tokens of a reply for whose text memory is reserved.
const MAX_TOKENS: u32 = 4_096;

/// Maximum names of substitutes that are reported as unknown.
const MAX_REPORTED: usize = 64;

/// The engine for an ask.
struct Choice {
    key: Key,
    /// The ask can move to a substitute.
    can_move: bool,
}

impl State {
    pub fn fail(&mut self, agent: AgentId, reply_id: ReplyId, error: ReplyError) {
        self.ready.push_back(Event { agent, reply_id, what: ReplyEvent::Failed(error) });
    }

    /// Begins the next ask of a free agent; asks that fail at once end here.
    pub fn begin_asks(&mut self, id: AgentId, now: Duration) {
        while let Some(agent) = self.agents.get_mut(&id)
            && agent.reply.is_none()
            && !agent.is_removed
            && let Some((mut ask, turns)) = agent.next_ask()
        {
            agent.append(id, turns, &mut self.children);
            match self.choose(id, &ask, now).and_then(|choice| self.edited(id, &mut ask, choice)) {
                Ok(choice) => self.begin(id, ask, &choice, now),
                Err(error) => self.fail(id, ask.reply_id, error),
            }
        }
        self.settle(id);
    }

    /// Replaces a repetition by the ask that led to the last reply, and results by their turns.
    fn edited(&mut self, id: AgentId, ask: &mut Ask, choice: Choice) -> Result<Choice, ReplyError> {
        let agent = self.agents.get_mut(&id).ok_or(ReplyError::UnknownAgent)?;
        match &mut ask.prompt {
            Prompt::Again => ask.prompt = agent.take_reply().ok_or(ReplyError::NoReply)?,
            Prompt::Results(results) => {
                let results = std::mem::take(results);
                agent.answer(id, results, &mut self.children).map_err(ReplyError::Result)?;
                ask.prompt = Prompt::Continue;
            }
            _ => {}
        }
        Ok(choice)
    }

    /// The engine for an ask.
    fn choose(&mut self, id: AgentId, ask: &Ask, now: Duration) -> Result<Choice, ReplyError> {
        let Some(agent) = self.agents.get(&id) else { return Err(ReplyError::UnknownAgent) };
        let route = &agent.spec.route;
        let find = |name: &Arc<str>| {
            self.children.iter().position(|child| !child.is_retired && child.name == *name)
        };
        let name = route.engine.as_ref().unwrap_or(&self.default);
        let engine = find(name);
        let can_do = |at: &usize| self.children[*at].can_do(&agent.spec, &ask.prompt, &ask.options);
        let substitute = route.substitute.as_ref().and_then(find);
        if let (Some(name), None) = (&route.substitute, substitute)
            && self.unknown_substitutes.len() < MAX_REPORTED
            && self.unknown_substitutes.insert(Arc::clone(name))
        {
            tracing::warn!(target: "walla::router", substitute = %name, "no engine has the name of a substitute");
        }
        let substitute = substitute.filter(|at| Some(*at) != engine).filter(can_do);
        let (at, is_substitute) = match (engine, substitute) {
            (None, None) => return Err(ReplyError::NoEngine { name: Arc::clone(name) }),
            (Some(engine), None) => (engine, false),
            (None, Some(substitute)) => (substitute, true),
            (Some(engine), Some(substitute)) => {
                let asks =
                    can_do(&engine) && self.children[engine].breaker.admits(ask.reply_id, now);
                if asks { (engine, false) } else { (substitute, true) }
            }
        };
        let key = self.children[at].key;
        if is_substitute && let Some(engine) = engine {
            self.children[engine].moved += 1;
        }
        Ok(Choice { key, can_move: !is_substitute && substitute.is_some() })
    }

    fn begin(&mut self, id: AgentId, ask: Ask, choice: &Choice, now: Duration) {
        let Ask { reply_id, prompt, options, arrived_micros, .. } = ask;
        let Self { agents, children, deadlines, .. } = self;
        let Some(agent) = agents.get_mut(&id) else { return };
        let Some(child) = find(children, choice.key) else { return };
        agent.sync(id, child);
        let question = prompt.question();
        let limit = agent.spec.route.max_first_token.filter(|_| choice.can_move);
        // Only replies that can move have one: without a substitute it would change nothing.
        let deadline = limit.map(|limit| now.saturating_add(limit));
        deadlines.extend(deadline.map(|deadline| (deadline, id, reply_id)));
        agent.latest = Some(choice.key);
        // 6 bytes per token suffice for most languages, so that no token allocates.
        let speech =
            String::with_capacity(6 * agent.spec.max_reply_tokens.min(MAX_TOKENS) as usize);
        agent.reply = Some(Reply {
            reply_id,
            on: choice.key,
            ask: choice.can_move.then(|| (prompt.clone(), options.clone())),
            is_chat: (question.is_some() || matches!(prompt, Prompt::Continue))
                && !options.is_aside(),
            question,
            begun: None,
            is_started: false,
            has_output: false,
            speech,
            actions: Vec::new(),
            heard_bytes: u32::MAX,
            is_cancelled: false,
            is_outdated: false,
            arrived: Duration::from_micros(arrived_micros),
            asked: now,
            deadline,
            first_token_micros: None,
        });
        child.replies += 1;
        child.send(Command::Ask { agent: id, reply_id, prompt, options });
    }

    /// Moves the reply in progress of an agent to its substitute. Returns whether there is one that
    /// can do it.
    pub fn move_to_substitute(&mut self, id: AgentId, now: Duration) -> bool {
        let Some(agent) = self.agents.get(&id) else { return false };
        let Some(reply) = &agent.reply else { return false };
        let Some((prompt, options)) = &reply.ask else { return false };
        if reply.is_cancelled || agent.is_removed {
            return false;
        }
        let (from, mut options, prompt) = (reply.on, options.clone(), prompt.clone());
        if reply.has_output {
            options.opening = Some(Arc::new(reply.speech.clone()));
        }
        let Some(name) = agent.spec.route.substitute.clone() else { return false };
        let at = self.children.iter().position(|child| {
            !child.is_retired
                && child.name == name
                && child.key != from
                && child.can_do(&agent.spec, &prompt, &options)
        });
        let Some(at) = at else { return false };
        let reply_id = reply.reply_id;
        if let Some(child) = self.child(from) {
            child.breaker.ended(reply_id);
            child.replies -= 1;
            child.moved += 1;
            // An engine that has ended has ended its replies too.
            if !child.is_over() {
                child.send(Command::Cancel { agent: id, reply_id });
            }
        }
        let Some(agent) = self.agents.get_mut(&id) else { return false };
        agent.outdate(from);
        let child = &mut self.children[at];
        agent.sync(id, child);
        agent.latest = Some(child.key);
        if let Some(reply) = &mut agent.reply {
            reply.clear_deadline(id, &mut self.deadlines);
            (reply.on, reply.ask, reply.begun) = (child.key, None, None);
            reply.asked = now;
        }
        child.replies += 1;
        child.send(Command::Ask { agent: id, reply_id, prompt, options });
        true
    }

    /// Applies an event of an engine.
    pub fn event(&mut self, key: Key, event: Event, now: Duration) {
        let Event { agent: id, reply_id, what } = event;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let is_current = |reply: &&mut Reply| reply.reply_id == reply_id && reply.on == key;
        let Some(reply) = agent.reply.as_mut().filter(is_current) else { return };
        match &what {
            &ReplyEvent::Started { prompt_tokens } => {
                // Held back: if the reply moves, the substitute begins it again (rule 4).
                if reply.ask.is_some() && !reply.has_output {
                    reply.begun = Some(prompt_tokens);
                } else if !std::mem::replace(&mut reply.is_started, true) {
                    self.ready.push_back(Event { agent: id, reply_id, what });
                }
                return;
            }
            ReplyEvent::Logged(_) => return,
            ReplyEvent::Finished { reason, usage } => {
                let (reason, usage) = (*reason, reply.whole(usage));
                return self.end(id, Ok((reason, usage)), now);
            }
            ReplyEvent::Failed(error) => return self.failed(id, error.clone(), now),
            ReplyEvent::Delta { text, .. } => reply.speech.push_str(text),
            ReplyEvent::Call(call) => reply.actions.push(call.turn()),
            _ => {}
        }
        if !std::mem::replace(&mut reply.has_output, true) {
            reply.clear_deadline(id, &mut self.deadlines);
            let continues = agent.spec.route.after_failure == AfterFailure::Continue;
            let is_constrained = |options: &AskOptions| {
                options.constraint.is_some() || agent.spec.constraint.is_some()
            };
            // The text is continued only if it is speech alone.
            let can_continue = reply.is_chat
                && continues
                && reply.ask.as_ref().is_some_and(|(_, options)| !is_constrained(options));
            if !can_continue {
                reply.ask = None;
            }
            reply.publish_begin(id, &mut self.ready);
            let rules = self.rules;
            if let Some(child) = find(&mut self.children, key) {
                child.breaker.succeeded(reply_id, &rules);
            }
        }
        if matches!(what, ReplyEvent::Call(_) | ReplyEvent::CallRefused(_)) {
            reply.ask = None;
        }
        self.ready.push_back(Event { agent: id, reply_id, what });
    }

    /// The engine of a reply has failed.
    pub fn failed(&mut self, id: AgentId, error: ReplyError, now: Duration) {
        let Some(reply) = self.agents.get_mut(&id).and_then(|agent| agent.reply.as_mut()) else {
            return;
        };
        let (reply_id, on) = (reply.reply_id, reply.on);
        if reply.has_output && reply.first_token_micros.is_none() {
            reply.first_token_micros = Some(micros(now.saturating_sub(reply.arrived)));
        }
        let rules = self.rules;
        if is_of_engine(&error)
            && let Some(child) = self.child(on)
        {
            child.breaker.failed(reply_id, &rules, now);
        }
        if !self.move_to_substitute(id, now) {
            self.end(id, Err(error), now);
        }
    }

    /// Ends the reply in progress of an agent, and begins its next ask.
    fn end(&mut self, id: AgentId, end: Result<(FinishReason, Usage), ReplyError>, now: Duration) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if let Some(reply) = &mut agent.reply {
            reply.publish_begin(id, &mut self.ready);
        }
        let Some(mut reply) =
            agent.end_reply(end.as_ref().ok().map(|(reason, usage)| (*reason, usage)))
        else {
            return;
        };
        let reply_id = reply.reply_id;
        reply.clear_deadline(id, &mut self.deadlines);
        let rules = self.rules;
        if let Some(child) = self.child(reply.on) {
            child.replies -= 1;
            // An answer without text is a success too; a cancel is no outcome of the engine.
            let is_answer = matches!(&end, Ok((reason, _)) if *reason != FinishReason::Cancelled);
            if is_answer && !reply.has_output {
                child.breaker.succeeded(reply_id, &rules);
            }
            child.breaker.ended(reply_id);
        }
        let what = match end {
            Ok((reason, usage)) => ReplyEvent::Finished { reason, usage },
            Err(error) => ReplyEvent::Failed(error),
        };
        self.ready.push_back(Event { agent: id, reply_id, what });
        // Before the next ask: a removed agent has none.
        self.forget_if_done(id);
        self.begin_asks(id, now);
        self.prepare(id);
    }
}

impl Reply {
    /// The reply does not move any more because of its deadline.
    fn clear_deadline(
        &mut self,
        agent: AgentId,
        deadlines: &mut BTreeSet<(Duration, AgentId, ReplyId)>,
    ) {
        if let Some(deadline) = self.deadline.take() {
            deadlines.remove(&(deadline, agent, self.reply_id));
        }
    }

    /// Publishes the begin that was held back.
    fn publish_begin(&mut self, agent: AgentId, ready: &mut VecDeque<Event>) {
        if let Some(prompt_tokens) = self.begun.take()
            && !std::mem::replace(&mut self.is_started, true)
        {
            let what = ReplyEvent::Started { prompt_tokens };
            ready.push_back(Event { agent, reply_id: self.reply_id, what });
        }
    }

    /// Counts of the whole reply: the counts of its last engine, with the time before that was
    /// asked.
    fn whole(&self, usage: &Usage) -> Usage {
        let mut usage = *usage;
        let before = micros(self.asked.saturating_sub(self.arrived));
        usage.total_micros = usage.total_micros.saturating_add(before);
        match self.first_token_micros {
            Some(first_token_micros) => {
                usage.first_token_micros = first_token_micros;
                usage.first_token = FirstTokenTimes::default();
            }
            None if usage.first_token_micros > 0 => {
                usage.first_token_micros = usage.first_token_micros.saturating_add(before);
                let parts = &mut usage.first_token;
                parts.waiting_micros = parts.waiting_micros.saturating_add(before);
            }
            None => {}
        }
        usage
    }
}

/// Whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
