//! State of the plugin: the known agents, their open asks and the changes that are not sent to the
//! engine yet.
//!
//! Nothing here blocks and nothing is lost. Pending changes are stored per agent,
//! not as a queue of commands: a hundred edits of a persona in one frame are one change. The memory
//! is bounded by the number of agents and the number of asks, and both numbers are bounded. If the
//! engine's mailbox is full, at most one command is held back. It is sent before all others in the
//! next frame.
//!
//! Rules:
//! 1. A record is created in the frame that first sees the agent. It is removed when the agent is
//!    gone *and* each of its asks has ended *and* its removal was sent to the engine.
//! 2. An ask ends exactly once: by a terminal event of the engine if it was sent, otherwise here
//!    ([`EngineBridge::local_ends`]). In both cases [`publish`] reports the end to the game.
//! 3. The component's conversation is authoritative. Replacing it outdates every ask made before:
//!    each is cancelled, and text that its reply still produces is not recorded. An exchange is
//!    recorded if its reply began, however it ended. Where the engine may have decided differently,
//!    the conversation is sent to it again. Inserting the component replaces the conversation.
//!    While an agent has no component, no conversation is sent, and the engine keeps its own.
//! 4. A turn that the game pushes follows the exchanges of all asks that were collected before it
//!    and precedes all others. This holds in the component and in the engine, which receives asks
//!    and turns in this order.

mod again;
mod cancel_heard;
mod collect;
mod copies;
mod cues;
mod forward;
mod map;
mod parts;
mod publish;
mod results;
mod submit;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bevy_ecs::entity::EntityHashMap;
use bevy_ecs::prelude::*;
use walla_memory::{Recall, RecallClient};
use walla_runtime::{
    AgentId, AskOptions, Command, Event, FinishReason, MAX_ASKS_WAITING, Prompt, ReplyError,
    ReplyId, Score, SentenceSplitter, Turn,
};

use crate::conversation::{Conversation, EditId};
use crate::error::WallaError;
use crate::sentence;
use crate::walla::HostTimes;
use map::AgentMap;
use walla_runtime::EngineClient;

pub(crate) use collect::collect;
pub(crate) use forward::{forward_ask, forward_cancel};
#[cfg(feature = "assets")]
pub(crate) use parts::Preparing;
pub(crate) use publish::{announce, publish};
pub(crate) use results::{forward_action_result, take_result_messages};
pub(crate) use submit::{pause, submit};

/// State of the plugin.
#[derive(Resource, Default)]
pub(crate) struct EngineBridge {
    /// `None` if the engine could not be started.
    client: Option<Arc<dyn EngineClient>>,
    /// The reason why agents cannot speak.
    failure: Option<WallaError>,
    /// The app has one engine, so no agent can name another.
    is_alone: bool,
    was_ready: bool,
    /// Whether the engine evaluates agents in the background, which needs frames.
    has_background: bool,
    records: AgentMap<Record>,
    id_by_entity: EntityHashMap<AgentId>,
    /// Agents with pending changes, in the order of their first one.
    pending_agents: VecDeque<AgentId>,
    /// A command that was refused because the mailbox was full.
    held_back: Option<Command>,
    /// Asks that ended without the engine.
    local_ends: VecDeque<LocalEnd>,
    /// Cancels that were triggered in this frame, in order: the number of the message, and the
    /// number of asks that were written before it.
    cancel_requests: Vec<(usize, usize)>,
    /// Agents that were removed in this frame. Asks with a lower number were made before the
    /// removal.
    removed_this_frame: EntityHashMap<usize>,
    results: results::Results,
    /// Number of the next ask to be read.
    asks_read: usize,
    /// The client is paused.
    is_paused: bool,
    /// Copy of `WallaSettings::publish_fragments`.
    publishes_fragments: bool,
    /// Asks whose reply has not begun.
    asks_waiting: usize,
    /// Events about unknown agents or replies.
    events_unknown: u64,
    /// Buffer for one batch of events; empty between frames.
    inbox: Vec<Event>,
    copies: copies::Copies,
    host_times: HostTimes,
    /// Frames so far, up to 2.
    frames: u8,
}

/// An agent's state in the plugin. The fields that every delta uses are the first ones, so that
/// they are in two cache lines.
#[repr(C)]
struct Record {
    entity: Entity,
    /// Oldest first. Sent asks, at most [`MAX_ASKS_WAITING`], precede unsent ones.
    asks: VecDeque<OpenAsk>,
    sentences: SentenceSplitter,
    /// The entity is no longer an agent.
    is_removed: bool,
    /// [`Command::AddAgent`] was sent to the engine.
    added: bool,
    pending: PendingChanges,
    /// An ask ended before its reply began, or its exchange could not be added to the component:
    /// only the engine knows whether it is part of the conversation.
    needs_resend: bool,
    /// Heard bytes of the reply in progress.
    heard_bytes: u32,
    /// Calls of the reply in progress, for the conversation.
    actions: Vec<Turn>,
    /// The latest replies with calls, oldest first, at most
    /// [`MAX_EXCHANGES_KNOWN`](walla_runtime::MAX_EXCHANGES_KNOWN).
    acted: VecDeque<results::Acted>,
    /// Bytes of the reply in progress up to the end of its latest sentence.
    sentence_end: usize,
    /// The state of the conversation that the engine knows.
    edit: EditId,
    /// Turns that the game has pushed since then and that were collected. Wraps around.
    pushed: u32,
    /// The latest of them that were not sent to the engine.
    unsent_turns: u32,
    /// Ended replies with their heard bytes that were not sent to the engine.
    shortened: Vec<(ReplyId, u32)>,
    /// The latest reply in the conversation when the whole conversation was last sent to the
    /// engine. Of this and earlier replies the engine knows only the text, not the id.
    last_resent_reply: Option<ReplyId>,
    reply_bytes: usize,
    /// The reply in progress of an agent with cues.
    cues: Option<Box<cues::Separation>>,
}

