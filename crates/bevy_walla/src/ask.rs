//! Asks and cancels: [`Ask`], [`Cancel`] and [`CancelHeard`], as events, as messages or by a
//! method of `Commands`.

use std::sync::Arc;

use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
#[cfg(feature = "reflect")]
use bevy_reflect::std_traits::ReflectDefault;
use walla_runtime::{ActionPolicy, AskOptions, Constraint, Notes, Prompt, ReplyId};

use crate::sentence::ReplySentence;

/// A question to an agent: trigger it, write it as a message, or call [`AskCommands::ask`].
///
/// The answer arrives as [`ReplyStarted`](crate::ReplyStarted), [`ReplyDelta`](crate::ReplyDelta)s
/// and [`ReplySentence`](crate::ReplySentence)s, and ends with exactly one of
/// [`ReplyFinished`](crate::ReplyFinished) and [`ReplyFailed`](crate::ReplyFailed). If the agent is
/// still speaking, the answer follows the current reply. Asks made before the model is loaded wait
/// for it. The text may come from a player: it never becomes a control token, except in an ask of
/// the kind [`AskKind::RawTrusted`].
///
/// In all three cases the ask can be read as a message until the next frame, for instance to show
/// the question. An ask that is written as a message triggers no `On<Ask>` observer. An ask of an
/// entity without an [`Agent`](crate::Agent) ends with
/// [`ReplyError::UnknownAgent`](crate::ReplyError::UnknownAgent).
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
/// fn take_quest(finished: On<ReplyFinished>, talks: Query<&Conversation>) {
///     if finished.tag == QUEST
///         && let Ok(talk) = talks.get(finished.agent)
///         && let Some(quest) = talk.reply(finished.reply_id)
///     {
///         println!("New quest: {quest}");
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct Ask {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
    /// The question.
    pub text: String,
    /// How the model reads the text. Default: [`AskKind::Chat`].
    #[cfg_attr(feature = "reflect", reflect(default))]
    pub kind: AskKind,
    /// Identifies this ask with any value that is useful to the game: for instance a counter, the
    /// purpose of the answer, or the entity that asked ([`Entity::to_bits`]).
    /// All events of the reply carry a copy. Default: `0`.
    pub tag: u64,
    /// Another character that speaks the text, for [`MemoryTexts`](crate::MemoryTexts). Default:
    /// `None`, the player.
    #[cfg_attr(feature = "reflect", reflect(default))]
    pub speaker: Option<Entity>,
    /// Settings of this ask, which replace the settings of its agent. Default: none.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    pub options: AskOptions,
}

impl Ask {
    /// An ask of the kind [`AskKind::Chat`] with tag 0.
    #[must_use]
    pub fn new(agent: Entity, text: impl Into<String>) -> Self {
        let (text, kind) = (text.into(), AskKind::Chat);
        Self { agent, text, kind, tag: 0, speaker: None, options: AskOptions::default() }
    }

    /// An ask without a question: the agent continues its conversation ([`AskKind::Continue`]).
    #[must_use]
    pub fn to_continue(agent: Entity) -> Self {
        Self { kind: AskKind::Continue, ..Self::new(agent, "") }
    }

    /// A repetition of the ask that led to the agent's last reply ([`AskKind::Again`]).
    #[must_use]
    pub fn again(agent: Entity) -> Self {
        Self { kind: AskKind::Again, ..Self::new(agent, "") }
    }

    /// Sets the character that speaks the text, instead of the player: an agent that
    /// [memorises](crate::Memorises) the exchange remembers who spoke.
    #[must_use]
    pub fn spoken_by(self, speaker: Entity) -> Self {
        Self { speaker: Some(speaker), ..self }
    }

    /// Sets texts that the agent knows for this reply. They replace the entries of its
    /// [`Memory`](crate::Memory) and the [`Lore`](crate::Lore) that would be found for this ask:
    /// see [`Notes`].
    #[must_use]
    pub fn knowing(self, notes: Notes) -> Self {
        let options = AskOptions { notes: Some(Arc::new(notes)), ..self.options };
        Self { options, ..self }
    }

