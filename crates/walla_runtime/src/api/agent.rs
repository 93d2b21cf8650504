//! Agents: specification, conversation and prompts.

use std::sync::Arc;

use walla_grammar::Constraint;
use walla_model::chat::{Message, Role, name_line};
use walla_plan::Detail;
use walla_types::{Sampling, TokenId};

use super::action::{ActionPolicy, Actions, CallId, CallResult};
use super::notes::Notes;
use super::route::Route;

/// Speaker of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Speaker {
    /// The user or player who talks to the agent.
    User,
    /// The agent.
    Agent,
    /// The world: an event that the agent perceives, written by the game ("Odo leaves the room").
    /// Templates have no such role. It is rendered as a system message where the model's template
    /// accepts one at any position, otherwise as a user message with a fixed prefix. Like all
    /// conversation text it never yields control tokens. Where observations are user messages, a
    /// player can type the same prefix.
    Observation,
    /// An action of the agent: its text is the call, as JSON with `name` and `arguments`. The
    /// engine adds it behind the agent's turn of the same reply.
    Action,
    /// The result of an action, written by the game ("The horseshoe is sold."). It belongs to the
    /// call with its [id](Turn::call), and is shown to the model at this call, as long as no other
    /// turn is between them.
    ActionResult,
}

impl Speaker {
    /// Whether a turn of this speaker belongs to the turn before it: a reply to its question, an
    /// action to the reply, a result to the action. A conversation does not begin with such a turn
    /// after its oldest turns were dropped.
    #[must_use]
    pub fn continues(self, before: Self) -> bool {
        match self {
            Self::User | Self::Observation => false,
            // Only the first of several consecutive replies is the reply to the question.
            Self::Agent => matches!(before, Self::User | Self::Observation),
            // An agent may act without a word.
            Self::Action => !matches!(before, Self::ActionResult),
            Self::ActionResult => matches!(before, Self::Action | Self::ActionResult),
        }
    }
}

/// One turn of a conversation. Turns may have any order: an agent may speak first, and one speaker
/// may have several consecutive turns. Where the model's template refuses that, they are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Turn {
    /// The speaker.
    pub speaker: Speaker,
    /// Text of the turn.
    pub text: String,
    /// The call: of an [action](Speaker::Action) itself, of a [result](Speaker::ActionResult) the
    /// one that it belongs to. A result without it belongs to the first call before it that has no
    /// result. Default: `None`, as for all other turns.
    pub call: Option<CallId>,
    /// Name of the speaker of a user turn, if the agent talks with several: players, other
    /// characters. The prompt has it before the text, as in `Alice: Good day!`, on one line and
    /// untrusted like the text. Default: `None`.
    pub name: Option<Arc<str>>,
}

/// A name as the prompt has it; an empty one is none.
fn name_of(name: Arc<str>) -> Option<Arc<str>> {
    let line = name_line(&name);
    match &*line {
        "" => None,
        line if line == &*name => Some(name),
        line => Some(line.into()),
    }
}

impl Turn {
    /// A turn that is not linked with a call.
    #[must_use]
    pub fn new(speaker: Speaker, text: impl Into<String>) -> Self {
        Self { speaker, text: text.into(), call: None, name: None }
    }

    /// A user turn of a speaker with a name: said to the agent, or overheard by it. A name has one
    /// line of at most [`MAX_NAME_BYTES`](walla_model::chat::MAX_NAME_BYTES) bytes: others are cut.
    #[must_use]
    pub fn named(name: impl Into<Arc<str>>, text: impl Into<String>) -> Self {
        Self { name: name_of(name.into()), ..Self::new(Speaker::User, text) }
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The result of a call.
    #[must_use]
    pub fn result(call: CallId, text: impl Into<String>) -> Self {
        Self { call: Some(call), ..Self::new(Speaker::ActionResult, text) }
    }

    /// The turn as a message of a chat template.
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        let role = match self.speaker {
            Speaker::User => Role::User,
            Speaker::Agent => Role::Assistant,
            Speaker::Observation => Role::Observation,
            Speaker::Action => Role::Action,
            Speaker::ActionResult => Role::ActionResult,
        };
        let call = self.call.map(CallId::number);
        Message { role, content: &self.text, call, name: self.name.as_deref() }
    }

