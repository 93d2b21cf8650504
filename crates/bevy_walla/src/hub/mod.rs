//! The plugin's memory: which agents there are, what each was asked, what the engine does not know
//! yet.
//!
//! Nothing here waits and nothing is lost. What the engine must be told is kept as *wants* of each
//! agent, not as a queue of commands: a hundred edits of a persona in one frame are one change, and
//! the memory is bounded by the number of agents and of asks, both of which are bounded. At most
//! one command is held back, when the engine's mailbox is full, and goes first in the next frame.
//!
//! Rules:
//! 1. A record lives from the frame that sees the agent until the agent is gone *and* each of its
//!    asks has ended *and* the engine was told to remove it.
//! 2. An ask ends exactly once: by a terminal event of the engine if it was sent, else here
//!    ([`Hub::ended`]). Either way [`publish`] tells the game.
//! 3. The conversation of the component is the truth. Replacing it outdates every ask made before:
//!    each is cancelled, and whatever it still says is not written down. An exchange is written
//!    down if its reply began, however it ended; where the engine may see that otherwise, it is
//!    told the conversation again.
//! 4. A turn that the game pushes follows the exchanges of all asks that were collected before it
//!    and precedes all others, in the component and in the engine, which receives asks and turns in
//!    this order.

mod collect;
mod interrupt;
mod map;
mod publish;
mod submit;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bevy_ecs::entity::EntityHashMap;
use bevy_ecs::prelude::*;
use walla_runtime::{
    ASKS_WAITING_MAX, AgentId, Command, Event, FinishReason, GenerationId, ReplyError,
    SentenceSplitter,
};

use crate::ask::AskKind;
use crate::conversation::{Conversation, EditId};
use crate::error::WallaError;
use crate::link::Link;
use crate::sentence;
use map::AgentMap;

pub(crate) use collect::collect;
pub(crate) use publish::publish;
pub(crate) use submit::submit;

/// Everything the plugin knows.
#[derive(Resource)]
pub(crate) struct Hub {
    /// None if the engine could not even be started.
    link: Option<Box<dyn Link>>,
    /// Why no agent will speak.
    failure: Option<WallaError>,
    was_ready: bool,
    records: AgentMap<Record>,
    of_entity: EntityHashMap<AgentId>,
    /// Agents with wants, in the order in which they came up.
    wanting: VecDeque<AgentId>,
    /// A command that found the mailbox full.
    held_back: Option<Command>,
    /// Asks that ended on this side.
    ended: VecDeque<Ended>,
    /// Cancels and interruptions of this frame that were triggered, in order.
    hushes: Vec<Hush>,
    /// Agents that were removed in this frame. Numbers of asks before the removal are lower.
    gone: EntityHashMap<usize>,
    /// Number of the next ask to be read.
    asks_read: usize,
    /// The link is paused.
    is_paused: bool,
    /// As in the settings.
    publishes_fragments: bool,
    generations_named_here: u64,
    /// Asks that no agent has begun with.
    asks_waiting: usize,
    /// Events about agents or replies that are not known here.
    events_unknown: u64,
    /// Room for events that are taken at once; empty between frames.
    inbox: Vec<Event>,
    cost: FrameCost,
}

/// An agent, as the plugin sees it.
struct Record {
    entity: Entity,
    wants: Wants,
    /// The engine was sent [`Command::AddAgent`].
    added: bool,
    /// The entity is no agent any more.
    gone: bool,
    /// The state of the conversation that the engine knows.
    edit: EditId,
    /// Turns that the game has pushed to it, as far as they were seen. Wraps around.
    pushed: u32,
    /// The latest of them, which were not sent to the engine.
    unsent_turns: u32,
    /// Ended replies with their heard bytes, not sent to the engine yet.
    shortened: Vec<(GenerationId, u32)>,
    /// Heard bytes of the reply in progress.
    heard_bytes: u32,
    /// Bytes of the reply in progress up to the end of its latest sentence.
    sentence_end: usize,
    /// An ask ended before its reply began: only the engine knows whether the question counts as
    /// asked.
    in_doubt: bool,
    /// The latest reply in the conversation when the engine was last sent the whole: of this and
    /// earlier replies it knows the text only, not which reply it was.
    whole_sent: Option<GenerationId>,
    reply_bytes: usize,
    /// Oldest first: sent ones, at most [`ASKS_WAITING_MAX`], before unsent ones.
    asks: VecDeque<OpenAsk>,
    sentences: SentenceSplitter,
}

/// What the engine must be told about an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wants {
    /// The agent is in [`Hub::wanting`].
    queued: bool,
    /// Send the whole agent, or, if it was added, its changes.
    spec: bool,
    /// Send the level of detail, unless the whole agent is sent.
    detail: bool,
    /// Send the conversation.
    conversation: bool,
    /// Look through the asks: some can be sent or are to be cancelled.
    asks: bool,
    /// Remove the agent.
    removal: bool,
}

/// An ask without a terminal event.
struct OpenAsk {
    generation: GenerationId,
    tag: u64,
    /// Without a capacity, so that an ask takes one cache line.
    question: Box<str>,
    kind: AskKind,
    /// Reserved for the reply's turn in the conversation, so that the end of a reply allocates
    /// nothing.
    turn: String,
    stage: Stage,
    /// To be cancelled, and not told to the engine yet.
    cancel: bool,
    /// Asked in a conversation that was replaced since.
    outdated: bool,
    /// The reply is shortened to its heard part: see [`Record::heard_bytes`].
    interrupted: bool,
    /// Turns that the game has pushed since.
    turns_after: u16,
}

/// An ask in a cache line.
const _: () = assert!(size_of::<OpenAsk>() <= 64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unsent,
    Sent,
    Started,
}

