//! Asks and cancels: [`Ask`] and [`Cancel`], as events, as messages or by a method of `Commands`.

use std::sync::Arc;

use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;
#[cfg(feature = "reflect")]
use bevy_reflect::Reflect;
use walla_runtime::{ActionPolicy, Constraint, ReplyId};

use crate::sentence::ReplySentence;

pub use walla_runtime::{AskOptions, NamedText, Notes, Prompt};

/// A question to an agent: trigger it, write it as a message, or call [`AskCommands::ask`].
///
/// The answer arrives as [`ReplyStarted`](crate::ReplyStarted), [`ReplyDelta`](crate::ReplyDelta)s
/// and [`ReplySentence`]s, and ends with exactly one of
/// [`ReplyFinished`](crate::ReplyFinished) and [`ReplyFailed`](crate::ReplyFailed). If the agent is
/// still speaking, the answer follows the current reply. Asks made before the model is loaded wait
/// for it. The text may come from a player: it never becomes a control token, except in
/// [`Prompt::RawTrusted`].
///
/// In all three cases the ask can be read as a message until the next frame, for instance to show
/// the question. An ask that is written as a message triggers no `On<Ask>` observer. An ask of an
/// entity without an [`Agent`](crate::Agent) ends with
/// [`ReplyError::UnknownAgent`](crate::reply::ReplyError::UnknownAgent).
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
    /// The question, or another [`Prompt`]. For [`Prompt::Again`] the reply and all later turns are
    /// removed from the [`Conversation`](crate::Conversation), which counts as an edit: earlier
    /// asks are cancelled. While a reply is in progress, this reply is repeated: its text so far is
    /// dropped, and all earlier turns stay. [`Prompt::Results`] fails with
    /// [`ReplyError::Result`](crate::reply::ReplyError::Result): results are
    /// [`ActionResult`](crate::ActionResult)s.
    pub prompt: Prompt,
    /// Identifies this ask with any value that is useful to the game: for instance a counter, the
    /// purpose of the answer, or the entity that asked ([`Entity::to_bits`]).
    /// All events of the reply carry a copy. Default: `0`.
    pub tag: u64,
    /// Another character that speaks the text. Its [`Name`] is the [name of the
    /// turn](crate::conversation::Turn::name), and
    /// [`MemoryTexts`](crate::memories::MemoryTexts) has both. Default: `None`, the player.
    #[cfg_attr(feature = "reflect", reflect(default))]
    pub speaker: Option<Entity>,
    /// Settings of this ask, which replace the settings of its agent. Default: none.
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    pub options: AskOptions,
}

impl Ask {
    /// An ask with tag 0. A text is the next user turn ([`Prompt::Chat`]).
    #[must_use]
    pub fn new(agent: Entity, prompt: impl Into<Prompt>) -> Self {
        let options = AskOptions::default();
        Self { agent, prompt: prompt.into(), tag: 0, speaker: None, options }
    }

    /// An ask without a question: the agent continues its conversation ([`Prompt::Continue`]).
    #[must_use]
    pub fn resume(agent: Entity) -> Self {
        Self::new(agent, Prompt::Continue)
    }

    /// A repetition of the ask that led to the agent's last reply ([`Prompt::Again`]).
    #[must_use]
    pub fn again(agent: Entity) -> Self {
        Self::new(agent, Prompt::Again)
    }

    /// Sets the character that speaks the text, instead of the player. The agent reads its
    /// [`Name`] before the text, and if it [memorizes](crate::memories::Memorizes) the exchange,
    /// remembers who spoke.
    #[must_use]
    pub fn with_speaker(self, speaker: Entity) -> Self {
        Self { speaker: Some(speaker), ..self }
    }

    /// Sets the name of the speaker, such as a player's, one of several: the agent reads it before
    /// the text. Only a question ([`Prompt::Chat`]) has one.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.prompt = match self.prompt {
            Prompt::Chat(text) => Prompt::named(name, text),
            other => other,
        };
        self
    }

    /// Sets texts that the agent knows for this reply. They replace the entries of its
    /// [`AgentMemory`](crate::memories::AgentMemory) and the [`Lore`](crate::memories::Lore) that
    /// would be found for this ask: see [`Notes`].
    #[must_use]
    pub fn with_notes(mut self, notes: Notes) -> Self {
        self.options.notes = Some(Arc::new(notes));
        self
    }

    /// Sets the seed of the reply's random numbers, instead of the agent's
    /// [`AgentSeed`](crate::AgentSeed).
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// Sets the condition on the reply's text, instead of the agent's
    /// [`AgentConstraint`](crate::AgentConstraint).
    #[must_use]
    pub fn with_constraint(mut self, constraint: Constraint) -> Self {
        self.options.constraint = Some(constraint);
        self
    }

    /// Sets when the agent may call its actions in this reply, instead of
    /// [`AgentActions::policy`](crate::AgentActions::policy).
    #[must_use]
    pub fn with_policy(mut self, policy: ActionPolicy) -> Self {
        self.options.actions = Some(policy);
        self
    }

    /// Leaves no turn in the [`Conversation`](crate::Conversation), no sentences, and no text in
    /// [`Speech`](crate::Speech): for questions of the game itself, such as a choice or JSON. The
    /// reply arrives as [`ReplyDelta`](crate::ReplyDelta)s with the [tag](Self::with_tag), its
    /// calls as the calls of any reply; they take no results.
    #[must_use]
    pub fn aside(mut self) -> Self {
        self.options.aside = true;
        self
    }

    /// Asks how probable each of these texts is as the answer, in place of an answer: for ranking
    /// lines, or choosing among intents or moves. The result is one
    /// [`ReplyScores`](crate::reply::ReplyScores); otherwise the ask is an [aside](Self::aside).
    /// For the prompts [`Chat`](Prompt::Chat), [`Continue`](Prompt::Continue) and raw text.
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
    /// fn judged(scores: On<bevy_walla::reply::ReplyScores>) {
    ///     if let Some(best) = scores.best() {
    ///         println!("The guard is {}.", MOODS[best.index as usize]);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn scoring(mut self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.score = AskOptions::score(texts).score;
        self
    }

    /// Sets the tag.
    #[must_use]
    pub fn with_tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }
}