    /// Bytes of its text and, approximately, of the template's markers around it.
    pub(crate) fn size(&self) -> u64 {
        let name = self.name.as_ref().map_or(0, |name| name.len());
        (16 + name + self.text.trim().len()) as u64
    }
}

/// Action when a conversation no longer fits in the agent's context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ContextPolicy {
    /// Forget the oldest turns and keep the persona. The default.
    ///
    /// A prompt has the context without the tokens that are kept for the reply
    /// ([`max_reply_tokens`](AgentSpec::max_reply_tokens), with the reasoning of an agent that
    /// thinks; at most half of the context). Persona and question take a part of it; when the turns
    /// exceed the rest, half of it is forgotten at once, so that the cache stays valid in between.
    /// The first turns are forgotten earlier, by up to that half: agents that began to talk
    /// together do not evaluate their conversations in the same frame. So with the defaults and a
    /// context of 2,048 tokens an agent remembers 800 to 1,700 tokens.
    /// [`Usage::dropped_turns`](crate::Usage::dropped_turns) reports the forgotten turns.
    ///
    /// Turns that only the present cache is too small for
    /// ([`Engine::set_kv_tokens`](crate::Engine::set_kv_tokens)) are left out of the prompt and
    /// stay in the conversation.
    #[default]
    DropOldest,
    /// An ask that does not fit fails with
    /// [`ReplyError::PromptTooLong`](crate::ReplyError::PromptTooLong). A reply that fills the
    /// context finishes with [`FinishReason::ContextFull`](crate::FinishReason::ContextFull).
    Refuse,
    /// Like `Refuse` for replies. An ask that does not fit finishes at once, empty, with
    /// [`FinishReason::ContextFull`](crate::FinishReason::ContextFull).
    Stop,
}

/// Specification of an agent: persona and generation settings.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AgentSpec {
    /// System text. Untrusted, like all text that a player can influence: it never yields control
    /// tokens.
    pub persona: String,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Maximum speech tokens of one reply. Default 256.
    pub max_reply_tokens: u32,
    /// Whether the model reasons before it speaks, if its chat template has a switch for that
    /// ([`ModelCard::thinking_switch`](crate::ModelCard::thinking_switch)).
    /// [Reasoning](crate::ReplyEvent::Reasoning) is never spoken. Default `false`, because it takes
    /// seconds.
    pub thinking: bool,
    /// Maximum reasoning tokens of one reply. They do not count for
    /// [`max_reply_tokens`](Self::max_reply_tokens). Default 512.
    ///
    /// At the limit the engine closes the block: it appends the model's closing marker to the
    /// sequence, and the model continues with speech. It does the same if the model ends its turn
    /// within the block, before it has said anything. It closes the block earlier if the context is
    /// short: speech keeps [`max_reply_tokens`](Self::max_reply_tokens) tokens, or half of the
    /// context behind the prompt if that is less. If the vocabulary cannot spell the marker, the
    /// reply ends with [`FinishReason::ReasoningLength`](crate::FinishReason::ReasoningLength).
    ///
    /// The limit also applies to models that reason without a switch; with 0 they speak
    /// immediately.
    pub max_reasoning_tokens: u32,
    /// Speech speed: tokens due per second. It is a deadline that the planner tries to meet, not a
    /// maximum rate. Default: none.
    pub voice_rate: Option<f32>,
    /// Agents of higher priority are scheduled first. Default 0.
    pub priority: i32,
    /// Level of detail: the agent's share of each frame.
    /// [`Command::SetDetail`](crate::Command::SetDetail) changes it during a reply. Default: all
    /// that its voice rate needs.
    pub detail: Detail,
    /// Action when the context is full.
    pub context_policy: ContextPolicy,
    /// A reply ends before any of these strings appears in its speech. Reasoning is not searched.
    pub stop_strings: Vec<String>,
    /// A reply ends at any of these tokens in its speech, in addition to the model's end-of-turn
    /// tokens. Like the latter, they are not part of the text.
    pub stop_tokens: Vec<TokenId>,
    /// Condition on the speech of a reply: a JSON schema, a regular expression, a choice or a
    /// grammar. The reply ends where the grammar ends. It conforms to the grammar if it finishes
    /// with [`FinishReason::EndOfTurn`](crate::FinishReason::EndOfTurn); a reply that a limit or a
    /// stop string ends is cut. Default: none.
    ///
    /// Masks are computed on worker threads. A reply with a constraint has one step in flight, and
    /// waits for its next mask. Other agents do not wait for it. Reasoning is not constrained.
    pub constraint: Option<Constraint>,
    /// Actions that the agent can call in replies to [`Prompt::Chat`] and [`Prompt::Continue`].
    /// Default: none.
    ///
    /// A reply with a [constraint](Self::constraint) makes no calls. Where the vocabulary has no
    /// special token that opens a call, the text of the opening delimiter opens one.
    pub actions: Option<Actions>,
    /// The engine of the agent, in an app with several. Default: the default engine.
    pub route: Route,
    /// Initial turns, oldest first: a restored conversation, an agent's greeting, an observation.
    pub turns: Vec<Turn>,
}

