//! How a game asks and interrupts: [`Ask`], [`Cancel`] and [`Interrupt`], as events, as messages or
//! by a method of `Commands`.

use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
#[cfg(feature = "reflect")]
use bevy_reflect::std_traits::ReflectDefault;
use walla_runtime::Prompt;

use walla_runtime::GenerationId;

use crate::hub::{Hub, HushId};
use crate::sentence::SentenceSpoken;

/// Asks an agent something: trigger it, write it as a message, or call [`AskCommands::ask`].
///
/// The answer comes as [`ReplyStarted`](crate::ReplyStarted), [`ReplyDelta`](crate::ReplyDelta)s
/// and [`SentenceSpoken`](crate::SentenceSpoken)s, and ends with exactly one of
/// [`ReplyFinished`](crate::ReplyFinished) and [`ReplyFailed`](crate::ReplyFailed). An agent that
/// still speaks answers when it has finished; before the model is loaded, asks wait for it. The
/// text may come from a player: it never becomes a control token, except in an ask of the kind
/// [`AskKind::RawTrusted`].
///
/// Whichever way it is asked, the ask can be read as a message until the next frame, for instance
/// to show the question.
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::prelude::*;
/// const QUEST: u64 = 7;
/// fn greet(mut commands: Commands, smith: Single<Entity, With<Agent>>) {
///     commands.trigger(Ask::new(*smith, "What does a horseshoe cost?"));
///     commands.ask(*smith, "And a sword?"); // the same, shorter
///     commands.ask_tagged(*smith, "Have you work for me?", QUEST);
/// }
/// fn take_quest(finished: On<ReplyFinished>, speech: Query<&Speech>) {
///     if finished.tag == QUEST && let Ok(speech) = speech.get(finished.agent) {
///         println!("New quest: {}", speech.text());
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Clone, Debug, PartialEq))]
pub struct Ask {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
    /// What is asked.
    pub text: String,
    /// How the model reads the text. Default: [`AskKind::Chat`].
    #[cfg_attr(feature = "reflect", reflect(default))]
    pub kind: AskKind,
    /// Tells this ask from others: whatever the game likes, for instance a number that it counts
    /// up, what the answer is for, or who asked ([`Entity::to_bits`]).
    /// [`ReplyStarted`](crate::ReplyStarted), [`ReplyFinished`](crate::ReplyFinished) and
    /// [`ReplyFailed`](crate::ReplyFailed) say it again. Default: `0`.
    pub tag: u64,
}

impl Ask {
    /// Asks `agent` something, with tag 0.
    #[must_use]
    pub fn new(agent: Entity, text: impl Into<String>) -> Self {
        Self { agent, text: text.into(), kind: AskKind::Chat, tag: 0 }
    }

    /// The same as [raw text](AskKind::Raw) to continue.
    #[must_use]
    pub fn raw(self) -> Self {
        Self { kind: AskKind::Raw, ..self }
    }

    /// The same as [raw text with markers](AskKind::RawTrusted) to continue. Never with text from a
    /// player.
    #[must_use]
    pub fn raw_trusted(self) -> Self {
        Self { kind: AskKind::RawTrusted, ..self }
    }

    /// The same with this tag.
    #[must_use]
    pub fn tagged(self, tag: u64) -> Self {
        Self { tag, ..self }
    }
}

/// How the model reads the text of an [`Ask`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Default, Clone, Debug, PartialEq, Hash))]
pub enum AskKind {
    /// The next turn of the agent's conversation, through the model's chat template.
    #[default]
    Chat,
    /// Text to continue, without template, persona and conversation; the reply does not become part
    /// of the conversation. The text may come from a player: no special token comes of it
    /// ([`Prompt::Raw`]).
    Raw,
    /// As [`Raw`](Self::Raw), but markers such as `<|im_start|>` become their tokens
    /// ([`Prompt::RawTrusted`]): for a chat format that the game writes itself. Never with text
    /// from a player.
    RawTrusted,
}

impl AskKind {
    /// The prompt with this text.
    pub(crate) fn prompt(self, text: String) -> Prompt {
        match self {
            Self::Chat => Prompt::Chat(text),
            Self::Raw => Prompt::Raw(text),
            Self::RawTrusted => Prompt::RawTrusted(text),
        }
    }
}

/// Ends what an agent is saying and forgets what else it was asked: trigger it, write it as a
/// message, or call [`AskCommands::hush`].
///
/// Each of those replies finishes with [`FinishReason::Cancelled`](crate::FinishReason::Cancelled),
/// usually a frame later. What was said so far stays in the conversation. Without effect on a
/// silent agent.
///
/// The order counts: what was asked before it is forgotten, what is asked after it, also in the
/// same frame, is answered. Only a `Cancel` that is written as a message has no place among the
/// asks of its frame, and counts as if it came before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Clone, Debug, PartialEq))]
pub struct Cancel {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
}

