//! Entries from calls, events, and the conversation.

use std::sync::Arc;
use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_ecs::query::QueryData;
use bevy_ecs::schedule::IntoScheduleConfigs;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_memory::{EXCHANGE_TAG, OBSERVATION_TAG};
use walla_memory::{Entry, EntryId};
use walla_runtime::{FinishReason, ReplyId, Speaker, Turn};

use super::memorized::{Memorized, Talker};
use super::texts::{MemoryTexts, MemoryTurn};
use super::{AgentMemory, MemoryTime, sync};
use crate::bridge;
use crate::conversation::{Conversation, Heard};
use crate::cues::AgentCues;
use crate::reply::ReplyFinished;
use crate::systems::{Schedules, WallaSystems};

/// Adds an entry to the [`AgentMemory`] of an agent: trigger it, write it as a message, or call
/// [`RememberCommands::remember`]. Without the component, or if the entry is refused, the entry is
/// logged as a warning and dropped; [`Memory::add`](walla_memory::Memory::add) returns the error.
#[derive(Clone, Debug, PartialEq, EntityEvent, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Event, Message, Clone, Debug, PartialEq)
)]
pub struct Remember {
    /// An entity with a [`AgentMemory`].
    #[event_target]
    pub agent: Entity,
    /// The entry.
    pub entry: Entry,
    /// Its time. `None`: now ([`MemoryTime`]).
    pub time: Option<Duration>,
}

impl Remember {
    /// An entry that happens now.
    #[must_use]
    pub fn new(agent: Entity, entry: Entry) -> Self {
        Self { agent, entry, time: None }
    }
}

/// [`Remember`] as a method of [`Commands`].
pub trait RememberCommands {
    /// Adds an entry with this text to the [`AgentMemory`] of an agent.
    fn remember(&mut self, agent: Entity, text: impl Into<Arc<str>>) -> &mut Self;
}

impl RememberCommands for Commands<'_, '_> {
    fn remember(&mut self, agent: Entity, text: impl Into<Arc<str>>) -> &mut Self {
        self.trigger(Remember::new(agent, Entry::new(text)));
        self
    }
}

/// Turns of the conversation become entries of the agent's [`AgentMemory`], so that it remembers
/// turns that the engine's context no longer holds. [`MemoryTexts`] has their texts.
///
/// Exchanges become entries when their replies end, without their [cues](crate::cues), observations
/// ([`Conversation::push`](crate::Conversation::push)) and [overheard
/// turns](crate::Conversation::overhear) in the frame in which they are pushed.
/// Of a reply of [cues](crate::cues) alone, the question is remembered.
/// Replies without text, cut replies without a question, and turns that were loaded or edited
/// become none. The latest entries are not found while they are
/// [recent](super::AgentKnowledge::recent_skipped). Of a reply that is
/// [shortened](crate::ask::Cancel::heard_until) later, the entry has the heard part.
///
/// Undone turns are forgotten: a rewind, an edited turn and a [repeated
/// reply](crate::Ask::again) remove the entries of the turns that they remove or change, among the
/// latest 32. [`Conversation::clear`] and a new conversation remove none.
#[derive(Component, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Component, Default, Clone, Debug, PartialEq)
)]
#[require(AgentMemory, Memorized)]
pub struct Memorizes {
    /// Whether exchanges become entries, with [`EXCHANGE_TAG`]. Default: `true`.
    pub exchanges: bool,
    /// Whether observations become entries, with [`OBSERVATION_TAG`]. Default: `true`.
    pub observations: bool,
    /// Importance of these entries, 0 to 1. Default: 0.3, less than that of an entry that the game
    /// writes (0.5).
    pub importance: f32,
}

impl Default for Memorizes {
    fn default() -> Self {
        Self { exchanges: true, observations: true, importance: 0.3 }
    }
}

/// Adds what works before the engine's plugin is there.
pub(super) fn add_observers(app: &mut App) {
    app.add_observer(remember_triggered).add_observer(memorize_exchange);
}

pub(super) fn add_systems(app: &mut App, schedules: Schedules) {
    schedules.add_submit_systems(
        app,
        (remember_messages, memorize_observations)
            .chain()
            .after(bridge::collect)
            .before(sync::send_memories)
            .in_set(WallaSystems::Collect),
    );
}

fn remember(memory: Option<Mut<AgentMemory>>, remember: &Remember, now: Duration) {
    let Remember { agent, entry, time } = remember;
    let Some(mut memory) = memory else {
        tracing::warn!(target: "walla::memory", %agent, "an agent without AgentMemory remembers nothing");
        return;
    };
    if let Err(error) = memory.add_at(entry.clone(), time.unwrap_or(now)) {
        tracing::warn!(target: "walla::memory", %agent, %error, "an entry is dropped");
    }
}

fn remember_triggered(
    event: On<Remember>,
    mut memories: Query<&mut AgentMemory, Allow<Disabled>>,
    now: Res<MemoryTime>,
) {
    remember(memories.get_mut(event.agent).ok(), event.event(), now.0);
}