impl AgentSpec {
    /// An agent with this persona and default settings.
    #[must_use]
    pub fn new(persona: impl Into<String>) -> Self {
        Self {
            persona: persona.into(),
            sampling: Sampling::default(),
            max_reply_tokens: 256,
            thinking: false,
            max_reasoning_tokens: 512,
            voice_rate: None,
            priority: 0,
            detail: Detail::Full,
            context_policy: ContextPolicy::default(),
            stop_strings: Vec::new(),
            stop_tokens: Vec::new(),
            constraint: None,
            actions: None,
            route: Route::default(),
            turns: Vec::new(),
        }
    }
}

/// Settings of one ask. They replace the settings of its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AskOptions {
    /// Condition on the speech of the reply, instead of [`AgentSpec::constraint`]. `None`: the
    /// agent's.
    pub constraint: Option<Constraint>,
    /// When the agent may call its actions, instead of [`Actions::policy`]. `None`: the agent's.
    pub actions: Option<ActionPolicy>,
    /// Text with which the reply begins: the model continues it. It is not in the reply's events,
    /// and the conversation keeps only the text behind it. Untrusted, like all text that a player
    /// can influence. With it the reply has no reasoning, and [`Prompt::Raw`] ignores it. Default:
    /// none.
    pub opening: Option<Arc<String>>,
    /// Texts that the agent knows for this reply, such as memories. They replace the memories that
    /// would be found for this ask; without any text, the agent knows nothing for this reply.
    /// [`Prompt::Raw`] ignores them. Default: the memories that are found, if the agent has any.
    pub notes: Option<Arc<Notes>>,
    /// Seed of the reply's random numbers, instead of [`Sampling::seed`]. `None`: the agent's. The
    /// same conversation with another seed gets another reply, unless the temperature is 0.
    pub seed: Option<u64>,
    /// Whether question and reply leave no turn in the conversation: for questions of the program,
    /// such as a choice or data as JSON, that the agent shall not remember. Calls are delivered;
    /// they are no turns either, so they take no results. Default: `false`.
    pub aside: bool,
    /// Maximum tokens of the reply in all: speech, reasoning, calls and their markers, sampled or
    /// forced. Then the reply ends with [`FinishReason::Length`](crate::FinishReason::Length), also
    /// within a call. The limits of the agent hold too. Remote engines ignore it. Default: none.
    pub max_tokens: Option<u32>,
    /// Texts whose probabilities are wanted instead of a reply: each is scored as the text that
    /// follows the prompt (and the [opening](Self::opening)). The prompt is evaluated once; each
    /// text costs its own tokens. There is one [`ReplyEvent::Score`](crate::ReplyEvent::Score) per
    /// text, then [`FinishReason::Scored`](crate::FinishReason::Scored). The ask is an
    /// [aside](Self::aside). Sampling parameters, constraints, actions, limits of tokens and
    /// reasoning do not affect scores. A text is untrusted and continues the prompt: for most
    /// models a word behind raw text begins with its space. Not for [`Prompt::Results`] and
    /// [`Prompt::Again`]. Default: none.
    pub score: Option<Arc<Vec<String>>>,
    /// Cancels the reply at a certain token, for replays of recordings. Remote engines ignore it.
    #[doc(hidden)]
    pub cancel_after: Option<Box<CancelAfter>>,
}