/// Cancels all asks of an agent and shortens its reply to the heard part: trigger it or write it as
/// a message. [`Cancel`] keeps all text that the model has generated.
///
/// A voice is slower than a model: when the player interrupts, the text may be far ahead of the
/// voice, or complete. The [`Conversation`](crate::Conversation) and the engine then keep the heard
/// part, cut at the last whole character. Later replies were not heard and are removed from the
/// conversation. If no byte was heard, the exchange is removed too. The last 16 replies of an agent
/// can be shortened, until its conversation is replaced. The order among asks counts as it does for
/// [`Cancel`].
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::prelude::*;
/// /// The latest sentence that the voice has spoken.
/// #[derive(Component)]
/// struct Heard(SentenceSpoken);
/// fn interrupt(heard: Single<&Heard>, mut commands: Commands) {
///     commands.trigger(Interrupt::after(&heard.0));
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Clone, Debug, PartialEq))]
pub struct Interrupt {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
    /// Which reply. `None`: the one in progress, or else the latest.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    pub generation: Option<GenerationId>,
    /// Bytes of the reply's text that were heard.
    pub heard_bytes: u32,
}

impl Interrupt {
    /// `heard_bytes` of the reply in progress were heard, or of the latest reply if none is in
    /// progress.
    #[must_use]
    pub fn at(agent: Entity, heard_bytes: u32) -> Self {
        Self { agent, generation: None, heard_bytes }
    }

    /// The reply was heard up to the end of this sentence.
    #[must_use]
    pub fn after(sentence: &SentenceSpoken) -> Self {
        let SentenceSpoken { agent, generation, end_bytes, .. } = *sentence;
        Self { agent, generation: Some(generation), heard_bytes: end_bytes }
    }
}

/// [`Ask`] and [`Cancel`] as methods of [`Commands`].
pub trait AskCommands {
    /// Asks `agent` something: triggers [`Ask`].
    fn ask(&mut self, agent: Entity, text: impl Into<String>) -> &mut Self;

    /// Asks `agent` something with a [tag](Ask::tag), which what becomes of it carries: triggers
    /// [`Ask`].
    fn ask_tagged(&mut self, agent: Entity, text: impl Into<String>, tag: u64) -> &mut Self;

    /// Ends what `agent` is saying and forgets what it was asked so far: triggers [`Cancel`].
    fn hush(&mut self, agent: Entity) -> &mut Self;
}

impl AskCommands for Commands<'_, '_> {
    fn ask(&mut self, agent: Entity, text: impl Into<String>) -> &mut Self {
        self.ask_tagged(agent, text, 0)
    }

    fn ask_tagged(&mut self, agent: Entity, text: impl Into<String>, tag: u64) -> &mut Self {
        self.trigger(Ask::new(agent, text).tagged(tag));
        self
    }

    fn hush(&mut self, agent: Entity) -> &mut Self {
        self.trigger(Cancel { agent });
        self
    }
}

/// [`Ask`] and [`Cancel`] as methods of [`EntityCommands`].
pub trait AskEntityCommands {
    /// Asks this agent something: triggers [`Ask`].
    fn ask(&mut self, text: impl Into<String>) -> &mut Self;

    /// Asks this agent something with a [tag](Ask::tag), which what becomes of it carries: triggers
    /// [`Ask`].
    fn ask_tagged(&mut self, text: impl Into<String>, tag: u64) -> &mut Self;

    /// Ends what this agent is saying and forgets what it was asked so far: triggers [`Cancel`].
    fn hush(&mut self) -> &mut Self;
}

impl AskEntityCommands for EntityCommands<'_> {
    fn ask(&mut self, text: impl Into<String>) -> &mut Self {
        self.ask_tagged(text, 0)
    }

    fn ask_tagged(&mut self, text: impl Into<String>, tag: u64) -> &mut Self {
        let agent = self.id();
        self.commands().ask_tagged(agent, text, tag);
        self
    }

    fn hush(&mut self) -> &mut Self {
        let agent = self.id();
        self.commands().hush(agent);
        self
    }
}

// Events become messages, so that there is one way in.

pub(crate) fn forward_ask(ask: On<Ask>, mut asks: ResMut<Messages<Ask>>) {
    asks.write(ask.event().clone());
}

/// Two kinds of messages have no order among each other, so the hub notes it.
pub(crate) fn forward_cancel(
    cancel: On<Cancel>,
    mut cancels: ResMut<Messages<Cancel>>,
    asks: Res<Messages<Ask>>,
    mut hub: ResMut<Hub>,
) {
    let cancel = cancels.write(*cancel.event());
    hub.hushed(HushId::Cancel(cancel.id), asks_written(&asks));
}

pub(crate) fn forward_interrupt(
    interrupt: On<Interrupt>,
    mut interrupts: ResMut<Messages<Interrupt>>,
    asks: Res<Messages<Ask>>,
    mut hub: ResMut<Hub>,
) {
    let interrupt = interrupts.write(*interrupt.event());
    hub.hushed(HushId::Interrupt(interrupt.id), asks_written(&asks));
}

/// Asks that were ever written: the number of the next one.
pub(crate) fn asks_written(asks: &Messages<Ask>) -> usize {
    asks.oldest_message_count() + asks.len()
}