/// The end of an ask that the engine never saw.
struct Ended {
    entity: Entity,
    generation: GenerationId,
    tag: u64,
    how: Result<FinishReason, ReplyError>,
}

/// The number of a [`Cancel`](crate::Cancel) or an [`Interrupt`](crate::Interrupt) as a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HushId {
    Cancel(usize),
    Interrupt(usize),
}

/// The position of one among the asks.
struct Hush {
    id: HushId,
    /// Numbers of the asks before it are lower.
    asks_before: usize,
}

/// Time that the plugin's systems took in the latest frame. Observers of the game are not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCost {
    /// [`WallaSystems::Publish`](crate::WallaSystems::Publish).
    pub publish: Duration,
    /// [`WallaSystems::Collect`](crate::WallaSystems::Collect).
    pub collect: Duration,
    /// [`WallaSystems::Submit`](crate::WallaSystems::Submit).
    pub submit: Duration,
}

impl FrameCost {
    /// All three.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.publish + self.collect + self.submit
    }
}

impl Hub {
    pub(crate) fn new(link: Result<Box<dyn Link>, WallaError>) -> Self {
        let (link, failure) = match link {
            Ok(link) => (Some(link), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            link,
            failure,
            was_ready: false,
            records: AgentMap::default(),
            of_entity: EntityHashMap::default(),
            wanting: VecDeque::new(),
            held_back: None,
            ended: VecDeque::new(),
            hushes: Vec::new(),
            gone: EntityHashMap::default(),
            asks_read: 0,
            is_paused: false,
            publishes_fragments: false,
            generations_named_here: 0,
            asks_waiting: 0,
            events_unknown: 0,
            inbox: Vec::with_capacity(publish::EVENTS_AT_ONCE as usize),
            cost: FrameCost::default(),
        }
    }

    /// Notes a cancel before which so many asks were written, of all that ever were.
    pub(crate) fn hushed(&mut self, id: HushId, asks_before: usize) {
        self.hushes.push(Hush { id, asks_before });
    }

    /// How many asks were written before this cancel; none if nobody knows.
    fn asks_before(&self, id: HushId) -> usize {
        let noted = self.hushes.iter().find(|hush| hush.id == id);
        noted.map_or(0, |hush| hush.asks_before)
    }

    /// The entity is no agent any more: its asks are cancelled. `asks_before`: numbers of those
    /// asks are lower. Called by the component's hook.
    pub(crate) fn agent_removed(&mut self, entity: Entity, asks_before: usize) {
        if asks_before > self.asks_read {
            // Some ask has not been collected yet.
            self.gone.insert(entity, asks_before);
        }
        let Some(id) = self.of_entity.remove(&entity) else { return };
        let Some(record) = self.records.get_mut(&id) else { return };
        record.gone = true;
        record.wants.removal = true;
        self.cancel_all(id);
        self.want(id);
    }

    /// Whether any ask has not ended. Looks no further than the first agent who is asked something.
    fn is_anything_asked(&self) -> bool {
        self.records.values().any(|record| !record.asks.is_empty())
    }

    /// Puts an agent on the list of those with wants.
    fn want(&mut self, id: AgentId) {
        if let Some(record) = self.records.get_mut(&id)
            && !record.wants.queued
        {
            record.wants.queued = true;
            self.wanting.push_back(id);
        }
    }

    /// Cancels everything that an agent was asked.
    fn cancel_all(&mut self, id: AgentId) {
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.asks.is_empty() {
            return;
        }
        for ask in &mut record.asks {
            ask.cancel = true;
        }
        record.wants.asks = true;
        self.want(id);
    }

    /// Ends an ask that the engine never saw.
    fn end_here(
        &mut self,
        entity: Entity,
        (generation, tag): (GenerationId, u64),
        how: Result<FinishReason, ReplyError>,
    ) {
        self.ended.push_back(Ended { entity, generation, tag, how });
    }

    /// A name for a reply. Without an engine they count down from the top, where no engine's names
    /// ever come.
    fn new_generation(&mut self) -> GenerationId {
        if let Some(link) = &self.link {
            return link.new_generation();
        }
        self.generations_named_here += 1;
        GenerationId(u64::MAX - self.generations_named_here)
    }

    /// Forgets the record of an agent that is gone and done with (rule 1).
    fn forget_if_done(&mut self, id: AgentId) {
        if let Some(record) = self.records.get(&id)
            && record.gone
            && !record.wants.removal
            && record.asks.is_empty()
        {
            self.records.remove(&id);
        }
    }

    fn engine_gone(&self) -> Option<ReplyError> {
        self.failure.as_ref().map(|failure| ReplyError::EngineGone(failure.to_string()))
    }
}

impl Record {
    fn new(entity: Entity, conversation: Option<&Conversation>, asks_max: usize) -> Self {
        let edit = conversation.map_or(EditId::NONE, Conversation::edit);
        Self {
            entity,
            wants: Wants { spec: true, ..Wants::default() },
            added: false,
            gone: false,
            edit,
            pushed: conversation.map_or(0, Conversation::pushed),
            unsent_turns: 0,
            shortened: Vec::new(),
            heard_bytes: u32::MAX,
            sentence_end: 0,
            in_doubt: false,
            whole_sent: None,
            reply_bytes: 0,
            asks: VecDeque::with_capacity(asks_max.min(ASKS_WAITING_MAX)),
            sentences: sentence::splitter(),
        }
    }

    /// Whether anything but the ask that ends now is asked.
    fn is_asked_more(&self) -> bool {
        self.asks.iter().any(|ask| !ask.cancel)
    }
}

/// Measures one of the plugin's systems, and shows it to whoever traces.
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