/// The token at which a reply is cancelled, as by a [`Command`](crate::Command) that the engine
/// applies between this token and the next one. So the end of the reply does not depend on time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CancelAfter {
    /// Number of tokens, sampled or forced: speech, reasoning and calls. 0: at the
    /// [begin](crate::ReplyEvent::Started).
    pub tokens: u32,
    /// Bytes of speech that the conversation keeps, as for
    /// [`Command::CancelHeard`](crate::Command::CancelHeard). [`u32::MAX`]: all.
    pub heard_bytes: u32,
}

impl AskOptions {
    /// A reply under this constraint.
    #[must_use]
    pub fn constraint(constraint: Constraint) -> Self {
        Self { constraint: Some(constraint), ..Self::default() }
    }

    /// A reply of an agent that knows these texts.
    #[must_use]
    pub fn notes(notes: Notes) -> Self {
        Self { notes: Some(Arc::new(notes)), ..Self::default() }
    }

    /// A reply with this seed.
    #[must_use]
    pub fn seed(seed: u64) -> Self {
        Self { seed: Some(seed), ..Self::default() }
    }

    /// The [scores](Self::score) of these texts.
    #[must_use]
    pub fn score(texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let texts = texts.into_iter().map(Into::into).collect();
        Self { score: Some(Arc::new(texts)), ..Self::default() }
    }

    /// Whether question and reply leave no turn: an [aside](Self::aside), or a
    /// [score](Self::score).
    #[must_use]
    pub fn is_aside(&self) -> bool {
        self.aside || self.score.is_some()
    }

    /// Bytes of text that they keep.
    #[must_use]
    pub fn source_bytes(&self) -> usize {
        let constraint = self.constraint.as_ref().map_or(0, Constraint::source_bytes);
        let notes = self.notes.as_ref().map_or(0, |notes| notes.bytes());
        let score = self.score.iter().flat_map(|texts| texts.iter());
        let score: usize = score.map(|text| size_of::<String>() + text.len()).sum();
        constraint + notes + score + self.opening.as_ref().map_or(0, |opening| opening.len())
    }
}

