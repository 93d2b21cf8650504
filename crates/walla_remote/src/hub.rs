//! The owner of a client's agents: a task that receives commands and the progress of requests, and
//! sends events.
//!
//! Rules:
//! 1. An agent has one request in progress at most. Its other asks wait here.
//! 2. A reply ends once: [`Hub::end_reply`] takes it from its agent. Progress of a
//!    request whose reply has ended is ignored.
//! 3. While the client's queue is full, no progress is received, so that requests wait, and with
//!    them the connections. Commands are received until [`OUTBOX_MAX`] events wait.
//! 4. Asks that wait for a request are ordered by arrival. A step of priority counts like one
//!    second, so each ask is served in bounded time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{self, JoinSet};
use walla_action::call_json;
use walla_runtime::{
    ASKS_WAITING_MAX, ActionPolicy, AgentId, AgentSpec, Ask, CacheError, Call, CallId, Command,
    ContextPolicy, DELTA_BYTES_MAX, Event, FinishReason, InlineText, Prompt, RefusedCall,
    ReplyError, ReplyEvent, ReplyId, Turn, Usage,
};

use crate::agent::{Agent, Reply};
use crate::channels::Channels;
use crate::http::{Progress, Report, Reporter, Server};
use crate::parts::{End, Part, Rules};
use crate::request::{self, Asked, BYTES_PER_TOKEN};

/// Maximum number of events that wait for the client before commands wait too.
const OUTBOX_MAX: usize = 4_096;

/// Capacity of the channel of progress.
const PROGRESS_MAX: usize = 256;

/// Time that a step of priority counts.
const PRIORITY_MICROS: i64 = 1_000_000;

/// A future that resolves to a permit for a request.
type NextPermit = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

pub(crate) struct Hub {
    server: Arc<Server>,
    requests: Arc<Semaphore>,
    channels: Arc<Channels>,
    commands: mpsc::Receiver<Command>,
    reports: mpsc::Receiver<Report>,
    reporter: mpsc::Sender<Report>,
    tasks: JoinSet<()>,
    of_task: HashMap<task::Id, (AgentId, ReplyId)>,
    agents: HashMap<AgentId, Agent>,
    /// Agents that wait for a request.
    waiting: BTreeMap<(i64, ReplyId), AgentId>,
    asks_open: u32,
    /// Bytes of their texts.
    ask_bytes: u64,
    outbox: VecDeque<Event>,
    begin: Instant,
    /// Why the hub ends.
    reason: &'static str,
}

/// An input of the hub.
enum Input {
    Command(Option<Command>),
    Report(Option<Report>),
    TaskEnded(Result<(task::Id, ()), task::JoinError>),
    Permit(Option<OwnedSemaphorePermit>),
    Again,
}

impl Hub {
    pub fn new(
        server: Arc<Server>,
        requests: Arc<Semaphore>,
        channels: Arc<Channels>,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let (reporter, reports) = mpsc::channel(PROGRESS_MAX);
        Self {
            server,
            requests,
            channels,
            commands,
            reports,
            reporter,
            tasks: JoinSet::new(),
            of_task: HashMap::new(),
            agents: HashMap::new(),
            waiting: BTreeMap::new(),
            asks_open: 0,
            ask_bytes: 0,
            outbox: VecDeque::new(),
            begin: Instant::now(),
            reason: "the client is gone",
        }
    }