    /// Sets the seed of the reply's random numbers, instead of the agent's
    /// [`AgentSeed`](crate::AgentSeed).
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        let options = AskOptions { seed: Some(seed), ..self.options };
        Self { options, ..self }
    }

    /// Changes the kind to [raw text](AskKind::Raw) to continue.
    #[must_use]
    pub fn raw(self) -> Self {
        Self { kind: AskKind::Raw, ..self }
    }

    /// Changes the kind to [raw text with markers](AskKind::RawTrusted) to continue. Never use it
    /// with text from a player.
    #[must_use]
    pub fn raw_trusted(self) -> Self {
        Self { kind: AskKind::RawTrusted, ..self }
    }

    /// Sets the condition on the reply's text, instead of the agent's
    /// [`AgentConstraint`](crate::AgentConstraint).
    #[must_use]
    pub fn under(self, constraint: Constraint) -> Self {
        let options = AskOptions { constraint: Some(constraint), ..self.options };
        Self { options, ..self }
    }

    /// Sets when the agent may call its actions in this reply, instead of
    /// [`Actions::policy`](crate::Actions::policy).
    #[must_use]
    pub fn acting(self, policy: ActionPolicy) -> Self {
        let options = AskOptions { actions: Some(policy), ..self.options };
        Self { options, ..self }
    }

    /// Leaves no turn in the [`Conversation`](crate::Conversation), no sentences, and no text in
    /// [`Speech`](crate::Speech): for questions of the game itself, such as a choice or JSON. The
    /// reply arrives as [`ReplyDelta`](crate::ReplyDelta)s with the [tag](Self::tagged), its calls
    /// as the calls of any reply; they take no results.
    #[must_use]
    pub fn aside(self) -> Self {
        let options = AskOptions { aside: true, ..self.options };
        Self { options, ..self }
    }

    /// Asks how probable each of these texts is as the answer, in place of an answer: for ranking
    /// lines, or choosing among intents or moves. The result is one
    /// [`ReplyScores`](crate::ReplyScores); otherwise the ask is an [aside](Self::aside). For the
    /// kinds [`Chat`](AskKind::Chat), [`Continue`](AskKind::Continue) and raw text.
    /// [`AskOptions::score`] has the rules.
    ///
    /// # Examples
    /// ```
    /// # use bevy_ecs::prelude::*;
    /// use bevy_walla::prelude::*;
    /// const MOODS: [&str; 3] = ["friendly", "wary", "hostile"];
    /// fn judge(mut commands: Commands, guard: Single<Entity, With<Agent>>) {
    ///     let ask = Ask::new(*guard, "A stranger draws a knife. Your mood, in one word?");
    ///     commands.trigger(ask.scoring(MOODS));
    /// }
    /// fn judged(scores: On<bevy_walla::ReplyScores>) {
    ///     if let Some(best) = scores.best() {
    ///         println!("The guard is {}.", MOODS[best.index as usize]);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn scoring(self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let score = AskOptions::score(texts).score;
        let options = AskOptions { score, ..self.options };
        Self { options, ..self }
    }

    /// Sets the tag.
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
    /// No new turn: the agent replies to its conversation as it is, so the text is ignored. It
    /// answers an observation, continues after the result of an action, or speaks first
    /// ([`Prompt::Continue`]).
    Continue,
    /// The agent's last reply once more; the text is ignored. The reply and all later turns are
    /// removed from the [`Conversation`](crate::Conversation), and the same is asked again
    /// ([`Prompt::Again`]). It counts as an edit of the conversation: earlier asks are cancelled.
    /// While a reply is in progress, this reply is repeated: its text so far is dropped, and all
    /// earlier turns stay. With the same [seed](Ask::seeded) the same words come. Without a reply
    /// the ask fails with [`ReplyError::NoReply`](crate::ReplyError::NoReply).
    Again,
    /// Text to continue, without template, persona and conversation. The reply does not become part
    /// of the conversation. The text may come from a player: it is never parsed for special tokens
    /// ([`Prompt::Raw`]).
    Raw,
    /// As [`Raw`](Self::Raw), but markers such as `<|im_start|>` are parsed as special tokens
    /// ([`Prompt::RawTrusted`]): for a chat format that the game writes itself. Never use it with
    /// text from a player.
    RawTrusted,
}

impl AskKind {
    /// Whether the reply becomes part of the conversation.
    pub(crate) fn is_in_conversation(self) -> bool {
        matches!(self, Self::Chat | Self::Continue | Self::Again)
    }

    /// The engine's prompt for this text.
    pub(crate) fn prompt(self, text: String) -> Prompt {
        match self {
            Self::Chat => Prompt::Chat(text),
            Self::Continue => Prompt::Continue,
            Self::Again => Prompt::Again,
            Self::Raw => Prompt::Raw(text),
            Self::RawTrusted => Prompt::RawTrusted(text),
        }
    }
}