/// Cancels the reply in progress and all waiting asks of an agent: trigger it, write it as a
/// message, or call [`AskCommands::cancel`].
///
/// Each of the replies finishes with
/// [`FinishReason::Cancelled`](crate::reply::FinishReason::Cancelled), usually a frame later. The
/// text so far stays in the conversation. It has no effect on a silent agent.
///
/// The order matters: asks made before it are cancelled, asks made after it, also in the same
/// frame, are answered. Only a `Cancel` that is written as a message has no position among the asks
/// of its frame. It counts as made before them.
///
/// # The heard part
/// Speech output is slower than a model: when the player interrupts, the text may be far ahead of
/// the voice, or complete. With [`heard_bytes`](Self::heard_bytes) the
/// [`Conversation`](crate::Conversation) and the engine keep the heard part, cut at the last whole
/// character. Later replies were not heard and are removed from the conversation. If no byte was
/// heard, the exchange is removed too. The last 16 replies of an agent can be shortened, until its
/// conversation is replaced. The async API calls this `Reply::cancel_heard`.
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::ask::Cancel;
/// use bevy_walla::prelude::*;
/// /// The latest sentence that the voice has spoken.
/// #[derive(Component)]
/// struct Heard(ReplySentence);
/// fn player_speaks(heard: Single<&Heard>, mut commands: Commands) {
///     commands.trigger(Cancel::heard_until(&heard.0));
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, EntityEvent, Message)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Event, Message, Clone, Debug, PartialEq))]
pub struct Cancel {
    /// An entity with an [`Agent`](crate::Agent).
    #[event_target]
    pub agent: Entity,
    /// Bytes of the reply's text that were heard. `None`: all text so far stays.
    pub heard_bytes: Option<u32>,
    /// The reply that was heard. `None`: the one in progress, otherwise the latest.
    pub reply_id: Option<ReplyId>,
}

impl Cancel {
    /// All text so far stays.
    #[must_use]
    pub fn new(agent: Entity) -> Self {
        Self { agent, heard_bytes: None, reply_id: None }
    }

    /// `heard_bytes` of the reply in progress were heard, or of the latest reply if none is in
    /// progress.
    #[must_use]
    pub fn heard(agent: Entity, heard_bytes: u32) -> Self {
        Self { heard_bytes: Some(heard_bytes), ..Self::new(agent) }
    }

    /// The reply was heard up to the end of this sentence.
    #[must_use]
    pub fn heard_until(sentence: &ReplySentence) -> Self {
        let ReplySentence { agent, reply_id, end_bytes, .. } = *sentence;
        Self { reply_id: Some(reply_id), ..Self::heard(agent, end_bytes) }
    }
}

/// [`Ask`] and [`Cancel`] as methods of [`Commands`].
pub trait AskCommands {
    /// Triggers [`Ask`] for `agent`.
    fn ask(&mut self, agent: Entity, prompt: impl Into<Prompt>) -> &mut Self;

    /// Triggers [`Ask`] for `agent` with a [tag](Ask::tag), which the events of the reply carry.
    fn ask_tagged(&mut self, agent: Entity, prompt: impl Into<Prompt>, tag: u64) -> &mut Self;

    /// Triggers [`Cancel`] for `agent`: cancels the reply in progress and all asks so far.
    fn cancel(&mut self, agent: Entity) -> &mut Self;
}

impl AskCommands for Commands<'_, '_> {
    fn ask(&mut self, agent: Entity, prompt: impl Into<Prompt>) -> &mut Self {
        self.ask_tagged(agent, prompt, 0)
    }

    fn ask_tagged(&mut self, agent: Entity, prompt: impl Into<Prompt>, tag: u64) -> &mut Self {
        self.trigger(Ask::new(agent, prompt).with_tag(tag));
        self
    }

    fn cancel(&mut self, agent: Entity) -> &mut Self {
        self.trigger(Cancel::new(agent));
        self
    }
}

/// [`Ask`] and [`Cancel`] as methods of [`EntityCommands`].
pub trait AskEntityCommands {
    /// Triggers [`Ask`] for this agent.
    fn ask(&mut self, prompt: impl Into<Prompt>) -> &mut Self;

    /// Triggers [`Ask`] for this agent with a [tag](Ask::tag), which the events of the reply carry.
    fn ask_tagged(&mut self, prompt: impl Into<Prompt>, tag: u64) -> &mut Self;

    /// Triggers [`Cancel`] for this agent: cancels the reply in progress and all asks so far.
    fn cancel(&mut self) -> &mut Self;
}

impl AskEntityCommands for EntityCommands<'_> {
    fn ask(&mut self, prompt: impl Into<Prompt>) -> &mut Self {
        self.ask_tagged(prompt, 0)
    }

    fn ask_tagged(&mut self, prompt: impl Into<Prompt>, tag: u64) -> &mut Self {
        let agent = self.id();
        self.commands().ask_tagged(agent, prompt, tag);
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