    /// Runs until the client is dropped or the engine stops.
    pub async fn run(mut self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut permit: Option<NextPermit> = None;
        loop {
            let can_begin = !self.channels.is_paused() && !self.waiting.is_empty();
            if can_begin && permit.is_none() {
                let requests = Arc::clone(&self.requests);
                permit = Some(Box::pin(async move { requests.acquire_owned().await.ok() }));
            }
            let input = tokio::select! {
                biased;
                _ = stop.wait_for(|is_stopped| *is_stopped) => {
                    self.reason = "the engine was stopped";
                    return;
                }
                command = self.commands.recv(), if self.outbox.len() < OUTBOX_MAX => {
                    Input::Command(command)
                }
                report = self.reports.recv(), if self.outbox.is_empty() => Input::Report(report),
                Some(ended) = self.tasks.join_next_with_id(), if self.outbox.is_empty() => {
                    Input::TaskEnded(ended)
                }
                got = next(&mut permit), if can_begin => {
                    permit = None;
                    Input::Permit(got)
                }
                () = self.channels.space(), if !self.outbox.is_empty() => Input::Again,
                () = self.channels.pause_changed() => Input::Again,
            };
            match input {
                Input::Command(Some(command)) => self.command(command),
                Input::Command(None) => return,
                Input::Report(report) => {
                    if let Some((agent, reply_id, progress)) = report {
                        self.progress(agent, reply_id, progress);
                    }
                }
                Input::TaskEnded(ended) => self.task_ended(ended),
                Input::Permit(got) => {
                    if let Some(got) = got {
                        self.begin_next(got);
                    }
                }
                Input::Again => {}
            }
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.channels.send(&mut self.outbox);
        let counts = &self.channels.counts;
        let active = self.of_task.len() as u32;
        counts.agents.store(self.agents.len() as u32, Ordering::Relaxed);
        counts.agents_active.store(active, Ordering::Relaxed);
        let waiting = self.asks_open.saturating_sub(active);
        counts.asks_waiting.store(waiting, Ordering::Relaxed);
    }

    fn now_micros(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    fn emit(&mut self, agent: AgentId, reply_id: ReplyId, what: ReplyEvent) {
        self.outbox.push_back(Event { agent, reply_id, what });
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::AddAgent { agent, spec } => {
                let has_room = self.agents.len() < self.server.options.agents_max as usize;
                if has_room && !self.agents.contains_key(&agent) {
                    self.agents.insert(agent, Agent::new(*spec));
                }
            }
            Command::ChangeAgent { agent, spec } => {
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.change(spec);
                    self.place(agent);
                }
            }
            Command::SetDetail { agent, detail } => {
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.spec.detail = detail;
                }
            }
            Command::SetConversation { agent, turns } => {
                self.cancel_all(agent);
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.replace(turns);
                }
            }
            Command::AppendTurns { agent, turns } => {
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.append(turns);
                }
            }
            Command::EditConversation { agent, edit } => {
                self.cancel_all(agent);
                let copied = edit.source().and_then(|source| self.agents.get(&source));
                let copied = copied.map(|source| source.history.copy());
                if let Some(known) = self.agents.get_mut(&agent) {
                    known.history.edit(edit, copied);
                }
            }
            Command::ForkAgent { agent, source, spec } => {
                let copy = match (spec, self.agents.get(&source)) {
                    (Some(spec), _) => Some(Agent::new(*spec)),
                    (None, Some(source)) => Some(source.fork()),
                    (None, None) => None,
                };
                let has_room = self.agents.len() < self.server.options.agents_max as usize;
                if let Some(copy) = copy.filter(|_| has_room) {
                    self.agents.entry(agent).or_insert(copy);
                }
            }
            Command::CopyCache { ticket, .. } => ticket.fail(CacheError::Unsupported),
            Command::RemoveAgent { agent } => {
                self.cancel_all(agent);
                self.agents.remove(&agent);
            }
            Command::Ask { agent, reply_id, prompt, options } => {
                let arrived_micros = self.now_micros();
                let ask = Ask::new(reply_id, prompt, options, arrived_micros);
                if let Err(error) = self.ask(agent, ask) {
                    self.emit(agent, reply_id, ReplyEvent::Failed(error));
                }
            }
            Command::Cancel { agent, reply_id } => self.cancel(agent, reply_id, u32::MAX),
            Command::CancelHeard { agent, reply_id, heard_bytes } => {
                self.cancel(agent, reply_id, heard_bytes);
            }
        }
    }

    fn ask(&mut self, id: AgentId, ask: Ask) -> Result<(), ReplyError> {
        let options = &self.server.options;
        let (asks, asks_max, agents_max) = (self.asks_open, options.asks_max, options.agents_max);
        let (bytes, bytes_max) = (self.ask_bytes, options.ask_bytes_max);
        let is_full = self.agents.len() >= agents_max as usize;
        let Some(agent) = self.agents.get_mut(&id) else {
            return Err(if is_full {
                ReplyError::TooManyAgents { agents_max }
            } else {
                ReplyError::UnknownAgent
            });
        };
        if agent.asks.len() >= ASKS_WAITING_MAX {
            return Err(ReplyError::Busy { waiting: ASKS_WAITING_MAX as u32 });
        }
        if asks >= asks_max || bytes_of(&ask) > bytes_max.saturating_sub(bytes) {
            return Err(ReplyError::TooManyAsks { asks, asks_max, bytes, bytes_max });
        }
        self.asks_open += 1;
        self.ask_bytes += bytes_of(&ask);
        agent.asks.push(ask);
        self.place(id);
        Ok(())
    }

    /// Adds an agent to the agents that wait for a request, or removes it.
    fn place(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let next = agent.asks.front().filter(|_| agent.reply.is_none());
        let place = next.map(|ask| {
            let ahead = i64::from(agent.spec.priority).saturating_mul(PRIORITY_MICROS);
            ((ask.arrived_micros as i64).saturating_sub(ahead), ask.reply_id)
        });
        if let Some(old) = std::mem::replace(&mut agent.place, place) {
            self.waiting.remove(&old);
        }
        if let Some(place) = place {
            self.waiting.insert(place, id);
        }
    }

    fn cancel_all(&mut self, id: AgentId) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let reply = agent.reply.as_ref().map(|reply| reply.reply_id);
        let asks: Vec<ReplyId> = agent.asks.iter().map(|ask| ask.reply_id).collect();
        for reply_id in reply.into_iter().chain(asks) {
            self.cancel(id, reply_id, u32::MAX);
        }
    }

    fn cancel(&mut self, id: AgentId, reply_id: ReplyId, heard_bytes: u32) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if let Some(reply) = agent.reply.as_mut().filter(|reply| reply.reply_id == reply_id) {
            reply.heard_bytes = heard_bytes;
            return self.finish(id, FinishReason::Cancelled, None);
        }
        let taken = agent.asks.cancel(|known| known == reply_id);
        if taken.is_empty() {
            if heard_bytes < u32::MAX {
                agent.history.shorten_reply(reply_id, heard_bytes);
            }
            return;
        }
        agent.settle();
        for ask in &taken {
            self.asks_open -= 1;
            self.ask_bytes -= bytes_of(ask);
        }
        let reason = FinishReason::Cancelled;
        self.emit(id, reply_id, ReplyEvent::Finished { reason, usage: Usage::default() });
        self.place(id);
    }

    /// Begins the request of the agent that is next.
    fn begin_next(&mut self, permit: OwnedSemaphorePermit) {
        let mut permit = Some(permit);
        while let Some(held) = permit.take() {
            let Some((place, id)) = self.waiting.pop_first() else { return };
            let now_micros = self.now_micros();
            let Some(agent) = self.agents.get_mut(&id) else {
                permit = Some(held);
                continue;
            };
            debug_assert_eq!(agent.place, Some(place));
            agent.place = None;
            let Some(ask) = agent.next_ask() else {
                permit = Some(held);
                continue;
            };
            permit = self.begin(id, ask, held, now_micros);
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
        let (reply_id, arrived_micros, bytes) = (ask.reply_id, ask.arrived_micros, bytes_of(&ask));
        let again = if ask.prompt == Prompt::Again { agent.history.take_reply() } else { None };
        ask.prompt = again.unwrap_or(ask.prompt);
        let prepared = match ask.prompt {
            Prompt::Again => Err(ReplyEvent::Failed(ReplyError::NoReply)),
            _ => prepare(&self.server, id, agent, &ask),
        };
        let (body, rules, prompt_tokens) = match prepared {
            Ok(prepared) => prepared,
            Err(end) => {
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
        let question = match ask.prompt {
            Prompt::Chat(question) => Some(question),
            _ => None,
        };
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

    fn task_ended(&mut self, ended: Result<(task::Id, ()), task::JoinError>) {
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

    fn progress(&mut self, agent: AgentId, reply_id: ReplyId, progress: Progress) {
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
                        reply.actions.push(call_json(&call.name, &call.arguments));
                        let (name, arguments) = (call.name, call.arguments);
                        ReplyEvent::Call(Box::new(Call { id, name, arguments }))
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
        delta: impl Fn(InlineText<DELTA_BYTES_MAX>, u32) -> ReplyEvent,
    ) {
        let (mut rest, mut tokens) = (text, 1);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.floor_char_boundary(DELTA_BYTES_MAX));
            let mut inline = InlineText::new();
            inline.push(piece);
            self.emit(agent, reply_id, delta(inline, std::mem::take(&mut tokens)));
            rest = behind;
        }
    }

    fn finish(&mut self, id: AgentId, reason: FinishReason, end: Option<End>) {
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

/// Ends every reply and every ask, also if the hub panicked.
impl Drop for Hub {
    fn drop(&mut self) {
        self.tasks.abort_all();
        self.commands.close();
        let gone = || ReplyEvent::Failed(ReplyError::EngineGone(self.reason.into()));
        let mut events = std::mem::take(&mut self.outbox);
        for (&agent, known) in &self.agents {
            let reply = known.reply.as_ref().map(|reply| reply.reply_id);
            let asks = known.asks.iter().map(|ask| ask.reply_id);
            let ended = reply.into_iter().chain(asks);
            events.extend(ended.map(|reply_id| Event { agent, reply_id, what: gone() }));
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Ask { agent, reply_id, .. } = command {
                events.push_back(Event { agent, reply_id, what: gone() });
            }
        }
        self.channels.end(events);
    }
}

/// Bytes of the texts of an ask.
fn bytes_of(ask: &Ask) -> u64 {
    (ask.prompt.bytes() + ask.options.source_bytes()) as u64
}

async fn next(permit: &mut Option<NextPermit>) -> Option<OwnedSemaphorePermit> {
    match permit {
        Some(permit) => permit.await,
        None => std::future::pending().await,
    }
}

/// The request of an ask, its rules and an estimate of its prompt tokens; otherwise the end of the
/// reply.
fn prepare(
    server: &Server,
    id: AgentId,
    agent: &mut Agent,
    ask: &Ask,
) -> Result<(Vec<u8>, Rules, u32), ReplyEvent> {
    let failed = ReplyEvent::Failed;
    let options = &server.options;
    let can = options.dialect.capabilities();
    can.check(&agent.spec, &ask.prompt, &ask.options)
        .map_err(|missing| failed(ReplyError::Unsupported(missing)))?;
    let question = match &ask.prompt {
        Prompt::Chat(question) => Some(question.as_str()),
        _ => None,
    };
    let actions = agent.spec.actions.as_ref();
    let policy = match actions.and_then(|actions| actions.fault.clone()) {
        Some(fault) => Err(fault),
        None => {
            let policy = agent.history.call_policy(&agent.spec, &ask.options, question.is_some());
            policy.map_err(Arc::new)
        }
    };
    let policy = policy.map_err(|error| failed(ReplyError::Actions(error)))?;
    fit(options.context_tokens, agent, question).map_err(|too_long| match too_long {
        TooLong::Stop => {
            let reason = FinishReason::ContextFull;
            ReplyEvent::Finished { reason, usage: Usage::default() }
        }
        TooLong::Refuse(error) => failed(error),
    })?;
    if agent.spec.reply_tokens_max == 0 {
        let reason = FinishReason::Length;
        return Err(ReplyEvent::Finished { reason, usage: Usage::default() });
    }
    let spec = &agent.spec;
    let tokens = |text: &str| (text.len() / BYTES_PER_TOKEN) as u32;
    let note = ask.options.notes.as_ref().and_then(|notes| notes.text(tokens));
    let asked = Asked {
        spec,
        turns: agent.history.turns(),
        note: note.as_deref(),
        question,
        constraint: ask.options.constraint.as_ref().or(spec.constraint.as_ref()),
        policy,
        seed: ask.options.seed,
        cache_key: &format!("walla-{}-{}", std::process::id(), id.0),
    };
    let body = request::body(options, &asked).map_err(failed)?;
    let actions = spec.actions.as_ref();
    let rules = Rules {
        actions: actions
            .filter(|_| policy.is_some_and(|policy| policy != ActionPolicy::Off))
            .map(|actions| actions.set.clone()),
        calls_max: actions.map_or(0, |actions| actions.calls_max),
        call_bytes_max: actions.map_or(4_096, |actions| actions.call_bytes_max as usize),
        reply_bytes_max: options.sizes.reply_bytes,
        stop_strings: spec.stop_strings.clone(),
        has_candidates: spec.sampling.candidates() > 0,
    };
    let prompt_tokens = u32::try_from(body.len() / BYTES_PER_TOKEN).unwrap_or(u32::MAX);
    Ok((body, rules, prompt_tokens))
}

/// The conversation does not fit in the context.
enum TooLong {
    Refuse(ReplyError),
    Stop,
}

/// Drops the oldest turns until the conversation fits in the context, half of it at once.
fn fit(context_tokens: u32, agent: &mut Agent, question: Option<&str>) -> Result<(), TooLong> {
    let AgentSpec { persona, reply_tokens_max, context_policy, .. } = &agent.spec;
    let bytes = |turn: &Turn| turn.text.len() + 4 * BYTES_PER_TOKEN;
    let reply_tokens = (*reply_tokens_max).min(context_tokens / 2);
    let bytes_max = (context_tokens - reply_tokens) as usize * BYTES_PER_TOKEN;
    let fixed = persona.len() + question.map_or(0, str::len);
    let turns = agent.history.turns();
    let total = fixed + turns.iter().map(bytes).sum::<usize>();
    if total <= bytes_max {
        return Ok(());
    }
    let too_long = |bytes: usize| {
        let prompt_tokens = u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX);
        TooLong::Refuse(ReplyError::PromptTooLong { prompt_tokens, context_tokens })
    };
    match context_policy {
        ContextPolicy::Refuse => return Err(too_long(total)),
        ContextPolicy::Stop => return Err(TooLong::Stop),
        ContextPolicy::DropOldest => {}
    }
    if fixed > bytes_max {
        return Err(too_long(fixed));
    }
    // Half of the space, so that the beginning of the prompt stays the same for some asks.
    let goal = fixed + (bytes_max - fixed) / 2;
    let (mut left, mut dropped) = (total, 0);
    while dropped < turns.len() {
        let is_begin = |at: usize| {
            let speaker = turns[at].speaker;
            at == 0 || !speaker.continues(turns[at - 1].speaker)
        };
        if left <= goal && is_begin(dropped) {
            break;
        }
        left -= bytes(&turns[dropped]);
        dropped += 1;
    }
    agent.history.drop_oldest(dropped);
    Ok(())
}