/// Cancels the reply in progress and all waiting asks of an agent: trigger it, write it as a
/// message, or call [`AskCommands::cancel`].
///
/// Each of the replies finishes with [`FinishReason::Cancelled`](crate::FinishReason::Cancelled),
/// usually a frame later. The text so far stays in the conversation. It has no effect on a silent
/// agent.
///
/// The order matters: asks made before it are cancelled, asks made after it, also in the same
/// frame, are answered. Only a `Cancel` that is written as a message has no position among the asks
/// of its frame. It counts as made before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct Cancel {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
}

/// Cancels all asks of an agent and shortens its reply to the heard part: trigger it or write it as
/// a message. The async API calls this `Reply::cancel_heard`. [`Cancel`] keeps all text that the
/// model has generated.
///
/// Speech output is slower than a model: when the player interrupts, the text may be far ahead of
/// the voice, or complete. The [`Conversation`](crate::Conversation) and the engine then keep the
/// heard part, cut at the last whole character. Later replies were not heard and are removed from
/// the conversation. If no byte was heard, the exchange is removed too. The last 16 replies of an
/// agent can be shortened, until its conversation is replaced. The order among asks matters as it
/// does for [`Cancel`].
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::prelude::*;
/// /// The latest sentence that the voice has spoken.
/// #[derive(Component)]
/// struct Heard(ReplySentence);
/// fn player_speaks(heard: Single<&Heard>, mut commands: Commands) {
///     commands.trigger(CancelHeard::after(&heard.0));
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct CancelHeard {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
    /// The reply. `None`: the one in progress, otherwise the latest.
    pub reply_id: Option<ReplyId>,
    /// Bytes of the reply's text that were heard.
    pub heard_bytes: u32,
}

impl CancelHeard {
    /// `heard_bytes` of the reply in progress were heard, or of the latest reply if none is in
    /// progress.
    #[must_use]
    pub fn at(agent: Entity, heard_bytes: u32) -> Self {
        Self { agent, reply_id: None, heard_bytes }
    }

    /// The reply was heard up to the end of this sentence.
    #[must_use]
    pub fn after(sentence: &ReplySentence) -> Self {
        let ReplySentence { agent, reply_id, end_bytes, .. } = *sentence;
        Self { agent, reply_id: Some(reply_id), heard_bytes: end_bytes }
    }
}

/// [`Ask`] and [`Cancel`] as methods of [`Commands`].
pub trait AskCommands {
    /// Triggers [`Ask`] for `agent`.
    fn ask(&mut self, agent: Entity, text: impl Into<String>) -> &mut Self;

    /// Triggers [`Ask`] for `agent` with a [tag](Ask::tag), which the events of the reply carry.
    fn ask_tagged(&mut self, agent: Entity, text: impl Into<String>, tag: u64) -> &mut Self;

    /// Triggers [`Cancel`] for `agent`: cancels the reply in progress and all asks so far.
    fn cancel(&mut self, agent: Entity) -> &mut Self;
}

impl AskCommands for Commands<'_, '_> {
    fn ask(&mut self, agent: Entity, text: impl Into<String>) -> &mut Self {
        self.ask_tagged(agent, text, 0)
    }

    fn ask_tagged(&mut self, agent: Entity, text: impl Into<String>, tag: u64) -> &mut Self {
        self.trigger(Ask::new(agent, text).tagged(tag));
        self
    }

    fn cancel(&mut self, agent: Entity) -> &mut Self {
        self.trigger(Cancel { agent });
        self
    }
}

/// [`Ask`] and [`Cancel`] as methods of [`EntityCommands`].
pub trait AskEntityCommands {
    /// Triggers [`Ask`] for this agent.
    fn ask(&mut self, text: impl Into<String>) -> &mut Self;

    /// Triggers [`Ask`] for this agent with a [tag](Ask::tag), which the events of the reply carry.
    fn ask_tagged(&mut self, text: impl Into<String>, tag: u64) -> &mut Self;

    /// Triggers [`Cancel`] for this agent: cancels the reply in progress and all asks so far.
    fn cancel(&mut self) -> &mut Self;
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

    fn cancel(&mut self) -> &mut Self {
        let agent = self.id();
        self.commands().cancel(agent);
        self
    }
}

/// Number of asks ever written, which is the number of the next one.
pub(crate) fn asks_written(asks: &Messages<Ask>) -> usize {
    asks.oldest_message_count() + asks.len()
}