fn remember_messages(
    mut events: MessageReader<Remember>,
    mut memories: Query<&mut AgentMemory, Allow<Disabled>>,
    now: Res<MemoryTime>,
) {
    for event in events.read() {
        remember(memories.get_mut(event.agent).ok(), event, now.0);
    }
}

/// Adds a turn of the conversation. Texts longer than an entry are cut.
fn memorize(
    memory: &mut AgentMemory,
    text: &str,
    tag: &'static str,
    importance: f32,
    now: Duration,
) -> Option<EntryId> {
    let most = (memory.limits().max_entry_bytes as usize).saturating_sub(tag.len());
    let text = &text[..text.floor_char_boundary(most)];
    if text.trim().is_empty() {
        return None;
    }
    let importance = if importance.is_finite() { importance.clamp(0.0, 1.0) } else { 0.0 };
    let entry = Entry::new(text).importance(importance).tags([tag]);
    match memory.add_at(entry, now) {
        Ok(added) => Some(added.id),
        Err(error) => {
            tracing::debug!(target: "walla::memory", %error, "a turn is not remembered");
            None
        }
    }
}

/// An agent that memorizes its conversation.
type Talking = (
    Entity,
    &'static mut AgentMemory,
    &'static Memorizes,
    &'static Conversation,
    &'static mut Memorized,
    Option<&'static Name>,
    Option<&'static AgentCues>,
);

fn memorize_exchange(
    finished: On<ReplyFinished>,
    mut agents: Query<Talking, Allow<Disabled>>,
    names: Query<&Name, Allow<Disabled>>,
    texts: Res<MemoryTexts>,
    now: Res<MemoryTime>,
) {
    if let Ok(agent) = agents.get_mut(finished.agent) {
        memorize_reply(agent, (finished.reply_id, finished.reason), &names, (&texts, now.0));
    }
}

/// Adds the exchange of a reply that has ended for this reason.
fn memorize_reply(
    agent: <Talking as QueryData>::Item<'_, '_>,
    (reply_id, reason): (ReplyId, FinishReason),
    names: &Query<&Name, Allow<Disabled>>,
    (texts, now): (&MemoryTexts, Duration),
) {
    let (agent, mut memory, memorizes, conversation, mut memorized, name, cues) = agent;
    let Some(exchange) = conversation.exchange(reply_id).filter(|_| memorizes.exchanges) else {
        return;
    };
    let Heard { question, speaker, reply } = exchange;
    let speaker_name = speaker.and_then(|speaker| names.get(speaker).ok()).map(Name::as_str);
    let spoken = cues.map(|AgentCues(cues)| cues.of_reply(reply, reason).0);
    let spoken = spoken.as_deref().unwrap_or(reply).trim();
    let agent = (agent, name.map(Name::as_str));
    let named = question.and_then(|turn| turn.name.as_deref());
    // A reply without words answers a question if it has cues.
    if spoken.is_empty() && (question.is_none() || reply.is_empty()) {
        return;
    }
    let turn = MemoryTurn::of(agent, question.map(Turn::text), spoken);
    let turn = MemoryTurn { speaker, speaker_name: named.or(speaker_name), ..turn };
    if let Some(text) = (texts.exchange)(&turn)
        && let Some(id) = memorize(&mut memory, &text, EXCHANGE_TAG, memorizes.importance, now)
    {
        let turns = question.cloned().into_iter().chain([Turn::new(Speaker::Agent, reply)]);
        memorized.add(&memory, id, turns.collect(), Some(reply_id));
    }
}

fn memorize_observations(
    mut agents: Query<Talking, (Changed<Conversation>, Allow<Disabled>)>,
    names: Query<&Name, Allow<Disabled>>,
    texts: Res<MemoryTexts>,
    now: Res<MemoryTime>,
) {
    for mut agent in &mut agents {
        let (entity, memory, memorizes, conversation, memorized, name, cues) = &mut agent;
        let of = (*entity, name.map(Name::as_str));
        let talker = Talker { agent: of, cues: *cues };
        let changes = memorized.update(memory, conversation, talker, &texts);
        let pushed = if memorizes.observations { changes.pushed } else { 0 };
        let turns = conversation.turns();
        // Exchanges that ended since were inserted before them.
        for turn in &turns[turns.len().saturating_sub(pushed)..] {
            let of = MemoryTurn::of(of, None, &turn.text);
            let of = MemoryTurn { speaker_name: turn.name.as_deref(), ..of };
            if (turn.speaker == Speaker::Observation || turn.name.is_some())
                && let Some(text) = (texts.observation)(&of)
                && let Some(id) =
                    memorize(memory, &text, OBSERVATION_TAG, memorizes.importance, now.0)
            {
                memorized.add(memory, id, vec![turn.clone()], None);
            }
        }
        if let Some(reply) = changes.shortened {
            let reply = (reply, FinishReason::Cancelled);
            memorize_reply(agent, reply, &names, (&texts, now.0));
        }
    }
}