/// Content of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "reflect", derive(bevy_reflect::Reflect), reflect(Clone, Debug, PartialEq))]
pub enum Prompt {
    /// The next user turn, rendered with the model's chat template. The reply becomes the next
    /// agent turn.
    Chat(String),
    /// No new turn: the agent replies to its conversation as it is. So it continues after the
    /// results of its actions, answers an observation, or speaks first.
    Continue,
    /// The results of calls, in any order: they become turns, and the agent continues. All calls of
    /// a reply are answered together. If a result belongs to no call of the conversation or to one
    /// that has a result, or a call of the same reply lacks one, the ask fails with
    /// [`ReplyError::Result`](crate::ReplyError::Result) and no result is kept.
    Results(#[cfg_attr(feature = "reflect", reflect(ignore))] Vec<CallResult>),
    /// The last reply once more: the engine removes the agent's last turn and all later turns from
    /// the conversation, and asks the same again. A question is asked again as
    /// [`Chat`](Self::Chat); a reply to the conversation itself as [`Continue`](Self::Continue).
    ///
    /// With the same [seed](AskOptions::seed) the same words come, with another one others. The
    /// cache holds the prompt already, so only the new reply is evaluated. Turns that are appended
    /// before this ask are removed too. Without a reply in the conversation the ask fails with
    /// [`ReplyError::NoReply`](crate::ReplyError::NoReply).
    Again,
    /// Raw text to continue, without template or conversation. The text may come from a player: it
    /// yields no control, unknown or user-defined token and no token that ends a generation
    /// ([`Tokenizer::encode_untrusted`](crate::Tokenizer::encode_untrusted)). The whole reply is
    /// text: reasoning is separated only in replies to [`Prompt::Chat`].
    Raw(String),
    /// Raw text to continue, without template or conversation, in which markers such as
    /// `<|im_start|>` become their tokens. For a chat format that the program writes itself; never
    /// pass text from a player. The whole reply is text.
    RawTrusted(String),
    /// Raw tokens to continue. The whole reply is text.
    Tokens(#[cfg_attr(feature = "reflect", reflect(ignore))] Vec<TokenId>),
    /// As [`Chat`](Self::Chat), of a speaker with a [name](Turn::name).
    Named(#[cfg_attr(feature = "reflect", reflect(ignore))] Box<NamedText>),
}

/// A text with the name of its speaker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NamedText {
    /// The name.
    pub name: Arc<str>,
    /// The text.
    pub text: String,
}

/// [`Prompt::Chat`].
impl<T: Into<String>> From<T> for Prompt {
    fn from(text: T) -> Self {
        Self::Chat(text.into())
    }
}

impl Prompt {
    /// As [`Chat`](Self::Chat), of a speaker with a [name](Turn::name).
    #[must_use]
    pub fn named(name: impl Into<Arc<str>>, text: impl Into<String>) -> Self {
        match name_of(name.into()) {
            Some(name) => Self::Named(Box::new(NamedText { name, text: text.into() })),
            None => Self::Chat(text.into()),
        }
    }

    /// The ask with this question; without one, the agent continues its conversation.
    #[must_use]
    pub fn of_question(question: Option<Turn>) -> Self {
        match question {
            Some(Turn { name: Some(name), text, .. }) => Self::named(name, text),
            Some(Turn { text, .. }) => Self::Chat(text),
            None => Self::Continue,
        }
    }

    /// Whether it is a user turn.
    #[must_use]
    pub fn is_question(&self) -> bool {
        matches!(self, Self::Chat(_) | Self::Named(_))
    }

    /// A copy of the user turn; `None` for other prompts, which are not copied.
    #[must_use]
    pub fn question(&self) -> Option<Turn> {
        self.is_question().then(|| self.clone().into_question()).flatten()
    }

    /// The user turn; `None` for other prompts.
    #[must_use]
    pub fn into_question(self) -> Option<Turn> {
        match self {
            Self::Chat(text) => Some(Turn::new(Speaker::User, text)),
            Self::Named(named) => Some(Turn::named(named.name, named.text)),
            _ => None,
        }
    }

    /// Its text; empty for a prompt without one.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Chat(text) | Self::Raw(text) | Self::RawTrusted(text) => text,
            Self::Named(named) => &named.text,
            Self::Results(_) | Self::Tokens(_) | Self::Continue | Self::Again => "",
        }
    }

    /// Bytes of its text, or of its tokens.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len() * size_of::<TokenId>(),
            Self::Chat(text) | Self::Raw(text) | Self::RawTrusted(text) => text.len(),
            Self::Named(named) => named.name.len() + named.text.len(),
            Self::Results(results) => results.iter().map(|result| 32 + result.text.len()).sum(),
            Self::Continue | Self::Again => 0,
        }
    }
}