/// Changes of an agent that are not sent to the engine yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PendingChanges {
    /// The agent is in [`EngineBridge::pending_agents`].
    queued: bool,
    /// Send the whole agent, or only its changes if it was added.
    spec: bool,
    /// Send the level of detail, unless the whole agent is sent.
    detail: bool,
    /// Send the conversation.
    conversation: bool,
    /// Check the asks: some can be sent or must be cancelled.
    asks: bool,
    /// Remove the agent.
    removal: bool,
}

/// An ask without a terminal event.
struct OpenAsk {
    reply_id: ReplyId,
    tag: u64,
    /// Boxed, so that an ask fits in one cache line.
    content: Box<AskContent>,
    /// Reserved for the reply's turn in the conversation, so that the end of a reply allocates
    /// nothing.
    turn: String,
    stage: AskStage,
    /// To be cancelled; the cancel is not sent to the engine yet.
    cancel: bool,
    /// The conversation was replaced after this ask.
    outdated: bool,
    /// The reply is shortened to its heard part: see [`Record::heard_bytes`].
    is_shortened: bool,
    /// Turns that the game has pushed after this ask.
    turns_after: u16,
}

/// Content of an ask.
struct AskContent {
    prompt: Prompt,
    /// It leaves no turn, and is not spoken.
    is_aside: bool,
    speaker: Option<Entity>,
    /// Taken when the ask is sent.
    options: AskOptions,
    /// Turns that a repetition has removed from the conversation.
    removed: Vec<Turn>,
    /// Scores so far.
    scores: Vec<Score>,
}

/// Whether the reply becomes part of the conversation.
fn is_in_conversation(prompt: &Prompt) -> bool {
    prompt.is_question() || matches!(prompt, Prompt::Continue | Prompt::Again)
}

/// An ask fits in a cache line.
const _: () = assert!(size_of::<OpenAsk>() <= 64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskStage {
    Unsent,
    Sent,
    Started,
}

/// Names an ask in its events.
#[derive(Clone, Copy)]
struct AskId {
    reply_id: ReplyId,
    tag: u64,
}

/// The end of an ask that was not sent to the engine.
struct LocalEnd {
    entity: Entity,
    ask: AskId,
    outcome: Result<FinishReason, ReplyError>,
    /// Turns that it has removed from the conversation, unless that was replaced.
    removed: Vec<Turn>,
    /// Turns that the game has pushed after the ask.
    turns_after: u16,
}

impl EngineBridge {
    pub(crate) fn new(client: Result<Arc<dyn EngineClient>, WallaError>, is_alone: bool) -> Self {
        let mut bridge = Self::default();
        bridge.is_alone = is_alone;
        match client {
            Ok(client) => bridge.client = Some(client),
            Err(error) => bridge.failure = Some(error),
        }
        bridge.inbox.reserve_exact(publish::EVENTS_AT_ONCE as usize);
        bridge
    }

    /// Puts a client with memories before the engine's.
    pub(crate) fn with_memories(&mut self, recall: &Recall) -> RecallClient {
        // Without an engine, asks fail as before.
        let Some(client) = self.client.take() else {
            return recall.client(crate::scripted::ScriptedEngine::new(|_, _| String::new()));
        };
        let client = recall.client_of(client);
        self.client = Some(Arc::new(client.clone()));
        client
    }

    /// The engine's id of an agent that was seen.
    pub(crate) fn agent_id(&self, agent: Entity) -> Option<AgentId> {
        self.id_by_entity.get(&agent).copied()
    }

    /// The reply in progress of an agent, with its text so far.
    #[cfg(feature = "speech")]
    pub(crate) fn open_reply(&self, agent: Entity) -> Option<(ReplyId, &str)> {
        let record = self.records.get(self.id_by_entity.get(&agent)?)?;
        let started = |ask: &&OpenAsk| ask.stage == AskStage::Started && !ask.content.is_aside;
        record.asks.iter().find(started).map(|ask| (ask.reply_id, ask.turn.as_str()))
    }

    /// The latest reply of an agent that has not ended: a cancel ends it and those before it.
    #[cfg(feature = "speech")]
    pub(crate) fn last_reply(&self, agent: Entity) -> Option<ReplyId> {
        let record = self.records.get(self.id_by_entity.get(&agent)?)?;
        record.asks.iter().map(|ask| ask.reply_id).max()
    }

    /// Records a cancel. `asks_before`: number of asks ever written before it.
    pub(crate) fn cancel_requested(&mut self, number: usize, agent: Entity, asks_before: usize) {
        self.cancel_results(agent);
        self.cancel_requests.push((number, asks_before));
    }

    /// Number of asks that were written before this cancel; 0 if it was not recorded.
    fn asks_before(&self, cancel: usize) -> usize {
        let noted = self.cancel_requests.iter().find(|(number, _)| *number == cancel);
        noted.map_or(0, |(_, asks_before)| *asks_before)
    }

    /// Called by the component's hook when the entity is no longer an agent. Cancels its asks. Asks
    /// with a number below `asks_before` were made before the removal.
    pub(crate) fn agent_removed(&mut self, entity: Entity, asks_before: usize) {
        if asks_before > self.asks_read {
            // An ask has not been collected yet.
            self.removed_this_frame.insert(entity, asks_before);
        }
        let Some(id) = self.id_by_entity.remove(&entity) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        record.is_removed = true;
        record.pending.removal = true;
        self.cancel_all(id);
        self.mark_pending(id);
    }

    /// Whether any ask is open. The search ends at the first agent with an open ask.
    fn is_anything_asked(&self) -> bool {
        self.records.values().any(|record| !record.asks.is_empty())
    }

    /// Adds an agent to the list of agents with pending changes.
    fn mark_pending(&mut self, id: AgentId) {
        if let Some(record) = self.records.get_mut(&id)
            && !record.pending.queued
        {
            record.pending.queued = true;
            self.pending_agents.push_back(id);
        }
    }

    /// Cancels all asks of an agent.
    fn cancel_all(&mut self, id: AgentId) {
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.asks.is_empty() {
            return;
        }
        for ask in &mut record.asks {
            ask.cancel = true;
        }
        record.pending.asks = true;
        self.mark_pending(id);
    }

    /// Removes the record of an agent that is gone, once rule 1 allows it.
    fn forget_if_done(&mut self, id: AgentId) {
        if let Some(record) = self.records.get(&id)
            && record.is_removed
            && !record.pending.removal
            && record.asks.is_empty()
        {
            self.records.remove(&id);
        }
    }

    fn engine_gone(&self) -> Option<ReplyError> {
        self.failure.as_ref().map(|failure| ReplyError::EngineGone(failure.to_string()))
    }
}

impl Drop for EngineBridge {
    fn drop(&mut self) {
        if self.frames < 2 && self.is_anything_asked() {
            tracing::warn!(
                target: "walla::load",
                "the app has ended after its first frame, with open asks: a headless app needs a \
                 runner (ScheduleRunnerPlugin::run_loop)"
            );
        }
    }
}

impl OpenAsk {
    fn id(&self) -> AskId {
        AskId { reply_id: self.reply_id, tag: self.tag }
    }

    /// Its end without the engine.
    fn into_local_end(self, entity: Entity, outcome: Result<FinishReason, ReplyError>) -> LocalEnd {
        let ask = self.id();
        let removed = if self.outdated { Vec::new() } else { self.content.removed };
        LocalEnd { entity, ask, outcome, removed, turns_after: self.turns_after }
    }
}

impl Record {
    fn new(entity: Entity, conversation: Option<&Conversation>, max_asks: usize) -> Self {
        let edit = conversation.map_or(EditId::NONE, Conversation::edit);
        Self {
            entity,
            pending: PendingChanges { spec: true, ..PendingChanges::default() },
            added: false,
            is_removed: false,
            edit,
            pushed: conversation.map_or(0, Conversation::pushed),
            unsent_turns: 0,
            shortened: Vec::new(),
            heard_bytes: u32::MAX,
            sentence_end: 0,
            actions: Vec::new(),
            acted: VecDeque::new(),
            needs_resend: false,
            last_resent_reply: None,
            reply_bytes: 0,
            cues: None,
            asks: VecDeque::with_capacity(max_asks.min(MAX_ASKS_WAITING)),
            sentences: sentence::splitter(),
        }
    }

    /// Whether the conversation is sent again, because no ask is open and the engine's copy may
    /// differ.
    fn resend_when_idle(&mut self) -> bool {
        let is_idle = self.asks.is_empty() && !self.is_removed;
        let resends = is_idle && std::mem::take(&mut self.needs_resend) && self.added;
        self.pending.conversation |= resends;
        resends
    }

    /// Whether any ask is open that is not cancelled.
    fn is_asked_more(&self) -> bool {
        self.asks.iter().any(|ask| !ask.cancel && !ask.content.is_aside)
    }
}

/// Measures one of the plugin's systems and records a trace span.
struct Stopwatch {
    start: Instant,
    _mark: walla_trace::Entered,
}

impl Stopwatch {
    fn start(mark: walla_trace::Stage) -> Self {
        Self { start: Instant::now(), _mark: walla_trace::enter(mark) }
    }

    fn read(&self) -> Duration {
        self.start.elapsed()
    }
}
